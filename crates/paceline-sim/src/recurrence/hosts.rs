//! Runs whose hosts form a circle: inside a host ranks exchange messages with any others, between hosts one rank of
//! each does, with the one before and the one behind.
//!
//! What happens inside a host follows from its ranks' passes and from the stream of messages that comes to it. So
//! hosts are evaluated one after the other, each as far as its stream goes, round and round until all are at the end
//! of the step. Inside a host, a rank goes on as far as nobody else can send it anything that comes before: sending
//! takes time, and so does the way. Several cores have a part of the circle each.

use std::ops::Range;
use std::thread;

use paceline_protocol::{Combine, Outcome, Rank, Setup, Time};

use super::RecurrenceRefusal;
use super::member::{Delivery, HostLane, Interface, Member, MemberRun, NEVER, Stage, Terms};
use super::program::{Circle, OUTSIDE};
use super::rotation::{ChunkCosts, LaneCosts};
use super::stream::Flying;
use crate::costs::{Costs, Host, PassPart};
use crate::report::{SimulatedTimes, SimulationReport};

/// Fewer ranks are not worth a thread.
const RANKS_PER_CORE: usize = 2048;

/// A host at work.
struct Site {
    members: Vec<Member>,
    interface: Interface,
    /// The number of its size.
    size: usize,
    /// Nothing that it sends from now on is at the next host before.
    bound: Time,
    over: bool,
}

/// A run that is a circle of hosts.
pub(super) struct Hosts<'a> {
    setup: &'a Setup,
    costs: &'a Costs,
    circle: &'a Circle,
    sites: Vec<Site>,
    /// What lanes cost, by the size of hosts.
    lanes: Vec<Vec<HostLane<'a>>>,
    terms: Terms<'a>,
}

/// What the lanes of a run cost between hosts.
pub(super) fn between(
    costs: &Costs,
    host: &Host,
    lanes: &[(Range<usize>, usize)],
    hosts: usize,
) -> Result<Vec<LaneCosts>, RecurrenceRefusal> {
    let lane = |(lane, _): &(Range<usize>, usize)| LaneCosts::new(costs, host, lane, hosts);
    lanes.iter().map(lane).collect::<Option<_>>().ok_or(RecurrenceRefusal::Variation)
}

impl<'a> Hosts<'a> {
    pub(super) fn new(
        setup: &'a Setup,
        costs: &'a Costs,
        host: &Host,
        parts: &'a [PassPart],
        circle: &'a Circle,
        outside: &'a [LaneCosts],
        ranges: &[(Range<usize>, usize)],
    ) -> Result<Self, RecurrenceRefusal> {
        if parts.last().is_none_or(|last| last.announces != Some(0) || last.end != 1.0) {
            return Err(RecurrenceRefusal::StepProtocol);
        }
        let sizes = circle.programs.first().map_or(0, Vec::len);
        let mut lanes: Vec<Vec<HostLane<'a>>> = (0..sizes).map(|_| Vec::new()).collect();
        for (i, (lane, _)) in ranges.iter().enumerate() {
            for (size, program) in circle.programs[circle.kinds[i]].iter().enumerate() {
                let lens = program.lens(lane);
                let inside = lens.iter().map(|len| ChunkCosts::new(costs, host, *len)).collect::<Option<_>>();
                let inside = inside.ok_or(RecurrenceRefusal::Variation)?;
                lanes[size].push(HostLane { program, inside, lens, outside: &outside[i] });
            }
        }
        let all = || {
            let inside = lanes.iter().flatten().flat_map(|lane| &lane.inside);
            inside.chain(outside.iter().flat_map(|lane| &lane.chunks))
        };
        let least = |of: fn(&ChunkCosts) -> u32| all().map(of).min().unwrap_or(0).into();
        let terms = Terms {
            parts,
            latency: host.latency,
            local_latency: costs.local_latency,
            room: host.transfer(costs.buffer),
            least: (least(|chunk| chunk.send), least(|chunk| chunk.transfer)),
            gate: circle.gate,
            hosts: circle.hosts.len(),
        };
        // What takes no time has no order that is known here.
        if setup.workers > 1 && terms.least.0 == 0 {
            return Err(RecurrenceRefusal::Order);
        }
        let site = |size: &usize| Site {
            members: (0..circle.programs[0][*size].seats.len())
                .map(|seat| Member::new(seat, &lanes[*size]))
                .collect(),
            interface: Interface::new(ranges.len()),
            size: *size,
            bound: 0,
            over: true,
        };
        let sites = circle.size.iter().map(site).collect();
        Ok(Self { setup, costs, circle, sites, lanes, terms })
    }

