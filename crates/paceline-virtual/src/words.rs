//! What virtual time says, for people.

use paceline_nn::optim::Settings;
use paceline_nn::{Graph, Node};
use paceline_pipeline::{StagePlan, StageTimes};
use paceline_plan::Plan;
use paceline_record::{HostsUsed, RankTotals, RunResult, SimulationDetails};
use paceline_resolve::TypedPlan;

use crate::run::DrivenEvent;

/// What is not modelled, whatever is simulated.
pub const NOT_MODELLED: &str = "evaluations, checkpoints, restarts, decoding of images, memory, the kernel's and the \
                                sockets' buffers (--buffer), lost packets";

/// A simulated result: what it rests on, what came out, what it leaves out. `learned` is what came of the training,
/// where gradients were computed.
pub fn summary(result: &RunResult, reservations: &[String], learned: Option<String>) -> String {
    let mut text = String::from("in virtual time:\n");
    for reservation in reservations {
        text += &format!("not calibrated: {reservation}\n");
    }
    text += &learned.unwrap_or_else(|| timing(result));
    result.membership.iter().for_each(|change| text += &format!("{}\n", change.words()));
    let Some(details) = &result.simulated else { return text };
    if let Some(cost) = details.cost {
        let seconds = result.seconds.train;
        let cost = if cost < 0.01 { format!("{cost:.2e}") } else { format!("{cost:.4}") };
        text += &format!("cost {cost} {} over {seconds:.3} s of training\n", price(details));
    }
    let made = &details.simulation;
    let by = if made.by == "schedule" { "as one schedule" } else { "event by event" };
    text += &format!("not modelled: {NOT_MODELLED}\n");
    text + &format!("simulated in {:.2} s of real time, {by}, {} messages\n", made.real_s, made.messages)
}

/// What stages come to in virtual time: the bubble, and of each its layers, its idle time and what a rank of it needs.
pub fn stages(plan: &TypedPlan<'_>, graph: &Graph, stages: &StagePlan, result: &RunResult) -> String {
    let workers: Vec<&RankTotals> = result.ranks.iter().filter(|rank| rank.role == "worker").collect();
    let (count, train) = (stages.parts.len(), result.seconds.train);
    let of = |stage: usize| workers.iter().filter(move |rank| rank.rank % count == stage);
    let busy = |rank: &RankTotals| rank.compute_s + rank.send_s + rank.apply_s;
    let works =
        |stage: usize| of(stage).map(|rank| busy(rank)).sum::<f64>() / of(stage).count().max(1) as f64;
    let mean = (0..count).map(works).sum::<f64>() / count as f64;
    let idle = |busy_s: f64| 100.0 * (1.0 - busy_s / train);
    let even = vec![StageTimes { forward: 1, backward: 2 }; count];
    let least = 100.0 * stages.program.timeline(&even, 0).bubble();
    let mut text = format!(
        "{count} stages, {}, {}: bubble {:.1}% of the workers' time ({least:.1}% if all stages took the same and nothing \
         else took time)\n",
        plan.pipeline.as_deref().unwrap_or_default(),
        match stages.program.micro_batches() {
            1 => "1 micro-batch".into(),
            several => format!("{several} micro-batches"),
        },
        idle(mean),
    );
    // Servers remember for their workers.
    let Plan { momentum, nesterov, weight_decay, .. } = *plan.document;
    let settings = Settings { momentum, nesterov, weight_decay, ..Settings::default() };
    let remembered = if plan.servers > 0 { 0 } else { (plan.optimiser.memory)(&settings) };
    for (stage, memory) in stages.memory(graph, remembered).into_iter().enumerate() {
        let nodes = &graph.nodes()[stages.parts[stage].nodes.clone()];
        let name = |node: Option<&Node>| node.map_or_else(String::new, |node| node.name.clone());
        let mb = |bytes: usize| bytes as f64 / 1e6;
        text += &format!(
            "stage {stage}: {} … {}, {:.1}% idle; a rank needs {:.1} MB: {:.1} parameters and optimiser, {:.1} passes, {:.1} \
             crossings, {:.1} waiting messages at most\n",
            name(nodes.first()),
            name(nodes.last()),
            idle(works(stage)),
            mb(memory.bytes()),
            mb(memory.parameters + memory.optimiser),
            mb(memory.passes),
            mb(memory.crossings),
            mb(memory.held),
        );
    }
    text
}

