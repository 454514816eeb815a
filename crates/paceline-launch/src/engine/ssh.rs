//! Hosts of a file, started over ssh: the key goes through ssh's standard input.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use paceline_plan::PlanError;
use paceline_wire::Key;

use crate::address::HostAddress;
use crate::error::LaunchError;
use crate::exit::Exit;
use crate::key_file;

/// Time that the other end has to end by itself after the run.
const GRACE: Duration = Duration::from_secs(2);

/// The hosts of a run: this machine first.
#[derive(Clone, Debug)]
pub struct HostsFile {
    /// Where the others reach this machine.
    pub here: SocketAddr,
    /// What ssh is told of each other host: `[USER@]HOST`.
    pub others: Vec<String>,
}

impl HostsFile {
    /// Reads a file with a host per line; what is behind `#` is for people.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let refuse = |problem: String| PlanError::new("--hosts-file", path.display().to_string(), problem);
        let text = paceline_files::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let hosts: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let Some((first, others)) = hosts.split_first().filter(|(_, others)| !others.is_empty()) else {
            return Err(refuse("at least 2 hosts are needed, this machine first, one per line".into()));
        };
        // ssh would take such a name for an option.
        if let Some(odd) =
            others.iter().find(|host| host.starts_with('-') || host.contains(char::is_whitespace))
        {
            return Err(refuse(format!("{odd:?} is no host; [USER@]HOST is needed, one per line")));
        }
        let any =
            |host: &str| if host.parse::<std::net::IpAddr>().is_ok() { bracketed(host) } else { host.into() };
        let address: HostAddress = format!("{}:0", any(first))
            .parse()
            .map_err(|error| refuse(format!("{first}, which is to be this machine: {error}")))?;
        Ok(Self { here: address.all[0], others: others.iter().map(|host| host.to_string()).collect() })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.others.len() + 1
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.into() }
}

/// Processes that join over ssh. Dropping them ends those that are left.
pub struct SshHosts {
    children: Arc<Mutex<Vec<(String, Child)>>>,
}

impl SshHosts {
    /// Starts `PROGRAM join` on every other host.
    pub fn start(
        hosts: &HostsFile,
        program: &Path,
        address: SocketAddr,
        key: &Key,
        timeout: Duration,
    ) -> Result<Self, LaunchError> {
        let started = Self { children: Arc::default() };
        for (i, host) in hosts.others.iter().enumerate() {
            let mut words = vec![quoted(program)];
            let numbers = [("--host", i + 1), ("--hosts", hosts.count())];
            words.extend(["join".into(), address.to_string(), "--key-stdin".into(), "--quiet".into()]);
            words.extend(numbers.iter().flat_map(|(flag, number)| [(*flag).to_owned(), number.to_string()]));
            words.extend(["--join-timeout".into(), timeout.as_secs_f64().to_string()]);
            let mut child = Command::new("ssh")
                .args(["-o", "BatchMode=yes", host, &words.join(" ")])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .map_err(|source| LaunchError::System { what: format!("ssh {host}"), source })?;
            let mut pipe = child.stdin.take().expect("standard input is a pipe");
            started.lock().push((host.clone(), child));
            // One that has ended already is told of by its end.
            let _ = pipe.write_all((key_file::digits(key) + "\n").as_bytes());
        }
        Ok(started)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, Child)>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What tells of a host that ended before it had joined.
    pub fn trouble(&self) -> impl FnMut() -> Option<LaunchError> + Send + 'static {
        let children = Arc::clone(&self.children);
        move || {
            let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
            children.iter_mut().find_map(|(host, child)| {
                let exit = Exit::from(child.try_wait().ok().flatten()?);
                Some(LaunchError::HostNotStarted { host: host.clone(), how: exit.to_string() })
            })
        }
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        let begun = Instant::now();
        let mut children = self.lock();
        let over = |children: &mut Vec<(String, Child)>| {
            children.iter_mut().all(|(_, child)| !matches!(child.try_wait(), Ok(None)))
        };
        while !over(&mut children) && begun.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(5));
        }
        for (_, child) in children.iter_mut() {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// The key that comes on standard input.
pub fn key_from(mut input: impl Read) -> Result<Key, LaunchError> {
    let mut text = String::new();
    let path = || PathBuf::from("standard input");
    input
        .by_ref()
        .take(256)
        .read_to_string(&mut text)
        .map_err(|source| key_file::KeyError::File { path: path(), source })?;
    Ok(key_file::parse(text.trim()).ok_or_else(|| key_file::KeyError::Content { path: path() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_from_lines_and_this_machine_is_the_first() {
        let folder = std::env::temp_dir().join(format!("hosts-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("hosts");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            HostsFile::read(&path).map_err(|error| error.to_string())
        };
        let hosts = read("127.0.0.1 # here\n\n# others:\nuser@b\n  c\n").unwrap();
        assert_eq!((hosts.here.to_string(), hosts.count()), ("127.0.0.1:0".into(), 3));
        assert_eq!(hosts.others, ["user@b", "c"]);
        assert_eq!(read("::1\nb").unwrap().here.to_string(), "[::1]:0");
        for (text, problem) in [
            ("", "at least 2 hosts"),
            ("127.0.0.1\n", "at least 2 hosts"),
            ("127.0.0.1\n-oProxyCommand=x\n", "is no host"),
            ("127.0.0.1\na b\n", "is no host"),
            ("nowhere.invalid\nb\n", "nowhere.invalid, which is to be this machine"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(HostsFile::read(&path).is_err());
    }

    #[test]
    fn keys_and_paths_survive_ssh() {
        let key = Key::generate().unwrap();
        let again = key_from((key_file::digits(&key) + "\n").as_bytes()).unwrap();
        assert_eq!(again.as_bytes(), key.as_bytes());
        assert!(key_from(&b"nonsense"[..]).is_err());
        assert_eq!(quoted(Path::new("/a b/it's")), "'/a b/it'\\''s'");
    }
}
