//! Handshakes. The first byte says how: 0, 1: the rest comes to an acceptor or a dialler who holds a key that the
//! fuzzer does not; 2 and up: two ends of one run talk to each other, and the rest is laid over their bytes.

use std::mem::discriminant;

use paceline_wire::{HELLO, Handshake, HandshakeState, Identity, Key, Side, VERDICT};

fn identity(rank: usize) -> Identity {
    let (run, key) = ("fuzzed".to_owned(), Key::from([0x5a; 32]));
    Identity { run, rank, workers: 2, world: 3, model_hash: [7; 32], key }
}

/// An end of a connection between ranks 0 and 1.
fn end(side: Side) -> Handshake {
    match side {
        Side::Acceptor => Handshake::accept(&identity(0), [1; 32]),
        Side::Dialler => Handshake::dial(&identity(1), [2; 32], 0),
    }
}

pub fn run(input: &[u8]) -> bool {
    match input.split_first() {
        Some((0, bytes)) => alone(Side::Acceptor, bytes),
        Some((1, bytes)) => alone(Side::Dialler, bytes),
        Some((_, mask)) => between(mask),
        None => false,
    }
}

/// Bytes from somebody without the key: never a proof, bounded reading and answering, however they are cut.
fn alone(side: Side, bytes: &[u8]) -> bool {
    let feed = |piece: usize| {
        let (mut end, mut rest, mut said) = (end(side), bytes, 0);
        while end.wants() > 0 && !rest.is_empty() {
            let n = end.wants().min(piece).min(rest.len());
            end.receive(&rest[..n]);
            rest = &rest[n..];
            said += end.output().drain(..).count();
        }
        assert!(bytes.len() - rest.len() <= HELLO + VERDICT && said <= 2 * HELLO + 2 * VERDICT);
        end.standing()
    };
    let standing = feed(usize::MAX);
    assert_ne!(standing, HandshakeState::Proven, "it was proved without a key");
    // Words may differ: a first byte that is wrong is enough.
    assert_eq!(discriminant(&standing), discriminant(&feed(1)));
    false
}

/// Two ends that hold the key: whoever believes the other knows who it is, whatever happened on the way.
fn between(mask: &[u8]) -> bool {
    let (mut dialler, mut acceptor) = (end(Side::Dialler), end(Side::Acceptor));
    let mut mask = mask.iter().copied();
    let mut altered = false;
    let mut carry = |from: &mut Handshake, to: &mut Handshake| {
        let mut moved = false;
        while to.wants() > 0 && from.has_output() {
            let n = to.wants().min(from.output().len());
            let bytes: Vec<u8> =
                from.output().drain(..n).map(|byte| byte ^ mask.next().unwrap_or(0)).collect();
            to.receive(&bytes);
            moved = true;
        }
        moved
    };
    let mut admitted = false;
    loop {
        let there = carry(&mut dialler, &mut acceptor);
        if acceptor.standing() == HandshakeState::Proven && !admitted {
            admitted = true;
            acceptor.admit();
        }
        let back = carry(&mut acceptor, &mut dialler);
        if !there && !back {
            break;
        }
    }
    for (end, rank) in [(&dialler, 0), (&acceptor, 1)] {
        if end.standing() == HandshakeState::Proven {
            let theirs = end.theirs().copied().expect("who is believed has said who it is");
            let known = identity(rank);
            altered |= theirs.rank as usize != known.rank || theirs.model_hash != known.model_hash;
        }
    }
    assert!(!altered, "an end believes somebody else");
    [&dialler, &acceptor].iter().all(|end| end.standing() == HandshakeState::Proven)
}

pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // Somebody who says the right things, and proves them with another key.
    let key = Key::from([1; 32]);
    let mut stranger = Handshake::dial(&Identity { key, ..identity(1) }, [3; 32], 0);
    let mut said = stranger.output().split_off(0);
    let mut acceptor = end(Side::Acceptor);
    acceptor.receive(&said);
    stranger.receive(&acceptor.output()[..HELLO]);
    said.append(stranger.output());
    vec![
        ("undisturbed", vec![2]),
        ("nothing-laid-over", [vec![3], vec![0; HELLO + VERDICT]].concat()),
        ("stranger-dials", [&[0][..], &said].concat()),
        ("stranger-answers", [&[1][..], &acceptor.output()[..HELLO], &said[HELLO..]].concat()),
    ]
}
