//! Elastic runs over several machines, all of them on loopback: whichever rank or machine is lost, leaves or joins late, the
//! run ends with the parameters that it would have had.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::aftermath::Scene;
use crate::bad_input::write_mnist;
use crate::machines::{Listening, Process, all_gone, error};
use crate::namespaces::Machines;
use crate::support::{PATIENCE, Ran, result, signal};

const HERE: &str = "127.0.0.1:0";
/// Four workers with steps so long that whoever comes late finds the run under way: only the clock knows of the straggler.
const WORDS: &str = "--workers 4 --batch 8 --bucket 32KiB --steps 120 --eval-every 40 --seed 5";
const SLOW: &str = "--straggler rank=0,factor=200";

/// A run of two machines or more, in a scene of its own.
struct Run<'a> {
    scene: &'a Scene,
    listening: Listening,
    joiners: Vec<Process>,
}

impl<'a> Run<'a> {
    /// Starts the launcher and the machines of the plan, each with a variable of its own (`PACELINE_TEST_DIE`).
    fn start(scene: &'a Scene, words: &str, hosts: usize, die: &str) -> Self {
        let words = format!("--hosts {hosts} {words}");
        let listening = Listening::start_with(&[], HERE, &words, &scene.environment());
        let mut run = Self { scene, listening, joiners: Vec::new() };
        for host in 1..hosts {
            let joiner = run.join(&format!("--host {host}"), die);
            joiner.says("joined ");
            run.joiners.push(joiner);
        }
        run
    }

    fn join(&self, words: &str, die: &str) -> Process {
        let own = self.scene.environment();
        let environment: Vec<_> = own.into_iter().chain([("PACELINE_TEST_DIE", die)]).collect();
        self.listening.join_with(&[], words, &environment)
    }

