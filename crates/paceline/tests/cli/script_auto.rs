//! Scripts that say nothing of this program: `--auto`.

use std::process::Command;

use paceline_testing::{Need, skip};

use crate::support::{Ran, joined, run};

const UNCHANGED: &str = r#"
import argparse, torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 6), torch.randn(96, 3))
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print("done", __name__)
"#;

fn train(python: &str, text: &str, flags: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("unchanged.py");
    std::fs::write(&script, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(["train", "--auto", "--python", python, "--script"]).arg(&script);
    run(command.args(flags.split_whitespace()).args(["--", "--lr", "0.05"]))
}

#[test]
fn an_unchanged_script_trains_on_several_workers_and_what_is_not_understood_is_refused() {
    let python = std::env::var("PACELINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let tried = Command::new(&python).args(["-c", "import torch"]).output();
    if !tried.is_ok_and(|ran| ran.status.success()) {
        skip(Need::PythonPackages, "torch (PACELINE_PYTHON names a Python that has it)");
        return;
    }
    let ran = train(&python, UNCHANGED, "--workers 2");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let result = ran.result();
    // Half of 96 samples each, in batches of 4.
    assert_eq!((&result["steps"], &result["samples"]), (&12.into(), &96.into()), "{result}");
    let hash = |rank: usize| &result["ranks"][rank]["params_sha256"];
    assert_eq!(hash(0), hash(1), "replicas are identical");
    assert!(ran.stderr.contains("done __main__"), "{}", ran.stderr);
    let told = train(&python, &UNCHANGED.replace("shuffle=True", "shuffle=False"), "--workers 2");
    assert!(told.code != 0 && told.stderr.contains("shuffle=True"), "{}", told.stderr);
}

#[test]
fn what_cannot_be_done_with_unchanged_scripts_is_refused_before_they_start() {
    for (flags, told) in [
        ("--workers 2 --strategy ddp-gloo", "not with --strategy ddp-gloo"),
        ("--checkpoint-every 5", "not with --checkpoint-every"),
    ] {
        let ran = train("python3", UNCHANGED, flags);
        let said = joined(&ran.stderr);
        assert!(ran.code == 3 && said.contains("--auto") && said.contains(told), "{flags}: {said}");
    }
}
