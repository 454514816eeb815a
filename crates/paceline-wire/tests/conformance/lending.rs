//! Bodies that stay in the memory of whoever sends them.

use std::os::fd::AsFd;
use std::thread;

use paceline_memory::{Allocator, TensorStorage};
use paceline_wire::stream::StreamTransport;
use paceline_wire::stream::medium::Stream as _;
use paceline_wire::{Body, Event, LentPlace, SharedMemory, Span, Transport};

use crate::hostile::{dropped_after, framed};
use crate::memory::{Memory, both, messages, meta, numbers, sent, until};
use crate::{PATIENCE, mesh};

/// Two ranks, of which the first lends its buffer 0.
fn lending(content: &[f32]) -> ([StreamTransport<SharedMemory>; 2], TensorStorage, Memory) {
    let mut storage = Allocator::Shared.zeros(content.len()).unwrap();
    storage.copy_from_slice(content);
    let mut ends = mesh::<SharedMemory>(2, Default::default());
    assert!(ends[0].lends());
    ends[0].lend(0, storage.descriptor_to_read().unwrap().unwrap()).unwrap();
    let one = ends.pop().unwrap();
    // What is not lent comes from here.
    ([ends.pop().unwrap(), one], storage, Memory::new(vec![content.to_vec()]))
}

fn bodies(events: Vec<Event>) -> Vec<Body> {
    let body = |event| if let Event::Message { body, .. } = event { Some(body) } else { None };
    events.into_iter().filter_map(body).collect()
}

#[test]
fn a_lent_body_is_read_where_it_lies_and_is_over_when_it_is_dropped() {
    let content = numbers(1, 10_000);
    let ([mut zero, mut one], mut storage, memory) = lending(&content);
    zero.send(1, meta(7), Span { buffer: 0, offset: 1000, len: 9000 }, 5).unwrap();
    let [told, events] = both([&mut zero, &mut one], &memory, |_, b| b.len() == 1);
    assert!(told.is_empty(), "it is not over: {told:?}");
    let body = bodies(events).pop().unwrap();
    let mut part = [0.0; 3];
    body.copy_to(8997, &mut part);
    assert_eq!((body.len(), &part[..]), (9000, &content[9997..]));
    storage[1000] = -1.5;
    body.add_to(0, &mut part[..1], |_, _| unreachable!("it does not lie here"));
    assert_eq!(part[0], content[9997] - 1.5, "no copy was made before");
    assert_eq!(body[1..], content[1001..]);
    zero.progress(&memory, None, &mut Vec::new()).unwrap();
    drop(body);
    assert_eq!(sent(&until(&mut zero, &memory, |events| !events.is_empty())), [5]);
    assert_eq!(zero.traffic()[1].sent_bytes, one.traffic()[0].received_bytes);
    assert_eq!(zero.traffic()[1].sent_bytes, 72 + 4 * 9000);
}

#[test]
fn what_is_short_or_beyond_what_can_be_lent_at_a_time_is_sent() {
    let ([mut zero, mut one], _storage, memory) = lending(&numbers(2, 3000));
    zero.send(1, meta(0), Span { buffer: 0, offset: 0, len: 10 }, 0).unwrap();
    let enough = |a: &[Event], b: &[Event]| a.len() == 1 && b.len() == 1;
    both([&mut zero, &mut one], &memory, enough);
    for round in 0..2 {
        for op in 0..300 {
            zero.send(1, meta(op), Span { buffer: 0, offset: (op % 7) as usize, len: 2900 }, op).unwrap();
        }
        let [mut told, events] = both([&mut zero, &mut one], &memory, |_, b| messages(b).len() == 300);
        for (i, (_, number, body)) in messages(&events).into_iter().enumerate() {
            assert_eq!((number, body), (i as u64, &numbers(2, 3000)[i % 7..i % 7 + 2900]), "round {round}");
        }
        assert!(sent(&told).iter().all(|op| *op >= 128), "the first ones are held");
        drop(events);
        told.extend(until(&mut zero, &memory, |events| events.len() + told.len() == 300));
        let mut ops = sent(&told);
        ops.sort_unstable();
        assert_eq!(ops, (0..300).collect::<Vec<_>>());
    }
}

