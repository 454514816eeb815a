//! The file: TOML to a description, and mistakes with their lines.

use std::collections::BTreeMap;

use paceline_plan::{Formula, Value, nearest};
use paceline_protocol::GradientScale;
use serde::Deserialize;
use toml::Spanned;

use crate::scope::{FUNCTIONS, VARIABLES};
use crate::statement::{Chunks, Description, Expr, G, Register, Round, Send, Statement, StatementKind, X};

/// A mistake in a strategy file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}{}{problem}", if key.is_empty() { "" } else { ": " })]
pub struct StrategyFileError {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The key at fault, e.g. `to`.
    pub key: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Longest strategy file, in bytes.
const LONGEST: usize = 1 << 20;
/// Most names for expressions, and what one of them may unfold to: each is evaluated for every worker.
const MOST_LETS: usize = 64;
const LONGEST_UNFOLDED: usize = 5_000;
/// Most scratch registers: each is as long as the model.
const MOST_REGISTERS: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    name: Option<Spanned<String>>,
    #[serde(default)]
    about: String,
    #[serde(default)]
    registers: Vec<Spanned<String>>,
    #[serde(default)]
    scalars: toml::map::Map<String, toml::Value>,
    chunks: Option<Spanned<Value>>,
    #[serde(default)]
    independent: bool,
    gradient: Option<Spanned<String>>,
    #[serde(default, rename = "let")]
    lets: Option<Spanned<BTreeMap<String, Spanned<Value>>>>,
    #[serde(default)]
    round: Vec<Spanned<RawRound>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRound {
    name: Option<String>,
    repeat: Option<Spanned<Value>>,
    until: Option<Spanned<Value>>,
    when: Option<Spanned<Value>>,
    #[serde(default, rename = "do")]
    statements: Vec<Spanned<RawStatement>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStatement {
    send: Option<Spanned<String>>,
    to: Option<Spanned<Receivers>>,
    into: Option<Spanned<String>>,
    relay: Option<Spanned<bool>>,
    window: Option<Spanned<i64>>,
    set: Option<Spanned<String>>,
    copy: Option<Spanned<String>>,
    of: Option<Spanned<String>>,
    scale: Option<Spanned<String>>,
    by: Option<Spanned<Value>>,
    swap: Option<Spanned<Vec<String>>>,
    update: Option<Spanned<String>>,
    with: Option<Spanned<String>>,
    #[serde(rename = "let")]
    scalar: Option<Spanned<String>>,
    be: Option<Spanned<Value>>,
    keep: Option<Spanned<Value>>,
    add: Option<Spanned<Value>>,
    when: Option<Spanned<Value>>,
    chunk: Option<Spanned<Value>>,
    first: Option<Spanned<Value>>,
    count: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Receivers {
    One(Value),
    List(Vec<Value>),
}

/// Reads a file.
pub fn read(file: &str, text: &str) -> Result<Description, StrategyFileError> {
    let reader = Reader {
        file,
        text,
        registers: Vec::new(),
        scalars: Vec::new(),
        lets: Vec::new(),
        unfolded: Vec::new(),
    };
    if text.len() > LONGEST {
        return Err(reader.fail(1, "", format!("a strategy file has at most {LONGEST} bytes")));
    }
    let raw = toml::from_str::<RawFile>(text).map_err(|error| {
        let line = error.span().map_or(1, |span| reader.line(span.start));
        let problem = error.message().trim().replace('\n', " ");
        reader.fail(line, "", problem)
    })?;
    reader.description(raw)
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    registers: Vec<String>,
    scalars: Vec<(String, f64)>,
    lets: Vec<(String, Expr)>,
    /// To how many words each of these unfolds.
    unfolded: Vec<usize>,
}

type Read<T> = Result<T, StrategyFileError>;

impl Reader<'_> {
    fn fail(&self, line: usize, key: &str, problem: impl Into<String>) -> StrategyFileError {
        StrategyFileError { file: self.file.into(), line, key: key.into(), problem: problem.into() }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|b| **b == b'\n').count()
    }

    fn description(mut self, raw: RawFile) -> Read<Description> {
        let Some(name) = raw.name else {
            return Err(self.fail(1, "name", "a strategy file begins with its name, e.g. name = \"mine\""));
        };
        if name.get_ref().trim().is_empty() {
            return Err(self.fail(self.line(name.span().start), "name", "must not be empty"));
        }
        self.registers = vec!["x".into(), "g".into()];
        if raw.registers.len() > MOST_REGISTERS {
            let line = self.line(raw.registers[MOST_REGISTERS].span().start);
            let problem = format!("at most {MOST_REGISTERS}: each is as long as the model");
            return Err(self.fail(line, "registers", problem));
        }
        for register in &raw.registers {
            let line = self.line(register.span().start);
            self.new_name(register.get_ref(), line, "registers")?;
            self.registers.push(register.get_ref().clone());
        }
        for (name, value) in &raw.scalars {
            let line = self.line_of_key(name);
            self.new_name(name, line, "scalars")?;
            let value = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
            let Some(value) = value.filter(|v| v.is_finite()) else {
                let problem = format!("`{name}` needs the number that it is at first, e.g. {{ {name} = 1 }}");
                return Err(self.fail(line, "scalars", problem));
            };
            self.scalars.push((name.clone(), value));
        }
        let mut lets: Vec<_> = raw.lets.into_iter().flat_map(Spanned::into_inner).collect();
        // In the order of the file: each may use those before it.
        lets.sort_by_key(|(_, value)| value.span().start);
        for (name, value) in lets {
            let line = self.line(value.span().start);
            self.new_name(&name, line, "let")?;
            if self.lets.len() == MOST_LETS {
                return Err(self.fail(line, "let", format!("at most {MOST_LETS} names are possible")));
            }
            let expr = self.expr(value, "let")?;
            self.unfolded.push(self.unfolds_to(&expr.formula));
            self.lets.push((name, expr));
        }
        let chunks = raw.chunks.map(|chunks| self.expr(chunks, "chunks")).transpose()?;
        let gradient = raw.gradient.map(|text| self.gradient(&text)).transpose()?;
        if raw.round.is_empty() {
            let problem = "there are no rounds: add a [[round]] with what is done in it";
            return Err(self.fail(1, "round", problem));
        }
        let rounds = raw.round.into_iter().enumerate();
        let rounds = rounds.map(|(i, round)| self.round(i, round)).collect::<Read<Vec<_>>>()?;
        Ok(Description {
            file: self.file.into(),
            name: name.into_inner(),
            about: raw.about,
            registers: self.registers,
            scalars: self.scalars,
            chunks,
            independent: raw.independent,
            gradient,
            lets: self.lets,
            rounds,
        })
    }

    /// The line of a key that has no span of its own.
    fn line_of_key(&self, name: &str) -> usize {
        let found = self.text.lines().position(|line| line.contains("scalars") && line.contains(name));
        found.map_or(1, |line| line + 1)
    }

    fn gradient(&self, text: &Spanned<String>) -> Read<GradientScale> {
        match text.get_ref().as_str() {
            "part" => Ok(GradientScale::Part),
            "own" => Ok(GradientScale::Own),
            "even" => Ok(GradientScale::Even),
            other => {
                let problem = format!(
                    "`{other}` is no weighting of gradients; possible: part (they add up to the mean of the whole \
                     batch), even (their mean is that mean), own (the mean over the worker's samples)"
                );
                Err(self.fail(self.line(text.span().start), "gradient", problem))
            }
        }
    }

    /// Refuses a name that cannot be, or that means something already.
    fn new_name(&self, name: &str, line: usize, key: &str) -> Read<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let letter = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
        let words = ["and", "or", "not", "true", "false", "mod", "if", "else"];
        if !letter || !name.chars().all(plain) || words.contains(&name) {
            let problem = format!("`{name}` is no name: letters, digits and _ are possible, a letter first");
            return Err(self.fail(line, key, problem));
        }
        let known = VARIABLES.iter().map(|(name, _)| *name).chain(FUNCTIONS.iter().map(|f| f.0));
        let mut known = known.chain(self.names());
        if known.any(|known| known == name) {
            let problem = format!("`{name}` has a meaning already: choose another name");
            return Err(self.fail(line, key, problem));
        }
        Ok(())
    }

