//! With a crash, every run ends or every survivor names the lost rank.

use paceline_protocol::Outcome;
use paceline_random::{Purpose, Stream};
use paceline_sim::{Crash, SizesOnly, simulate};

use super::{Case, costs, main_cases, make, more_cases, run};

fn crash_seeds(case: &Case, seeds: u64) {
    for seed in 0..seeds {
        let (setup, name) = (case.draw(seed), case.name());
        let costs = costs(&setup, seed);
        let whole = simulate(&setup, make(case.strategy, &setup), &costs, &mut SizesOnly, None, &[]);
        assert_eq!(whole.stuck, [0usize; 0], "{name} seed {seed}: a deadlock");
        let s = Stream::new(seed, Purpose::Virtual).fork(11);
        let crash = Crash {
            rank: s.below(0, setup.world() as u64) as usize,
            at: s.below(1, whole.end + 1),
            noticed_after: s.below(2, 5_000),
        };
        let (report, _) = run(case, &setup, &costs, Some(crash));
        assert_eq!(report.stuck, [0usize; 0], "{name} seed {seed} {crash:?}");
        for (rank, outcome) in report.outcomes.iter().enumerate().filter(|(r, _)| *r != crash.rank) {
            let fine =
                matches!(outcome, Some(Outcome::Completed)) || *outcome == Some(Outcome::Lost(crash.rank));
            assert!(fine, "{name} seed {seed} {crash:?}: rank {rank} {outcome:?}");
        }
    }
}

#[test]
fn with_a_crash_every_run_ends_or_every_survivor_names_the_lost_rank() {
    main_cases().iter().for_each(|case| crash_seeds(case, 500));
}

#[test]
fn so_it_is_with_every_codec_setting_and_average() {
    more_cases().iter().for_each(|case| crash_seeds(case, 100));
}
