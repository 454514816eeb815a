//! The suite: each test gets a way to connect a number of ranks.

use std::thread;
use std::time::{Duration, Instant};

use paceline_wire::{Event, HEADER, Span, Traffic, Transport, WireError};

use crate::PATIENCE;
use crate::memory::{Memory, both, lost, messages, meta, numbers, sent, until};

type Ends = Vec<Box<dyn Transport>>;

fn pair(connect: impl Fn(usize) -> Ends) -> [Box<dyn Transport>; 2] {
    connect(2).try_into().ok().unwrap()
}

pub fn messages_of_a_peer_stay_in_order(connect: impl Fn(usize) -> Ends) {
    const EACH: u64 = 500;
    let lengths = |number: u64| (number * number % 97) as usize;
    let ends = connect(3).into_iter().map(|mut end| {
        thread::spawn(move || {
            let us = end.rank();
            let memory = Memory::new(vec![numbers(us as u64, 100)]);
            let others: Vec<usize> = (0..3).filter(|&rank| rank != us).collect();
            for number in 0..EACH {
                for &to in &others {
                    let span = Span { buffer: 0, offset: 3, len: lengths(number) };
                    end.send(to, meta(number), span, number * 3 + to as u64).unwrap();
                }
            }
            let all = 2 * EACH as usize;
            let events = until(&mut *end, &memory, |e| messages(e).len() == all && sent(e).len() == all);
            for &from in &others {
                let came: Vec<_> = messages(&events).into_iter().filter(|m| m.0 == from).collect();
                for (number, message) in came.iter().enumerate() {
                    let body = &numbers(from as u64, 100)[3..3 + lengths(number as u64)];
                    assert_eq!((message.1, message.2), (number as u64, body));
                }
            }
            end
        })
    });
    // The ends stay alive until all have finished.
    let threads: Vec<_> = ends.collect();
    let _ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
}

pub fn contents_are_exact_for_every_size(connect: impl Fn(usize) -> Ends) {
    let [mut a, mut b] = pair(connect);
    let mut sizes = vec![0, 1, 2, 1023, 1024, 4078, 4079, 4096, 65_537, 2 << 20, 0, 3];
    let mut state = 12345u64;
    for _ in 0..20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        sizes.push((state >> 40) as usize % 50_000);
    }
    let memory = Memory::new(sizes.iter().enumerate().map(|(i, &n)| numbers(i as u64, n)).collect());
    for i in 0..sizes.len() {
        a.send(1, meta(i as u64), memory.span(i), i as u64).unwrap();
    }
    let [_, events] = both([&mut *a, &mut *b], &memory, |_, b| messages(b).len() == sizes.len());
    for (i, (from, number, body)) in messages(&events).into_iter().enumerate() {
        assert_eq!((from, number, body.len()), (0, i as u64, sizes[i]));
        assert!(body == &memory.buffers[i][..], "body {i}");
    }
}

pub fn nobody_waits_for_whoever_sends_first(connect: impl Fn(usize) -> Ends) {
    const COUNT: u64 = 8;
    let threads = pair(connect).map(|mut end| {
        thread::spawn(move || {
            let memory = Memory::new(vec![numbers(end.rank() as u64, 2 << 20)]);
            let other = 1 - end.rank();
            for op in 0..COUNT {
                end.send(other, meta(op), memory.span(0), op).unwrap();
            }
            let all = COUNT as usize;
            let events = until(&mut *end, &memory, |e| messages(e).len() == all && sent(e).len() == all);
            let expected = numbers(other as u64, 2 << 20);
            assert!(messages(&events).iter().all(|(_, _, body)| *body == &expected[..]));
            end
        })
    });
    let _ends = threads.map(|thread| thread.join().unwrap());
}

pub fn a_span_may_be_overwritten_after_sent(connect: impl Fn(usize) -> Ends) {
    const COUNT: u64 = 40;
    let [mut a, mut b] = pair(connect);
    let len = 100_000;
    let mut memory = Memory::new((0..COUNT).map(|i| numbers(i, len)).collect());
    for op in 0..COUNT {
        a.send(1, meta(op), memory.span(op as usize), op).unwrap();
    }
    let (mut events, mut seen, mut ops) = (Vec::new(), 0, Vec::new());
    let begun = Instant::now();
    while seen < COUNT || (ops.len() as u64) < COUNT {
        assert!(begun.elapsed() < PATIENCE);
        a.progress(&memory, None, &mut events).unwrap();
        for op in sent(&events) {
            memory.buffers[op as usize].fill(f32::NAN);
            ops.push(op);
        }
        events.clear();
        b.progress(&memory, None, &mut events).unwrap();
        for (_, number, body) in messages(&events) {
            assert_eq!(number, seen);
            assert!(body == &numbers(number, len)[..], "message {number} changed after it was sent");
            seen += 1;
        }
        events.clear();
    }
    // Once each, and none later.
    a.progress(&memory, None, &mut events).unwrap();
    assert_eq!((ops, events.len()), ((0..COUNT).collect::<Vec<_>>(), 0));
}

