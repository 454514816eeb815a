//! Where a graph is cut into stages.

use std::str::FromStr;

use paceline_nn::Graph;

use crate::costs::{CutCosts, LayerCost, counted_costs};

/// How it is decided where a graph is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// So that the longest stage is as short as possible, with what it hands over and is handed.
    Auto,
    /// Before these layers.
    Before(Vec<String>),
}

impl FromStr for Cuts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        match names.iter().any(String::is_empty) {
            true => Err("`auto` or names of layers with commas between them are needed".into()),
            false => Ok(Self::Before(names)),
        }
    }
}

/// A graph that cannot be cut as was asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CutError {
    /// More stages than layers.
    #[error("--stages {stages}: the network has {} layers, and each stage needs one: {}", layers.len(), layers.join(", "))]
    Stages {
        /// The stages.
        stages: usize,
        /// The layers' names.
        layers: Vec<String>,
    },
    /// The losses of early exits need the whole network.
    #[error(
        "--stages {stages}: the network has early exits, and their losses need the whole network; leave --stages out"
    )]
    Exits {
        /// The stages.
        stages: usize,
    },
    /// Another number of cuts.
    #[error("--cuts {}: {stages} stages have {} cuts", names.join(","), stages - 1)]
    Count {
        /// The cuts.
        names: Vec<String>,
        /// The stages.
        stages: usize,
    },
    /// No such layer.
    #[error("--cuts {name}: there is no such layer; there are {}", layers.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The layers' names.
        layers: Vec<String>,
    },
    /// A stage would have no layer.
    #[error("--cuts {name}: {problem}")]
    Empty {
        /// The name.
        name: String,
        /// Why.
        problem: &'static str,
    },
}

impl Cuts {
    /// The first layer of each stage but the first.
    pub fn find(&self, graph: &Graph, costs: &CutCosts, stages: usize) -> Result<Vec<usize>, CutError> {
        let layers = || graph.nodes().iter().map(|node| node.name.clone()).collect();
        if stages > graph.nodes().len() {
            return Err(CutError::Stages { stages, layers: layers() });
        }
        if stages > 1 && !graph.exits().is_empty() {
            return Err(CutError::Exits { stages });
        }
        let names = match self {
            Self::Auto => return Ok(balanced(graph, costs, stages)),
            Self::Before(names) => names,
        };
        if names.len() + 1 != stages {
            return Err(CutError::Count { names: names.clone(), stages });
        }
        let mut cuts: Vec<usize> = Vec::new();
        for name in names {
            let at = find(graph, name)
                .ok_or_else(|| CutError::Unknown { name: name.clone(), layers: layers() })?;
            let refuse = |problem| Err(CutError::Empty { name: name.clone(), problem });
            match cuts.last() {
                _ if at == 0 => return refuse("it is the first layer: there is nothing before it"),
                Some(&last) if at <= last => {
                    return refuse("cuts must ascend: a layer further behind is cut already");
                }
                _ => cuts.push(at),
            }
        }
        Ok(cuts)
    }
}

/// Where a graph that was cut would be cut if its stages are to take the same, by what they took for micro-batches of
/// `samples`: within a stage, layers share that as counted costs tell. The names of the layers; none if that is where it
/// was cut.
pub fn better_cuts(graph: &Graph, samples: usize, cuts: &[usize], took: &[f64]) -> Vec<String> {
    let mut scaled = counted_costs(graph, samples);
    let bounds: Vec<usize> = [0].iter().chain(cuts).chain([&scaled.len()]).copied().collect();
    for (pair, took) in bounds.windows(2).zip(took) {
        let own = &mut scaled[pair[0]..pair[1]];
        let counted: u64 = own.iter().map(|cost| cost.both()).sum();
        // Nanoseconds are fine enough, and no time is lost where nothing was counted.
        let part = |cost: u64| (1e9 * took * cost as f64 / counted.max(1) as f64) as u64;
        own.iter_mut().for_each(|cost| {
            *cost = LayerCost { forward: part(cost.forward), backward: part(cost.backward) }
        });
    }
    let better = balanced(graph, &CutCosts::measured(graph, samples, scaled), took.len());
    if better == cuts {
        Vec::new()
    } else {
        better.iter().map(|&at| graph.nodes()[at].name.clone()).collect()
    }
}

