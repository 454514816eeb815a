//! Signals as they really come: to the launcher alone, to its process group, or from a terminal.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use paceline_record::Store;

use crate::fault::within;
use crate::scene::{Draws, Running, Scene, Way};
use crate::verdict;

const SIGINT: i32 = 2;

/// A run is interrupted at a moment that is drawn between its row and its last step; it saves itself and goes on.
pub fn interrupt(scene: &Scene, way: Way, draws: &mut Draws) -> String {
    let name = draws.of(&["INT", "TERM"]);
    let mut delay = Duration::from_millis(draws.below(500));
    for _ in 0..40 {
        let mut run = scene.train_for(way);
        run.said("start");
        std::thread::sleep(delay);
        run.signal(name);
        let since = Instant::now();
        let code = run.end();
        if code == 0 {
            // It was over before: again, earlier.
            delay /= 2;
            std::fs::remove_dir_all(scene.store.path()).unwrap();
            std::fs::create_dir(scene.store.path()).unwrap();
            continue;
        }
        within(since, 3.0, "saving and ending");
        saved(scene, &run, code);
        return format!("{name} after {delay:?}: {}", verdict::resumed(scene, ""));
    }
    panic!("the run is always over before a signal can reach it: `{}`", scene.words)
}

/// The run is interrupted, has a checkpoint, and says how to go on.
fn saved(scene: &Scene, run: &Running, code: i32) {
    assert_eq!(code, 130, "{}", run.errors());
    assert!(run.errors().contains("saved in"), "{}", run.errors());
    assert!(run.errors().contains("paceline resume"), "{}", run.errors());
    verdict::after(scene, run, "interrupted");
    let saved = crate::scene::files(scene.store.path());
    assert!(saved.iter().any(|file| file.to_string_lossy().contains("/checkpoints/step-")), "{saved:?}");
}

/// A signal in the first moments of the process: either nothing has happened yet, or the run saves itself.
pub fn early(scene: &Scene, way: Way, draws: &mut Draws) -> String {
    let delay = Duration::from_millis(draws.below(120));
    let mut run = scene.train_for(way);
    std::thread::sleep(delay);
    run.signal("INT");
    let since = Instant::now();
    let status = run.status();
    within(since, 3.0, "ending");
    let runs = if scene.store.path().join("paceline.db").exists() {
        Store::open(scene.store.path()).unwrap().runs().unwrap()
    } else {
        Vec::new()
    };
    match runs.first() {
        None => {
            let killed = status.code() == Some(130) || status.signal() == Some(SIGINT);
            assert!(killed, "{status}: {}", run.errors());
            let since = Instant::now();
            while !scene.processes().is_empty() {
                within(since, 5.0, "the end of all processes");
                std::thread::sleep(Duration::from_millis(10));
            }
            format!("{delay:?}: before its row: {status}")
        }
        Some(_) => {
            saved(scene, &run, status.code().unwrap_or(-1));
            format!("{delay:?}: {}", verdict::resumed(scene, ""))
        }
    }
}

