//! Text to a tree: tokens, then by how tightly signs bind.

use std::fmt;

use super::{ConditionError, Node, Sign};
use crate::value::Value;

/// Characters of a condition: parentheses nest, and the stack is finite.
const LONGEST: usize = 1000;

/// Reads a condition, or a formula.
pub(super) fn parse(text: &str, formula: bool) -> Result<Node, ConditionError> {
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
