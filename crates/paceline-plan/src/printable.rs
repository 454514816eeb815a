//! Text from outside (names, levels, commands' messages) as terminals and pages may show it.
//!
//! Control characters and those that reorder a line become visible escapes such as `\u{1b}`: the reader sees that they
//! are there, and no terminal obeys them.

use std::borrow::Cow;

/// Text of one line: line ends and tabs are escaped too.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, acts)
}

/// Text of several lines: line ends and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| acts(c) && !matches!(c, '\n' | '\t'))
}

/// Whether a terminal or a browser does something at this character instead of showing it: a control character, the end
/// of a line or paragraph, or a bidirectional control.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}')
}

fn escape(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        let text = "a\u{1b}]0;owned\u{7}b\u{1b}[2Jc\u{9b}31md\u{202e}e\u{2066}f\rg\u{7f}";
        let shown = printable_lines(text);
        assert_eq!(shown, "a\\u{1b}]0;owned\\u{7}b\\u{1b}[2Jc\\u{9b}31md\\u{202e}e\\u{2066}f\\rg\\u{7f}");
        assert_eq!(printable("two\nlines\tof a cell"), "two\\nlines\\tof a cell");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["time 2.5 µs", "日本語, שלום, 👩‍🔬", "back\\slash"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(printable_lines("one\n\ttwo\n"), "one\n\ttwo\n");
    }
}
