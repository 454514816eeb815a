//! The `.ts` format of the UEA and UCR archives: comments (`#`), a header of `@key value` lines, `@data`, then
//! one line per series: channels separated by colons, each a list of numbers, and the class at the end.

use std::path::Path;

use crate::error::DataError;

/// Most numbers of a file: 4 GiB of memory.
const NUMBERS: usize = 1 << 30;

#[derive(Debug)]
pub(crate) struct Series {
    /// The classes, as the header lists them.
    pub(crate) classes: Vec<String>,
    pub(crate) channels: usize,
    /// One after the other: steps of `channels` numbers each, NaN where a value is missing.
    pub(crate) numbers: Vec<f32>,
    /// Where each one ends, in numbers.
    pub(crate) ends: Vec<usize>,
    pub(crate) labels: Vec<u16>,
}

impl Series {
    /// The numbers of series `i`.
    pub(crate) fn series(&self, i: usize) -> &[f32] {
        &self.numbers[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]]
    }

    pub(crate) fn longest(&self) -> usize {
        (0..self.ends.len()).map(|i| self.series(i).len() / self.channels).max().unwrap_or(0)
    }
}

#[derive(Default)]
struct Header {
    channels: Option<usize>,
    /// Steps of every series, where all are of one length.
    length: Option<usize>,
    missing: bool,
    classes: Option<Vec<String>>,
}

/// Parses a file's text; `path` is for error messages.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Series, DataError> {
    let content = |line: usize, expected: &str, found: &str| DataError::Line {
        path: path.to_owned(),
        line,
        expected: expected.into(),
        found: shortened(found),
    };
    let mut lines =
        text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())).filter(|(_, line)| !line.is_empty());
    let mut header = Header::default();
    let classes = loop {
        let (at, line) = lines.next().ok_or_else(|| content(1, "a line @data", "the end of the file"))?;
        if line.starts_with('#') {
            continue;
        }
        let Some(entry) = line.strip_prefix('@') else {
            return Err(content(at, "a header line that begins with @, or @data", line));
        };
        if entry.eq_ignore_ascii_case("data") {
            break header
                .classes
                .take()
                .ok_or_else(|| content(at, "a line @classLabel before @data", line))?;
        }
        header.entry(entry).map_err(|expected| content(at, expected, line))?;
    };
    let (mut numbers, mut ends, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let mut values = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.starts_with('#')) {
        let Some((series, class)) = line.rsplit_once(':') else {
            return Err(content(at, "channels separated by colons, and the class", line));
        };
        let Some(label) = classes.iter().position(|known| known == class.trim()) else {
            return Err(content(at, &format!("one of the classes {}", classes.join(" ")), class));
        };
        values.clear();
        let (mut channels, mut length) = (0, None);
        for channel in series.split(':') {
            let before = values.len();
            for value in channel.split(',') {
                let value = value.trim();
                let number = match value {
                    "?" | "NaN" if header.missing => Some(f32::NAN),
                    _ => value.parse().ok().filter(|v: &f32| v.is_finite()),
                };
                let place = || format!("a finite number in channel {}", channels + 1);
                values.push(number.ok_or_else(|| content(at, &place(), value))?);
            }
            let steps = values.len() - before;
            let first = *length.get_or_insert(steps);
            if first != steps {
                let expected = format!("as many values in every channel ({first})");
                return Err(content(at, &expected, &format!("{steps} in channel {}", channels + 1)));
            }
            channels += 1;
        }
        let steps = length.unwrap_or(0);
        if *header.channels.get_or_insert(channels) != channels {
            let expected = format!("{} channels", header.channels.unwrap_or(0));
            return Err(content(at, &expected, &format!("{channels}")));
        }
        if let Some(expected) = header.length.filter(|&expected| expected != steps) {
            return Err(content(at, &format!("{expected} values per channel"), &format!("{steps}")));
        }
        // Step by step, as a network takes them.
        numbers.extend(
            (0..steps).flat_map(|t| (0..channels).map(move |c| (t, c))).map(|(t, c)| values[c * steps + t]),
        );
        if numbers.len() > NUMBERS {
            return Err(content(at, "at most 4 GiB of numbers", "more"));
        }
        ends.push(numbers.len());
        labels.push(label as u16);
    }
    if labels.is_empty() {
        return Err(content(text.lines().count(), "series after @data", "none"));
    }
    Ok(Series { classes, channels: header.channels.unwrap_or(1), numbers, ends, labels })
}

