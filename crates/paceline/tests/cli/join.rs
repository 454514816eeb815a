//! `paceline train --listen` and `paceline join` on one machine: what needs no network of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use paceline_record::Store;
use paceline_testing::{Need, skip};

use crate::bad_input::write_mnist;
use crate::machines::{Listening, Process, all_gone, error};
use crate::support::{ENDLESS, paceline, result, run, signal};

const HERE: &str = "127.0.0.1:0";

#[test]
fn machines_that_join_give_the_parameters_of_one_machine_bit_for_bit() {
    for (hosts, words) in [
        (2, "--workers 2"),
        (2, "--workers 3 --servers 2 --strategy ps"),
        (2, "--workers 2 --servers 1 --strategy ps --placement dedicated"),
        (3, "--workers 3 --strategy tree"),
        (2, "--workers 4 --transport shm --strategy ring-allreduce"),
    ] {
        let words = format!("{words} --steps 6 --batch 24 --bucket 64KiB");
        let alone = result(&format!("train --quiet {}", words.replace("--placement dedicated", "")));
        let listening = Listening::start(&[], HERE, &format!("--hosts {hosts} {words}"));
        let joiners: Vec<_> = (1..hosts).map(|_| listening.join(&[], "")).collect();
        let together = listening.launcher.result();
        for field in ["params_sha256", "steps", "samples", "final_accuracy"] {
            assert_eq!(alone[field], together[field], "{words}: {field}");
        }
        for joiner in joiners {
            let (code, out, text) = joiner.end();
            assert_eq!((code, out.as_str()), (0, ""), "{words}: {text}");
            assert!(text.contains("ended well: accuracy") && text.contains("joined "), "{text}");
        }
        // All have one name, so that their addresses tell them apart.
        let ranks = together["ranks"].as_array().unwrap();
        assert!(ranks.iter().all(|rank| rank["host"].as_str().unwrap().ends_with(" (127.0.0.1)")), "{words}");
        assert!(!Path::new(&listening.key_file).exists(), "the run's own key goes with it");
    }
}

#[test]
fn machines_join_over_ipv6_too() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip(Need::System, "IPv6");
    }
    let words = "--workers 2 --steps 3";
    let listening = Listening::start(&[], "[::1]:0", &format!("--hosts 2 {words}"));
    let joiner = listening.join(&[], "");
    let together = listening.launcher.result();
    assert_eq!(joiner.end().0, 0);
    assert_eq!(together["params_sha256"], result(&format!("train --quiet {words}"))["params_sha256"]);
    assert!(together["ranks"][1]["host"].as_str().unwrap().ends_with(" (::1)"));
}

#[test]
fn a_joiner_prints_the_result_as_json_if_asked_for() {
    let listening = Listening::start(&[], HERE, "--hosts 2 --workers 2 --steps 3");
    let joined = listening.join(&[], "--json --quiet").result();
    let result = listening.launcher.result();
    assert_eq!((&joined["type"], &joined["host"]), (&"joined".into(), &1.into()));
    assert_eq!(joined["result"]["params_sha256"], result["params_sha256"]);
    assert_eq!(joined["run"], result["run"]);
}

