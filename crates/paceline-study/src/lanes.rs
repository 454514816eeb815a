//! Where a study's runs are made: on parts of this machine's cores, or on nodes.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_launch::RunEnd;
use paceline_launch::nodes::{NodeChange, NodeTrial, NodeWork, Nodes, TREE};
use paceline_launch::trial::{self, Trial, TrialEvent, TrialPlace};
use paceline_record::Store;
use paceline_record::metric::Metrics;
use paceline_record::store::FILE;

use crate::error::StudyFailure;
use crate::workload::Call;

/// Where runs are made side by side.
pub enum Places {
    /// So many on this machine, each on its part of the cores.
    Here(usize),
    /// So many on nodes, each on nodes of its own.
    Nodes(Box<Nodes>, usize),
}

impl Places {
    /// On nodes where there are any; as many runs at a time as was said, else one, or one for each node.
    pub fn new(nodes: Option<Nodes>, parallel: Option<u32>) -> Self {
        let most = |otherwise: usize| parallel.map_or(otherwise, |parallel| parallel as usize);
        match nodes {
            Some(nodes) => {
                let most = most(nodes.size());
                Self::Nodes(Box::new(nodes), most)
            }
            None => Self::Here(most(1)),
        }
    }

    /// Refuses more runs at a time than there are nodes.
    pub fn check(nodes: Option<usize>, parallel: Option<u32>) -> Result<(), StudyFailure> {
        match (nodes, parallel.map(|parallel| parallel as usize)) {
            (Some(nodes), Some(parallel)) if parallel > nodes => {
                Err(StudyFailure::ParallelNodes { parallel, nodes })
            }
            _ => Ok(()),
        }
    }

    /// Ends the nodes of a study that cannot begin.
    pub fn end(self, failure: &StudyFailure) {
        if let Self::Nodes(mut nodes, _) = self {
            nodes.end(over(Some(failure)));
        }
    }
}

/// The places of single runs: a *lane* each.
pub(crate) struct Lanes {
    /// The cores of each lane of this machine; none named where there is one.
    here: Vec<Vec<usize>>,
    nodes: Option<Box<Nodes>>,
    /// Most runs at a time.
    most: usize,
    program: PathBuf,
}

impl Lanes {
    pub fn new(places: Places) -> Result<Self, StudyFailure> {
        let program = std::env::current_exe()?;
        match places {
            Places::Here(most) => Ok(Self { here: on_cores(most)?, nodes: None, most, program }),
            Places::Nodes(mut nodes, most) => {
                let size = nodes.size();
                if most > size {
                    let error = StudyFailure::ParallelNodes { parallel: most, nodes: size };
                    nodes.end(over(Some(&error)));
                    return Err(error);
                }
                Ok(Self { here: Vec::new(), nodes: Some(nodes), most, program })
            }
        }
    }

    /// Most runs at a time.
    pub fn most(&self) -> usize {
        self.most
    }

    /// All lanes, those of nodes that are gone included.
    pub fn size(&self) -> usize {
        self.nodes.as_ref().map_or(self.here.len(), |nodes| nodes.size())
    }

    /// Lanes that are there.
    pub fn present(&self) -> usize {
        self.nodes.as_ref().map_or(self.here.len(), |nodes| nodes.present())
    }

    /// How many lanes a run takes: a host of its plan is a node, where there are nodes.
    pub fn needed(&self, call: &Call) -> usize {
        if self.nodes.is_some() { call.hosts } else { 1 }
    }

    /// Lanes without a run, given those that runs have.
    pub fn free(&self, taken: &[usize]) -> Vec<usize> {
        let idle = |lane: &usize| *lane == 0 || self.nodes.as_ref().is_none_or(|nodes| nodes.idle(*lane));
        (0..self.size()).filter(|lane| !taken.contains(lane)).filter(idle).collect()
    }

    /// Cores of a lane.
    pub fn cores(&self, lane: usize) -> usize {
        match (&self.nodes, self.here.get(lane)) {
            (Some(nodes), _) => nodes.core_count(lane),
            (None, Some(cores)) if !cores.is_empty() => cores.len(),
            (None, _) => trial::cores().len(),
        }
    }

    /// The node of a lane in words.
    pub fn node(&self, lane: usize) -> Option<String> {
        self.nodes.as_ref().map(|nodes| nodes.label(lane))
    }

