//! Runs whose hosts form a ring: inside a host ranks exchange messages with any others, between hosts one rank of
//! each does, with the one before and the one behind.
//!
//! What happens inside a host follows from its ranks' passes and from the stream of messages that comes to it. So
//! hosts are evaluated one after the other, each as far as its stream goes, round and round until all are at the end
//! of the step. Inside a host, a rank goes on as far as nobody else can send it anything that comes before: sending
//! takes time, and so does the way. Several cores have a part of the ring each.

use std::ops::Range;
use std::thread;

use paceline_protocol::{Combine, Rank, Setup, Time};

use super::RecurrenceRefusal;
use super::member::{Delivery, HostLane, Interface, Member, MemberRun, NEVER, Stage, Terms};
use super::program::{HostRing, OUTSIDE};
use super::rotation::{ChunkCosts, LaneCosts};
use super::steps::{self, StepCosts, Together};
use super::stream::Flying;
use crate::costs::{Costs, Host, PassPart};
use crate::driver::Progress;
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

/// A run that is a ring of hosts.
pub(super) struct Hosts<'a> {
    setup: &'a Setup,
    costs: &'a Costs,
    ring: &'a HostRing,
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
        ring: &'a HostRing,
        outside: &'a [LaneCosts],
        ranges: &[(Range<usize>, usize)],
    ) -> Result<Self, RecurrenceRefusal> {
        if parts.last().is_none_or(|last| last.announces != Some(0) || last.end != 1.0) {
            return Err(RecurrenceRefusal::StepProtocol);
        }
        let sizes = ring.programs.first().map_or(0, Vec::len);
        let mut lanes: Vec<Vec<HostLane<'a>>> = (0..sizes).map(|_| Vec::new()).collect();
        for (i, (lane, _)) in ranges.iter().enumerate() {
            for (size, program) in ring.programs[ring.kinds[i]].iter().enumerate() {
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
            leader: ring.leader,
            hosts: ring.hosts.len(),
        };
        // What takes no time has no order that is known here.
        if setup.workers > 1 && terms.least.0 == 0 {
            return Err(RecurrenceRefusal::Order);
        }
        let site = |size: &usize| Site {
            members: (0..ring.programs[0][*size].local_ranks.len())
                .map(|local| Member::new(local, &lanes[*size]))
                .collect(),
            interface: Interface::new(ranges.len()),
            size: *size,
            bound: 0,
            over: true,
        };
        let sites = ring.size.iter().map(site).collect();
        Ok(Self { setup, costs, ring, sites, lanes, terms })
    }

    pub(super) fn run(mut self, progress: Progress<'_>) -> Result<SimulationReport, RecurrenceRefusal> {
        let (setup, costs, each) = (self.setup, self.costs, self.count());
        steps::run(setup, costs, each, &mut self, progress)
    }

    fn each(&self, mut of: impl FnMut(Rank, &Member)) {
        for (site, ranks) in self.sites.iter().zip(&self.ring.hosts) {
            site.members.iter().zip(ranks).for_each(|(member, rank)| of(*rank, member));
        }
    }

    /// What a step takes of each rank besides its pass, and its messages.
    fn count(&self) -> StepCosts {
        let p = self.setup.workers;
        let mut each =
            StepCosts { spent: vec![SimulatedTimes::default(); p], sent_bytes: vec![0; p], messages: 0 };
        // Inside hosts, by size and local rank; then what leaves them, by place.
        for (size, lanes) in self.lanes.iter().enumerate() {
            let local_ranks = lanes.first().map_or(0, |lane| lane.program.local_ranks.len());
            for local in 0..local_ranks {
                let (mut own, mut body, mut messages) = (SimulatedTimes::default(), 0, 0);
                for HostLane { program, inside, lens, outside } in lanes {
                    for step in &program.local_ranks[local] {
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
                for (ranks, _) in self.ring.hosts.iter().zip(&self.ring.size).filter(|(_, of)| **of == size) {
                    each.spent[ranks[local]] = own.clone();
                    each.sent_bytes[ranks[local]] = body;
                    each.messages += messages;
                }
            }
        }
        // All sizes of hosts send and receive the same places.
        for HostLane { program, outside, .. } in self.lanes.first().into_iter().flatten() {
            let leader = &program.local_ranks[self.terms.leader];
            let sent = leader.iter().filter_map(|step| step.send).filter(|send| send.to == OUTSIDE);
            let sent: Vec<u32> = sent.map(|send| send.piece).collect();
            let received = |combine| -> Vec<u32> {
                let of = leader.iter().filter_map(|step| step.receive);
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
            for (place, ranks) in self.ring.hosts.iter().enumerate() {
                let rank = ranks[self.terms.leader];
                let spent = &mut each.spent[rank];
                spent.exchange += exchange.iter().map(|sums| sums[place]).sum::<Time>();
                spent.sent_bytes += sent_bytes[place];
                spent.received_bytes += received_bytes.iter().map(|sums| sums[place]).sum::<u64>();
                each.sent_bytes[rank] += bodies[place];
                each.messages += sent.len() as u64;
            }
        }
        each
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

    fn begin(&mut self, passes: &[Time]) {
        for (site, ranks) in self.sites.iter_mut().zip(&self.ring.hosts) {
            let lanes = &self.lanes[site.size];
            for (local, (member, rank)) in site.members.iter_mut().zip(ranks).enumerate() {
                let sends = lanes.iter().map(|lane| lane.program.sends[local]).sum();
                member.begin(passes[*rank], sends, self.terms.parts);
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
    fn sweeps(&mut self) -> Result<(), RecurrenceRefusal> {
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
}

impl Together for Hosts<'_> {
    fn step(&mut self, passes: &[Time]) -> Result<(), RecurrenceRefusal> {
        self.begin(passes);
        self.sweeps()
    }

    fn ends(&self, ends: &mut Vec<Time>) {
        ends.resize(self.setup.workers, 0);
        self.each(|rank, member| ends[rank] = member.time);
    }

    fn state(&self, first: Time) -> Vec<Time> {
        let mut state = Vec::new();
        self.each(|_, member| state.extend([member.time - first, member.before.max(first) - first]));
        let interfaces = self.sites.iter().map(|site| &site.interface);
        state.extend(
            interfaces.flat_map(|own| [own.sends.max(first) - first, own.receives.max(first) - first]),
        );
        state
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
            for local in 0..self.members.len() {
                if self.members[local].stage == Stage::Over {
                    continue;
                }
                let (horizon, answered) =
                    (horizons.of(local), horizons.senders > usize::from(self.members[local].unsent > 0));
                further |= self.member(local, place, lanes, terms, &mut inside).go_on(horizon, answered)?;
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
        let bound = self.first_bit(horizons.of(terms.leader), place, lanes, terms);
        moved |= bound > self.bound;
        self.bound = bound;
        self.over = self.members.iter().all(|member| member.stage == Stage::Over);
        Ok(moved)
    }

    /// Nothing that it sends from now on is at the next host before; nothing that is not known comes to its leader from
    /// inside before `horizon`.
    fn first_bit(&mut self, horizon: Time, place: usize, lanes: &[HostLane<'_>], terms: &Terms<'_>) -> Time {
        let mut inside = Vec::new();
        let leader = self.member(terms.leader, place, lanes, terms, &mut inside);
        leader.earliest(horizon) + terms.least.0 + terms.latency
    }

    fn member<'s>(
        &'s mut self,
        local: usize,
        place: usize,
        lanes: &'s [HostLane<'s>],
        terms: &'s Terms<'s>,
        inside: &'s mut Vec<Delivery>,
    ) -> MemberRun<'s> {
        let Self { members, interface, .. } = self;
        MemberRun { local, place, member: &mut members[local], interface, lanes, terms, inside }
    }

    /// Before when nobody gets anything from inside that is not known.
    fn horizons(
        &mut self,
        place: usize,
        lanes: &[HostLane<'_>],
        terms: &Terms<'_>,
        inside: &mut Vec<Delivery>,
    ) -> Horizons {
        let mut horizons = Horizons { first: NEVER, local: usize::MAX, second: NEVER, senders: 0 };
        for local in 0..self.members.len() {
            if self.members[local].unsent == 0 {
                continue;
            }
            horizons.senders += 1;
            let own = self.member(local, place, lanes, terms, inside).earliest(NEVER);
            let there = own + terms.least.0 + terms.local_latency;
            if there < horizons.first {
                horizons.second = horizons.first;
                (horizons.first, horizons.local) = (there, local);
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
    local: usize,
    second: Time,
    /// Ranks that may still send something.
    senders: usize,
}

impl Horizons {
    fn of(&self, local: usize) -> Time {
        if local == self.local { self.second } else { self.first }
    }
}
