//! The faults, by their letters in the project's list, and what must come of each.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::files::{self, Kind, Place};
use crate::scene::{self, Draws, Running, Scene, Way, signal};
use crate::{signals, verdict};

/// Something that breaks.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// F1: a worker is killed.
    Worker { restart: bool },
    /// F2: a server is killed.
    Server { restart: bool },
    /// F3: the launcher is killed.
    Launcher,
    /// F4: a rank dies at an awkward moment.
    Moment(Moment),
    /// F5: a worker is stopped for so many seconds.
    Stop { seconds: u64 },
    /// F11: the newest checkpoint is damaged.
    Damage(Damage),
    /// F14: somebody wants it to end.
    Signal(&'static str),
    /// F14, as users do it: at any moment between the run's row and its last step.
    Interrupt(Way),
    /// F14 in the first moments.
    Early(Way),
    /// F14 twice.
    Twice(Way),
    /// The database is damaged.
    Store(Damage),
    /// A fifo or a device stands where a file should.
    Special(Kind, Place),
}

#[derive(Clone, Copy, Debug)]
pub enum Moment {
    BeforeReady,
    Handshake,
    LastStep,
    Epoch(i64),
}

#[derive(Clone, Copy, Debug)]
pub enum Damage {
    Truncated,
    Flipped,
    Empty,
    Missing,
}

impl Damage {
    /// Damages a file.
    pub fn apply(self, file: &Path) {
        let mut bytes = fs::read(file).unwrap();
        match self {
            Self::Missing => fs::remove_file(file).unwrap(),
            Self::Truncated => fs::write(file, &bytes[..bytes.len() / 2]).unwrap(),
            Self::Empty => fs::write(file, b"").unwrap(),
            Self::Flipped => {
                let at = bytes.len() / 3;
                bytes[at] ^= 4;
                fs::write(file, &bytes).unwrap();
            }
        }
    }
}

/// A deadline of the contract; a busy machine is given more where nothing is measured.
pub fn within(since: Instant, seconds: f64, what: &str) {
    let strict = std::env::var_os("PACELINE_CHAOS_STRICT").is_some();
    let allowed = if strict { seconds } else { seconds + 20.0 };
    let took = since.elapsed().as_secs_f64();
    assert!(took <= allowed, "{what} took {took:.2} s, {allowed} s are allowed");
}

impl Fault {
    /// Kinds of faults: so many rounds have each of them once.
    pub const KINDS: u64 = 7;

    pub fn draw(round: u64, draws: &mut Draws) -> Self {
        let restart = draws.below(2) == 0;
        match round % Self::KINDS {
            0 => Self::Worker { restart },
            1 => Self::Server { restart },
            2 => Self::Launcher,
            3 => Self::Moment(match draws.below(6) {
                0 => Moment::BeforeReady,
                1 => Moment::Handshake,
                2 => Moment::LastStep,
                n => Moment::Epoch(n as i64 - 4),
            }),
            4 => Self::Stop { seconds: [1, 4, 60][draws.below(3) as usize] },
            5 => {
                let all = [Damage::Truncated, Damage::Flipped, Damage::Empty, Damage::Missing];
                Self::Damage(all[draws.below(4) as usize])
            }
            _ => Self::Signal(draws.of(&["INT", "TERM", "INT INT"])),
        }
    }

    /// Kinds of the attack: signals above all.
    pub const ATTACK: u64 = 14;

    pub fn draw_attack(round: u64, draws: &mut Draws) -> Self {
        let way = *draws.of(&[&Way::Process, &Way::Group, &Way::Terminal]);
        let damage = *draws.of(&[&Damage::Truncated, &Damage::Flipped, &Damage::Empty, &Damage::Missing]);
        match round % Self::ATTACK {
            0 | 1 => Self::Interrupt(Way::Terminal),
            2 | 3 => Self::Interrupt(Way::Group),
            4 => Self::Interrupt(Way::Process),
            5 | 6 => Self::Early(way),
            7 => Self::Twice(way),
            8 => Self::Damage(damage),
            9 => Self::Store(damage),
            10 | 11 => {
                let kind = *draws.of(&[&Kind::Fifo, &Kind::Zero]);
                let places = [&Place::Part, &Place::Model, &Place::Weights, &Place::Study, &Place::Database];
                Self::Special(kind, *draws.of(&places))
            }
            12 => Self::Stop { seconds: [4, 60][draws.below(2) as usize] },
            _ => Self::Worker { restart: draws.below(2) == 0 },
        }
    }

