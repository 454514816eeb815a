//! A space: axes with their levels, and the conditions that points meet.

use std::collections::{BTreeMap, HashSet};

use crate::expression::Condition;
use crate::value::{Value, nearest};

/// How the levels of an axis relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Numbers; distance is their difference.
    Linear,
    /// Positive numbers; distance is their ratio.
    Log,
    /// Names: any two are equally far apart.
    Names,
}

/// One option with its levels.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name: a flag of `paceline train`, a placeholder of a command, or a column of a table.
    pub name: String,
    /// What it can be; numbers are in rising order.
    pub levels: Vec<Value>,
    /// How the levels relate.
    pub scale: Scale,
    /// Where it is there at all; everywhere if absent.
    pub when: Option<Condition>,
}

impl Axis {
    /// An axis of these levels: numbers are put in order, and are compared by ratio where they are positive and span a
    /// factor of 10.
    pub fn new(name: &str, mut levels: Vec<Value>) -> Self {
        let numbers: Option<Vec<f64>> = levels.iter().map(Value::number).collect();
        let scale = match numbers {
            None => Scale::Names,
            Some(numbers) => {
                levels.sort_by(|a, b| a.number().partial_cmp(&b.number()).expect("levels are finite"));
                let (least, most) = numbers
                    .iter()
                    .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), n| (a.min(*n), b.max(*n)));
                if least > 0.0 && most / least >= 10.0 { Scale::Log } else { Scale::Linear }
            }
        };
        Self { name: name.into(), levels, scale, when: None }
    }

    /// Where a level lies between the first (0) and the last (1).
    pub fn position(&self, level: u32) -> f64 {
        let last = self.levels.len().saturating_sub(1).max(1);
        let place = |i: usize| self.levels[i].number().unwrap_or(i as f64);
        let (low, here, high) = (place(0), place(level as usize), place(self.levels.len() - 1));
        match self.scale {
            Scale::Names => f64::from(level) / last as f64,
            _ if high <= low => 0.0,
            Scale::Linear => (here - low) / (high - low),
            Scale::Log => (here / low).ln() / (high / low).ln(),
        }
    }
}

/// One level per axis, by its index; `None` where the axis is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point(pub Vec<Option<u32>>);

/// Axes and constraints.
#[derive(Clone, Debug)]
pub struct Space {
    axes: Vec<Axis>,
    constraints: Vec<Condition>,
    /// Axes such that each comes after those that its condition names.
    order: Vec<usize>,
    /// The points, where they are a list and not a product.
    listed: Option<Vec<Point>>,
}

/// A space that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct SpaceError {
    /// The axis (`axes.NAME`) or constraint (`constraints[N]`) at fault.
    pub subject: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Points of a space that are looked at one by one; larger ones are sampled.
pub const ENUMERABLE: usize = 100_000;

impl Space {
    /// The product of the axes, less what the constraints forbid. Names in constraints must be axes.
    pub fn new(axes: Vec<Axis>, constraints: Vec<Condition>) -> Result<Self, SpaceError> {
        let refuse = |subject: String, problem: String| Err(SpaceError { subject, problem });
        if axes.is_empty() {
            return refuse("axes".into(), "at least one axis is needed, e.g. workers = [1, 2, 4]".into());
        }
        for (i, axis) in axes.iter().enumerate() {
            let subject = || format!("axes.{}", axis.name);
            if axes[..i].iter().any(|other| other.name == axis.name) {
                return refuse(subject(), "the axis is there twice".into());
            }
            if axis.levels.is_empty() {
                return refuse(subject(), "at least one level is needed".into());
            }
            let twice = axis.levels.iter().enumerate().find(|(j, level)| axis.levels[..*j].contains(level));
            if let Some((_, level)) = twice {
                return refuse(subject(), format!("the level {level} is there twice"));
            }
        }
        let mut space = Self { axes, constraints, order: Vec::new(), listed: None };
        let names: Vec<&str> = space.axes.iter().map(|a| a.name.as_str()).collect();
        let known = |subject: &dyn Fn() -> String, condition: &Condition| {
            if let Some(name) = condition.names().into_iter().find(|name| !names.contains(name)) {
                let hint = nearest(name, names.iter().copied()).map_or_else(
                    || format!("axes: {}", names.join(", ")),
                    |n| format!("did you mean `{n}`?"),
                );
                let problem = format!("`{name}` in `{condition}` is not an axis; {hint}");
                return Err(SpaceError { subject: subject(), problem });
            }
            let first = |name: &str| {
                let axis = space.axes.iter().find(|a| a.name == name)?;
                Some(axis.levels[0].clone())
            };
            match condition.mixed_kinds(&first) {
                Some(problem) => Err(SpaceError { subject: subject(), problem }),
                None => Ok(()),
            }
        };
        for axis in &space.axes {
            if let Some(when) = &axis.when {
                known(&|| format!("axes.{}", axis.name), when)?;
            }
        }
        for (i, condition) in space.constraints.iter().enumerate() {
            known(&|| format!("constraints[{i}]"), condition)?;
        }
        space.order = space.dependency_order()?;
        Ok(space)
    }

