//! Settings of measurements, as people write them.

use paceline_resolve::byte_count;

/// Elements of a message whose bytes are given as text.
pub fn message_length(text: &str) -> Result<usize, String> {
    let bytes = byte_count(text)?;
    if bytes % 4 == 0 && bytes <= 1 << 30 {
        Ok(bytes / 4)
    } else {
        Err("a multiple of 4, at most 1GiB".into())
    }
}

/// How long something is measured, as text.
pub fn measuring_seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 3600.0);
    value.ok_or_else(|| "a number of seconds above 0, at most 3600, is needed".into())
}
