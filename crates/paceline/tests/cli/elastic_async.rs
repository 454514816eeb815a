//! Real runs whose members change and whose workers do not make steps together: whoever is killed, every unit of work is
//! applied once, and steps and samples are the plan's.

use serde_json::Value;

use crate::aftermath::Scene;
use crate::elastic::{Draws, killed, revoke};
use crate::support::{Ran, Running, gone, paceline, result, signal};

/// A short run of four workers: 40 steps of 32 samples.
const RUN: &str =
    "--quiet --workers 4 --strategy ps --servers 2 --steps 40 --batch 8 --bucket 32KiB --seed 5";
const STEPS: u64 = 40;
const SAMPLES: u64 = 4 * 8 * STEPS;

/// Models over transports, with optimisers; and the stalest update that each allows four workers, if any: of each of the
/// other three, 2s + 1 pushes come between a read and a write.
const CELLS: [(&str, Option<f64>); 6] = [
    ("--sync asp --transport tcp --lr 0.005", None),
    ("--sync ssp --staleness 2 --transport shm --optimizer adam --lr 0.001", Some(15.0)),
    ("--sync dssp --staleness-bounds 1,3 --transport uds --momentum 0.9 --lr 0.005", Some(21.0)),
    ("--sync essp --staleness 1 --transport shm --lr 0.005", Some(9.0)),
    ("--sync adaptive --staleness 1 --staleness-bounds 1,3 --transport tcp --lr 0.005", Some(21.0)),
    ("--sync asp --model lenet --transport shm --momentum 0.9 --lr 0.005 --shard by-label", None),
];

/// Steps and samples of a run.
fn counts(result: &Value) -> (Option<u64>, Option<u64>) {
    (result["steps"].as_u64(), result["samples"].as_u64())
}

/// Steps and samples of a run that has ended well are the plan's, its figures are numbers, and no update was too stale.
fn exact(ran: &Ran, stalest: Option<f64>, what: &str) -> Value {
    assert_eq!(ran.code, 0, "{what}: {}", ran.stderr);
    let result = ran.result();
    assert_eq!(counts(&result), (Some(STEPS), Some(SAMPLES)), "{what}: {result}");
    for figure in ["final_loss", "final_accuracy"] {
        assert!(result[figure].as_f64().is_some_and(f64::is_finite), "{what}: {figure}: {result}");
    }
    assert_eq!(result["params_sha256"].as_str().map(str::len), Some(64), "{what}: {result}");
    let stale = result["staleness"]["max"].as_f64().unwrap();
    assert!(stalest.is_none_or(|most| stale <= most), "{what}: an update {stale} versions old: {result}");
    result
}

/// Members that were lost, over all changes.
fn lost(result: &Value) -> Vec<u64> {
    let changes = result["membership"].as_array().unwrap().iter();
    let lost = changes.filter_map(|change| change["lost"].as_array().cloned()).flatten();
    lost.filter_map(|member| member.as_u64()).collect()
}

#[test]
fn workers_and_servers_that_are_killed_at_moments_drawn_from_seeds_change_no_count() {
    let mut all = 0;
    for seed in 1..=12u64 {
        let mut draws = Draws::new(seed);
        let (cell, stalest) = CELLS[seed as usize % CELLS.len()];
        let first = draws.below(6);
        let mut kills = vec![(first, 1 + draws.below(20))];
        // A worker as well, within the same step or at any time.
        let second = draws.below(4);
        if second != first {
            kills.push((second, if draws.below(2) == 0 { kills[0].1 } else { 1 + draws.below(20) }));
        }
        let at: Vec<String> = kills.iter().map(|(rank, step)| format!("{rank}:{step}")).collect();
        let what = format!("seed {seed}: {cell}, killed {}", at.join(","));
        let scene = Scene::new();
        let words = format!("{RUN} {cell} --backup 1 --elastic 2..4");
        let (ran, _) = killed(&scene, &at.join(","), &words, "ok");
        let lost = lost(&exact(&ran, stalest, &what));
        // Workers that are not bound to each other may leave one of them so few units that it never comes to its step.
        assert!(lost.iter().all(|member| kills.iter().any(|(rank, _)| rank == member)), "{what}: {lost:?}");
        assert!(!lost.is_empty() || stalest.is_none(), "{what}: nobody was lost");
        all += lost.len();
    }
    assert!(all >= 8, "{all} were lost");
}

#[test]
fn a_lost_workers_units_go_to_the_others_where_servers_have_no_backups() {
    for (cell, (worker, step)) in
        ["--sync asp --lr 0.005", "--sync ssp --staleness 1 --lr 0.005"].into_iter().zip([(1, 1), (0, 12)])
    {
        let scene = Scene::new();
        let (ran, _) =
            killed(&scene, &format!("{worker}:{step}"), &format!("{RUN} {cell} --elastic 2..4"), "ok");
        let result = exact(&ran, None, cell);
        assert_eq!(lost(&result), [worker], "{cell}: {result}");
        assert_eq!(result["membership"][0]["workers"], 3, "{cell}: {result}");
    }
}