    /// The names that the file has given so far.
    fn names(&self) -> impl Iterator<Item = &str> {
        let registers = self.registers.iter().map(String::as_str);
        let scalars = self.scalars.iter().map(|(name, _)| name.as_str());
        registers.chain(scalars).chain(self.lets.iter().map(|(name, _)| name.as_str()))
    }

    fn expr(&self, value: Spanned<Value>, key: &'static str) -> Read<Expr> {
        let line = self.line(value.span().start);
        let formula = match value.into_inner() {
            Value::Text(text) => {
                Formula::parse(&text).map_err(|error| self.fail(line, key, error.to_string()))?
            }
            value => Formula::constant(value),
        };
        for name in formula.names() {
            let known = || VARIABLES.iter().map(|(name, _)| *name).chain(self.names());
            if !known().any(|known| known == name) {
                let near = nearest(name, known()).map(|near| format!("; did you mean `{near}`?"));
                let all: Vec<&str> = known().collect();
                let hint = near.unwrap_or_else(|| format!("; known: {}", all.join(", ")));
                return Err(self.fail(line, key, format!("nothing is called `{name}`{hint}")));
            }
        }
        for (name, arguments) in formula.calls() {
            let Some((_, wanted, form)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
                let all: Vec<&str> = FUNCTIONS.iter().map(|f| f.2).collect();
                let problem = format!("there is no function `{name}`; there are {}", all.join(", "));
                return Err(self.fail(line, key, problem));
            };
            if arguments != *wanted {
                let problem = format!("`{name}` takes {wanted} arguments, as in {form}, not {arguments}");
                return Err(self.fail(line, key, problem));
            }
        }
        if self.unfolds_to(&formula) > LONGEST_UNFOLDED {
            let problem = format!(
                "unfolds to more than {LONGEST_UNFOLDED} words, with what its names stand for: name less, or less often"
            );
            return Err(self.fail(line, key, problem));
        }
        Ok(Expr { formula, line, key })
    }

