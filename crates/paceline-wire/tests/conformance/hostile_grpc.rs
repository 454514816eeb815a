//! Those who do not belong and speak HTTP/2, or pretend to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use paceline_wire::{
    HELLO, Handshake, HandshakeState, Header, Hello, Rpc, StreamOptions, Transport, VERDICT,
};

use crate::hostile::{exchange_until_refused, framed, healthy, healthy_within};
use crate::memory::{Memory, lost, messages, refused, until};
use crate::rpc::{
    Answer, CONTINUATION, DATA, END_STREAM, EXCHANGE, HEADERS, PREFACE, SETTINGS, call, chunk, fields, frame,
    headers, message, varint,
};
use crate::{PATIENCE, identity, listeners};

/// The time that a stranger has where it is to run out.
const SHORT: Duration = Duration::from_millis(100);

fn knock(door: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What rank 0 reports of somebody who says this. The healthy pair goes on.
fn reported_of(bytes: &[u8], within: Duration) -> String {
    let (pair, door) = healthy_within::<Rpc>(within);
    let mut stranger = knock(door);
    let name = stranger.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        scope.spawn(move || {
            // An error means that it was cut off.
            let _ = stranger.write_all(bytes);
            // Whatever it is told, it comes to an end.
            stranger.read_to_end(&mut Vec::new()).unwrap_or(0);
        });
        let cause = exchange_until_refused(pair);
        let (who, cause) = cause.split_once(": ").unwrap();
        assert_eq!(who, name);
        cause.to_owned()
    })
}

#[test]
fn whoever_speaks_something_else_is_refused_at_once() {
    let garbage = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].repeat(9);
    for bytes in [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", &garbage[..]] {
        let cause = reported_of(bytes, PATIENCE);
        assert!(cause.starts_with("no gRPC: "), "{cause}");
    }
    let settings = frame(SETTINGS, 0, 0, &[]);
    for (what, frames) in [
        ("a frame longer than any may be", vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1]),
        ("data of no call", frame(DATA, 0, 1, b"hello")),
        ("settings of a wrong length", frame(SETTINGS, 0, 0, &[1])),
        ("headers of no stream", headers(0, EXCHANGE)),
    ] {
        let cause = reported_of(&[PREFACE, &settings, &frames].concat(), PATIENCE);
        assert!(cause.starts_with("no gRPC: "), "{what}: {cause}");
    }
}

#[test]
fn a_message_of_any_length_is_refused_before_it_has_come() {
    for length in [(256 << 10) + 17, 1 << 31, u32::MAX] {
        let cause = reported_of(&[call(), message(length, &[0x0a])].concat(), PATIENCE);
        assert!(cause.contains(&length.to_string()) && cause.contains("too large"), "{length}: {cause}");
    }
    // Lengths inside of a message.
    for length in [9, 1 << 31, 1 << 63, u64::MAX] {
        let content = [&[0x0a], &varint(length)[..], b"hello"].concat();
        let cause = reported_of(&[call(), message(content.len() as u32, &content)].concat(), PATIENCE);
        assert!(cause.contains("decode"), "{length}: {cause}");
    }
}

#[test]
fn whoever_says_too_little_or_too_much_has_no_more_time_than_a_handshake() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    let opening = [PREFACE, &settings].concat();
    let calls: Vec<u8> = (0..100).flat_map(|i| headers(2 * i + 1, EXCHANGE)).collect();
    // Headers that never end; most of them are never read.
    let endless: Vec<u8> =
        (0..1000).flat_map(|_| frame(CONTINUATION, 0, 1, &fields(&[("name", "value")]).repeat(9))).collect();
    let endless = [frame(HEADERS, 0, 1, &[]), endless].concat();
    for (what, bytes) in [
        ("nothing", vec![]),
        ("half of the preface", PREFACE[..9].to_vec()),
        ("the preface", PREFACE.to_vec()),
        ("no call", opening.clone()),
        ("another call", [&opening[..], &headers(1, "/paceline.wire.Link/Other")].concat()),
        ("a call and silence", call()),
        ("many calls", [&opening[..], &calls].concat()),
        ("empty messages", [call(), message(0, &[]).repeat(99), chunk(b"").repeat(9)].concat()),
        ("half of a hello", [call(), chunk(&Hello::new(&identity(1, 3), [0; 32]).encode()[..50])].concat()),
        ("settings and settings", [&opening[..], &settings.repeat(500)].concat()),
        ("endless headers", [&opening[..], &endless].concat()),
        ("a message that does not come", [call(), message(256 << 10, &[0x0a])].concat()),
    ] {
        let cause = reported_of(&bytes, SHORT);
        let patient = cause == "no proof before the deadline of the handshake";
        assert!(patient || cause.starts_with("no gRPC: "), "{what}: {cause}");
        assert!(patient || what != "a call and silence", "{what}: {cause}");
    }
}

#[test]
fn a_flood_without_proof_is_not_read() {
    // A valid beginning of a hello, and then far more than the kernel's buffers hold.
    let hello = Hello::new(&identity(1, 3), [0; 32]).encode();
    let flood = chunk(&[7; 100_000]).repeat(300);
    let cause = reported_of(&[call(), chunk(&hello[..50]), flood].concat(), SHORT);
    assert!(cause.starts_with("expected a hello") || cause.starts_with("no proof"), "{cause}");
}

