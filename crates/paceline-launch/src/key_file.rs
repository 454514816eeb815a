//! The file that holds the key with which machines join a run: 64 hexadecimal digits, for its owner's eyes only.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use paceline_wire::{Key, WireError};

const DIGITS: usize = 64;
/// Rights of anybody but the owner.
const OTHERS: u32 = 0o077;

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum KeyError {
    /// It cannot be read or written.
    #[error("the key file {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Others may read or change it.
    #[error("the key file {} can be read or changed by others (mode {mode:04o})", path.display())]
    Open { path: PathBuf, mode: u32 },
    /// It holds something else. What it holds is not told.
    #[error("the key file {} does not hold a key: expected {DIGITS} hexadecimal digits", path.display())]
    Content { path: PathBuf },
    /// The system gave no randomness.
    #[error(transparent)]
    Random(#[from] WireError),
}

impl KeyError {
    /// What to do about it; `maker` is the command that makes such a file.
    pub fn hint(&self, maker: &str) -> String {
        match self {
            Self::File { path, source } if source.kind() == ErrorKind::NotFound && !in_folder(path) => {
                "its folder is not there: make it, or name another file".into()
            }
            Self::File { source, .. } if source.kind() == ErrorKind::NotFound => {
                format!("`{maker}` makes it; copy it from there, e.g. with scp -p")
            }
            Self::Open { path, .. } => {
                format!("chmod 600 {} (and take a new key if somebody may have seen it)", path.display())
            }
            Self::Content { path } => {
                format!("copy it again, or remove {} and let `{maker}` make one", path.display())
            }
            Self::File { .. } => "is the path right, and the file yours to read?".into(),
            Self::Random(_) => String::new(),
        }
    }
}

/// Whether the folder of a file is there.
fn in_folder(path: &Path) -> bool {
    path.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir())
}

/// Reads a key.
pub fn read(path: &Path) -> Result<Key, KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let file = paceline_files::open(path).map_err(failed)?;
    // Asked of the open file, so that it cannot be exchanged meanwhile.
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(KeyError::Open { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    let content = || KeyError::Content { path: path.to_owned() };
    match file.take(2 * DIGITS as u64).read_to_string(&mut text) {
        Err(e) if e.kind() == ErrorKind::InvalidData => return Err(content()),
        done => done.map_err(failed)?,
    };
    parse(text.trim()).ok_or_else(content)
}

/// The key that these digits are.
pub(crate) fn parse(text: &str) -> Option<Key> {
    if text.len() != DIGITS || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("they are digits");
    Some(Key::from(std::array::from_fn(byte)))
}

/// A key as digits.
pub(crate) fn digits(key: &Key) -> String {
    key.as_bytes().iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads a key, or makes a new one where there is no file yet; whether it was made.
pub fn read_or_create(path: &Path) -> Result<(Key, bool), KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok((read(path)?, false)),
        Err(e) => return Err(failed(e)),
    };
    let key = Key::generate()?;
    file.write_all((digits(&key) + "\n").as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok((key, true))
}

/// A key file that goes with the run it was made for.
#[derive(Debug)]
pub struct Temporary(pub PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Somebody else may have removed it; its key is worth nothing any more.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_private_and_read_as_written() {
        let folder = std::env::temp_dir().join(format!("key-file-test-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("key");
        assert!(read(&path).unwrap_err().hint("train --listen").contains("--listen"));
        let (key, made) = read_or_create(&path).unwrap();
        assert!(made && fs::metadata(&path).unwrap().mode() & 0o777 == 0o600);
        let (again, made) = read_or_create(&path).unwrap();
        assert!(!made && again.as_bytes() == key.as_bytes());
        assert_eq!(read(&path).unwrap().as_bytes(), key.as_bytes());

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = read(&path).err().unwrap();
        assert!(error.to_string().contains("0640") && error.hint("").contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();

        for wrong in ["", "abc", &"g".repeat(64), &"a".repeat(65), "\u{e4}\u{e4}"] {
            fs::write(&path, wrong).unwrap();
            let error = read(&path).err().unwrap();
            assert!(matches!(error, KeyError::Content { .. }), "{wrong:?}: {error}");
            assert!(wrong.is_empty() || !error.to_string().contains(wrong), "what it holds is not told");
        }
        drop(Temporary(path.clone()));
        assert!(!path.exists());
        fs::remove_dir(&folder).unwrap();
    }
}
