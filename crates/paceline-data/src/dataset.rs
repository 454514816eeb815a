//! A loaded dataset.

/// Samples as bytes, with their classes.
#[derive(Debug, Default)]
pub struct Split {
    bytes: Vec<u8>,
    /// Bytes before the first sample (a file's header, kept to spare a copy).
    header: usize,
    sample: usize,
    labels: Vec<u8>,
}

impl Split {
    /// `labels.len()` samples of `sample` bytes each, after `header` bytes that are skipped.
    pub fn new(bytes: Vec<u8>, header: usize, sample: usize, labels: Vec<u8>) -> Self {
        assert_eq!(bytes.len(), header + sample * labels.len(), "one label per sample");
        Self { bytes, header, sample, labels }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The bytes of sample `i`, in NHWC order.
    pub fn sample(&self, i: usize) -> &[u8] {
        let at = self.header + i * self.sample;
        &self.bytes[at..at + self.sample]
    }

    /// The class of sample `i`.
    pub fn label(&self, i: usize) -> u8 {
        self.labels[i]
    }

    /// The classes of all samples.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }
}

/// How bytes become numbers: `byte · scale + shift`, one pair per channel or one for all.
#[derive(Clone, Debug, PartialEq)]
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

/// A dataset in memory.
#[derive(Debug)]
pub struct Dataset {
    /// The registry's name.
    pub name: &'static str,
    /// Height, width and channels of a sample.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// What is trained on.
    pub train: Split,
    /// What accuracy is measured on.
    pub test: Split,
    /// How bytes become numbers.
    pub normalisation: Normalisation,
}