    pub(super) fn run(mut self) -> Result<SimulationReport, RecurrenceRefusal> {
        let (setup, costs, p) = (self.setup, self.costs, self.setup.workers);
        let end = setup.steps.ok_or(RecurrenceRefusal::OpenEnd)?;
        let steps = end - setup.from;
        let mut report = SimulationReport {
            spent: vec![SimulatedTimes::default(); p],
            finished: vec![Vec::with_capacity(steps as usize); p],
            outcomes: vec![Some(Outcome::Completed); p],
            staleness: vec![Vec::new(); p],
            sent_bytes: vec![0; p],
            ..SimulationReport::default()
        };
        self.count(&mut report);
        let mut before = Vec::new();
        let mut step = setup.from;
        while step < end {
            self.begin(step, &mut report);
            self.step()?;
            self.each(|rank, member| report.finished[rank].push(member.time));
            step += 1;
            let (state, took) = self.relative(&report.finished);
            if state == before {
                let again = costs.repeats(p, step - 2, 1, end);
                for (rank, finished) in report.finished.iter_mut().enumerate() {
                    let last = finished[finished.len() - 1];
                    finished.extend((1..=again).map(|n| last + n * took));
                    report.spent[rank].compute += again * costs.pass(rank, rank, step - 1);
                }
                self.move_on(again * took);
                step += again;
                report.repeated += again;
            }
            before = state;
        }
        report.messages *= steps;
        report.sent_bytes.iter_mut().for_each(|bytes| *bytes *= steps);
        let spent = &mut report.spent;
        self.each(|rank, member| spent[rank].end = member.time);
        for spent in spent {
            spent.exchange *= steps;
            spent.sent_bytes *= steps;
            spent.received_bytes *= steps;
            spent.apply *= steps;
            report.end = report.end.max(spent.end);
        }
        Ok(report)
    }

    fn each(&self, mut of: impl FnMut(Rank, &Member)) {
        for (site, ranks) in self.sites.iter().zip(&self.circle.hosts) {
            site.members.iter().zip(ranks).for_each(|(member, rank)| of(*rank, member));
        }
    }

    /// What a step takes of each rank besides its pass, and its messages.
    fn count(&self, report: &mut SimulationReport) {
        // Inside hosts, by size and seat; then what leaves them, by place.
        for (size, lanes) in self.lanes.iter().enumerate() {
            let seats = lanes.first().map_or(0, |lane| lane.program.seats.len());
            for seat in 0..seats {
                let (mut own, mut body, mut messages) = (SimulatedTimes::default(), 0, 0);
                for HostLane { program, inside, lens, outside } in lanes {
                    for step in &program.seats[seat] {
                        if let Some(send) = step.send.filter(|send| send.to != OUTSIDE) {
                            let len = lens[send.piece as usize];
                            own.exchange += Time::from(inside[send.piece as usize].send);
                            own.sent_bytes += self.costs.bytes(len) as u64;
                            body += 4 * len as u64;
                            messages += 1;
                        }
                        if let Some(receive) = step.receive.filter(|receive| !receive.outside) {
                            own.exchange += inside[receive.piece as usize].take(receive.combine);
                            own.received_bytes += self.costs.bytes(lens[receive.piece as usize]) as u64;
                        }
                    }
                    own.apply += outside.apply;
                }
                for (ranks, _) in
                    self.circle.hosts.iter().zip(&self.circle.size).filter(|(_, of)| **of == size)
                {
                    report.spent[ranks[seat]] = own.clone();
                    report.sent_bytes[ranks[seat]] = body;
                    report.messages += messages;
                }
            }
        }
        // All sizes of hosts send and receive the same places.
        for HostLane { program, outside, .. } in self.lanes.first().into_iter().flatten() {
            let gate = &program.seats[self.terms.gate];
            let sent = gate.iter().filter_map(|step| step.send).filter(|send| send.to == OUTSIDE);
            let sent: Vec<u32> = sent.map(|send| send.piece).collect();
            let received = |combine| -> Vec<u32> {
                let of = gate.iter().filter_map(|step| step.receive);
                of.filter(|got| got.outside && got.combine == combine).map(|got| got.piece).collect()
            };
            let [added, replaced] = [Combine::Add, Combine::Replace].map(received);
            let bytes = |place: usize| self.costs.bytes(outside.lens[place]) as u64;
            let exchange = [
                self.around(&sent, |place| outside.chunks[place].send.into()),
                self.around(&added, |place| outside.chunks[place].add.into()),
                self.around(&replaced, |place| outside.chunks[place].replace.into()),
            ];
            let bodies = self.around(&sent, |place| 4 * outside.lens[place] as u64);
            let sent_bytes = self.around(&sent, bytes);
            let received_bytes = [self.around(&added, bytes), self.around(&replaced, bytes)];
            for (place, ranks) in self.circle.hosts.iter().enumerate() {
                let rank = ranks[self.terms.gate];
                let spent = &mut report.spent[rank];
                spent.exchange += exchange.iter().map(|sums| sums[place]).sum::<Time>();
                spent.sent_bytes += sent_bytes[place];
                spent.received_bytes += received_bytes.iter().map(|sums| sums[place]).sum::<u64>();
                report.sent_bytes[rank] += bodies[place];
                report.messages += sent.len() as u64;
            }
        }
    }

