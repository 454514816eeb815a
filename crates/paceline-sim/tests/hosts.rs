//! Hosts with several ranks, evaluated as data: the times are those of single events, to the nanosecond.

use paceline_protocol::{Setup, Time, find};
use paceline_random::{Purpose, Stream};
use paceline_sim::{
    Costs, PassPart, RecurrenceRefusal, SimulationReport, SizesOnly, WorkCost, evaluate, run,
};

/// A run that is drawn: its strategy, its setup and its costs.
struct Case {
    name: &'static str,
    setup: Setup,
    costs: Costs,
}

/// Numbers that follow from a seed.
struct Draws(Stream, u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        self.0.below(self.1, end)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

/// Hosts of equal or uneven sizes whose ranks are neighbours or not.
fn layout(draws: &mut Draws, p: usize) -> Vec<usize> {
    let hosts = 1 + draws.below(p as u64) as usize;
    match draws.below(4) {
        // As `--hosts` spreads them.
        0 | 1 => (0..p).map(|rank| rank * hosts / p).collect(),
        2 => (0..p).map(|rank| rank % hosts).collect(),
        _ => {
            let mut layout: Vec<usize> = (0..p).map(|_| draws.below(hosts as u64) as usize).collect();
            layout[..hosts].iter_mut().enumerate().for_each(|(host, own)| *own = host);
            layout
        }
    }
}

fn drawn(seed: u64) -> Case {
    let mut draws = Draws(Stream::new(seed, Purpose::Virtual), 0);
    let name = draws.one(&["hierarchical", "hierarchical", "hierarchical", "auto", "direct"]);
    let p = 1 + draws.below(24) as usize;
    let elements = 1 + draws.below(20_000) as usize;
    let bucket = draws.one(&[elements, elements.div_ceil(2), elements.div_ceil(5)]);
    let message = draws.one(&[elements, elements.div_ceil(3), elements.div_ceil(7)]);
    let hosts = layout(&mut draws, p);
    let compute: Time = draws.one(&[0, 2_000, 90_000, 1_000_000]);
    let uneven = draws.below(2) * draws.below(20_000);
    let parts = match draws.below(3) {
        0 => Vec::new(),
        _ => [(0.3, None), (0.6, Some(elements / 2)), (0.7, Some(elements / 3)), (1.0, Some(0))]
            .map(|(end, announces)| PassPart { end, announces })
            .into(),
    };
    let costs = Costs {
        compute: (0..p).map(|_| compute + draws.below(uneven + 1)).collect(),
        parts,
        jitter: if draws.below(3) == 0 { vec![0.9, 1.0, 1.05, 1.3, 3.0] } else { Vec::new() },
        seed,
        buffer: draws.one(&[0, 1_000, 1 << 20]),
        local_latency: draws.one(&[0, 900, 30_000]),
        message: draws.one(&[1, 700, 1_503]),
        byte: draws.one(&[0.0, 0.25, 0.013]),
        work: WorkCost { reduce: 0.5, copy: 0.3, apply: 0.9, ..WorkCost::uniform(1.0) },
        layout: hosts.clone(),
        ..Costs::constant(p, 0, draws.one(&[0, 4_000, 90_001]), draws.one(&[0.0, 0.8, 1.5]))
    };
    let setup = Setup { hosts, bucket, message, ..Setup::new(p, 0, elements, 4) };
    if !seed.is_multiple_of(3) {
        return Case { name, setup, costs };
    }
    // Everything takes whole microseconds: much happens at the same time.
    let whole = |time: Time| time / 1_000 * 1_000;
    let costs = Costs {
        compute: costs.compute.iter().map(|time| whole(*time)).collect(),
        message: 1_000 * draws.one(&[1, 2]),
        byte: 0.0,
        per_byte: 0.0,
        latency: whole(costs.latency),
        local_latency: whole(costs.local_latency),
        work: WorkCost { apply: 1.0, ..WorkCost::default() },
        ..costs
    };
    Case { name, setup, costs }
}

fn event_by_event(case: &Case) -> SimulationReport {
    let strategy = find(case.name).unwrap();
    let participants = (0..case.setup.workers).map(|rank| strategy.participant(&case.setup, rank)).collect();
    run(&case.setup, participants, &case.costs, &mut SizesOnly)
}

/// Everything that both ways tell.
fn told(report: &SimulationReport) -> impl PartialEq + std::fmt::Debug {
    let mut spent = report.spent.clone();
    spent.iter_mut().for_each(|spent| spent.wait_for.clear());
    (report.finished.clone(), spent, report.sent_bytes.clone(), report.messages, report.end)
}

#[test]
fn hosts_with_several_ranks_take_the_time_of_single_events_to_the_nanosecond() {
    let (mut both, mut lanes, mut refused) = (0, 0, 0);
    for seed in 0..3_000 {
        let case = drawn(seed);
        let Case { name, setup, costs } = &case;
        let path = find(name).unwrap().sums_along(setup).unwrap();
        match evaluate(setup, path, costs, &mut |_, _| {}) {
            Ok(fast) => {
                let slow = event_by_event(&case);
                assert!(
                    told(&fast) == told(&slow),
                    "seed {seed}: {name}, {setup:?}, {costs:?}\n{:?}\n{:?}",
                    fast.finished,
                    slow.finished
                );
                both += 1;
                lanes += usize::from(paceline_protocol::exchange::lanes(setup, path, 0).count() > 1);
            }
            Err(RecurrenceRefusal::Order) => refused += 1,
            // Ranks of several hosts that all send to each other.
            Err(why) => {
                assert!(*name != "hierarchical" && setup.topology().hosts() > 1, "seed {seed}: {why}")
            }
        }
    }
    assert!(both > 1_800 && lanes > 1_500, "{both} compared, {lanes} with several lanes, {refused} refused");
}

/// Lanes, hosts and passes as a run of lenet has them without a calibration.
fn lenet(name: &'static str, p: usize, hosts: usize, steps: u64) -> Case {
    let layout: Vec<usize> = (0..p).map(|rank| rank * hosts / p).collect();
    let ends =
        [(0.339, None), (0.34, Some(1_658_240)), (0.75, Some(52_096)), (0.93, Some(832)), (1.0, Some(0))];
    let costs = Costs {
        parts: ends.map(|(end, announces)| PassPart { end, announces }).into(),
        buffer: 256 << 10,
        local_latency: 25_000,
        message: 5_000,
        byte: 0.2,
        work: WorkCost { reduce: 0.5, copy: 0.25, apply: 1.0, ..WorkCost::uniform(1.0) },
        layout: layout.clone(),
        ..Costs::constant(p, 92_654_411, 0, 0.8)
    };
    let setup =
        Setup { hosts: layout, bucket: 1 << 20, message: 1 << 17, ..Setup::new(p, 0, 1_663_370, steps) };
    Case { name, setup, costs }
}

#[test]
fn a_network_of_thirteen_lanes_is_evaluated_on_hosts_of_any_size() {
    let cases = [
        lenet("hierarchical", 64, 8, 10),
        lenet("hierarchical", 64, 4, 5),
        lenet("hierarchical", 64, 9, 5),
        lenet("auto", 48, 16, 5),
        lenet("direct", 16, 1, 5),
        lenet("direct", 2, 2, 20),
        // Enough ranks for two cores.
        lenet("hierarchical", 2_100, 140, 1),
    ];
    for case in cases {
        let Case { name, setup, costs } = &case;
        let path = find(name).unwrap().sums_along(setup).unwrap();
        let what = format!("{name}, {} workers", setup.workers);
        let fast = evaluate(setup, path, costs, &mut |_, _| {}).unwrap_or_else(|why| panic!("{what}: {why}"));
        let slow = event_by_event(&case);
        assert!(told(&fast) == told(&slow), "{what}");
    }
}
