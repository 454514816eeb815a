//! Files that are not what they should be: damaged ones, fifos and devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fault::Damage;
use crate::scene::{Scene, signal};
use crate::verdict;

/// What stands where a regular file should.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Nobody ever writes to it.
    Fifo,
    /// It never ends.
    Zero,
}

impl Kind {
    fn put(self, path: &Path) {
        let _ = fs::remove_file(path);
        match self {
            Self::Fifo => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            Self::Zero => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        }
    }
}

/// Where it stands.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// A rank's part of the newest checkpoint.
    Part,
    /// `--model-file`.
    Model,
    /// `--init`.
    Weights,
    /// A study file.
    Study,
    /// The store's database.
    Database,
}

/// No command on such a file takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The last rank's file of the newest checkpoint.
pub fn newest_part(scene: &Scene) -> PathBuf {
    let folder = fs::read_dir(scene.store.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let mut kept: Vec<_> =
        fs::read_dir(folder.join("checkpoints")).unwrap().flatten().map(|e| e.path()).collect();
    kept.retain(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")));
    kept.sort();
    assert!(kept.len() >= 2, "two were told of: {kept:?}");
    kept.last().unwrap().join(format!("rank-{}.safetensors", scene.workers + scene.servers - 1))
}

/// A run with two checkpoints whose launcher is killed.
fn killed(scene: &Scene) {
    let mut run = scene.train("", None);
    run.until(|run| run.events().iter().filter(|e| e["type"] == "checkpoint").count() >= 2);
    signal("KILL", run.id());
    run.end();
}

/// Exit code and words of a command that must end by itself.
fn ends(scene: &Scene, words: &str) -> (i32, String) {
    let (out, err) = (scene.store.path().join("first.out"), scene.store.path().join("first.err"));
    let mut command = scene.command(words);
    command.stdout(fs::File::create(out).unwrap()).stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code().unwrap_or(-1), fs::read_to_string(err).unwrap());
        }
        if since.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{words} hangs: {}", fs::read_to_string(err).unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The database is damaged after a run: nothing hangs, and a run that says that it was recorded can be read again.
pub fn store(scene: &Scene, damage: Damage) -> String {
    killed(scene);
    let database = scene.store.path().join("paceline.db");
    for beside in ["paceline.db-wal", "paceline.db-shm"] {
        let _ = fs::remove_file(scene.store.path().join(beside));
    }
    damage.apply(&database);
    let (code, said) = ends(scene, "train --steps 3 --workers 2");
    match code {
        0 => {
            assert!(said.contains("recorded in"), "{said}");
            let (code, said) = ends(scene, "show last");
            assert_eq!(code, 0, "it was recorded: {said}");
        }
        5 => {
            assert!(said.contains("hint:"), "{said}");
            assert!(!said.contains("recorded in"), "{said}");
        }
        other => panic!("exit {other}: {said}"),
    }
    let (listed, told) = ends(scene, "runs");
    assert!([0, 5].contains(&listed), "exit {listed}: {told}");
    format!("train: {code}, runs: {listed}")
}

/// A fifo or a device where a file should be is refused at once, by its name.
pub fn special(scene: &Scene, kind: Kind, place: Place) -> String {
    let file = scene.store.path().join("first.special");
    let words = match place {
        Place::Part => {
            killed(scene);
            kind.put(&newest_part(scene));
            return verdict::resumed(scene, "cannot be used: rank-");
        }
        Place::Model => format!("train --steps 3 --model-file {}", file.display()),
        Place::Weights => format!("train --steps 3 --init {}", file.display()),
        Place::Study => format!("explore {}", file.display()),
        Place::Database => "train --steps 3".into(),
    };
    kind.put(
        if let Place::Database = place { scene.store.path().join("paceline.db") } else { file }.as_path(),
    );
    let (code, said) = ends(scene, &words);
    assert!([2, 3, 5].contains(&code), "exit {code}: {said}");
    assert!(said.contains("regular file") && said.contains("hint:"), "{said}");
    format!("refused with {code}")
}
