//! Those who knock where machines join: each is turned away and told of, and others join and train meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use paceline_wire::line::Link;
use paceline_wire::stream::medium::Medium;
use paceline_wire::{Key, Secure, StreamOptions};
use serde_json::{Value, json};

use crate::machines::{Listening, Process, error};
use crate::support::{ENDLESS, PATIENCE, result};

const HERE: &str = "127.0.0.1:0";

/// The launcher's key.
fn key(listening: &Listening) -> Key {
    let digits = std::fs::read_to_string(&listening.key_file).unwrap();
    let byte = |i: usize| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap();
    Key::from(std::array::from_fn(byte))
}

fn door(listening: &Listening) -> SocketAddr {
    listening.address.parse().unwrap()
}

/// A document as a machine that joins says it.
fn greeting(document: &Value) -> Vec<u8> {
    let text = document.to_string();
    [&(text.len() as u32).to_le_bytes()[..], &0u32.to_le_bytes(), text.as_bytes()].concat()
}

/// What somebody with the key, who greets so, is told.
fn greeted(listening: &Listening, document: &Value) -> String {
    let mut link = Link::dial(door(listening), &key(listening), PATIENCE).unwrap();
    link.queue(&greeting(document));
    link.write().unwrap();
    let begun = Instant::now();
    loop {
        if let Some(answer) = link.read(1 << 20, &mut false).unwrap() {
            return String::from_utf8_lossy(&answer[8..]).into_owned();
        }
        assert!(begun.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
}

/// The launcher's account of somebody who came from an address.
fn account(launcher: &Process, who: SocketAddr) -> String {
    let line = launcher.prints(&format!(r#""cause":"{who}: "#), 0);
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&event["type"], &event["rank"]), (&"refused".into(), &Value::Null), "{line}");
    event["cause"].as_str().unwrap().to_owned()
}

/// Says bytes in the open, and hangs up where asked to; the launcher's account. The other end is heard out: it says
/// nothing but TLS.
fn said(listening: &Listening, bytes: &[u8], hang_up: bool) -> String {
    let mut stream = TcpStream::connect(door(listening)).unwrap();
    let who = stream.local_addr().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    match stream.write_all(bytes) {
        // It may have hung up before it had heard everything.
        Err(e) => assert!(matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{e}"),
        Ok(()) if hang_up => stream.shutdown(Shutdown::Write).unwrap(),
        Ok(()) => {}
    }
    let mut answer = Vec::new();
    if let Err(e) = stream.read_to_end(&mut answer) {
        assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
    }
    account(&listening.launcher, who)
}

/// Passes on what a joiner says and keeps it; where to join instead.
fn between(door: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind(HERE).unwrap();
    let address = listener.local_addr().unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    thread::spawn(move || {
        let (mut from, mut to) = (listener.accept().unwrap().0, TcpStream::connect(door).unwrap());
        let (mut back, mut there) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back, &mut there).map(|_| there.shutdown(Shutdown::Both)));
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            keep.lock().unwrap().extend_from_slice(&bytes[..n]);
            if to.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    (address, kept)
}

/// Resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn strangers_are_turned_away_where_machines_join_and_training_goes_on() {
    let listening = Listening::start(&[], HERE, &format!("--hosts 2 --workers 2 {ENDLESS}"));
    let (instead, kept) = between(door(&listening));
    let joiner = Process::start(&[], &format!("join {instead} --key-file {}", listening.key_file), &[]);
    listening.launcher.trains_on();
    let before = memory(listening.launcher.id());

    // No key, and another one.
    let garbage = said(&listening, b"GET / HTTP/1.1\r\n\r\n", false);
    assert!(garbage.contains("expected TLS 1.3, found something else"), "{garbage}");
    let begun = Instant::now();
    let wrong = Link::dial(door(&listening), &Key::from([8; 32]), PATIENCE).err().unwrap();
    assert_eq!(wrong.to_string(), "wrong key");
    assert!(begun.elapsed() < PATIENCE / 2, "it is not the deadline that ends it");
    listening.launcher.prints("wrong key", 0);
    listening.launcher.trains_on();

    // What a machine that holds the key has said: again, altered, cut off, and twice.
    let recorded = kept.lock().unwrap()[..700].to_vec();
    let hello = 5 + usize::from(u16::from_be_bytes([recorded[3], recorded[4]]));
    let replayed = said(&listening, &recorded, true);
    assert!(!replayed.is_empty(), "{replayed}");
    for at in [0, 3, 9, 40, hello - 1] {
        let mut altered = recorded[..hello].to_vec();
        altered[at] ^= 0x41;
        said(&listening, &altered, true);
    }
    for length in [1, 5, hello / 2, hello] {
        let cut = said(&listening, &recorded[..length], true);
        assert!(cut.contains("closed") || cut.contains("TLS"), "{cut}");
    }
    said(&listening, &[&recorded[..hello], &recorded[..hello]].concat(), true);
    listening.launcher.trains_on();

    // Lengths: of records and hellos before the key is proved, of documents after it.
    for bytes in [
        &b"\x16\x03\x01\x00\x00"[..],
        b"\x16\x03\x01\xff\xff\x01",
        b"\x16\x03\x01\x40\x01\x01",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
    ] {
        let cause = said(&listening, bytes, true);
        assert!(cause.contains("expected TLS 1.3") || cause.contains("closed"), "{cause}");
    }
    for length in [4097, 1 << 31, 1 << 63, u64::MAX] {
        let mut stream =
            Secure::open(&door(&listening), &key(&listening), &StreamOptions::default()).unwrap();
        let begun = Instant::now();
        while !matches!(stream.write(&u64::to_le_bytes(length)), Ok(8)) {
            assert!(begun.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(1));
        }
        let who = stream.addresses().unwrap().0;
        let cause = account(&listening.launcher, who);
        assert!(
            cause.contains(&format!("announced {length} bytes where at most 4096 are allowed")),
            "{cause}"
        );
    }
    // Whoever holds the key but speaks nonsense is told so.
    let mut link = Link::dial(door(&listening), &key(&listening), PATIENCE).unwrap();
    link.queue(b"nonsense");
    link.write().unwrap();
    account(&listening.launcher, link.addresses().unwrap().0);
    listening.launcher.trains_on();

    // Many who say nothing, and some who say it slowly.
    let mut slow: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(door(&listening)).unwrap()).collect();
    for byte in &recorded[..20] {
        for stream in slow.iter_mut().rev().take(10) {
            let _ = stream.write_all(&[*byte]);
        }
    }
    let (code, _, text) = listening.join(&[], "").end();
    assert_eq!(code, 6, "{text}");
    assert!(error(&text).contains("the run has begun already"), "{text}");
    let who = slow.last().unwrap().local_addr().unwrap();
    let cause = account(&listening.launcher, who);
    assert!(cause.contains("no proof within 5 s") || cause.contains("too many others"), "{cause}");
    listening.launcher.trains_on();
    let grown = memory(listening.launcher.id()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more than before the strangers came");
    drop(joiner);
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 4, "{text}");
}

#[test]
fn values_that_do_not_fit_are_named_on_both_sides_and_the_right_machine_joins_all_the_same() {
    let words = "--hosts 2 --workers 2 --epochs 2 --seed 3";
    let undisturbed = result("train --quiet --workers 2 --epochs 2 --seed 3");
    let listening = Listening::start(&[], HERE, words);
    let ours = env!("CARGO_PKG_VERSION");
    let right = json!({ "version": { "program": ours, "wire": 1 }, "name": "tester" });
    for (change, value, what) in [
        (
            "version",
            json!({ "program": "9.9.9", "wire": 1 }),
            format!(
                "versions differ: the launcher has paceline {ours}, wire version 1; the joiner has paceline 9.9.9"
            ),
        ),
        (
            "version",
            json!({ "program": ours, "wire": 77 }),
            format!(
                "the launcher has paceline {ours}, wire version 1; the joiner has paceline {ours}, wire version 77"
            ),
        ),
        ("hosts", json!(5), "the number of hosts differs: the launcher has 2; the joiner has 5".into()),
        ("host", json!(2), "host 2: others than the launcher's are 1 to 1".into()),
        ("host", json!(0), "host 0: others than the launcher's are 1 to 1".into()),
        ("version", json!("old"), "cannot be understood".into()),
    ] {
        let mut document = right.clone();
        document[change] = value;
        let answer = greeted(&listening, &document);
        assert!(answer.contains("refused") && answer.contains(&what), "{answer}");
        listening.launcher.prints(&what, 0);
    }
    // Somebody slow is there all the time.
    let _slow: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(door(&listening)).unwrap()).collect();
    let joiner = listening.join(&[], "");
    let result = listening.launcher.result();
    let (code, _, text) = joiner.end();
    assert_eq!(code, 0, "{text}");
    for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
        assert_eq!(result[field], undisturbed[field], "{field}");
    }
}

