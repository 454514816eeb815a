//! Reading samples in the order in which training takes them.

use std::sync::Arc;

use paceline_random::{Purpose, Stream};

use crate::dataset::{Samples, Split};
use crate::decoders::Decoders;
use crate::error::DataError;
use crate::image_folder::Files;

/// How samples are looked at: as they are, or varied for training. A variation is a function of the seed,
/// the step and the sample, so that it depends neither on timing nor on who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleVariation {
    /// Varied, if the dataset varies its samples, by the run's seed and the step.
    #[allow(missing_docs, reason = "the text above says what they are")]
    Training { seed: u64, step: u64 },
    /// As they are.
    Plain,
}

impl SampleVariation {
    /// The draws that vary a sample.
    pub(crate) fn draws(self, sample: u32) -> Option<Stream> {
        match self {
            SampleVariation::Training { seed, step } => {
                Some(Stream::new(seed, Purpose::Augment).fork(step).fork(u64::from(sample)))
            }
            SampleVariation::Plain => None,
        }
    }
}

/// One sample with what should be answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample<'a> {
    /// An image and its class.
    Bytes(&'a [u8], u16),
    /// A series and its class.
    Numbers(&'a [f32], u16),
    /// A window of text: the token after each one is what should be answered there.
    Tokens(&'a [u16]),
}

/// Reads samples, by and by, of one split (of another one too, but then nothing is decoded beforehand).
#[derive(Debug, Default)]
pub struct Reader {
    /// Memory for one varied image.
    scratch: Vec<u8>,
    /// The threads that decode, once there is something to decode.
    decoders: Option<Decoders>,
}

impl Reader {
    /// Says what will be read soon, in order, so that it can be decoded beforehand. Saying it twice does no
    /// harm, and samples in memory need it not.
    pub fn ahead(&mut self, split: &Split, look: SampleVariation, ids: &[u32]) {
        if let Samples::Files(files) = &split.samples {
            decoders(&mut self.decoders, files).ask(look, ids);
        }
    }

    /// Hands the samples to `take` with their place in the batch, in order.
    pub fn read(
        &mut self,
        split: &Split,
        look: SampleVariation,
        ids: &[u32],
        take: &mut dyn FnMut(usize, Sample<'_>),
    ) -> Result<(), DataError> {
        for (place, &id) in ids.iter().enumerate() {
            let (i, label) = (id as usize, split.label(id as usize));
            match &split.samples {
                Samples::Bytes(bytes) => match (bytes.jitter, look.draws(id)) {
                    (Some(jitter), Some(draws)) => {
                        let image = bytes.sample(i);
                        self.scratch.resize(image.len(), 0);
                        jitter.apply(image, draws, &mut self.scratch);
                        take(place, Sample::Bytes(&self.scratch, label));
                    }
                    _ => take(place, Sample::Bytes(bytes.sample(i), label)),
                },
                Samples::Numbers { numbers, sample } => {
                    take(place, Sample::Numbers(&numbers[i * sample..(i + 1) * sample], label));
                }
                Samples::Tokens(tokens) => {
                    let draw = || look.draws(id).map_or(0, |draws| draws.at(0));
                    take(place, Sample::Tokens(tokens.window(i, draw)));
                }
                Samples::Files(files) => {
                    let decoders = decoders(&mut self.decoders, files);
                    if place == 0 {
                        decoders.ask(look, ids);
                        decoders.turn_to(look, ids);
                    }
                    decoders.next(&mut |bytes| take(place, Sample::Bytes(bytes, label)))?;
                }
            }
        }
        Ok(())
    }

    /// Puts what should be answered to samples behind `answers`, in order; nothing is decoded for it.
    pub fn answers(split: &Split, look: SampleVariation, ids: &[u32], answers: &mut Vec<u16>) {
        for &id in ids {
            match &split.samples {
                Samples::Tokens(tokens) => {
                    let draw = || look.draws(id).map_or(0, |draws| draws.at(0));
                    answers.extend_from_slice(&tokens.window(id as usize, draw)[1..]);
                }
                _ => answers.push(split.label(id as usize)),
            }
        }
    }
}

/// The threads that decode these files.
fn decoders<'a>(known: &'a mut Option<Decoders>, files: &Arc<Files>) -> &'a mut Decoders {
    if known.as_ref().is_some_and(|decoders| !decoders.are_for(files)) {
        *known = None;
    }
    known.get_or_insert_with(|| Decoders::start(files))
}
