//! Real runs whose workers have weights of their own, and lose some: the others close the ring and go on.

use serde_json::Value;

use crate::aftermath::Scene;
use crate::support::{paceline, result};

/// A short run of four workers, with a global batch of 32 samples.
const RUN: &str = "--quiet --workers 4 --steps 40 --batch 8 --eval-every 10 --bucket 32KiB --seed 5";

/// Every strategy in which workers have weights of their own, over every transport, with several optimisers.
const CELLS: [&str; 8] = [
    "--strategy local --transport tcp --optimizer adam --lr 0.001",
    "--strategy gossip --transport uds",
    "--strategy stepwise --transport shm --momentum 0.9",
    "--strategy stepwise --variant chunked --transport grpc",
    "--strategy gossip --neighbours 1 --transport tcp --compression fp16",
    "--strategy stepwise --variant periodic --transport tcp",
    "--strategy local --local-steps 3 --model lenet --transport shm",
    "--strategy ring-allreduce --averages weights --transport shm",
];

/// Runs `train` with ranks that are killed after steps (`RANK:STEP,…`); what must hold afterwards holds.
fn killed(words: &str, at: &str) -> (Value, Vec<Value>) {
    let scene = Scene::new();
    let ran = scene.run(&format!("train --json {words}"), &[("PACELINE_TEST_DIE", at.to_owned())]);
    assert_eq!(ran.code, 0, "{words}, killed {at}: {}", ran.stderr);
    let told = scene.after(&ran, "ok");
    (told.last().unwrap().clone(), told)
}

fn changes(result: &Value) -> &Vec<Value> {
    result["membership"].as_array().unwrap_or_else(|| panic!("members have changed: {result}"))
}

/// All steps are done, and every sample is trained on but those that the changes say were dropped; what was learned is
/// like what is learned without a loss.
fn whole(changed: &Value, words: &str) {
    assert_eq!(changed["steps"], 40, "{words}");
    let dropped: u64 = changes(changed).iter().filter_map(|change| change["samples_dropped"].as_u64()).sum();
    assert_eq!(changed["samples"], 40 * 32 - dropped, "{words}: {changed}");
    let calm = result(&format!("train --no-record {RUN} {words}"));
    let loss = |result: &Value| result["final_loss"].as_f64().unwrap();
    let (own, other) = (loss(changed), loss(&calm));
    assert!(own.is_finite() && own < 1.5 * other + 0.2, "{words}: {own}, undisturbed {other}");
}

