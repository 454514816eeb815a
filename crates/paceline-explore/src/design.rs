//! Two-level designs: fractional factorials by resolution, and Plackett–Burman.

/// What a design keeps apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Main effects from each other.
    III,
    /// Main effects from interactions of two axes too.
    IV,
    /// Interactions of two axes from each other too.
    V,
}

/// Runs as rows; per axis, whether it is at its high level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Design {
    /// What it is called, e.g. `2^(5-2), resolution III`.
    pub name: String,
    /// How each axis comes about: `a`, `b`, … vary by themselves, `ab` is a product. Empty for Plackett–Burman.
    pub generators: Vec<String>,
    /// The runs.
    pub rows: Vec<Vec<bool>>,
}

/// Base axes: 2¹² runs.
const MOST_BASES: usize = 12;

impl Design {
    /// The smallest design of this resolution: base axes in all combinations, the others products of them.
    pub fn fractional(axes: usize, resolution: Resolution) -> Option<Self> {
        let bases = (1..=axes.min(MOST_BASES)).find(|bases| columns(*bases, axes, resolution).is_some())?;
        let columns = columns(bases, axes, resolution)?;
        let letter = |base: usize| (b'a' + base as u8) as char;
        let word = |column: &u32| (0..bases).filter(|b| column >> b & 1 == 1).map(letter).collect::<String>();
        let rows = (0..1u32 << bases)
            .map(|run| {
                // The first base changes slowest.
                let high = |base: usize| run >> (bases - 1 - base) & 1 == 1;
                let column = |column: &u32| {
                    let parts = (0..bases).filter(|b| column >> b & 1 == 1);
                    // A product of signs is high unless an odd number of them is low.
                    parts.filter(|b| !high(*b)).count() % 2 == 0
                };
                columns.iter().map(column).collect()
            })
            .collect();
        let name = match axes - bases {
            0 => format!("2^{axes}, full factorial"),
            p => format!("2^({axes}-{p}), resolution {resolution:?}"),
        };
        Some(Self { name, generators: columns.iter().map(word).collect(), rows })
    }

    /// Main effects in the fewest runs: 4, 8, 12, 16, 20, 24, 32 and so on.
    pub fn plackett_burman(axes: usize) -> Option<Self> {
        let size = (axes / 4 + 1..=1024).map(|n| 4 * n).find(|n| hadamard(*n).is_some())?;
        let matrix = hadamard(size)?;
        let rows = matrix.into_iter().rev().map(|row| row[1..=axes].to_vec()).collect();
        Some(Self { name: format!("Plackett–Burman in {size} runs"), generators: Vec::new(), rows })
    }

    /// The design in words, with its generators by the axes' names.
    pub fn describe<'a>(&self, axes: impl Iterator<Item = &'a str>) -> String {
        let words: Vec<(&str, &str)> = self.generators.iter().map(String::as_str).zip(axes).collect();
        let base = |letter: char| {
            words.iter().find(|(word, _)| word.len() == 1 && word.starts_with(letter)).map(|(_, name)| *name)
        };
        let product = |(word, name): &(&str, &str)| {
            format!("{name} = {}", word.chars().filter_map(base).collect::<Vec<_>>().join("·"))
        };
        let products: Vec<String> = words.iter().filter(|(word, _)| word.len() > 1).map(product).collect();
        match products.as_slice() {
            [] => format!("{}: {} runs", self.name, self.rows.len()),
            _ => format!("{}: {} runs; generators {}", self.name, self.rows.len(), products.join(", ")),
        }
    }
}

/// Each axis as the set of base axes that it is the product of (bit 0: the first), such that the resolution is kept;
/// `None` if so many do not fit.
fn columns(bases: usize, axes: usize, resolution: Resolution) -> Option<Vec<u32>> {
    let mut chosen: Vec<u32> = (0..bases.min(axes)).map(|b| 1 << b).collect();
    let least = match resolution {
        Resolution::III => 2,
        Resolution::IV => 3,
        Resolution::V => 4,
    };
    for size in least..=bases {
        let mut of_size: Vec<u32> = (1..1u32 << bases).filter(|c| c.count_ones() as usize == size).collect();
        // abc before abd before bcd.
        of_size.sort_by_key(|c| (0..bases as u32).filter(|b| c >> b & 1 == 1).collect::<Vec<_>>());
        for column in of_size {
            if chosen.len() == axes {
                return Some(chosen);
            }
            if keeps(&chosen, column, resolution) {
                chosen.push(column);
            }
        }
    }
    (chosen.len() == axes).then_some(chosen)
}

