//! What is noted of single steps, messages and waits is what the sums tell.

use std::collections::HashMap;

use paceline_protocol::{STRATEGIES, Setup, Time};
use paceline_sim::{Costs, MessageDirection, Note, SimulationReport, SizesOnly, WorkCost, record, run};

/// A run of a strategy, noted or not.
fn simulated(name: &str, trace: Option<usize>) -> (Setup, SimulationReport) {
    let strategy = STRATEGIES.iter().find(|s| s.name == name).unwrap();
    let setup =
        Setup { bucket: 300, message: 200, ..Setup::new(4, 2 * usize::from(strategy.servers), 1_000, 9) };
    let costs = Costs {
        jitter: vec![0.8, 1.0, 1.6],
        seed: 3,
        message: 700,
        byte: 0.25,
        work: WorkCost::uniform(0.5),
        ..Costs::constant(4, 90_000, 4_000, 1.5)
    };
    let participants = (0..setup.world()).map(|rank| strategy.participant(&setup, rank)).collect();
    let report = match trace {
        Some(trace) => record(&setup, participants, &costs, &mut SizesOnly, trace, &mut |_, _| {}),
        None => run(&setup, participants, &costs, &mut SizesOnly),
    };
    (setup, report)
}

#[test]
fn notes_add_up_and_change_nothing() {
    for name in ["ring-allreduce", "tree", "halving-doubling", "ps"] {
        let (setup, noted) = simulated(name, Some(usize::MAX));
        let (_, plain) = simulated(name, None);
        assert_eq!((&noted.finished, &noted.spent), (&plain.finished, &plain.spent), "{name}");
        let mut sent: HashMap<(usize, usize, u64), (Time, u64)> = HashMap::new();
        let mut received = Vec::new();
        for (rank, notes) in noted.notes.iter().enumerate() {
            if rank < setup.workers {
                let ends: Vec<Time> =
                    notes.steps.iter().map(|s| s.begin + s.compute + s.exchange + s.apply + s.wait).collect();
                assert_eq!(ends, noted.finished[rank], "{name}: steps follow each other without gaps");
                let compute: Time = notes.steps.iter().map(|s| s.compute).sum();
                assert_eq!(compute, noted.spent[rank].compute, "{name}");
            } else {
                assert_eq!(notes.steps.len(), noted.staleness[rank].len(), "{name}: a row per update");
            }
            let bytes: u64 = notes.links.iter().map(|l| l.bytes[0]).sum();
            assert_eq!(bytes, noted.spent[rank].sent_bytes, "{name}");
            for note in &notes.trace {
                match *note {
                    Note::Message { did: MessageDirection::Sent, at, peer, n, bytes, .. } => {
                        assert!(sent.insert((rank, peer, n), (at, bytes)).is_none());
                    }
                    Note::Message { did: MessageDirection::Received, at, peer, n, bytes, .. } => {
                        received.push(((peer, rank, n), at, bytes));
                    }
                    Note::Pass { work, .. } => panic!("{name}: {work} without stages"),
                    Note::Wait { at, duration, .. } => assert!(at + duration <= noted.end && duration > 0),
                }
            }
        }
        assert_eq!(received.len() as u64, noted.messages, "{name}");
        for (key, at, bytes) in received {
            let (from, to, _) = key;
            let (left, sent) = sent[&key];
            assert_eq!(bytes, sent, "{name}");
            // No message is faster than an empty one, whose way there and back is noted with the link.
            let least = noted.notes[from].links[to].round_trip / 2 - 2 * 718;
            assert!(at >= left + least, "{name}: {at} {left} {least}");
        }
    }
}

#[test]
fn a_trace_ends_where_the_room_does() {
    let (_, noted) = simulated("ring-allreduce", Some(10));
    assert!(noted.notes.iter().all(|notes| notes.trace.len() == 10 && notes.steps.len() == 9));
}
