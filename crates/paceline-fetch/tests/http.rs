//! Downloads from a server on this machine that misbehaves as servers do.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_data::content;
use paceline_data::origin::{DownloadItem, File, Packing};
use paceline_fetch::{Client, FetchError, FetchEvent, fetch};

/// What the server is asked: the path, and the first byte of the range if there is one.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    path: String,
    from: Option<usize>,
}

/// What it answers: status, headers, body; then it closes.
type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

/// A server that lives as long as the test.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `answer` is told how many requests came before.
    fn start(answer: impl Fn(&Asked, usize) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                serve(stream, &log, &answer);
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Asked>>, answer: &impl Fn(&Asked, usize) -> Answer) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let headers: BTreeMap<String, String> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(k, v)| (k.to_ascii_lowercase(), v.to_owned())))
        .collect();
    let range = headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let asked = Asked { path: first.split(' ').nth(1).unwrap_or_default().into(), from: range };
    let before = log.lock().unwrap().len();
    log.lock().unwrap().push(asked.clone());
    let (status, headers, body) = answer(&asked, before);
    let mut head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    // A client that has gone away is no failure of the server's.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    let _ = stream.write_all(&body);
}

fn whole(content: &[u8]) -> Answer {
    (200, vec![("content-length", content.len().to_string())], content.to_vec())
}

/// The rest of the content from where it was asked for, at most `most` bytes of it.
fn rest(content: &[u8], asked: &Asked, most: usize) -> Answer {
    let length = content.len();
    let Some(from) = asked.from else {
        return (200, vec![("content-length", length.to_string())], content[..most.min(length)].to_vec());
    };
    let headers = vec![
        ("content-length", (length - from).to_string()),
        ("content-range", format!("bytes {from}-{}/{length}", length - 1)),
    ];
    (206, headers, content[from..length.min(from.saturating_add(most))].to_vec())
}

fn noise(length: usize) -> Vec<u8> {
    let mix = |i: u64| {
        (i ^ (i << 7) ^ 0x5bd1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(i | 1)
    };
    (0..length as u64).map(|i| (mix(i) >> 40) as u8).collect()
}

fn zipped(content: &[u8]) -> Vec<u8> {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zip.write_all(content).unwrap();
    zip.finish().unwrap()
}

/// A parcel with these files; they live as long as the program.
fn parcel(name: &'static str, packing: Packing, files: &[(&'static str, &[u8])]) -> DownloadItem {
    let folder = tempfile::tempdir().unwrap();
    let file = |(name, content): &(&'static str, &[u8])| {
        fs::write(folder.path().join(name), content).unwrap();
        let (bytes, sha256) = content::sha256(&folder.path().join(name)).unwrap();
        File { name, bytes, sha256: sha256.leak() }
    };
    let files: Vec<File> = files.iter().map(file).collect();
    DownloadItem { base: None, name, packing, files: files.leak() }
}

fn get(parcel: &DownloadItem, server: &Server, folder: &Path) -> Result<(), FetchError> {
    get_from(parcel, &[format!("{}/{}", server.address, parcel.name)], folder)
}

