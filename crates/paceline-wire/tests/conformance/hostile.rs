//! Those who do not belong: each is turned away or cut off while a healthy pair goes on.

use std::borrow::BorrowMut;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use paceline_wire::stream::medium::{Medium, Stream};
use paceline_wire::stream::{Listener, StreamTransport};
use paceline_wire::{
    HEADER, HELLO, Handshake, HandshakeState, Header, Hello, Identity, Key, StreamOptions, Transport,
    VERDICT, WireError,
};

use crate::hand::{join, join_when, knock};
use crate::memory::{Memory, both, lost, messages, meta, numbers, refused, until};
use crate::{PATIENCE, identity, listeners};

/// Two connected ranks of a world of three, and the address of rank 0.
pub fn healthy<M: Medium>() -> ([StreamTransport<M>; 2], M::Address) {
    healthy_within(PATIENCE)
}

/// The same, with the time that strangers have.
pub fn healthy_within<M: Medium>(handshake: Duration) -> ([StreamTransport<M>; 2], M::Address) {
    let (mut listeners, addresses) = listeners::<M>(2);
    let (one, zero) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let (door, other) = (addresses[0].clone(), addresses[1].clone());
    let dialled = door.clone();
    let options = StreamOptions { handshake, ..StreamOptions::default() };
    let one = thread::spawn(move || one.connect(identity(1, 3), &[dialled], options, PATIENCE).unwrap());
    let zero = zero.connect(identity(0, 3), &[other], options, PATIENCE).unwrap();
    ([zero, one.join().unwrap()], door.1)
}

/// A pair that exchanges messages until rank 0 has refused somebody; returns the cause.
pub fn exchange_until_refused<M: Medium>(mut pair: impl BorrowMut<[StreamTransport<M>; 2]>) -> String {
    let [zero, one] = pair.borrow_mut();
    let memory = Memory::new(vec![numbers(1, 1000)]);
    let mut rounds = 0;
    loop {
        zero.send(1, meta(rounds), memory.span(0), rounds).unwrap();
        one.send(0, meta(rounds), memory.span(0), rounds).unwrap();
        let enough = |a: &[_], b: &[_]| messages(a).len() == 1 && messages(b).len() == 1;
        let [events, _] = both([zero, one], &memory, enough);
        if let Some(cause) = refused(&events).first() {
            return cause.to_string();
        }
        rounds += 1;
    }
}

/// Lets a stranger of some identity dial rank 0 of a healthy pair: what rank 0 reports and what the stranger
/// is told.
fn stranger<M: Medium>(change: impl FnOnce(&mut Identity)) -> (String, String) {
    let (pair, door) = healthy::<M>();
    let mut stranger = identity(1, 3);
    change(&mut stranger);
    let listener = Listener::<M>::anywhere().unwrap();
    let peers = [(0, door)];
    let dialler =
        thread::spawn(move || listener.connect(stranger, &peers, StreamOptions::default(), PATIENCE));
    let reported = exchange_until_refused(pair);
    let Err(error @ WireError::Refused { .. }) = dialler.join().unwrap().map(|_| ()) else {
        panic!("connected")
    };
    (reported, error.to_string())
}

fn expect<M: Medium>(change: impl FnOnce(&mut Identity), what: &str, values: [&str; 2]) {
    let (reported, told) = stranger::<M>(change);
    let [theirs, ours] = values;
    for (text, theirs, ours) in [(&reported, theirs, ours), (&told, ours, theirs)] {
        assert!(text.contains(&format!(": {what} (theirs: ")), "{text}");
        let (left, right) = text.split_once("; ours: ").unwrap();
        assert!(left.contains(theirs) && right.contains(ours), "{text}");
    }
}

fn a_wrong_key_is_refused<M: Medium>() {
    expect::<M>(|i| i.key = Key::from([8; 32]), "wrong key", ["rank 1 of 3", "rank 0 of 3"]);
}

fn a_wrong_run_id_is_refused_and_both_are_named<M: Medium>() {
    expect::<M>(|i| i.run = "run-2".into(), "run id differs", ["\"run-2\"", "\"run-1\""]);
}

fn a_wrong_model_is_refused_and_both_are_named<M: Medium>() {
    expect::<M>(|i| i.model_hash = [1; 32], "model hash differs", ["model 01010101", "model abababab"]);
}

