//! What measurements say: statistics, findings, explanations, and charts of them.
//!
//! # Layout
//! - [`table`]: runs, factors and responses: the input of an analysis, from a file or from the store
//! - `analysis`: everything that is said about one response; `findings`: the same in sentences, of `phrases`
//! - `anova`, on `design` and `linear`: effects and interactions with intervals
//! - `noise`: noise and drift, which every interval stands on
//! - `best`, `alone`, `misses`, [`importance`], `influence`, [`ranks`], `transfer`, `tuned`,
//!   [`scaling`]: one question each
//! - `explain`: why a run is slow, from its recorded events
//! - `selection`: some of the recorded runs, in an order; `listing`: runs as a list;
//!   `compared`: several beside each other
//! - [`sheet`]: small tables as text, Markdown and HTML
//! - `statistics`: medians, quantiles, spreads; `distributions`: tails and quantiles
//! - [`figure`]: a chart as data, for plotly, as SVG or CSV, its texts placed by one layout; [`charts`]: those of a study;
//!   [`report`]: all in a page, with how the runs were made
//! - [`chart`]: units of axes and of numbers in words
//!
//! # Deliberately absent
//! Measuring; writing to the store.

#![forbid(unsafe_code)]

mod alone;
mod analysis;
mod anova;
mod best;
pub mod chart;
pub mod charts;
mod compared;
mod design;
mod distributions;
mod explain;
pub mod figure;
mod findings;
pub mod importance;
mod influence;
mod linear;
mod listing;
mod misses;
mod noise;
mod phrases;
pub mod ranks;
pub mod report;
pub mod scaling;
mod selection;
pub mod sheet;
mod sheets;
mod statistics;
pub mod table;
mod transfer;
mod tuned;

pub use alone::AloneOrTogether;
pub use analysis::{Analysis, AnalysisRequest, WorkloadBest};
pub use anova::{Anova, Estimate, FactorEffect, LevelContrast, LevelEffect};
pub use best::{Configuration, Ranking};
pub use compared::{ComparedFigure, ComparedItem, ComparedRuns, ComparedSetting, ItemHead, LossCurve};
pub use distributions::{f_tail, holm, t_quantile, t_two_sided};
pub use explain::{
    Cause, ExactFigures, ExplainError, Explanation, GainSource, GradientReady, Message, RankTimes,
    RecordedLink, RecordedPause, RecordedRank, RecordedRun, RecordedStage, RecordedStep, RecordedWait,
    RunComparison, Sentence, SlowGroup, WhatIf,
};
pub use findings::{Finding, FindingKind};
pub use influence::InfluenceModel;
pub use listing::ListedRun;
pub use misses::{MissPattern, Misses};
pub use noise::{Controls, Drift, Noise, NoiseSource};
pub use paceline_statistics::distinct;
pub use phrases::BestWords;
pub use selection::{ChosenRuns, RunSelection, UnknownName};
pub use statistics::{Quantiles, Spread};
pub use table::WorkloadTraits;
pub use table::{StudyTable, StudyTableError};
pub use transfer::{GroupAgreement, SharedTrait, TransferLoss, WorkloadTransfer};
pub use tuned::{ComparisonRequest, TunedComparison, TunedLevel, TunedPair, TuningMethod};