    /// The words of a formula, where names are what they stand for.
    fn unfolds_to(&self, formula: &Formula) -> usize {
        let text = formula.to_string();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let one = |word: &str| {
            let known = self.lets.iter().position(|(name, _)| name == word);
            known.map_or(1, |i| self.unfolded[i])
        };
        words.map(one).fold(1, usize::saturating_add)
    }

    fn optional(&self, value: Option<Spanned<Value>>, key: &'static str) -> Read<Option<Expr>> {
        value.map(|value| self.expr(value, key)).transpose()
    }

    fn register(&self, name: &str, line: usize, key: &str) -> Read<Register> {
        let name = name.trim();
        self.registers.iter().position(|known| known == name).ok_or_else(|| {
            let all = self.registers.join(", ");
            let problem = format!(
                "there is no register `{name}`; there are {all} (scratch registers are listed in `registers`)"
            );
            self.fail(line, key, problem)
        })
    }

    fn named(&self, name: &Spanned<String>, key: &str) -> Read<Register> {
        self.register(name.get_ref(), self.line(name.span().start), key)
    }

    /// `REGISTER`, or `REGISTER if CONDITION else REGISTER`.
    fn receiving_register(&self, text: &Spanned<String>) -> Read<(Register, Option<(Expr, Register)>)> {
        let line = self.line(text.span().start);
        let Some((first, rest)) = text.get_ref().split_once(" if ") else {
            return Ok((self.register(text.get_ref(), line, "into")?, None));
        };
        let Some((condition, second)) = rest.rsplit_once(" else ") else {
            let problem = "`else` is missing: write `x if CONDITION else sum`";
            return Err(self.fail(line, "into", problem));
        };
        let condition = Spanned::new(text.span(), Value::Text(condition.into()));
        let otherwise = self.register(second, line, "into")?;
        Ok((self.register(first, line, "into")?, Some((self.expr(condition, "into")?, otherwise))))
    }

