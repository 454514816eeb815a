//! A loaded dataset.

use std::sync::Arc;

use crate::augment::Jitter;
use crate::image_folder::Files;

/// Samples and what sharding sorts them by.
#[derive(Debug)]
pub struct Split {
    pub(crate) samples: Samples,
    /// The class of each sample; of a window of text the tenth of the text that it lies in.
    labels: Vec<u16>,
}

#[derive(Debug)]
pub(crate) enum Samples {
    /// Images in memory: bytes, normalised when they are read.
    Bytes(Bytes),
    /// Series of numbers in memory.
    Numbers { numbers: Vec<f32>, sample: usize },
    /// A text in memory.
    Tokens(Tokens),
    /// Images on disk, decoded when they are needed.
    Files(Arc<Files>),
}

#[derive(Debug)]
pub(crate) struct Bytes {
    bytes: Vec<u8>,
    /// Bytes before the first sample (a file's header, kept to spare a copy).
    header: usize,
    sample: usize,
    pub(crate) jitter: Option<Jitter>,
}

/// A text cut into windows of `window + 1` tokens, each one beginning with the last token of the one before.
#[derive(Debug)]
pub(crate) struct Tokens {
    tokens: Vec<u16>,
    window: usize,
    /// Whether a window may begin up to `window - 1` tokens later, drawn anew for each step.
    shifted: bool,
}

impl Bytes {
    pub(crate) fn sample(&self, i: usize) -> &[u8] {
        let at = self.header + i * self.sample;
        &self.bytes[at..at + self.sample]
    }
}

impl Tokens {
    /// Window `i`; `draw` (any number) chooses how much later it begins, where that is allowed.
    pub(crate) fn window(&self, i: usize, draw: impl FnOnce() -> u64) -> &[u16] {
        let first = i * self.window;
        let room = (self.tokens.len() - 1 - self.window - first).min(self.window - 1);
        let later = if self.shifted { draw() % (room as u64 + 1) } else { 0 };
        let first = first + later as usize;
        &self.tokens[first..=first + self.window]
    }
}

/// Tenths that a text is divided into for sharding.
const TENTHS: usize = 10;

impl Split {
    /// `labels.len()` images of `sample` bytes each, after `header` bytes that are skipped.
    pub fn bytes(bytes: Vec<u8>, header: usize, sample: usize, labels: Vec<u16>) -> Self {
        assert_eq!(bytes.len(), header + sample * labels.len(), "one label per sample");
        Self { samples: Samples::Bytes(Bytes { bytes, header, sample, jitter: None }), labels }
    }

    /// Images that training crops and mirrors.
    pub(crate) fn jittered(mut self, jitter: Jitter) -> Self {
        if let Samples::Bytes(bytes) = &mut self.samples {
            bytes.jitter = Some(jitter);
        }
        self
    }

    /// `labels.len()` series of `sample` numbers each.
    pub fn numbers(numbers: Vec<f32>, sample: usize, labels: Vec<u16>) -> Self {
        assert_eq!(numbers.len(), sample * labels.len(), "one label per sample");
        Self { samples: Samples::Numbers { numbers, sample }, labels }
    }

    /// The windows of a text; with `shifted` ones, training reads each a little later in every step.
    pub(crate) fn tokens(tokens: Vec<u16>, window: usize, shifted: bool) -> Self {
        let windows = tokens.len().saturating_sub(1) / window;
        let labels = (0..windows).map(|i| (i * TENTHS / windows) as u16).collect();
        Self { samples: Samples::Tokens(Tokens { tokens, window, shifted }), labels }
    }

    pub(crate) fn files(files: Files, labels: Vec<u16>) -> Self {
        Self { samples: Samples::Files(Arc::new(files)), labels }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The bytes of image `i` as it lies in memory, in NHWC order; none for other kinds.
    pub fn image(&self, i: usize) -> Option<&[u8]> {
        match &self.samples {
            Samples::Bytes(bytes) => Some(bytes.sample(i)),
            _ => None,
        }
    }

    /// The label of sample `i`.
    pub fn label(&self, i: usize) -> u16 {
        self.labels[i]
    }

    /// What sharding sorts by: the classes; for text the tenth of it that a window lies in.
    pub fn labels(&self) -> &[u16] {
        &self.labels
    }

    /// Whether samples are decoded while they are needed, so that it helps to know early what comes next.
    pub fn streamed(&self) -> bool {
        matches!(self.samples, Samples::Files(_))
    }

    /// Bytes that the samples take in memory.
    pub fn memory_bytes(&self) -> usize {
        match &self.samples {
            Samples::Bytes(bytes) => bytes.bytes.len(),
            Samples::Numbers { numbers, .. } => size_of_val(&numbers[..]),
            Samples::Tokens(tokens) => size_of_val(&tokens.tokens[..]),
            Samples::Files(files) => files.memory_bytes(),
        }
    }
}

/// How bytes become numbers: `byte · scale + shift`, one pair per channel or one for all. Empty where samples
/// are numbers already.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Normalisation {
    /// Factors.
    pub scale: Vec<f32>,
    /// Summands.
    pub shift: Vec<f32>,
}

impl Normalisation {
    /// Bytes up to `largest` with the given mean and standard deviation (both as fractions of
    /// `largest`) become numbers of mean 0 and standard deviation 1.
    pub fn standard(largest: f32, moments: &[(f32, f32)]) -> Self {
        Self {
            scale: moments.iter().map(|(_, deviation)| 1.0 / (largest * deviation)).collect(),
            shift: moments.iter().map(|(mean, deviation)| -mean / deviation).collect(),
        }
    }
}

/// A dataset that can be trained on.
#[derive(Debug)]
pub struct Dataset {
    /// The registry's name.
    pub name: &'static str,
    /// Height, width and channels of a sample. A series is one row: its width is the time.
    pub shape: [usize; 3],
    /// Number of classes; of a text, of different characters.
    pub classes: usize,
    /// Answers that a sample asks for: one, or for text the next character at each position.
    pub positions: usize,
    /// What is trained on.
    pub train: Split,
    /// What accuracy is measured on.
    pub test: Split,
    /// How bytes become numbers.
    pub normalisation: Normalisation,
}
