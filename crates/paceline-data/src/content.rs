//! Reading files, gzipped or not.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::error::DataError;

/// Most bytes of a text that is read whole: no damaged archive makes us ask for any amount of memory.
const TEXT: u64 = 1 << 30;

/// Opens a file; what is gzipped (by its first bytes, not its name) is unpacked while it is read.
pub fn open(path: &Path) -> Result<Box<dyn Read>, DataError> {
    let failed = DataError::read(path);
    let mut file = BufReader::with_capacity(1 << 16, paceline_files::open(path).map_err(&failed)?);
    let zipped = file.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
    Ok(if zipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// The whole text of a file.
pub fn text(path: &Path) -> Result<String, DataError> {
    let mut bytes = Vec::new();
    open(path)?.take(TEXT + 1).read_to_end(&mut bytes).map_err(DataError::read(path))?;
    if bytes.len() as u64 > TEXT {
        return Err(DataError::content(path, "a text of at most 1 GiB", "a longer one"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let (at, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = 1 + bytes[..at].iter().filter(|&&b| b == b'\n').count();
        let found = format!("byte {:#04x} in line {line} (at byte {at})", bytes[at]);
        DataError::content(path, "a text in UTF-8", found)
    })
}

/// Length and SHA-256 (in hexadecimal) of a file's content, unpacked.
pub fn sha256(path: &Path) -> Result<(u64, String), DataError> {
    paceline_files::sha256(open(path)?).map_err(DataError::read(path))
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
