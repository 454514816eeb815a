//! PyTorch scripts on Paceline beside PyTorch's own DDP over gloo: the same loop on several sides
//! (`bench/peers/torch_sides.py`).
//!
//! - [`speed`]: samples per second of two workers, CPU seconds of one
//! - [`numbers`]: parameters bit for bit, and beside one worker with the whole batch
//! - [`gpu`]: the same and more on one GPU (`bench/peers/torch_gpu.py`)
//! - [`learning`]: every strategy and consistency model on MNIST

pub mod gpu;
pub mod learning;
pub mod numbers;
pub mod speed;

use std::process::Command;

use super::Setup;
use super::peers::{self, Peers};
use crate::process::{Outcome, root};

/// The loop that every side runs.
pub const LOOP: &str = "bench/peers/torch_sides.py";

/// How the sides are started.
pub struct Sides<'a> {
    setup: &'a Setup,
    peers: Peers<'a>,
}

impl<'a> Sides<'a> {
    pub fn new(setup: &'a Setup) -> Outcome<Self> {
        Ok(Self { setup, peers: Peers::new(setup)? })
    }

    /// The program.
    pub fn paceline(&self) -> Command {
        self.peers.paceline()
    }

    /// The loop without Paceline's program: `bare`, `ddp`, or `paceline`, which then does nothing.
    pub fn plain(&self, side: &str, words: &str) -> Command {
        let mut command = self.peers.own_script(LOOP);
        command.args(["--side", side]).args(words.split_whitespace());
        command.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// A script as workers of `paceline train` with these flags.
    fn workers(&self, script: &str, flags: &str, words: &str) -> Command {
        let mut command = self.peers.paceline();
        command.args(["train", "--quiet", "--no-record"]).args(flags.split_whitespace());
        command.arg("--script").arg(root().join(script)).arg("--python").arg(peers::python(self.setup));
        command.arg("--").args(words.split_whitespace());
        command
    }

    /// The loop as workers.
    fn attached(&self, flags: &str, words: &str) -> Command {
        self.workers(LOOP, flags, &format!("--side paceline {words}"))
    }
}
