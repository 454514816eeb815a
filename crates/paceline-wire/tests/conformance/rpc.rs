//! gRPC by hand, byte by byte over TCP, without anything of the code under test: what other implementations
//! say, and what nobody should.

use std::io::{self, Read};

/// What a client of HTTP/2 says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const SETTINGS: u8 = 4;
pub const CONTINUATION: u8 = 9;
/// The flag of a frame after which no more headers come.
pub const END_HEADERS: u8 = 4;
/// The flag of a frame after which nothing comes.
pub const END_STREAM: u8 = 1;

/// A frame of HTTP/2.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Headers as literals, which need no tables.
pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        assert!(text.len() < 127, "one byte of length");
        [&[text.len() as u8], text.as_bytes()].concat()
    };
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// The headers of a call.
pub fn headers(stream: u32, path: &str) -> Vec<u8> {
    let fields = fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]);
    frame(HEADERS, END_HEADERS, stream, &fields)
}

/// The path of the one call that there is.
pub const EXCHANGE: &str = "/paceline.wire.Link/Exchange";

/// The beginning of a connection and of its call.
pub fn call() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &headers(1, EXCHANGE)].concat()
}

/// A message with a length of its own choice before it.
pub fn message(length: u32, content: &[u8]) -> Vec<u8> {
    let content = [&[0], &length.to_be_bytes()[..], content].concat();
    content.chunks(16 << 10).flat_map(|part| frame(DATA, 0, 1, part)).collect()
}

/// A whole chunk of bytes.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    let content = [&[0x0a], &varint(bytes.len() as u64)[..], bytes].concat();
    message(content.len() as u32, &content)
}

/// A number as Protocol Buffers have it.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 128 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// The bytes that the chunks of an answer carry.
pub struct Answer<R> {
    connection: R,
    /// Messages as far as they have come.
    messages: Vec<u8>,
    bytes: Vec<u8>,
}

impl<R: Read> Answer<R> {
    pub fn new(connection: R) -> Self {
        Self { connection, messages: Vec::new(), bytes: Vec::new() }
    }

    /// The next bytes.
    pub fn hears<const N: usize>(&mut self) -> [u8; N] {
        while self.bytes.len() < N {
            let frame = self.frame().unwrap();
            self.take(frame);
        }
        let rest = self.bytes.split_off(N);
        std::mem::replace(&mut self.bytes, rest).try_into().unwrap()
    }

    /// All bytes to come, up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while let Ok(frame) = self.frame() {
            self.take(frame);
        }
        std::mem::take(&mut self.bytes)
    }

    fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.connection.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.connection.read_exact(&mut payload)?;
        Ok((head[3], payload))
    }

    fn take(&mut self, (kind, payload): (u8, Vec<u8>)) {
        if kind == DATA {
            self.messages.extend(payload);
            self.digest();
        }
    }

    fn digest(&mut self) {
        while let Some(length) = self.messages.get(1..5) {
            let end = 5 + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.messages.len() < end {
                return;
            }
            let message: Vec<u8> = self.messages.drain(..end).skip(5).collect();
            let size = message[1..].iter().take_while(|byte| **byte >= 128).count() + 1;
            let bytes = &message[1 + size..];
            assert_eq!(message[..1 + size], [&[0x0a], &varint(bytes.len() as u64)[..]].concat(), "one field");
            self.bytes.extend(bytes);
        }
    }

    /// The connection below.
    pub fn connection(&mut self) -> &mut R {
        &mut self.connection
    }
}
