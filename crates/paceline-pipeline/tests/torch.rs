//! PyTorch reads the tables that are written here, and writes ones that are read here.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use paceline_pipeline::{PIPELINES, PipelineProgram, StageTimes, WorkKind};
use paceline_testing::{Need, skip};

/// Prints PyTorch's table of a schedule for ranks and micro-batches, after it has checked ours, where there is a file.
const SCRIPT: &str = r#"
import csv, sys, types
from torch.distributed.pipelining import schedules
name, ranks, micro, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if file:
    with open(file, newline="") as ours:
        table = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(ours))}
    schedules._validate_schedule(table, ranks, ranks, micro)
if name == "interleaved":
    plan = types.SimpleNamespace(n_local_stages=2, microbatches_per_round=ranks, pp_group_size=ranks, _n_microbatches=micro)
    order = schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations
    own = {rank: order(plan, rank) for rank in range(ranks)}
else:
    kind = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}[name]
    own = kind._get_pipeline_order(types.SimpleNamespace(_num_stages=ranks, _n_microbatches=micro))
writer = csv.writer(sys.stdout)
for rank in sorted(own):
    writer.writerow(["" if action is None else str(action) for action in own[rank]])
"#;

/// A Python that has PyTorch; a skip where there is none.
fn python() -> Option<String> {
    let python = std::env::var("PACELINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = "import torch.distributed.pipelining.schedules as s; s.Schedule1F1B._get_pipeline_order, s._validate_schedule";
    let there =
        Command::new(&python).args(["-c", probe]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skip(Need::PythonPackages, "torch with pipelining's tables (PACELINE_PYTHON names a Python that has it)");
    None
}

/// PyTorch's table.
fn theirs(python: &str, name: &str, ranks: usize, micro_batches: usize, ours: Option<&PathBuf>) -> String {
    let ran = Command::new(python)
        .args(["-c", SCRIPT, name])
        .args([ranks.to_string(), micro_batches.to_string()])
        .arg(ours.cloned().unwrap_or_default())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn pytorch_takes_our_tables_and_writes_the_same_ones() {
    let Some(python) = python() else { return };
    let folder = std::env::temp_dir().join(format!("paceline-pipeline-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("program.csv");
    for pipeline in PIPELINES {
        let (stages, micro_batches) = (4, 8);
        let ours = pipeline.program(stages, micro_batches).unwrap();
        std::fs::write(&file, ours.to_csv()).unwrap();
        let text = theirs(&python, pipeline.name, stages, micro_batches, Some(&file));
        let mut table = PipelineProgram::parse(&text).unwrap();
        // PyTorch 2.13 counts the last rank's forward passes from 1 in this table, and has no use for it: refused here.
        let last = &mut table.ranks[stages - 1].work;
        if last[0].micro == 1 {
            let refused = PipelineProgram::parse(&text).unwrap().check(None, None).unwrap_err().to_string();
            assert!(refused.starts_with("line 4, 3F1 (stage 3): micro-batches must ascend"), "{refused}");
            last.iter_mut().filter(|work| work.kind == WorkKind::Forward).for_each(|work| work.micro -= 1);
        }
        assert_eq!(table.check(Some(stages), Some(micro_batches)).unwrap(), ours, "{}", pipeline.name);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_table_of_several_stages_per_rank_is_checked_and_has_the_known_bubble() {
    let Some(python) = python() else { return };
    let (ranks, chunks, micro_batches) = (4, 2, 8);
    let table = PipelineProgram::parse(&theirs(&python, "interleaved", ranks, micro_batches, None)).unwrap();
    let program = table.check(Some(ranks * chunks), Some(micro_batches)).unwrap();
    let time = StageTimes { forward: 1009, backward: 1009 };
    let timeline = program.timeline(&vec![time; ranks * chunks], 0);
    // (s−1)/(vm+s−1) of the time.
    assert_eq!(timeline.length, (chunks * micro_batches + ranks - 1) as u64 * time.both());
    // 2(s−1)+(v−1)s+1 passes are under way on the first rank at once.
    let (mut live, mut most) = (0_usize, 0);
    for work in &program.ranks()[0].work {
        live = if work.kind == WorkKind::Forward { live + 1 } else { live - 1 };
        most = most.max(live);
    }
    assert_eq!(most, 2 * (ranks - 1) + (chunks - 1) * ranks + 1);
}
