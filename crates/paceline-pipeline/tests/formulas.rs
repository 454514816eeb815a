//! Registered pipelines have the bubbles and slots that are known of them, to the nanosecond; programs that are not
//! quite theirs are refused.

use paceline_pipeline::{CheckedProgram, PIPELINES, Pipeline, PipelineProgram, StageTimes, Work, WorkKind};

/// Odd times, so that nothing comes out even by chance.
const TIMES: [StageTimes; 3] = [
    StageTimes { forward: 1_000_003, backward: 2_000_029 },
    StageTimes { forward: 77_777, backward: 77_777 },
    StageTimes { forward: 5_000_011, backward: 3 },
];

fn sizes() -> impl Iterator<Item = (usize, usize)> {
    (1..=8).flat_map(|stages| (1..=17).map(move |micro_batches| (stages, micro_batches)))
}

fn program(pipeline: &Pipeline, stages: usize, micro_batches: usize) -> CheckedProgram {
    let program = pipeline.program(stages, micro_batches).unwrap_or_else(|error| {
        panic!("{}, {stages} stages, {micro_batches} micro-batches: {error}", pipeline.name)
    });
    assert_eq!((program.stages(), program.micro_batches()), (stages, micro_batches));
    program
}

#[test]
fn bubbles_equal_the_formula_to_the_nanosecond() {
    for pipeline in PIPELINES {
        assert_eq!(pipeline.bubble, "(s−1)/(m+s−1)", "{}: this test knows one formula", pipeline.name);
        for ((s, m), time) in sizes().flat_map(|size| TIMES.map(|time| (size, time))) {
            let timeline = program(pipeline, s, m).timeline(&vec![time; s], 0);
            let what = format!("{}, {s} stages, {m} micro-batches, {time:?}", pipeline.name);
            assert_eq!(timeline.length, (m + s - 1) as u64 * time.both(), "{what}");
            for rank in 0..s {
                assert_eq!(timeline.idle(rank), (s - 1) as u64 * time.both(), "{what}, rank {rank}");
            }
            let formula = (s - 1) as f64 / (m + s - 1) as f64;
            assert!((timeline.bubble() - formula).abs() < 1e-15, "{what}");
        }
    }
}

#[test]
fn slots_equal_the_formula() {
    for pipeline in PIPELINES {
        for (s, m) in sizes() {
            let program = program(pipeline, s, m);
            for i in 0..s {
                let formula = match pipeline.slots {
                    "m" => m,
                    "min(s−i, m)" => (s - i).min(m),
                    other => panic!("{}: this test does not know {other}", pipeline.name),
                };
                assert_eq!(program.slots(i), formula, "{}, stage {i} of {s}, m = {m}", pipeline.name);
            }
        }
    }
}

#[test]
fn the_longest_stage_sets_the_pace_and_latency_is_paid_on_each_way_in_and_out() {
    let gpipe = PIPELINES.iter().find(|pipeline| pipeline.name == "gpipe").unwrap();
    for (s, m) in sizes() {
        let length = |latency| program(gpipe, s, m).timeline(&vec![TIMES[0]; s], latency).length;
        assert_eq!(length(1000), length(0) + 2 * (s as u64 - 1) * 1000, "{s} stages, {m} micro-batches");
    }
    let mut times = vec![TIMES[0]; 3];
    times[1] = StageTimes { forward: 9_000_000, backward: 18_000_000 };
    for pipeline in PIPELINES {
        let length = |m| program(pipeline, 3, m).timeline(&times, 0).length;
        assert_eq!(length(9) - length(8), times[1].both(), "{}", pipeline.name);
    }
}

/// The work of each rank.
fn ranks(program: &CheckedProgram) -> Vec<Vec<Work>> {
    program.ranks().iter().map(|rank| rank.work.clone()).collect()
}

fn accepted(ranks: Vec<Vec<Work>>) -> bool {
    PipelineProgram::new(ranks).check(Some(3), Some(4)).is_ok()
}

#[test]
fn a_program_with_work_too_few_too_often_or_in_another_turn_is_refused() {
    for pipeline in PIPELINES {
        let whole = ranks(&program(pipeline, 3, 4));
        assert!(accepted(whole.clone()));
        for rank in 0..3 {
            for i in 0..whole[rank].len() {
                let work = whole[rank][i];
                let mut fewer = whole.clone();
                fewer[rank].remove(i);
                assert!(!accepted(fewer), "{} without {work}", pipeline.name);
                let mut more = whole.clone();
                more[rank].push(work);
                assert!(!accepted(more), "{} with {work} twice", pipeline.name);
                let mut elsewhere = whole.clone();
                elsewhere[rank].remove(i);
                elsewhere[(rank + 1) % 3].push(work);
                assert!(!accepted(elsewhere), "{} with {work} on another rank", pipeline.name);
                for j in i + 1..whole[rank].len() {
                    let other = whole[rank][j];
                    let mut swapped = whole.clone();
                    swapped[rank].swap(i, j);
                    let same_kind = work.kind == other.kind;
                    let own = work.micro == other.micro;
                    if same_kind || own {
                        assert!(!accepted(swapped), "{} with {work} and {other} swapped", pipeline.name);
                    }
                }
            }
        }
    }
}

#[test]
fn orders_put_nothing_before_what_it_waits_for() {
    for pipeline in PIPELINES {
        let program = program(pipeline, 4, 6);
        let place = |work: Work| program.order().iter().position(|other| *other == work).unwrap();
        assert_eq!(program.order().len(), 2 * 4 * 6);
        for &work in program.order() {
            if let Some(other) = work.waits_for(4) {
                assert!(place(other) < place(work), "{work} before {other}");
            }
            if work.kind == WorkKind::Backward {
                assert!(place(Work::forward(work.stage, work.micro)) < place(work), "{work}");
            }
        }
    }
}
