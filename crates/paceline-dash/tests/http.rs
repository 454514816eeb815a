//! The server as a client sees it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use paceline_analyze::table::Response;
use paceline_dash::query::{Query, decode};
use paceline_dash::{Access, Group, Member, Studies, StudyOverview, serve};
use paceline_record::Store;
use paceline_record::figures::Figures;
use paceline_record::store::FILE;

/// No wait for an answer is longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A name that would run if it were taken for HTML.
const HOSTILE: &str = "r<script>alert(1)</script>\"'";

/// One study whose levels and name are hostile too.
struct Hostile;

impl Studies for Hostile {
    fn names(&self) -> Vec<String> {
        vec!["<b>s</b>".into()]
    }

    fn stamp(&self, _: &str) -> u64 {
        1
    }

    fn read(&self, name: &str) -> Result<StudyOverview, String> {
        let member = |i: u64| {
            let level = if i.is_multiple_of(2) { "<img src=x onerror=alert(1)>" } else { "2" };
            let member = Member {
                number: i,
                run: Some(format!("{HOSTILE}{i}")),
                role: "point",
                state: "ok".into(),
                levels: vec![level.into()],
                counts: true,
                ..Member::default()
            };
            member.measuring([Some(1.0 + i as f64)])
        };
        let responses = vec![Response::parse("time_s").unwrap()];
        let group = Group::new(name, vec!["<i>f</i>".into()], responses, (0..8).map(member).collect());
        Ok(StudyOverview { state: "running", sampler: "grid".into(), expected: 9, left_s: Some(3.0), group })
    }
}

/// Puts a run into a store.
fn insert(folder: &Path, run: &str, state: &str) {
    let connection = rusqlite::Connection::open(folder.join(FILE)).unwrap();
    let sql = "INSERT INTO runs (run, origin, state, started_s, seen_s, ended_s, steps, steps_done, error, \
               name, tags, note, study, workload, command) \
               VALUES (?, 'measured', ?, 1, 2, 3, 10, 10, '<script>alert(2)</script>', '<script>n', \
               '[\"<script>t\"]', '<script>o', '<b>s</b>', '<script>w', '<script>c')";
    connection.execute(sql, [run, state]).unwrap();
}

/// A server; it lives as long as the test.
fn start(token: Option<&str>) -> (SocketAddr, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::create(folder.path()).unwrap());
    insert(folder.path(), HOSTILE, "failed");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let access = Access::new(address, token.map(String::from)).unwrap();
    let store = folder.path().to_owned();
    std::thread::spawn(move || {
        serve(listener, store, Box::new(Hostile), Figures::default(), access, std::future::pending())
    });
    (address, folder)
}

fn ask(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"))
}

/// What is asked for under a path, percent-encoded.
fn encoded(name: &str) -> String {
    paceline_dash::query::encode(name)
}

