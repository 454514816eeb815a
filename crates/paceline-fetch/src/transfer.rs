//! One address to one `.part` file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

use crate::FetchEvent;
use crate::error::FetchError;

const CONNECT: Duration = Duration::from_secs(10);
/// Longest time without a byte.
const STALL: Duration = Duration::from_secs(30);
/// Times that a transfer which breaks off goes on by itself, if bytes have come in between.
const RESUMES: usize = 3;

/// Fetches.
#[derive(Debug)]
pub struct Client(Agent);

impl Default for Client {
    fn default() -> Self {
        Self::new(CONNECT, STALL)
    }
}

/// What came of one request.
enum Came {
    /// All of it.
    Whole,
    /// Some, then it broke off.
    Some { have: u64, total: Option<u64>, cause: String },
    /// What is there from before is of no use.
    Restart,
}

impl Client {
    /// With these times to connect and to wait for a byte.
    pub fn new(connect: Duration, stall: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(connect))
            .timeout_connect(Some(connect))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .build();
        Self(config.into())
    }

    /// Fetches what is missing of `part`, at most `limit` bytes in all. Whether something was there from before
    /// that was kept.
    pub(crate) fn transfer(
        &self,
        address: &str,
        part: &Path,
        limit: u64,
        news: &mut dyn FnMut(FetchEvent<'_>),
    ) -> Result<bool, FetchError> {
        let failed = |source| FetchError::Io { path: part.into(), source };
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(part);
        let mut file = open.map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        // A device takes what is written or refuses it; a fifo would wait for a reader.
        if !found.file_type().is_char_device() {
            paceline_files::check(&found).map_err(failed)?;
        }
        match file.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => return Err(FetchError::Busy { part: part.into() }),
            // Where files cannot be locked, the hash finds out.
            Err(std::fs::TryLockError::Error(_)) | Ok(()) => {}
        }
        let mut kept = file.seek(SeekFrom::End(0)).map_err(failed)? > 0;
        let mut left = RESUMES;
        loop {
            let before = file.seek(SeekFrom::End(0)).map_err(failed)?;
            news(FetchEvent::Asking { address, have: before });
            match self.request(address, part, &mut file, before, limit, news)? {
                Came::Whole => return Ok(kept),
                Came::Restart => {
                    kept = false;
                    file.set_len(0).map_err(failed)?;
                }
                Came::Some { have, total, cause } => {
                    if left == 0 || have <= before {
                        return Err(FetchError::Broken { address: address.into(), have, total, cause });
                    }
                    left -= 1;
                    news(FetchEvent::Resuming { cause: &cause });
                }
            }
        }
    }

    /// Asks for what comes after the first `have` bytes.
    fn request(
        &self,
        address: &str,
        part: &Path,
        file: &mut File,
        have: u64,
        limit: u64,
        news: &mut dyn FnMut(FetchEvent<'_>),
    ) -> Result<Came, FetchError> {
        let mut request = self.0.get(address).header("accept-encoding", "identity");
        if have > 0 {
            request = request.header("range", format!("bytes={have}-"));
        }
        let unreachable = |error: ureq::Error| FetchError::Unreachable {
            address: address.into(),
            cause: error.to_string(),
        };
        let response = request.call().map_err(unreachable)?;
        let (have, total) = match response.status().as_u16() {
            200 => {
                if have > 0 {
                    // The server does not resume: from the beginning.
                    file.set_len(0).map_err(|source| FetchError::Io { path: part.into(), source })?;
                }
                (0, header(&response, "content-length").and_then(|length| length.parse().ok()))
            }
            206 => match content_range(&response) {
                Some((first, total)) if first == have => (have, total),
                _ => return Ok(Came::Restart),
            },
            // Nothing comes after what is there: either it is all, or something else.
            416 if have > 0 => {
                let whole =
                    header(&response, "content-range").and_then(|range| range.strip_prefix("bytes */"));
                let whole = whole.and_then(|length| length.parse::<u64>().ok());
                return Ok(if whole == Some(have) { Came::Whole } else { Came::Restart });
            }
            status => return Err(FetchError::Status { address: address.into(), status }),
        };
        let too_long = || FetchError::TooLong { address: address.into(), limit };
        if total.is_some_and(|total| total > limit) {
            return Err(too_long());
        }
        let folder = part.parent().unwrap_or(Path::new("."));
        let no_space = |needed| FetchError::NoSpace { folder: folder.into(), needed, free: free(folder) };
        let needed = total.map(|total| total.saturating_sub(have));
        if let (Some(needed), Some(free)) = (needed, free(folder))
            && needed > free
        {
            return Err(no_space(Some(needed)));
        }
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let (mut have, mut buffer) = (have, vec![0; 1 << 16]);
        let written = |source: std::io::Error, have: u64| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                no_space(total.map(|t| t.saturating_sub(have)))
            }
            _ => FetchError::Io { path: part.into(), source },
        };
        file.seek(SeekFrom::Start(have)).map_err(|source| written(source, have))?;
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Came::Some { have, total, cause: error.to_string() }),
            };
            if have + count as u64 > limit {
                return Err(too_long());
            }
            file.write_all(&buffer[..count]).map_err(|source| written(source, have))?;
            have += count as u64;
            news(FetchEvent::Bytes { have, total });
        }
        if total.is_some_and(|total| have < total) {
            return Ok(Came::Some { have, total, cause: "the server closed the connection".into() });
        }
        file.sync_all().map_err(|source| written(source, have))?;
        Ok(Came::Whole)
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// First byte and total length of a partial answer.
fn content_range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let (range, total) = header(response, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.parse().ok()?, total.parse().ok()))
}

/// Bytes that are free for us where `folder` lies.
fn free(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}