#[test]
fn a_machine_that_leaves_before_the_run_begins_frees_its_seat() {
    let listening = Listening::start(&[], HERE, "--hosts 3 --workers 3 --steps 3");
    let first = listening.join(&[], "--host 1");
    first.says("joined");
    let (code, _, text) = listening.join(&[], "--host 1").end();
    assert_eq!(code, 6, "{text}");
    assert!(error(&text).contains("host 1 is ") && error(&text).contains("(127.0.0.1) already"), "{text}");
    drop(first);
    listening.launcher.prints(r#""state":"left""#, 0);
    let again = listening.join(&[], "--host 1");
    // Whoever asks for no seat in particular may take any that is free: it comes afterwards.
    again.says("joined");
    let other = listening.join(&[], "");
    listening.launcher.result();
    for joiner in [again, other] {
        let (code, _, text) = joiner.end();
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn a_bit_that_is_flipped_between_machines_ends_the_run_and_is_never_applied() {
    let listening = Listening::start(&[], HERE, &format!("--hosts 2 --workers 2 {ENDLESS}"));
    let listener = TcpListener::bind(HERE).unwrap();
    let (instead, door) = (listener.local_addr().unwrap(), door(&listening));
    let flip = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flips = Arc::clone(&flip);
    thread::spawn(move || {
        let (mut from, mut to) = (listener.accept().unwrap().0, TcpStream::connect(door).unwrap());
        let (mut back, mut there) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back, &mut there).map(|_| there.shutdown(Shutdown::Both)));
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            if flips.load(std::sync::atomic::Ordering::Acquire) {
                bytes[n - 1] ^= 1;
            }
            if to.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    });
    let joiner = Process::start(&[], &format!("join {instead} --key-file {}", listening.key_file), &[]);
    listening.launcher.trains_on();
    flip.store(true, std::sync::atomic::Ordering::Release);
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 4, "{text}");
    assert!(error(&text).contains("altered on its way") && error(&text).contains("worker 1"), "{text}");
    let (code, _, text) = joiner.end();
    assert_eq!(code, 4, "{text}");
}

