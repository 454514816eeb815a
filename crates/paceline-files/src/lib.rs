//! Opening the files that a user or a store names.
//!
//! Opening a fifo waits for a writer and reading a device may never end, so only regular files are opened:
//! [`open`], [`read`] and [`read_to_string`] answer at once with an error that says what the path is. Tables and study
//! files may also be pipes that somebody handed to this process ([`open_or_pipe`]).
//!
//! [`sha256`] is the one way to hash what is too large for memory.
//!
//! Deliberately absent: writing, formats, limits of size.

#![forbid(unsafe_code)]

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

/// Opens a regular file for reading.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    // Asked before, since opening a device can have effects of its own, and of the open file, since another one may
    // have its name by then. Without waiting: a fifo that comes in between has no writer.
    check(&std::fs::metadata(path)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// The bytes of a regular file.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

/// Opens a regular file, or what this process has open already: `/dev/stdin`, or the `/dev/fd/N` that a shell makes of
/// `<(command)`. Whoever names such a pipe means to wait for it.
pub fn open_or_pipe(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    let handed = path == "/dev/stdin" || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    if handed { File::open(path) } else { open(path) }
}

/// Length and SHA-256, in hexadecimal, of what is left to read.
pub fn sha256(mut from: impl Read) -> io::Result<(u64, String)> {
    let (mut hash, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&buffer[..n]);
                length += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((length, hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Refuses what is not a regular file.
pub fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let problem = format!("not a regular file ({})", kind(found.file_type()));
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

fn kind(found: FileType) -> &'static str {
    match found {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a fifo",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_block_device() => "a block device",
        kind if kind.is_socket() => "a socket",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink(path("fifo"), path("link-to-fifo")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read_to_string(path(name)).unwrap(), "text");
            assert_eq!(read(path(name)).unwrap(), b"text");
            assert!(open_or_pipe(path(name)).is_ok());
        }
        for (path, kind) in [
            (path("fifo"), "a fifo"),
            (path("link-to-fifo"), "a fifo"),
            (path("socket"), "a socket"),
            (folder.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "a character device"),
        ] {
            for error in [open(&path).unwrap_err(), open_or_pipe(&path).unwrap_err()] {
                assert_eq!(error.to_string(), format!("not a regular file ({kind})"), "{}", path.display());
            }
        }
        assert_eq!(open(path("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
