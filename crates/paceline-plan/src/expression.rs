//! Conditions that users write: `servers <= workers`, `sync = "ssp" and workers > 1`, `accuracy >= 0.85`.
//!
//! Numbers with `+ - * /`, text in quotes, `true` and `false`; comparisons `= == != < <= > >=`; `and`, `or`,
//! `not`, parentheses. A name may hold dashes (`lr-scaling`), so a minus has spaces around it; any other name
//! goes into backquotes. A name without a value (an axis that is not active, a figure not yet measured)
//! makes a comparison *unknown*, and a condition holds unless it is false. Formulas (of strategy files) have a little
//! more.

use std::fmt;

use crate::value::Value;

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

/// Characters of a condition: parentheses nest, and the stack is finite.
const LONGEST: usize = 1000;

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

fn parse(text: &str, formula: bool) -> Result<Node, ConditionError> {
    let fail = |(column, problem): (usize, String)| ConditionError { text: text.into(), column, problem };
    if text.chars().count() > LONGEST {
        return Err(fail((1, format!("at most {LONGEST} characters are possible"))));
    }
    let tokens = tokens(text, formula).map_err(fail)?;
    let mut parser = Parser { tokens, at: 0, end: text.chars().count() + 1, formula };
    let root = parser.choice().map_err(fail)?;
    if let Some((column, token)) = parser.tokens.get(parser.at) {
        let whole = if formula { "formula" } else { "condition" };
        let problem = format!("nothing is expected after a whole {whole}, found {token}");
        return Err(fail((*column, problem)));
    }
    Ok(root)
}

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

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Value(Value),
    Name(String),
    Word(&'static str),
    Sign(Sign),
    Mark(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Value(Value::Text(text)) => write!(f, "\"{text}\""),
            Token::Value(value) => write!(f, "`{value}`"),
            Token::Name(name) => write!(f, "`{name}`"),
            Token::Word(word) => write!(f, "`{word}`"),
            Token::Sign(_) => f.write_str("a comparison"),
            Token::Mark('%') => f.write_str("`mod`"),
            Token::Mark(mark) => write!(f, "`{mark}`"),
        }
    }
}

type Problem = (usize, String);