fn a_wrong_rank_is_refused<M: Medium>() {
    let values = ["rank 2 of 3", "rank 0 of 3"];
    expect::<M>(|i| i.rank = 2, "rank 2 is not expected by rank 0", values);
    let values = ["rank 1 of 3", "rank 0 of 3"];
    expect::<M>(|_| {}, "rank 1 is already connected to rank 0", values);
}

fn a_role_that_does_not_fit_the_rank_is_refused_and_both_are_named<M: Medium>() {
    let what = r#"expected rank 1 to be a worker, found role "server""#;
    expect::<M>(|i| i.workers = 1, what, ["rank 1 of 3, role \"server\"", "rank 0 of 3, role \"worker\""]);
}

fn a_wrong_version_is_refused_and_both_are_named<M: Medium>() {
    another_version::<M>(99);
}

fn another_version<M: Medium>(version: u16) {
    let (pair, door) = healthy::<M>();
    let mut stream = knock::<M>(&door);
    let mut hello = Hello::new(&identity(1, 3), [0; 32]);
    hello.version = version;
    // Over some media nothing can be said before the door was answered.
    let stranger = thread::spawn(move || {
        stream.write_all(&hello.encode()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    });
    let cause = exchange_until_refused(pair);
    let theirs = format!("wire version differs (theirs: wire version {version}, run");
    assert!(cause.contains(&theirs), "{cause}");
    assert!(cause.contains("; ours: wire version 1, run"), "{cause}");
    let answer = stranger.join().unwrap();
    assert_eq!(answer.len(), HELLO + VERDICT);
    assert!(answer[HELLO + 2..].starts_with(b"wire version differs"));
}

fn garbage_and_silence_are_refused_and_get_no_answer<M: Medium>() {
    for (said, what) in [(&b"GET / HTTP/1.1\r\n\r\n"[..], "found \"GET / HT\""), (b"", "no proof before")] {
        let within = if said.is_empty() { Duration::from_millis(100) } else { PATIENCE };
        let (pair, door) = healthy_within::<M>(within);
        let mut stream = knock::<M>(&door);
        stream.write_all(said).unwrap();
        let cause = exchange_until_refused(pair);
        let known = cause.starts_with("127.0.0.1:") || cause.starts_with("process ");
        assert!(known && cause.contains(what), "{cause}");
        // The end of the stream, or a reset, since something unread was thrown away.
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0);
    }
}

fn a_replayed_handshake_is_refused<M: Medium>() {
    let (mut pair, door) = healthy::<M>();
    // Somebody who holds the key but is not expected: its hello and its proof, as an eavesdropper hears them.
    let mut stream = knock::<M>(&door);
    let eavesdropper = thread::spawn(move || {
        let (mut handshake, mut heard) = (Handshake::dial(&identity(2, 3), [9; 32], 0), Vec::new());
        while handshake.standing() == HandshakeState::Pending {
            let output = std::mem::take(handshake.output());
            stream.write_all(&output).unwrap();
            heard.extend(output);
            let mut bytes = vec![0; handshake.wants()];
            stream.read_exact(&mut bytes).unwrap();
            handshake.receive(&bytes);
        }
        heard
    });
    let cause = exchange_until_refused(&mut pair);
    assert!(cause.contains(": rank 2 is not expected by rank 0 (theirs: "), "{cause}");
    let heard = eavesdropper.join().unwrap();
    assert_eq!(heard.len(), HELLO + VERDICT);
    let mut stream = knock::<M>(&door);
    let replay = thread::spawn(move || stream.write_all(&heard).map(|()| stream).unwrap());
    let cause = exchange_until_refused(&mut pair);
    assert!(cause.contains(": wrong key (theirs: "), "{cause}");
    drop(replay.join().unwrap());
}

fn a_frame_that_comes_twice_is_delivered_once<M: Medium>() {
    let (listeners, addresses) = listeners::<M>(1);
    let zero = listeners.into_iter().next().unwrap();
    let peers = [(2, addresses[0].1.clone())];
    let zero = thread::spawn(move || {
        zero.connect(identity(0, 3), &peers, StreamOptions::default(), PATIENCE).unwrap()
    });
    let mut by_hand = join::<M>(&addresses[0].1, 0);
    by_hand.write_all(&framed::<M>(|_| {}).repeat(2)).unwrap();
    let mut zero = zero.join().unwrap();
    let events = until(&mut zero, &Memory::new(vec![]), |e| !lost(e).is_empty());
    assert_eq!(messages(&events).len(), 1);
    let cause = lost(&events)[0].1;
    assert!(cause.contains("expected frame number 1, found frame number 0"), "{cause}");
}

