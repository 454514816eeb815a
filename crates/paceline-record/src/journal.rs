//! A journal: entries that are on disk before anybody acts on them, one line of JSON each with a checksum.
//!
//! Whoever writes may be killed at any moment: a line that is not whole can only be the last one, and is taken away
//! when the journal is opened again. Damage anywhere else is an error, never skipped.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// A journal that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct JournalError {
    /// The journal.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// An open journal; nobody else can open it until it is dropped.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    next: u64,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    /// Of the number and the entry.
    sum: String,
    seq: u64,
    #[serde(borrow)]
    entry: &'a RawValue,
}

fn sum(seq: u64, entry: &str) -> String {
    let digest = Sha256::digest(format!("{seq} {entry}").as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The entries of whole lines, and how many bytes they take; what follows them is the torn end.
fn whole(text: &[u8]) -> Result<(Vec<serde_json::Value>, usize), String> {
    let (mut entries, mut good) = (Vec::new(), 0);
    while let Some(length) = text[good..].iter().position(|b| *b == b'\n') {
        let line = &text[good..good + length];
        let seq = entries.len() as u64;
        let read = || {
            let line: Line<'_> = serde_json::from_slice(line).ok()?;
            (line.seq == seq && line.sum == sum(seq, line.entry.get())).then_some(())?;
            serde_json::from_str(line.entry.get()).ok()
        };
        match read() {
            Some(entry) => entries.push(entry),
            // Blocks of a last write can reach the disk in any order: a bad last line is torn too.
            None if good + length + 1 == text.len() => break,
            None => return Err(format!("line {} is damaged: its checksum does not match", seq + 1)),
        }
        good += length + 1;
    }
    Ok((entries, good))
}

/// Locks it for this process. Somebody who only looks holds it for a moment.
fn lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..5 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
    file.try_lock()
}

impl Journal {
    /// Opens a journal, making it if it is not there; the entries so far.
    pub fn open(path: &Path) -> Result<(Self, Vec<serde_json::Value>), JournalError> {
        let at = |source| JournalError { path: path.into(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(at)?;
        }
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(at)?;
        file.metadata().and_then(|found| paceline_files::check(&found)).map_err(at)?;
        lock(&file).map_err(|error| match error {
            TryLockError::Error(error) => at(error),
            TryLockError::WouldBlock => {
                let busy = "another process is at work on this study; `paceline status` shows how far it is";
                at(io::Error::new(io::ErrorKind::WouldBlock, busy))
            }
        })?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(at)?;
        let (entries, good) = whole(&text).map_err(|e| at(io::Error::new(io::ErrorKind::InvalidData, e)))?;
        file.set_len(good as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(at)?;
        if let Some(folder) = path.parent() {
            // The file's name is on disk too.
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(at)?;
        }
        let next = entries.len() as u64;
        Ok((Self { path: path.into(), file, next }, entries))
    }

    /// The entries of a journal that somebody may be writing to.
    pub fn peek(path: &Path) -> Result<Vec<serde_json::Value>, JournalError> {
        let at = |source| JournalError { path: path.into(), source };
        let text = paceline_files::read(path).map_err(at)?;
        let (entries, _) = whole(&text).map_err(|e| at(io::Error::new(io::ErrorKind::InvalidData, e)))?;
        Ok(entries)
    }

    /// Whether somebody has it open.
    pub fn busy(path: &Path) -> bool {
        let file = paceline_files::open(path);
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Adds an entry; it is on disk when this returns.
    pub fn append(&mut self, entry: &impl Serialize) -> Result<(), JournalError> {
        let at = |source| JournalError { path: self.path.clone(), source };
        let raw = serde_json::value::to_raw_value(entry).expect("entries are plain data");
        let line = Line { sum: sum(self.next, raw.get()), seq: self.next, entry: &raw };
        let text = serde_json::to_string(&line).expect("plain data") + "\n";
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data()).map_err(at)?;
        let here = |file: &Metadata| (file.dev(), file.ino());
        let (own, named) = (self.file.metadata().map_err(at)?, std::fs::metadata(&self.path));
        if !named.is_ok_and(|named| here(&named) == here(&own)) {
            let gone = "it was deleted or replaced while the study was under way";
            return Err(at(io::Error::new(io::ErrorKind::NotFound, gone)));
        }
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A journal of `count` entries, in a folder that goes with the test.
    fn filled(count: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("studies/journal.ndjson");
        let (mut journal, _) = Journal::open(&path).unwrap();
        (0..count).for_each(|n| journal.append(&json!({"n": n, "text": "a\nb"})).unwrap());
        (folder, path)
    }

    #[test]
    fn entries_come_back_and_a_torn_end_at_any_byte_is_taken_away() {
        let (_folder, path) = filled(3);
        let text = std::fs::read(&path).unwrap();
        let lines: Vec<usize> =
            text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1).collect();
        for cut in 0..=text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let (mut journal, entries) = Journal::open(&path).unwrap();
            assert_eq!(entries.len(), lines.iter().filter(|end| **end <= cut).count(), "cut at {cut}");
            journal.append(&json!("after")).unwrap();
            drop(journal);
            let entries = Journal::open(&path).unwrap().1;
            assert_eq!(entries.last().unwrap(), "after", "cut at {cut}");
        }
    }

    #[test]
    fn damage_before_the_end_is_an_error_and_a_bad_last_line_is_torn() {
        let (_folder, path) = filled(3);
        let text = std::fs::read(&path).unwrap();
        let first_line = text.iter().position(|b| *b == b'\n').unwrap();
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 0x01;
            std::fs::write(&path, &damaged).unwrap();
            match Journal::open(&path) {
                Ok((_, entries)) => assert!(entries.len() <= 2 && at > first_line, "byte {at}"),
                Err(error) => assert!(error.to_string().contains("is damaged"), "{error}"),
            }
        }
    }

    #[test]
    fn only_one_can_write_and_others_can_look() {
        let (_folder, path) = filled(1);
        let (held, _) = Journal::open(&path).unwrap();
        assert!(Journal::open(&path).unwrap_err().to_string().contains("another process"));
        assert!(Journal::busy(&path));
        assert_eq!(Journal::peek(&path).unwrap().len(), 1);
        drop(held);
        assert!(!Journal::busy(&path));
        assert!(Journal::open(&path).is_ok());
    }
}