fn get_from(parcel: &DownloadItem, addresses: &[String], folder: &Path) -> Result<(), FetchError> {
    let client = Client::new(Duration::from_secs(5), Duration::from_secs(5));
    fetch(&client, parcel, addresses, folder, &mut |_: FetchEvent<'_>| {}).map(drop)
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn plain_gzipped_and_archived_files_arrive_under_their_names_and_nothing_else_is_left() {
    let (one, two) = (noise(200_000), noise(70_001));
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in [("a/b/one", &one), ("a/readme", &two), ("two", &two)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append_data(&mut header, path, &content[..]).unwrap();
    }
    let archive = archive.into_inner().unwrap();
    for (packing, bytes, files) in [
        (Packing::Plain, one.clone(), vec![("one", &one[..])]),
        (Packing::Gz, zipped(&one), vec![("one", &one[..])]),
        (Packing::TarGz, zipped(&archive), vec![("one", &one[..]), ("two", &two[..])]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(move |_, _| whole(&bytes));
        let parcel = parcel("parcel", packing, &files);
        get(&parcel, &server, folder.path()).unwrap();
        assert_eq!(names(folder.path()), files.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        files
            .iter()
            .for_each(|(name, content)| assert_eq!(fs::read(folder.path().join(name)).unwrap(), *content));
        get(&parcel, &server, folder.path()).unwrap();
        assert_eq!(server.asked().len(), 1, "what is there is not fetched again");
    }
}

#[test]
fn what_is_there_gzipped_is_there() {
    let content = noise(10_000);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("f.gz"), zipped(&content)).unwrap();
    let parcel = parcel("f.gz", Packing::Gz, &[("f", &content)]);
    let paths = fetch(&Client::default(), &parcel, &[], folder.path(), &mut |_| {}).unwrap();
    assert_eq!(paths, [folder.path().join("f.gz")]);
}

#[test]
fn a_transfer_that_is_cut_goes_on_where_it_was() {
    let content = noise(300_000);
    let bytes = content.clone();
    let server = Server::start(move |asked, _| rest(&bytes, asked, 100_000));
    let folder = tempfile::tempdir().unwrap();
    get(&parcel("f", Packing::Plain, &[("f", &content)]), &server, folder.path()).unwrap();
    let from: Vec<_> = server.asked().iter().map(|asked| asked.from).collect();
    assert_eq!(from, [None, Some(100_000), Some(200_000)]);
    assert_eq!(fs::read(folder.path().join("f")).unwrap(), content);
}

#[test]
fn a_later_call_goes_on_with_what_an_earlier_one_has_left() {
    let content = noise(300_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let folder = tempfile::tempdir().unwrap();
    let bytes = content.clone();
    // It gives a little, and then nothing more.
    let stingy = Server::start(move |asked, n| rest(&bytes, asked, if n == 0 { 50_000 } else { 0 }));
    let error = get(&parcel, &stingy, folder.path()).unwrap_err();
    assert!(matches!(error, FetchError::Broken { have: 50_000, total: Some(300_000), .. }), "{error}");
    assert!(error.hint(folder.path(), "f").contains("run it again"), "{error}");
    assert_eq!(names(folder.path()), ["f.part"]);

    let bytes = content.clone();
    let server = Server::start(move |asked, _| rest(&bytes, asked, usize::MAX));
    get(&parcel, &server, folder.path()).unwrap();
    assert_eq!(server.asked()[0].from, Some(50_000));
    assert_eq!(names(folder.path()), ["f"]);
}

#[test]
fn a_server_that_cannot_resume_or_has_something_else_now_is_asked_from_the_beginning() {
    let content = noise(100_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    type Behaviour = fn(&[u8], &Asked) -> Answer;
    let ignores: Behaviour = |content, _| whole(content);
    let elsewhere: Behaviour = |content, asked| match asked.from {
        Some(_) => (206, vec![("content-range", "bytes 7-9/10".into())], vec![0; 3]),
        None => whole(content),
    };
    let beyond: Behaviour = |content, asked| match asked.from {
        Some(_) => (416, vec![("content-range", "bytes */3".into())], Vec::new()),
        None => whole(content),
    };
    let resumes: Behaviour = |content, asked| rest(content, asked, usize::MAX);
    for (behaviour, left) in [
        (ignores, &content[..1000]),
        (elsewhere, &content[..1000]),
        (beyond, &content[..1000]),
        // What is there is of another version: the hash tells.
        (resumes, &[1; 1000]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("f.part"), left).unwrap();
        let bytes = content.clone();
        let server = Server::start(move |asked, _| behaviour(&bytes, asked));
        get(&parcel, &server, folder.path()).unwrap();
        assert_eq!(fs::read(folder.path().join("f")).unwrap(), content);
        assert_eq!(names(folder.path()), ["f"]);
    }
    // All of it was there already, but for its name.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("f.part"), &content).unwrap();
    let length = content.len();
    let server =
        Server::start(move |_, _| (416, vec![("content-range", format!("bytes */{length}"))], Vec::new()));
    get(&parcel, &server, folder.path()).unwrap();
    assert_eq!(names(folder.path()), ["f"]);
}

#[test]
fn what_has_another_hash_is_thrown_away_and_both_are_named() {
    let content = noise(50_000);
    for packing in [Packing::Plain, Packing::Gz] {
        let parcel = parcel("f.x", packing, &[("f", &content)]);
        let mut other = content.clone();
        other[17] ^= 1;
        let bytes = if packing == Packing::Gz { zipped(&other) } else { other };
        let server = Server::start(move |_, _| whole(&bytes));
        let folder = tempfile::tempdir().unwrap();
        let error = get(&parcel, &server, folder.path()).unwrap_err();
        assert!(matches!(error, FetchError::Wrong { file: "f", .. }), "{error}");
        assert!(error.to_string().contains(parcel.files[0].sha256), "{error}");
        assert_eq!(names(folder.path()), [""; 0]);
        assert_eq!(error.code(), 1);
    }
}

#[test]
fn damaged_and_endless_content_is_refused() {
    let content = noise(50_000);
    let gz = parcel("f.gz", Packing::Gz, &[("f", &content)]);
    let tar = parcel("f.tar.gz", Packing::TarGz, &[("f", &content)]);
    let cases: [(&DownloadItem, Vec<u8>, &str); 6] = [
        (&gz, b"<html>sorry</html>".to_vec(), "cannot be unpacked"),
        (&gz, zipped(&content)[..20_000].to_vec(), "cannot be unpacked"),
        // A little that unpacks to a lot.
        (&gz, zipped(&vec![0; 50_000_000]), "longer than 50000 bytes"),
        (&tar, zipped(&vec![0; 100_000]), "f is not in it"),
        (&tar, zipped(&content), "cannot be unpacked"),
        (&gz, noise(2_000_000), "more than the"),
    ];
    for (parcel, bytes, expected) in cases {
        let server = Server::start(move |_, _| whole(&bytes));
        let folder = tempfile::tempdir().unwrap();
        let error = get(parcel, &server, folder.path()).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert_eq!(names(folder.path()), [""; 0], "{expected}");
    }
    // Without a length the limit holds, too.
    let server = Server::start(|_, _| (200, Vec::new(), vec![7; 3_000_000]));
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(get(&gz, &server, folder.path()), Err(FetchError::TooLong { .. })));
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn redirects_are_followed_and_circles_are_left() {
    let content = noise(10_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let folder = tempfile::tempdir().unwrap();
    let bytes = content.clone();
    let server = Server::start(move |asked, _| match asked.path.as_str() {
        "/f" => (302, vec![("location", "/there".into()), ("content-length", "0".into())], Vec::new()),
        "/there" => (301, vec![("location", "/here".into()), ("content-length", "0".into())], Vec::new()),
        _ => whole(&bytes),
    });
    get(&parcel, &server, folder.path()).unwrap();
    assert_eq!(names(folder.path()), ["f"]);

    let folder = tempfile::tempdir().unwrap();
    let circle = Server::start(|_, _| (302, vec![("location", "/f".into())], Vec::new()));
    let error = get(&parcel, &circle, folder.path()).unwrap_err();
    assert!(matches!(error, FetchError::Unreachable { .. }), "{error}");
    assert!(circle.asked().len() < 30);
}

#[test]
fn what_is_not_there_is_said_and_the_next_address_is_tried() {
    let content = noise(10_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let folder = tempfile::tempdir().unwrap();
    let nothing = Server::start(|_, _| (404, Vec::new(), b"no".to_vec()));
    let error = get(&parcel, &nothing, folder.path()).unwrap_err();
    assert!(error.to_string().contains("answers 404 (not there)"), "{error}");
    assert!(error.hint(folder.path(), "f").contains("--mirror"), "{error}");
    assert_eq!(names(folder.path()), [""; 0]);

    let something = Server::start(move |_, _| whole(&content));
    // A port where nobody listens any more.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses =
        [format!("http://{gone}/f"), nothing.address.clone() + "/f", something.address.clone() + "/f"];
    get_from(&parcel, &addresses, folder.path()).unwrap();
    assert_eq!(names(folder.path()), ["f"]);

    let error = get_from(&parcel, &[format!("http://{gone}/g")], &folder.path().join("new")).unwrap_err();
    assert!(matches!(error, FetchError::Unreachable { .. }), "{error}");
    let error = get_from(&parcel, &[], &folder.path().join("none")).unwrap_err();
    assert!(matches!(error, FetchError::NoAddress { .. }), "{error}");
}

#[test]
fn a_server_that_falls_silent_is_left_after_the_deadline() {
    let content = noise(10_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/f", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\nsome");
            open.push(stream);
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let client = Client::new(Duration::from_secs(5), Duration::from_millis(200));
    let error = fetch(&client, &parcel, &[address], folder.path(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, FetchError::Broken { have: 4, .. }), "{error}");
    assert_eq!(names(folder.path()), ["f.part"]);
}

#[test]
fn a_full_disk_is_said_before_or_while_writing() {
    // More than any disk has, as the server tells beforehand.
    let huge = DownloadItem {
        files: vec![File { name: "f", bytes: 1 << 60, sha256: "0" }].leak(),
        ..parcel("f", Packing::Plain, &[("f", b"x")])
    };
    let server = Server::start(|_, _| (200, vec![("content-length", (1u64 << 59).to_string())], Vec::new()));
    let folder = tempfile::tempdir().unwrap();
    let error = get(&huge, &server, folder.path()).unwrap_err();
    assert!(
        matches!(error, FetchError::NoSpace { needed: Some(n), free: Some(_), .. } if n == 1 << 59),
        "{error}"
    );
    assert_eq!((error.code(), names(folder.path())), (5, Vec::new()));

    // A device that is always full, as a disk that fills up meanwhile.
    let content = noise(10_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let folder = tempfile::tempdir().unwrap();
    symlink("/dev/full", folder.path().join("f.part")).unwrap();
    let server = Server::start(move |_, _| whole(&content));
    let error = get(&parcel, &server, folder.path()).unwrap_err();
    assert!(matches!(error, FetchError::NoSpace { .. }), "{error}");
    assert!(error.hint(folder.path(), "f").contains("--to DIR"), "{error}");
    assert!(!folder.path().join("f").exists());
}

#[test]
fn two_at_once_do_not_write_into_each_other() {
    let content = noise(10_000);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let folder = tempfile::tempdir().unwrap();
    let other = fs::File::create(folder.path().join("f.part")).unwrap();
    other.lock().unwrap();
    let server = Server::start(move |_, _| whole(&content));
    assert!(matches!(get(&parcel, &server, folder.path()), Err(FetchError::Busy { .. })));
    other.unlock().unwrap();
    get(&parcel, &server, folder.path()).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let content = noise(10);
    let parcel = parcel("f", Packing::Plain, &[("f", &content)]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let error =
        get_from(&parcel, &["http://127.0.0.1:1/f".into()], &folder.path().join("file/in")).unwrap_err();
    assert!(matches!(error, FetchError::Io { .. }) && error.to_string().contains("file/in"), "{error}");
}
