//! What a file's rounds can say, read but not yet evaluated.

use paceline_plan::Formula;

/// A formula and the line it stands on.
#[derive(Clone, Debug)]
pub struct Expr {
    pub formula: Formula,
    pub line: usize,
    /// The key whose value it is.
    pub key: &'static str,
}

/// A register by its number: 0 is the model, 1 its gradient, scratch registers follow.
pub type Register = usize;

/// The model.
pub const X: Register = 0;
/// Its gradient.
pub const G: Register = 1;

/// Which chunks a statement is about.
#[derive(Clone, Debug)]
pub enum Chunks {
    All,
    One(Expr),
    /// The first one, and how many.
    Some(Expr, Expr),
}

/// A round of the file.
#[derive(Clone, Debug)]
pub struct Round {
    pub name: String,
    pub line: usize,
    /// How often it is made.
    pub repeat: Option<Expr>,
    /// It is made until this holds.
    pub until: Option<Expr>,
    /// Whether it is made at all: the same for every worker.
    pub when: Option<Expr>,
    pub statements: Vec<Statement>,
}

/// One statement of a round.
#[derive(Clone, Debug)]
pub struct Statement {
    pub line: usize,
    /// The workers that it is for.
    pub when: Option<Expr>,
    pub chunks: Chunks,
    pub kind: StatementKind,
}

#[derive(Clone, Debug)]
pub enum StatementKind {
    Send(Box<Send>),
    /// `dst = keep·dst + add·src`.
    Set {
        dst: Register,
        src: Register,
        keep: Option<Expr>,
        add: Option<Expr>,
    },
    Scale {
        dst: Register,
        by: Expr,
    },
    Swap(Register, Register),
    /// The own update of the model with a gradient.
    Update {
        with: Register,
    },
    /// A scalar's new value.
    Let {
        scalar: usize,
        be: Expr,
    },
}

/// A message: who sends which register to whom, and what the receiver does with it.
#[derive(Clone, Debug)]
pub struct Send {
    pub register: Register,
    pub to: Vec<Expr>,
    /// Whether `to` is a list: then its doubles, and the sender itself, are left out.
    pub list: bool,
    /// The register at the receiver: the first where the condition holds there, else the second.
    pub into: (Register, Option<(Expr, Register)>),
    pub keep: Option<Expr>,
    pub add: Option<Expr>,
    /// Whether a worker sends only after it has received.
    pub relay: bool,
    /// Steps whose messages a receiver may leave untaken.
    pub window: Option<u64>,
}

/// A strategy as its file describes it.
#[derive(Clone, Debug)]
pub struct Description {
    /// The file, as mistakes name it.
    pub file: String,
    pub name: String,
    pub about: String,
    /// Names of the registers, `x` and `g` first.
    pub registers: Vec<String>,
    /// Names of the scalars, and what they are at first.
    pub scalars: Vec<(String, f64)>,
    pub chunks: Option<Expr>,
    /// Whether each chunk runs the rounds by itself.
    pub independent: bool,
    /// How gradients are weighted, where the file says so.
    pub gradient: Option<paceline_protocol::GradientScale>,
    /// Names for expressions; each may use those before it.
    pub lets: Vec<(String, Expr)>,
    pub rounds: Vec<Round>,
}

impl Description {
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.rounds.iter().flat_map(|round| &round.statements)
    }

    /// Every expression of the file.
    pub fn expressions(&self) -> Vec<&Expr> {
        let mut all: Vec<&Expr> = self.chunks.iter().collect();
        all.extend(self.lets.iter().map(|(_, expr)| expr));
        for round in &self.rounds {
            all.extend(round.repeat.iter().chain(&round.until).chain(&round.when));
        }
        for statement in self.statements() {
            all.extend(&statement.when);
            match &statement.chunks {
                Chunks::All => {}
                Chunks::One(first) => all.push(first),
                Chunks::Some(first, count) => all.extend([first, count]),
            }
            match &statement.kind {
                StatementKind::Send(send) => {
                    all.extend(send.to.iter().chain(&send.keep).chain(&send.add));
                    all.extend(send.into.1.iter().map(|(expr, _)| expr));
                }
                StatementKind::Set { keep, add, .. } => all.extend(keep.iter().chain(add)),
                StatementKind::Scale { by, .. } => all.push(by),
                StatementKind::Let { be, .. } => all.push(be),
                StatementKind::Swap(..) | StatementKind::Update { .. } => {}
            }
        }
        all
    }

    /// Whether expressions use a name or a function.
    pub fn uses(&self, word: &str) -> bool {
        self.expressions().iter().any(|expr| {
            expr.formula.names().contains(&word) || expr.formula.calls().iter().any(|(name, _)| *name == word)
        })
    }

    /// Whether the model is averaged, and not gradients alone: something but the update touches it.
    pub fn touches_model(&self) -> bool {
        self.statements().any(Statement::touches_model)
    }

    /// Whether scripts, which make their updates by themselves, can be averaged like this: where models are averaged the
    /// update comes first, where gradients are it comes last and takes `g`.
    pub fn takes_scripts(&self) -> Result<(), (usize, &'static str)> {
        let update = |s: &&Statement| matches!(s.kind, StatementKind::Update { .. });
        let Some(own) = self.statements().find(update) else { return Ok(()) };
        if self.touches_model() {
            let first = self.statements().find(|s| s.touches_model() || update(s));
            let begins = first.is_some_and(|s| update(&s) && s.when.is_none());
            let problem =
                "a script updates by itself, before anything is averaged: begin with { update = \"x\" }";
            return if begins { Ok(()) } else { Err((own.line, problem)) };
        }
        let ends =
            self.statements().last().is_some_and(|s| matches!(s.kind, StatementKind::Update { with: G }));
        let problem = "a script takes the averaged gradient and updates by itself: end with \
                       { update = \"x\", with = \"g\" }";
        if ends { Ok(()) } else { Err((own.line, problem)) }
    }
}

impl Statement {
    /// Whether it reads or changes the model, and is not its update.
    fn touches_model(&self) -> bool {
        match &self.kind {
            StatementKind::Send(send) => {
                send.register == X || send.into.0 == X || send.into.1.as_ref().is_some_and(|(_, r)| *r == X)
            }
            StatementKind::Set { dst, src, .. } => *dst == X || *src == X,
            StatementKind::Scale { dst, .. } => *dst == X,
            StatementKind::Swap(a, b) => *a == X || *b == X,
            StatementKind::Update { .. } | StatementKind::Let { .. } => false,
        }
    }
}