/// Rank 2 says something to rank 0 after a valid handshake; returns why rank 0 dropped it. Ranks 0 and 1
/// go on.
fn dropped_for<M: Medium>(bytes: &[u8]) -> String {
    dropped_after::<M>(|_| {}, bytes)
}

/// The same, after it has done something with its connection.
pub fn dropped_after<M: Medium>(before: impl FnOnce(&mut M::Stream), bytes: &[u8]) -> String {
    let (listeners, addresses) = listeners::<M>(3);
    let mut listeners = listeners.into_iter();
    let (zero, one) = (listeners.next().unwrap(), listeners.next().unwrap());
    let peers = addresses.clone();
    let options = StreamOptions { max_body: 1000, ..StreamOptions::default() };
    let zero = thread::spawn(move || zero.connect(identity(0, 3), &peers[1..], options, PATIENCE).unwrap());
    let peers = [addresses[0].clone(), addresses[2].clone()];
    let one = thread::spawn(move || one.connect(identity(1, 3), &peers, options, PATIENCE).unwrap());
    let (mut to_zero, _to_one) = (join::<M>(&addresses[0].1, 0), join::<M>(&addresses[1].1, 1));
    let (mut zero, mut one) = (zero.join().unwrap(), one.join().unwrap());

    before(&mut to_zero.0);
    to_zero.write_all(bytes).unwrap();
    let memory = Memory::new(vec![numbers(1, 1000)]);
    let events = until(&mut zero, &memory, |e| !lost(e).is_empty());
    assert_eq!((events.len(), lost(&events)[0].0), (1, 2), "nothing of it is delivered");
    zero.send(1, meta(1), memory.span(0), 1).unwrap();
    one.send(0, meta(1), memory.span(0), 1).unwrap();
    both([&mut zero, &mut one], &memory, |a, b| messages(a).len() == 1 && messages(b).len() == 1);
    lost(&events)[0].1.to_owned()
}

/// CRC-32 of the body below.
const SUM: u32 = 0x3fca_88c5;

/// A frame; its body is summed where bodies are.
pub fn framed<M: Medium>(change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let body = [1, 2, 3, 4, 5, 6, 7, 8];
    let checksum = if <M::Stream as Stream>::SUMMED { SUM } else { 0 };
    let mut header = Header { sequence: 0, bytes: 8, checksum, meta: meta(0), place: None };
    change(&mut header);
    [&header.encode()[..], &body].concat()
}

fn bad_frames_end_the_connection_and_are_never_delivered<M: Medium>() {
    for bytes in [4004, 7, 1 << 31, u32::MAX] {
        let cause = dropped_for::<M>(&framed::<M>(|header| header.bytes = bytes));
        assert!(cause.ends_with(&format!("whole elements, at most 1000, found {bytes} bytes")), "{cause}");
    }
    let mut flipped = framed::<M>(|header| header.checksum = SUM);
    // Where bodies are summed, one that does not fit its sum; elsewhere one with a sum.
    flipped[HEADER + 3] ^= 0x10;
    let cause = dropped_for::<M>(&flipped);
    assert!(cause.contains("expected body checksum 0x3fca88c5, found 0x"), "{cause}");
    let cause = dropped_for::<M>(&framed::<M>(|header| header.sequence = 1));
    assert!(cause.contains("expected frame number 0, found frame number 1"), "{cause}");
    assert!(
        dropped_for::<M>(b"nothing like a frame at all, but long enough that it could have been a header")
            .contains("expected magic bytes")
    );
}