/// A second signal ends a run at once, whatever it does.
pub fn twice(scene: &Scene, way: Way, draws: &mut Draws) -> String {
    let mut run = scene.train_for(way);
    run.said("start");
    std::thread::sleep(Duration::from_millis(draws.below(300)));
    run.signal("INT");
    std::thread::sleep(Duration::from_millis(150));
    run.signal("INT");
    let since = Instant::now();
    let code = run.end();
    within(since, 1.0, "ending");
    if code == 0 {
        verdict::after(scene, &run, "ok");
        return "it had ended before".into();
    }
    assert_eq!(code, 130, "{}", run.errors());
    let told = run.errors().contains("paceline resume");
    verdict::after(scene, &run, if told { "interrupted" } else { "lost" });
    verdict::resumed(scene, "")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::terminal::{CTRL_Z, Terminal};

    /// Rounds of one test; together they are 50.
    fn rounds(numbers: std::ops::Range<u64>) {
        for round in numbers {
            let draws = &mut Draws::new(17, round);
            let scene = Scene::deterministic(draws);
            let way = [Way::Terminal, Way::Group][round as usize % 2];
            eprintln!("round {round}, {way:?}: {}", scene.words);
            eprintln!("  {}", interrupt(&scene, way, draws));
        }
    }

    #[test]
    fn ctrl_c_saves_the_run_and_it_goes_on_bit_for_bit_1() {
        rounds(0..10);
    }

    #[test]
    fn ctrl_c_saves_the_run_and_it_goes_on_bit_for_bit_2() {
        rounds(10..20);
    }

    #[test]
    fn ctrl_c_saves_the_run_and_it_goes_on_bit_for_bit_3() {
        rounds(20..30);
    }

    #[test]
    fn ctrl_c_saves_the_run_and_it_goes_on_bit_for_bit_4() {
        rounds(30..40);
    }

    #[test]
    fn ctrl_c_saves_the_run_and_it_goes_on_bit_for_bit_5() {
        rounds(40..50);
    }

    #[test]
    fn ctrl_c_in_the_first_moments_leaves_nothing_or_a_run_that_goes_on() {
        for round in 0..12 {
            let draws = &mut Draws::new(18, round);
            let scene = Scene::deterministic(draws);
            let way = [Way::Terminal, Way::Group, Way::Process][round as usize % 3];
            eprintln!("round {round}, {way:?}: {}", scene.words);
            eprintln!("  {}", early(&scene, way, draws));
        }
    }

    #[test]
    fn a_second_ctrl_c_ends_the_run_at_once() {
        for round in 0..6 {
            let draws = &mut Draws::new(19, round);
            let scene = Scene::deterministic(draws);
            let way = [Way::Terminal, Way::Group, Way::Process][round as usize % 3];
            eprintln!("round {round}, {way:?}: {}", scene.words);
            eprintln!("  {}", twice(&scene, way, draws));
        }
    }

    /// `timeout` signals its child and then the group of both: that is one request, not two.
    #[test]
    fn a_run_whose_time_is_over_saves_itself() {
        let scene = Scene::deterministic(&mut Draws::new(20, 3));
        let (_, rest) = scene.words.split_once("--batch").unwrap();
        let plain = scene.command(&format!("train --json --epochs 100000 --batch{rest}"));
        let mut limited = Command::new("timeout");
        limited.arg("2").arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            value.map(|value| limited.env(name, value));
        }
        let out = limited.output().unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(124), "{errors}");
        assert!(errors.contains("saved in"), "{errors}");
        let store = Store::open(scene.store.path()).unwrap();
        assert_eq!(store.runs().unwrap()[0].state, "interrupted", "{errors}");
    }

    /// A job is suspended longer than a rank may be silent, and taken to the foreground again.
    #[test]
    fn ctrl_z_and_fg_change_nothing() {
        let scene = Scene::deterministic(&mut Draws::new(21, 1));
        let job = scene.command(&format!("train --json {}", scene.words));
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "-i"]);
        for (name, value) in job.get_envs() {
            value.map(|value| shell.env(name, value));
        }
        let (mut terminal, mut session) = Terminal::run(&shell);
        let screen = fs::File::create(scene.store.path().join("first.screen")).unwrap();
        let mut bash = session.stdout(screen.try_clone().unwrap()).stderr(screen).spawn().unwrap();
        let file = |name: &str| scene.store.path().join(name).display().to_string();
        let words: Vec<_> = [job.get_program()].into_iter().chain(job.get_args()).collect();
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        terminal.press(&format!("{} > {} 2> {}\n", words.join(" "), file("first.out"), file("first.err")));
        let wait = |what: &str, holds: &dyn Fn() -> bool| {
            let since = Instant::now();
            while !holds() {
                assert!(since.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let said = |kind: &str| fs::read_to_string(file("first.out")).is_ok_and(|text| text.contains(kind));
        wait("progress", &|| said("\"progress\""));
        terminal.press(CTRL_Z);
        let stopped = || {
            let states = scene.processes().into_iter().filter(|&pid| pid != bash.id()).map(|pid| {
                fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default().contains(") T ")
            });
            let states: Vec<bool> = states.collect();
            !states.is_empty() && states.iter().all(|&stopped| stopped)
        };
        wait("all processes to stop", &|| stopped() || said("\"result\""));
        std::thread::sleep(Duration::from_secs(7));
        terminal.press("fg\n");
        wait("the result", &|| said("\"result\""));
        terminal.press("exit\n");
        bash.wait().unwrap();
        let text = fs::read_to_string(file("first.out")).unwrap();
        let events: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        verdict::finished(&scene, events.last().unwrap());
    }
}
