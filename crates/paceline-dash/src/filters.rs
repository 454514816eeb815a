//! What an address selects: `?sync=bsp&workers=2&page=3` is a page of the runs with these levels. The address is all
//! that there is, so that it survives a reload and can be sent to somebody.

use paceline_analyze::StudyTable;

/// A query, decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query(pub Vec<(String, String)>);

/// Decodes one part of an address.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let pair = bytes.get(at + 1..at + 3).and_then(|d| std::str::from_utf8(d).ok());
        match (bytes[at], pair.and_then(|d| u8::from_str_radix(d, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Text as part of an address.
pub fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

impl Query {
    /// Reads the part after `?`.
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|part| !part.is_empty()).take(100);
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(name), decode(value))
        };
        Self(pairs.map(pair).collect())
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The same with one value changed; without it if the value is empty.
    pub fn with(&self, name: &str, value: &str) -> String {
        let mut pairs: Vec<_> = self.0.iter().filter(|(known, _)| known != name && known != "token").collect();
        let changed = (name.to_owned(), value.to_owned());
        if !value.is_empty() {
            pairs.push(&changed);
        }
        let words: Vec<String> = pairs.iter().map(|(n, v)| format!("{}={}", encode(n), encode(v))).collect();
        if words.is_empty() { "?".into() } else { format!("?{}", words.join("&")) }
    }

    /// The level of each factor that is asked for.
    pub fn levels(&self, table: &StudyTable) -> Vec<Option<usize>> {
        let level = |factor: &paceline_analyze::table::Factor| {
            let wanted = self.get(&format!("f.{}", factor.name))?;
            factor.levels.iter().position(|level| level.text == wanted)
        };
        table.factors.iter().map(level).collect()
    }
}

/// Runs of a table that have the levels.
pub fn select(table: &StudyTable, levels: &[Option<usize>]) -> StudyTable {
    let fits = |run: &paceline_analyze::table::Run| {
        levels.iter().zip(&run.levels).all(|(wanted, level)| wanted.is_none_or(|w| w == *level))
    };
    let raw = table.runs.iter().filter(|run| fits(run)).map(|run| paceline_analyze::table::RawRun {
        id: run.id.clone(),
        levels: run.levels.iter().zip(&table.factors).map(|(l, f)| f.levels[*l].text.clone()).collect(),
        values: run.values.clone(),
        order: run.order,
        block: run.block.clone(),
        control: run.control,
    });
    let names: Vec<String> = table.factors.iter().map(|f| f.name.clone()).collect();
    let mut selected = StudyTable::new(&table.name, &names, table.responses.clone(), raw.collect());
    selected.notes.clone_from(&table.notes);
    selected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let query = Query::parse("f.sync=b%26sp&page=2&x=a+b&token=secret&bad=%zz");
        assert_eq!(query.get("f.sync"), Some("b&sp"));
        assert_eq!((query.get("x"), query.get("bad"), query.get("none")), (Some("a b"), Some("%zz"), None));
        let next = query.with("page", "3");
        assert!(next.contains("f.sync=b%26sp") && next.contains("page=3") && !next.contains("page=2"), "{next}");
        assert!(!next.contains("secret"), "the token is in no link: {next}");
        assert_eq!(Query::parse("page=2").with("page", ""), "?");
    }
}
