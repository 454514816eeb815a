//! What expressions can name.

use paceline_plan::{Scope, Value};
use paceline_protocol::{Rank, Topology};
use paceline_random::{Purpose, Stream};

use crate::file::StrategyFileError;
use crate::statement::{Description, Expr, Register};

/// Variables, and what they are.
pub const VARIABLES: &[(&str, &str)] = &[
    ("rank", "the worker's number, from 0"),
    ("workers", "number of workers"),
    ("step", "the iteration, from 0"),
    ("k", "how often the round was repeated before"),
    ("round", "rounds made before in this iteration, repeats counted"),
    ("chunk", "the chunk's number, where each runs the rounds by itself"),
    ("chunks", "number of chunks"),
    ("peer", "the sender, in what a receiver does with a message"),
    ("host", "the number of the worker's host"),
    ("hosts", "number of hosts"),
    ("seat", "the worker's number on its host"),
    ("seats", "number of workers on its host"),
    ("most_seats", "most workers of one host"),
];

/// Functions: name, arguments, and how they are written.
pub const FUNCTIONS: &[(&str, usize, &str)] = &[
    ("min", 2, "min(a, b)"),
    ("max", 2, "max(a, b)"),
    ("floor", 1, "floor(a)"),
    ("ceil", 1, "ceil(a)"),
    ("abs", 1, "abs(a)"),
    ("pow", 2, "pow(base, exponent)"),
    ("log2", 1, "log2(a)"),
    ("gcd", 2, "gcd(a, b)"),
    ("random", 2, "random(index, n)"),
    ("uniform", 1, "uniform(index)"),
    ("mass", 1, "mass(register)"),
    ("member", 2, "member(host, seat)"),
    ("seats_on", 1, "seats_on(host)"),
];

/// Where a program runs: how many workers, where they sit, and the seed of its choices.
#[derive(Clone, Debug)]
pub struct World {
    pub workers: usize,
    pub topology: Topology,
    pub stream: Stream,
}

impl World {
    pub fn new(workers: usize, hosts: &[usize], seed: u64) -> Self {
        let topology = match hosts.get(..workers) {
            Some(hosts) if !hosts.is_empty() => Topology::of(hosts),
            _ => Topology::apart(workers),
        };
        Self { workers, topology, stream: Stream::new(seed, Purpose::Protocol) }
    }
}

/// Where an expression is evaluated.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub description: &'a Description,
    pub world: &'a World,
    pub step: u64,
    /// None where it is the same for every worker.
    pub rank: Option<Rank>,
    pub k: usize,
    pub round: usize,
    pub chunk: usize,
    pub chunks: usize,
    pub peer: Option<Rank>,
    /// The worker's scalars.
    pub scalars: &'a [f64],
    /// The mass of the worker's registers.
    pub masses: &'a [f64],
}

