//! Virtual time itself: closed forms, hosts, the two ways to evaluate a schedule.

use std::sync::Arc;

use paceline_protocol::{
    CollectiveCall, CollectivePath, Move, Participant, Piece, STRATEGIES, Schedule, Setup, Time, collective,
    find,
};
use paceline_sim::{
    Costs, Host, RecurrenceRefusal, SimulationReport, SizesOnly, StepFactor, WorkCost, evaluate, run,
    run_repeating,
};

fn along(path: CollectivePath, setup: &Setup) -> Vec<Box<dyn Participant>> {
    (0..setup.workers).map(|rank| collective::make(path, setup, rank)).collect()
}

fn event_by_event(name: &str, setup: &Setup, costs: &Costs) -> SimulationReport {
    let strategy = find(name).unwrap();
    let participants = (0..setup.world()).map(|rank| strategy.participant(setup, rank)).collect();
    run(setup, participants, costs, &mut SizesOnly)
}

/// Costs of everything, drawn compute times included.
fn costly(p: usize, seed: u64) -> Costs {
    Costs {
        jitter: vec![0.9, 1.0, 1.05, 1.3, 3.0],
        seed,
        buffer: 1_000,
        message: 700,
        byte: 0.25,
        work: WorkCost { reduce: 0.5, copy: 0.3, apply: 0.9, ..WorkCost::uniform(1.0) },
        ..Costs::constant(p, 90_000, 4_000, 1.5)
    }
}

/// Everything that both ways tell.
fn same(a: &SimulationReport, b: &SimulationReport) -> bool {
    let without_peers = |r: &SimulationReport| {
        let mut spent = r.spent.clone();
        spent.iter_mut().for_each(|s| s.wait_for.clear());
        spent
    };
    (&a.finished, &a.sent_bytes, a.messages, a.end) == (&b.finished, &b.sent_bytes, b.messages, b.end)
        && without_peers(a) == without_peers(b)
        && a.trace_sha256() == b.trace_sha256()
}

#[test]
fn schedules_evaluated_as_data_take_the_time_of_their_participants_to_the_nanosecond() {
    let (mut both, mut refused) = (0, 0);
    for strategy in STRATEGIES {
        for (p, elements) in [(1, 50), (2, 4_096), (3, 1_000), (4, 1_003), (8, 6_400), (13, 5_001), (32, 640)]
        {
            for seed in 0..6 {
                let setup = Setup::new(p, 0, elements, 12);
                let Some(path) = strategy.sums_along(&setup) else { continue };
                let jitter = if seed == 0 { Vec::new() } else { costly(p, seed).jitter };
                let costs = Costs { jitter, ..costly(p, seed) };
                match evaluate(&setup, path, &costs, &mut |_, _| {}) {
                    Ok(fast) => {
                        let slow = event_by_event(strategy.name, &setup, &costs);
                        assert!(same(&fast, &slow), "{} p = {p} seed {seed}", strategy.name);
                        both += 1;
                    }
                    // Messages that pass one another have no order of rounds.
                    Err(RecurrenceRefusal::Order | RecurrenceRefusal::StepProtocol) => refused += 1,
                    Err(why) => panic!("{} p = {p}: {why}", strategy.name),
                }
            }
        }
    }
    assert!(both > 100 && refused > 0, "{both} compared, {refused} refused");
}

