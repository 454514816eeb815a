//! Several positions on one rank: a run of S shares by fewer workers.
//!
//! A strategy is a protocol between positions, one per share of the global batch (servers have one each). A rank
//! that hosts several positions runs their participants side by side: each has a gradient buffer and scratch buffers
//! of its own, all share the parameters. What they send to each other is read where it lies; what leaves the rank
//! says for which position it is. So S shares give the same numbers whoever computes them.

use std::collections::{HashMap, VecDeque};

use crate::setup::Setup;
use crate::strategies::Strategy;
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, Participant, Rank, RankStanding, Region,
    Tag, Time,
};

/// Bodies from here on are regions of this rank, not received messages.
const LOCAL: u32 = 1 << 31;

/// Most positions of a rank: their number travels in seven bits.
pub const MOST_POSITIONS: usize = 128;

/// A rank's positions as one participant.
pub struct Hosting {
    rank: Rank,
    /// Of each position, its rank and its number among those of the rank; and the positions of each rank.
    places: Vec<(Rank, u8)>,
    of_ranks: Vec<Vec<usize>>,
    positions: Vec<Position>,
    /// What is still to be handed to a position.
    inbox: VecDeque<(usize, Input)>,
    /// The position whose unit is computed next, or is being computed.
    turn: usize,
    computing: bool,
    /// Sends that leave the rank: whose they are.
    sends: HashMap<OpId, (usize, OpId)>,
    /// Bodies that stay within the rank, by their number: whose send, and where they lie.
    local: HashMap<u32, (usize, OpId, Region)>,
    next_local: u32,
    finished: bool,
}

struct Position {
    participant: Box<dyn Participant>,
    actions: Actions,
    /// Its first scratch buffer among the rank's.
    scratch: u16,
    /// The unit that it has asked for.
    begin: Option<Action>,
    /// Whether it computes a share: all of a rank's do the same with the parameters.
    share: bool,
    finished: bool,
}

impl Hosting {
    /// The positions of a rank.
    pub fn new(strategy: &Strategy, setup: &Setup, rank: Rank) -> Self {
        let inner = setup.between_positions(rank);
        let of_ranks: Vec<_> = (0..setup.world()).map(|rank| setup.positions(rank)).collect();
        let last = of_ranks.iter().flatten().max().map_or(0, |last| last + 1);
        let mut places = vec![(0, 0); last];
        for (rank, positions) in of_ranks.iter().enumerate() {
            positions.iter().enumerate().for_each(|(n, position)| places[*position] = (rank, n as u8));
        }
        let mut scratch = 0;
        let position = |position: &usize| {
            let participant = (strategy.make)(&inner, *position);
            let first = scratch;
            scratch += participant.scratch().len() as u16;
            Position {
                participant,
                actions: Actions::default(),
                scratch: first,
                begin: None,
                share: *position < setup.shares(),
                finished: false,
            }
        };
        Self {
            rank,
            positions: of_ranks[rank].iter().map(position).collect(),
            places,
            of_ranks,
            inbox: VecDeque::new(),
            turn: 0,
            computing: false,
            sends: HashMap::new(),
            local: HashMap::new(),
            next_local: 0,
            finished: false,
        }
    }