    /// Where other nodes reach the one of a lane.
    pub fn address(&self, lane: usize) -> Option<IpAddr> {
        self.nodes.as_ref()?.address(lane)
    }

    /// Starts a program. `tree`: where its process tree is sampled to, if it is; `into`: where a node's run leaves what it
    /// has recorded. None if the lane's node is gone.
    pub fn start(
        &mut self,
        lane: usize,
        call: &Call,
        tree: Option<&Path>,
        into: PathBuf,
    ) -> io::Result<Option<LaneTrial>> {
        let unnumbered = self.nodes.is_some();
        if let (Some(nodes), 1..) = (&mut self.nodes, lane) {
            let document = call.document.as_ref().map(serde_json::to_value).transpose()?.unwrap_or_default();
            let words = if call.document.is_some() { Vec::new() } else { call.words.clone() };
            let work = NodeWork { words, document, tree: tree.is_some() };
            // A node that was lost may have sent a part of what its run has left.
            match fs::remove_dir_all(&into) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            return Ok(nodes.start(lane, work, into).map(LaneTrial::There));
        }
        let shared = self.nodes.as_ref().map(|nodes| nodes.cores(0));
        let cores = shared.unwrap_or_else(|| self.here.get(lane).map_or(&[], Vec::as_slice));
        let place = TrialPlace { cores, tree, scratch: None, unnumbered };
        let trial = Trial::start(&self.program, "keeper", place, &call.words, &call.text()?)?;
        Ok(Some(LaneTrial::Here(trial)))
    }

    /// What has become of nodes.
    pub fn changes(&mut self) -> Vec<NodeChange> {
        self.nodes.as_mut().map(|nodes| nodes.changes()).unwrap_or_default()
    }

    /// Which nodes are there, in words; nothing where there are none.
    pub fn words(&self) -> Option<String> {
        self.nodes.as_ref()?;
        Some(format!("{} of {} nodes", self.present(), self.size()))
    }

    /// Ends the nodes, with word of how the study ended.
    pub fn end(mut self, failure: Option<&StudyFailure>) {
        if let Some(nodes) = &mut self.nodes {
            nodes.end(over(failure));
        }
    }
}

fn over(failure: Option<&StudyFailure>) -> RunEnd {
    let failed = |error: &StudyFailure| RunEnd {
        failure: Some(error.kind()),
        message: error.to_string(),
        hint: error.hint(),
        result: None,
    };
    failure.map_or_else(RunEnd::default, failed)
}

/// The cores of each lane of this machine; none named where there is one lane.
fn on_cores(parallel: usize) -> Result<Vec<Vec<usize>>, StudyFailure> {
    if parallel <= 1 {
        return Ok(vec![Vec::new()]);
    }
    let cores = trial::cores();
    if parallel > cores.len() {
        return Err(StudyFailure::Parallel { parallel, cores: cores.len() });
    }
    let each = cores.len() / parallel;
    Ok((0..parallel).map(|lane| cores[lane * each..(lane + 1) * each].to_vec()).collect())
}

/// A run on a lane. Dropping it ends it.
pub(crate) enum LaneTrial {
    Here(Trial),
    There(NodeTrial),
}

impl LaneTrial {
    /// What comes next, or why its node is lost; `None` when nothing comes within `patience`.
    pub fn hear(&mut self, patience: Duration) -> Option<Result<TrialEvent, String>> {
        match self {
            Self::Here(trial) => trial.hear(patience).map(Ok),
            Self::There(trial) => trial.hear(patience),
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        match self {
            Self::Here(trial) => trial.seconds(),
            Self::There(trial) => trial.seconds(),
        }
    }

    /// Ends it.
    pub fn kill(&mut self) {
        match self {
            Self::Here(trial) => trial.kill(),
            Self::There(trial) => trial.kill(),
        }
    }

    /// Takes what a run on a node has left into the store, once it has ended: its record, its checkpoints, and the samples
    /// of its process tree.
    pub fn take_in(&self, store: &Path, metrics: &Metrics, tree: &Path) -> Result<(), StudyFailure> {
        let Self::There(trial) = self else { return Ok(()) };
        let from = trial.left();
        if from.join(FILE).is_file() {
            Store::create_with(store, metrics)?.import(from)?;
        }
        if from.join(TREE).is_file() {
            tree.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::rename(from.join(TREE), tree)?;
        }
        match fs::remove_dir_all(from) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
