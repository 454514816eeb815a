//! Slurm's compressed lists of nodes: `rack[1-2]n[007-009,12],login`.

/// Most names of a list: more is taken for nonsense.
const MOST: usize = 1 << 16;

/// The names of a list, in its order; none if it is no list.
pub fn node_list(text: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for part in split(text)? {
        expand(String::new(), part, &mut names)?;
    }
    Some(names)
}

/// The parts between commas outside of brackets; none if brackets do not fit.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    (!inside && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// Adds every name that `rest` stands for after `prefix`.
fn expand(prefix: String, rest: &str, names: &mut Vec<String>) -> Option<()> {
    let Some((plain, behind)) = rest.split_once('[') else {
        names.push(prefix + rest);
        return (names.len() <= MOST).then_some(());
    };
    let (numbers, rest) = behind.split_once(']')?;
    for range in numbers.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first >= MOST as u64 {
            return None;
        }
        for number in first..=last {
            expand(format!("{prefix}{plain}{number:0width$}"), rest, names)?;
        }
    }
    Some(())
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_slurm_writes_them() {
        for (text, expected) in [
            ("n1", "n1"),
            ("n1,n2", "n1 n2"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[1,3-4,9]", "n1 n3 n4 n9"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("n[1-2]-ib", "n1-ib n2-ib"),
            ("rack[1-2]n[01-02]", "rack1n01 rack1n02 rack2n01 rack2n02"),
            ("login,gpu-a[7,9],cpu[1-2].cluster", "login gpu-a7 gpu-a9 cpu1.cluster cpu2.cluster"),
            ("n[5]", "n5"),
            ("tux-[0-1],10.0.0.[1-2]", "tux-0 tux-1 10.0.0.1 10.0.0.2"),
        ] {
            assert_eq!(node_list(text).unwrap().join(" "), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            ",",
            "n1,",
            "n[",
            "n]",
            "n[]",
            "n[1-]",
            "n[-2]",
            "n[3-1]",
            "n[a-b]",
            "n[[1]]",
            "n[1-2",
            "n[1-99999999]",
            "n[1-60000]m[1-60000]",
            "n[+1]",
        ] {
            assert_eq!(node_list(text), None, "{text:?}");
        }
    }
}