/// Addresses that a process listens on, as the kernel writes them.
fn listens(pid: u32) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links: Vec<_> = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let tables =
        ["tcp", "tcp6"].map(|t| std::fs::read_to_string(format!("/proc/{pid}/net/{t}")).unwrap_or_default());
    let own = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let &[_, address, _, "0A", .., _] = &columns[..] else { return None };
        let inode = format!("socket:[{}]", columns[9]);
        links.iter().any(|link| link.to_str() == Some(&inode)).then(|| address.to_owned())
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(own).collect()
}

#[test]
fn nobody_listens_beyond_loopback_unless_told_to() {
    let alone = Process::start(&[], &format!("train --json --workers 2 --transport tcp {ENDLESS}"), &[]);
    alone.trains_on();
    assert_eq!(listens(alone.id()), [""; 0], "the launcher has no port of its own");
    let listening = Listening::start(&[], HERE, &format!("--hosts 2 --workers 2 {ENDLESS}"));
    let joiner = listening.join(&[], "");
    listening.launcher.trains_on();
    assert_eq!((listens(listening.launcher.id()).len(), listens(joiner.id()).len()), (1, 0));
    for process in [&alone, &listening.launcher, &joiner] {
        let pids = [process.id()].into_iter().chain(process.children());
        let addresses: Vec<String> = pids.flat_map(listens).collect();
        assert!(addresses.iter().all(|address| address.starts_with("0100007F:")), "{addresses:?}");
        assert!(!addresses.is_empty());
    }
}
