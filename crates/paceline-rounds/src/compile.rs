//! One iteration of a program for all workers: what each does, in order.

use std::ops::Range;

use paceline_protocol::Rank;

use crate::file::StrategyFileError;
use crate::scope::{Place, World};
use crate::statement::{Chunks, Description, Register, Round, Send, Statement, StatementKind, X};
use crate::values::{Detail, RegisterValues};

/// Most statements of an iteration, repeats counted.
pub const MOST_STATEMENTS: usize = 100_000;
/// Most statements of an iteration, counted for every worker and chunk that makes them.
const MOST_IN_ALL: usize = 40_000_000;
/// Most chunks.
pub const MOST_CHUNKS: usize = 4096;

/// What a worker does: the next operation begins when this one is done.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundOp {
    /// Sends chunks of a register.
    Send {
        to: Vec<Rank>,
        register: Register,
        chunks: Range<usize>,
        phase: u32,
        /// Whether every receiver has the same afterwards as the sender.
        copied: bool,
        /// Steps whose messages a receiver may leave untaken.
        window: Option<u64>,
    },
    /// Waits for a message and takes it: `register = keep·register + add·message`.
    Receive {
        from: Rank,
        register: Register,
        chunks: Range<usize>,
        phase: u32,
        keep: f32,
        add: f32,
        /// Whether the sender is told.
        window: bool,
    },
    /// `dst = keep·dst + add·src`.
    Set {
        dst: Register,
        src: Register,
        chunks: Range<usize>,
        keep: f32,
        add: f32,
    },
    Scale {
        dst: Register,
        chunks: Range<usize>,
        by: f32,
    },
    Swap(Register, Register, Range<usize>),
    /// The own update with a gradient.
    Update(Register),
}

/// An iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// Chunks of a lane that one worker's operations name.
    pub chunks: usize,
    /// The operations of each worker, for each chunk that runs by itself.
    pub ops: Vec<Vec<Vec<RoundOp>>>,
    /// The round of each phase, by its name.
    pub phases: Vec<String>,
}

impl Iteration {
    /// A worker's operations of all chunks that run by themselves.
    pub fn of(&self, rank: Rank) -> impl Iterator<Item = &RoundOp> {
        self.ops.iter().flat_map(move |workers| &workers[rank])
    }
}

/// What a program has from one iteration to the next.
#[derive(Clone, Debug)]
pub struct State {
    /// Scalars by independent chunk, worker and number.
    pub scalars: Vec<Vec<Vec<f64>>>,
    /// What registers hold, by independent chunk.
    pub values: Vec<RegisterValues>,
}

/// How a lane is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Chunks of a lane.
    pub chunks: usize,
    /// Of these, how many run the rounds by themselves.
    pub independent: usize,
}

impl Cut {
    /// Chunks that one run of the rounds is about.
    pub fn each(self) -> usize {
        self.chunks / self.independent
    }
}

/// Into what lanes are cut.
pub fn cut(description: &Description, world: &World) -> Result<Cut, StrategyFileError> {
    let place = everywhere(description, world, 0, 1);
    let chunks = description.chunks.as_ref().map_or(Ok(1), |expr| {
        let chunks = place.whole(expr)?;
        match (1..=MOST_CHUNKS).contains(&chunks) {
            true => Ok(chunks),
            false => Err(place.fail(expr, &format!("is {chunks}: 1 to {MOST_CHUNKS} chunks are possible"))),
        }
    })?;
    Ok(Cut { chunks, independent: if description.independent { chunks } else { 1 } })
}

/// A place that is the same for every worker.
fn everywhere<'a>(description: &'a Description, world: &'a World, step: u64, chunks: usize) -> Place<'a> {
    Place {
        description,
        world,
        step,
        rank: None,
        k: 0,
        round: 0,
        chunk: 0,
        chunks,
        peer: None,
        scalars: &[],
        masses: &[],
    }
}

