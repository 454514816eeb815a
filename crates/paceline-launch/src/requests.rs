//! What `paceline resize` and `paceline drain` ask of a run under way, and how it gets there: a Unix socket in the run's
//! folder that only its owner can connect to. One line of JSON each way.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use paceline_record::store::{RunRow, run_folder};
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};

use crate::error::LaunchError;
use crate::ranks::Incoming;

/// The socket's name in the run's folder.
const NAME: &str = "members.sock";
/// Longest wait for a line of the other end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a line.
const LONGEST: u64 = 4096;

/// What is asked of a run whose members may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberRequest {
    /// To go on with so many workers.
    Resize(usize),
    /// To go on without this rank of those that it began with.
    Drain(usize),
}

/// What the run's launcher says to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberAnswer {
    /// It is done; what will come of it.
    Accepted(String),
    /// It is not done; why.
    Refused(String),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Asked {
    /// What is asked.
    pub request: MemberRequest,
    /// Where the answer goes.
    pub answer: Sender<MemberAnswer>,
}

/// A path that is short enough for a socket's address, however long the folder's is. It lasts as long as the folder is open.
fn within(folder: &File, name: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into()
}

/// Where a run takes requests. Dropping it closes and removes the socket.
pub(crate) struct RequestPort {
    path: PathBuf,
    closing: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl RequestPort {
    /// Opens the port in a run's folder; what is asked comes to `heard`.
    pub fn open(folder: &Path, heard: Sender<Incoming>) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let open = File::open(folder)?;
        let (path, draft) = (folder.join(NAME), folder.join(format!(".{NAME}")));
        for left in [&path, &draft] {
            // A launcher that was killed leaves its socket behind.
            if fs::symlink_metadata(left).is_ok_and(|found| found.file_type().is_socket()) {
                fs::remove_file(left)?;
            }
        }
        // It gets its name once nobody else can connect.
        let listener = UnixListener::bind(within(&open, &format!(".{NAME}")))?;
        fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
        fs::rename(&draft, &path)?;
        let closing = Arc::new(AtomicBool::new(false));
        let closes = Arc::clone(&closing);
        let listening = std::thread::Builder::new().name("requests".into()).spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if closes.load(Ordering::SeqCst) {
                    return;
                }
                // Who breaks off gets no answer.
                let _ = serve(stream, &heard);
            }
        })?;
        Ok(Self { path, closing, listening: Some(listening) })
    }
}

impl Drop for RequestPort {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        let woken = self.path.parent().map(|folder| connect(folder).is_ok());
        if let (Some(true), Some(listening)) = (woken, self.listening.take()) {
            let _ = listening.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(mut stream: UnixStream, heard: &Sender<Incoming>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    if socket_peercred(&stream)?.uid != rustix::process::geteuid() {
        return Ok(());
    }
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Err(error) => MemberAnswer::Refused(format!("this is no request: {error}")),
        Ok(request) => {
            let (sender, answers) = channel();
            let gone = || MemberAnswer::Refused("the run has just ended".into());
            match heard.send(Incoming::Asked(Asked { request, answer: sender })) {
                Ok(()) => answers.recv_timeout(PATIENCE).unwrap_or_else(|_| gone()),
                Err(_) => gone(),
            }
        }
    };
    write_line(&mut stream, &answer)
}

fn write_line(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all((serde_json::to_string(message)? + "\n").as_bytes())
}

fn connect(folder: &Path) -> io::Result<UnixStream> {
    let open = File::open(folder)?;
    UnixStream::connect(within(&open, NAME))
}

/// Asks a run that the store in a folder has found; what will come of it.
pub fn ask_run(folder: &Path, found: &RunRow, request: MemberRequest) -> Result<String, LaunchError> {
    let refused =
        |problem: String, hint: &'static str| LaunchError::Members { run: found.run.clone(), problem, hint };
    if found.state != "running" {
        let hint = "`paceline status` lists the runs that are under way";
        return Err(refused(format!("is over: {}", found.state), hint));
    }
    if found.plan.as_ref().is_some_and(|plan| plan.elastic.is_none()) {
        let hint = "start it with --elastic MIN..MAX: then its members can change";
        return Err(refused("is not elastic: its members are those that it began with".into(), hint));
    }
    match ask(&run_folder(folder, &found.run), request) {
        Ok(MemberAnswer::Accepted(words)) => Ok(words),
        Ok(MemberAnswer::Refused(problem)) => {
            Err(refused(format!("refuses: {problem}"), "nothing was changed"))
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            let hint = "has its launcher just begun, was it killed, or does it run on another machine?";
            Err(refused("takes no requests here: nobody listens in its folder".into(), hint))
        }
        Err(error) => {
            Err(refused(format!("gave no answer: {error}"), "is the run yours, and its machine this one?"))
        }
    }
}

/// Asks a run under way, by its folder.
fn ask(folder: &Path, request: MemberRequest) -> io::Result<MemberAnswer> {
    let mut stream = connect(folder)?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    write_line(&mut stream, &request)?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test's own.
    fn root(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("requests-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_request_gets_its_answer_and_the_socket_is_the_owners_alone_and_goes_with_the_run() {
        let root = root("long");
        // Longer than a socket's address can be.
        let folder = root.join("a folder with a long name/".repeat(8));
        let (sender, heard) = channel();
        let port = RequestPort::open(&folder, sender).unwrap();
        let mode = fs::metadata(folder.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let run = std::thread::spawn(move || {
            let Ok(Incoming::Asked(Asked { request, answer })) = heard.recv() else { panic!("a request") };
            assert_eq!(request, MemberRequest::Resize(3));
            answer.send(MemberAnswer::Accepted("worker 2 joins".into())).unwrap();
        });
        let answer = ask(&folder, MemberRequest::Resize(3)).unwrap();
        assert_eq!(answer, MemberAnswer::Accepted("worker 2 joins".into()));
        run.join().unwrap();
        // Nobody is there to answer.
        let answer = ask(&folder, MemberRequest::Drain(0)).unwrap();
        assert!(matches!(answer, MemberAnswer::Refused(_)), "{answer:?}");
        // Who talks nonsense is told so.
        let mut stream = connect(&folder).unwrap();
        stream.write_all(b"{\"resize\": -1}\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains("this is no request"), "{text}");
        drop(port);
        assert!(fs::read_dir(&folder).unwrap().next().is_none());
        assert!(ask(&folder, MemberRequest::Drain(0)).is_err());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_socket_that_a_killed_launcher_left_is_replaced() {
        let folder = root("left");
        let open = File::open(&folder).unwrap();
        drop(UnixListener::bind(within(&open, NAME)).unwrap());
        assert!(folder.join(NAME).exists());
        let port = RequestPort::open(&folder, channel().0).unwrap();
        drop(port);
        assert!(!folder.join(NAME).exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