/// Numbers of a round, one after the other (splitmix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Three frames of somebody who holds the key, one of them flipped, cut, doubled, left out or replaced; what was done,
/// the bytes, and how many messages may be delivered.
fn damaged<M: Medium>(draws: &mut Draws) -> (String, Vec<u8>, usize) {
    let frames: Vec<_> = (0..3).map(|n| framed::<M>(|header| header.sequence = n)).collect();
    let (at, frame) = (draws.below(3), frames[0].len());
    match draws.below(5) {
        0 => {
            let end = if <M::Stream as Stream>::SUMMED { frame } else { HEADER };
            let bit = draws.below(8 * end);
            let mut bytes = frames.concat();
            bytes[at * frame + bit / 8] ^= 1 << (bit % 8);
            (format!("bit {bit} of frame {at} flipped"), bytes, at)
        }
        1 => {
            let bytes = draws.below(3 * frame);
            (format!("cut after {bytes} bytes"), frames.concat()[..bytes].to_vec(), bytes / frame)
        }
        2 => {
            let doubled = [&frames[..=at], &frames[at..]].concat().concat();
            (format!("frame {at} doubled"), doubled, at + 1)
        }
        3 => {
            let left = [&frames[..at], &frames[at + 1..]].concat().concat();
            (format!("frame {at} left out"), left, at)
        }
        _ => {
            let noise: Vec<u8> = (0..frame + draws.below(500)).map(|_| draws.below(256) as u8).collect();
            let bytes = [&frames[..at].concat()[..], &noise].concat();
            (format!("noise instead of frame {at}"), bytes, at)
        }
    }
}

/// S3: a peer that holds the key sends damaged frames: what comes before them is delivered, nothing else, and the
/// others go on. `PACELINE_CHAOS_SEED`, `_ROUNDS` and `_LOG` are those of the campaigns of the program's tests.
fn damaged_frames_of_a_peer_that_holds_the_key_are_never_delivered<M: Medium>() {
    let (seed, rounds) = campaign(10);
    for round in 0..rounds {
        let (what, bytes, deliverable) = damaged::<M>(&mut Draws(seed << 32 | round));
        let (listeners, addresses) = listeners::<M>(3);
        let mut listeners = listeners.into_iter();
        let (zero, one) = (listeners.next().unwrap(), listeners.next().unwrap());
        let peers = addresses.clone();
        let options = StreamOptions { max_body: 1000, ..StreamOptions::default() };
        let zero =
            thread::spawn(move || zero.connect(identity(0, 3), &peers[1..], options, PATIENCE).unwrap());
        let peers = [addresses[0].clone(), addresses[2].clone()];
        let one = thread::spawn(move || one.connect(identity(1, 3), &peers, options, PATIENCE).unwrap());
        let (mut to_zero, to_one) = (join::<M>(&addresses[0].1, 0), join::<M>(&addresses[1].1, 1));
        let (mut zero, mut one) = (zero.join().unwrap(), one.join().unwrap());
        // Rank 0 may have dropped it before it has said everything.
        let _ = to_zero.write_all(&bytes);
        drop((to_zero, to_one));
        let memory = Memory::new(vec![numbers(1, 1000)]);
        let events = until(&mut zero, &memory, |e| !lost(e).is_empty());
        let delivered = messages(&events).len();
        assert!(delivered <= deliverable, "seed {seed}, round {round}, {what}: {delivered} were delivered");
        assert_eq!(lost(&events)[0].0, 2, "seed {seed}, round {round}, {what}");
        zero.send(1, meta(1), memory.span(0), 1).unwrap();
        one.send(0, meta(1), memory.span(0), 1).unwrap();
        both([&mut zero, &mut one], &memory, |a, b| messages(a).len() == 1 && messages(b).len() == 1);
        log::<M>("S3", seed, round, &format!("{what}: {delivered} of {deliverable} delivered"));
    }
}

/// S4: somebody who holds the key but has another run, model, rank, role or version is refused, each side is told both
/// values, and the others go on.
fn peers_that_hold_the_key_but_differ_are_refused<M: Medium>() {
    let (seed, rounds) = campaign(6);
    for round in 0..rounds {
        let draws = &mut Draws(seed << 32 | 1 << 31 | round);
        let (byte, number) = (draws.below(255) as u8, draws.below(1_000_000));
        let what = match round % 6 {
            0 => {
                let run = format!("run-{}", number + 2);
                expect::<M>(|i| i.run = run.clone(), "run id differs", [&run, "\"run-1\""]);
                run
            }
            1 => {
                let byte = if byte == 0xab { 0xac } else { byte };
                let model = format!("model {byte:02x}{byte:02x}");
                expect::<M>(|i| i.model_hash = [byte; 32], "model hash differs", [&model, "model abab"]);
                model
            }
            2 => {
                a_wrong_rank_is_refused::<M>();
                "rank 2 or a second rank 1".into()
            }
            3 => {
                let world = number + 4;
                let theirs = format!("rank 1 of {world}");
                expect::<M>(|i| i.world = world, "number of ranks differs", [&theirs, "rank 0 of 3"]);
                theirs
            }
            4 => {
                a_role_that_does_not_fit_the_rank_is_refused_and_both_are_named::<M>();
                "role server".into()
            }
            _ => {
                let version = 2 + u16::from(byte);
                another_version::<M>(version);
                format!("version {version}")
            }
        };
        log::<M>("S4", seed, round, &what);
    }
}

