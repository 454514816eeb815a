//! A regression tree over levels of factors.

use paceline_random::Stream;

pub struct TreeRules<'a> {
    /// Levels of each factor, at most 64.
    pub levels: &'a [usize],
    /// Whether a factor's levels have an order.
    pub ordered: &'a [bool],
    /// Least runs of a leaf.
    pub least: usize,
    /// Factors that are looked at for a split.
    pub looked_at: usize,
    pub draws: Stream,
}

pub struct RegressionTree {
    nodes: Vec<Node>,
}

enum Node {
    Leaf(f64),
    /// Levels of a factor that go to the first node; the others go to the second.
    Split {
        factor: usize,
        first: u64,
        nodes: [usize; 2],
    },
}

pub struct Leaf {
    pub value: f64,
    /// Levels of each factor that lie in it.
    pub boxes: Vec<u64>,
}

struct Split {
    factor: usize,
    first: u64,
    gain: f64,
}

impl RegressionTree {
    pub fn grow(rules: &TreeRules<'_>, rows: &[Vec<usize>], values: &[f64], drawn: &[usize]) -> Self {
        let mut tree = Self { nodes: Vec::new() };
        tree.node(rules, rows, values, drawn.to_vec());
        tree
    }

    fn node(
        &mut self,
        rules: &TreeRules<'_>,
        rows: &[Vec<usize>],
        values: &[f64],
        drawn: Vec<usize>,
    ) -> usize {
        let at = self.nodes.len();
        let mean = drawn.iter().map(|i| values[*i]).sum::<f64>() / drawn.len() as f64;
        self.nodes.push(Node::Leaf(mean));
        let mut order = rules.draws.fork(at as u64).permutation(rules.levels.len());
        // A random order also decides between splits that are equally good.
        order.truncate(rules.looked_at);
        let splits = order.into_iter().filter_map(|f| best(rules, rows, values, (&drawn, mean), f as usize));
        let Some(split) = splits.reduce(|a, b| if b.gain > a.gain { b } else { a }) else { return at };
        let (left, right): (Vec<usize>, Vec<usize>) =
            drawn.into_iter().partition(|i| split.first >> rows[*i][split.factor] & 1 == 1);
        let nodes = [left, right].map(|part| self.node(rules, rows, values, part));
        self.nodes[at] = Node::Split { factor: split.factor, first: split.first, nodes };
        at
    }

    pub fn predict(&self, levels: &[usize]) -> f64 {
        let mut at = 0;
        loop {
            match &self.nodes[at] {
                Node::Leaf(value) => return *value,
                Node::Split { factor, first, nodes } => {
                    at = nodes[usize::from(first >> levels[*factor] & 1 == 0)]
                }
            }
        }
    }

    /// Its leaves, which divide the grid.
    pub fn leaves(&self, levels: &[usize]) -> Vec<Leaf> {
        let whole: Vec<u64> = levels.iter().map(|n| u64::MAX >> (64 - n)).collect();
        let (mut open, mut leaves) = (vec![(0, whole)], Vec::new());
        while let Some((at, boxes)) = open.pop() {
            match &self.nodes[at] {
                Node::Leaf(value) => leaves.push(Leaf { value: *value, boxes }),
                Node::Split { factor, first, nodes } => {
                    let (mut left, mut right) = (boxes.clone(), boxes);
                    left[*factor] &= first;
                    right[*factor] &= !first;
                    open.extend([(nodes[0], left), (nodes[1], right)]);
                }
            }
        }
        leaves
    }
}

/// The best split by one factor. Levels without an order are ordered by their means, which loses nothing for squared
/// errors; levels that did not occur stay with the greater side.
fn best(
    rules: &TreeRules<'_>,
    rows: &[Vec<usize>],
    values: &[f64],
    (drawn, middle): (&[usize], f64),
    factor: usize,
) -> Option<Split> {
    // Around the node's mean, so that small differences do not drown in it.
    let mut sums = vec![(0.0, 0usize); rules.levels[factor]];
    let mut around = 0.0;
    for i in drawn {
        let (sum, count) = &mut sums[rows[*i][factor]];
        let value = values[*i] - middle;
        *sum += value;
        *count += 1;
        around += value * value;
    }
    let mut present: Vec<usize> = (0..sums.len()).filter(|level| sums[*level].1 > 0).collect();
    let mean = |level: &usize| sums[*level].0 / sums[*level].1 as f64;
    if !rules.ordered[factor] {
        present.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    }
    let (total, count) = sums.iter().fold((0.0, 0), |(t, c), (sum, n)| (t + sum, c + n));
    let (mut sum, mut n, mut first): (f64, usize, u64) = (0.0, 0, 0);
    let mut found: Option<Split> = None;
    let whole = total * total / count as f64;
    for level in &present[..present.len().saturating_sub(1)] {
        (sum, n, first) = (sum + sums[*level].0, n + sums[*level].1, first | 1 << level);
        if n < rules.least || count - n < rules.least {
            continue;
        }
        let rest = total - sum;
        let gain = sum * sum / n as f64 + rest * rest / (count - n) as f64 - whole;
        if gain > 1e-12 * around && found.as_ref().is_none_or(|f| gain > f.gain) {
            let first = if rules.ordered[factor] { (1 << level) | ((1 << level) - 1) } else { first };
            found = Some(Split { factor, first, gain });
        }
    }
    found
}