    /// The ranks that a rank's positions exchange messages with.
    pub fn links(strategy: &Strategy, setup: &Setup, rank: Rank) -> Vec<Rank> {
        let inner = setup.between_positions(rank);
        let peers = setup.positions(rank).into_iter().flat_map(|position| (strategy.links)(&inner, position));
        let mut links: Vec<_> = peers.map(|peer| setup.host(peer)).filter(|host| *host != rank).collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    /// The number of a position among those of this rank, if it is one of them.
    fn own(&self, position: usize) -> Option<usize> {
        let (rank, number) = self.places[position];
        (rank == self.rank).then_some(usize::from(number))
    }

    /// A region of a position's buffers, among the rank's.
    fn region(&self, i: usize, region: Region) -> Region {
        let buf = match region.buf {
            Buf::Grad if i > 0 => Buf::HostedGrad(i as u16),
            Buf::Scratch(n) => Buf::Scratch(self.positions[i].scratch + n),
            Buf::Msg(MsgId(n)) if n >= LOCAL => {
                let (_, _, body) = self.local[&n];
                return Region { offset: body.offset + region.offset, len: region.len, ..body };
            }
            buf => buf,
        };
        Region { buf, ..region }
    }

    /// Hands over what waits, and what comes of it, until nothing is left; then begins the next unit.
    fn run(&mut self, now: Time, out: &mut Actions) {
        while let Some((i, input)) = self.inbox.pop_front() {
            let mut actions = std::mem::take(&mut self.positions[i].actions);
            self.positions[i].participant.on(now, input, &mut actions);
            for action in actions.drain() {
                self.act(i, action, out);
            }
            self.positions[i].actions = actions;
        }
        // Units are computed in the order of their positions. The first one begins when all have asked for theirs: then
        // nothing of the step before is left on this rank.
        let ready = self.turn > 0 || self.positions.iter().all(|position| position.begin.is_some());
        if ready
            && !self.computing
            && !self.finished
            && let Some(begin) = self.positions[self.turn].begin.take()
        {
            self.computing = true;
            out.push(begin);
        }
    }

    fn act(&mut self, i: usize, action: Action, out: &mut Actions) {
        match action {
            Action::Send { op, to, tag, head, src } => {
                let src = src.map(|src| self.region(i, src));
                if let Some(to) = self.own(to) {
                    return self.deliver(i, op, to, tag, head, src);
                }
                let (host, number) = self.places[to];
                let of = (i as u8, number);
                let outer = out.send(host, tag, MessageHead { of, ..head }, src);
                self.sends.insert(outer, (i, op));
            }
            Action::Release(MsgId(n)) if n >= LOCAL => {
                if let Some((sender, op, _)) = self.local.remove(&n) {
                    self.inbox.push_back((sender, Input::Done(op)));
                }
            }
            Action::BeginStep { .. } => self.positions[i].begin = Some(action),
            Action::WaitingFor(position) => {
                if self.own(position).is_none() {
                    out.push(Action::WaitingFor(self.places[position].0));
                }
            }
            Action::Finish(outcome) => self.finish(i, outcome, out),
            // All positions do the same with the parameters that they share: the first does it for all.
            action if i > 0 && self.positions[i].share && touches_params(&action) => {}
            action => out.push(action.on_regions(|region| self.region(i, region))),
        }
    }

    /// Hands a message to another position of this rank.
    fn deliver(
        &mut self,
        from: usize,
        op: OpId,
        to: usize,
        tag: Tag,
        head: MessageHead,
        src: Option<Region>,
    ) {
        let (receiver, sender) = (to, self.of_ranks[self.rank][from]);
        let body = src.map(|region| {
            let number = LOCAL | self.next_local;
            self.next_local = (self.next_local + 1) % LOCAL;
            self.local.insert(number, (from, op, region));
            MsgId(number)
        });
        self.inbox.push_back((receiver, Input::Message { from: sender, tag, head, body }));
        if body.is_none() {
            self.inbox.push_back((from, Input::Done(op)));
        }
    }

    fn finish(&mut self, i: usize, outcome: Outcome, out: &mut Actions) {
        self.positions[i].finished = true;
        let outcome = match outcome {
            Outcome::Lost(position) => Outcome::Lost(self.places[position].0),
            outcome => outcome,
        };
        let all = self.positions.iter().all(|position| position.finished);
        if !self.finished && (all || outcome != Outcome::Completed) {
            self.finished = true;
            out.push(Action::Finish(outcome));
        }
    }

    /// A message from another rank, for one of its positions by one of theirs.
    fn message(&mut self, from: Rank, head: MessageHead) -> Option<(usize, usize)> {
        let (sender, receiver) = (usize::from(head.of.0), usize::from(head.of.1));
        let sender = *self.of_ranks.get(from)?.get(sender)?;
        (receiver < self.positions.len()).then_some((sender, receiver))
    }
}

fn touches_params(action: &Action) -> bool {
    action.regions().into_iter().flatten().any(|region| region.buf == Buf::Param)
}

impl Participant for Hosting {
    fn on(&mut self, now: Time, input: Input, out: &mut Actions) {
        match input {
            // Stages have one position each.
            Input::Ran(_) => {}
            Input::GradReady { .. } | Input::Load(_) => self.inbox.push_back((self.turn, input)),
            Input::BackwardDone => {
                self.inbox.push_back((self.turn, input));
                self.turn = (self.turn + 1) % self.positions.len();
                self.computing = false;
            }
            Input::Message { from, tag, head, body } => match self.message(from, head) {
                Some((from, receiver)) => {
                    self.inbox.push_back((receiver, Input::Message { from, tag, head, body }));
                }
                None => body.into_iter().for_each(|msg| out.push(Action::Release(msg))),
            },
            Input::Done(op) => {
                if let Some((sender, op)) = self.sends.remove(&op) {
                    self.inbox.push_back((sender, Input::Done(op)));
                }
            }
            Input::Lost(rank) => {
                let lost = Input::Lost(self.of_ranks[rank].first().copied().unwrap_or(0));
                (0..self.positions.len()).for_each(|i| self.inbox.push_back((i, lost)));
            }
            Input::Start | Input::StopAt(_) | Input::Leave | Input::RunOut | Input::Commit(_) => {
                (0..self.positions.len()).for_each(|i| self.inbox.push_back((i, input)));
            }
        }
        self.run(now, out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.positions.iter().flat_map(|position| position.participant.scratch()).collect()
    }

    fn standing(&self) -> RankStanding {
        let parts = self.positions.iter().flat_map(|position| position.participant.standing().parts);
        RankStanding { parts: parts.collect(), ..RankStanding::default() }
    }
}
