//! Levels as charts show them: of many numbers, neighbours are taken together.

use crate::figure::ChartAxis;
use crate::table::{Factor, short};

/// Levels of a factor that are shown one by one.
const MOST: usize = 12;
/// Groups of more levels than that.
const GROUPS: usize = 8;

/// Levels that are shown of so many: all, or some from the first to the last.
pub fn spread_out(levels: usize) -> Vec<usize> {
    if levels <= MOST {
        return (0..levels).collect();
    }
    (0..MOST).map(|i| i * (levels - 1) / (MOST - 1)).collect()
}

/// A factor's levels, or groups of neighbouring ones.
pub struct LevelGroups {
    factor: String,
    /// In words, in their order.
    pub names: Vec<String>,
    /// The group of each level.
    pub of: Vec<usize>,
}

impl LevelGroups {
    /// Of a factor.
    pub fn new(factor: &Factor) -> Self {
        let (all, name) = (factor.levels.len(), factor.name.clone());
        let text = |i: usize| short(&factor.levels[i].text);
        if all <= MOST || factor.numbers().is_none() {
            return Self { factor: name, names: (0..all).map(text).collect(), of: (0..all).collect() };
        }
        let of: Vec<usize> = (0..all).map(|i| i * GROUPS / all).collect();
        let group = |g: usize| {
            let mut own = (0..all).filter(|i| of[*i] == g);
            let first = own.next().unwrap_or_default();
            format!("{}…{}", text(first), text(own.next_back().unwrap_or(first)))
        };
        Self { factor: name, names: (0..GROUPS).map(group).collect(), of }
    }

    /// An axis of charts.
    pub fn axis(&self) -> ChartAxis {
        ChartAxis::names(&self.factor, self.names.clone())
    }

    /// `name = level`.
    pub fn at(&self, group: usize) -> String {
        format!("{} = {}", self.factor, self.names[group])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::FactorLevel;

    #[test]
    fn many_numbers_become_groups_of_neighbours() {
        let of = |n: usize, text: fn(usize) -> String| {
            let levels = (0..n).map(|i| FactorLevel::read(&text(i))).collect();
            LevelGroups::new(&Factor { name: "lr".into(), levels })
        };
        let few = of(4, |i| i.to_string());
        assert_eq!((few.names.len(), few.at(2).as_str()), (4, "lr = 2"));
        let many = of(80, |i| i.to_string());
        assert_eq!((many.names[0].as_str(), many.names[7].as_str()), ("0…9", "70…79"));
        assert_eq!((many.of[9], many.of[10]), (0, 1));
        assert_eq!((spread_out(3), spread_out(100).len()), (vec![0, 1, 2], MOST));
        assert_eq!((spread_out(100)[0], spread_out(100)[MOST - 1]), (0, 99));
        assert_eq!(of(20, |i| format!("name {i}")).names.len(), 20, "names have no neighbours");
    }
}
