//! A program for a network: who does what, the balance, the bubble, the memory.

use paceline_nn::{Graph, GraphPart};
use serde::Serialize;

use crate::check::CheckedProgram;
use crate::costs::LayerCost;
use crate::timeline::{PipelineTimeline, StageTimes};

/// What is known of a program before it runs. Times are those of a micro-batch, in `unit`s; messages take none.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineReport {
    /// The pipeline's name, or the file that has the program.
    pub pipeline: String,
    /// What times are.
    pub unit: TimeUnit,
    /// Number of stages.
    pub stages: usize,
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// The mean stage's time as a part of the longest one's.
    pub balance: f64,
    /// The idle part of all ranks' time.
    pub bubble: f64,
    /// How many times as fast as one rank that does everything.
    pub speedup: f64,
    /// When the last work ends.
    pub length: u64,
    /// The stages.
    pub stage: Vec<StageReport>,
    /// The work of each rank, as in its program.
    pub program: Vec<Vec<String>>,
    #[serde(skip)]
    timeline: PipelineTimeline,
}

/// What the times of a report are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeUnit {
    /// Forward passes of a stage: all stages take the same.
    ForwardPasses,
    /// Floating-point operations, counted.
    Operations,
    /// Nanoseconds, measured.
    Nanoseconds,
}

/// What is known of a stage.
#[derive(Clone, Debug, Serialize)]
pub struct StageReport {
    /// The stage.
    pub stage: usize,
    /// The rank that has it.
    pub rank: usize,
    /// What a micro-batch's forward pass takes.
    pub forward: u64,
    /// What a micro-batch's backward pass takes.
    pub backward: u64,
    /// Its part of all work.
    pub share: f64,
    /// The most micro-batches that are under way in it at once.
    pub slots: usize,
    /// The idle part of its rank's time.
    pub idle: f64,
    /// Its part of the network, where there is one.
    #[serde(flatten)]
    pub part: Option<StagePart>,
}

/// A stage's part of a network.
#[derive(Clone, Debug, Serialize)]
pub struct StagePart {
    /// Its first layer.
    pub first_layer: String,
    /// Its last layer.
    pub last_layer: String,
    /// Its parameters.
    pub parameters: usize,
    /// Bytes of a micro-batch's activations that it hands on.
    pub sent_bytes: usize,
    /// Bytes of a micro-batch's gradients that it hands back.
    pub returned_bytes: usize,
    /// Bytes that a micro-batch takes while it is under way: activations that go over no cut, and what layers keep besides.
    pub slot_bytes: usize,
    /// Bytes of all its slots, and of the gradients of activations.
    pub activation_bytes: usize,
}

impl StagePart {
    /// What a part of a graph takes for micro-batches of up to `samples`, `slots` of them at once.
    fn new(graph: &Graph, part: &GraphPart, samples: usize, slots: usize) -> Self {
        let name = |at: usize| graph.nodes()[at].name.clone();
        let (memory, bytes) = (part.pass_memory(graph), size_of::<f32>() * samples);
        Self {
            first_layer: name(part.nodes.start),
            last_layer: name(part.nodes.end - 1),
            parameters: part.params.len(),
            sent_bytes: bytes * part.sent(),
            returned_bytes: bytes * part.returned(),
            slot_bytes: bytes * memory.slot,
            activation_bytes: memory.bytes(samples, slots),
        }
    }
}

impl PipelineReport {
    /// Of a program whose stages all take the same: backward twice as long as forward.
    pub fn of_equal_stages(pipeline: &str, program: &CheckedProgram) -> Self {
        let times = vec![StageTimes { forward: 1, backward: 2 }; program.stages()];
        Self::new(pipeline, program, (TimeUnit::ForwardPasses, &times), vec![None; program.stages()])
    }

    /// Of a program for a graph that is cut before these layers, in micro-batches of up to `samples`, which take these
    /// times in each layer.
    pub fn of_graph(
        pipeline: &str,
        program: &CheckedProgram,
        graph: &Graph,
        (unit, costs): (TimeUnit, &[LayerCost]),
        cuts: &[usize],
        samples: usize,
    ) -> Self {
        let parts = graph.parts(cuts);
        let times = |part: &GraphPart| {
            let layers = &costs[part.nodes.clone()];
            StageTimes {
                forward: layers.iter().map(|cost| cost.forward).sum(),
                backward: layers.iter().map(|cost| cost.backward).sum(),
            }
        };
        let part = |(stage, part)| Some(StagePart::new(graph, part, samples, program.slots(stage)));
        let times: Vec<StageTimes> = parts.iter().map(times).collect();
        Self::new(pipeline, program, (unit, &times), parts.iter().enumerate().map(part).collect())
    }

