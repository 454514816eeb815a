//! Who may connect: a state machine without sockets or clocks.
//!
//! 1. The dialler says its [`Hello`]; the acceptor answers with its own.
//! 2. The dialler proves that it holds the key, over both hellos.
//! 3. The acceptor does the same, under another label, so that nobody can be answered with his own proof.
//!
//! Instead of a proof either may say why it refuses. An end reads at most [`HELLO`] + [`VERDICT`] bytes
//! before the other has proved itself.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::hello::{HELLO, Hello, MAGIC};
use crate::identity::{Identity, Key};

/// Bytes of a proof or a refusal: kind, length, content, padding.
pub const VERDICT: usize = 128;

const PROOF: u8 = 1;
const REFUSAL: u8 = 2;
const PROOF_LENGTH: usize = 32;
const TEXT: usize = VERDICT - 2;

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that opened the connection.
    Dialler,
    /// The end that listens.
    Acceptor,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Acceptor,
            Self::Acceptor => Self::Dialler,
        }
    }

    fn label(self) -> &'static [u8] {
        match self {
            Self::Dialler => b"paceline wire 1: dialler\0",
            Self::Acceptor => b"paceline wire 1: acceptor\0",
        }
    }
}

#[derive(Clone, Debug)]
enum Stage {
    Hello,
    Verdict,
    Proven,
    Refused { cause: String },
}

/// How a handshake stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeState {
    /// More bytes are needed.
    Pending,
    /// The other end holds the key and belongs to the run; an acceptor has yet to admit or refuse it.
    Proven,
    /// It is over. The cause names both sides' values.
    Refused {
        /// Why.
        cause: String,
    },
}

/// One end of one handshake.
pub struct Handshake {
    side: Side,
    key: Key,
    ours: Hello,
    theirs: Option<Hello>,
    /// What the other end's role is measured by.
    workers: usize,
    /// A dialler knows whom it dialled.
    dialled: Option<u32>,
    input: Vec<u8>,
    output: Vec<u8>,
    stage: Stage,
}

impl Handshake {
    /// The end that dials `rank`.
    pub fn dial(identity: &Identity, nonce: [u8; 32], rank: usize) -> Self {
        let mut this = Self::new(Side::Dialler, identity, nonce);
        this.dialled = Some(u32::try_from(rank).unwrap_or(u32::MAX));
        this.output.extend(this.ours.encode());
        this
    }

    /// The end that listens.
    pub fn accept(identity: &Identity, nonce: [u8; 32]) -> Self {
        Self::new(Side::Acceptor, identity, nonce)
    }

    fn new(side: Side, identity: &Identity, nonce: [u8; 32]) -> Self {
        Self {
            side,
            key: identity.key.clone(),
            ours: Hello::new(identity, nonce),
            theirs: None,
            workers: identity.workers,
            dialled: None,
            input: Vec::with_capacity(HELLO.max(VERDICT)),
            output: Vec::with_capacity(HELLO + VERDICT),
            stage: Stage::Hello,
        }
    }

    /// How many bytes to read next, at most; what follows them is not the handshake's.
    pub fn wants(&self) -> usize {
        match self.stage {
            Stage::Hello => HELLO - self.input.len(),
            Stage::Verdict => VERDICT - self.input.len(),
            Stage::Proven | Stage::Refused { .. } => 0,
        }
    }