    /// The run that it breaks.
    pub fn scene(&self, draws: &mut Draws) -> Scene {
        match self {
            Self::Interrupt(_) | Self::Early(_) | Self::Twice(_) => Scene::deterministic(draws),
            _ => Scene::draw(self, draws),
        }
    }

    pub fn needs_server(&self) -> bool {
        matches!(self, Self::Server { .. })
    }

    /// Plays a round; what happened, in words. Panics if something does not hold.
    pub fn play(&self, scene: &Scene, draws: &mut Draws) -> String {
        match *self {
            Self::Worker { restart } => kill(scene, draws, false, restart),
            Self::Server { restart } => kill(scene, draws, true, restart),
            Self::Launcher => {
                let mut run = begun(scene, "", draws);
                if !signal("KILL", run.id()) {
                    return over(scene, run);
                }
                let since = Instant::now();
                run.end();
                while !scene.processes().is_empty() {
                    within(since, 5.0, "the children's end");
                    std::thread::sleep(Duration::from_millis(10));
                }
                verdict::after(scene, &run, "lost");
                verdict::resumed(scene, "")
            }
            Self::Moment(moment) => at_a_moment(scene, draws, moment),
            Self::Stop { seconds } => stop(scene, draws, seconds),
            Self::Damage(damage) => damaged(scene, damage),
            Self::Signal(names) => interrupted(scene, draws, names),
            Self::Interrupt(way) => signals::interrupt(scene, way, draws),
            Self::Early(way) => signals::early(scene, way, draws),
            Self::Twice(way) => signals::twice(scene, way, draws),
            Self::Store(damage) => files::store(scene, damage),
            Self::Special(kind, place) => files::special(scene, kind, place),
        }
    }
}

/// A run that has made progress, and then some.
fn begun(scene: &Scene, more: &str, draws: &mut Draws) -> Running {
    let mut run = scene.train(more, None);
    run.said("progress");
    std::thread::sleep(Duration::from_millis(draws.below(400)));
    run
}

/// The run had ended before the fault came.
fn over(scene: &Scene, mut run: Running) -> String {
    assert_eq!(run.end(), 0, "{}", run.errors());
    verdict::after(scene, &run, "ok");
    verdict::finished(scene, run.events().last().expect("a result"));
    "it had ended before".into()
}

fn kill(scene: &Scene, draws: &mut Draws, server: bool, restart: bool) -> String {
    let more = if restart { "--on-loss restart" } else { "" };
    let mut run = begun(scene, more, draws);
    let ranks = run.ranks();
    let victim = match server {
        false => draws.below(scene.workers as u64) as usize,
        true => scene.workers + draws.below(scene.servers as u64) as usize,
    };
    let Some(&pid) = ranks.get(victim) else { return over(scene, run) };
    if !signal("KILL", pid) {
        return over(scene, run);
    }
    let since = Instant::now();
    if restart {
        let again = run.said("restarted");
        within(since, 10.0, "starting again");
        let code = run.end();
        if !again {
            // It had done everything before it was killed.
            assert_eq!(code, 0, "{}", run.errors());
        }
        assert_eq!(code, 0, "{}", run.errors());
        verdict::after(scene, &run, "ok");
        verdict::finished(scene, run.events().last().expect("a result"));
        return if again { "it started again and ended exactly" } else { "it had ended before" }.into();
    }
    let code = run.end();
    if code == 0 {
        return over(scene, run);
    }
    within(since, 2.0, "the error");
    assert_eq!(code, 4, "{}", run.errors());
    verdict::names(&run.errors(), if server { "server" } else { "worker" }, victim);
    verdict::after(scene, &run, "failed");
    verdict::resumed(scene, "")
}

