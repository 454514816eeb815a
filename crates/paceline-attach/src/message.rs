//! What script and rank say to each other.

use serde::{Deserialize, Serialize};

use crate::frame;

/// A tensor that a script trains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptTensor {
    /// Its name in the script's model.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
}

/// A script's optimiser, for servers that update in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScriptOptimizer {
    /// `sgd`, `adam` or `adamw`.
    pub kind: String,
    /// Its groups of tensors.
    pub groups: Vec<OptimizerGroup>,
}

/// Tensors that a script's optimiser treats alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerGroup {
    /// Their numbers.
    pub tensors: Vec<usize>,
    /// Learning rate.
    pub lr: f64,
    /// Momentum of SGD.
    #[serde(default)]
    pub momentum: f64,
    /// Nesterov's form of momentum.
    #[serde(default)]
    pub nesterov: bool,
    /// Weight decay.
    #[serde(default)]
    pub weight_decay: f64,
    /// Adam's betas.
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// Adam's epsilon.
    #[serde(default = "eps")]
    pub eps: f64,
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn eps() -> f64 {
    1e-8
}

/// What a script tells of itself when it attaches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// Version of the protocol.
    pub protocol: u32,
    /// Version of its package.
    #[serde(default)]
    pub package: String,
    /// What it computes with.
    #[serde(default)]
    pub framework: String,
    /// Its parameters, in its own order.
    pub tensors: Vec<ScriptTensor>,
    /// Its optimiser, if that can be told.
    #[serde(default)]
    pub optimizer: Option<ScriptOptimizer>,
    /// Whether it wants to hear of each part of the mean gradient as soon as it is there.
    #[serde(default)]
    pub arrivals: bool,
}

/// What a script hands over in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gives {
    /// Nothing: it has nobody to exchange with.
    Nothing,
    /// Gradients, during backward.
    Gradients,
    /// How far its optimiser has moved the parameters.
    Updates,
    /// Its parameters after its own update.
    Parameters,
}

/// What a script takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// The mean gradient, out of the gradient memory.
    Gradients,
    /// The mean gradient, out of the parameter memory.
    GradientsFromParameters,
    /// Its parameters.
    Parameters,
}

/// How a script that leaves averaging to its own framework finds its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegatedGroup {
    /// The framework's backend.
    pub backend: String,
    /// Where rank 0 listens.
    pub address: String,
    /// Its port.
    pub port: u16,
}

/// What a rank tells the script that attaches; the memory comes with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version of the protocol.
    pub protocol: u32,
    /// Version of the program.
    pub package: String,
    /// This worker.
    pub rank: usize,
    /// Number of workers.
    pub workers: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Length of each memory file, in numbers.
    pub numbers: usize,
    /// First element and length of each tensor.
    pub ranges: Vec<(usize, usize)>,
    /// First element of the flags that say which tensors were used, if they are exchanged.
    pub used: Option<usize>,
    /// Bytes of gradient that are announced together.
    pub bucket: usize,
    /// What the script hands over.
    pub gives: Gives,
    /// What it takes back.
    pub takes: Takes,
    /// Whether it is to tell when each tensor was ready.
    pub times: bool,
    /// The step before which the run ends, if that is known.
    pub until: Option<u64>,
    /// Steps after which the script saves itself by itself, where nothing is exchanged.
    pub saves_every: Option<u64>,
    /// Where the script's own framework averages.
    pub delegated: Option<DelegatedGroup>,
    /// What the script calls the one GPU that it is given; none: it chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// A step as the script has measured it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepAccount {
    /// Steps before it.
    pub step: u64,
    /// Nanoseconds of getting the batch.
    pub data_ns: u64,
    /// Nanoseconds of the forward pass.
    pub forward_ns: u64,
    /// Nanoseconds of the backward pass.
    pub backward_ns: u64,
    /// Nanoseconds of copying gradients during backward.
    pub staging_ns: u64,
    /// Nanoseconds of the update before this step.
    pub update_ns: u64,
    /// CPU time of the script's process since its last account, in nanoseconds.
    pub cpu_ns: u64,
    /// Samples of the batch.
    pub samples: u64,
    /// Nanoseconds before this step that were no training, evaluating above all.
    pub evaluated_ns: u64,
    /// Its mean training loss; not a number if the script did not tell.
    pub loss: f64,
    /// What the learning rate is now, as a multiple of what it was at first.
    pub rate: f64,
    /// Microseconds from the start of backward until each tensor was final; the largest number for those not used.
    pub ready_us: Vec<u32>,
}

/// Bytes of an account.
const ACCOUNT: usize = 80;

impl StepAccount {
    fn read(bytes: &[u8]) -> Self {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        Self {
            step: word(0),
            data_ns: word(1),
            forward_ns: word(2),
            backward_ns: word(3),
            staging_ns: word(4),
            update_ns: word(5),
            cpu_ns: word(6),
            samples: word(7),
            loss: f64::from_bits(word(8)),
            evaluated_ns: word(9),
            rate: 1.0,
            ready_us: Vec::new(),
        }
    }
}