    /// For each host the sum over places that are further on by its own.
    fn around(&self, places: &[u32], of: impl Fn(usize) -> u64) -> Vec<u64> {
        let hosts = self.terms.hosts;
        let mut times = vec![0u64; hosts];
        places.iter().for_each(|place| times[*place as usize] += 1);
        let values: Vec<u64> = (0..hosts).map(of).collect();
        // Most places are passed equally often: only the others make a difference between hosts.
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let usual = sorted[hosts / 2];
        let all = usual * values.iter().sum::<u64>();
        let others: Vec<_> = times.iter().enumerate().filter(|(_, times)| **times != usual).collect();
        let own = |host: usize| {
            others.iter().fold(all, |sum, (place, times)| {
                let value = values[(place + host) % hosts];
                sum + **times * value - usual * value
            })
        };
        (0..hosts).map(own).collect()
    }

    fn begin(&mut self, step: u64, report: &mut SimulationReport) {
        for (site, ranks) in self.sites.iter_mut().zip(&self.circle.hosts) {
            let lanes = &self.lanes[site.size];
            for (seat, (member, rank)) in site.members.iter_mut().zip(ranks).enumerate() {
                let pass = self.costs.pass(*rank, *rank, step);
                report.spent[*rank].compute += pass;
                let sends = lanes.iter().map(|lane| lane.program.sends[seat]).sum();
                member.begin(pass, sends, self.terms.parts);
            }
            site.over = false;
            site.bound = 0;
        }
        for place in 0..self.sites.len() {
            let Self { sites, lanes, terms, .. } = self;
            let site = &mut sites[place];
            site.bound = site.first_bit(NEVER, place, &lanes[site.size], terms);
        }
    }

    /// Evaluates all hosts until each is at the end of the step.
    fn step(&mut self) -> Result<(), RecurrenceRefusal> {
        let Self { setup, sites, lanes, terms, .. } = self;
        let count = sites.len();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let cores = cores.min(setup.workers.div_ceil(RANKS_PER_CORE)).min(count);
        let each = count.div_ceil(cores);
        loop {
            let before = |part: usize| sites[(part * each + count - 1) % count].bound;
            let heard: Vec<Time> = (0..count.div_ceil(each)).map(before).collect();
            let work =
                |(part, sites): (usize, &mut [Site])| sweep(sites, part * each, heard[part], lanes, terms);
            let parts = sites.chunks_mut(each).enumerate();
            let swept: Vec<_> = if heard.len() == 1 {
                parts.map(work).collect()
            } else {
                thread::scope(|scope| {
                    let work = &work;
                    let others: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
                    let joined = others.into_iter().map(thread::ScopedJoinHandle::join);
                    joined.map(|swept| swept.unwrap_or(Err(RecurrenceRefusal::Order))).collect()
                })
            };
            let mut moved = false;
            for (part, swept) in swept.into_iter().enumerate() {
                let (moved_here, out) = swept?;
                moved |= moved_here;
                let next = ((part + 1) * each) % count.next_multiple_of(each);
                sites[next].interface.stream.extend(out);
            }
            if sites.iter().all(|site| site.over) {
                return Ok(());
            }
            if !moved {
                return Err(RecurrenceRefusal::Order);
            }
        }
    }

    /// Where everybody is at the end of a step, relative to the first, and how much later that is than a step before.
    fn relative(&self, finished: &[Vec<Time>]) -> (Vec<Time>, Time) {
        let mut first = Time::MAX;
        self.each(|_, member| first = first.min(member.time));
        let mut state = Vec::new();
        self.each(|_, member| state.extend([member.time - first, member.before.max(first) - first]));
        let interfaces = self.sites.iter().map(|site| &site.interface);
        state.extend(
            interfaces.flat_map(|own| [own.sends.max(first) - first, own.receives.max(first) - first]),
        );
        let took = |times: &Vec<Time>| match times[..] {
            [.., before, last] => last - before,
            _ => 0,
        };
        (state, finished.first().map_or(0, took))
    }

    fn move_on(&mut self, by: Time) {
        for Site { members, interface, .. } in &mut self.sites {
            for member in members {
                member.time += by;
                member.before += by;
            }
            interface.sends += by;
            interface.receives += by;
        }
    }
}

