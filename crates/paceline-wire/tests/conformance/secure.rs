//! Those who knock at a door behind TLS without the run's key: none gets as far as a hello.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use paceline_wire::stream::Listener;
use paceline_wire::stream::medium::Medium;
use paceline_wire::{Hello, Key, Net, Secure, StreamOptions, WireError};

use crate::hand::Hand;
use crate::hostile::{exchange_until_refused, healthy, healthy_within};
use crate::{PATIENCE, identity};

/// Says something at the door of a healthy pair, in the open: why it is refused. Strangers have the time given.
fn said(bytes: &[u8], within: Duration) -> String {
    let (pair, door) = healthy_within::<Secure>(within);
    let mut stream = TcpStream::connect(door).unwrap();
    stream.write_all(bytes).unwrap();
    exchange_until_refused(pair)
}

#[test]
fn another_key_is_refused_and_told_to_both_ends() {
    let (pair, door) = healthy::<Secure>();
    let mut stranger = identity(1, 3);
    stranger.key = Key::from([8; 32]);
    let listener = Listener::<Secure>::anywhere().unwrap();
    let peers = [(0, door)];
    let dialler =
        thread::spawn(move || listener.connect(stranger, &peers, StreamOptions::default(), PATIENCE));
    let reported = exchange_until_refused(pair);
    assert!(reported.starts_with("127.0.0.1:") && reported.contains("wrong key"), "{reported}");
    let error = dialler.join().unwrap().map(|_| ()).unwrap_err();
    assert!(matches!(error, WireError::Refused { rank: 0, .. }), "at once, not at the deadline");
    assert!(error.to_string().ends_with("wrong key"), "{error}");
}

#[test]
fn a_rank_that_does_not_encrypt_is_refused() {
    let (pair, door) = healthy::<Secure>();
    let listener = Listener::<Net>::anywhere().unwrap();
    let peers = [(0, door)];
    let (options, deadline) = (StreamOptions::default(), Duration::from_millis(300));
    let dialler = thread::spawn(move || listener.connect(identity(1, 3), &peers, options, deadline));
    let reported = exchange_until_refused(pair);
    assert!(reported.contains("expected TLS 1.3, found something else"), "{reported}");
    assert!(dialler.join().unwrap().is_err());
}

#[test]
fn garbage_silence_and_lengths_are_refused() {
    let hello = Hello::new(&identity(1, 3), [0; 32]).encode();
    for (bytes, what) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "expected TLS 1.3"),
        (&hello, "expected TLS 1.3"),
        (b"", "no proof before"),
        // A record that says it is longer than any, one of nothing, and one that never ends.
        (b"\x16\x03\x01\xff\xff\x01", "expected TLS 1.3"),
        (b"\x16\x03\x01\x00\x00", "expected TLS 1.3"),
        (b"\x16\x03\x01\x40\x00\x01", "no proof before"),
        // A hello of 16 MiB less one byte, in a record of 4.
        (b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", "expected TLS 1.3"),
    ] {
        // Only those who say too little are waited for.
        let within = if what == "no proof before" { Duration::from_millis(100) } else { PATIENCE };
        let cause = said(bytes, within);
        assert!(cause.contains(what), "{bytes:?}: {cause}");
    }
}

#[test]
fn a_byte_that_is_altered_on_its_way_ends_the_connection() {
    // Rank 0 behind somebody who passes on what rank 1 says, and flips one bit after the handshake.
    let (zero, one) = (Listener::<Secure>::anywhere().unwrap(), Listener::<Secure>::anywhere().unwrap());
    let between = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (door, fake) = (zero.address(), between.local_addr().unwrap());
    let there = thread::spawn(move || {
        let (mut from, mut to) = (between.accept().unwrap().0, TcpStream::connect(door).unwrap());
        let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let (mut bytes, mut passed) = ([0; 4096], 0);
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            // The handshakes are shorter than this.
            if passed > 4096 {
                bytes[n / 2] ^= 1;
            }
            passed += n;
            if to.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    });
    let options = StreamOptions::default();
    let peers = [(1, one.address())];
    let zero = thread::spawn(move || zero.connect(identity(0, 2), &peers, options, PATIENCE).unwrap());
    let mut one = one.connect(identity(1, 2), &[(0, fake)], options, PATIENCE).unwrap();
    let mut zero = zero.join().unwrap();
    let memory = crate::memory::Memory::new(vec![crate::memory::numbers(1, 100_000)]);
    use paceline_wire::Transport;
    one.send(0, crate::memory::meta(1), memory.span(0), 1).unwrap();
    let one = thread::spawn(move || {
        let mut events = Vec::new();
        while crate::memory::lost(&events).is_empty() {
            one.progress(&memory, Some(Duration::from_millis(100)), &mut events).unwrap();
        }
    });
    let nothing = crate::memory::Memory::new(vec![]);
    let events = crate::memory::until(&mut zero, &nothing, |e| !crate::memory::lost(e).is_empty());
    assert_eq!(events.len(), 1, "nothing of it is delivered");
    let cause = crate::memory::lost(&events)[0].1;
    assert!(cause.contains("altered on its way"), "{cause}");
    drop(zero);
    one.join().unwrap();
    there.join().unwrap();
}

#[test]
fn what_does_not_fit_is_counted_as_written_only_when_the_kernel_has_it() {
    let key = identity(0, 2).key;
    let options = StreamOptions { buffer: Some(4096), ..StreamOptions::default() };
    let (listener, address) = Secure::bind(&Secure::anywhere().unwrap()).unwrap();
    let mut dialler = Secure::open(&address, &key, &options).unwrap();
    let mut acceptor = loop {
        if let Ok((socket, _)) = Secure::accept(&listener, &key) {
            Secure::prepare(&socket, &options).unwrap();
            break socket;
        }
    };
    while !(dialler.proven() && acceptor.proven()) {
        let _ = (dialler.read(&mut [0]), acceptor.read(&mut [0]), dialler.flush());
        let _ = dialler.write(&[]);
    }
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    let (mut sent, mut came) = (0, Vec::new());
    let mut blocked = 0;
    while came.len() < bytes.len() {
        match dialler.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
                blocked += 1;
            }
        }
        let mut some = [0; 10_000];
        if let Ok(n) = acceptor.read(&mut some) {
            came.extend_from_slice(&some[..n]);
        }
        if sent == bytes.len() {
            break;
        }
    }
    assert!(blocked > 0);
    // What was counted comes although the sender is gone.
    drop(dialler);
    Hand(acceptor).read_to_end(&mut came).unwrap();
    assert!(came == bytes);
}