/// What a script says.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "what a message tells says what its fields are")]
pub enum ScriptMessage {
    /// It attaches.
    Hello(Attached),
    /// Its own parameters lie in the memory.
    Ready,
    /// These tensors are final.
    Ticket(Vec<u32>),
    /// Everything of the step is final.
    Done(StepAccount),
    /// What was settled in this step is taken over.
    Taken { step: u64 },
    /// Steps in which nothing was exchanged.
    Steps(Vec<StepAccount>),
    /// Figures for the record.
    Report(Vec<(String, f64)>),
    /// A piece of what it keeps.
    Part(Vec<u8>),
    /// All of what it keeps has come, so many bytes.
    Saved { step: u64, bytes: u64 },
    /// It has no more work.
    Leave,
    /// It cannot go on.
    Fault { message: String, detail: String },
}

#[derive(Deserialize)]
struct Fault {
    message: String,
    #[serde(default)]
    detail: String,
}

impl ScriptMessage {
    /// What a frame means; `tensors` is how many the script has, `rated` whether accounts carry the learning rate.
    /// An error tells what is wrong with it.
    pub fn read(kind: u32, body: &[u8], tensors: usize, rated: bool) -> Result<Self, String> {
        let document = |error: serde_json::Error| format!("{}: {error}", name(kind));
        let sized = |len: usize| match body.len() == len {
            true => Ok(()),
            false => Err(format!("{} of {} bytes; it has {len}", name(kind), body.len())),
        };
        let word = |i: usize| u64::from_le_bytes(body[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        Ok(match kind {
            1 => Self::Hello(serde_json::from_slice(body).map_err(document)?),
            3 => sized(0).map(|()| Self::Ready)?,
            5 => {
                if body.is_empty() || !body.len().is_multiple_of(4) {
                    return Err(format!("TICKET of {} bytes; it has 4 for each tensor", body.len()));
                }
                let ids: Vec<u32> = numbers(body).collect();
                if let Some(id) = ids.iter().find(|id| **id as usize >= tensors) {
                    return Err(format!("TICKET for tensor {id}; there are {tensors}, counted from 0"));
                }
                Self::Ticket(ids)
            }
            6 => {
                let base = if rated { ACCOUNT + 8 } else { ACCOUNT };
                if body.len() != base && body.len() != base + 4 * tensors {
                    let with = base + 4 * tensors;
                    return Err(format!("DONE of {} bytes; it has {base}, or {with} with times", body.len()));
                }
                let mut account = StepAccount::read(body);
                if rated {
                    account.rate = f64::from_bits(word(10));
                }
                account.ready_us = numbers(&body[base..]).collect();
                Self::Done(account)
            }
            8 => sized(8).map(|()| Self::Taken { step: word(0) })?,
            9 => {
                if body.is_empty() || !body.len().is_multiple_of(ACCOUNT) {
                    return Err(format!("STEPS of {} bytes; it has {ACCOUNT} for each step", body.len()));
                }
                Self::Steps(body.chunks(ACCOUNT).map(StepAccount::read).collect())
            }
            10 => {
                let values: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_slice(body).map_err(document)?;
                let number = |(name, value): (String, serde_json::Value)| match value.as_f64() {
                    Some(value) => Ok((name, value)),
                    // Not a number travels as null.
                    None if value.is_null() => Ok((name, f64::NAN)),
                    None => Err(format!("REPORT of {name}: {value} is no number")),
                };
                Self::Report(
                    values
                        .into_iter()
                        .filter(|(name, _)| name != "step")
                        .map(number)
                        .collect::<Result<_, _>>()?,
                )
            }
            11 => Self::Part(body.to_vec()),
            12 => sized(16).map(|()| Self::Saved { step: word(0), bytes: word(1) })?,
            14 => sized(0).map(|()| Self::Leave)?,
            16 => {
                let Fault { message, detail } = serde_json::from_slice(body).map_err(document)?;
                Self::Fault { message, detail }
            }
            kind => return Err(format!("a frame of kind {kind}, which no script sends")),
        })
    }

    /// What the message is called.
    pub fn name(&self) -> &'static str {
        name(match self {
            Self::Hello(_) => 1,
            Self::Ready => 3,
            Self::Ticket(_) => 5,
            Self::Done(_) => 6,
            Self::Taken { .. } => 8,
            Self::Steps(_) => 9,
            Self::Report(_) => 10,
            Self::Part(_) => 11,
            Self::Saved { .. } => 12,
            Self::Leave => 14,
            Self::Fault { .. } => 16,
        })
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
}

/// The name of a kind of frame that scripts send.
fn name(kind: u32) -> &'static str {
    match kind {
        1 => "HELLO",
        3 => "READY",
        5 => "TICKET",
        6 => "DONE",
        8 => "TAKEN",
        9 => "STEPS",
        10 => "REPORT",
        11 => "PART",
        12 => "SAVED",
        14 => "LEAVE",
        16 => "FAULT",
        _ => "a frame",
    }
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "what a message tells says what its fields are")]
pub enum RankMessage<'a> {
    /// The script may take part.
    Welcome(&'a Welcome),
    /// The parameters to start from lie in the memory; so many bytes that were kept follow. The script goes by this number
    /// of a worker from now on.
    Start { step: u64, scale: f64, kept: &'a [u8], rank: usize },
    /// A step is settled: whether the run ended before it, whether the script is to save itself after it.
    Settled { step: u64, over: bool, save: bool, scale: f64 },
    /// A part of the mean gradient is there before the step is settled: its first number, and how many.
    Arrived { first: usize, numbers: usize },
    /// What it has saved is kept: it goes on, or the run is over.
    Go { over: bool, scale: f64 },
    /// It may end.
    Bye,
    /// It cannot take part.
    Refused { message: &'a str },
    /// It is to save itself.
    Save,
    /// The run is over.
    Over,
}

impl RankMessage<'_> {
    /// The message as frames, behind what `out` holds.
    pub fn write(&self, out: &mut Vec<u8>) {
        let document = |value: serde_json::Value| value.to_string().into_bytes();
        match self {
            Self::Welcome(welcome) => {
                frame::put(out, 2, &serde_json::to_vec(welcome).expect("a welcome is plain data"));
            }
            Self::Start { step, scale, kept, rank } => {
                let start =
                    serde_json::json!({"step": step, "scale": scale, "kept": kept.len(), "rank": rank});
                frame::put(out, 4, &document(start));
                kept.chunks(frame::LONGEST).for_each(|part| frame::put(out, 11, part));
            }
            Self::Settled { step, over, save, scale } => {
                let flags = u32::from(*over) | u32::from(*save) << 1;
                let body = [&step.to_le_bytes()[..], &flags.to_le_bytes(), &scale.to_le_bytes()].concat();
                frame::put(out, 7, &body);
            }
            Self::Arrived { first, numbers } => {
                let body = [(*first as u64).to_le_bytes(), (*numbers as u64).to_le_bytes()].concat();
                frame::put(out, 20, &body);
            }
            Self::Go { over, scale } => {
                frame::put(out, 13, &[&u32::from(*over).to_le_bytes()[..], &scale.to_le_bytes()].concat());
            }
            Self::Bye => frame::put(out, 15, &[]),
            Self::Refused { message } => {
                frame::put(out, 17, &document(serde_json::json!({"message": message})))
            }
            Self::Save => frame::put(out, 18, &[]),
            Self::Over => frame::put(out, 19, &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: u32, body: &[u8]) -> String {
        ScriptMessage::read(kind, body, 3, false).unwrap_err()
    }

    #[test]
    fn nothing_that_a_script_says_is_believed() {
        assert_eq!(refused(5, &[0; 3]), "TICKET of 3 bytes; it has 4 for each tensor");
        assert_eq!(refused(5, &[]), "TICKET of 0 bytes; it has 4 for each tensor");
        assert_eq!(refused(5, &3_u32.to_le_bytes()), "TICKET for tensor 3; there are 3, counted from 0");
        assert_eq!(refused(6, &[0; 79]), "DONE of 79 bytes; it has 80, or 92 with times");
        assert_eq!(refused(8, &[0; 7]), "TAKEN of 7 bytes; it has 8");
        assert_eq!(refused(9, &[0; 81]), "STEPS of 81 bytes; it has 80 for each step");
        assert_eq!(refused(10, br#"{"accuracy": "high"}"#), r#"REPORT of accuracy: "high" is no number"#);
        assert_eq!(refused(99, &[]), "a frame of kind 99, which no script sends");
        assert!(refused(1, b"{").starts_with("HELLO: "));
        assert_eq!(refused(14, b"x"), "LEAVE of 1 bytes; it has 0");
    }

    #[test]
    fn accounts_are_read_as_they_are_described() {
        let words: Vec<u8> = (1..=8_u64)
            .flat_map(u64::to_le_bytes)
            .chain(0.5_f64.to_le_bytes())
            .chain(9_u64.to_le_bytes())
            .collect();
        let ScriptMessage::Done(account) = ScriptMessage::read(6, &words, 2, false).unwrap() else {
            panic!()
        };
        assert_eq!((account.step, account.data_ns, account.cpu_ns, account.samples), (1, 2, 7, 8));
        assert_eq!((account.loss, account.evaluated_ns, account.rate), (0.5, 9, 1.0));
        let rated =
            [&words[..], &2.0_f64.to_le_bytes(), &7_u32.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
        let ScriptMessage::Done(account) = ScriptMessage::read(6, &rated, 2, true).unwrap() else { panic!() };
        assert_eq!((account.rate, account.ready_us), (2.0, vec![7, u32::MAX]));
    }
}