#[test]
fn who_sleeps_is_woken_by_what_is_given_back() {
    let ([mut zero, mut one], _storage, memory) = lending(&numbers(3, 5000));
    for op in 0..20 {
        zero.send(1, meta(op), memory.span(0), op).unwrap();
        let [_, events] = both([&mut zero, &mut one], &memory, |_, b| messages(b).len() == 1);
        thread::scope(|scope| {
            let (zero, memory) = (&mut zero, &memory);
            let waits = scope.spawn(move || {
                let mut events = Vec::new();
                zero.progress(memory, Some(PATIENCE), &mut events).unwrap();
                sent(&events)
            });
            // Long enough that it sleeps, most of the time.
            thread::sleep(std::time::Duration::from_millis(2));
            drop(events);
            assert_eq!(waits.join().unwrap(), [op]);
        });
    }
}

#[test]
fn a_body_outlives_the_rank_that_lent_it() {
    let content = numbers(4, 5000);
    let ([mut zero, mut one], storage, memory) = lending(&content);
    zero.send(1, meta(1), memory.span(0), 1).unwrap();
    let [_, events] = both([&mut zero, &mut one], &memory, |_, b| messages(b).len() == 1);
    drop((zero, storage));
    let after = until(&mut one, &memory, |events| !events.is_empty());
    assert!(matches!(after[0], Event::Lost { rank: 0, .. }), "{after:?}");
    let body = bodies(events).pop().unwrap();
    assert_eq!(body[..], content[..]);
    drop(body);
}

#[test]
fn a_peer_that_is_gone_is_handed_nothing_and_its_loss_is_told_as_any_other() {
    let ([mut zero, one], _storage, memory) = lending(&numbers(6, 100));
    drop(one);
    let more = Allocator::Shared.zeros(100).unwrap();
    zero.lend(1, more.descriptor_to_read().unwrap().unwrap()).unwrap();
    let told = until(&mut zero, &memory, |events| !events.is_empty());
    assert!(matches!(told[0], Event::Lost { rank: 1, .. }), "{told:?}");
}

#[test]
fn a_place_that_cannot_be_ends_the_connection() {
    let place = |file, offset| {
        framed::<SharedMemory>(|header| {
            header.place = Some(LentPlace { file, slot: 3, offset });
        })
    };
    let storage = Allocator::Shared.zeros(100).unwrap();
    let hand = |stream: &mut <SharedMemory as paceline_wire::stream::medium::Medium>::Stream| {
        stream.hand_over(storage.descriptor().unwrap()).unwrap();
    };
    let cause = dropped_after::<SharedMemory>(hand, &place(1, 0));
    assert!(cause.contains("memory that was handed over, found file 1"), "{cause}");
    for offset in [99, 100, 101, u32::MAX] {
        let cause = dropped_after::<SharedMemory>(hand, &place(0, offset));
        assert!(cause.contains(&format!("within 100 elements, found 2 from {offset} on")), "{cause}");
    }
    let null = std::fs::File::open("/dev/null").unwrap();
    let cause = dropped_after::<SharedMemory>(|stream| stream.hand_over(null.as_fd()).unwrap(), &place(0, 0));
    assert!(cause.contains("expected shared memory of sealed size"), "{cause}");
}

#[test]
fn where_bodies_cannot_stay_nobody_may_say_so() {
    let lent = framed::<paceline_wire::Unix>(|header| {
        header.place = Some(LentPlace { file: 0, slot: 0, offset: 0 });
    });
    let cause = dropped_after::<paceline_wire::Unix>(|_| {}, &lent);
    assert!(cause.contains("expected no flags, found flags 0x8000"), "{cause}");
}