#[test]
fn several_lanes_round_a_ring_take_the_time_of_their_participants_to_the_nanosecond() {
    let (mut both, mut refused) = (0, 0);
    for name in ["ring-allreduce", "auto"] {
        for (p, elements) in [(2, 4_096), (3, 1_000), (8, 6_400), (13, 5_001), (30, 6_413), (260, 20_011)] {
            // The largest one is cut into blocks.
            let (steps, cases) = if p > 100 { (1, 1) } else { (5, 3) };
            for seed in 0..8u64 {
                // Alike; uneven passes; drawn ones; short ones; one host; hosts of four; large buffers; no latency.
                let jitter = if seed == 2 { costly(p, seed).jitter } else { Vec::new() };
                let mut costs = Costs { jitter, ..costly(p, seed) };
                match seed {
                    1 => costs.compute = (0..p as u64).map(|r| 90_000 + 1_000 * (r * 7 % 11)).collect(),
                    3 => costs.compute = vec![500; p],
                    4 => (costs.layout, costs.local_latency) = (vec![0; p], 3_000),
                    5 => (costs.layout, costs.local_latency) = ((0..p).map(|rank| rank / 4).collect(), 900),
                    6 => costs.buffer = 1 << 20,
                    7 => costs.latency = 0,
                    _ => {}
                }
                let buckets =
                    [(elements / 2, elements), (elements / 3 + 1, elements / 3), (elements, elements)];
                for (bucket, message) in buckets.into_iter().take(cases) {
                    let hosts = costs.layout.clone();
                    let setup = Setup { hosts, bucket, message, ..Setup::new(p, 0, elements, steps) };
                    let Some(path) = find(name).unwrap().sums_along(&setup) else { continue };
                    match evaluate(&setup, path, &costs, &mut |_, _| {}) {
                        Ok(fast) => {
                            let slow = event_by_event(name, &setup, &costs);
                            assert!(same(&fast, &slow), "{name} p = {p}, case {seed}, buckets of {bucket}");
                            both += 1;
                        }
                        Err(_) => refused += 1,
                    }
                }
            }
        }
    }
    assert!(both > 60, "{both} compared, {refused} refused");
}

/// Hosts with several ranks that share an interface, and cores where there is a slowdown.
fn shared(p: usize, each: usize, slowdown: &[f64]) -> Costs {
    let host = Host {
        slowdown: slowdown.to_vec(),
        latency: 4_000,
        per_byte: 1.5,
        ..Costs::constant(p, 0, 0, 0.0).host(0)
    };
    let layout: Vec<usize> = (0..p).map(|rank| rank / each).collect();
    let hosts = vec![host; p.div_ceil(each)];
    Costs { layout, hosts, local_latency: 900, jitter: Vec::new(), ..costly(p, 1) }
}

#[test]
fn steps_that_repeat_are_driven_once_and_take_the_time_of_all_to_the_nanosecond() {
    let (mut repeated, mut driven) = (0, 0);
    // A tail at the end of each epoch of ten steps, of which some workers have no sample.
    let tail = |rank: usize, step: u64| if step % 10 < 9 { 1.0 } else { 0.1 * (rank % 3) as f64 };
    for strategy in STRATEGIES {
        for (p, elements) in [(1, 50), (2, 4_096), (5, 3_001), (8, 640)] {
            let plain = Costs { jitter: Vec::new(), ..costly(p, 1) };
            let uneven =
                Costs { compute: (0..p as u64).map(|r| 60_000 + 7_000 * r).collect(), ..plain.clone() };
            let tails = Costs { size: Some(StepFactor(Arc::new(tail))), ..plain.clone() };
            let short = Costs { compute: vec![3_000; p], ..plain.clone() };
            let slow = StepFactor(Arc::new(|rank, _| if rank == 1 { 3.0 } else { 1.0 }));
            let held_up = Costs { slowness: Some(slow), ..plain.clone() };
            let crowded = [shared(p, 4, &[]), shared(p, 4, &[1.0, 1.3, 2.0]), shared(p, 24, &[1.0, 1.5])];
            for costs in [plain, uneven, tails, short, held_up].into_iter().chain(crowded) {
                for (bucket, message) in
                    [(elements, elements), (elements / 3, elements), (elements / 2, elements / 7)]
                {
                    let hosts = costs.layout.clone();
                    let setup =
                        Setup { hosts, bucket, message: message.max(1), ..Setup::new(p, 0, elements, 25) };
                    if strategy.sums_along(&setup).is_none() {
                        continue;
                    }
                    let all = event_by_event(strategy.name, &setup, &costs);
                    let participants = (0..p).map(|rank| strategy.participant(&setup, rank)).collect();
                    let once = run_repeating(&setup, participants, &costs, &mut |_, _| {});
                    assert!(same(&once, &all), "{} p = {p}, buckets of {bucket}: {costs:?}", strategy.name);
                    assert_eq!(once.spent, all.spent, "{} p = {p}", strategy.name);
                    (repeated, driven) = (repeated + once.repeated, driven + 25 - once.repeated);
                }
            }
        }
    }
    assert!(repeated > driven, "{repeated} steps repeated, {driven} driven");
}

