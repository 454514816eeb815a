//! How the processes of a job find their leader: it leaves its addresses, and the key unless all were given one, in a
//! file that only its user may read.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_wire::Key;
use paceline_wire::line::join_listener::JoinListener;
use paceline_wire::line::{Link, may_come_yet};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::EngineTask;
use crate::error::LaunchError;
use crate::key_file::{self, KeyError, Temporary};
use crate::ranks::left;

/// How often the file is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// Time to reach an address that was found.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Rights of anybody but the owner.
const OTHERS: u32 = 0o077;
/// Most bytes of the file.
const LARGEST: u64 = 64 << 10;

/// What the file says.
#[derive(Serialize, Deserialize)]
struct MeetingDocument {
    addresses: Vec<SocketAddr>,
    /// 64 hexadecimal digits; none where every process was given a file with the key.
    key: Option<String>,
}

/// The file of a job.
fn path(task: &EngineTask, folder: &Path) -> PathBuf {
    folder.join(format!("{}.meeting", task.job))
}

/// Opens the port at which the other processes of a job join, and leaves word of it in `folder`. The key is that of a
/// file that all were given, or a new one.
pub fn open(
    task: &EngineTask,
    folder: &Path,
    key: Option<Key>,
    listen: Option<SocketAddr>,
) -> Result<(JoinListener, Key, Temporary), LaunchError> {
    let listener = match listen {
        Some(address) => JoinListener::bind(address)?,
        None => bind_own(task)?,
    };
    let (key, given) = match key {
        Some(key) => (key, true),
        None => (Key::generate()?, false),
    };
    let addresses = vec![listener.address()];
    let document = MeetingDocument { addresses, key: (!given).then(|| key_file::digits(&key)) };
    let path = path(task, folder);
    let failed = |source| LaunchError::Key(KeyError::File { path: path.clone(), source });
    fs::create_dir_all(folder).map_err(failed)?;
    write(&path, &document).map_err(failed)?;
    Ok((listener, key, Temporary(path)))
}

/// Writes it whole: nobody reads a part, and what an earlier job of that name left is gone.
fn write(path: &Path, document: &MeetingDocument) -> io::Result<()> {
    let fresh = path.with_extension(format!("{}.part", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(document)?)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

/// Binds an address of this machine at which the others can come.
fn bind_own(task: &EngineTask) -> Result<JoinListener, LaunchError> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    if task.one_machine {
        return Ok(JoinListener::bind(SocketAddr::new(loopback, 0))?);
    }
    let named = task.leader.iter().filter_map(|name| (name.as_str(), 0).to_socket_addrs().ok()).flatten();
    let outside = named.map(|address| address.ip()).filter(|address| !address.is_loopback());
    // Where no machine is known, an address for documentation: it only has to be somewhere else. Only addresses of this
    // machine can be bound.
    let routes = task.peer.as_deref().into_iter().chain(["192.0.2.1"]).filter_map(route);
    let bound = outside.chain(routes).find_map(|ip| JoinListener::bind(SocketAddr::new(ip, 0)).ok());
    bound.map_or_else(|| Ok(JoinListener::bind(SocketAddr::new(loopback, 0))?), Ok)
}

/// The address by which this machine reaches another one; nothing is sent.
fn route(to: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_unspecified() && !address.is_loopback())
}