/// Seed and rounds of a campaign, as its command says.
fn campaign(rounds: u64) -> (u64, u64) {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    (setting("PACELINE_CHAOS_SEED", 1), setting("PACELINE_CHAOS_ROUNDS", rounds))
}

/// Says that a round went well where the campaign's command reads it.
fn log<M: Medium>(fault: &str, seed: u64, round: u64, told: &str) {
    if let Some(path) = std::env::var_os("PACELINE_CHAOS_LOG") {
        let mut log = std::fs::File::options().append(true).create(true).open(path).unwrap();
        let fault = format!("{fault} over {}", std::any::type_name::<M>());
        writeln!(
            log,
            "{{\"seed\":{seed},\"round\":{round},\"fault\":\"{fault}\",\"ok\":true,\"told\":\"{told}\"}}"
        )
        .unwrap();
    }
}

fn a_body_that_breaks_off_is_never_delivered<M: Medium>() {
    let (listeners, addresses) = listeners::<M>(1);
    let zero = listeners.into_iter().next().unwrap();
    let peers = [(2, addresses[0].1.clone())];
    let zero = thread::spawn(move || {
        zero.connect(identity(0, 3), &peers, StreamOptions::default(), PATIENCE).unwrap()
    });
    let mut by_hand = join::<M>(&addresses[0].1, 0);
    by_hand.write_all(&framed::<M>(|_| {})[..HEADER + 5]).unwrap();
    drop(by_hand);
    let mut zero = zero.join().unwrap();
    let events = until(&mut zero, &Memory::new(vec![]), |e| !e.is_empty());
    assert_eq!(lost(&events), [(2, "the connection was closed 5 bytes into a body of 8")]);
}

fn the_deadline_names_the_missing_ranks_and_their_addresses<M: Medium>() {
    let (mut listeners, addresses) = listeners::<M>(4);
    let two = listeners.remove(2);
    // Ranks 0 and 3 never come: 0 is not there at all, 3 does not dial. Rank 1 listens but never answers.
    drop(listeners.remove(0));
    let peers = [addresses[0].clone(), addresses[1].clone(), addresses[3].clone()];
    let deadline = Duration::from_millis(200);
    let error =
        two.connect(identity(2, 4), &peers, StreamOptions::default(), deadline).err().unwrap().to_string();
    let [(_, zero), (_, one), (_, three)] = peers;
    let expected = [
        "rank 2 waited 0.2 s in vain for rank 0 at ".to_owned() + &format!("{zero} (Connection refused"),
        format!("rank 1 at {one} (connected, but it never answered)"),
        format!("rank 3 at {three} (it never dialled)"),
    ];
    assert!(expected.iter().all(|text| error.contains(text)), "{error}");
}

fn strangers_neither_keep_peers_from_joining_nor_go_unreported<M: Medium>() {
    let (mut listeners, addresses) = listeners::<M>(2);
    let (one, zero) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let silent: Vec<_> = (0..200).map(|_| knock::<M>(&addresses[0].1)).collect();
    let (to_zero, to_one) = ([addresses[0].clone()], [addresses[1].clone()]);
    let options = StreamOptions { handshake: Duration::from_millis(100), ..StreamOptions::default() };
    let one = thread::spawn(move || one.connect(identity(1, 2), &to_zero, options, PATIENCE).unwrap());
    let mut zero = zero.connect(identity(0, 2), &to_one, options, PATIENCE).unwrap();
    let _one = one.join().unwrap();
    until(&mut zero, &Memory::new(vec![]), |e| refused(e).len() >= 64);
    drop(silent);
}