impl State {
    /// Before the first step.
    pub fn new(description: &Description, world: &World, cut: Cut, detail: Detail) -> Self {
        let first: Vec<f64> = description.scalars.iter().map(|(_, value)| *value).collect();
        let registers = description.registers.len();
        Self {
            scalars: vec![vec![first; world.workers]; cut.independent],
            values: vec![RegisterValues::new(detail, world.workers, registers, cut.each()); cut.independent],
        }
    }
}

/// Compiles a step, and brings the state to its end.
pub fn compile(
    description: &Description,
    world: &World,
    cut: Cut,
    step: u64,
    state: &mut State,
    fresh: bool,
) -> Result<Iteration, StrategyFileError> {
    let mut iteration = Iteration { chunks: cut.each(), ops: Vec::new(), phases: Vec::new() };
    for chunk in 0..cut.independent {
        let values = &mut state.values[chunk];
        values.begin(step, fresh);
        let mut run = Run {
            place: Place { chunk, ..everywhere(description, world, step, cut.chunks) },
            cut,
            ops: vec![Vec::new(); world.workers],
            phases: Vec::new(),
            values,
            scalars: &mut state.scalars[chunk],
            statements: 0,
        };
        run.rounds()?;
        iteration.phases = run.phases;
        iteration.ops.push(run.ops);
    }
    Ok(iteration)
}

/// One run through the rounds.
struct Run<'a> {
    place: Place<'a>,
    cut: Cut,
    ops: Vec<Vec<RoundOp>>,
    phases: Vec<String>,
    values: &'a mut RegisterValues,
    scalars: &'a mut Vec<Vec<f64>>,
    statements: usize,
}

type Compiled<T = ()> = Result<T, StrategyFileError>;