/// Evaluates neighbouring hosts, each as far as is known what comes to it; whether that is any further than before, and
/// what the last one sends.
fn sweep(
    sites: &mut [Site],
    first: usize,
    mut heard: Time,
    lanes: &[Vec<HostLane<'_>>],
    terms: &Terms<'_>,
) -> Result<(bool, Vec<Flying>), RecurrenceRefusal> {
    let mut moved = false;
    // One long stream goes round, not one at each host.
    let mut spare = Vec::new();
    let mut out: Vec<Flying> = Vec::new();
    for (i, site) in sites.iter_mut().enumerate() {
        let stream = &mut site.interface.stream;
        if stream.is_empty() {
            std::mem::swap(stream, &mut out);
        } else {
            stream.append(&mut out);
        }
        if out.capacity() > spare.capacity() {
            std::mem::swap(&mut out, &mut spare);
        }
        if !site.over {
            site.interface.out = std::mem::take(&mut spare);
            moved |= site.go_on(first + i, heard, &lanes[site.size], terms)?;
            out = std::mem::take(&mut site.interface.out);
            let Interface { stream, taken, .. } = &mut site.interface;
            let rest = stream[*taken..].to_vec();
            spare = std::mem::replace(stream, rest);
            spare.clear();
            *taken = 0;
        }
        heard = site.bound;
    }
    Ok((moved, out))
}

impl Site {
    /// Goes on as far as is known what comes; whether that is any further than before. What is not known to come is at
    /// its interface at `heard` at the earliest.
    fn go_on(
        &mut self,
        place: usize,
        heard: Time,
        lanes: &[HostLane<'_>],
        terms: &Terms<'_>,
    ) -> Result<bool, RecurrenceRefusal> {
        self.interface.heard = heard;
        let (mut moved, mut inside) = (false, Vec::new());
        let mut horizons = self.horizons(place, lanes, terms, &mut inside);
        loop {
            let mut further = false;
            for seat in 0..self.members.len() {
                if self.members[seat].stage == Stage::Over {
                    continue;
                }
                let (horizon, answered) =
                    (horizons.of(seat), horizons.senders > usize::from(self.members[seat].unsent > 0));
                further |= self.seat(seat, place, lanes, terms, &mut inside).go_on(horizon, answered)?;
                for (to, message) in inside.drain(..) {
                    self.members[to as usize].deliver(message);
                }
            }
            if !further {
                break;
            }
            moved = true;
            horizons = self.horizons(place, lanes, terms, &mut inside);
        }
        let bound = self.first_bit(horizons.of(terms.gate), place, lanes, terms);
        moved |= bound > self.bound;
        self.bound = bound;
        self.over = self.members.iter().all(|member| member.stage == Stage::Over);
        Ok(moved)
    }

    /// Nothing that it sends from now on is at the next host before; nothing that is not known comes to its gate from
    /// inside before `horizon`.
    fn first_bit(&mut self, horizon: Time, place: usize, lanes: &[HostLane<'_>], terms: &Terms<'_>) -> Time {
        let mut inside = Vec::new();
        let gate = self.seat(terms.gate, place, lanes, terms, &mut inside);
        gate.earliest(horizon) + terms.least.0 + terms.latency
    }

    fn seat<'s>(
        &'s mut self,
        seat: usize,
        place: usize,
        lanes: &'s [HostLane<'s>],
        terms: &'s Terms<'s>,
        inside: &'s mut Vec<Delivery>,
    ) -> MemberRun<'s> {
        let Self { members, interface, .. } = self;
        MemberRun { seat, place, member: &mut members[seat], interface, lanes, terms, inside }
    }

    /// Before when nobody gets anything from inside that is not known.
    fn horizons(
        &mut self,
        place: usize,
        lanes: &[HostLane<'_>],
        terms: &Terms<'_>,
        inside: &mut Vec<Delivery>,
    ) -> Horizons {
        let mut horizons = Horizons { first: NEVER, seat: usize::MAX, second: NEVER, senders: 0 };
        for seat in 0..self.members.len() {
            if self.members[seat].unsent == 0 {
                continue;
            }
            horizons.senders += 1;
            let own = self.seat(seat, place, lanes, terms, inside).earliest(NEVER);
            let there = own + terms.least.0 + terms.local_latency;
            if there < horizons.first {
                horizons.second = horizons.first;
                (horizons.first, horizons.seat) = (there, seat);
            } else {
                horizons.second = horizons.second.min(there);
            }
        }
        horizons
    }
}

/// When the first message that is not known is there, by whom, and the first of all others.
struct Horizons {
    first: Time,
    seat: usize,
    second: Time,
    /// Ranks that may still send something.
    senders: usize,
}

impl Horizons {
    fn of(&self, seat: usize) -> Time {
        if seat == self.seat { self.second } else { self.first }
    }
}