fn at_a_moment(scene: &Scene, draws: &mut Draws, moment: Moment) -> String {
    let victim = draws.below(scene.workers as u64) as usize;
    let epoch = 1438u64.div_ceil(8 * scene.workers as u64);
    // Where workers do not go on together, only what follows from the whole is known: its last step may be another's.
    let step = match moment {
        Moment::BeforeReady => 0,
        Moment::Handshake => 1,
        Moment::LastStep => scene.steps() - if scene.exact { 0 } else { epoch },
        Moment::Epoch(off) => (epoch * (1 + draws.below(3))).saturating_add_signed(off),
    };
    let mut run = if let Moment::Handshake = moment {
        let mut run = scene.train("", None);
        run.until(|run| run.ranks().len() > victim);
        std::thread::sleep(Duration::from_millis(draws.below(60)));
        if let Some(&pid) = run.ranks().get(victim) {
            signal("KILL", pid);
        }
        run
    } else {
        scene.train("", Some((victim, step)))
    };
    let code = run.end();
    if code == 0 {
        // The others' pushes had done the work of a slow worker, or the signal came too late.
        assert!(!scene.exact || matches!(moment, Moment::Handshake), "nobody died at step {step}");
        return over(scene, run);
    }
    assert_eq!(code, 4, "{}", run.errors());
    verdict::names(&run.errors(), "worker", victim);
    verdict::after(scene, &run, "failed");
    verdict::resumed(scene, "")
}

fn stop(scene: &Scene, draws: &mut Draws, seconds: u64) -> String {
    let mut run = begun(scene, "", draws);
    let victim = draws.below(scene.workers as u64) as usize;
    let Some(&pid) = run.ranks().get(victim) else { return over(scene, run) };
    if !scene::stop(pid) {
        return over(scene, run);
    }
    let since = Instant::now();
    let told = |run: &Running, state: &str| {
        run.events().iter().any(|e| e["type"] == "liveness" && e["rank"] == victim && e["state"] == state)
    };
    if seconds < 5 {
        std::thread::sleep(Duration::from_secs(seconds));
        signal("CONT", pid);
        assert_eq!(run.end(), 0, "{}", run.errors());
        let (suspect, back) = (told(&run, "suspect"), told(&run, "back"));
        assert_eq!((suspect, back), (seconds > 2, seconds > 2), "{seconds} s: {}", run.errors());
        verdict::after(scene, &run, "ok");
        verdict::finished(scene, run.events().last().expect("a result"));
        return format!("it went on after {seconds} s");
    }
    let code = run.end();
    if code == 0 {
        return over(scene, run);
    }
    within(since, 6.0, "taking it for dead");
    assert_eq!(code, 4, "{}", run.errors());
    assert!(told(&run, "suspect"), "{}", run.errors());
    verdict::names(&run.errors(), "worker", victim);
    // Its process is ended with the run: nothing of it can come late.
    assert!(!signal("CONT", pid) || scene.processes().is_empty());
    verdict::after(scene, &run, "failed");
    verdict::resumed(scene, "")
}

fn damaged(scene: &Scene, damage: Damage) -> String {
    let mut run = scene.train("", None);
    run.until(|run| run.events().iter().filter(|e| e["type"] == "checkpoint").count() >= 2);
    signal("KILL", run.id());
    if run.end() == 0 {
        return over(scene, run);
    }
    verdict::after(scene, &run, "lost");
    damage.apply(&files::newest_part(scene));
    verdict::resumed(scene, "cannot be used: rank-")
}

fn interrupted(scene: &Scene, draws: &mut Draws, names: &str) -> String {
    let mut run = begun(scene, "", draws);
    let mut since = Instant::now();
    for (i, name) in names.split(' ').enumerate() {
        std::thread::sleep(Duration::from_millis(150 * i as u64));
        since = Instant::now();
        signal(name, run.id());
    }
    let code = run.end();
    if code == 0 {
        return over(scene, run);
    }
    let twice = names.contains(' ');
    within(since, if twice { 1.0 } else { 3.0 }, "ending");
    assert_eq!(code, 130, "{}", run.errors());
    // The second signal may come when everything is saved already.
    let saved = run.errors().contains("paceline resume");
    assert!(saved || twice, "{}", run.errors());
    verdict::after(scene, &run, if saved { "interrupted" } else { "lost" });
    verdict::resumed(scene, "")
}
