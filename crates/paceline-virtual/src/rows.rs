//! Steps, messages and waits of a run in virtual time, as the rows that a real run's record has.

use paceline_data::order;
use paceline_protocol::WorkKind;
use paceline_record::metric::{LinkReading, Metrics, values};
use paceline_record::{Batch, Event, NOBODY, RankSample, StageRow, StepRow, TraceKind, TraceRow};
use paceline_sim::{MessageDirection, Note, SimulationReport, StepTimes};

use crate::price::PassTiming;
use crate::run::PreparedRun;

const BATCH: usize = 4096;

/// Tells what was noted of each rank; its clock begins with the run's.
pub fn tell(
    metrics: &Metrics,
    run: &PreparedRun,
    happened: &SimulationReport,
    report: &mut dyn FnMut(Event<'_>),
) {
    let PreparedRun { setup, order, timings, .. } = run;
    let samples = |rank: usize, step: u64| {
        let len = order.batch_len(step % order.steps().max(1));
        let share = |position: usize, shares: usize| order::share(len, position, shares).len() as u64;
        match &setup.stages {
            // The last stage counts for its replica.
            Some(stages) if rank < setup.workers => {
                let last = setup.stage_of(rank) + 1 == stages.stages.len();
                share(rank / stages.stages.len(), setup.replicas()) * u64::from(last)
            }
            _ => {
                let own = setup.positions(rank).into_iter().filter(|_| rank < setup.workers);
                own.map(|position| share(position, setup.shares())).sum()
            }
        }
    };
    for (rank, notes) in happened.notes.iter().enumerate() {
        let timing = &timings[setup.stage_of(rank)];
        let step_row = |took: &StepTimes| StepRow {
            stage: stage_row(run, rank, took),
            ..step(took, timing, samples(rank, took.step - 1))
        };
        let steps: Vec<StepRow> = notes.steps.iter().map(step_row).collect();
        for part in steps.chunks(BATCH) {
            let batch = Batch { steps: part.to_vec(), ..Batch::default() };
            report(Event::Batch { rank, batch: &batch });
        }
        for part in notes.trace.chunks(BATCH) {
            let batch = Batch { trace: part.iter().map(row).collect(), ..Batch::default() };
            report(Event::Batch { rank, batch: &batch });
        }
        let links = notes.links.iter().enumerate().filter(|(_, link)| link.messages != [0, 0]);
        let links = links.map(|(peer, link)| {
            let reading = LinkReading {
                sent_bytes: link.bytes[0],
                sent_messages: link.messages[0],
                received_bytes: link.bytes[1],
                received_messages: link.messages[1],
                tcp: None,
                greeting_s: Some(link.round_trip as f64 * 1e-9),
            };
            (peer, happened.end, values(&metrics.link, &reading))
        });
        let sample = RankSample { at_ns: happened.end, links: links.collect(), ..RankSample::default() };
        report(Event::Batch { rank, batch: &Batch { samples: vec![sample], ..Batch::default() } });
    }
}

/// What a worker's stage did in a step.
fn stage_row(run: &PreparedRun, rank: usize, took: &StepTimes) -> Option<StageRow> {
    let PreparedRun { setup, graph, stages, .. } = run;
    let (plan, stages, graph) = (stages.as_ref()?, setup.stages.as_ref()?, graph.as_ref()?);
    let stage = setup.stage_of(rank);
    let batch = setup.replica_batch(took.step - 1, rank / stages.stages.len());
    let computed = (0..stages.micro_batches).filter(|micro| stages.computes(batch, *micro)).count();
    let live_slots = stages.stages[stage].slots.min(computed) as u64;
    let slot_bytes = size_of::<f32>() * plan.capacity * plan.parts[stage].pass_memory(graph).slot;
    let row = StageRow {
        wait_up_ns: took.wait_up,
        wait_down_ns: took.wait_down,
        live_slots,
        activation_bytes: live_slots * slot_bytes as u64,
    };
    (rank < setup.workers).then_some(row)
}

fn step(took: &StepTimes, timing: &PassTiming, samples: u64) -> StepRow {
    let part = |fraction: f64| (fraction * took.compute as f64) as u64;
    let (data_ns, forward_ns) = (part(timing.data), part(timing.forward));
    StepRow {
        step: took.step,
        begin_ns: took.begin,
        data_ns,
        forward_ns,
        backward_ns: took.compute - data_ns - forward_ns,
        send_ns: took.exchange,
        wait_ns: took.wait,
        wait_for: took.wait_for.map(|rank| rank as u64),
        apply_ns: took.apply,
        codec_ns: took.codec,
        core_wait_ns: Some(took.core_wait),
        samples,
        loss: f64::NAN,
        ..StepRow::default()
    }
}

fn row(note: &Note) -> TraceRow {
    match *note {
        Note::Message { did, at, peer, n, tag, bytes } => TraceRow {
            kind: if did == MessageDirection::Sent { TraceKind::Send } else { TraceKind::Receive },
            at_ns: at,
            peer: peer as u64,
            n,
            step: tag.step.into(),
            bucket: tag.bucket.into(),
            phase: tag.phase.into(),
            bytes,
            duration_ns: 0,
        },
        Note::Pass { at, duration, step, work, slot } => TraceRow {
            kind: if work.kind == WorkKind::Forward { TraceKind::Forward } else { TraceKind::Backward },
            at_ns: at,
            peer: NOBODY,
            step,
            bucket: work.micro as u64,
            phase: slot as u64,
            duration_ns: duration,
            ..TraceRow::default()
        },
        Note::Wait { at, peer, duration } => TraceRow {
            kind: TraceKind::Wait,
            at_ns: at,
            peer: peer.map_or(NOBODY, |peer| peer as u64),
            duration_ns: duration,
            ..TraceRow::default()
        },
    }
}