#[test]
fn without_a_key_nobody_listens_where_other_machines_can_reach() {
    for address in ["0.0.0.0:0", "[::]:0", "10.255.255.1"] {
        let ran = paceline(&format!("train --hosts 2 --workers 2 --listen {address}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (6, ""), "{}", ran.stderr);
        assert!(error(&ran.stderr).contains("without a key"), "{}", ran.stderr);
        assert!(ran.stderr.contains("--key-file"), "{}", ran.stderr);
    }
    let ran = run(std::process::Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(["join", "127.0.0.1:1"])
        .env_remove("PACELINE_KEY_FILE"));
    assert_eq!(ran.code, 6, "{}", ran.stderr);
    assert!(ran.stderr.contains("needs the launcher's key") && ran.stderr.contains("--key-file"));
}

#[test]
fn a_key_file_must_be_private_and_hold_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("run.key");
    let name = key.display();
    let train = format!("train --hosts 2 --workers 2 --listen {HERE} --join-timeout 0.1 --key-file {name}");
    let join = format!("join 127.0.0.1:1 --join-timeout 0.1 --key-file {name}");
    // There is none: the launcher makes it, a joiner does not.
    let ran = paceline(&join);
    assert_eq!(ran.code, 6, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("No such file") && ran.stderr.contains("copy it from there"),
        "{}",
        ran.stderr
    );
    let ran = paceline(&train);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("a new key is in") && ran.stderr.contains(&format!("--key-file {name}")));
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let made = fs::read_to_string(&key).unwrap();
    assert!(made.trim().len() == 64);
    // It stays, and is used again.
    assert!(paceline(&train).stderr.contains("the key is in"));
    assert_eq!(fs::read_to_string(&key).unwrap(), made);

    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    for words in [&train, &join] {
        let ran = paceline(words);
        assert_eq!(ran.code, 6, "{}", ran.stderr);
        assert!(ran.stderr.contains("mode 0644") && ran.stderr.contains(&format!("chmod 600 {name}")));
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "no key at all").unwrap();
    for words in [&train, &join] {
        let ran = paceline(words);
        assert_eq!(ran.code, 6, "{}", ran.stderr);
        assert!(ran.stderr.contains("expected 64 hexadecimal digits"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("no key at all"), "what it holds is not told");
    }
}

#[test]
fn plans_that_cannot_leave_one_machine_are_refused_before_anything_starts() {
    for (words, reason) in [
        ("--hosts 2 --workers 2 --transport uds", "valid with --listen: tcp, shm"),
        ("--hosts 2 --workers 2 --transport inproc", "valid with --listen: tcp"),
        ("--hosts 2 --workers 2 --network 1gbit,1ms", "--listen has real ones"),
        ("--hosts 1 --workers 2", "at least 2 hosts"),
        ("--workers 2", "at least 2 hosts"),
        ("--workers 1", "one worker alone runs on one machine"),
        ("--hosts 0,0,2 --workers 3", "host 1"),
    ] {
        let ran = paceline(&format!("train --listen {HERE} {words}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{words}: {}", ran.stderr);
    }
    assert_eq!(paceline("train --workers 2 --listen nowhere.invalid:1").code, 2);
    assert_eq!(paceline("train --workers 2 --key-file x").code, 2, "a key for nobody");
}

#[test]
fn a_busy_port_is_named() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let ran = paceline(&format!("train --hosts 2 --workers 2 --listen {address}"));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(error(&ran.stderr).contains(&format!("cannot listen on {address}")), "{}", ran.stderr);
}

#[test]
fn the_environment_of_torchrun_is_understood_and_flags_come_before_it() {
    let listening = Listening::start(&[], HERE, "--hosts 2 --workers 2 --steps 3");
    let (name, port) = listening.address.split_once(':').unwrap();
    let environment = |rank: &'static str, world: &'static str| {
        [
            ("MASTER_ADDR", name),
            ("MASTER_PORT", port),
            ("RANK", rank),
            ("WORLD_SIZE", world),
            ("PACELINE_KEY_FILE", listening.key_file.as_str()),
        ]
    };
    for (rank, world, words, code, what) in [
        ("0", "2", "", 2, "is the machine where `paceline train --listen` runs"),
        ("1", "3", "", 6, "the number of hosts differs: the launcher has 2; the joiner has 3"),
        ("2", "2", "", 6, "host 2: others than the launcher's are 1 to 1"),
        ("1", "two", "", 2, "WORLD_SIZE=two: a number is needed"),
        ("1", "2", "--host 7", 6, "host 7: others than"),
        ("1", "2", "--hosts 9", 6, "the joiner has 9"),
    ] {
        let (ended, _, text) = Process::start(&[], &format!("join {words}"), &environment(rank, world)).end();
        assert_eq!(ended, code, "{rank} {world} {words}: {text}");
        assert!(error(&text).contains(what), "{rank} {world} {words}: {text}");
    }
    let joiner = Process::start(&[], "join", &environment("1", "2"));
    listening.launcher.result();
    let (code, _, text) = joiner.end();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("as host 1 of 2"), "{text}");
    let (code, _, text) = Process::start(&[], "join", &[("MASTER_ADDR", "")]).end();
    assert_eq!(code, 2, "{text}");
    assert!(error(&text).contains("MASTER_ADDR is not set"), "{text}");
}

#[test]
fn whoever_is_waited_for_in_vain_is_counted_and_those_who_came_are_sent_home() {
    let words = "--hosts 3 --workers 3 --join-timeout 1.5";
    let listening = Listening::start(&[], HERE, words);
    let joiner = listening.join(&[], "");
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("waiting for 2 of 3 hosts at 127.0.0.1:"), "{text}");
    assert!(text.contains("waiting for 1 of 3 hosts at 127.0.0.1:"), "{text}");
    let said = error(&text);
    assert!(said.contains("2 of 3 hosts came (this one, ") && said.contains("(127.0.0.1)"), "{text}");
    let (code, _, text) = joiner.end();
    assert_eq!(code, 4, "{text}");
    assert!(error(&text).contains("not all hosts came in time"), "{text}");
    // Nobody listens there any more.
    let (code, _, text) = Process::start(
        &[],
        &format!("join {} --join-timeout 0.3", listening.address),
        &[("PACELINE_KEY_FILE", &key_in(&tempfile::tempdir().unwrap(), "a"))],
    )
    .end();
    assert_eq!(code, 4, "{text}");
    assert!(error(&text).contains(&format!("nobody answered at {}", listening.address)), "{text}");
}

