//! `paceline serve`: who may listen where, and that what it serves is the store's.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{PATIENCE, Ran, run};

fn serve(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.arg("serve").args(words).current_dir(folder).args(["--store", "store"]);
    command
}

/// A server that is ended with the test.
pub struct Served {
    process: Child,
    address: SocketAddr,
}

impl Served {
    pub fn start(folder: &Path, words: &[&str]) -> Self {
        let mut process =
            serve(folder, words).arg("--json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        assert_eq!(said["type"], "serving");
        Self { process, address: said["address"].as_str().unwrap().parse().unwrap() }
    }

    pub fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = self.address;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn off_loopback_nothing_is_served_without_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |words: &[&str]| -> Ran { run(&mut serve(folder.path(), words)) };
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let ran = refused(&["--listen", listen]);
        assert_eq!((ran.code, ran.stdout.as_str()), (6, ""), "{listen}: {}", ran.stderr);
        assert!(ran.stderr.contains("--token-file FILE"), "{}", ran.stderr);
    }
    let open = folder.path().join("open");
    fs::write(&open, "0".repeat(64)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let ran = refused(&["--listen", "0.0.0.0:0", "--token-file", "open"]);
    assert!(ran.code == 6 && ran.stderr.contains("chmod 600"), "{}: {}", ran.code, ran.stderr);
    fs::write(&open, "short").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o600)).unwrap();
    let ran = refused(&["--listen", "0.0.0.0:0", "--token-file", "open"]);
    assert!(ran.code == 6 && ran.stderr.contains("hexadecimal"), "{}: {}", ran.code, ran.stderr);
    let hint = "remove open and let `paceline serve --token-file open` make one";
    assert!(ran.stderr.contains(hint) && !ran.stderr.contains("train --listen"), "{}", ran.stderr);
    let ran = refused(&["--token-file", "nowhere/token"]);
    assert!(ran.code == 6 && ran.stderr.contains("its folder is not there"), "{}", ran.stderr);
    assert_eq!(refused(&["--listen", "here"]).code, 2);
}

#[test]
fn a_token_file_is_made_private_and_lets_its_holder_look() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--listen", "127.0.0.1:0", "--token-file", "token"]);
    let file = folder.path().join("token");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    assert!(served.get("/", "").starts_with("HTTP/1.1 401"));
    let holder = format!("authorization: Bearer {}\r\n", token.trim());
    let page = served.get("/", &holder);
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("Nothing is recorded yet"), "{page}");
    // The token stands in no argument of the process and on no page.
    let words = fs::read(format!("/proc/{}/cmdline", served.process.id())).unwrap();
    assert!(!String::from_utf8_lossy(&words).contains(token.trim()) && !page.contains(token.trim()));
}

#[test]
fn a_busy_port_is_named_and_by_default_only_this_machine_can_look() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = run(&mut serve(folder.path(), &["--listen", &address]));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains(&address) && ran.stderr.contains("--listen"), "{}", ran.stderr);
    let help = run(&mut serve(folder.path(), &["--help"])).stdout;
    assert!(help.contains("[default: 127.0.0.1:7223]"), "{help}");
}

#[test]
fn a_study_of_any_program_has_its_page_its_runs_and_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let study = r#"
sampler = "grid"
[command]
run = ["sh", "-c", "echo time_s=$(({a} + {b}))"]
metrics = { time_s = 'time_s=(\d+)' }
[axes]
a = [1, 2, 3]
b = [10, 20]
[[objectives]]
metric = "time_s"
goal = "minimize"
"#;
    fs::write(folder.path().join("sums.toml"), study).unwrap();
    let served = Served::start(folder.path(), &["--listen", "127.0.0.1:0"]);
    assert!(served.get("/study/sums", "").starts_with("HTTP/1.1 404"), "before it is there");
    let explored = run(Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(["explore", "sums.toml", "--quiet", "--store", "store"])
        .current_dir(folder.path()));
    assert_eq!(explored.code, 0, "{}", explored.stderr);
    let page = served.get("/study/sums", "");
    for part in ["<h1>sums", "finished", "best time_s", "11 s", "a 1, b 10"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let count = |page: &str| {
        let at = page.find("data-count=\"").unwrap() + 12;
        page[at..].split('"').next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(count(&served.get("/study/sums?f.a=1&f.a=2&f.b=20", "")), 2, "filters stand in the address");
    assert_eq!(count(&served.get("/study/sums?max.time_s=12&f.b=10&f.a=2&f.a=3", "")), 1);
    assert!(served.get("/study/sums?f.a=7", "").contains("No run fits these filters"));
    let metrics = served.get("/metrics", "");
    assert!(metrics.contains("paceline_study_runs{study=\"sums\",state=\"failed\"} 0"), "{metrics}");
    assert!(served.get("/", "").contains("/study/sums"));
}