/// Why a run goes event by event, and how long that takes.
pub fn driven(event: &DrivenEvent) -> String {
    let DrivenEvent::Begins { why, messages, seconds, at_most } = event else { return String::new() };
    let about = if *at_most { "at most about" } else { "about" };
    let repeats = if *at_most { ", less if steps repeat" } else { "" };
    format!(
        "event by event, because {why}: {about} {} messages, {}{repeats}",
        count(*messages),
        duration(*seconds)
    )
}

/// A large number: `4.0 billion`.
fn count(number: f64) -> String {
    match number {
        1e9.. => format!("{:.1} billion", number / 1e9),
        1e6.. => format!("{:.1} million", number / 1e6),
        _ => format!("{number:.0}"),
    }
}

/// A rough time: `27 min`.
fn duration(seconds: f64) -> String {
    match seconds {
        7200.0.. => format!("{:.0} hours", seconds / 3600.0),
        120.0.. => format!("{:.0} min", seconds / 60.0),
        2.0.. => format!("{seconds:.0} s"),
        _ => "less than 2 s".into(),
    }
}

fn timing(result: &RunResult) -> String {
    let workers: Vec<&RankTotals> = result.ranks.iter().filter(|rank| rank.role == "worker").collect();
    let mean = |f: fn(&RankTotals) -> f64| {
        let all: f64 = workers.iter().map(|rank| f(rank)).sum();
        100.0 * all / workers.len().max(1) as f64 / result.seconds.train
    };
    format!(
        "{} steps in {:.3} s, {:.3} ms each, {:.0} samples/s\n\
         of the workers' time {:.1}% computing, {:.1}% exchanging, {:.1}% updating, {:.1}% waiting\n",
        result.steps,
        result.seconds.train,
        1e3 * result.seconds.train / result.steps.max(1) as f64,
        result.samples_per_s,
        mean(|rank| rank.compute_s),
        mean(|rank| rank.send_s),
        mean(|rank| rank.apply_s),
        mean(|rank| rank.wait_s),
    )
}

/// The unit of a cost, and what it pays for: `EUR for 4 hosts (3 small, 1 big)`.
fn price(details: &SimulationDetails) -> String {
    format!("{} for {}", unit(details.currency.as_deref()), hosts(&details.hosts))
}

/// The unit of a cost.
pub fn unit(currency: Option<&str>) -> &str {
    currency.unwrap_or("(in the unit of the cluster's prices)")
}

/// Hosts by their names: `4 hosts (3 small, 1 big)`.
pub fn hosts(used: &[HostsUsed]) -> String {
    let count: usize = used.iter().map(|group| group.count).sum();
    let names: Vec<String> = used.iter().map(|group| format!("{} {}", group.count, group.name)).collect();
    format!("{count} {} ({})", if count == 1 { "host" } else { "hosts" }, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_members_are_told_in_one_line_each() {
        let change = paceline_record::MembershipChange {
            at_s: 2.5,
            lost: vec![3],
            left: Vec::new(),
            joined: vec![4, 5],
            took_over: vec![4],
            workers: 4,
            servers: 1,
            step: 17,
            steps_anew: 1,
            samples_dropped: 16,
            pause_s: 0.12,
        };
        assert_eq!(
            change.words(),
            "at 2.500 s: lost rank 3, joined by ranks 4, 5; the work went to rank 4; 4 workers and 1 server went on after \
             0.120 s, from step 17, 1 step made anew, 16 samples dropped"
        );
    }

    #[test]
    fn estimates_have_their_units() {
        let begins = |messages: f64, at_most| {
            let why = "latencies vary".into();
            driven(&DrivenEvent::Begins { why, messages, seconds: messages / 1e6, at_most })
        };
        assert_eq!(
            begins(4.0e9, true),
            "event by event, because latencies vary: at most about 4.0 billion messages, 67 min, less if steps repeat"
        );
        assert_eq!(
            begins(8.9e6, false),
            "event by event, because latencies vary: about 8.9 million messages, 9 s"
        );
        assert_eq!(
            begins(1e3, false),
            "event by event, because latencies vary: about 1000 messages, less than 2 s"
        );
        assert_eq!(duration(36_000.0), "10 hours");
    }
}