/// Whether any so many columns stay independent: none is the product of fewer others.
fn keeps(chosen: &[u32], column: u32, resolution: Resolution) -> bool {
    if chosen.contains(&column) {
        return false;
    }
    let pairs = || chosen.iter().enumerate().flat_map(|(i, a)| chosen[..i].iter().map(move |b| a ^ b));
    if resolution != Resolution::III && pairs().any(|pair| pair == column) {
        return false;
    }
    resolution != Resolution::V || !chosen.iter().any(|c| pairs().any(|pair| pair == column ^ c))
}

/// A normalised Hadamard matrix (true: +1) of 1, 12 or 20 times a power of 2.
fn hadamard(size: usize) -> Option<Vec<Vec<bool>>> {
    let (seed, doublings) = [1usize, 12, 20].into_iter().find_map(|seed| {
        let times = size / seed;
        (size.is_multiple_of(seed) && times.is_power_of_two()).then_some((seed, times.trailing_zeros()))
    })?;
    let mut matrix = match seed {
        1 => vec![vec![true]],
        12 => bordered(&circulant(b"00100011101", false)),
        _ => bordered(&circulant(b"0011000010101111001", true)),
    };
    for _ in 0..doublings {
        let top = matrix.iter().map(|row| [row.clone(), row.clone()].concat());
        let bottom = matrix.iter().map(|row| [row.clone(), row.iter().map(|v| !v).collect()].concat());
        matrix = top.chain(bottom).collect();
    }
    Some(matrix)
}

/// The first column moved on by one per column: down (Toeplitz) or up (Hankel).
fn circulant(column: &[u8], up: bool) -> Vec<Vec<bool>> {
    let n = column.len();
    let at = |i: usize, j: usize| column[if up { (i + j) % n } else { (i + n - j) % n }] == b'1';
    (0..n).map(|i| (0..n).map(|j| at(i, j)).collect()).collect()
}

fn bordered(core: &[Vec<bool>]) -> Vec<Vec<bool>> {
    let first = vec![true; core.len() + 1];
    std::iter::once(first).chain(core.iter().map(|row| [vec![true], row.clone()].concat())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(high: bool) -> i64 {
        if high { 1 } else { -1 }
    }

    /// The sum over the runs of the product of these columns: 0 means that they are told apart.
    fn alias(design: &Design, columns: &[usize]) -> i64 {
        design.rows.iter().map(|row| columns.iter().map(|c| sign(row[*c])).product::<i64>()).sum()
    }

    #[test]
    fn resolutions_keep_what_they_promise() {
        for axes in 2..=11 {
            for (resolution, order) in [(Resolution::III, 2), (Resolution::IV, 3), (Resolution::V, 4)] {
                let design = Design::fractional(axes, resolution).unwrap();
                for a in 0..axes {
                    assert_eq!(alias(&design, &[a]), 0);
                    for b in 0..a {
                        assert_eq!(alias(&design, &[a, b]), 0, "{}", design.name);
                        for c in (0..b).filter(|_| order > 2) {
                            assert_eq!(alias(&design, &[a, b, c]), 0, "{}", design.name);
                            for d in (0..c).filter(|_| order > 3) {
                                assert_eq!(alias(&design, &[a, b, c, d]), 0, "{}", design.name);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn plackett_burman_tells_main_effects_apart_in_the_fewest_runs() {
        for axes in 1..=40 {
            let design = Design::plackett_burman(axes).unwrap();
            for a in 0..axes {
                assert!((0..a).all(|b| alias(&design, &[a, b]) == 0) && alias(&design, &[a]) == 0, "{axes}");
            }
        }
        let sizes: Vec<_> =
            [3, 7, 11, 15, 19, 23, 24].map(|n| Design::plackett_burman(n).unwrap().rows.len()).into();
        assert_eq!(sizes, [4, 8, 12, 16, 20, 24, 32]);
    }

    #[test]
    fn generators_are_stated_by_name() {
        let design = Design::fractional(5, Resolution::III).unwrap();
        let text = design.describe(["workers", "batch", "lr", "sync", "bucket"].into_iter());
        assert_eq!(
            text,
            "2^(5-2), resolution III: 8 runs; generators sync = workers·batch, bucket = workers·lr"
        );
    }
}