fn whoever_is_connected_first_may_send_at_once<M: Medium>() {
    let (mut listeners, addresses) = listeners::<M>(1);
    let (zero, door) = (listeners.pop().unwrap(), addresses[0].1.clone());
    let peers = [(2, door.clone())];
    let (said, heard) = std::sync::mpsc::channel();
    let zero = thread::spawn(move || {
        let mut zero = zero.connect(identity(0, 3), &peers, StreamOptions::default(), PATIENCE).unwrap();
        let memory = Memory::new(vec![numbers(1, 1 << 20)]);
        zero.send(2, meta(1), memory.span(0), 1).unwrap();
        // As much of it as goes is under way before the other end knows that it may join.
        for _ in 0..100 {
            zero.progress(&memory, Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
        }
        said.send(()).unwrap();
        until(&mut zero, &memory, |e| !lost(e).is_empty());
    });
    let mut two = join_when::<M>(&door, 0, || heard.recv().unwrap());
    let mut came = vec![0; HEADER + (4 << 20)];
    two.read_exact(&mut came).unwrap();
    let body: Vec<u8> = numbers(1, 1 << 20).iter().flat_map(|number| number.to_le_bytes()).collect();
    assert!(came[HEADER..] == body[..]);
    drop(two);
    zero.join().unwrap();
}

fn identities_and_peers_that_make_no_sense_are_errors<M: Medium>() {
    let peer = |rank| (rank, M::anywhere().unwrap());
    for (rank, peers) in [(2, vec![]), (0, vec![peer(0)]), (0, vec![peer(2)]), (0, vec![peer(1), peer(1)])] {
        let listener = Listener::<M>::anywhere().unwrap();
        let result = listener.connect(identity(rank, 2), &peers, StreamOptions::default(), PATIENCE);
        assert!(matches!(result, Err(WireError::Identity { .. })));
    }
    let listener = Listener::<M>::anywhere().unwrap();
    let crowded = Identity { workers: 3, ..identity(0, 2) };
    let result = listener.connect(crowded, &[], StreamOptions::default(), PATIENCE);
    assert!(matches!(result, Err(WireError::Identity { .. })));
}

fn a_message_that_is_too_long_is_not_queued<M: Medium>() {
    let ([mut zero, _one], _) = healthy::<M>();
    let span = paceline_wire::Span { buffer: 0, offset: 0, len: (16 << 20) + 1 };
    assert!(matches!(zero.send(1, meta(0), span, 0), Err(WireError::TooLong { to: 1, .. })));
}

macro_rules! over {
    ($($test:ident)*) => {
        over! { tcp: paceline_wire::Net; $($test)* }
        over! { tls: paceline_wire::Secure; $($test)* }
        over! { uds: paceline_wire::Unix; $($test)* }
        over! { shm: paceline_wire::SharedMemory; $($test)* }
        over! { grpc: paceline_wire::Rpc; $($test)* }
    };
    ($name:ident: $medium:ty; $($test:ident)*) => {
        mod $name {
            $(#[test] fn $test() { super::$test::<$medium>() })*
        }
    };
}

over! {
    a_wrong_run_id_is_refused_and_both_are_named
    a_wrong_model_is_refused_and_both_are_named
    a_wrong_rank_is_refused
    a_role_that_does_not_fit_the_rank_is_refused_and_both_are_named
    a_wrong_version_is_refused_and_both_are_named
    a_frame_that_comes_twice_is_delivered_once
    bad_frames_end_the_connection_and_are_never_delivered
    damaged_frames_of_a_peer_that_holds_the_key_are_never_delivered
    peers_that_hold_the_key_but_differ_are_refused
    a_body_that_breaks_off_is_never_delivered
    the_deadline_names_the_missing_ranks_and_their_addresses
    strangers_neither_keep_peers_from_joining_nor_go_unreported
    whoever_is_connected_first_may_send_at_once
    identities_and_peers_that_make_no_sense_are_errors
    a_message_that_is_too_long_is_not_queued
}

// What cannot be told from the hellos within TLS: those who do not hold the key never get that far.
mod in_the_open {
    use super::{
        a_replayed_handshake_is_refused, a_wrong_key_is_refused,
        garbage_and_silence_are_refused_and_get_no_answer,
    };

    macro_rules! open {
        ($($test:ident)*) => {
            over! { tcp: paceline_wire::Net; $($test)* }
            over! { uds: paceline_wire::Unix; $($test)* }
            over! { shm: paceline_wire::SharedMemory; $($test)* }
            over! { grpc: paceline_wire::Rpc; $($test)* }
        };
    }

    open! {
        a_wrong_key_is_refused
        a_replayed_handshake_is_refused
        garbage_and_silence_are_refused_and_get_no_answer
    }
}
