//! What means, quantiles and bounds are.

use paceline_random::{Purpose, Stream};
use paceline_statistics::{hodges_lehmann, mean, median, percentile, quantile};

#[test]
fn medians_lie_in_the_middle_and_quantiles_between_the_nearest_values() {
    let values: Vec<f64> = (0..=100).map(f64::from).collect();
    assert_eq!([0.0, 0.05, 0.5, 1.0].map(|q| quantile(&values, q)), [0.0, 5.0, 50.0, 100.0]);
    assert_eq!(quantile(&[1.0, 2.0], 0.25), 1.25);
    assert_eq!([median(&[4.0, 1.0]), median(&[9.0, 1.0, 2.0]), median(&[3.0])], [2.5, 2.0, 3.0]);
    assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
    assert!(mean(&[]).is_nan());
}

#[test]
fn percentiles_are_values_that_occurred() {
    let values: Vec<u32> = (1..=100).collect();
    assert_eq!([0, 50, 95, 99, 100].map(|p| percentile(&values, p)), [1, 50, 95, 99, 100].map(Some));
    assert_eq!(percentile(&[3], 99), Some(3));
    assert_eq!(percentile(&[] as &[u32], 50), None);
}

#[test]
fn the_bound_holds_as_often_as_it_says_and_one_disturbed_run_moves_it_little() {
    let stream = Stream::new(1, Purpose::Bench);
    let draw = |trial| (0..24).map(|i| stream.fork(trial).normal(i)).collect::<Vec<f64>>();
    let trials = 2000;
    let held = (0..trials).filter(|trial| hodges_lehmann(&draw(*trial)).1 >= 0.0).count();
    let share = held as f64 / trials as f64;
    assert!((0.935..0.965).contains(&share), "{share}");
    let mut values = draw(0);
    let (middle, bound) = hodges_lehmann(&values);
    values[7] += 100.0;
    let moved = hodges_lehmann(&values);
    assert!((moved.0 - middle).abs() < 0.2 && (moved.1 - bound).abs() < 0.2, "{moved:?}");
    assert_eq!(hodges_lehmann(&[1.0, 3.0]), (2.0, 3.0));
}
