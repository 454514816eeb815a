//! What the program does on a terminal, and what only there.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{Ran, STORE, joined, paceline, run};

/// What a terminal of 80 columns shows of the program, given these words and this environment.
fn on_terminal(words: &str, environment: &[(&str, &str)]) -> (i32, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let screen = OpenOptions::new().read(true).write(true).open(name).unwrap();
    let stream = || Stdio::from(screen.try_clone().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(words.split_whitespace()).env("PACELINE_STORE", STORE).env("TERM", "xterm-256color");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    let mut child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
    drop((command, screen));
    let (mut shown, mut master) = (Vec::new(), File::from(master));
    let mut piece = [0; 4096];
    // The terminal is gone, which is an error, when the last process on it has ended.
    while let Ok(length @ 1..) = master.read(&mut piece) {
        shown.extend(&piece[..length]);
    }
    (child.wait().unwrap().code().unwrap_or(-1), String::from_utf8_lossy(&shown).replace("\r\n", "\n"))
}

#[test]
fn the_result_line_of_a_run_is_for_pipes_and_programs_not_for_people() {
    let (code, shown) = on_terminal("train --steps 3", &[]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("accuracy") && shown.contains("where the training time went"), "{shown}");
    assert!(!shown.contains("\"type\":\"result\""), "{shown}");
    // With nothing else to be said, the summary is the result.
    let (_, quiet) = on_terminal("train --steps 3 --quiet", &[]);
    assert!(quiet.contains("accuracy") && !quiet.contains("\"type\""), "{quiet}");
    assert!(on_terminal("train --steps 3 --json", &[]).1.contains("\"type\":\"result\""));
    assert_eq!(paceline("train --steps 3").result()["type"], "result");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let refused = "train --batch 0";
    let (code, shown) = on_terminal(refused, &[]);
    assert_eq!(code, 3, "{shown}");
    assert!(
        shown.contains("\x1b[1;31merror:\x1b[0m") && shown.contains("\x1b[1;36m hint:\x1b[0m"),
        "{shown}"
    );
    assert!(on_terminal("train --steps 3", &[]).1.contains("\x1b[36m█"), "bars are coloured");
    assert!(on_terminal("--help", &[]).1.contains("\x1b["), "help is coloured");
    // The libraries below take a build server (`CI`) for a terminal with colours.
    for environment in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")], &[("TERM", "dumb"), ("CI", "true")]] {
        for words in [refused, "train --steps 3 --quiet", "--help", "tran"] {
            let (_, shown) = on_terminal(words, environment);
            assert!(!shown.contains("\x1b["), "{words} with {environment:?}: {shown:?}");
        }
    }
    // An empty NO_COLOR is none.
    assert!(on_terminal(refused, &[("NO_COLOR", "")]).1.contains("\x1b[1;31m"));
    for words in [refused, "--help", "tran", "train --steps 3"] {
        let Ran { stdout, stderr, .. } = paceline(words);
        assert!(!stdout.contains('\x1b') && !stderr.contains('\x1b'), "{words}: {stdout}{stderr}");
    }
}

fn fits(what: &str, text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{what} has {} columns: {line}", line.chars().count());
    }
}

#[test]
fn tables_and_the_rows_of_studies_fit_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let study = r#"
        sampler = "grid"
        [workload]
        steps = 4
        momentum = 0.9
        [axes]
        strategy = ["ring-allreduce", "halving-doubling"]
        workers = [2]
        batch = [16]
        transport = ["inproc"]
        lr = [0.05, 1000000.0]
        shard = ["iid", "dirichlet(0.5)"]
        [[objectives]]
        metric = "samples_per_s"
        goal = "maximize"
        [control]
        every = 0
    "#;
    fs::write(folder.path().join("wide.toml"), study).unwrap();
    let here = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(words.split(' ')).current_dir(folder.path()).args(["--store", "store"]);
        let ran = run(&mut command);
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran
    };
    let explored = here("explore wide.toml");
    assert!(explored.stderr.contains("diverged"), "{}", explored.stderr);
    fits("explore", &explored.stderr);
    let (simulated, record) =
        (here("simulate --workers 2 --quiet"), "train --workers 2 --servers 1 --strategy ps");
    assert_eq!(simulated.code, 0);
    here(&format!("{record} --steps 5 --trace --quiet"));
    for words in ["runs", "status", "show last", "plan --no-probe wide.toml", "predict --time-only wide.toml"]
    {
        fits(words, &here(words).stdout);
    }
    for words in ["model list", "model show resnet20"] {
        fits(words, &paceline(words).stdout);
    }
    // Where datasets are looked for depends on the machine.
    let datasets = paceline("data list").stdout;
    fits("data list", datasets.split("folders that").next().unwrap());
    let listed = here("runs").stdout;
    for said in ["halving-doubling 2", "ps 2+1", "simulated", "the loss became", "mlp on digits"] {
        assert!(joined(&listed).contains(said), "{said}: {listed}");
    }
}

