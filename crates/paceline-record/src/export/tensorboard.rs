//! TensorBoard event files: one folder per rank with its loss and times per step, and one of the whole run with its
//! evaluations. A file is a row of records (length, checksum, data, checksum), each a small protocol buffer.

use std::path::Path;

use super::{ExportError, Exported, file, folder, varint};
use crate::store::{TableRows, Value, number};

pub fn write(exported: &Exported<'_>, out: &Path) -> Result<(), ExportError> {
    let started = exported.run.started_s;
    let evaluations = &exported.table("evaluations")?;
    let mut events = Events::new(started);
    for row in &evaluations.rows {
        for name in ["loss", "accuracy"] {
            events.scalar(evaluations, row, &format!("test/{name}"), name, 1.0);
        }
    }
    events.save(&out.join("run"), exported)?;
    let steps = &exported.table("steps")?;
    let rank = steps.column("rank");
    for rows in steps.rows.chunk_by(|a, b| a[rank] == b[rank]) {
        let mut events = Events::new(started);
        for row in rows {
            events.scalar(steps, row, "train/loss", "loss", 1.0);
            for phase in ["data", "forward", "backward", "send", "wait", "apply"] {
                events.scalar(steps, row, &format!("seconds/{phase}"), &format!("{phase}_ns"), 1e-9);
            }
            events.scalar(steps, row, "train/staleness", "staleness", 1.0);
        }
        let name = number(&rows[0][rank]).unwrap_or(0.0);
        events.save(&out.join(format!("rank{name}")), exported)?;
    }
    Ok(())
}

/// The events of one file.
struct Events {
    started_s: f64,
    bytes: Vec<u8>,
}

impl Events {
    fn new(started_s: f64) -> Self {
        let mut events = Self { started_s, bytes: Vec::new() };
        let mut event = Vec::new();
        double(&mut event, 1, started_s);
        text(&mut event, 3, "brain.Event:2");
        events.record(&event);
        events
    }

    /// A column of a row as a scalar, if it has a value.
    fn scalar(&mut self, rows: &TableRows, row: &[Value], tag: &str, column: &str, unit: f64) {
        let get = |name: &str| number(&row[rows.column(name)]);
        let (Some(value), Some(step), Some(t_ns)) = (get(column), get("step"), get("t_ns")) else { return };
        let mut scalar = Vec::new();
        text(&mut scalar, 1, tag);
        key(&mut scalar, 2, 5);
        scalar.extend(((value * unit) as f32).to_le_bytes());
        let mut summary = Vec::new();
        bytes(&mut summary, 1, &scalar);
        let mut event = Vec::new();
        double(&mut event, 1, self.started_s + t_ns * 1e-9);
        key(&mut event, 2, 0);
        varint(&mut event, step as u64);
        bytes(&mut event, 5, &summary);
        self.record(&event);
    }

    fn record(&mut self, data: &[u8]) {
        let length = (data.len() as u64).to_le_bytes();
        self.bytes.extend(length);
        self.bytes.extend(masked(&length).to_le_bytes());
        self.bytes.extend(data);
        self.bytes.extend(masked(data).to_le_bytes());
    }

    fn save(&self, path: &Path, exported: &Exported<'_>) -> Result<(), ExportError> {
        folder(path)?;
        let name = format!("events.out.tfevents.{}.{}", self.started_s as u64, exported.run.run);
        file(&path.join(name), &self.bytes)
    }
}

fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, 1);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn text(out: &mut Vec<u8>, field: u64, value: &str) {
    bytes(out, field, value.as_bytes());
}

/// The checksum of a record, turned so that a checksum of checksums is no trouble.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's polynomial, a byte at a time.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (if crc & 1 == 1 { 0x82f6_3b78 } else { 0 });
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(&[0; 32]), 0x8a91_36aau32.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}