/// Everybody sends its buffer to everybody after it, round by round: no strategy of the registry does that.
fn broadcast(rank: usize, call: &CollectiveCall<'_>) -> Schedule {
    let p = call.positions();
    let moves = (1..p).map(|k| Move {
        round: k as u32,
        send: Piece::add((rank + k) % p, (rank + k) % p, 1),
        receive: Piece::add((rank + p - k) % p, rank, 1),
    });
    let spread = (1..p).map(|k| Move {
        round: (p + k) as u32,
        send: Piece::replace((rank + k) % p, rank, 1),
        receive: Piece::replace((rank + p - k) % p, (rank + p - k) % p, 1),
    });
    Schedule { chunks: p, piece: 1, moves: moves.chain(spread).collect() }
}

#[test]
fn a_strategy_that_only_this_test_knows_is_evaluated_as_data() {
    let path = CollectivePath { reduce: broadcast, gather: broadcast };
    for (p, elements) in [(2, 1_000), (5, 1_003), (16, 9_000)] {
        let setup = Setup::new(p, 0, elements, 5);
        let costs = Costs { jitter: Vec::new(), ..costly(p, 3) };
        let fast = evaluate(&setup, path, &costs, &mut |_, _| {}).unwrap();
        assert!(same(&fast, &run(&setup, along(path, &setup), &costs, &mut SizesOnly)), "p = {p}");
        // Each round takes a message's latency and time, and what both ends do with it.
        assert_eq!(fast.messages, (5 * p * 2 * (p - 1)) as u64);
    }
}

#[test]
fn no_strategy_has_code_here() {
    let mut paths = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut seen = 0;
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
        seen += 1;
        for strategy in STRATEGIES {
            for form in [format!("\"{}\"", strategy.name), format!("`{}`", strategy.name)] {
                assert!(!text.contains(&form), "{} names {form}", path.display());
            }
        }
        assert!(!text.contains("strategies::"), "{} looks into the strategies", path.display());
    }
    assert!(seen >= 6);
}

/// One step's time with fixed costs, one bucket and no framing, both ways where both can be gone.
fn one_step(name: &str, p: usize, elements: usize, alpha: Time, per_byte: f64) -> Time {
    let setup = Setup::new(p, 0, elements, 1);
    let costs = Costs { header: 0, ..Costs::constant(p, 12_000, alpha, per_byte) };
    let slow = event_by_event(name, &setup, &costs);
    let path = find(name).unwrap().sums_along(&setup).unwrap();
    let fast = evaluate(&setup, path, &costs, &mut |_, _| {}).unwrap();
    assert!(same(&slow, &fast), "{name} p = {p}");
    fast.end - 12_000
}

#[test]
fn with_fixed_costs_the_closed_forms_hold_exactly() {
    for (alpha, per_byte) in [(5_000u64, 2u64), (0, 1), (70_000, 3)] {
        for p in 2u64..=16 {
            let elements = p * 720;
            let n = 4 * elements * per_byte;
            let rounds = u64::from(p.next_power_of_two().ilog2());
            let took = |name| one_step(name, p as usize, elements as usize, alpha, per_byte as f64);
            assert_eq!(took("ring-allreduce"), 2 * (p - 1) * alpha + 2 * (p - 1) * n / p, "p = {p}");
            assert_eq!(took("ring-reduce"), 2 * (p - 1) * (alpha + n), "p = {p}");
            if p.is_power_of_two() {
                assert_eq!(took("tree"), 2 * rounds * (alpha + n), "p = {p}");
                let halving = 2 * rounds * alpha + 2 * (p - 1) * n / p;
                assert_eq!(took("halving-doubling"), halving, "p = {p}");
            }
        }
    }
}

