//! Several positions on one rank: a run of S shares by fewer workers.
//!
//! A strategy is a protocol between positions, one per share of the global batch (servers have one each). A rank
//! that hosts several positions runs their participants side by side: each has a gradient buffer and scratch buffers
//! of its own, all share the parameters. What they send to each other is read where it lies; what leaves the rank
//! says for which position it is. So S shares give the same numbers whoever computes them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::setup::Setup;
use crate::strategies::Strategy;
use crate::vocabulary::{
    Action, Actions, Buf, Input, MessageHead, MsgId, OpId, Outcome, Participant, Rank, Region, Tag, Time,
};

/// Bodies from here on are regions of this rank, not received messages.
const LOCAL: u32 = 1 << 31;

/// Most positions of a rank: their number travels in seven bits.
pub const MOST_POSITIONS: usize = 128;

/// A rank's positions as one participant.
pub struct Hosting {
    setup: Setup,
    /// The positions of this rank, in the count of all.
    own: Range<usize>,
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
    finished: bool,
}

impl Hosting {
    /// The positions of a rank.
    pub fn new(strategy: &Strategy, setup: &Setup, rank: Rank) -> Self {
        let inner = setup.between_positions();
        let mut scratch = 0;
        let position = |position| {
            let participant = (strategy.make)(&inner, position);
            let first = scratch;
            scratch += participant.scratch().len() as u16;
            Position {
                participant,
                actions: Actions::default(),
                scratch: first,
                begin: None,
                finished: false,
            }
        };
        let own = setup.positions(rank);
        Self {
            setup: setup.clone(),
            positions: own.clone().map(position).collect(),
            own,
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
        let inner = setup.between_positions();
        let peers = setup.positions(rank).flat_map(|position| (strategy.links)(&inner, position));
        let mut links: Vec<_> = peers.map(|peer| setup.host(peer)).filter(|host| *host != rank).collect();
        links.sort_unstable();
        links.dedup();
        links
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
                if self.own.contains(&to) {
                    return self.deliver(i, op, to, tag, head, src);
                }
                let host = self.setup.host(to);
                let of = (i as u8, (to - self.setup.positions(host).start) as u8);
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
                let host = self.setup.host(position);
                if !self.own.contains(&position) {
                    out.push(Action::WaitingFor(host));
                }
            }
            Action::Finish(outcome) => self.finish(i, outcome, out),
            // All positions do the same with the parameters that they share: the first does it for all.
            action if i > 0 && touches_params(&action) => {}
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
        let (receiver, sender) = (to - self.own.start, self.own.start + from);
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
            Outcome::Lost(position) => Outcome::Lost(self.setup.host(position)),
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
        let theirs = self.setup.positions(from);
        let known = sender < theirs.len() && receiver < self.positions.len();
        known.then_some((theirs.start + sender, receiver))
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
                let lost = Input::Lost(self.setup.positions(rank).start);
                (0..self.positions.len()).for_each(|i| self.inbox.push_back((i, lost)));
            }
            Input::Start | Input::StopAt(_) | Input::Leave | Input::RunOut => {
                (0..self.positions.len()).for_each(|i| self.inbox.push_back((i, input)));
            }
        }
        self.run(now, out);
    }

    fn scratch(&self) -> Vec<usize> {
        self.positions.iter().flat_map(|position| position.participant.scratch()).collect()
    }
}