    /// Takes bytes, at most as many as wanted.
    pub fn receive(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.wants());
        self.input.extend_from_slice(&bytes[..bytes.len().min(self.wants())]);
        match self.stage {
            Stage::Hello => self.receive_hello(),
            Stage::Verdict if self.input.len() == VERDICT => self.receive_verdict(),
            _ => {}
        }
    }

    /// Bytes to write; the caller removes what it has written.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether there are bytes to write.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// How it stands.
    pub fn standing(&self) -> HandshakeState {
        match &self.stage {
            Stage::Hello | Stage::Verdict => HandshakeState::Pending,
            Stage::Proven => HandshakeState::Proven,
            Stage::Refused { cause } => HandshakeState::Refused { cause: cause.clone() },
        }
    }

    /// The other end's hello, once it is there.
    pub fn theirs(&self) -> Option<&Hello> {
        self.theirs.as_ref()
    }

    /// An acceptor's answer to a proof: its own.
    pub fn admit(&mut self) {
        self.say(PROOF, &self.mac(self.side).finalize().into_bytes());
    }

    /// Ends the handshake and tells the other end why.
    pub fn refuse(&mut self, what: &str) {
        self.say(REFUSAL, what.as_bytes());
        self.end(what);
    }

    fn receive_hello(&mut self) {
        let start = self.input.len().min(MAGIC.len());
        if self.input[..start] != MAGIC[..start] {
            // Whoever does not speak this protocol gets no answer.
            let found =
                format!("expected a hello, found {:?}", self.input[..start].escape_ascii().to_string());
            return self.end(&found);
        }
        let Ok(bytes) = <&[u8; HELLO]>::try_from(&self.input[..]) else { return };
        let theirs = Hello::decode(bytes);
        self.theirs = Some(theirs);
        self.input.clear();
        self.stage = Stage::Verdict;
        if self.side == Side::Acceptor {
            self.output.extend(self.ours.encode());
        }
        if let Some(what) = self.misfit(&theirs) {
            self.refuse(&what);
        } else if self.side == Side::Dialler {
            self.say(PROOF, &self.mac(self.side).finalize().into_bytes());
        }
    }

    /// Why the other end cannot be who it should be, whether or not it holds the key.
    fn misfit(&self, theirs: &Hello) -> Option<String> {
        let conflict = self.ours.conflict(theirs).map(str::to_owned);
        let other = self.dialled.filter(|rank| *rank != theirs.rank);
        conflict
            .or_else(|| other.map(|rank| format!("dialled rank {rank}, found rank {}", theirs.rank)))
            .or_else(|| theirs.misplaced(self.workers))
    }

    fn receive_verdict(&mut self) {
        let (kind, length) = (self.input[0], self.input[1] as usize);
        if kind == REFUSAL {
            let said = String::from_utf8_lossy(&self.input[2..2 + length.min(TEXT)]).into_owned();
            let said: String = said.chars().filter(|c| !c.is_control()).collect();
            return self.end(&said);
        }
        let proof = &self.input[2..2 + PROOF_LENGTH];
        let proven = kind == PROOF && length == PROOF_LENGTH;
        // Compared in constant time.
        if proven && self.mac(self.side.other()).verify_slice(proof).is_ok() {
            self.stage = Stage::Proven;
        } else {
            self.refuse("wrong key");
        }
    }

    fn mac(&self, side: Side) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()).expect("any length of key will do");
        let (ours, theirs) =
            (self.ours.encode(), self.theirs.map(|hello| hello.encode()).unwrap_or([0; HELLO]));
        let (dialler, acceptor) = if self.side == Side::Dialler { (ours, theirs) } else { (theirs, ours) };
        mac.update(side.label());
        mac.update(&dialler);
        mac.update(&acceptor);
        mac
    }

    fn say(&mut self, kind: u8, content: &[u8]) {
        let length = content.len().min(TEXT);
        let mut verdict = [0; VERDICT];
        verdict[0] = kind;
        verdict[1] = length as u8;
        verdict[2..2 + length].copy_from_slice(&content[..length]);
        self.output.extend(verdict);
    }

    fn end(&mut self, what: &str) {
        let theirs = self.theirs.map_or("no hello".to_owned(), |hello| hello.to_string());
        self.stage = Stage::Refused { cause: format!("{what} (theirs: {theirs}; ours: {})", self.ours) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(rank: usize, key: u8) -> Identity {
        let key = Key::from([key; 32]);
        Identity { run: "r".into(), rank, workers: 3, world: 3, model_hash: [1; 32], key }
    }

    /// Carries bytes between two ends, a few at a time, until both are silent.
    fn exchange(a: &mut Handshake, b: &mut Handshake) {
        loop {
            let before = (a.output.len(), b.output.len());
            for swap in [false, true] {
                let (from, to) = if swap { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
                let n = to.wants().min(from.output.len()).min(7);
                let bytes: Vec<u8> = from.output.drain(..n).collect();
                to.receive(&bytes);
            }
            if before == (a.output.len(), b.output.len()) {
                return;
            }
        }
    }

    /// Both ends after all that they say by themselves: `dialler` has dialled the rank `dialled`.
    fn met(dialler: &Identity, dialled: usize, acceptor: &Identity) -> [Handshake; 2] {
        let mut dialler = Handshake::dial(dialler, [1; 32], dialled);
        let mut acceptor = Handshake::accept(acceptor, [2; 32]);
        exchange(&mut dialler, &mut acceptor);
        [dialler, acceptor]
    }

    fn cause(end: &Handshake) -> String {
        let HandshakeState::Refused { cause } = end.standing() else { panic!("{:?}", end.standing()) };
        cause
    }

    #[test]
    fn two_ends_with_one_key_prove_themselves() {
        let [mut dialler, mut acceptor] = met(&identity(1, 7), 0, &identity(0, 7));
        assert_eq!(
            (dialler.standing(), acceptor.standing()),
            (HandshakeState::Pending, HandshakeState::Proven)
        );
        acceptor.admit();
        exchange(&mut dialler, &mut acceptor);
        assert_eq!(dialler.standing(), HandshakeState::Proven);
        assert_eq!(acceptor.theirs().unwrap().rank, 1);
    }

    #[test]
    fn both_ends_learn_both_sides_values() {
        let [dialler, acceptor] = met(&identity(1, 7), 0, &identity(0, 8));
        let (a, b) = (identity(0, 0), identity(1, 0));
        let (a, b) = (Hello::new(&a, [0; 32]), Hello::new(&b, [0; 32]));
        assert_eq!(cause(&acceptor), format!("wrong key (theirs: {b}; ours: {a})"));
        assert_eq!(cause(&dialler), format!("wrong key (theirs: {a}; ours: {b})"));

        for end in &met(&identity(1, 7), 2, &identity(0, 7)) {
            assert!(cause(end).starts_with("dialled rank 2, found rank 0 (theirs"));
        }
    }

    #[test]
    fn a_dialler_too_refuses_a_role_that_does_not_fit_the_rank() {
        let with = |workers, rank| Identity { workers, ..identity(rank, 7) };
        // Both take rank 2 for a server; of rank 1 they think differently.
        for end in &met(&with(2, 2), 1, &with(1, 1)) {
            assert!(
                cause(end).starts_with(r#"expected rank 1 to be a worker, found role "server" (theirs"#),
                "{}",
                cause(end)
            );
        }
    }

    #[test]
    fn a_proof_is_worth_nothing_to_another_end_or_a_second_time() {
        let mut dialler = Handshake::dial(&identity(1, 7), [1; 32], 0);
        let mut acceptor = Handshake::accept(&identity(0, 7), [2; 32]);
        let hello = dialler.output.clone();
        dialler.output.clear();
        acceptor.receive(&hello);
        let answer = std::mem::take(&mut acceptor.output);
        dialler.receive(&answer);
        let proof = std::mem::take(&mut dialler.output);
        acceptor.receive(&proof);
        assert_eq!(acceptor.standing(), HandshakeState::Proven);

        let mut later = Handshake::accept(&identity(0, 7), [3; 32]);
        later.receive(&hello);
        later.receive(&proof);
        assert!(cause(&later).starts_with("wrong key"), "replayed");

        dialler.receive(&proof);
        assert!(cause(&dialler).starts_with("wrong key"), "reflected");
    }

    #[test]
    fn whoever_speaks_something_else_is_refused_at_once_without_an_answer() {
        let mut acceptor = Handshake::accept(&identity(0, 7), [2; 32]);
        acceptor.receive(b"GET");
        assert!(
            cause(&acceptor).starts_with(r#"expected a hello, found "GET" (theirs: no hello; ours: wire"#)
        );
        assert!(acceptor.output.is_empty());
    }

    proptest! {
        #[test]
        fn random_bytes_neither_panic_nor_prove_anything(
            bytes in prop::collection::vec(any::<u8>(), HELLO + VERDICT), magic: bool, cut in 1usize..64,
        ) {
            let mut bytes = bytes;
            let mut acceptor = Handshake::accept(&identity(0, 7), [2; 32]);
            if magic {
                bytes[..100].copy_from_slice(&Hello::new(&identity(1, 7), [0; 32]).encode()[..100]);
            }
            let mut rest = &bytes[..];
            while acceptor.wants() > 0 && !rest.is_empty() {
                let n = acceptor.wants().min(rest.len()).min(cut);
                acceptor.receive(&rest[..n]);
                rest = &rest[n..];
            }
            prop_assert_ne!(acceptor.standing(), HandshakeState::Proven);
        }
    }
}