pub fn scattered_spans_arrive_whole(connect: impl Fn(usize) -> Ends) {
    let [mut a, mut b] = pair(connect);
    for (op, pieces) in [1, 7, 1000].into_iter().enumerate() {
        let mut memory = Memory::new(vec![numbers(op as u64, 3001)]);
        memory.pieces = pieces;
        a.send(1, meta(0), memory.span(0), op as u64).unwrap();
        a.send(1, meta(1), Span { buffer: 0, offset: 1500, len: 1501 }, 9).unwrap();
        let enough = |a: &[Event], b: &[Event]| sent(a).len() == 2 && messages(b).len() == 2;
        let [_, events] = both([&mut *a, &mut *b], &memory, enough);
        assert_eq!(messages(&events)[0].2, &memory.buffers[0][..]);
        assert_eq!(messages(&events)[1].2, &memory.buffers[0][1500..]);
    }
}

pub fn a_lost_peer_is_reported_once_to_each_neighbour_after_its_messages(connect: impl Fn(usize) -> Ends) {
    let mut ends = connect(4);
    let memory = Memory::new(vec![numbers(1, 1000)]);
    let mut leaver = ends.remove(2);
    for to in [0, 1, 3] {
        leaver.send(to, meta(to as u64), memory.span(0), 0).unwrap();
    }
    until(&mut *leaver, &memory, |e| sent(e).len() == 3);
    drop(leaver);
    for end in &mut ends {
        let mut events = until(&mut **end, &memory, |e| !lost(e).is_empty());
        assert_eq!(messages(&events).len(), 1);
        assert!(matches!(events.pop(), Some(Event::Lost { rank: 2, .. })), "the loss comes last");
        end.progress(&memory, Some(Duration::from_millis(5)), &mut events).unwrap();
        assert!(lost(&events).is_empty(), "said twice");
        assert!(matches!(end.send(2, meta(0), Span::EMPTY, 0), Err(WireError::Gone { to: 2, .. })));
    }
    ends[0].send(3, meta(5), memory.span(0), 0).unwrap();
    until(&mut *ends[0], &memory, |e| sent(e).len() == 1);
    until(&mut *ends[2], &memory, |e| messages(e).len() == 1);
}

pub fn whatever_was_sent_arrives_even_if_the_sender_leaves(connect: impl Fn(usize) -> Ends) {
    const COUNT: u64 = 4;
    let [mut a, mut b] = pair(connect);
    let sender = thread::spawn(move || {
        let memory = Memory::new((0..COUNT).map(|i| numbers(i, 2 << 20)).collect());
        for op in 0..COUNT {
            a.send(1, meta(op), memory.span(op as usize), op).unwrap();
        }
        until(&mut *a, &memory, |e| sent(e).len() as u64 == COUNT);
    });
    let events = until(&mut *b, &Memory::new(vec![]), |e| !lost(e).is_empty());
    sender.join().unwrap();
    let came = messages(&events);
    assert_eq!(came.len() as u64, COUNT);
    assert!(came.iter().all(|(_, number, body)| *body == &numbers(*number, 2 << 20)[..]));
}

pub fn traffic_counts_are_exact(connect: impl Fn(usize) -> Ends) {
    let [mut a, mut b] = pair(connect);
    let memory = Memory::new(vec![numbers(0, 300)]);
    for (op, len) in [0, 1, 300].into_iter().enumerate() {
        a.send(1, meta(0), Span { buffer: 0, offset: 0, len }, op as u64).unwrap();
    }
    b.send(0, meta(0), memory.span(0), 0).unwrap();
    let enough = |a: &[Event], b: &[Event]| (a.len(), b.len()) == (4, 4);
    both([&mut *a, &mut *b], &memory, enough);
    let (three, one) = ((3 * HEADER + 4 * 301) as u64, (HEADER + 4 * 300) as u64);
    let counts = |sent_bytes, sent_messages, received_bytes, received_messages| Traffic {
        sent_bytes,
        sent_messages,
        received_bytes,
        received_messages,
    };
    assert_eq!(a.traffic(), [Traffic::default(), counts(three, 3, one, 1)]);
    assert_eq!(b.traffic(), [counts(one, 1, three, 3), Traffic::default()]);
}

pub fn mistakes_of_the_caller_are_errors(connect: impl Fn(usize) -> Ends) {
    let [mut a, _b] = pair(connect);
    for to in [0, 2] {
        assert!(matches!(a.send(to, meta(0), Span::EMPTY, 0), Err(WireError::NoPeer { rank: 0, .. })));
    }
    /// Lends less than it was asked for.
    struct Miser;
    impl paceline_wire::Source for Miser {
        fn slices<'a>(&'a self, _: Span, f: &mut dyn FnMut(&'a [f32])) {
            f(&[1.0]);
        }
    }
    a.send(1, meta(0), Span { buffer: 0, offset: 0, len: 2 }, 0).unwrap();
    let result = a.progress(&Miser, None, &mut Vec::new());
    assert!(matches!(result, Err(WireError::Span { found: 1, .. })));
}

pub fn a_wait_for_nothing_ends_in_time(connect: impl Fn(usize) -> Ends) {
    let [mut a, _b] = pair(connect);
    let (begun, mut events) = (Instant::now(), Vec::new());
    a.progress(&Memory::new(vec![]), Some(Duration::from_millis(20)), &mut events).unwrap();
    assert!(events.is_empty() && begun.elapsed() >= Duration::from_millis(20) && begun.elapsed() < PATIENCE);
}
