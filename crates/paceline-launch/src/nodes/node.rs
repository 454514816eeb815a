//! What a node of a study does: makes the runs that it is given, and passes on what they say and leave.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use paceline_record::Store;
use paceline_record::store::FILE;
use paceline_wire::line::{Line, LineEvent};
use serde::Serialize;
use serde_json::{Value, json};

use super::{NodeCommand, NodeEvent, PART, TREE, WorkOrder, pack};
use crate::agent::{AgentInput, Join};
use crate::error::LaunchError;
use crate::joining::{self, RunEnd};
use crate::trial::{self, Trial, TrialEvent, TrialPlace};

/// How often the run under way is listened to, and a request to end looked for.
const LOOK: Duration = Duration::from_millis(20);

/// A node under way.
pub(crate) struct Node<'a> {
    pub line: &'a Line,
    pub join: &'a Join,
    /// Its number.
    pub number: usize,
    /// The leader, in words.
    pub leader: &'a str,
}

/// A run under way. Dropping it ends it and removes what it has left.
struct Work {
    work: u64,
    trial: Trial,
    scratch: Scratch,
}

/// A folder that goes with its run.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left of it says nothing that anybody would read.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Node<'_> {
    /// Makes runs until the study is over: how it ended, and how many were made here.
    pub fn serve(
        &self,
        (folder, needed): (&Path, bool),
        heard: &Receiver<AgentInput>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(RunEnd, u64), LaunchError> {
        self.join.interrupt.arm();
        if let Err(source) = std::env::set_current_dir(folder)
            && needed
        {
            let what = format!("{}, where the study is led from", folder.display());
            return Err(self.leave(LaunchError::System { what, source }));
        }
        let machine = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        self.say(&NodeEvent::Ready { machine: machine.trim().into(), cores: trial::cores() }, &[]);
        let (mut under_way, mut made): (Option<Work>, u64) = (None, 0);
        loop {
            if self.join.interrupt.requested() {
                drop(under_way);
                let cause = self.join.interrupt.cause().unwrap_or("a signal asked it to").to_owned();
                return Err(self.leave(LaunchError::NodeEnded { node: self.number, cause }));
            }
            match heard.recv_timeout(LOOK) {
                Ok(AgentInput::Launcher(LineEvent::Document(document))) => {
                    let (said, _) = joining::decode(&document).map_err(|cause| self.lost(cause))?;
                    match said {
                        NodeCommand::Work(order) => {
                            tell(&format!("makes run {} of this node", order.work));
                            under_way = Some(self.begin(order).map_err(|error| self.leave(error))?);
                        }
                        NodeCommand::Abort { work } => {
                            under_way
                                .iter_mut()
                                .filter(|one| one.work == work)
                                .for_each(|one| one.trial.kill());
                        }
                        NodeCommand::End(over) => return Ok((over, made)),
                    }
                }
                Ok(AgentInput::Launcher(LineEvent::Lost { cause })) => return Err(self.lost(cause)),
                Ok(AgentInput::Launcher(LineEvent::Quiet)) => {
                    tell(&format!("nothing heard from the leader {} for 2 s", self.leader));
                }
                Ok(AgentInput::Launcher(LineEvent::Back)) => tell("the leader is there again"),
                Ok(AgentInput::Rank(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.lost("this end stopped listening".into()));
                }
            }
            if let Some(one) = &mut under_way
                && self.pass_on(one)
            {
                (under_way, made) = (None, made + 1);
            }
        }
    }

    fn say(&self, event: &impl Serialize, bytes: &[u8]) {
        self.line.say(joining::encode(event, &pack(bytes)));
    }

    /// Tells the leader why this node ends.
    fn leave(&self, error: LaunchError) -> LaunchError {
        self.say(&NodeEvent::Leaving { cause: error.to_string() }, &[]);
        error
    }

    fn lost(&self, cause: String) -> LaunchError {
        let ranks = "a node of its study".into();
        LaunchError::LauncherLost { launcher: self.leader.to_owned(), host: self.number, ranks, cause }
    }

    fn begin(&self, order: WorkOrder) -> Result<Work, LaunchError> {
        let WorkOrder { work, mut words, document, cores, tree } = order;
        let path = std::env::temp_dir().join(format!("paceline-node-{}-{work}", std::process::id()));
        let failed = |source| LaunchError::System { what: format!("{}", path.display()), source };
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let scratch = Scratch(path.clone());
        let program = &self.join.program.0;
        if words.is_empty() {
            words = vec![program.to_string_lossy().into_owned(), "trial".into()];
        }
        let text = match document {
            Value::Null => String::new(),
            document => self.completed(document, &path).to_string(),
        };
        let tree = tree.then(|| path.join(TREE));
        let place =
            TrialPlace { cores: &cores, tree: tree.as_deref(), scratch: Some(&path), unnumbered: true };
        let trial = Trial::start(program, "keeper", place, &words, &text).map_err(failed)?;
        Ok(Work { work, trial, scratch })
    }

    /// The document of a run with what only this node knows: where its record goes, where datasets lie here as well, and
    /// its number, so that ids of runs differ between machines.
    fn completed(&self, mut document: Value, scratch: &Path) -> Value {
        if let Some(store) = document.pointer_mut("/task/train/store") {
            *store = json!(scratch);
        }
        if let Some(Value::Array(folders)) = document.get_mut("folders") {
            let own = self.join.folders.0.iter().map(|folder| json!(folder));
            let new: Vec<Value> = own.filter(|folder| !folders.contains(folder)).collect();
            folders.extend(new);
        }
        document["node"] = json!(self.number);
        document
    }

    /// Passes on what a run has said; true when it has ended and everything was sent.
    fn pass_on(&self, one: &mut Work) -> bool {
        let work = one.work;
        let mut text = String::new();
        let send = |text: &mut String| {
            let parts = text.as_bytes().chunks(PART);
            parts.for_each(|part| self.say(&NodeEvent::Output { work, bytes: part.len() }, part));
            text.clear();
        };
        loop {
            match one.trial.hear(Duration::ZERO) {
                Some(TrialEvent::Line(line)) => {
                    text += &line;
                    text.push('\n');
                    if text.len() > PART {
                        send(&mut text);
                    }
                }
                Some(TrialEvent::Ended(mut ended)) => {
                    send(&mut text);
                    if let Err(error) = self.ship(work, &one.scratch.0) {
                        ended.not_recorded(&error);
                    }
                    self.say(&NodeEvent::Ended { work, ended: Box::new(ended) }, &[]);
                    return true;
                }
                None => {
                    send(&mut text);
                    return false;
                }
            }
        }
    }

    /// Sends the files of a run.
    fn ship(&self, work: u64, scratch: &Path) -> io::Result<()> {
        if scratch.join(FILE).is_file() {
            // One that was killed is noted as lost, where its process can be looked for.
            Store::open(scratch).and_then(Store::fold).map_err(io::Error::other)?;
        }
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(scratch.join(&folder))? {
                let entry = entry?;
                let name = folder.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    folders.push(name);
                } else if entry.file_type()?.is_file() {
                    self.ship_file(work, &scratch.join(&name), &name.to_string_lossy())?;
                }
            }
        }
        Ok(())
    }

    fn ship_file(&self, work: u64, path: &Path, name: &str) -> io::Result<()> {
        let mut file = File::open(path)?;
        // An empty file is one part.
        for part in 0.. {
            let mut bytes = Vec::new();
            file.by_ref().take(PART as u64).read_to_end(&mut bytes)?;
            if bytes.is_empty() && part > 0 {
                break;
            }
            self.say(&NodeEvent::File { work, name: name.to_owned(), bytes: bytes.len() }, &bytes);
        }
        Ok(())
    }
}