#[test]
fn pages_scripts_and_metrics_are_there_with_a_strict_policy() {
    let (address, _folder) = start(None);
    for (path, part) in [
        ("/", "Latest runs"),
        ("/runs", "All recorded runs"),
        ("/runs/charts", "nothing to draw"),
        ("/runs/parallel.json", "\"axes\""),
        ("/assets/style.css", "color-scheme"),
        ("/assets/draw.js", "pacelineDraw"),
        ("/assets/live.js", "EventSource"),
        ("/assets/parallel.js", "pacelineLines"),
        ("/assets/plotly.js", "plotly.js v"),
        ("/favicon.ico", "<svg"),
        ("/metrics", "paceline_runs{state=\"failed\"} 1"),
    ] {
        let answer = get(address, path, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {}", &answer[..200.min(answer.len())]);
        assert!(answer.contains(part), "{path}");
        let policy = answer.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
        assert!(policy.contains("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe-eval") && policy.contains("frame-ancestors 'none'"), "{path}");
        assert!(answer.contains("x-content-type-options: nosniff"), "{path}");
    }
    for (path, status) in [
        ("/nothing", 404),
        ("/run/", 404),
        ("/run/nobody", 404),
        ("/run/a/b/c", 404),
        ("/study/none", 404),
        ("/study/..%2F..%2Fetc", 404),
        ("/nothing/parallel.json", 404),
        ("/compare", 400),
        ("/compare?pick=a&pick=b&pick=c", 404),
        (&format!("/compare?pick={0}&pick={0}", encoded(HOSTILE)), 400),
        ("/compare?study=%3Cb%3Es%3C%2Fb%3E", 400),
        ("/compare?study=none&study=other", 404),
    ] {
        let answer = get(address, path, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {}", &answer[..60]);
    }
}

#[test]
fn names_mean_themselves_and_no_page_has_a_script_in_it() {
    let (address, folder) = start(None);
    insert(folder.path(), "other", "ok");
    let (run, study) = (encoded(HOSTILE), encoded("<b>s</b>"));
    for path in [
        "/".to_owned(),
        format!("/run/{run}"),
        "/runs?f.x=%3Cscript%3Ealert(3)%3C/script%3E&sort=%22%3E%3Cscript%3E&pick=%22%3E%3Cscript%3E&state=%3Cb%3E".into(),
        format!("/study/{study}?f.%3Ci%3Ef%3C/i%3E=2"),
        format!("/study/{study}/charts"),
        "/%3Cscript%3Ealert(4)%3C/script%3E".into(),
        format!("/compare?pick={run}&pick=%3Cscript%3E"),
        format!("/compare?pick={run}&pick=other&by=%3Cscript%3E"),
        format!("/compare/charts?pick={run}&pick=other"),
        format!("/runs?pick={run}&tag=%3Cscript%3Et&where=%3Cscript%3E&find=%3Cscript%3E&col=%3Cscript%3E&limit=%3Cscript%3E"),
        "/runs?col=study&col=workload&archived=yes".into(),
    ] {
        let answer = get(address, &path, "");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        for bad in ["<script>", "<img src=x", "<b>s</b>", "<i>f</i>", "onclick=", "javascript:"] {
            assert!(!body.contains(bad), "{path}: {bad}");
        }
        // A script that is there comes from the server, or is data.
        for tag in body.split("<script").skip(1) {
            let data = tag.starts_with(" type=\"application/json\">");
            assert!(data || tag.starts_with(" src=\"/assets/"), "{path}: {}", &tag[..60.min(tag.len())]);
        }
    }
    let page = get(address, &format!("/run/{run}"), "");
    assert!(page.contains("r&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;"), "{page}");
    for word in
        ["&lt;script&gt;n", "&lt;script&gt;t", "&lt;script&gt;o", "&lt;script&gt;w", "&lt;script&gt;c"]
    {
        assert!(page.contains(word), "{word}");
    }
    let metrics = get(address, "/metrics", "");
    assert!(metrics.contains("paceline_study_runs{study=\"<b>s</b>\",state=\"expected\"} 9"), "{metrics}");
}

#[test]
fn nothing_can_be_changed_and_strangers_are_refused() {
    let (address, _folder) = start(None);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        let request = format!(
            "{method} / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = ask(address, &request);
        assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET, HEAD"), "{method}");
    }
    let head = format!("HEAD / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let answer = ask(address, &head);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    for (host, status) in
        [("evil.example", 421), ("localhost.evil.example", 421), ("192.0.2.1", 421), ("localhost", 200)]
    {
        let asked = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert!(ask(address, &asked).starts_with(&format!("HTTP/1.1 {status}")), "{host}");
    }
    // Two names, or one in the target and another in the header: some proxy believed one, this server the other.
    for headers in
        ["host: localhost\r\n", "host: evil.example\r\n", "origin: http://a\r\norigin: http://b\r\n"]
    {
        assert!(get(address, "/", headers).starts_with("HTTP/1.1 400"), "{headers}");
    }
    for (target, status) in [
        (format!("http://{address}/runs"), 200),
        ("http://evil.example/runs".into(), 421),
        (format!("http://{address}@evil.example/"), 421),
        ("http://localhost/".into(), 421),
    ] {
        let answer = get(address, &target, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{target}: {}", &answer[..60]);
    }
    let nameless = "GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
    assert!(ask(address, nameless).starts_with("HTTP/1.1 4"), "a request must say whom it means");
    assert!(get(address, "/", "origin: http://evil.example\r\n").starts_with("HTTP/1.1 403"));
    assert!(get(address, "/", &format!("origin: http://{address}\r\n")).starts_with("HTTP/1.1 200"));
    assert!(
        get(address, "/metrics", "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n")
            .contains(" 403 ")
    );
}

#[test]
fn a_token_is_asked_for_and_kept_as_a_cookie_that_scripts_cannot_read() {
    let token = "0123456789abcdef0123456789abcdef";
    let (address, _folder) = start(Some(token));
    for path in ["/", "/runs", "/metrics", "/events", "/assets/live.js", "/nothing"] {
        let answer = get(address, path, "");
        assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains(HOSTILE), "{path}");
    }
    assert!(get(address, "/", "authorization: Bearer wrong\r\n").starts_with("HTTP/1.1 401"));
    let wrong = get(address, "/?token=wrong", "");
    assert!(wrong.starts_with("HTTP/1.1 401") && wrong.contains("www-authenticate: Bearer\r\n"), "{wrong}");
    assert!(wrong.contains("This is not the token") && wrong.contains("paceline serve --token-file FILE"));
    assert!(get(address, "/", "").contains("A token is needed"));
    assert!(get(address, "/", &format!("authorization: bearer  {token}\r\n")).starts_with("HTTP/1.1 200"));
    let first = get(address, &format!("//evil.example/?page=2&token={token}"), "");
    assert!(first.starts_with("HTTP/1.1 303"), "{first}");
    let line = |name: &str| first.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
    assert_eq!(line("location"), "location: /evil.example/?page=2", "no token, and no other machine");
    let cookie = line("set-cookie");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let own = cookie.strip_prefix("set-cookie: ").unwrap().split(';').next().unwrap().to_owned();
    assert!(get(address, "/", &format!("cookie: a=b; {own}\r\n")).starts_with("HTTP/1.1 200"));
    assert!(
        get(address, "/metrics", &format!("authorization: Bearer {token}\r\n")).starts_with("HTTP/1.1 200")
    );
}

/// Reads from a stream of events until a part has come.
fn until(events: &mut TcpStream, text: &mut String, part: &str, times: usize) {
    let (begun, mut bytes) = (Instant::now(), [0; 4096]);
    events.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    while text.matches(part).count() < times {
        assert!(begun.elapsed() < PATIENCE, "{part} did not come {times} times: {text}");
        if let Ok(n) = events.read(&mut bytes) {
            *text += &String::from_utf8_lossy(&bytes[..n]);
        }
    }
}

#[test]
fn a_change_is_told_and_slow_clients_stall_nobody() {
    let (address, folder) = start(None);
    // More than there are places for: some never end their headers, some never take what they asked for.
    let slow: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut stream = TcpStream::connect(address).unwrap();
            let asked = if i % 2 == 0 {
                "GET / HTTP/1.1\r\nhost:".to_owned()
            } else {
                format!("GET /assets/plotly.js HTTP/1.1\r\nhost: {address}\r\n\r\n")
            };
            stream.write_all(asked.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut events = TcpStream::connect(address).unwrap();
    write!(events, "GET /events HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    until(&mut events, &mut text, "event: changed", 1);
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    assert!(get(address, "/", "").starts_with("HTTP/1.1 200"), "pages are made beside the slow ones");
    let before = text.matches("event: changed").count();
    insert(folder.path(), "rnew", "ok");
    until(&mut events, &mut text, "event: changed", before + 1);
    assert!(get(address, "/", "").contains("/run/rnew"), "and the page has it");
    assert!(get(address, "/metrics", "").contains("paceline_http_event_streams 1"));
    drop(slow);
}

#[test]
fn long_heads_are_refused_and_a_store_that_is_not_there_yet_fills() {
    let (address, folder) = start(None);
    let long = format!("GET /{} HTTP/1.1\r\nhost: {address}\r\n\r\n", "x".repeat(100_000));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may be refused before all of it is sent.
    let _ = stream.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    // The server has the store open by then: one that is being opened may fail while its files go.
    assert!(get(address, "/runs", "").contains("1 run"));
    std::fs::remove_file(folder.path().join(FILE)).unwrap();
    for part in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.path().join(format!("{FILE}{part}")));
    }
    assert!(get(address, "/runs", "").contains("No run has begun yet"));
    drop(Store::create(folder.path()).unwrap());
    insert(folder.path(), "ragain", "ok");
    assert!(get(address, "/runs", "").contains("ragain"));
}

#[test]
fn addresses_are_read_and_written() {
    let query = Query::parse("f.sync=b%26sp&page=2&x=a+b&bad=%zz&f.sync=asp&empty=&none");
    assert_eq!(query.all("f.sync").collect::<Vec<_>>(), ["b&sp", "asp"]);
    assert_eq!((query.get("x"), query.get("bad"), query.get("empty")), (Some("a b"), Some("%zz"), None));
    let next = query.with("page", "3").without(|_, value| value == "asp");
    assert_eq!(next.address(), "?f.sync=b%26sp&x=a%20b&bad=%25zz&page=3");
    assert_eq!(Query::parse(&next.address()[1..]), next);
    assert_eq!(Query::parse("page=2").with("page", "").address(), "");
    assert_eq!(decode("%C3%A9%+"), "é% ");
}