#[test]
fn a_parameter_server_reaches_the_limit_of_its_servers() {
    let (alpha, per_byte, elements, steps) = (5_000u64, 2.0, 4_800usize, 4u64);
    for p in 1..=8usize {
        for k in [1usize, 2, 4] {
            let setup = Setup::new(p, k, elements, steps);
            let costs = Costs { header: 0, ..Costs::constant(p, 12_000, alpha, per_byte) };
            let report = event_by_event("ps", &setup, &costs);
            // Until the slowest worker has finished the step that all begin at once.
            let slowest = |step: usize| report.finished.iter().map(|times| times[step]).max().unwrap();
            let (step, n) = (slowest(0) - 12_000, (8 * elements) as u64);
            let bound = 2 * (alpha + p as u64 * n / k as u64);
            if k == 1 {
                assert_eq!(step, bound, "{p} workers, one server");
                // From then on workers come one after the other: the way in is free, the way out is the limit.
                let period = slowest(2) - slowest(1);
                assert_eq!(period, 12_000 + 2 * alpha + (p as u64 + 1) * n, "{p} workers");
            }
            // At most, a worker's own way out and in comes on top.
            assert!((bound..=bound + 2 * n).contains(&step), "{p} workers, {k} servers: {step}, {bound}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_another() {
    for name in ["ring-allreduce", "ps"] {
        let servers = usize::from(name == "ps");
        let setup = Setup::new(4, servers, 500, 20);
        let hash = |seed| event_by_event(name, &setup, &costly(4, seed)).trace_sha256();
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }
}

#[test]
fn ranks_of_a_host_share_its_interface_and_its_cores() {
    let setup = Setup::new(4, 0, 4_000, 3);
    let base = Costs { local_latency: 10, ..Costs::constant(4, 100_000, 1_000, 2.0) };
    let took = |costs: &Costs| event_by_event("gossip", &Setup { ..setup.clone() }, costs).end;
    let apart = took(&base);
    // Two hosts: of each rank's two neighbours one is on the same host.
    let near = took(&Costs { layout: vec![0, 0, 1, 1], ..base.clone() });
    assert!(near < apart, "{near} {apart}");
    // Ranks placed crosswise: every message leaves its host, and two ranks share each interface.
    let crosswise = took(&Costs { layout: vec![0, 1, 0, 1], ..base.clone() });
    assert!(crosswise > apart, "{crosswise} {apart}");
    let host = Host {
        slowdown: vec![1.0, 2.0],
        latency: 1_000,
        per_byte: 2.0,
        ..Costs::constant(1, 0, 0, 0.0).host(0)
    };
    let layout = vec![0, 0, 1, 1];
    let one_core = took(&Costs { layout, hosts: vec![host.clone(), host], ..base });
    assert!(
        (250_000..400_000).contains(&(one_core - near)),
        "three steps of 100 µs twice as long: {one_core} {near}"
    );
}

#[test]
fn what_comes_during_a_pass_waits_for_the_end_of_a_part_and_costs_the_pass_time() {
    // Rank 1 is held up after its pass: rank 0's message waits for it.
    let setup = Setup::new(2, 0, 1_000, 1);
    let slowness = Some(StepFactor(Arc::new(|rank, _| if rank == 1 { 3.0 } else { 1.0 })));
    let costs = Costs { slowness, work: WorkCost::uniform(1.0), ..Costs::constant(2, 60_000, 100, 0.0) };
    let report = event_by_event("ring-reduce", &setup, &costs);
    assert_eq!(report.spent[1].compute, 180_000);
    // Rank 1 sends right after its pass; rank 0 adds, applies (1 µs each) and answers; rank 1 takes that after
    // its pause, and applies.
    assert_eq!(report.spent[0].end, 60_000 + 100 + 1_000 + 1_000);
    assert_eq!(report.spent[1].end, 180_000 + 1_000 + 1_000);
    assert_eq!(report.spent[0].wait(), 100);
}