    fn round(&self, number: usize, raw: Spanned<RawRound>) -> Read<Round> {
        let line = self.line(raw.span().start);
        let raw = raw.into_inner();
        if let (Some(_), Some(until)) = (&raw.repeat, &raw.until) {
            let line = self.line(until.span().start);
            return Err(self.fail(line, "until", "a round has `repeat` or `until`, not both"));
        }
        if raw.statements.is_empty() {
            let problem =
                "the round does nothing: `do` is a list of statements, e.g. do = [{ update = \"x\" }]";
            return Err(self.fail(line, "do", problem));
        }
        Ok(Round {
            name: raw.name.unwrap_or_else(|| format!("round {}", number + 1)),
            line,
            repeat: self.optional(raw.repeat, "repeat")?,
            until: self.optional(raw.until, "until")?,
            when: self.optional(raw.when, "when")?,
            statements: raw.statements.into_iter().map(|s| self.statement(s)).collect::<Read<_>>()?,
        })
    }

    fn statement(&self, raw: Spanned<RawStatement>) -> Read<Statement> {
        let line = self.line(raw.span().start);
        let mut raw = raw.into_inner();
        self.check_keys(&raw, line)?;
        let when = self.optional(raw.when.take(), "when")?;
        let chunks = match (raw.chunk.take(), raw.first.take(), raw.count.take()) {
            (None, None, None) => Chunks::All,
            (Some(one), None, None) => Chunks::One(self.expr(one, "chunk")?),
            (None, Some(first), Some(count)) => {
                Chunks::Some(self.expr(first, "first")?, self.expr(count, "count")?)
            }
            _ => {
                let problem = "give `chunk`, or `first` and `count` together, or none of them for all chunks";
                return Err(self.fail(line, "chunk", problem));
            }
        };
        Ok(Statement { line, when, chunks, kind: self.kind(raw, line)? })
    }

    fn kind(&self, raw: RawStatement, line: usize) -> Read<StatementKind> {
        let missing = |key: &str, what: &str| self.fail(line, key, format!("is missing: {what}"));
        if let Some(register) = raw.send {
            let (keep, add) = (self.optional(raw.keep, "keep")?, self.optional(raw.add, "add")?);
            let receivers = raw.to.ok_or_else(|| missing("to", "who receives it, e.g. to = \"rank + 1\""))?;
            let span = receivers.span();
            let (to, list) = match receivers.into_inner() {
                Receivers::One(one) => (vec![one], false),
                Receivers::List(all) => (all, true),
            };
            let to = to.into_iter().map(|to| self.expr(Spanned::new(span.clone(), to), "to"));
            let own = self.named(&register, "send")?;
            let window = match raw.window {
                None => None,
                Some(window) if *window.get_ref() >= 1 => Some(*window.get_ref() as u64),
                Some(window) => {
                    let problem = "a number of steps from 1: so many may be untaken by the receiver";
                    return Err(self.fail(self.line(window.span().start), "window", problem));
                }
            };
            return Ok(StatementKind::Send(Box::new(Send {
                register: own,
                to: to.collect::<Read<_>>()?,
                list,
                into: raw.into.map_or(Ok((own, None)), |into| self.receiving_register(&into))?,
                keep,
                add,
                relay: raw.relay.is_some_and(Spanned::into_inner),
                window,
            })));
        }
        if let Some(dst) = raw.set.as_ref().or(raw.copy.as_ref()) {
            let key = if raw.set.is_some() { "set" } else { "copy" };
            let src = raw.of.ok_or_else(|| missing("of", "the register that is read, e.g. of = \"x\""))?;
            let (dst, src) = (self.named(dst, key)?, self.named(&src, "of")?);
            if dst == src {
                let problem = "a register is set from another one; `scale` multiplies one by a number";
                return Err(self.fail(line, key, problem));
            }
            let (keep, add) = (self.optional(raw.keep, "keep")?, self.optional(raw.add, "add")?);
            return Ok(StatementKind::Set { dst, src, keep, add });
        }
        if let Some(dst) = raw.scale {
            let by = raw.by.ok_or_else(|| missing("by", "the factor, e.g. by = \"1 / workers\""))?;
            return Ok(StatementKind::Scale { dst: self.named(&dst, "scale")?, by: self.expr(by, "by")? });
        }
        if let Some(pair) = raw.swap {
            let line = self.line(pair.span().start);
            let [a, b] = &pair.get_ref()[..] else {
                return Err(self.fail(
                    line,
                    "swap",
                    "two registers are needed, e.g. swap = [\"old\", \"new\"]",
                ));
            };
            let (a, b) = (self.register(a, line, "swap")?, self.register(b, line, "swap")?);
            if a == b {
                return Err(self.fail(line, "swap", "two different registers are needed"));
            }
            return Ok(StatementKind::Swap(a, b));
        }
        if let Some(model) = raw.update {
            if self.named(&model, "update")? != X {
                let line = self.line(model.span().start);
                return Err(self.fail(line, "update", "only the model is updated: update = \"x\""));
            }
            let with = raw.with.map_or(Ok(G), |with| self.named(&with, "with"))?;
            if with == X {
                return Err(self.fail(line, "with", "the model is updated with a gradient: with = \"g\""));
            }
            return Ok(StatementKind::Update { with });
        }
        let Some(scalar) = raw.scalar else { unreachable!("a statement has one of its keys") };
        let name = scalar.get_ref();
        let number = self.scalars.iter().position(|(known, _)| known == name).ok_or_else(|| {
            let problem = format!("there is no scalar `{name}`: list it, e.g. scalars = {{ {name} = 1 }}");
            self.fail(line, "let", problem)
        })?;
        let be = raw.be.ok_or_else(|| missing("be", "the scalar's new value"))?;
        Ok(StatementKind::Let { scalar: number, be: self.expr(be, "be")? })
    }

