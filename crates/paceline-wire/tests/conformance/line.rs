//! Lines between machines, and the port where they join.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use paceline_wire::Key;
use paceline_wire::line::join_listener::{JoinListener, JoinPort, Visit};
use paceline_wire::line::{HeartbeatTiming, Line, LineEvent, Link, may_come_yet};

use crate::PATIENCE;

const LIMIT: usize = 8 << 20;

fn key() -> Key {
    Key::from([7; 32])
}

/// A port, where it is, and who comes.
fn join_listener() -> (JoinPort, SocketAddr, Receiver<Visit>) {
    let join_listener = JoinListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = join_listener.address();
    let (tell, visits) = channel();
    (join_listener.attend(key(), move |visit| drop(tell.send(visit))).unwrap(), address, visits)
}

/// Somebody with the key who says a greeting.
fn visitor(address: SocketAddr, greeting: &[u8]) -> Link {
    let mut link = Link::dial(address, &key(), PATIENCE).unwrap();
    link.queue(greeting);
    link.write().unwrap();
    link
}

fn arrival(visits: &Receiver<Visit>) -> (Link, Vec<u8>) {
    match visits.recv_timeout(PATIENCE).unwrap() {
        Visit::Arrived { link, greeting } => (*link, greeting),
        Visit::Refused { cause } => panic!("{cause}"),
    }
}

fn refusal(visits: &Receiver<Visit>) -> String {
    match visits.recv_timeout(PATIENCE).unwrap() {
        Visit::Refused { cause } => cause,
        Visit::Arrived { greeting, .. } => panic!("{greeting:?}"),
    }
}

fn line(link: Link, limit: usize, pulse: HeartbeatTiming) -> (Line, Receiver<LineEvent>) {
    let (tell, heard) = channel();
    (Line::new(link, limit, pulse, move |what| drop(tell.send(what))).unwrap(), heard)
}

fn document(heard: &Receiver<LineEvent>) -> Vec<u8> {
    loop {
        match heard.recv_timeout(PATIENCE).unwrap() {
            LineEvent::Document(document) => return document,
            // A busy machine.
            LineEvent::Quiet | LineEvent::Back => {}
            LineEvent::Lost { cause } => panic!("{cause}"),
        }
    }
}

fn loss(heard: &Receiver<LineEvent>) -> String {
    loop {
        if let LineEvent::Lost { cause } = heard.recv_timeout(PATIENCE).unwrap() {
            return cause;
        }
    }
}

#[test]
fn documents_go_both_ways_whole_and_in_order_and_last_words_are_heard() {
    let (_porch, address, visits) = join_listener();
    let near = visitor(address, b"it is me");
    let (far, greeting) = arrival(&visits);
    assert_eq!(greeting, b"it is me");
    let ((near, near_heard), (far, far_heard)) =
        (line(near, LIMIT, HeartbeatTiming::default()), line(far, LIMIT, HeartbeatTiming::default()));
    assert_eq!((near.local(), near.remote()), (far.remote(), far.local()));
    let documents: Vec<Vec<u8>> = [1, 2, 70_000, 5_000_000, 3]
        .iter()
        .map(|&n| (0..n).map(|i: u32| (i % 251) as u8).collect())
        .collect();
    documents.iter().for_each(|document| near.say(document.clone()));
    documents.iter().for_each(|document| far.say(document.clone()));
    for expected in &documents {
        assert!(document(&near_heard) == *expected && document(&far_heard) == *expected);
    }
    near.say(b"good bye".to_vec());
    near.close();
    assert_eq!(document(&far_heard), b"good bye");
    assert_eq!(loss(&far_heard), "the connection was closed");
}

#[test]
fn whoever_is_silent_is_suspected_and_then_lost_and_whoever_beats_is_not() {
    let (_porch, address, visits) = join_listener();
    let pulse = HeartbeatTiming {
        beat: Duration::from_millis(20),
        suspect: Duration::from_millis(100),
        dead: Duration::from_millis(300),
    };
    // Nobody drives the near end: it neither beats nor reads.
    let _near = visitor(address, b"silent");
    let (_far, heard) = line(arrival(&visits).0, LIMIT, pulse);
    assert!(matches!(heard.recv_timeout(PATIENCE).unwrap(), LineEvent::Quiet));
    let cause = loss(&heard);
    assert!(cause.starts_with("nothing was heard from it for 0."), "{cause}");

    let near = visitor(address, b"alive");
    let (_far, heard) = line(arrival(&visits).0, LIMIT, HeartbeatTiming { dead: PATIENCE, ..pulse });
    let (near, _) = line(near, LIMIT, pulse);
    std::thread::sleep(Duration::from_millis(400));
    // Whatever was suspected on a busy machine was taken back.
    near.say(b"still here".to_vec());
    assert_eq!(document(&heard), b"still here");
}

#[test]
fn a_length_beyond_the_limit_ends_the_line() {
    let (_porch, address, visits) = join_listener();
    let (near, _heard) = line(visitor(address, b"long"), LIMIT, HeartbeatTiming::default());
    let (_far, heard) = line(arrival(&visits).0, 1000, HeartbeatTiming::default());
    near.say(vec![1; 1000]);
    assert_eq!(document(&heard).len(), 1000);
    near.say(vec![1; 1001]);
    assert_eq!(loss(&heard), "it announced 1001 bytes where at most 1000 are allowed");
    // A greeting is measured before anybody hears of it.
    let _long = visitor(address, &[1; 5000]);
    assert!(refusal(&visits).contains("it announced 5000 bytes where at most 4096 are allowed"));
}

#[test]
fn a_wrong_key_is_told_to_both_and_will_not_do_next_time_either() {
    let (_porch, address, visits) = join_listener();
    let error = Link::dial(address, &Key::from([8; 32]), PATIENCE).err().unwrap();
    assert_eq!((error.to_string().as_str(), may_come_yet(&error)), ("wrong key", false));
    assert!(refusal(&visits).contains("wrong key"));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(may_come_yet(&Link::dial(nobody, &key(), PATIENCE).err().unwrap()));
}

#[test]
fn strangers_are_turned_away_while_others_join() {
    let (_porch, address, visits) = join_listener();
    let mut silent: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begun = Instant::now();
    let _near = visitor(address, b"let me in");
    let mut refused = 0;
    let greeting = loop {
        match visits.recv_timeout(PATIENCE).unwrap() {
            Visit::Arrived { greeting, .. } => break greeting,
            Visit::Refused { cause } => {
                refused += 1;
                assert!(cause.contains("too many others came"), "{cause}");
            }
        }
    };
    assert_eq!(greeting, b"let me in");
    assert!(refused >= 100, "room was made for those who came later, after {:?}", begun.elapsed());
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\xff\xff\x01", &[0xff; 64]] {
        // Those that are still here are not, when their turn comes.
        silent.push(TcpStream::connect(address).unwrap());
        silent.last_mut().unwrap().write_all(bytes).unwrap();
        let who = silent.last().unwrap().local_addr().unwrap().to_string();
        let cause = loop {
            let cause = refusal(&visits);
            if cause.starts_with(&who) {
                break cause;
            }
        };
        assert!(cause.contains("expected TLS 1.3, found something else"), "{cause}");
    }
}
