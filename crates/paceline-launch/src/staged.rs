//! Models that are cut into stages, put together: what ranks show of theirs becomes that of one network.

use paceline_train::PartRanges;
use paceline_train::native::mean;

/// The model out of what the ranks have shown, in their order: the first replica's stages their parameters and their state,
/// those of other replicas their state, whose mean counts.
pub fn whole_model(stages: &[PartRanges], shown: &[Vec<f32>]) -> (Vec<f32>, Vec<f32>) {
    let (mut params, mut states) = (Vec::new(), Vec::new());
    for (rank, numbers) in shown.iter().enumerate() {
        let own = stages.get(rank).map_or(0, |stage| stage.params.len().min(numbers.len()));
        params.extend_from_slice(&numbers[..own]);
        states.extend_from_slice(&numbers[own..]);
    }
    (params, mean(&states, stages.last().map_or(0, |stage| stage.state.end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_the_first_replica_are_put_together_and_states_averaged() {
        let stages = [PartRanges { params: 0..2, state: 0..1 }, PartRanges { params: 2..3, state: 1..1 }];
        let shown = [vec![1.0, 2.0, 10.0], vec![3.0], vec![20.0], vec![]];
        assert_eq!(whole_model(&stages, &shown), (vec![1.0, 2.0, 3.0], vec![15.0]));
    }
}