    /// A statement is one thing, and has the keys that belong to it.
    fn check_keys(&self, raw: &RawStatement, line: usize) -> Read<()> {
        let given: Vec<&str> = [
            ("send", raw.send.is_some()),
            ("set", raw.set.is_some()),
            ("copy", raw.copy.is_some()),
            ("scale", raw.scale.is_some()),
            ("swap", raw.swap.is_some()),
            ("update", raw.update.is_some()),
            ("let", raw.scalar.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
        .collect();
        let [kind] = given[..] else {
            let problem = match given.len() {
                0 => "nothing is done: a statement has one of send, set, copy, scale, swap, update, let"
                    .to_owned(),
                _ => format!("a statement is one thing, not {}: make it several", given.join(" and ")),
            };
            return Err(self.fail(line, given.first().unwrap_or(&"do"), problem));
        };
        let chunks = ["when", "chunk", "first", "count"];
        let allowed: &[&str] = match kind {
            "send" => &["to", "into", "relay", "window", "keep", "add"],
            "set" => &["of", "keep", "add"],
            "copy" => &["of"],
            "scale" => &["by"],
            "update" => &["with"],
            "let" => &["be"],
            _ => &[],
        };
        let others = [
            ("to", raw.to.is_some()),
            ("into", raw.into.is_some()),
            ("relay", raw.relay.is_some()),
            ("window", raw.window.is_some()),
            ("of", raw.of.is_some()),
            ("by", raw.by.is_some()),
            ("with", raw.with.is_some()),
            ("be", raw.be.is_some()),
            ("keep", raw.keep.is_some()),
            ("add", raw.add.is_some()),
            ("chunk", raw.chunk.is_some()),
            ("first", raw.first.is_some()),
            ("count", raw.count.is_some()),
        ];
        let whole = ["update", "let"].contains(&kind);
        for (key, given) in others {
            let fits = allowed.contains(&key) || !whole && chunks.contains(&key);
            if given && !fits {
                let mut own: Vec<&str> = allowed.to_vec();
                own.extend(if whole { &chunks[..1] } else { &chunks[..] });
                let problem = format!("does not belong to `{kind}`, which has {}", own.join(", "));
                return Err(self.fail(line, key, problem));
            }
        }
        Ok(())
    }
}
