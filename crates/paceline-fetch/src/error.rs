//! What can go wrong with a download.

use std::path::{Path, PathBuf};

/// A download that did not come to its end. Nothing lies under the final name.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum FetchError {
    /// Nobody is known to have it.
    #[error("{file}: no address is known to fetch it from")]
    NoAddress { file: &'static str },
    /// No answer.
    #[error("{address}: {cause}")]
    Unreachable { address: String, cause: String },
    /// An answer, but not the file.
    #[error("{address}: the server answers {status}{}", meaning(*status))]
    Status { address: String, status: u16 },
    /// The transfer breaks off again and again.
    #[error("{address}: broken off after {have} of {} bytes: {cause}", total.map_or("unknown".into(), |t| t.to_string()))]
    Broken { address: String, have: u64, total: Option<u64>, cause: String },
    /// The answer is longer than the file can be.
    #[error("{address}: more than the {limit} bytes that this file can have at most")]
    TooLong { address: String, limit: u64 },
    /// The content is not what it must be.
    #[error("{address}: {file} has the SHA-256 {found} instead of {expected}")]
    Wrong { address: String, file: &'static str, expected: &'static str, found: String },
    /// It cannot be unpacked.
    #[error("{address}: cannot be unpacked: {problem}")]
    Damaged { address: String, problem: String },
    /// The disk is full, or would be.
    #[error("{}: no space left: {}", folder.display(), needs(*needed, *free))]
    NoSpace { folder: PathBuf, needed: Option<u64>, free: Option<u64> },
    /// The operating system refuses.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// Another process is fetching the same.
    #[error("{}: another process is fetching it", part.display())]
    Busy { part: PathBuf },
}

fn meaning(status: u16) -> &'static str {
    match status {
        401 | 403 => " (not allowed)",
        404 | 410 => " (not there)",
        429 => " (too many requests)",
        500.. => " (the server has a problem)",
        _ => "",
    }
}

fn needs(needed: Option<u64>, free: Option<u64>) -> String {
    let bytes = |n: Option<u64>| n.map_or("an unknown number of bytes".into(), |n| format!("{n} bytes"));
    format!("{} are still needed, {} are free", bytes(needed), bytes(free))
}

impl FetchError {
    /// Whether another address would not help.
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::Io { .. } | Self::Busy { .. })
    }

    /// Whether what has come is of no use.
    pub(crate) fn is_content(&self) -> bool {
        matches!(self, Self::Wrong { .. } | Self::Damaged { .. } | Self::TooLong { .. })
    }

    /// The exit code that it calls for: 5 for storage, else 1.
    pub fn code(&self) -> u8 {
        if self.is_ours() { 5 } else { 1 }
    }

    /// What the user can do about it; the file belongs into `folder`.
    pub fn hint(&self, folder: &Path, file: &str) -> String {
        let by_hand = format!("put {file} into {} yourself", folder.display());
        match self {
            Self::NoAddress { .. } | Self::Status { .. } | Self::TooLong { .. } => {
                format!("{by_hand}, or name a mirror with --mirror URL or PACELINE_MIRROR")
            }
            Self::Unreachable { .. } => {
                format!("no connection? {by_hand}, or name a mirror with --mirror URL or PACELINE_MIRROR")
            }
            Self::Broken { .. } => format!("what has come is kept: run it again to go on; or {by_hand}"),
            Self::Wrong { .. } | Self::Damaged { .. } => format!(
                "what came was thrown away: the address has another version or an error page; {by_hand}, or \
                 name a mirror with --mirror URL"
            ),
            Self::NoSpace { .. } => {
                "make room and run it again to go on, or choose another place with --to DIR".into()
            }
            Self::Io { .. } => "is the folder yours to write to? --to DIR chooses another".into(),
            Self::Busy { .. } => "wait for the other process, or end it".into(),
        }
    }
}
