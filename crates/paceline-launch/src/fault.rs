//! Faults that tests ask for, by rank and step: only in builds with debug assertions.

use rustix::process::Signal;

/// `RANK:STEP`, several of them separated by commas: the rank that dies after having done that step, step 0 being the moment
/// before it listens. A server counts those that it has made all updates of.
const DIE: &str = "PACELINE_TEST_DIE";
/// The same for a rank that panics.
const PANIC: &str = "PACELINE_TEST_PANIC";

/// The same for a rank that is stopped, as by SIGSTOP.
const STOP: &str = "PACELINE_TEST_STOP";

/// Dies or stops, without a word, if that was asked for.
pub fn strike(rank: usize, step: u64) {
    if !cfg!(debug_assertions) {
        return;
    }
    let meant = |name: &str| {
        let own = format!("{rank}:{step}");
        std::env::var(name).is_ok_and(|all| all.split(',').any(|at| at == own))
    };
    assert!(!meant(PANIC), "a test asked rank {rank} to panic after step {step}");
    let signal =
        |signal| rustix::process::kill_process(rustix::process::getpid(), signal).unwrap_or_default();
    if meant(DIE) {
        // As a process that somebody kills: nothing is closed or said.
        signal(Signal::KILL);
    }
    if meant(STOP) {
        signal(Signal::STOP);
    }
}
