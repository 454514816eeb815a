//! Conditions that users write: `servers <= workers`, `sync = "ssp" and workers > 1`, `accuracy >= 0.85`.
//!
//! Numbers with `+ - * /`, text in quotes, `true` and `false`; comparisons `= == != < <= > >=`; `and`, `or`,
//! `not`, parentheses. A name may hold dashes (`lr-scaling`), so a minus has spaces around it; any other name
//! goes into backquotes. A name without a value (an axis that is not active, a figure not yet measured)
//! makes a comparison *unknown*, and a condition holds unless it is false. Formulas (of strategy files) have a little
//! more.

mod parser;

use std::fmt;

use crate::value::Value;
use parser::parse;

/// A condition, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    root: Node,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Constant(Value),
    Name(String),
    Call(String, Vec<Node>),
    /// The first where the second holds, else the third.
    Choice(Box<Node>, Box<Node>, Box<Node>),
    Arithmetic(char, Box<Node>, Box<Node>),
    Compare(Sign, Box<Node>, Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sign {
    Equal,
    Differs,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// A condition that cannot be read: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}, at column {column} of `{text}`")]
pub struct ConditionError {
    /// The condition as it was written.
    pub text: String,
    /// Column, counted from 1.
    pub column: usize,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Where names and functions get their values.
pub trait Scope {
    /// The value of a name.
    fn value(&self, name: &str) -> Option<Value>;

    /// The value of a function.
    fn call(&self, _name: &str, _arguments: &[Value]) -> Option<Value> {
        None
    }
}

impl<F: Fn(&str) -> Option<Value>> Scope for F {
    fn value(&self, name: &str) -> Option<Value> {
        self(name)
    }
}

/// Where the names of a condition get their values.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// A formula: what conditions are made of, and `mod`, functions with their arguments in parentheses, and
/// `A if CONDITION else B`.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    text: String,
    root: Node,
}

impl Formula {
    /// Reads a formula.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        Ok(Self { text: text.into(), root: parse(text, true)? })
    }

    /// The same value everywhere.
    pub fn constant(value: Value) -> Self {
        Self { text: value.to_string(), root: Node::Constant(value) }
    }

    /// The names in it, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.names(&mut names);
        names
    }

    /// The functions in it: each use with its number of arguments.
    pub fn calls(&self) -> Vec<(&str, usize)> {
        let mut calls = Vec::new();
        self.root.calls(&mut calls);
        calls
    }

    /// Its value; none where a name or a function has none, or kinds do not fit.
    pub fn value(&self, scope: &dyn Scope) -> Option<Value> {
        self.root.value(scope)
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// Reads a condition.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        let fail = |(column, problem): (usize, String)| ConditionError { text: text.into(), column, problem };
        let root = parse(text, false)?;
        if !root.is_condition() {
            let problem = "a comparison is needed, e.g. `servers <= workers`".into();
            return Err(fail((1, problem)));
        }
        Ok(Self { text: text.into(), root })
    }

    /// The names in it, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.names(&mut names);
        names
    }

    /// The same with other names.
    pub fn renamed(mut self, rename: &dyn Fn(&str) -> String) -> Self {
        self.root.rename(rename);
        self
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        let text = format!("({}) and ({})", self.text, other.text);
        Self { text, root: Node::And(Box::new(self.root), Box::new(other.root)) }
    }

    /// Whether it holds; `None` where a value is missing.
    pub fn truth(&self, lookup: Lookup<'_>) -> Option<bool> {
        self.root.truth(&lookup)
    }

    /// Whether it holds or could.
    pub fn allows(&self, lookup: Lookup<'_>) -> bool {
        self.truth(lookup) != Some(false)
    }

    /// By how much it holds: 0 or more if it does, below 0 if not; `None` where a value is missing. Of text,
    /// 1 and -1.
    pub fn margin(&self, lookup: Lookup<'_>) -> Option<f64> {
        self.root.margin(&lookup)
    }

    /// Compares values of one kind only; the first comparison of different kinds, in words.
    pub fn mixed_kinds(&self, lookup: Lookup<'_>) -> Option<String> {
        self.root.mixed_kinds(&lookup)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Node {
    fn is_condition(&self) -> bool {
        match self {
            Node::Compare(..) | Node::And(..) | Node::Or(..) | Node::Not(_) | Node::Name(_) => true,
            Node::Constant(value) => matches!(value, Value::Flag(_)),
            Node::Arithmetic(..) | Node::Call(..) | Node::Choice(..) => false,
        }
    }

    fn names<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Node::Constant(_) => {}
            Node::Name(name) if names.contains(&name.as_str()) => {}
            Node::Name(name) => names.push(name),
            Node::Not(a) => a.names(names),
            Node::Call(_, arguments) => arguments.iter().for_each(|argument| argument.names(names)),
            Node::Choice(a, b, c) => [a, b, c].into_iter().for_each(|node| node.names(names)),
            Node::Arithmetic(_, a, b) | Node::Compare(_, a, b) | Node::And(a, b) | Node::Or(a, b) => {
                a.names(names);
                b.names(names);
            }
        }
    }

    fn calls<'a>(&'a self, calls: &mut Vec<(&'a str, usize)>) {
        match self {
            Node::Constant(_) | Node::Name(_) => {}
            Node::Not(a) => a.calls(calls),
            Node::Call(name, arguments) => {
                calls.push((name, arguments.len()));
                arguments.iter().for_each(|argument| argument.calls(calls));
            }
            Node::Choice(a, b, c) => [a, b, c].into_iter().for_each(|node| node.calls(calls)),
            Node::Arithmetic(_, a, b) | Node::Compare(_, a, b) | Node::And(a, b) | Node::Or(a, b) => {
                a.calls(calls);
                b.calls(calls);
            }
        }
    }

    fn rename(&mut self, rename: &dyn Fn(&str) -> String) {
        match self {
            Node::Constant(_) => {}
            Node::Name(name) => *name = rename(name),
            Node::Not(a) => a.rename(rename),
            Node::Call(_, arguments) => arguments.iter_mut().for_each(|argument| argument.rename(rename)),
            Node::Choice(a, b, c) => [a, b, c].into_iter().for_each(|node| node.rename(rename)),
            Node::Arithmetic(_, a, b) | Node::Compare(_, a, b) | Node::And(a, b) | Node::Or(a, b) => {
                a.rename(rename);
                b.rename(rename);
            }
        }
    }

    fn value(&self, lookup: &dyn Scope) -> Option<Value> {
        match self {
            Node::Constant(value) => Some(value.clone()),
            Node::Name(name) => lookup.value(name),
            Node::Call(name, arguments) => {
                let arguments = arguments.iter().map(|argument| argument.value(lookup));
                lookup.call(name, &arguments.collect::<Option<Vec<_>>>()?)
            }
            Node::Choice(a, condition, b) => {
                if condition.truth(lookup)? {
                    a.value(lookup)
                } else {
                    b.value(lookup)
                }
            }
            Node::Arithmetic(sign, a, b) => {
                let (a, b) = (a.value(lookup)?.number()?, b.value(lookup)?.number()?);
                let result = match sign {
                    '+' => a + b,
                    '-' => a - b,
                    '*' => a * b,
                    '%' => a.rem_euclid(b),
                    _ => a / b,
                };
                result.is_finite().then_some(Value::Number(result))
            }
            _ => self.truth(lookup).map(Value::Flag),
        }
    }

    fn truth(&self, lookup: &dyn Scope) -> Option<bool> {
        match self {
            Node::And(a, b) => match (a.truth(lookup), b.truth(lookup)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (a, b) => Some(a? && b?),
            },
            Node::Or(a, b) => match (a.truth(lookup), b.truth(lookup)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (a, b) => Some(a? || b?),
            },
            Node::Not(a) => a.truth(lookup).map(|truth| !truth),
            Node::Compare(sign, a, b) => compare(*sign, &a.value(lookup)?, &b.value(lookup)?),
            _ => match self.value(lookup)? {
                Value::Flag(flag) => Some(flag),
                _ => None,
            },
        }
    }

    fn margin(&self, lookup: &dyn Scope) -> Option<f64> {
        match self {
            Node::And(a, b) => Some(a.margin(lookup)?.min(b.margin(lookup)?)),
            Node::Or(a, b) => Some(a.margin(lookup)?.max(b.margin(lookup)?)),
            Node::Compare(sign, a, b) => {
                if let (Some(a), Some(b)) = (a.value(lookup)?.number(), b.value(lookup)?.number())
                    && !matches!(sign, Sign::Equal | Sign::Differs)
                {
                    let margin = if matches!(sign, Sign::More | Sign::AtLeast) { a - b } else { b - a };
                    // Equality does not satisfy a strict sign.
                    let strict = matches!(sign, Sign::More | Sign::Less);
                    return Some(if strict && margin == 0.0 { -f64::MIN_POSITIVE } else { margin });
                }
                self.truth(lookup).map(|truth| if truth { 1.0 } else { -1.0 })
            }
            _ => self.truth(lookup).map(|truth| if truth { 1.0 } else { -1.0 }),
        }
    }

    fn mixed_kinds(&self, lookup: &dyn Scope) -> Option<String> {
        match self {
            Node::And(a, b) | Node::Or(a, b) => a.mixed_kinds(lookup).or_else(|| b.mixed_kinds(lookup)),
            Node::Not(a) => a.mixed_kinds(lookup),
            Node::Compare(sign, a, b) => {
                let (a, b) = (a.value(lookup)?, b.value(lookup)?);
                compare(*sign, &a, &b).is_none().then(|| {
                    format!("`{a}` ({}) cannot be compared with `{b}` ({}) that way", a.kind(), b.kind())
                })
            }
            _ => None,
        }
    }
}

fn compare(sign: Sign, a: &Value, b: &Value) -> Option<bool> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Some(match sign {
            Sign::Equal => a == b,
            Sign::Differs => a != b,
            Sign::Less => a < b,
            Sign::AtMost => a <= b,
            Sign::More => a > b,
            Sign::AtLeast => a >= b,
        }),
        // A flag that is left out (`false`) has none of the values that it could have.
        (Value::Text(_), Value::Text(_))
        | (Value::Flag(_), Value::Flag(_))
        | (Value::Flag(false), _)
        | (_, Value::Flag(false)) => match sign {
            Sign::Equal => Some(a == b),
            Sign::Differs => Some(a != b),
            _ => None,
        },
        _ => None,
    }
}