#[test]
fn whoever_dribbles_is_cut_off() {
    let (pair, door) = healthy_within::<Rpc>(SHORT);
    let mut stranger = knock(door);
    let dribble = thread::spawn(move || {
        // Slower than any deadline, were it not cut off.
        let cut = call().iter().cycle().find_map(|&byte| {
            thread::sleep(Duration::from_millis(5));
            stranger.write_all(&[byte]).err()
        });
        cut.is_some()
    });
    let cause = exchange_until_refused(pair);
    assert!(cause.ends_with("no proof before the deadline of the handshake"), "{cause}");
    assert!(dribble.join().unwrap());
}

#[test]
fn whoever_does_not_listen_to_its_refusal_keeps_nobody_waiting() {
    let (pair, door) = healthy::<Rpc>();
    let mut stranger = knock(door);
    // A window of 0: nothing may be said to it.
    let deaf = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let hello = Hello { version: 99, ..Hello::new(&identity(1, 3), [0; 32]) };
    let said = [PREFACE, &deaf, &headers(1, EXCHANGE), &chunk(&hello.encode())].concat();
    stranger.write_all(&said).unwrap();
    let cause = exchange_until_refused(pair);
    assert!(cause.contains("wire version differs"), "{cause}");
    // The pair is gone by now, and with it the connection.
    stranger.read_to_end(&mut Vec::new()).unwrap_or(0);
}

#[test]
fn whoever_listens_is_told_why() {
    let (pair, door) = healthy::<Rpc>();
    let stranger = thread::spawn(move || {
        let mut stranger = Answer::new(knock(door));
        let hello = Hello { version: 99, ..Hello::new(&identity(1, 3), [0; 32]) };
        stranger.connection().write_all(&[call(), chunk(&hello.encode())].concat()).unwrap();
        let ours = Hello::decode(&stranger.hears::<HELLO>());
        let verdict: [u8; VERDICT] = stranger.hears();
        // It hangs up as gRPC has it.
        stranger.connection().write_all(&frame(DATA, END_STREAM, 1, &[])).unwrap();
        (ours.version, verdict, stranger.rest())
    });
    let cause = exchange_until_refused(pair);
    assert!(cause.contains(": wire version differs (theirs: wire version 99, "), "{cause}");
    let (version, verdict, rest) = stranger.join().unwrap();
    assert_eq!((version, &verdict[2..22], &rest[..]), (1, &b"wire version differs"[..], &[][..]));
}

#[test]
fn crowds_neither_keep_peers_from_joining_nor_go_unreported() {
    let (mut listeners, addresses) = listeners::<Rpc>(2);
    let (one, zero) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let (door, (said, heard)) = (addresses[0].1, std::sync::mpsc::channel());
    let crowd = thread::spawn(move || {
        let come = |i: usize| {
            let mut stranger = knock(door);
            stranger.write_all(&call()[..[0, PREFACE.len(), call().len()][i % 3]]).unwrap();
            said.send(()).unwrap();
            stranger
        };
        (0..200).map(come).collect::<Vec<_>>()
    });
    // More than are let in at a time; the rest waits in the kernel's queue, or for a place in it.
    heard.iter().take(100).for_each(drop);
    let (to_zero, to_one) = ([addresses[0]], [addresses[1]]);
    let options = StreamOptions { handshake: SHORT, ..StreamOptions::default() };
    let one = thread::spawn(move || one.connect(identity(1, 2), &to_zero, options, PATIENCE).unwrap());
    let mut zero = zero.connect(identity(0, 2), &to_one, options, PATIENCE).unwrap();
    let _one = one.join().unwrap();
    // Of those who came before the peer, so many are remembered.
    until(&mut zero, &Memory::new(vec![]), |e| refused(e).len() >= 64 && crowd.is_finished());
    crowd.join().unwrap();
}

#[test]
fn any_implementation_of_grpc_with_the_key_is_a_peer() {
    let (mut listeners, addresses) = listeners::<Rpc>(1);
    let (zero, door) = (listeners.pop().unwrap(), addresses[0].1);
    let peers = [(2, door)];
    let zero = thread::spawn(move || {
        zero.connect(identity(0, 3), &peers, StreamOptions::default(), PATIENCE).unwrap()
    });
    let mut two = Answer::new(knock(door));
    two.connection().write_all(&call()).unwrap();
    let mut handshake = Handshake::dial(&identity(2, 3), [9; 32], 0);
    while handshake.standing() == HandshakeState::Pending {
        let output = std::mem::take(handshake.output());
        two.connection().write_all(&chunk(&output)).unwrap();
        for _ in 0..handshake.wants() {
            handshake.receive(&two.hears::<1>());
        }
    }
    assert_eq!(handshake.standing(), HandshakeState::Proven);
    let mut zero = zero.join().unwrap();
    // Chunks and frames have nothing to do with each other.
    let frame = framed::<Rpc>(|_| {});
    for part in frame.chunks(7) {
        two.connection().write_all(&chunk(part)).unwrap();
    }
    let memory = Memory::new(vec![vec![1.0, 2.0]]);
    let events = until(&mut zero, &memory, |e| messages(e).len() == 1);
    assert_eq!(messages(&events)[0].2.len(), 2);
    zero.send(2, [5; 48], memory.span(0), 0).unwrap();
    until(&mut zero, &memory, |e| !e.is_empty());
    let heard: [u8; paceline_wire::HEADER] = two.hears();
    assert_eq!(Header::decode(&heard, 0, 1000, false).unwrap().meta, [5; 48]);
    assert_eq!(two.hears::<8>(), [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat()[..]);
    drop(two);
    until(&mut zero, &memory, |e| !lost(e).is_empty());
}