    /// A space that is a list of points, such as the rows of a table.
    pub fn listed(axes: Vec<Axis>, points: Vec<Point>) -> Result<Self, SpaceError> {
        let mut space = Self::new(axes, Vec::new())?;
        space.listed = Some(points);
        Ok(space)
    }

    /// The same, with more that must hold for an axis to be there. An axis whose condition would depend on itself stays
    /// as it is.
    pub fn narrowed(mut self, more: impl Fn(&Axis) -> Option<Condition>) -> Self {
        for i in 0..self.axes.len() {
            let Some(more) = more(&self.axes[i]) else { continue };
            let before = self.axes[i].when.clone();
            self.axes[i].when = Some(match &before {
                Some(when) => when.clone().and(more),
                None => more,
            });
            match self.dependency_order() {
                Ok(order) => self.order = order,
                Err(_) => self.axes[i].when = before,
            }
        }
        self
    }

    fn dependency_order(&self) -> Result<Vec<usize>, SpaceError> {
        let mut order: Vec<usize> = Vec::new();
        while order.len() < self.axes.len() {
            let ready = |i: &usize| {
                let placed = |name: &str| order.iter().any(|&j| self.axes[j].name == name);
                let when = self.axes[*i].when.as_ref();
                !order.contains(i) && when.is_none_or(|w| w.names().into_iter().all(placed))
            };
            match (0..self.axes.len()).find(ready) {
                Some(next) => order.push(next),
                None => {
                    let stuck = (0..self.axes.len()).find(|i| !order.contains(i)).expect("one is left");
                    return Err(SpaceError {
                        subject: format!("axes.{}", self.axes[stuck].name),
                        problem: "its `when` depends on itself, directly or through other axes".into(),
                    });
                }
            }
        }
        Ok(order)
    }

    /// The axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The conditions on axes.
    pub fn constraints(&self) -> &[Condition] {
        &self.constraints
    }

    /// The points, where they are a list and not a product.
    pub fn list(&self) -> Option<&[Point]> {
        self.listed.as_deref()
    }

    /// The level of the named axis at a point.
    pub fn value(&self, point: &Point, name: &str) -> Option<&Value> {
        let axis = self.axes.iter().position(|a| a.name == name)?;
        Some(&self.axes[axis].levels[point.0[axis]? as usize])
    }

    /// A point by names.
    pub fn named(&self, point: &Point) -> BTreeMap<String, Value> {
        let there = self.axes.iter().zip(&point.0);
        there
            .filter_map(|(axis, level)| Some((axis.name.clone(), axis.levels[(*level)? as usize].clone())))
            .collect()
    }

    /// The point with these levels; names that are missing or unknown, or levels that do not exist, give `None`.
    pub fn point(&self, named: &BTreeMap<String, Value>) -> Option<Point> {
        if named.keys().any(|name| self.axes.iter().all(|a| a.name != *name)) {
            return None;
        }
        let level = |axis: &Axis| match named.get(&axis.name) {
            None => Some(None),
            Some(value) => axis.levels.iter().position(|l| l == value).map(|l| Some(l as u32)),
        };
        let point = Point(self.axes.iter().map(level).collect::<Option<_>>()?);
        let mut settled = point.clone();
        self.settle(&mut settled);
        (settled == point && !self.lacks(&point)).then_some(point)
    }