#[test]
fn members_that_are_taken_away_come_back_in_real_and_in_virtual_time() {
    // Links of 4 ms make steps so long that whoever comes back finds the run under way.
    let back = "back-after-s = 0.2";
    let file =
        revoke(0.2, 3, back) + &revoke(0.3, 1, &format!("notice-s = 0.2\n{back}")) + &revoke(0.4, 5, back);
    for sync in ["asp", "ssp"] {
        let scene = Scene::new();
        let path = scene.file("revoke.toml", &file);
        let words = format!(
            "{RUN} --sync {sync} --lr 0.005 --network 1gbit,4ms --backup 1 --elastic 2..4 --revoke {path}"
        );
        let ran = scene.run(&format!("train --json {words}"), &[]);
        scene.after(&ran, "ok");
        let result = exact(&ran, None, sync);
        assert!(lost(&result).contains(&3), "{sync}: {result}");
        let ran = paceline(&format!("simulate --json --no-record --learn {words}"));
        let result = exact(&ran, None, &format!("{sync}, in virtual time"));
        assert!(lost(&result).contains(&3), "{sync}, in virtual time: {result}");
    }
}

#[test]
fn a_killed_server_and_a_drained_worker_are_done_without_under_asp() {
    let words =
        "--workers 3 --strategy ps --servers 2 --sync asp --steps 300 --batch 32 --model lenet --lr 0.005";
    let planned = counts(&result(&format!("train --no-record --quiet {words}")));
    // Processes are started in the order of ranks: workers, then servers.
    for (name, rank, how) in [("KILL", 3, "lost"), ("KILL", 4, "lost"), ("TERM", 1, "left")] {
        let running = Running::start(&format!("{words} --backup 1 --elastic 1..3"));
        running.next("progress");
        let pid = running.ranks()[rank];
        assert!(signal(name, pid));
        let told = running.next("membership");
        assert_eq!(told["change"][how], Value::from(vec![rank]), "{told}");
        let all = running.rest();
        let ended = all.iter().find(|event| event["type"] == "result").unwrap_or_else(|| panic!("{all:?}"));
        assert_eq!(counts(ended), planned, "{ended}");
        assert!(gone(pid));
    }
}

#[test]
fn a_server_together_with_its_backup_ends_the_run_which_goes_on_from_its_checkpoint() {
    for sync in ["asp", "ssp"] {
        let scene = Scene::new();
        let words = format!("{RUN} --sync {sync} --lr 0.005 --backup 1 --elastic 2..4 --checkpoint-every 10");
        let (ran, _) = killed(&scene, "4:25,5:25", &words, "failed");
        assert_eq!(ran.code, 4, "{sync}: {}", ran.stderr);
        for word in [
            "server shard",
            "nobody has a copy",
            "server 4 (",
            "server 5 (",
            "after step 20",
            "paceline resume",
        ] {
            assert!(ran.stderr.contains(word), "{sync}: {word}: {}", ran.stderr);
        }
        exact(&scene.run("resume last --quiet", &[]), None, sync);
    }
}

#[test]
fn an_interrupted_run_whose_members_have_changed_saves_itself_and_goes_on() {
    let words =
        "--workers 3 --strategy ps --servers 2 --sync asp --steps 400 --batch 32 --model lenet --lr 0.005";
    let scene = Scene::new();
    let store = scene.store.path().display();
    let running = Running::start(&format!("{words} --backup 1 --elastic 1..3 --store {store}"));
    running.next("progress");
    assert!(signal("KILL", running.ranks()[3]));
    running.next("membership");
    assert!(signal("INT", running.id()));
    running.rest();
    let ran = scene.run("resume last --quiet", &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(counts(&ran.result()), counts(&result(&format!("train --no-record --quiet {words}"))));
}

#[test]
fn what_cannot_change_its_members_without_steps_together_is_refused_with_the_reason() {
    let refused = [
        ("--sync switch", "all steps are of one kind"),
        ("--sync asp --compression int8", "what a worker has not sent yet"),
        ("--sync asp --elastic 2..8", "no more can take part than the run begins with"),
        ("--sync asp --shares 8", "one share per worker"),
    ];
    for verb in ["train", "simulate"] {
        for (words, reason) in refused {
            let elastic = if words.contains("--elastic") { "" } else { "--elastic 2..4" };
            let ran = paceline(&format!(
                "{verb} --no-record --steps 5 --workers 4 --strategy ps --servers 2 {elastic} {words}"
            ));
            assert_eq!(ran.code, 3, "{verb} {words}: {}", ran.stderr);
            assert!(ran.stderr.contains(reason), "{verb} {words}: {}", ran.stderr);
        }
    }
}
