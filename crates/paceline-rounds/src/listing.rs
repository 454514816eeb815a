//! What each worker does in an iteration, in words.

use serde::Serialize;

use crate::compile::RoundOp;
use crate::file::StrategyFileError;
use crate::program::Program;

/// What a worker does in an iteration.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerRounds {
    /// The worker.
    pub rank: usize,
    /// Its operations, in order.
    pub does: Vec<String>,
}

impl Program {
    /// What each worker does in a step.
    pub fn rounds(
        &self,
        workers: usize,
        step: u64,
        seed: u64,
    ) -> Result<Vec<WorkerRounds>, StrategyFileError> {
        let compiled = self.compiled(workers, &[], seed)?;
        compiled.check(step + 1)?;
        let iteration = compiled.iteration(step);
        let names = &self.description.registers;
        let several = iteration.ops.len() > 1;
        let all = (0..workers).map(|rank| {
            let mut does = Vec::new();
            for (chunk, ops) in iteration.ops.iter().enumerate() {
                if several {
                    does.push(format!("chunk {chunk}:"));
                }
                does.extend(ops[rank].iter().map(|op| told(op, names, iteration.chunks, &iteration.phases)));
            }
            WorkerRounds { rank, does }
        });
        Ok(all.collect())
    }
}

fn told(op: &RoundOp, names: &[String], chunks: usize, phases: &[String]) -> String {
    let of = |register: &usize, range: &std::ops::Range<usize>| match (range.len(), chunks) {
        (len, chunks) if len == chunks => names[*register].clone(),
        (1, _) => format!("{}[{}]", names[*register], range.start),
        _ => format!("{}[{}..{}]", names[*register], range.start, range.end),
    };
    let round = |phase: &u32| phases.get(*phase as usize).map_or("", String::as_str);
    let mixed = |dst: String, keep: f32, add: f32, src: String| match (keep, add) {
        (0.0, 1.0) => format!("{dst} = {src}"),
        (1.0, 1.0) => format!("{dst} += {src}"),
        (0.0, add) => format!("{dst} = {add} · {src}"),
        (keep, add) => format!("{dst} = {keep} · {dst} + {add} · {src}"),
    };
    match op {
        RoundOp::Send { to, register, chunks, phase, window, .. } => {
            let to: Vec<String> = to.iter().map(ToString::to_string).collect();
            let window = window.map_or_else(String::new, |steps| format!(", at most {steps} steps untaken"));
            format!("send {} to {} ({}{window})", of(register, chunks), to.join(", "), round(phase))
        }
        RoundOp::Receive { from, register, chunks, phase, keep, add, .. } => {
            let dst = of(register, chunks);
            format!("{} ({})", mixed(dst, *keep, *add, format!("message of {from}")), round(phase))
        }
        RoundOp::Set { dst, src, chunks, keep, add } => mixed(of(dst, chunks), *keep, *add, of(src, chunks)),
        RoundOp::Scale { dst, chunks, by } => format!("{0} = {by} · {0}", of(dst, chunks)),
        RoundOp::Swap(a, b, chunks) => format!("swap {} and {}", of(a, chunks), of(b, chunks)),
        RoundOp::Update(with) => format!("update x with {}", names[*with]),
    }
}