#[test]
fn a_killed_worker_takes_its_weights_along_and_the_ring_closes_around_the_gap() {
    let kills = [(0, 7), (3, 1), (2, 39), (1, 20), (2, 10), (3, 13), (1, 30), (0, 12)];
    for (words, (worker, step)) in CELLS.into_iter().zip(kills) {
        let elastic = format!("{RUN} {words} --elastic 2..4");
        let (changed, told) = killed(&elastic, &format!("{worker}:{step}"));
        whole(&changed, words);
        let [change] = &changes(&changed)[..] else { panic!("{words}: {changed}") };
        let seen = (&change["lost"], &change["workers"], &change["joined"]);
        assert_eq!(seen, (&vec![worker].into(), &3.into(), &Value::Null), "{words}");
        assert!(change["step"].as_u64().unwrap() <= 40, "{words}: {change}");
        let tells = |event: &&Value| event["type"] == "evaluation";
        let steps: Vec<u64> =
            told.iter().filter(tells).map(|event| event["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [10, 20, 30, 40], "{words}");
    }
}

#[test]
fn two_workers_that_are_killed_one_after_the_other_or_within_one_step_leave_two_that_go_on() {
    for (words, at) in [
        ("--strategy local --local-steps 4", "1:8,2:8"),
        ("--strategy local --local-steps 4", "0:3,3:25"),
        ("--strategy gossip", "1:17,2:17"),
        ("--strategy gossip --neighbours 1", "0:1,1:38"),
        ("--strategy stepwise", "3:6,0:6"),
        ("--strategy stepwise --variant rotate", "1:5,3:21"),
    ] {
        let (changed, _) = killed(&format!("{RUN} {words} --elastic 2..4"), at);
        whole(&changed, words);
        let lost: usize =
            changes(&changed).iter().map(|change| change["lost"].as_array().unwrap().len()).sum();
        let left = changes(&changed).last().unwrap()["workers"].as_u64();
        assert_eq!((lost, left), (2, Some(2)), "{words}, killed {at}: {changed}");
    }
}

#[test]
fn a_spare_takes_the_lost_workers_place_with_a_survivors_weights() {
    for strategy in ["local", "gossip", "stepwise"] {
        let words = format!("--strategy {strategy} --momentum 0.9");
        let (changed, _) = killed(&format!("{RUN} {words} --elastic 4..4 --spare 1"), "2:15");
        whole(&changed, &words);
        let [change] = &changes(&changed)[..] else { panic!("{words}: {changed}") };
        assert_eq!(
            (&change["joined"], &change["workers"]),
            (&vec![4].into(), &4.into()),
            "{words}: {change}"
        );
    }
}

#[test]
fn virtual_time_changes_such_members_as_real_runs_do() {
    let scene = Scene::new();
    let revoke =
        |at_s: f64, rank: usize, more: &str| format!("[[revoke]]\nat-s = {at_s}\nrank = {rank}\n{more}\n");
    let file = revoke(0.3, 3, "back-after-s = 0.2") + &revoke(0.4, 1, "notice-s = 0.2");
    let file = scene.file("revoke.toml", &file);
    // Links of 4 ms make steps so long that whoever comes back finds the run under way.
    for strategy in ["local --steps 900", "gossip --steps 300", "stepwise --steps 300"] {
        let words = format!("--quiet --workers 4 --batch 8 --network 1gbit,4ms --strategy {strategy}");
        let calm = result(&format!("train --no-record {words}"));
        for verb in ["train --no-record", "simulate --no-record --learn", "simulate --no-record"] {
            let ran = result(&format!("{verb} {words} --elastic 2..4 --revoke {file}"));
            let told = |what: &str| -> Vec<Value> {
                let of_changes = changes(&ran).iter().map(|change| change[what].clone());
                of_changes.filter(|told| !told.is_null()).collect()
            };
            let dropped: u64 = told("samples_dropped").iter().filter_map(Value::as_u64).sum();
            let samples = ran["samples"].as_u64().unwrap() + dropped;
            assert_eq!(
                (&ran["steps"], samples),
                (&calm["steps"], calm["samples"].as_u64().unwrap()),
                "{verb} {words}"
            );
            // Whether a notice comes in time is the machine's to say.
            let gone: Vec<Value> = [told("lost"), told("left")].concat();
            let mut gone: Vec<u64> =
                gone.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_u64).collect();
            gone.sort_unstable();
            assert_eq!(
                (&gone[..], told("joined")),
                (&[1, 3][..], vec![vec![3].into()]),
                "{verb} {words}: {ran}"
            );
            if verb != "simulate --no-record" {
                assert!(ran["final_loss"].as_f64().unwrap() < 1.0, "{verb} {words}: {ran}");
            }
        }
    }
}

#[test]
fn a_run_that_has_lost_too_many_goes_on_from_a_checkpoint_with_all_its_workers() {
    for strategy in ["local", "gossip", "stepwise"] {
        let scene = Scene::new();
        let words =
            format!("{RUN} --momentum 0.9 --strategy {strategy} --elastic 2..4 --checkpoint-every 10");
        let (at, limit) = ("1:12,3:25,0:33".to_owned(), "the run needs at least 2");
        let ran = scene.run(&format!("train --json {words}"), &[("PACELINE_TEST_DIE", at)]);
        assert_eq!(ran.code, 4, "{words}: {}", ran.stderr);
        for word in [limit, "paceline resume"] {
            assert!(ran.stderr.contains(word), "{words}: {word}: {}", ran.stderr);
        }
        scene.after(&ran, "failed");
        let resumed = scene.run("resume last --quiet", &[]);
        assert_eq!(resumed.code, 0, "{words}: {}", resumed.stderr);
        let (resumed, calm) =
            (resumed.result(), result(&format!("train --no-record {RUN} --strategy {strategy}")));
        assert_eq!(
            (&resumed["steps"], resumed["ranks"].as_array().map(Vec::len)),
            (&40.into(), Some(4)),
            "{words}"
        );
        // What was dropped before the checkpoint stays counted off.
        let samples = resumed["samples"].as_u64().unwrap();
        assert!((1_200..=1_280).contains(&samples), "{words}: {samples}");
        let loss = |result: &Value| result["final_loss"].as_f64().unwrap();
        assert!(loss(&resumed) < 1.5 * loss(&calm) + 0.2, "{words}: {resumed}");
    }
}

#[test]
fn what_would_lose_more_than_a_workers_own_weights_is_refused_with_the_reason() {
    for (words, reason) in [
        ("--strategy stepwise --variant push-sum", "members can change with --debias none"),
        ("--strategy stepwise --variant periodic --averages gradients", "with --averages weights"),
        ("--strategy local --outer nesterov", "members can change with --outer none"),
        ("--strategy gossip --compression topk", "what a worker has not sent yet"),
    ] {
        let ran = paceline(&format!("train --steps 5 --workers 4 --elastic 2..4 {words}"));
        assert_eq!(ran.code, 3, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    let ran = paceline("train --steps 5 --workers 4 --elastic 2..8 --strategy local");
    assert!(ran.code == 3 && ran.stderr.contains("no more can take part"), "{}", ran.stderr);
}