fn tokens(text: &str, formula: bool) -> Result<Vec<(usize, Token)>, Problem> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut i) = (Vec::new(), 0);
    while let Some(&c) = chars.get(i) {
        let column = i + 1;
        let next = chars.get(i + 1).copied();
        let (token, length) = match c {
            ' ' | '\t' => {
                i += 1;
                continue;
            }
            '(' | ')' | '+' | '*' | '/' => (Token::Mark(c), 1),
            ',' if formula => (Token::Mark(c), 1),
            '<' | '>' | '=' | '!' => {
                let sign = match (c, next) {
                    ('<', Some('=')) => (Sign::AtMost, 2),
                    ('>', Some('=')) => (Sign::AtLeast, 2),
                    ('=', Some('=')) => (Sign::Equal, 2),
                    ('!', Some('=')) => (Sign::Differs, 2),
                    ('<', _) => (Sign::Less, 1),
                    ('>', _) => (Sign::More, 1),
                    ('=', _) => (Sign::Equal, 1),
                    _ => return Err((column, "`!` alone means nothing: write `not` or `!=`".into())),
                };
                (Token::Sign(sign.0), sign.1)
            }
            '≤' => (Token::Sign(Sign::AtMost), 1),
            '≥' => (Token::Sign(Sign::AtLeast), 1),
            '≠' => (Token::Sign(Sign::Differs), 1),
            '"' | '\'' | '`' => {
                let Some(length) = chars[i + 1..].iter().position(|d| *d == c) else {
                    return Err((column, format!("this {c} has no partner")));
                };
                let inner: String = chars[i + 1..i + 1 + length].iter().collect();
                let token = if c == '`' { Token::Name(inner) } else { Token::Value(Value::Text(inner)) };
                (token, length + 2)
            }
            '0'..='9' | '.' => {
                let exponent = |j: usize| matches!(chars[j - 1], 'e' | 'E') && matches!(chars[j], '+' | '-');
                let length = (i + 1..chars.len())
                    .find(|&j| !(chars[j].is_ascii_alphanumeric() || chars[j] == '.' || exponent(j)))
                    .unwrap_or(chars.len())
                    - i;
                let word: String = chars[i..i + length].iter().collect();
                let number = word.parse::<f64>().ok().filter(|n| n.is_finite());
                let number = number.ok_or((column, format!("`{word}` is no number")))?;
                (Token::Value(Value::Number(number)), length)
            }
            '-' => (Token::Mark('-'), 1),
            c if c.is_alphabetic() || c == '_' => {
                let inside = |j: usize| {
                    let c = chars[j];
                    let dash = c == '-' && chars.get(j + 1).is_some_and(|d| d.is_alphabetic());
                    c.is_alphanumeric() || c == '_' || c == '.' || dash
                };
                let length = (i..chars.len()).find(|&j| !inside(j)).unwrap_or(chars.len()) - i;
                let word: String = chars[i..i + length].iter().collect();
                let token = match word.as_str() {
                    "and" => Token::Word("and"),
                    "or" => Token::Word("or"),
                    "not" => Token::Word("not"),
                    "true" => Token::Value(Value::Flag(true)),
                    "false" => Token::Value(Value::Flag(false)),
                    "mod" if formula => Token::Mark('%'),
                    "if" if formula => Token::Word("if"),
                    "else" if formula => Token::Word("else"),
                    _ => Token::Name(word),
                };
                (token, length)
            }
            '&' | '|' => {
                let word = if c == '&' { "and" } else { "or" };
                return Err((column, format!("`{c}` is not part of conditions: write `{word}`")));
            }
            _ => return Err((column, format!("`{c}` is not part of conditions"))),
        };
        found.push((column, token));
        i += length;
    }
    Ok(found)
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    end: usize,
    /// Whether functions and choices are read.
    formula: bool,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn take(&mut self, wanted: &Token) -> bool {
        let there = self.peek() == Some(wanted);
        self.at += usize::from(there);
        there
    }

    fn choice(&mut self) -> Result<Node, Problem> {
        let first = self.or()?;
        if !self.take(&Token::Word("if")) {
            return Ok(first);
        }
        let condition = self.or()?;
        if !self.take(&Token::Word("else")) {
            let column = self.tokens.get(self.at).map_or(self.end, |(column, _)| *column);
            return Err((column, "`else` is missing: write `A if CONDITION else B`".into()));
        }
        Ok(Node::Choice(Box::new(first), Box::new(condition), Box::new(self.choice()?)))
    }

    /// What stands in parentheses behind a function's name.
    fn arguments(&mut self, column: usize) -> Result<Vec<Node>, Problem> {
        let mut arguments = Vec::new();
        if self.take(&Token::Mark(')')) {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.choice()?);
            if self.take(&Token::Mark(')')) {
                return Ok(arguments);
            }
            if !self.take(&Token::Mark(',')) {
                return Err((column, "the ( of this function has no partner".into()));
            }
        }
    }

    fn or(&mut self) -> Result<Node, Problem> {
        let mut left = self.and()?;
        while self.take(&Token::Word("or")) {
            left = Node::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node, Problem> {
        let mut left = self.not()?;
        while self.take(&Token::Word("and")) {
            left = Node::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Node, Problem> {
        if self.take(&Token::Word("not")) {
            return Ok(Node::Not(Box::new(self.not()?)));
        }
        let left = self.sum()?;
        let Some(&Token::Sign(sign)) = self.peek() else { return Ok(left) };
        self.at += 1;
        let right = self.sum()?;
        if let Some(Token::Sign(_)) = self.peek() {
            let problem = "comparisons are not chained: write `a < b and b < c`".into();
            return Err((self.tokens[self.at].0, problem));
        }
        Ok(Node::Compare(sign, Box::new(left), Box::new(right)))
    }

    fn sum(&mut self) -> Result<Node, Problem> {
        let mut left = self.product()?;
        while let Some(&Token::Mark(mark @ ('+' | '-'))) = self.peek() {
            self.at += 1;
            left = Node::Arithmetic(mark, Box::new(left), Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Node, Problem> {
        let mut left = self.atom()?;
        while let Some(&Token::Mark(mark @ ('*' | '/' | '%'))) = self.peek() {
            self.at += 1;
            left = Node::Arithmetic(mark, Box::new(left), Box::new(self.atom()?));
        }
        Ok(left)
    }

    fn atom(&mut self) -> Result<Node, Problem> {
        let Some((column, token)) = self.tokens.get(self.at).cloned() else {
            return Err((self.end, "a name, a number or text in quotes is missing".into()));
        };
        self.at += 1;
        match token {
            Token::Value(value) => Ok(Node::Constant(value)),
            Token::Name(name) if self.formula && self.take(&Token::Mark('(')) => {
                Ok(Node::Call(name, self.arguments(column)?))
            }
            Token::Name(name) => Ok(Node::Name(name)),
            Token::Mark('-') => {
                let zero = Node::Constant(Value::Number(0.0));
                Ok(Node::Arithmetic('-', Box::new(zero), Box::new(self.atom()?)))
            }
            Token::Mark('(') => {
                let inner = self.choice()?;
                if self.take(&Token::Mark(')')) {
                    return Ok(inner);
                }
                Err((column, "this ( has no partner".into()))
            }
            other => Err((column, format!("a name, a number or text in quotes is needed, found {other}"))),
        }
    }
}
