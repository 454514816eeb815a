//! The table of a pipeline's program, as another tool might have written it.

use paceline_pipeline::{PIPELINES, PipelineProgram, PipelineReport};

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let Ok(program) = PipelineProgram::parse(&text).and_then(|program| program.check(None, None)) else {
        return false;
    };
    let (stages, micro_batches) = (program.stages(), program.micro_batches());
    assert_eq!(program.order().len(), 2 * stages * micro_batches, "everything once");
    assert!((0..stages).all(|stage| (1..=micro_batches).contains(&program.slots(stage))));
    let again = PipelineProgram::parse(&program.to_csv()).and_then(|again| again.check(None, None));
    let again = again.expect("what was written can be read");
    assert_eq!(again.order(), program.order());
    let report = PipelineReport::of_equal_stages("file", &program);
    assert!((0.0..1.0).contains(&report.bubble) && !report.text(80).is_empty());
    true
}

pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let table = |i: usize, stages, micro_batches| {
        let program = PIPELINES[i].program(stages, micro_batches).expect("a registered pipeline");
        program.to_csv().into_bytes()
    };
    vec![
        ("gpipe", table(0, 3, 4)),
        ("1f1b", table(1, 4, 6)),
        ("waits", b"0F0,0F1,,,0B0,,0B1,0REDUCE_GRAD\n,1F0,1B0,1F1,1B1\n".to_vec()),
        ("interleaved", b"0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n".to_vec()),
        ("stranger-circle", b"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n".to_vec()),
        ("stranger-comms", b"0F0,0SEND_F0,(0F1;1B0)OVERLAP_F_B,65535F65535\n".to_vec()),
    ]
}
