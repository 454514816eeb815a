//! How causes are planted, and what has to be said then.

use std::path::Path;

use serde_json::Value;

use super::case::{COLOUR, CONV, Case, DIGITS, GRU, Hosts, LENET, LSTM, MLP, Net};

/// A cause that is planted.
pub struct Plant {
    pub name: &'static str,
    /// Number `i` of its runs; a folder that has images, where it needs them.
    pub case: fn(usize, &Path) -> Case,
    /// Whether a verdict names it.
    pub named: fn(&Value, &Case) -> bool,
}

fn is(verdict: &Value, cause: &str) -> bool {
    verdict["cause"] == cause
}

fn host(name: &'static str, count: usize, cores: usize, speed: f64) -> Hosts {
    Hosts { name, count, cores, speed }
}

/// Images that take long to decode, made small.
const IMAGES: Net = ("image-folder", "mlp", 12, 0.8);
/// One dense layer that is as large as its inputs are many.
const SOFTMAX: Net = ("synthetic-colour", "softmax", 200, 0.12);

pub const PLANTED: [Plant; 11] = [
    Plant {
        name: "straggler",
        case: |i, _| {
            let mut case = Case::new(i, &[MLP, CONV, LENET, GRU, LSTM]);
            case.batch = if case.net.1 == "mlp" { 128 } else { 16 };
            let (rank, factor) = (i % case.workers, [2.0, 3.0, 2.5, 5.0, 4.0][i / 2 % 5]);
            let case = if case.strategy == "ps" && i % 3 == 0 { case.with("--sync", "ssp") } else { case };
            case.with("--straggler", format!("rank={rank},factor={factor}"))
        },
        named: |verdict, _| is(verdict, "straggler"),
    },
    Plant {
        name: "server",
        case: |i, _| {
            // Real ones: many workers with little to compute; simulated ones: a server on a slow machine.
            let mut case = Case::new(i, &[LENET, MLP]);
            (case.strategy, case.servers) = ("ps", 1);
            if case.simulated {
                let slow = [0.02, 0.01, 0.005][i / 2 % 3];
                case.cluster = vec![host("fast", case.workers, 8, 1.0), host("slow", 1, 8, slow)];
                return case.with("--placement", "dedicated");
            }
            (case.workers, case.batch) = ([4, 6, 5][i / 2 % 3], [1, 2, 4][i / 2 % 3]);
            case.with("--optimizer", ["sgd", "adam"][i / 4 % 2])
        },
        named: |verdict, _| is(verdict, "server"),
    },
    Plant {
        name: "bandwidth",
        case: |i, _| {
            let mut case = Case::new(i, &[MLP, LENET, CONV, LSTM, GRU]);
            // What makes the bytes of a step take 60 to 200 ms.
            let mbit = (case.net.3 * 8.0 / [0.06, 0.1, 0.2][i / 2 % 3]).round();
            case.steps = 10;
            case.with("--network", format!("{mbit}mbit,{}us", [20, 100, 50][i % 3]))
        },
        named: |verdict, _| is(verdict, "bandwidth"),
    },
    Plant {
        name: "latency",
        case: |i, _| {
            let mut case = Case::new(i, &[MLP, GRU, DIGITS, CONV, LSTM]);
            (case.steps, case.batch) = (14, 8);
            let network = format!("{},{}ms", ["10gbit", "25gbit"][i / 2 % 2], [10, 20, 40, 8][i / 2 % 4]);
            case.with("--network", network)
        },
        named: |verdict, _| is(verdict, "latency"),
    },
    Plant {
        name: "small-messages",
        case: |i, _| {
            let mut case = Case::new(i, &[MLP, LENET, GRU, CONV]);
            let bytes = case.net.3 * 1e6 / [1500.0, 800.0, 2500.0][i / 2 % 3];
            (case.batch, case.steps) = (8, case.steps.min(20));
            case.with("--bucket", bytes.round())
        },
        named: |verdict, _| is(verdict, "small-messages"),
    },
    Plant {
        // Only virtual hosts differ by themselves here.
        name: "slow-group",
        case: |i, _| {
            let mut case = Case::new(2 * i + 1, &[LENET, COLOUR, CONV, GRU, LENET]);
            let (usual, slow) = [(2, 2), (6, 2), (4, 4), (12, 4), (3, 5), (48, 16), (8, 8)][i % 7];
            (case.workers, case.batch, case.steps) = (usual + slow, 32, case.steps.min(10));
            case.strategy = ["ring-allreduce", "tree", "ps"][i % 3];
            case.servers = usize::from(case.strategy == "ps");
            let speed = [0.5, 0.35, 0.6, 0.25][i % 4];
            case.cluster = vec![host("reserved", usual, 8, 1.0), host("spot", slow, 8, speed)];
            case
        },
        named: |verdict, case| {
            let slow = case.cluster[1].count;
            let sentence = verdict["sentence"].as_str().unwrap_or_default();
            is(verdict, "straggler")
                && verdict["ranks"].as_array().map_or(0, Vec::len) == slow
                && sentence.contains(&format!("{slow} workers on `spot`"))
        },
    },
    Plant {
        name: "shared-cores",
        case: |i, _| {
            let mut case = Case::new(i, &[COLOUR, LENET, CONV, GRU, LSTM]);
            (case.strategy, case.servers) = (["ring-allreduce", "tree"][i / 2 % 2], 0);
            case.batch = [16, 32][i / 4 % 2];
            if case.simulated {
                let cores = [2, 4, 1][i / 2 % 3];
                case.workers = cores * [2, 4, 3][i / 6 % 3];
                case.cluster = vec![host("crowded", 1, cores, 1.0)];
                return case;
            }
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            case.workers = cores * [2, 3, 4][i / 2 % 3];
            case.steps = case.steps.min(16);
            case
        },
        named: |verdict, _| is(verdict, "shared-cores"),
    },
    Plant {
        name: "codec",
        case: |i, _| {
            let mut case = Case::new(i, &[LENET, MLP, LENET]);
            case.strategy = "ring-allreduce";
            case.steps = if case.simulated { 20 } else { 3 * case.steps };
            case.servers = 0;
            let codec = if case.simulated {
                (case.workers, case.batch) = ([4, 2, 8, 3][i / 2 % 4], [4, 1, 8, 2][i / 2 % 4]);
                ["topk,ratio=0.01", "int8", "sign", "2bit,threshold=0.01"][i / 2 % 4]
            } else {
                (case.workers, case.batch) = (2, [4, 1, 2][i / 2 % 3]);
                ["topk,ratio=0.01", "topk,ratio=0.001", "topk,ratio=0.05"][i / 4 % 3]
            };
            case.with("--compression", codec)
        },
        named: |verdict, _| is(verdict, "codec"),
    },
    Plant {
        // Only real runs decode.
        name: "data",
        case: |i, images| {
            let mut case = Case::new(2 * i, &[IMAGES]);
            (case.workers, case.batch) = ([1, 2, 1][i % 3], [8, 12, 16][i % 3]);
            (case.strategy, case.servers) = ("ring-allreduce", 0);
            let case =
                case.with("--image-size", [16, 32, 24][i / 3 % 3]).with("--data-dir", images.display());
            if i % 4 == 3 { case.with("--decoders", 2) } else { case }
        },
        named: |verdict, _| is(verdict, "data"),
    },
    Plant {
        // Only virtual hosts differ by themselves here.
        name: "slow-server",
        case: |i, _| {
            let mut case = Case::new(2 * i + 1, &[LENET, MLP]);
            (case.strategy, case.servers) = ("ps", 2);
            case.workers = [4, 2, 8, 3, 6][i % 5];
            let slow = [0.02, 0.01, 0.005, 0.03][i % 4];
            case.cluster = vec![host("fast", case.workers + 1, 8, 1.0), host("old", 1, 8, slow)];
            case.with("--placement", "dedicated")
        },
        named: |verdict, case| is(verdict, "server") && verdict["rank"] == case.workers + 1,
    },
    Plant {
        name: "memory",
        case: |i, _| {
            let mut case = Case::new(i, &[MLP, LENET, SOFTMAX, DIGITS]);
            (case.workers, case.servers, case.batch) = (1, 0, [1, 2, 1][i / 2 % 3]);
            if case.net.1 == "lenet" {
                case.batch = 1;
            }
            (case.strategy, case.steps) = ("single", if case.net.1 == "lenet" { 200 } else { 1000 });
            case.with("--optimizer", ["sgd", "adam"][i / 4 % 2])
        },
        named: |verdict, _| is(verdict, "memory"),
    },
];

/// What may be said of a run in which nothing was planted: a server with much to do, exchanging that takes long, or that
/// somebody else used the cores, is what there is to say.
pub const UNBLAMED: [&str; 4] = ["compute", "exchange", "server", "other-programs"];

/// Runs in which nothing is planted: real ones have a core for every worker.
pub const HEALTHY: Plant = Plant {
    name: "healthy",
    case: |i, _| {
        let mut case = Case::new(i, &[MLP, COLOUR, CONV, LENET, GRU, LSTM]);
        case.batch = [64, 32, 16][i / 2 % 3];
        if !case.simulated {
            case.workers = case.workers.min(std::thread::available_parallelism().map_or(1, usize::from));
        }
        if case.simulated && i % 4 == 1 { case.with("--network", "25gbit,20us") } else { case }
    },
    named: |verdict, _| UNBLAMED.iter().any(|cause| is(verdict, cause)),
};