/// The layer of this name, or the first of a group: `layer3.1` is the first of those called `layer3.1.…`.
fn find(graph: &Graph, name: &str) -> Option<usize> {
    let place = |found: &dyn Fn(&str) -> bool| graph.nodes().iter().position(|node| found(&node.name));
    let inside = |layer: &str| layer.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    place(&|layer| layer == name).or_else(|| place(&inside))
}

/// The cut whose longest stage is the shortest; among several, the one that hands over the fewest numbers.
fn balanced(graph: &Graph, costs: &CutCosts, stages: usize) -> Vec<usize> {
    let count = costs.layers.len();
    let mut until = vec![0];
    for cost in &costs.layers {
        until.push(until[until.len() - 1] + cost.both());
    }
    let crossing = crossing(graph);
    let cost = |from: usize, to: usize| {
        let numbers = crossing[from] + crossing.get(to).copied().unwrap_or(0);
        until[to] - until[from] + costs.number * numbers as u64
    };
    // longest[i]: the longest of the stages so far if they have the first i layers.
    let mut longest: Vec<u64> = (0..=count).map(|i| if i == 0 { u64::MAX } else { cost(0, i) }).collect();
    for stage in 1..stages {
        let best = |i: usize| (stage..i).map(|j| longest[j].max(cost(j, i))).min().unwrap_or(u64::MAX);
        longest = (0..=count).map(|i| if i > stage { best(i) } else { u64::MAX }).collect();
    }
    let limit = longest[count];
    // The fewest numbers that are handed over if the stages so far have the first i layers, and the last cut.
    let first = |i: usize| (i > 0 && cost(0, i) <= limit).then_some((0, 0));
    let mut steps: Vec<Vec<Option<(usize, usize)>>> = vec![(0..=count).map(first).collect()];
    for stage in 1..stages {
        let before = &steps[stage - 1];
        let best = |i: usize| {
            let fits = (stage..i).filter(|&j| cost(j, i) <= limit);
            fits.filter_map(|j| before[j].map(|(numbers, _)| (numbers + crossing[j], j))).min()
        };
        steps.push((0..=count).map(best).collect());
    }
    let (mut cuts, mut at) = (Vec::new(), count);
    for step in steps.iter().skip(1).rev() {
        at = step[at].expect("the limit can be kept").1;
        cuts.push(at);
    }
    cuts.reverse();
    cuts
}