/// Finds the leader of a job, within a time: what an earlier job of that name left leads nowhere, so the file is read
/// again until somebody answers. `key_path` names the file that all were given, if any.
pub fn find(
    task: &EngineTask,
    folder: &Path,
    key_path: Option<&Path>,
    patience: Duration,
) -> Result<Link, LaunchError> {
    let (path, end) = (path(task, folder), Instant::now() + patience);
    loop {
        let document = match read(&path) {
            Ok(document) => Some(document),
            Err(KeyError::File { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let mut why = None;
        if let Some(document) = document {
            match reach(&document, key_path) {
                Ok(link) => return Ok(link),
                // A key that was given will be the wrong one next time, too.
                Err(error @ LaunchError::Stranger { .. }) if document.key.is_none() => return Err(error),
                Err(error @ LaunchError::Key(KeyError::Open { .. } | KeyError::Content { .. })) => {
                    return Err(error);
                }
                Err(error) => why = Some(error),
            }
        }
        if left(end).is_zero() {
            let (task, seconds) = (task.label(), patience.as_secs_f64());
            let no_key = || Some(key_file::read(key_path?).err()?.into());
            return Err(why.or_else(no_key).unwrap_or(LaunchError::NoLeader { task, path, seconds }));
        }
        std::thread::sleep(LOOK.min(left(end)));
    }
}

/// Reads the file; only what this user has written, and nobody else may read, is believed.
fn read(path: &Path) -> Result<MeetingDocument, KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let file = paceline_files::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    let mode = about.mode() & 0o7777;
    if mode & OTHERS != 0 || about.uid() != geteuid().as_raw() {
        return Err(KeyError::Open { path: path.to_owned(), mode });
    }
    let text = io::read_to_string(io::Read::take(file, LARGEST)).map_err(failed)?;
    serde_json::from_str(&text).map_err(|_| KeyError::Content { path: path.to_owned() })
}

/// Dials the leader.
fn reach(document: &MeetingDocument, key_path: Option<&Path>) -> Result<Link, LaunchError> {
    let key = match (&document.key, key_path) {
        (Some(digits), None) => {
            key_file::parse(digits).ok_or_else(|| KeyError::Content { path: "the meeting file".into() })?
        }
        (_, Some(path)) => key_file::read(path)?,
        (None, None) => {
            let source = io::Error::other("the leader has a --key-file, and this process has none");
            return Err(KeyError::File { path: "--key-file".into(), source }.into());
        }
    };
    let mut why = None;
    for &address in &document.addresses {
        match Link::dial(address, &key, ATTEMPT) {
            Ok(link) => return Ok(link),
            Err(e) if may_come_yet(&e) => why = Some((address, e)),
            Err(e) => {
                return Err(LaunchError::Stranger { address: address.to_string(), cause: e.to_string() });
            }
        }
    }
    let (address, source) =
        why.unwrap_or_else(|| (([0, 0, 0, 0], 0).into(), io::Error::other("the leader left no address")));
    Err(LaunchError::Unreachable { address: address.to_string(), seconds: ATTEMPT.as_secs_f64(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn task(rank: usize) -> EngineTask {
        let job = "test-1".into();
        let (leader, peer) = (None, None);
        EngineTask { engine: "mpi", rank, size: 2, job, leader, peer, one_machine: true, supervised: false }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("meeting-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    const SOON: Duration = Duration::from_millis(300);

    #[test]
    fn the_file_is_private_and_leads_to_the_leader() {
        let folder = folder("private");
        // What a job that was killed left behind leads nowhere, and is replaced.
        let stale =
            MeetingDocument { addresses: vec![([127, 0, 0, 1], 1).into()], key: Some("0".repeat(64)) };
        write(&path(&task(0), &folder), &stale).unwrap();
        let lost = find(&task(1), &folder, None, SOON).err().unwrap();
        assert!(matches!(lost, LaunchError::Unreachable { .. }), "{lost}");
        let (listener, key, file) = open(&task(0), &folder, None, None).unwrap();
        assert_eq!(fs::metadata(&file.0).unwrap().mode() & 0o777, 0o600);
        let port = listener.attend(key, |_| {}).unwrap();
        find(&task(1), &folder, None, Duration::from_secs(10)).unwrap();
        // Others must not be able to read it.
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = find(&task(1), &folder, None, SOON).err().unwrap();
        assert!(refused.to_string().contains("mode 0644"), "{refused}");
        drop((port, file));
        let nobody = find(&task(1), &folder, None, SOON).err().unwrap();
        assert!(matches!(nobody, LaunchError::NoLeader { .. }), "{nobody}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_key_that_was_given_is_in_no_other_file_and_a_wrong_or_missing_one_is_refused() {
        let folder = folder("given");
        let (right, wrong) = (folder.join("right"), folder.join("wrong"));
        let (key, _) = key_file::read_or_create(&right).unwrap();
        key_file::read_or_create(&wrong).unwrap();
        let (listener, key, file) = open(&task(0), &folder, Some(key), None).unwrap();
        assert!(!fs::read_to_string(&file.0).unwrap().contains(&key_file::digits(&key)));
        let port = listener.attend(key, |_| {}).unwrap();
        find(&task(1), &folder, Some(&right), Duration::from_secs(10)).unwrap();
        let stranger = find(&task(1), &folder, Some(&wrong), Duration::from_secs(10)).err().unwrap();
        assert!(matches!(stranger, LaunchError::Stranger { .. }), "{stranger}");
        for missing in [None, Some(folder.join("none"))] {
            let error = find(&task(1), &folder, missing.as_deref(), SOON).err().unwrap();
            assert!(matches!(error, LaunchError::Key(_)), "{error}");
        }
        drop((port, file));
        fs::remove_dir_all(&folder).unwrap();
    }
}