/// A key file of one digit again and again.
fn key_in(folder: &tempfile::TempDir, digit: &str) -> String {
    let path = folder.path().join("key");
    fs::write(&path, digit.repeat(64)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

#[test]
fn a_wrong_key_is_told_apart_and_one_too_many_is_refused() {
    let listening = Listening::start(&[], HERE, &format!("--hosts 2 --workers 2 {ENDLESS}"));
    let folder = tempfile::tempdir().unwrap();
    let wrong = key_in(&folder, "a");
    let (code, _, text) =
        Process::start(&[], &format!("join {} --key-file {wrong}", listening.address), &[]).end();
    assert_eq!(code, 6, "{text}");
    assert!(error(&text).contains(&listening.address) && error(&text).contains("wrong key"), "{text}");
    let refused = listening.launcher.prints(r#""type":"refused""#, 0);
    assert!(refused.contains("wrong key") && refused.contains(r#""rank":null"#), "{refused}");

    let joiner = listening.join(&[], "");
    joiner.says("joined");
    listening.launcher.trains_on();
    let (code, _, text) = listening.join(&[], "").end();
    assert_eq!(code, 6, "{text}");
    assert!(error(&text).contains("refuses: the run has begun already"), "{text}");
    listening.launcher.trains_on();
}

#[test]
fn a_joiner_that_is_killed_is_named_at_once_and_nothing_is_left_behind() {
    let listening = Listening::start(&[], HERE, &format!("--hosts 3 --workers 3 {ENDLESS}"));
    let joiners = [listening.join(&[], "--host 1"), listening.join(&[], "--host 2")];
    listening.launcher.trains_on();
    let ranks: Vec<u32> =
        listening.launcher.children().into_iter().chain(joiners.iter().flat_map(Process::children)).collect();
    assert_eq!(ranks.len(), 3);
    assert!(signal("KILL", joiners[0].id()));
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 4, "{text}");
    for what in ["(127.0.0.1)", "with worker 1 was lost after step ", "the connection was closed"] {
        assert!(error(&text).contains(what), "{what}: {text}");
    }
    assert!(text.contains("hint:"), "{text}");
    let [_, other] = joiners;
    let (code, _, text) = other.end();
    assert_eq!(code, 4, "{text}");
    assert!(
        error(&text).contains("failed: host ") && error(&text).contains("with worker 1 was lost"),
        "{text}"
    );
    all_gone(&ranks);
}

#[test]
fn a_rank_that_is_killed_elsewhere_is_named_with_its_machine() {
    let words = "--hosts 2 --workers 2 --servers 1 --strategy ps --placement dedicated";
    let listening = Listening::start(&[], HERE, &format!("{words} {ENDLESS}"));
    let joiner = listening.join(&[], "");
    listening.launcher.trains_on();
    let [server] = joiner.children()[..] else { panic!("one server") };
    assert!(signal("KILL", server));
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 4, "{text}");
    for what in ["server 2", &format!("(process {server})"), "SIGKILL", "(127.0.0.1)"] {
        assert!(error(&text).contains(what), "{what}: {text}");
    }
    let (code, _, text) = joiner.end();
    assert_eq!(code, 4, "{text}");
    assert!(error(&text).contains("failed: server 2"), "{text}");
}

#[test]
fn a_launcher_that_ends_takes_the_joiners_with_it() {
    for name in ["KILL", "INT"] {
        let listening = Listening::start(&[], HERE, &format!("--hosts 2 --workers 2 {ENDLESS}"));
        let joiner = listening.join(&[], "");
        listening.launcher.trains_on();
        let ranks: Vec<u32> = listening.launcher.children().into_iter().chain(joiner.children()).collect();
        assert!(signal(name, listening.launcher.id()));
        let (code, _, text) = joiner.end();
        let said = error(&text);
        if name == "INT" {
            // The run is saved, and everybody is told.
            assert_eq!(code, 130, "{text}");
            assert!(said.contains("interrupted after step"), "{text}");
        } else {
            assert_eq!(code, 4, "{text}");
            assert!(said.contains("the launcher ") && said.contains(&listening.address), "{text}");
            let ended = said.contains("closed") || said.contains("reset");
            assert!(said.contains("with worker 1") && ended, "{text}");
        }
        all_gone(&ranks);
    }
}

#[test]
fn a_machine_that_stands_still_for_a_while_is_suspected_and_comes_back() {
    let listening = Listening::start(&[], HERE, &format!("--hosts 2 --workers 2 {ENDLESS}"));
    let joiner = listening.join(&[], "");
    listening.launcher.trains_on();
    assert!(signal("STOP", joiner.id()));
    listening.launcher.says("may be lost: nothing heard for 2 s");
    assert!(signal("CONT", joiner.id()));
    // Its rank may be missed too, and be back before it.
    listening.launcher.says("(127.0.0.1), is there again");
    for state in ["quiet", "back"] {
        let event = listening.launcher.prints(&format!(r#"(127.0.0.1)","state":"{state}""#), 0);
        assert!(event.contains(r#""host":1"#), "{event}");
    }
    listening.launcher.trains_on();
}

#[test]
fn an_interrupted_joiner_has_the_run_saved_and_everybody_ends() {
    let store = tempfile::tempdir().unwrap();
    let words = format!("--hosts 2 --workers 2 {ENDLESS} --store {}", store.path().display());
    let listening = Listening::start(&[], HERE, &words);
    let joiner = listening.join(&[], "");
    listening.launcher.trains_on();
    let pids = [listening.launcher.children(), joiner.children()].concat();
    assert!(signal("INT", joiner.id()));
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("saved in") && text.contains("paceline resume"), "{text}");
    let (code, _, text) = joiner.end();
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("interrupted after step"), "{text}");
    all_gone(&pids);
}

#[test]
fn a_launcher_that_is_interrupted_while_it_waits_for_machines_says_so() {
    let store = tempfile::tempdir().unwrap();
    let words = format!("--hosts 3 --workers 3 --store {}", store.path().display());
    let listening = Listening::start(&[], HERE, &words);
    let joiner = listening.join(&[], "");
    listening.launcher.prints(r#""joined":2"#, 0);
    assert!(signal("INT", listening.launcher.id()));
    let (code, _, text) = listening.launcher.end();
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("interrupted while waiting for other machines"), "{text}");
    let (code, _, text) = joiner.end();
    assert_eq!(code, 130, "{text}");
    let runs = Store::open(store.path()).unwrap().runs().unwrap();
    assert_eq!(runs[0].state, "interrupted");
}

#[test]
fn failures_have_the_same_code_everywhere() {
    let listening = Listening::start(&[], HERE, "--hosts 2 --workers 2 --lr 1e6 --epochs 100");
    let joiner = listening.join(&[], "");
    for process in [listening.launcher, joiner] {
        let (code, _, text) = process.end();
        assert_eq!(code, 1, "{text}");
        assert!(error(&text).contains("diverged"), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    write_mnist(folder.path());
    let words = format!(
        "--hosts 2 --workers 2 --data mnist --batch 10 --steps 2 --data-dir {}",
        folder.path().display()
    );
    let listening = Listening::start(&[], HERE, &words);
    let joiner = listening.join(&[], "--data-dir /nowhere");
    for process in [listening.launcher, joiner] {
        let (code, _, text) = process.end();
        assert_eq!(code, 5, "{text}");
        for what in ["worker 1: on ", "(127.0.0.1)", "mnist", "/nowhere"] {
            assert!(error(&text).contains(what), "{what}: {text}");
        }
    }
}

/// Every file under a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_key_is_in_no_argument_no_environment_no_output_and_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let (key_file, store) = (folder.path().join("run.key"), folder.path().join("store"));
    let words = format!(
        "--hosts 2 --workers 2 {ENDLESS} --key-file {} --store {}",
        key_file.display(),
        store.display()
    );
    let listening = Listening::start(&[], HERE, &words);
    let joiner = listening.join(&[], "");
    listening.launcher.trains_on();
    let digits = fs::read_to_string(&key_file).unwrap().trim().to_owned();
    let raw: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect();
    let as_numbers = format!("{raw:?}").replace(' ', "");
    let clean = |bytes: &[u8], what: &str| {
        let text = String::from_utf8_lossy(bytes).to_lowercase();
        assert!(!text.contains(&digits) && !text.contains(&as_numbers), "{what}");
        assert!(!bytes.windows(32).any(|window| window == raw), "{what}");
    };
    let launched = listening.launcher.children();
    let pids = [listening.launcher.id(), joiner.id()].into_iter().chain(launched).chain(joiner.children());
    for pid in pids {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!bytes.is_empty());
            clean(&bytes, file);
        }
    }
    assert!(signal("KILL", joiner.id()));
    let (_, out, err) = listening.launcher.end();
    clean(out.as_bytes(), "the launcher's output");
    clean(err.as_bytes(), "the launcher's messages");
    let (_, out, err) = joiner.end();
    clean((out + &err).as_bytes(), "what the joiner says");
    let stored = files(&store);
    assert!(stored.iter().any(|path| path.ends_with("paceline.db")));
    stored.iter().for_each(|path| clean(&fs::read(path).unwrap(), &path.display().to_string()));
}
