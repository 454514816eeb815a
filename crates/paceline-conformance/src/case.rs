//! A strategy with everything that can be chosen.

use std::sync::Arc;

use paceline_protocol::{
    Averages, Coder, FROM_FILE, Options, Protocols, ReplicaAgreement, Setup, SizedPath, Strategy,
    StrategyProgram, Tensor, consistency as models,
};
use paceline_random::{Purpose, Stream};

/// A strategy with everything that can be chosen.
#[derive(Clone)]
pub struct StrategyCase {
    /// The strategy.
    pub strategy: &'static Strategy,
    /// The consistency model.
    pub sync: &'static str,
    /// Parameters, resolved.
    pub options: Options,
    /// What is averaged.
    pub averages: Averages,
    /// How messages are made shorter.
    pub coder: Option<Coder>,
    /// The rounds of a strategy file.
    pub program: Option<Arc<dyn StrategyProgram>>,
}

impl StrategyCase {
    /// A registered strategy, by its name.
    ///
    /// # Panics
    /// If there is none, or it does not take the options.
    pub fn new(strategy: &str, sync: &'static str, options: &[(&str, &str)]) -> Self {
        Self::of(paceline_protocol::find(strategy).unwrap(), sync, options)
    }

    /// Any strategy.
    ///
    /// # Panics
    /// If it does not take the options.
    pub fn of(strategy: &'static Strategy, sync: &'static str, options: &[(&str, &str)]) -> Self {
        let mut options = Options::of(options);
        Protocols::default().resolve(strategy, sync, &mut options).unwrap();
        Self { strategy, sync, options, averages: strategy.averages[0], coder: None, program: None }
    }

    /// A strategy file.
    pub fn of_file(program: Arc<dyn StrategyProgram>) -> Self {
        let averages = program.averages();
        Self { averages, program: Some(program), ..Self::of(&FROM_FILE, "bsp", &[]) }
    }

    /// What it is, in words.
    pub fn name(&self) -> String {
        let Self { strategy, sync, options, averages, coder, program } = self;
        let coder = coder.map_or_else(String::new, |c| c.to_string());
        let program = program.as_ref().map_or_else(String::new, |program| format!(" {program:?}"));
        format!("{}{program} {sync} {} {:?} {coder}", strategy.name, averages.name(), options.0.values())
    }

    /// A setup of these choices.
    ///
    /// # Panics
    /// If nobody knows the consistency model.
    pub fn setup(&self, base: Setup) -> Setup {
        let sync = (models::find(self.sync).unwrap().make)(&self.options, base.end());
        let (options, averages, coder) = (self.options.clone(), self.averages, self.coder);
        Setup { sync, options, averages, coder, program: self.program.clone(), ..base }
    }

    /// A setup drawn from a seed: 1 to 8 workers, 1 to 3 servers, hosts, sizes that divide nothing evenly.
    pub fn draw(&self, seed: u64) -> Setup {
        let s = Stream::new(seed, Purpose::Virtual).fork(9);
        let workers = 1 + s.below(0, 8) as usize;
        let servers = if self.strategy.servers { 1 + s.below(1, 3) as usize } else { 0 };
        let params = 3 + s.below(2, 60) as usize;
        // Each worker its own host, hosts with several, one with all.
        let group = [1, 2, 3, 8][s.below(6, 4) as usize];
        // A vector in front of a matrix.
        let (front, cols) = (params % 5, 3);
        let tensor = |offset, rows, cols| Tensor { offset, rows, cols };
        let tensors = vec![tensor(0, 1, front), tensor(front, (params - front) / cols, cols)];
        self.setup(Setup {
            bucket: 1 + s.below(3, 40) as usize,
            message: 1 + s.below(4, 20) as usize,
            tensors,
            hosts: (0..8).map(|rank| rank / group).collect(),
            paths: paths(),
            generation: 3,
            seed,
            ..Setup::new(workers, servers, params, 1 + s.below(5, 25))
        })
    }

    /// How far replicas agree, as the strategy says.
    pub fn agreement(&self, setup: &Setup) -> ReplicaAgreement {
        (self.strategy.agreement)(setup)
    }
}

/// Lengths of buckets are drawn between 4 and 160 bytes: each of these paths gets some.
fn paths() -> Vec<SizedPath> {
    let sized = |below_bytes, name| {
        let strategy = paceline_protocol::find(name).unwrap();
        SizedPath { below_bytes, name: strategy.name, path: strategy.path.unwrap() }
    };
    vec![
        sized(Some(32), "direct"),
        sized(Some(64), "tree"),
        sized(Some(96), "hierarchical"),
        sized(None, "ring-allreduce"),
    ]
}