    /// Takes away the axes that are not there at this point.
    pub fn settle(&self, point: &mut Point) {
        for &i in &self.order {
            if let Some(when) = &self.axes[i].when
                && when.truth(&|name| self.value(point, name).cloned()) != Some(true)
            {
                point.0[i] = None;
            }
        }
    }

    /// Whether an axis that should be there has no level.
    fn lacks(&self, point: &Point) -> bool {
        self.axes.iter().zip(&point.0).any(|(axis, level)| {
            let there = |when: &Condition| when.truth(&|n| self.value(point, n).cloned()) == Some(true);
            level.is_none() && axis.when.as_ref().is_none_or(there)
        })
    }

    /// Whether a settled point is part of the space.
    pub fn allows(&self, point: &Point) -> bool {
        let lookup = |name: &str| self.value(point, name).cloned();
        self.constraints.iter().all(|c| c.allows(&lookup))
            && self.listed.as_ref().is_none_or(|listed| listed.contains(point))
    }

    /// How many combinations of levels there are before constraints.
    pub fn combinations(&self) -> u128 {
        match &self.listed {
            Some(points) => points.len() as u128,
            None => self.axes.iter().fold(1, |n: u128, a| n.saturating_mul(a.levels.len() as u128)),
        }
    }

    /// Every point, in the order of the axes' levels, the first axis slowest; `None` if there are more than `limit`.
    pub fn points(&self, limit: usize) -> Option<Vec<Point>> {
        if let Some(points) = &self.listed {
            return Some(points.clone());
        }
        let mut found = Vec::new();
        let mut looks = limit.saturating_mul(20);
        let mut point = Point(vec![None; self.axes.len()]);
        self.extend(0, &mut point, &mut found, limit, &mut looks)?;
        found.sort();
        let distinct: HashSet<&Point> = found.iter().collect();
        debug_assert_eq!(distinct.len(), found.len());
        Some(found)
    }

    /// Sets one axis after the other, each after those that it depends on, and turns back where a constraint is
    /// already broken.
    fn extend(
        &self,
        depth: usize,
        point: &mut Point,
        found: &mut Vec<Point>,
        limit: usize,
        looks: &mut usize,
    ) -> Option<()> {
        *looks = looks.checked_sub(1)?;
        let lookup = |point: &Point, name: &str| self.value(point, name).cloned();
        if !self.constraints.iter().all(|c| c.allows(&|name| lookup(point, name))) {
            return Some(());
        }
        let Some(&axis) = self.order.get(depth) else {
            found.push(point.clone());
            return (found.len() <= limit).then_some(());
        };
        let there = |when: &Condition| when.truth(&|name| lookup(point, name)) == Some(true);
        if !self.axes[axis].when.as_ref().is_none_or(there) {
            return self.extend(depth + 1, point, found, limit, looks);
        }
        for level in 0..self.axes[axis].levels.len() {
            point.0[axis] = Some(level as u32);
            self.extend(depth + 1, point, found, limit, looks)?;
        }
        point.0[axis] = None;
        Some(())
    }

    /// How far two points are apart, 0 to 1 per axis: the difference of positions; names that differ, or an axis
    /// that only one has, count as 1.
    pub fn distances<'a>(&'a self, a: &'a Point, b: &'a Point) -> impl Iterator<Item = f64> + 'a {
        self.axes.iter().zip(a.0.iter().zip(&b.0)).map(|(axis, levels)| match levels {
            (None, None) => 0.0,
            (Some(a), Some(b)) if axis.scale == Scale::Names => f64::from(u8::from(a != b)),
            (Some(a), Some(b)) => (axis.position(*a) - axis.position(*b)).abs(),
            _ => 1.0,
        })
    }
}