impl Scope for Place<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        let topology = &self.world.topology;
        let number = |n: usize| Some(Value::Number(n as f64));
        match name {
            "rank" => number(self.rank?),
            "workers" => number(self.world.workers),
            "step" => Some(Value::Number(self.step as f64)),
            "k" => number(self.k),
            "round" => number(self.round),
            "chunk" => number(self.chunk),
            "chunks" => number(self.chunks),
            "peer" => number(self.peer?),
            "host" => number(topology.seat(self.rank?).0),
            "hosts" => number(topology.hosts()),
            "seat" => number(topology.seat(self.rank?).1),
            "seats" => number(topology.members(topology.seat(self.rank?).0).len()),
            "most_seats" => number(topology.most_per_host()),
            name => self.given(name),
        }
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Option<Value> {
        let topology = &self.world.topology;
        if let ("mass", [Value::Text(register)]) = (name, arguments) {
            let register: Register = self.description.registers.iter().position(|r| r == register)?;
            return self.masses.get(register).map(|mass| Value::Number(*mass));
        }
        let numbers: Vec<f64> = arguments.iter().map(Value::number).collect::<Option<_>>()?;
        let result = match (name, &numbers[..]) {
            ("min", [a, b]) => a.min(*b),
            ("max", [a, b]) => a.max(*b),
            ("floor", [a]) => a.floor(),
            ("ceil", [a]) => a.ceil(),
            ("abs", [a]) => a.abs(),
            ("pow", [a, b]) => a.powf(*b),
            ("log2", [a]) => a.log2(),
            ("gcd", [a, b]) => gcd(whole(*a)?, whole(*b)?) as f64,
            ("random", [index, n]) if *n >= 1.0 => {
                self.world.stream.below(whole(*index)? as u64, whole(*n)? as u64) as f64
            }
            ("uniform", [index]) => self.world.stream.fork(1).unit(whole(*index)? as u64),
            ("member", [host, seat]) => {
                let host = whole(*host).filter(|host| *host < topology.hosts())?;
                *topology.members(host).get(whole(*seat)?)? as f64
            }
            ("seats_on", [host]) => {
                topology.members(whole(*host).filter(|host| *host < topology.hosts())?).len() as f64
            }
            _ => return None,
        };
        result.is_finite().then_some(Value::Number(result))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A whole number from 0.
fn whole(number: f64) -> Option<usize> {
    let fits = number >= 0.0 && number.fract() == 0.0 && number <= 9e15;
    fits.then_some(number as usize)
}

impl Place<'_> {
    /// What the file itself has named.
    fn given(&self, name: &str) -> Option<Value> {
        let Description { registers, scalars, lets, .. } = self.description;
        if let Some((_, expr)) = lets.iter().find(|(known, _)| known == name) {
            return expr.formula.value(self);
        }
        if let Some(i) = scalars.iter().position(|(known, _)| known == name) {
            return self.scalars.get(i).map(|value| Value::Number(*value));
        }
        registers.iter().any(|known| known == name).then(|| Value::Text(name.into()))
    }

    /// A mistake of an expression, with where it was evaluated.
    pub fn fail(&self, expr: &Expr, problem: &str) -> StrategyFileError {
        self.fail_at(expr.line, expr.key, &format!("`{}` {problem}", expr.formula))
    }

    /// A mistake at a line.
    pub fn fail_at(&self, line: usize, key: &str, problem: &str) -> StrategyFileError {
        let rank = self.rank.map_or_else(String::new, |rank| format!(", worker {rank}"));
        let place = format!("with {} workers, in step {}{rank}", self.world.workers, self.step);
        StrategyFileError {
            file: self.description.file.clone(),
            line,
            key: key.into(),
            problem: format!("{problem} ({place})"),
        }
    }

    pub fn number(&self, expr: &Expr) -> Result<f64, StrategyFileError> {
        match expr.formula.value(self) {
            Some(Value::Number(number)) => Ok(number),
            Some(other) => Err(self.fail(expr, &format!("is {other}, and a number is needed"))),
            None => Err(self.unknown(expr)),
        }
    }

    fn unknown(&self, expr: &Expr) -> StrategyFileError {
        let own = |name: &str| ["rank", "host", "seat", "seats"].contains(&name);
        let lets = |name: &str| self.description.lets.iter().find(|(known, _)| known == name);
        fn reaches(expr: &Expr, lets: &dyn Fn(&str) -> Option<Expr>, own: &dyn Fn(&str) -> bool) -> bool {
            let names = expr.formula.names();
            names.iter().any(|name| own(name) || lets(name).is_some_and(|next| reaches(&next, lets, own)))
        }
        let follow = |name: &str| lets(name).map(|(_, expr)| expr.clone());
        let problem = if self.rank.is_none() && reaches(expr, &follow, &own) {
            "depends on the worker, and this must be the same for all of them: use workers, step and k"
        } else if self.peer.is_none() && reaches(expr, &follow, &|name| name == "peer") {
            "names `peer`, which is the sender of a message: only `keep`, `add` and `into` of a send have one"
        } else {
            "has no value here: a division by zero, a number where a condition is needed, or an argument that the \
             function does not take"
        };
        self.fail(expr, problem)
    }

    pub fn truth(&self, expr: &Expr) -> Result<bool, StrategyFileError> {
        match expr.formula.value(self) {
            Some(Value::Flag(flag)) => Ok(flag),
            Some(other) => {
                Err(self.fail(expr, &format!("is {other}, and a condition is needed, e.g. rank == 0")))
            }
            None => Err(self.unknown(expr)),
        }
    }

    pub fn holds(&self, expr: Option<&Expr>) -> Result<bool, StrategyFileError> {
        expr.map_or(Ok(true), |expr| self.truth(expr))
    }

    /// A whole number from 0, or what is wrong.
    pub fn whole(&self, expr: &Expr) -> Result<usize, StrategyFileError> {
        let number = self.number(expr)?;
        whole(number).ok_or_else(|| {
            self.fail(expr, &format!("is {number}, and a whole number of at least 0 is needed"))
        })
    }

    /// A weight: a number, or its default.
    pub fn weight(&self, expr: Option<&Expr>, default: f64) -> Result<f64, StrategyFileError> {
        expr.map_or(Ok(default), |expr| self.number(expr))
    }
}