impl Run<'_> {
    fn rounds(&mut self) -> Compiled {
        for round in &self.place.description.rounds {
            self.place.k = 0;
            if !self.place.holds(round.when.as_ref())? {
                continue;
            }
            match (&round.repeat, &round.until) {
                (Some(repeat), _) => {
                    let times = self.place.whole(repeat)?;
                    if times.saturating_mul(round.statements.len()) > MOST_STATEMENTS {
                        let problem = format!(
                            "is {times}: an iteration has at most {MOST_STATEMENTS} statements, repeats counted"
                        );
                        return Err(self.place.fail(repeat, &problem));
                    }
                    for k in 0..times {
                        self.place.k = k;
                        self.round(round)?;
                    }
                }
                (None, Some(until)) => {
                    while !self.place.truth(until)? {
                        if (self.place.k + 1).saturating_mul(round.statements.len()) > MOST_STATEMENTS {
                            let problem = format!(
                                "does not hold after {} repeats: the round would never end; let it \
                                 depend on k, e.g. pow(2, k) >= workers",
                                self.place.k
                            );
                            return Err(self.place.fail(until, &problem));
                        }
                        self.round(round)?;
                        self.place.k += 1;
                    }
                }
                (None, None) => self.round(round)?,
            }
        }
        Ok(())
    }

    fn round(&mut self, round: &Round) -> Compiled {
        self.statements += round.statements.len();
        let in_all = self.statements.saturating_mul(self.ops.len()).saturating_mul(self.cut.independent);
        if self.statements > MOST_STATEMENTS || in_all > MOST_IN_ALL {
            let problem = format!(
                "an iteration has at most {MOST_STATEMENTS} statements, repeats counted, and {MOST_IN_ALL} counted \
                 for every worker and chunk that makes them"
            );
            return Err(self.place.fail_at(round.line, "round", &problem));
        }
        for statement in &round.statements {
            match &statement.kind {
                StatementKind::Send(send) => self.send(statement, send, round)?,
                _ => (0..self.ops.len()).try_for_each(|rank| self.local(statement, rank))?,
            }
        }
        self.place.round += 1;
        Ok(())
    }

    /// Calls something with an expression's place at a worker.
    fn at<T>(
        &self,
        rank: Rank,
        peer: Option<Rank>,
        chunk: usize,
        ask: impl FnOnce(&Place<'_>) -> Compiled<T>,
    ) -> Compiled<T> {
        let mut masses = Vec::new();
        self.values.masses(chunk, rank, &mut masses);
        ask(&Place { rank: Some(rank), peer, scalars: &self.scalars[rank], masses: &masses, ..self.place })
    }

    /// The chunks that a statement is about at a worker.
    fn chunks(&self, statement: &Statement, rank: Rank) -> Compiled<Range<usize>> {
        let each = self.cut.each();
        self.at(rank, None, 0, |place| {
            let (expr, first, count) = match &statement.chunks {
                Chunks::All => return Ok(0..each),
                Chunks::One(one) => (one, place.whole(one)?, 1),
                Chunks::Some(first, count) => (count, place.whole(first)?, place.whole(count)?),
            };
            if count == 0 || first.saturating_add(count) > each {
                let last = each - 1;
                let problem = format!("names chunks {first}..{}, and there are 0 to {last}", first + count);
                return Err(place.fail(expr, &problem));
            }
            Ok(first..first + count)
        })
    }

    fn local(&mut self, statement: &Statement, rank: Rank) -> Compiled {
        if !self.at(rank, None, 0, |place| place.holds(statement.when.as_ref()))? {
            return Ok(());
        }
        let chunks = self.chunks(statement, rank)?;
        let step = self.place.step;
        match &statement.kind {
            StatementKind::Send(_) => unreachable!("sends are made by all workers together"),
            StatementKind::Set { dst, src, keep, add } => {
                let (keep, add) = self.at(rank, None, chunks.start, |place| {
                    Ok((place.weight(keep.as_ref(), 0.0)?, place.weight(add.as_ref(), 1.0)?))
                })?;
                let what = self.read(statement, chunks.clone(), rank, *src)?;
                self.mix(statement, chunks.clone(), rank, *dst, keep, &what, add)?;
                let (keep, add) = (keep as f32, add as f32);
                self.ops[rank].push(RoundOp::Set { dst: *dst, src: *src, chunks, keep, add });
            }
            StatementKind::Scale { dst, by } => {
                let by = self.at(rank, None, chunks.start, |place| place.number(by))?;
                if !self.values.scale(chunks.clone(), rank, *dst, by) {
                    return Err(self.unset(statement, rank, *dst));
                }
                // Nothing is done where nothing changes.
                if by as f32 != 1.0 {
                    self.ops[rank].push(RoundOp::Scale { dst: *dst, chunks, by: by as f32 });
                }
            }
            StatementKind::Swap(a, b) => {
                let first = self.read(statement, chunks.clone(), rank, *a)?;
                let second = self.read(statement, chunks.clone(), rank, *b)?;
                self.values.mix(chunks.clone(), rank, *a, step, 0.0, &second, 1.0);
                self.values.mix(chunks.clone(), rank, *b, step, 0.0, &first, 1.0);
                self.ops[rank].push(RoundOp::Swap(*a, *b, chunks));
            }
            StatementKind::Update { with } => {
                for chunk in chunks {
                    if let Err(problem) = self.values.update(chunk, rank, *with) {
                        let name = &self.place.description.registers[*with];
                        let problem = format!("register `{name}` {problem}");
                        return Err(self.fail_at(statement, rank, "with", &problem));
                    }
                }
                self.ops[rank].push(RoundOp::Update(*with));
            }
            StatementKind::Let { scalar, be } => {
                let value = self.at(rank, None, chunks.start, |place| place.number(be))?;
                self.scalars[rank][*scalar] = value;
            }
        }
        Ok(())
    }

    fn fail_at(&self, statement: &Statement, rank: Rank, key: &str, problem: &str) -> StrategyFileError {
        Place { rank: Some(rank), ..self.place }.fail_at(statement.line, key, problem)
    }

    fn unset(&self, statement: &Statement, rank: Rank, register: Register) -> StrategyFileError {
        let name = &self.place.description.registers[register];
        let problem =
            format!("register `{name}` is read before anything is in it: copy or send something there");
        self.fail_at(statement, rank, "", &problem)
    }

    fn read(
        &mut self,
        statement: &Statement,
        chunks: Range<usize>,
        rank: Rank,
        register: Register,
    ) -> Compiled<Vec<f64>> {
        let found = self.values.read(chunks, rank, register, self.place.step);
        found.ok_or_else(|| self.unset(statement, rank, register))
    }

    #[allow(clippy::too_many_arguments, reason = "a place, and what happens there")]
    fn mix(
        &mut self,
        statement: &Statement,
        chunks: Range<usize>,
        rank: Rank,
        register: Register,
        keep: f64,
        what: &[f64],
        add: f64,
    ) -> Compiled {
        match self.values.mix(chunks, rank, register, self.place.step, keep, what, add) {
            true => Ok(()),
            false => Err(self.unset(statement, rank, register)),
        }
    }

    /// The workers that a worker sends to.
    fn receivers(&self, statement: &Statement, send: &Send, rank: Rank) -> Compiled<Vec<(usize, Rank)>> {
        self.at(rank, None, 0, |place| {
            let mut all: Vec<(usize, Rank)> = Vec::new();
            if !place.holds(statement.when.as_ref())? {
                return Ok(all);
            }
            for (i, to) in send.to.iter().enumerate() {
                let (number, workers) = (place.number(to)?, place.world.workers);
                if number < 0.0 || number.fract() != 0.0 || number >= workers as f64 {
                    let problem = format!(
                        "is {number}: nobody has that number; workers are 0 to {}. `mod workers` goes round, `when` \
                         leaves workers out",
                        workers - 1
                    );
                    return Err(place.fail(to, &problem));
                }
                let peer = number as Rank;
                if peer == rank {
                    if send.list {
                        continue;
                    }
                    let problem = "is the sender itself: leave it out with `when`";
                    return Err(place.fail(to, problem));
                }
                if all.iter().all(|(_, known)| *known != peer) {
                    all.push((i, peer));
                }
            }
            Ok(all)
        })
    }

    fn send(&mut self, statement: &Statement, send: &Send, round: &Round) -> Compiled {
        let phase = self.phases.len() as u32;
        self.phases.push(round.name.clone());
        let workers = self.ops.len();
        let mut out: Vec<(Range<usize>, Vec<Rank>)> = Vec::with_capacity(workers);
        // What comes to each worker: by the place in its sender's list, then by the sender.
        let mut incoming: Vec<Vec<(usize, Rank)>> = vec![Vec::new(); workers];
        for rank in 0..workers {
            let receivers = self.receivers(statement, send, rank)?;
            let chunks = if receivers.is_empty() { 0..0 } else { self.chunks(statement, rank)? };
            receivers.iter().for_each(|(place, peer)| incoming[*peer].push((*place, rank)));
            out.push((chunks, receivers.into_iter().map(|(_, peer)| peer).collect()));
        }
        incoming.iter_mut().for_each(|senders| senders.sort_unstable());
        let mut message = Message {
            statement,
            send,
            phase,
            out,
            incoming,
            bodies: vec![Vec::new(); workers],
            sent: vec![None; workers],
        };
        if !send.relay {
            (0..workers).try_for_each(|rank| self.send_one(&mut message, rank))?;
            (0..workers).try_for_each(|rank| self.receive_all(&mut message, rank))?;
            self.lose(&message);
            return Ok(());
        }
        let mut missing: Vec<usize> = message.incoming.iter().map(Vec::len).collect();
        let mut ready: Vec<Rank> = (0..workers).filter(|rank| missing[*rank] == 0).collect();
        let mut done = 0;
        while let Some(rank) = ready.pop() {
            done += 1;
            self.receive_all(&mut message, rank)?;
            self.send_one(&mut message, rank)?;
            for &peer in &message.out[rank].1 {
                missing[peer] -= 1;
                if missing[peer] == 0 {
                    ready.push(peer);
                }
            }
        }
        if done < workers {
            let stuck: Vec<String> =
                (0..workers).filter(|r| missing[*r] > 0).take(8).map(|r| r.to_string()).collect();
            let problem = format!(
                "a deadlock: workers {} each wait for a message of another one of them before they send their own; \
                 some worker has to begin: leave its sender out with `when`, or send without relay",
                stuck.join(", ")
            );
            return Err(self.place.fail_at(statement.line, "relay", &problem));
        }
        self.lose(&message);
        Ok(())
    }

    /// Senders of messages that are copied have what their receivers have.
    fn lose(&mut self, message: &Message<'_>) {
        for (rank, sent) in message.sent.iter().enumerate() {
            if let Some(at) = sent
                && let RoundOp::Send { register, chunks, copied: true, .. } = &self.ops[rank][*at]
            {
                self.values.lose(chunks.clone(), rank, *register);
            }
        }
    }

    fn send_one(&mut self, message: &mut Message<'_>, rank: Rank) -> Compiled {
        let (chunks, to) = message.out[rank].clone();
        if to.is_empty() {
            return Ok(());
        }
        let Send { register, window, .. } = *message.send;
        let body = self.read(message.statement, chunks.clone(), rank, register)?;
        message.bodies[rank] = self.values.encoded(body);
        message.sent[rank] = Some(self.ops[rank].len());
        let phase = message.phase;
        self.ops[rank].push(RoundOp::Send { to, register, chunks, phase, copied: true, window });
        // What receivers do with it is evaluated where they are, and told to the sender then.
        Ok(())
    }

    fn receive_all(&mut self, message: &mut Message<'_>, rank: Rank) -> Compiled {
        let Send { ref into, ref keep, ref add, window, .. } = *message.send;
        for (_, from) in message.incoming[rank].clone() {
            let chunks = message.out[from].0.clone();
            let (register, keep, add) = self.at(rank, Some(from), chunks.start, |place| {
                let register = match &into.1 {
                    Some((condition, other)) if !place.truth(condition)? => *other,
                    _ => into.0,
                };
                Ok((register, place.weight(keep.as_ref(), 1.0)?, place.weight(add.as_ref(), 1.0)?))
            })?;
            let body = std::mem::take(&mut message.bodies[from]);
            self.mix(message.statement, chunks.clone(), rank, register, keep, &body, add)?;
            message.bodies[from] = body;
            let same = (keep, add) == (0.0, 1.0) && register == message.send.register;
            if let (false, Some(at)) = (same, message.sent[from])
                && let RoundOp::Send { copied, .. } = &mut self.ops[from][at]
            {
                *copied = false;
            }
            let (keep, add, phase) = (keep as f32, add as f32, message.phase);
            let window = window.is_some();
            self.ops[rank].push(RoundOp::Receive { from, register, chunks, phase, keep, add, window });
        }
        Ok(())
    }
}

/// A send statement while it is made by all workers.
struct Message<'a> {
    statement: &'a Statement,
    send: &'a Send,
    phase: u32,
    /// What each worker sends, and to whom.
    out: Vec<(Range<usize>, Vec<Rank>)>,
    incoming: Vec<Vec<(usize, Rank)>>,
    /// What is in each worker's message.
    bodies: Vec<Vec<f64>>,
    /// Where each worker's send stands among its operations.
    sent: Vec<Option<usize>>,
}

/// Whether an operation has to wait for the gradient: it reads or changes it, changes the model, which backward reads, or
/// sends it: the buffer is lent to whatever computes the gradient.
pub fn needs_gradient(op: &RoundOp) -> bool {
    let g = crate::statement::G;
    match *op {
        RoundOp::Send { register, .. } => register == X || register == g,
        RoundOp::Receive { register, .. } => register == X || register == g,
        RoundOp::Set { dst, src, .. } => dst == X || dst == g || src == g,
        RoundOp::Scale { dst, .. } => dst == X || dst == g,
        RoundOp::Swap(a, b, _) => [a, b].iter().any(|register| *register == X || *register == g),
        RoundOp::Update(_) => true,
    }
}
