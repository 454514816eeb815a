//! The server as a client sees it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use paceline_dash::{Access, serve};
use paceline_record::Store;

/// A server over an empty store; it lives as long as the test.
fn start(token: Option<&str>) -> (SocketAddr, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::create(folder.path()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let access = Access::new(address, token.map(String::from)).unwrap();
    let store = folder.path().to_owned();
    std::thread::spawn(move || serve(listener, store, access, std::future::pending()));
    (address, folder)
}

fn ask(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"))
}

#[test]
fn pages_scripts_and_metrics_are_there_with_a_strict_policy() {
    let (address, _folder) = start(None);
    for (path, part) in [
        ("/", "Recorded runs"),
        ("/style.css", "color-scheme"),
        ("/draw.js", "pacelineDraw"),
        ("/live.js", "EventSource"),
        ("/plotly.js", "plotly.js v"),
        ("/metrics", "paceline_runs{state=\"ok\"} 0"),
    ] {
        let answer = get(address, path, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {}", &answer[..200.min(answer.len())]);
        assert!(answer.contains(part), "{path}");
        assert!(answer.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{path}");
    }
    assert!(get(address, "/nothing", "").starts_with("HTTP/1.1 404"));
    assert!(get(address, "/run/nobody", "").starts_with("HTTP/1.1 404"));
    assert!(get(address, "/compare", "").starts_with("HTTP/1.1 400"));
}

#[test]
fn nothing_can_be_changed_and_strangers_are_refused() {
    let (address, _folder) = start(None);
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let request = format!("{method} / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        assert!(ask(address, &request).starts_with("HTTP/1.1 405"), "{method}");
    }
    let rebound = "GET / HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert!(ask(address, rebound).starts_with("HTTP/1.1 421"));
    assert!(get(address, "/", "origin: http://evil.example\r\n").starts_with("HTTP/1.1 403"));
}

#[test]
fn a_token_is_asked_for_and_kept_as_a_cookie_that_scripts_cannot_read() {
    let (address, _folder) = start(Some("0123456789abcdef"));
    assert!(get(address, "/", "").starts_with("HTTP/1.1 401"));
    assert!(get(address, "/", "authorization: Bearer wrong\r\n").starts_with("HTTP/1.1 401"));
    let first = get(address, "/?token=0123456789abcdef", "");
    assert!(first.starts_with("HTTP/1.1 200") && first.contains("HttpOnly; SameSite=Strict"), "{first}");
    assert!(get(address, "/", "cookie: paceline=0123456789abcdef\r\n").starts_with("HTTP/1.1 200"));
}

#[test]
fn slow_clients_stall_nobody_and_changes_are_told() {
    let (address, folder) = start(None);
    // Hundreds that never finish their headers, fewer than there are seats.
    let slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost:").unwrap();
            stream
        })
        .collect();
    let mut events = TcpStream::connect(address).unwrap();
    events.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    write!(events, "GET /events HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    assert!(get(address, "/", "").starts_with("HTTP/1.1 200"));
    let (mut text, begun) = (String::new(), Instant::now());
    let mut bytes = [0; 4096];
    while !text.contains("event: changed") && begun.elapsed() < Duration::from_secs(20) {
        if let Ok(n) = events.read(&mut bytes) {
            text += &String::from_utf8_lossy(&bytes[..n]);
        }
    }
    assert!(text.contains("content-type: text/event-stream") && text.contains("event: changed"), "{text}");
    drop((slow, folder));
}