/// Numbers of a sample that are needed behind each layer and were made before it.
fn crossing(graph: &Graph) -> Vec<usize> {
    let inside = |at: usize| if at == 0 { 0 } else { graph.parts(&[at])[0].sent() };
    (0..graph.nodes().len()).map(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_nn::Shape;
    use paceline_nn::models::MODELS;

    fn model(name: &str) -> Graph {
        let model = MODELS.iter().find(|model| model.name == name).unwrap();
        model.build(model.native_input, 10).unwrap()
    }

    /// What the longest stage costs, with what goes over its ends.
    fn longest(crossing: &[usize], costs: &CutCosts, cuts: &[usize]) -> u64 {
        let bounds: Vec<usize> = [0].iter().chain(cuts).chain([&crossing.len()]).copied().collect();
        let stage = |pair: &[usize]| {
            let layers: u64 = costs.layers[pair[0]..pair[1]].iter().map(|cost| cost.both()).sum();
            let over: usize = pair.iter().filter_map(|&at| crossing.get(at)).sum();
            layers + costs.number * over as u64
        };
        bounds.windows(2).map(stage).max().unwrap()
    }

    #[test]
    fn a_network_with_early_exits_is_not_cut() {
        let graph = model("ddnn");
        let costs = CutCosts::counted(&graph, 1);
        assert_eq!(Cuts::Auto.find(&graph, &costs, 2), Err(CutError::Exits { stages: 2 }));
        assert_eq!(Cuts::Auto.find(&graph, &costs, 1), Ok(Vec::new()));
    }

    /// Every way to cut `count` layers.
    fn all(count: usize, stages: usize) -> Vec<Vec<usize>> {
        let mut ways = vec![Vec::new()];
        for _ in 1..stages {
            let longer = |cuts: &Vec<usize>| {
                let cuts = cuts.clone();
                (cuts.last().map_or(1, |last| last + 1)..count)
                    .map(move |at| [&cuts[..], &[at]].concat())
                    .collect::<Vec<_>>()
            };
            ways = ways.iter().flat_map(longer).collect();
        }
        ways
    }

    #[test]
    fn no_other_cut_has_a_shorter_longest_stage() {
        for name in ["mlp", "lenet", "gru", "resnet20", "transformer"] {
            let graph = model(name);
            let costs = CutCosts::counted(&graph, 1);
            let crossing = crossing(&graph);
            for stages in 1..=graph.nodes().len().min(4) {
                let found = longest(&crossing, &costs, &Cuts::Auto.find(&graph, &costs, stages).unwrap());
                let all = all(costs.layers.len(), stages);
                let best = all.iter().map(|cuts| longest(&crossing, &costs, cuts)).min().unwrap();
                assert_eq!(found, best, "{name}, {stages} stages");
            }
        }
    }

    #[test]
    fn among_equal_cuts_the_one_that_hands_over_least_is_taken() {
        // All stages are as long as the expensive last layer, so the cut between the others is free.
        let mut graph = Graph::new(Shape::vector(4));
        for (name, outputs) in [("a", 9), ("b", 2), ("c", 9), ("d", 9)] {
            graph.then(name, paceline_nn::layers::Dense { outputs }).unwrap();
        }
        let cost = |both| LayerCost { forward: both, backward: 0 };
        let costs = CutCosts { layers: vec![cost(1), cost(1), cost(1), cost(10)], number: 0 };
        assert_eq!(Cuts::Auto.find(&graph, &costs, 3), Ok(vec![2, 3]));
    }

    #[test]
    fn what_is_handed_over_is_work_of_both_stages() {
        // Cut in the middle, both stages would compute the same, and move 90 numbers.
        let mut graph = Graph::new(Shape::vector(4));
        for (name, outputs) in [("a", 2), ("b", 90), ("c", 9), ("d", 9)] {
            graph.then(name, paceline_nn::layers::Dense { outputs }).unwrap();
        }
        let layers = vec![LayerCost { forward: 10, backward: 20 }; 4];
        let cut = |number| Cuts::Auto.find(&graph, &CutCosts { layers: layers.clone(), number }, 2).unwrap();
        assert_eq!((cut(0), cut(1)), (vec![2], vec![1]));
    }

    #[test]
    fn a_stage_that_took_too_long_hands_layers_to_its_neighbour() {
        let graph = model("resnet20");
        let costs = CutCosts::counted(&graph, 1);
        let cuts = Cuts::Auto.find(&graph, &costs, 2).unwrap();
        let even = |cuts: &[usize]| {
            let bounds = [0, cuts[0], costs.layers.len()];
            let sum = |pair: &[usize]| costs.layers[pair[0]..pair[1]].iter().map(|c| c.both() as f64).sum();
            bounds.windows(2).map(sum).collect::<Vec<f64>>()
        };
        assert_eq!(better_cuts(&graph, 1, &cuts, &even(&cuts)), Vec::<String>::new());
        let late = [cuts[0] + 9];
        let name = graph.nodes()[cuts[0]].name.clone();
        assert_eq!(better_cuts(&graph, 1, &late, &even(&late)), [name]);
    }

    #[test]
    fn cuts_stand_before_layers_or_groups_of_layers() {
        let graph = model("resnet20");
        let costs = CutCosts::counted(&graph, 1);
        let find = |text: &str, stages| text.parse::<Cuts>().unwrap().find(&graph, &costs, stages);
        let place = |name: &str| graph.nodes().iter().position(|node| node.name == name).unwrap();
        assert_eq!(
            find("layer2.0,layer3.1.bn2", 3),
            Ok(vec![place("layer2.0.downsample.0"), place("layer3.1.bn2")])
        );
        for (text, stages, said) in [
            ("fc", 3, "--cuts fc: 3 stages have 2 cuts"),
            ("fc,pool", 3, "--cuts pool: cuts must ascend"),
            ("conv1", 2, "--cuts conv1: it is the first layer"),
            ("layer4", 2, "--cuts layer4: there is no such layer; there are conv1, bn1, layer1.0.conv1"),
            ("auto", 99, "--stages 99: the network has"),
        ] {
            let refused = find(text, stages).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
        assert!("a,,b".parse::<Cuts>().is_err());
    }
}
