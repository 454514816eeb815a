//! How much room words need. Fonts differ; widths here are upper bounds over the usual sans-serif ones, so that what
//! fits here fits everywhere.

/// Part of the font's size that a character takes.
fn part(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '/' => 0.35,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '"' => 0.43,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '=' | '+' | '<' | '>' | '~' | '…' | '×' | '−' => 1.0,
        'A'..='Z' => 0.79,
        c if c.is_ascii() => 0.645,
        '\u{a0}'..='\u{2fff}' => 0.8,
        _ => 1.1,
    }
}

/// Pixels that a line of text takes at most.
pub fn width(text: &str, size: f64) -> f64 {
    size * text.chars().map(part).sum::<f64>()
}

/// The text, or its two ends with an ellipsis between: names that begin alike often differ at their ends.
pub fn fitted(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.into();
    }
    let all: Vec<char> = text.chars().collect();
    let ends = |kept: usize| {
        let tail = kept / 2;
        all[..kept - tail].iter().chain(&['…']).chain(&all[all.len() - tail..]).collect::<String>()
    };
    (0..all.len()).rev().map(ends).find(|short| width(short, size) <= room).unwrap_or_else(|| "…".into())
}

/// The text in lines that fit, broken between words and after hyphens; the last of `most` lines has whatever is left,
/// fitted.
pub fn lines(text: &str, size: f64, room: f64, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in text.split_inclusive([' ', '-']).filter(|piece| !piece.trim().is_empty()) {
        let full = lines.len() >= most;
        match lines.last_mut() {
            Some(line) if full || width(format!("{line}{piece}").trim_end(), size) <= room => *line += piece,
            _ => lines.push(piece.into()),
        }
    }
    lines.iter().map(|line| fitted(line.trim_end(), size, room)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_keeps_both_ends() {
        assert_eq!(fitted("ring", 10.0, 100.0), "ring");
        let short = fitted("a-long-name-of-a-strategy", 10.0, 80.0);
        assert!(short.starts_with("a-lo") && short.ends_with("egy") && short.contains('…'), "{short}");
        assert!(width(&short, 10.0) <= 80.0);
        assert_eq!(fitted("anything", 10.0, 1.0), "…");
    }

    #[test]
    fn words_are_broken_into_lines_and_the_last_one_is_fitted() {
        assert_eq!(lines("one two three", 10.0, 1000.0, 2), ["one two three"]);
        let broken = lines("the size of an effect in seconds of the clock", 10.0, 90.0, 2);
        assert_eq!(broken.len(), 2);
        assert!(broken.iter().all(|line| width(line, 10.0) <= 90.0), "{broken:?}");
        assert!(lines("", 10.0, 90.0, 2).is_empty());
        assert_eq!(lines("ring-allreduce", 10.0, 70.0, 3), ["ring-", "allreduce"]);
    }
}
