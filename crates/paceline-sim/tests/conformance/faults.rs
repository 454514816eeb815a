//! With a crash, every run ends or every survivor names the lost rank.

use paceline_conformance::checks::every_run_ends_or_names_the_lost_rank;

use super::{main_cases, more_cases};

#[test]
fn with_a_crash_every_run_ends_or_every_survivor_names_the_lost_rank() {
    main_cases().iter().for_each(|case| every_run_ends_or_names_the_lost_rank(case, 500));
}

#[test]
fn so_it_is_with_every_codec_setting_and_average() {
    more_cases().iter().for_each(|case| every_run_ends_or_names_the_lost_rank(case, 100));
}
