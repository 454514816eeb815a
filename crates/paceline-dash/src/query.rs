//! What an address says: `?f.sync=bsp&f.sync=asp&page=3`. The address is all that there is, so that it survives a
//! reload and can be sent to somebody.

use paceline_analyze::sheet::escape;

/// Pairs of an address that are read; what follows them is nobody's filter.
const MOST: usize = 400;

/// A query, decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query(pub Vec<(String, String)>);

/// Decodes one part of an address.
pub fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let pair = bytes.get(at + 1..at + 3).filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let byte = pair.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        match (bytes[at], byte) {
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
    /// Reads the part after `?`; what has no value says nothing.
    pub fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=')?;
            (!value.is_empty()).then(|| (decode(name), decode(value)))
        };
        Self(text.split('&').filter_map(pair).take(MOST).collect())
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a name.
    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let name = name.to_owned();
        self.0.iter().filter(move |(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The same without some pairs.
    pub fn without(&self, gone: impl Fn(&str, &str) -> bool) -> Self {
        Self(self.0.iter().filter(|(name, value)| !gone(name, value)).cloned().collect())
    }

    /// The same with one value of a name; without it if the value is empty.
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut changed = self.without(|known, _| known == name);
        if !value.is_empty() {
            changed.0.push((name.to_owned(), value.to_owned()));
        }
        changed
    }

    /// As hidden fields of a form, which thereby keeps them.
    pub fn hidden(&self) -> String {
        let field = |(name, value): &(String, String)| {
            format!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", escape(name), escape(value))
        };
        self.0.iter().map(field).collect()
    }

    /// As the end of an address, `?` included; nothing where nothing is said.
    pub fn address(&self) -> String {
        let words: Vec<String> = self.0.iter().map(|(n, v)| format!("{}={}", encode(n), encode(v))).collect();
        if words.is_empty() { String::new() } else { format!("?{}", words.join("&")) }
    }
}
