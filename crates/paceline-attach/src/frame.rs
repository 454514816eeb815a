//! Frames: two little-endian `u32`, kind and length of the body, then the body.

/// Most bytes of a body.
pub const LONGEST: usize = 64 << 20;

/// Bytes before a body.
pub const HEADER: usize = 8;

/// A frame as bytes, behind what `out` holds.
pub fn put(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
}

/// What came in and was not taken yet.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
}

impl Inbox {
    /// Adds bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one: its kind and body. An error tells what cannot be a frame.
    pub fn next(&mut self) -> Result<Option<(u32, &[u8])>, String> {
        let rest = &self.bytes[self.at..];
        let word = |i: usize| u32::from_le_bytes(rest[i..i + 4].try_into().expect("four bytes"));
        if rest.len() < HEADER {
            return Ok(None);
        }
        let (kind, len) = (word(0), word(4) as usize);
        if len > LONGEST {
            return Err(format!("a frame of kind {kind} with {len} bytes; at most {LONGEST} are possible"));
        }
        if rest.len() < HEADER + len {
            return Ok(None);
        }
        let from = self.at + HEADER;
        self.at = from + len;
        Ok(Some((kind, &self.bytes[from..from + len])))
    }

    /// Bytes of a frame that has not come whole.
    pub fn torn(&self) -> usize {
        self.bytes.len() - self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = Vec::new();
        put(&mut bytes, 7, b"abc");
        put(&mut bytes, 8, b"");
        for cut in 0..bytes.len() {
            let mut inbox = Inbox::default();
            inbox.push(&bytes[..cut]);
            let mut seen = Vec::new();
            while let Some((kind, body)) = inbox.next().unwrap() {
                seen.push((kind, body.to_vec()));
            }
            inbox.push(&bytes[cut..]);
            while let Some((kind, body)) = inbox.next().unwrap() {
                seen.push((kind, body.to_vec()));
            }
            assert_eq!(seen, [(7, b"abc".to_vec()), (8, Vec::new())], "cut at {cut}");
            assert_eq!(inbox.torn(), 0);
        }
        let mut inbox = Inbox::default();
        inbox.push(&[0xff; 8]);
        assert!(inbox.next().unwrap_err().contains("at most"));
    }
}