    /// The next change of members, of which there were so many before.
    fn change(&self, before: usize) -> Value {
        let told = |text: &str| {
            let lines = text.lines().filter(|line| line.contains(r#""type":"membership""#));
            lines.map(str::to_owned).nth(before)
        };
        let begun = Instant::now();
        loop {
            if let Some(line) = told(&self.listening.launcher.stdout()) {
                return serde_json::from_str::<Value>(&line).unwrap()["change"].clone();
            }
            let launcher = &self.listening.launcher;
            let text = || format!("{}\n{}", launcher.stdout(), launcher.stderr());
            assert!(begun.elapsed() < PATIENCE, "no change: {}", text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The end, which must be a good one and leave nothing behind; the result, and what each machine said.
    fn end(self, calm: &Value) -> (Value, Vec<(i32, String)>) {
        let (code, stdout, stderr) = self.listening.launcher.end();
        let ran = Ran { code, stdout, stderr };
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let joiners = self.joiners.into_iter().map(|joiner| {
            let (code, _, text) = joiner.end();
            (code, text)
        });
        let joiners = joiners.collect();
        let told = self.scene.after(&ran, "ok");
        let changed = told.last().unwrap().clone();
        same(&changed, calm);
        (changed, joiners)
    }
}

fn same(changed: &Value, calm: &Value) {
    for figure in ["params_sha256", "final_loss", "final_accuracy", "samples", "steps"] {
        assert_eq!(changed[figure], calm[figure], "{figure}");
    }
}

/// What a run of these words comes to on one machine when nothing happens to it.
fn calm(words: &str) -> Value {
    result(&format!("train --quiet --no-record {}", words.replace("--backup 1", "")))
}

/// A key file of this scene.
fn key(scene: &Scene) -> String {
    let path = scene.file("key.toml", &"a".repeat(64));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn numbers(members: &[u64]) -> Value {
    members.to_vec().into()
}

/// Members that a change names; those of nobody are left out.
fn members(named: &Value) -> Vec<u64> {
    named.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

#[test]
fn a_rank_that_is_killed_on_a_machine_that_joined_changes_no_bit() {
    // At the first and the last step, at an evaluation, two of one machine at once, and a server with its copies elsewhere.
    for (words, die, lost) in [
        ("--strategy ring-allreduce --optimizer adam --lr 0.001", "2:1", &[2][..]),
        ("--strategy tree --transport shm", "3:120", &[3]),
        ("--strategy halving-doubling --momentum 0.9", "2:40,3:40", &[2, 3]),
        ("--strategy ps --servers 2 --backup 1 --momentum 0.9", "5:30", &[5]),
    ] {
        let words = format!("{WORDS} {words}");
        let scene = Scene::new();
        let run = Run::start(&scene, &format!("{words} --elastic 2..4"), 2, die);
        let (changed, joiners) = run.end(&calm(&words));
        let changes = changed["membership"].as_array().unwrap();
        let mut all: Vec<u64> = changes.iter().flat_map(|change| members(&change["lost"])).collect();
        // Which of two is missed first is up to timing.
        all.sort_unstable();
        assert_eq!(all, lost, "{words}: {changes:?}");
        // The machine of a rank that is lost stays.
        let [(code, text)] = &joiners[..] else { panic!("one machine") };
        assert!(*code == 0 && text.contains("ended well"), "{words}: {text}");
    }
}

#[test]
fn a_machine_that_is_killed_is_one_change_and_the_survivors_end_with_the_same_bits() {
    for (words, hosts, lost, workers) in [
        ("--strategy ring-allreduce --optimizer adam --lr 0.001", 2, &[2, 3][..], 2),
        ("--strategy ps --servers 2 --backup 1", 2, &[2, 3, 5], 2),
        ("--strategy ring-reduce --transport shm", 3, &[2], 3),
    ] {
        let words = format!("{WORDS} {words}");
        let scene = Scene::new();
        let mut run = Run::start(&scene, &format!("{words} {SLOW} --elastic 1..4"), hosts, "");
        run.listening.launcher.trains_on();
        let machine = run.joiners.remove(0);
        let ranks = machine.children();
        assert_eq!(ranks.len(), lost.len());
        assert!(signal("KILL", machine.id()));
        let change = run.change(0);
        assert_eq!((&change["lost"], &change["workers"]), (&numbers(lost), &workers.into()), "{change}");
        all_gone(&ranks);
        run.listening.launcher.prints(r#""state":"lost""#, 0);
        let (changed, joiners) = run.end(&calm(&words));
        assert_eq!(changed["membership"].as_array().unwrap().len(), 1, "{words}");
        for (code, text) in joiners {
            assert!(code == 0 && text.contains("ended well"), "{words}: {text}");
        }
    }
}

#[test]
fn a_machine_that_stands_still_is_given_up_and_ends_by_itself_when_it_goes_on() {
    // As behind a cut link: its connections stay open, and nothing comes.
    let words = format!("{WORDS} --strategy ring-allreduce");
    let scene = Scene::new();
    let mut run = Run::start(&scene, &format!("{words} {SLOW} --elastic 2..4"), 2, "");
    run.listening.launcher.trains_on();
    let machine = run.joiners.remove(0);
    let mut all = machine.children();
    all.push(machine.id());
    assert!(all.iter().all(|pid| signal("STOP", *pid)));
    run.listening.launcher.says("may be lost: nothing heard for 2 s");
    let change = run.change(0);
    assert_eq!(change["lost"], numbers(&[2, 3]), "{change}");
    assert!(all.iter().all(|pid| signal("CONT", *pid)));
    let (code, _, text) = machine.end();
    assert_eq!(code, 4, "{text}");
    assert!(error(&text).contains("was lost by host 1, with worker 2, worker 3"), "{text}");
    all_gone(&all);
    run.end(&calm(&words));
}

#[test]
fn a_machine_behind_a_cut_link_is_lost_and_another_one_joins_once_the_link_is_mended() {
    let Some(machines) = Machines::new(3) else { return };
    let words = format!("{WORDS} --strategy ring-allreduce");
    let scene = Scene::new();
    let (own, at) = (scene.environment(), format!("{}:7700", machines.address(0)));
    let train = format!("--hosts 3 --key-file {} {words} {SLOW} --elastic 1..4", key(&scene));
    let listening = Listening::start_with(&machines.on(0), &at, &train, &own);
    let join = |host: usize| listening.join_with(&machines.on(host), &format!("--host {host}"), &own);
    let (machine, other) = (join(1), join(2));
    listening.launcher.trains_on();
    let ranks = machine.children();
    machines.cut(1);
    // Both sides notice by themselves.
    listening.launcher.prints(r#""type":"membership""#, 0);
    let (code, _, text) = machine.end();
    assert!(code == 4 && error(&text).contains("nothing was heard from it for"), "{text}");
    all_gone(&ranks);
    machines.heal(1);
    let late = join(1);
    late.says("runs worker 2 here");
    let run = Run { scene: &scene, listening, joiners: vec![other, late] };
    assert_eq!(run.change(0)["lost"], numbers(&[2]));
    assert_eq!(run.change(1)["joined"], numbers(&[2]));
    let (_, joiners) = run.end(&calm(&words));
    assert!(joiners.iter().all(|(code, text)| *code == 0 && text.contains("ended well")), "{joiners:?}");
    machines.are_empty();
}

#[test]
fn a_machine_that_joins_late_takes_the_place_of_a_lost_one() {
    for (words, lost) in [
        ("--strategy ring-allreduce --optimizer adam --lr 0.001", &[2, 3][..]),
        ("--strategy ps --servers 2 --backup 1 --momentum 0.9", &[2, 3, 5]),
    ] {
        let words = format!("{WORDS} {words}");
        let scene = Scene::new();
        let mut run = Run::start(&scene, &format!("{words} {SLOW} --elastic 2..4"), 2, "");
        run.listening.launcher.trains_on();
        drop(run.joiners.remove(0));
        assert_eq!(run.change(0)["lost"], numbers(lost));
        // Whoever does not hold the key stays outside, and changes nothing.
        let key = key(&scene);
        let wrong = format!("join {} --key-file {key}", run.listening.address);
        let (code, _, text) = Process::start(&[], &wrong, &scene.environment()).end();
        assert!(code == 6 && error(&text).contains("wrong key"), "{text}");
        let late = run.join("", "");
        late.says("which is under way");
        // Members may come one by one, as they have loaded.
        let (mut joined, mut changes) = (Vec::new(), 1);
        while joined.len() < lost.len() {
            let change = run.change(changes);
            joined.extend(members(&change["joined"]));
            changes += 1;
        }
        joined.sort_unstable();
        assert_eq!(joined, lost);
        run.listening.launcher.trains_on();
        run.joiners.push(late);
        let (changed, joiners) = run.end(&calm(&words));
        assert_eq!(changed["membership"].as_array().unwrap().len(), changes);
        let [(code, text)] = &joiners[..] else { panic!("one machine") };
        assert!(*code == 0 && text.contains("this was host 1 with worker 2, worker 3"), "{text}");
    }
}

#[test]
fn a_machine_that_waits_steps_in_where_the_run_could_not_go_on_without_it() {
    let words = format!("{WORDS} --strategy ring-allreduce");
    let scene = Scene::new();
    let mut run = Run::start(&scene, &format!("{words} {SLOW} --elastic 4..4"), 2, "");
    run.listening.launcher.trains_on();
    let spare = run.join("", "");
    spare.says("waits until it is needed");
    run.listening.launcher.prints(r#""host":2"#, 0);
    drop(run.joiners.remove(0));
    let change = run.change(0);
    let members = numbers(&[2, 3]);
    assert_eq!((&change["lost"], &change["workers"]), (&members, &4.into()), "{change}");
    assert_eq!(change["joined"], members, "{change}");
    run.joiners.push(spare);
    let (_, joiners) = run.end(&calm(&words));
    assert!(joiners[0].1.contains("this was host 2 with worker 2, worker 3"), "{}", joiners[0].1);
}

#[test]
fn a_machine_that_waits_takes_up_all_that_one_hands_over_which_is_asked_to_end() {
    let words = format!("{WORDS} --strategy ring-allreduce");
    let scene = Scene::new();
    let mut run = Run::start(&scene, &format!("{words} {SLOW} --elastic 2..4"), 2, "");
    run.listening.launcher.trains_on();
    let spare = run.join("", "");
    spare.says("waits until it is needed");
    let machine = run.joiners.remove(0);
    assert!(signal("TERM", machine.id()));
    assert_eq!(run.change(0)["left"], numbers(&[2, 3]));
    let (code, _, text) = machine.end();
    assert_eq!(code, 0, "{text}");
    spare.says("runs worker 2, worker 3 here");
    let mut joined = members(&run.change(1)["joined"]);
    if joined.len() < 2 {
        joined.extend(members(&run.change(2)["joined"]));
    }
    joined.sort_unstable();
    assert_eq!(joined, [2, 3]);
    run.joiners.push(spare);
    run.end(&calm(&words));
}

#[test]
fn a_machine_that_is_asked_to_end_hands_over_and_leaves_and_another_one_adds_workers() {
    let words =
        "--workers 2 --shares 4 --batch 8 --bucket 32KiB --steps 120 --seed 5 --strategy ring-allreduce";
    let scene = Scene::new();
    let mut run = Run::start(&scene, &format!("{words} {SLOW} --elastic 1..3"), 2, "");
    run.listening.launcher.trains_on();
    // There is room for one worker more.
    let late = run.join("", "");
    let change = run.change(0);
    assert_eq!((&change["joined"], &change["workers"]), (&numbers(&[2]), &3.into()), "{change}");
    let machine = run.joiners.remove(0);
    assert!(signal("TERM", machine.id()));
    let change = run.change(1);
    assert_eq!((members(&change["left"]), members(&change["lost"])), (vec![1], vec![]), "{change}");
    let (code, _, text) = machine.end();
    assert!(code == 0 && text.contains("goes on without this machine"), "{text}");
    for state in ["leaving", "left"] {
        run.listening.launcher.prints(&format!(r#""state":"{state}""#), 0);
    }
    // A rank on its own, too.
    assert!(signal("TERM", late.children()[0]));
    assert_eq!(run.change(2)["left"], numbers(&[2]));
    let grown = scene.run("resize last 2", &[]);
    assert_eq!(grown.code, 0, "{}", grown.stderr);
    assert_eq!(run.change(3)["workers"], 2);
    run.joiners.push(late);
    let (_, joiners) = run.end(&calm(words));
    assert_eq!(joiners[0].0, 0, "{}", joiners[0].1);
}

#[test]
fn ranks_of_other_machines_are_revoked_come_back_and_are_drained() {
    let words = format!("{WORDS} --strategy halving-doubling --momentum 0.9");
    let scene = Scene::new();
    let revoke = "[[revoke]]\nat-s = 0.2\nrank = 3\nback-after-s = 0.2\n";
    let file = scene.file("revoke.toml", revoke);
    let run = Run::start(&scene, &format!("{words} {SLOW} --elastic 2..4 --revoke {file}"), 2, "");
    let change = run.change(0);
    assert_eq!(change["lost"], numbers(&[3]));
    // It may be back before the others have stopped.
    let back = usize::from(change["joined"].is_null());
    assert_eq!(run.change(back)["joined"], numbers(&[3]));
    let drained = scene.run("drain last 2", &[]);
    assert_eq!(drained.code, 0, "{}", drained.stderr);
    assert_eq!(run.change(back + 1)["left"], numbers(&[2]));
    let (changed, joiners) = run.end(&calm(&words));
    assert_eq!(changed["membership"].as_array().unwrap().len(), back + 2);
    assert!(joiners[0].0 == 0 && joiners[0].1.contains("ended well"), "{joiners:?}");
}

#[test]
fn machines_that_an_engine_has_started_cannot_change() {
    let environment =
        [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"), ("WORLD_SIZE", "2"), ("RANK", "0")];
    let words = "train --engine torchrun --workers 2 --elastic 1..2 --steps 5";
    let (code, _, text) = Process::start(&[], words, &environment).end();
    assert!(code == 3 && error(&text).contains("an engine ends all processes of a job"), "{text}");
}

#[test]
fn a_machine_that_cannot_take_part_is_named_and_the_run_goes_on() {
    let data = tempfile::tempdir().unwrap();
    write_mnist(data.path());
    let (here, nowhere) = (data.path().display(), data.path().join("nowhere").display().to_string());
    let words = format!("{WORDS} --data mnist --strategy ring-allreduce");
    let scene = Scene::new();
    let train = format!("--hosts 2 {words} {SLOW} --elastic 2..4 --data-dir {here}");
    let listening = Listening::start_with(&[], HERE, &train, &scene.environment());
    let mut run = Run { scene: &scene, listening, joiners: Vec::new() };
    let machine = run.join(&format!("--data-dir {here}"), "");
    run.listening.launcher.trains_on();
    drop(machine);
    assert_eq!(run.change(0)["workers"], 2);
    // One has no dataset, on the other one ranks die as soon as they begin; a third one is as it should be.
    let without = run.join(&format!("--data-dir {nowhere}"), "");
    let failed = run.listening.launcher.prints(r#""state":"failed""#, 0);
    assert!(failed.contains("worker ") && failed.contains("mnist"), "{failed}");
    let dying = run.join(&format!("--data-dir {here}"), "2:0,3:0");
    dying.says("runs worker 2");
    run.listening.launcher.trains_on();
    let late = run.join(&format!("--data-dir {here}"), "");
    run.listening.launcher.prints(r#""joined":["#, 0);
    run.joiners.extend([without, dying, late]);
    let (changed, joiners) = run.end(&calm(&format!("{words} --data-dir {here}")));
    let lost = changed["membership"].as_array().unwrap().iter().flat_map(|change| members(&change["lost"]));
    assert_eq!(lost.collect::<Vec<_>>(), [2, 3], "who never took part is not lost");
    assert!(joiners.iter().all(|(code, _)| *code == 0), "{joiners:?}");
}