impl Header {
    /// Takes `key value`; an error says what was expected.
    fn entry(&mut self, entry: &str) -> Result<(), &'static str> {
        let mut words = entry.split_whitespace();
        let key = words.next().unwrap_or_default().to_ascii_lowercase();
        let mut flag = || match words.next().map(str::to_ascii_lowercase).as_deref() {
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            _ => Err("true or false"),
        };
        match key.as_str() {
            "problemname" => {}
            "timestamps" => {
                if flag()? {
                    return Err("@timeStamps false (series with time stamps are not supported)");
                }
            }
            "missing" => self.missing = flag()?,
            "univariate" => {
                if flag()? {
                    self.channels = Some(1);
                }
            }
            "equallength" => drop(flag()?),
            "dimensions" | "dimension" => {
                let count = words.next().and_then(|word| word.parse().ok());
                self.channels =
                    Some(count.filter(|n| (1..=65_536).contains(n)).ok_or("a number of channels")?);
            }
            "serieslength" => {
                let steps = words.next().and_then(|word| word.parse().ok());
                self.length = Some(steps.filter(|&n: &usize| n > 0).ok_or("a number of steps")?);
            }
            "classlabel" => {
                if !flag()? {
                    return Err("@classLabel true and the classes (there is nothing to learn without)");
                }
                let classes: Vec<String> = words.map(str::to_owned).collect();
                let mut names: Vec<_> = classes.iter().collect();
                names.sort_unstable();
                names.dedup();
                if classes.is_empty() || names.len() != classes.len() || classes.len() > usize::from(u16::MAX)
                {
                    return Err("different names of classes after @classLabel true");
                }
                self.classes = Some(classes);
            }
            "targetlabel" => return Err("@classLabel (numbers as targets are not supported)"),
            _ => {
                return Err("@problemName, @timeStamps, @missing, @univariate, @dimensions, @equalLength, \
                            @seriesLength, @classLabel or @data");
            }
        }
        Ok(())
    }
}

/// What is shown of a long line.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{:?}…", &text[..at]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "# a comment\n@problemName X\n@timeStamps false\n@missing false\n@univariate false\n\
                        @dimensions 2\n@equalLength false\n@classLabel true up down\n@data\n";

    fn parsed(text: &str) -> Result<Series, String> {
        parse(text, Path::new("f.ts")).map_err(|error| error.to_string())
    }

    #[test]
    fn series_are_read_step_by_step() {
        let series = parsed(&format!("{HEAD}1,2,3:-1,-2E-1,-3:up\n\n4.5:5:down\n")).unwrap();
        assert_eq!(series.numbers, [1.0, -1.0, 2.0, -0.2, 3.0, -3.0, 4.5, 5.0]);
        assert_eq!((series.longest(), series.channels, series.labels), (3, 2, vec![0, 1]));
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (text, expected) in [
            ("", "f.ts:1: expected a line @data, found \"the end of the file\""),
            ("hello\n", "f.ts:1: expected a header line that begins with @, or @data, found \"hello\""),
            ("@size 3\n", "f.ts:1: expected @problemName"),
            ("@univariate maybe\n", "f.ts:1: expected true or false"),
            ("@dimensions 0\n", "f.ts:1: expected a number of channels"),
            ("@dimensions 99999999999999999999\n", "f.ts:1: expected a number of channels"),
            ("@timeStamps true\n", "not supported"),
            ("@classLabel true a a\n", "different names"),
            ("@problemName X\n@data\n", "f.ts:2: expected a line @classLabel before @data"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        for (line, expected) in [
            ("1,2:3,4:left", "f.ts:10: expected one of the classes up down, found \"left\""),
            ("1,2", "f.ts:10: expected channels separated by colons"),
            ("1,2:3:up", "f.ts:10: expected as many values in every channel (2), found \"1 in channel 2\""),
            ("1,2:3,4:5,6:up", "f.ts:10: expected 2 channels, found \"3\""),
            ("1,x:3,4:up", "f.ts:10: expected a finite number in channel 1, found \"x\""),
            ("1,2:3,inf:up", "f.ts:10: expected a finite number in channel 2, found \"inf\""),
            ("1,?:3,4:up", "f.ts:10: expected a finite number in channel 1, found \"?\""),
            ("", "expected series after @data"),
        ] {
            let error = parsed(&format!("{HEAD}{line}\n")).unwrap_err();
            assert!(error.contains(expected), "{line:?}: {error}");
        }
    }

    #[test]
    fn missing_values_are_allowed_where_the_header_says_so() {
        let text = "@missing true\n@classLabel true a\n@data\n1,?,3:a\n";
        assert!(parsed(text).unwrap().numbers[1].is_nan());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}", lines in prop::collection::vec("[-0-9.,:eupdown?]{0,30}", 0..5)) {
            let _ = parsed(&text);
            let _ = parsed(&format!("{HEAD}{}\n", lines.join("\n")));
        }
    }
}
