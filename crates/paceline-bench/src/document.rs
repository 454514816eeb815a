//! The document of a benchmark of many points: every repeat as it was measured, and what the repeats come to.

use paceline_analyze::chart::{Chart, ChartUnit};
use paceline_analyze::figure::{ChartAxis, ChartMark, Dot, Panel};
use paceline_analyze::sheet::{TableColumn, by_column};
use paceline_analyze::{Spread, distinct};
use paceline_record::Machine;
use serde::{Deserialize, Serialize};

use crate::channels_document::Channel;
use crate::servers_document::ServersPoint;

/// Channels between processes, measured.
pub type Channels = BenchDocument<Channel>;

pub type Servers = BenchDocument<ServersPoint>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchDocument<P> {
    /// `channels` or `ps`.
    pub bench: String,
    pub version: String,
    /// What it was measured on.
    pub machine: Machine,
    /// Processes that wanted to run before the measurement began, on average over a minute.
    pub load_average: f64,
    /// Pairs of ranks that exchanged messages at the same time, of `channels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    pub repeats: usize,
    /// Seconds per repeat that were asked for.
    pub seconds: f64,
    /// Seed of the order and of random sizes.
    pub seed: u64,
    /// The model whose tensors are the skewed sizes; of `ps`, also the number of buckets of all schemes.
    pub model: String,
    /// How sizes are distributed.
    pub payloads: Vec<SizeDistribution>,
    /// Combinations that cannot be, and why.
    pub left_out: Vec<String>,
    pub points: Vec<P>,
}

impl<P> BenchDocument<P> {
    /// A chart of points, and what they were measured on.
    pub(crate) fn drawn(&self, id: &str, title: String, about: &str, panels: Vec<Panel>) -> Chart {
        let (Machine { cpu, cores, .. }, repeats) = (&self.machine, self.repeats);
        let reading = format!(
            "{cpu}, {cores} cores; {about}medians of n = {repeats} repeats, bars from the least to the greatest"
        );
        Chart { id: id.into(), title, reading, n: format!("{repeats} repeats"), panels }
    }

    /// A table of points, below what they were measured on.
    pub(crate) fn table(&self, about: &str, columns: &[TableColumn<'_, P>], words: usize) -> String {
        let (Machine { cpu, cores, kernel, .. }, repeats) = (&self.machine, self.repeats);
        let table = by_column(columns, words, &self.points);
        format!("{cpu}, {cores} cores, {kernel}; {about}medians of {repeats} repeats\n{table}")
    }
}

/// One panel of a chart: places and spreads by the name of their line.
pub(crate) fn panel(
    title: &str,
    x: (&str, ChartUnit),
    y: (&str, ChartUnit),
    points: Vec<(String, f64, Spread)>,
) -> Panel {
    let line = |name: &String| {
        let own = points.iter().filter(|(of, ..)| of == name);
        let mut dots: Vec<Dot> = own.map(|(_, x, y)| Dot::spread(*x, *y)).collect();
        dots.sort_by(|a, b| a.x.total_cmp(&b.x));
        ChartMark::line(name, dots)
    };
    let marks = distinct(points.iter().map(|(name, ..)| name)).into_iter().map(line).collect();
    let [x, y] = [x, y].map(|(title, unit)| ChartAxis::units(title, unit));
    Panel::new(x, y, marks).titled(title)
}

/// A way in which the sizes of messages are distributed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeDistribution {
    /// Its name.
    pub name: String,
    /// What it is.
    pub about: String,
}