#[test]
fn verbose_tells_the_plan_the_paths_the_addresses_and_when() {
    let ran = paceline("train -v --workers 2 --steps 3 --transport tcp");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for said in [
        " s] run r",
        "\n  optimizer sgd\n",
        "\n  transport tcp\n",
        "rank 0 listens at 127.0.0.1:",
        "rank 1 listens at 127.0.0.1:",
        "1438 training and 359 test samples of digits; recorded in ",
        "every rank has ended",
    ] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    assert!(ran.stderr.contains(STORE), "{}", ran.stderr);
    // What programs read stays the same.
    assert_eq!(ran.stdout.lines().count(), 1);
    let usual = paceline("train --workers 2 --steps 3").stderr;
    assert!(!usual.contains("listens at") && !usual.contains(" s] "), "{usual}");
    assert_eq!(paceline("train -v -q --steps 3").code, 2);
}

#[test]
fn shells_complete_verbs_and_flags_and_nothing_internal() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = paceline(&format!("completions {shell}")).stdout;
        for known in ["train", "export-weights", "workers", "target-accuracy"] {
            assert!(script.contains(known), "{shell}: {known}");
        }
        for internal in ["keeper", "trial"] {
            assert!(!script.contains(internal), "{shell}: {internal}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("paceline.bash");
    fs::write(&script, paceline("completions bash").stdout).unwrap();
    let completed = |words: &str, at: usize| {
        let text = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; _paceline paceline \"${{COMP_WORDS[{at}]}}\" x; \
             echo \"${{COMPREPLY[@]}}\"",
            Path::new(&script).display()
        );
        run(Command::new("bash").args(["-c", &text])).stdout
    };
    assert_eq!(completed("paceline tra", 1).trim(), "train");
    assert_eq!(completed("paceline train --target", 2).trim(), "--target-accuracy");
    assert_eq!(paceline("completions tcsh").code, 2);
}

#[test]
fn check_tells_every_mistake_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.toml");
    let text = "sampler = \"gird\"\nrepeets = 2\n[workload]\nbathc = 3\nepochs = -1\n[axes]\nworkers = [1, 2]\nlr = []\n\
                [[objectives]]\nmetric = \"final_acuracy\"\ngoal = \"maximize\"\n[budget]\nruns = 0\nminutes = \"ten\"\n";
    fs::write(&file, text).unwrap();
    let ran = paceline(&format!("check {}", file.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{}", ran.stderr);
    for (line, said) in [
        (2, "there is no key `repeets`; did you mean `repeats`?"),
        (8, "axes.lr: at least one level is needed"),
        (13, "budget.runs: at least 1 is needed"),
        (14, "budget.minutes: found string \"ten\", expected a number"),
    ] {
        let told = ran.stderr.lines().find(|told| told.contains(said));
        let told = told.unwrap_or_else(|| panic!("{said}: {}", ran.stderr));
        assert!(told.contains(&format!("s.toml:{line}: ")), "{told}");
    }
    // What depends on the axes is told once these are right.
    fs::write(&file, text.replace("lr = []", "lr = [0.1]")).unwrap();
    let ran = paceline(&format!("check --json {}", file.display()));
    let document = ran.result();
    let lines: Vec<u64> =
        document["mistakes"].as_array().unwrap().iter().map(|m| m["line"].as_u64().unwrap()).collect();
    assert_eq!((ran.code, lines), (3, vec![1, 2, 4, 10, 13, 14]), "{document}");
    assert!(ran.stderr.contains("6 mistakes"), "{}", ran.stderr);
}