    fn new(
        pipeline: &str,
        program: &CheckedProgram,
        (unit, times): (TimeUnit, &[StageTimes]),
        parts: Vec<Option<StagePart>>,
    ) -> Self {
        let timeline = program.timeline(times, 0);
        let total: u64 = times.iter().map(|time| time.both()).sum();
        let longest = times.iter().map(|time| time.both()).max().unwrap_or(0).max(1);
        let length = timeline.length.max(1) as f64;
        let stage = |(stage, part): (usize, Option<StagePart>)| {
            let (rank, time) = (program.rank_of(stage), times[stage]);
            StageReport {
                stage,
                rank,
                forward: time.forward,
                backward: time.backward,
                share: time.both() as f64 / total.max(1) as f64,
                slots: program.slots(stage),
                idle: timeline.idle(rank) as f64 / length,
                part,
            }
        };
        Self {
            pipeline: pipeline.to_owned(),
            unit,
            stages: program.stages(),
            micro_batches: program.micro_batches(),
            balance: total as f64 / (program.stages() as u64 * longest) as f64,
            bubble: timeline.bubble(),
            speedup: (total * program.micro_batches() as u64) as f64 / length,
            length: timeline.length,
            stage: parts.into_iter().enumerate().map(stage).collect(),
            program: program
                .ranks()
                .iter()
                .map(|rank| rank.work.iter().map(ToString::to_string).collect())
                .collect(),
            timeline,
        }
    }

    /// When each rank does its work.
    pub fn timeline(&self) -> &PipelineTimeline {
        &self.timeline
    }

    /// One line: what it is, and how good.
    pub fn headline(&self) -> String {
        let (stages, micro_batches) = (self.stages, self.micro_batches);
        format!(
            "{}, {stages} stage{}, {micro_batches} micro-batch{}: bubble {:.1}%, balance {:.1}%, {:.2} times as fast \
             as one rank{}",
            self.pipeline,
            if stages == 1 { "" } else { "s" },
            if micro_batches == 1 { "" } else { "es" },
            100.0 * self.bubble,
            100.0 * self.balance,
            self.speedup,
            match self.unit {
                TimeUnit::Nanoseconds => format!(", {:.3} ms", self.length as f64 / 1e6),
                _ => String::new(),
            },
        )
    }

    /// Where the times come from.
    pub(crate) fn source(&self) -> &'static str {
        match self.unit {
            TimeUnit::ForwardPasses => "all stages take the same, messages take no time",
            TimeUnit::Operations => "times are counted operations, messages take none",
            TimeUnit::Nanoseconds => "times are those of the calibration, messages take none",
        }
    }

    /// The stages as a table: its head, how many of its columns are words, its rows.
    pub fn table(&self) -> (Vec<&'static str>, usize, Vec<Vec<String>>) {
        let percent = |part: f64| format!("{:.1}%", 100.0 * part);
        let bytes = |bytes: usize| format!("{:.3} MB", bytes as f64 / 1e6);
        let parts = self.stage.iter().all(|stage| stage.part.is_some());
        let mut head = vec!["stage", "work", "idle", "slots"];
        if parts {
            head.insert(1, "layers");
            head.extend(["parameters", "sent", "returned", "per slot", "activations"]);
        }
        let row = |stage: &StageReport| {
            let mut row = vec![stage.stage.to_string()];
            let layers = stage.part.as_ref().map(|part| match part.first_layer == part.last_layer {
                true => part.first_layer.clone(),
                false => format!("{} … {}", part.first_layer, part.last_layer),
            });
            row.extend(layers);
            row.extend([percent(stage.share), percent(stage.idle), stage.slots.to_string()]);
            row.extend(stage.part.iter().flat_map(|part| {
                let sizes =
                    [part.sent_bytes, part.returned_bytes, part.slot_bytes, part.activation_bytes].map(bytes);
                [part.parameters.to_string()].into_iter().chain(sizes)
            }));
            row
        };
        (head, if parts { 2 } else { 1 }, self.stage.iter().map(row).collect())
    }
}
