//! The IDX format of the MNIST family: a magic number, big-endian sizes, then bytes.

use std::io::Read;
use std::path::Path;

use crate::content;
use crate::error::DataError;

/// An IDX file of bytes, header included (so that large files are never copied).
#[derive(Debug)]
pub struct Idx {
    /// The whole file, decompressed.
    pub bytes: Vec<u8>,
    /// Length of the header.
    pub header: usize,
    /// Sizes, outermost first.
    pub sizes: Vec<usize>,
}

/// Reads a file of unsigned bytes with the given number of dimensions, gzipped (by its first bytes, not
/// its name) or raw. `expected` are the sizes it must have, `None` for any.
pub fn read(path: &Path, expected: &[Option<usize>]) -> Result<Idx, DataError> {
    decode(content::open(path)?, path, expected)
}

/// Decodes a stream; `path` is for error messages.
fn decode(mut from: impl Read, path: &Path, expected: &[Option<usize>]) -> Result<Idx, DataError> {
    let failed = DataError::read(path);
    let content = |expected: String, found: String| DataError::content(path, expected, found);
    let header = 4 + 4 * expected.len();
    let mut bytes = vec![0; header];
    let got = fill(&mut from, &mut bytes).map_err(&failed)?;
    if got < header {
        return Err(content(format!("an IDX header of {header} bytes"), format!("{got} bytes")));
    }
    let word = |i: usize| u32::from_be_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes"));
    let magic = 0x0800 | expected.len() as u32;
    if word(0) != magic {
        return Err(content(format!("the IDX magic number {magic:#010x}"), format!("{:#010x}", word(0))));
    }
    let sizes: Vec<usize> = (1..=expected.len()).map(|i| word(i) as usize).collect();
    for (i, (size, expected)) in sizes.iter().zip(expected).enumerate() {
        if let Some(expected) = expected.filter(|expected| expected != size) {
            return Err(content(format!("{expected} in dimension {i}"), format!("{size}")));
        }
    }
    // A damaged header must not make us ask for any amount of memory: no such set is near 4 GiB.
    let length = sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(size)).filter(|&n| n < 1 << 32);
    let Some(length) = length else {
        return Err(content("sizes below 4 GiB in all".into(), format!("{sizes:?}")));
    };
    bytes.resize(header + length, 0);
    let wanted = format!("{length} bytes after the header");
    let got = fill(&mut from, &mut bytes[header..]).map_err(&failed)?;
    if got < length {
        return Err(content(wanted, format!("{got} (the file is truncated)")));
    }
    if fill(&mut from, &mut [0]).map_err(failed)? > 0 {
        return Err(content(wanted, "more".into()));
    }
    Ok(Idx { bytes, header, sizes })
}

/// Fills the buffer as far as the stream goes; a gzip stream that breaks off counts as its end.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(n: u32, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 3];
        for size in [n, 2, 3] {
            bytes.extend(size.to_be_bytes());
        }
        bytes.extend(std::iter::repeat_n(7, payload));
        bytes
    }

    fn message(bytes: &[u8]) -> String {
        let expected = [None, Some(2), Some(3)];
        decode(bytes, Path::new("f"), &expected).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_file_is_read() {
        let idx = decode(&images(4, 24)[..], Path::new("f"), &[None, Some(2), Some(3)]).unwrap();
        assert_eq!((idx.sizes, idx.header, idx.bytes.len()), (vec![4, 2, 3], 16, 40));
    }

    #[test]
    fn errors_say_what_was_expected_and_what_is_there() {
        assert_eq!(
            message(&images(4, 23)),
            "f: expected 24 bytes after the header, found 23 (the file is truncated)"
        );
        assert_eq!(message(&images(4, 25)), "f: expected 24 bytes after the header, found more");
        assert_eq!(message(&[0, 0]), "f: expected an IDX header of 16 bytes, found 2 bytes");
        assert!(message(&[9; 16]).contains("magic number 0x00000803, found 0x09090909"));
        let mut wide = images(4, 24);
        wide[15] = 4;
        assert_eq!(message(&wide), "f: expected 3 in dimension 2, found 4");
        assert!(message(&images(u32::MAX, 0)).contains("below 4 GiB"));
    }
}
