//! The ranks of a run as threads of this process: one worker alone, and transports that stay inside a process.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use paceline_attach::ScriptListener;
use paceline_record::{Batch, Recording};
use paceline_wire::Transport;

use crate::control::{RankCommand, RankEvent, ScriptCommon};
use crate::emulated::EmulatedNetwork;
use crate::pauses::unpack;
use crate::processes::ProcessEvent;
use crate::rank::{self, RankContext, RankControl, RankMailbox, RankStart, ScriptKnown};
use crate::ranks::Incoming;
use crate::recorder::RankRecorder;
use crate::run::Launch;
use crate::scripts;

/// What a thread waits for before it begins: its control, where the emulated hosts' interfaces are, if there are some, and
/// what is known of the run's scripts.
type Start = (RankControl, Option<String>, Option<ScriptKnown>);

/// The launcher's end of one thread.
struct RankThread {
    start: Option<Sender<Start>>,
    /// There once it has begun.
    mailbox: Option<RankMailbox>,
}

/// Threads, one per rank. Dropping them lets each end before its next step.
pub(crate) struct RankThreads {
    threads: Vec<RankThread>,
    events: Sender<Incoming>,
}

impl RankThreads {
    /// Starts a thread for each end of a transport.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        launch: &'scope Launch<'scope>,
        transports: Vec<Box<dyn Transport>>,
        events: Sender<Incoming>,
    ) -> Self {
        let spawn = |(rank, transport): (usize, Box<dyn Transport>)| {
            let (start, started) = channel();
            let events = ThreadEvents { rank, events: events.clone() };
            scope.spawn(move || {
                events.say(RankEvent::Bound { address: "this process".into() }, &[]);
                if let Err(failure) = run(launch, &events, transport, &started) {
                    events.say(failure, &[]);
                }
            });
            RankThread { start: Some(start), mailbox: None }
        };
        let threads = transports.into_iter().enumerate().map(spawn).collect();
        Self { threads, events }
    }

    /// Gives a rank a command.
    pub(crate) fn tell(&mut self, rank: usize, command: RankCommand, numbers: &[f32]) {
        let thread = &mut self.threads[rank];
        if let RankCommand::Peers { interfaces, segment, restored, script, .. } = command {
            let split = script
                .as_ref()
                .map_or(numbers.len(), |script| numbers.len().saturating_sub(script.layout.params));
            let (numbers, params) = numbers.split_at(split);
            let script = script.map(|ScriptCommon { layout, optimizer }| ScriptKnown {
                layout,
                optimizer,
                params: params.to_vec(),
            });
            let restored = restored.and_then(|packed| unpack(packed, numbers));
            let (control, mailbox) = RankControl::new(segment, restored);
            thread.mailbox = Some(mailbox);
            // A thread that has ended already has said why.
            let _ =
                thread.start.take().is_some_and(|start| start.send((control, interfaces, script)).is_ok());
        } else if let Some(answer) = thread.mailbox.as_ref().and_then(|mailbox| mailbox.deliver(command)) {
            // Whoever gives commands listens.
            let _ = self.events.send(Incoming::Here(ProcessEvent::Rank(rank, answer, Vec::new())));
        }
    }
}

impl Drop for RankThreads {
    fn drop(&mut self) {
        self.threads.iter().filter_map(|thread| thread.mailbox.as_ref()).for_each(RankMailbox::abandon);
    }
}

/// What a thread's rank tells the launcher; dropping it tells that the rank has ended.
struct ThreadEvents {
    rank: usize,
    events: Sender<Incoming>,
}

impl ThreadEvents {
    fn say(&self, said: RankEvent, numbers: &[f32]) {
        // After a failure nobody listens any more.
        let _ = self.events.send(Incoming::Here(ProcessEvent::Rank(self.rank, said, numbers.to_vec())));
    }
}

impl Drop for ThreadEvents {
    fn drop(&mut self) {
        for end in [ProcessEvent::Closed(self.rank), ProcessEvent::Exited(self.rank)] {
            let _ = self.events.send(Incoming::Here(end));
        }
    }
}

fn run(
    launch: &Launch<'_>,
    events: &ThreadEvents,
    transport: Box<dyn Transport>,
    started: &Receiver<Start>,
) -> Result<(), RankEvent> {
    let (plan, rank) = (launch.plan, events.rank);
    let mut context = RankContext::new(plan, launch.dataset, rank).map_err(|error| rank::failed(&error))?;
    let mut start = RankStart::default();
    if plan.script.is_some() && rank < plan.workers {
        let told = events.events.clone();
        let listener: ScriptListener = Arc::new(move |event| {
            let said = ProcessEvent::Rank(rank, scripts::event(event), Vec::new());
            // After a failure nobody listens any more.
            let _ = told.send(Incoming::Here(said));
        });
        let (recorded, conditions) = (launch.recording.is_some(), launch.conditions);
        let say = &mut |said, numbers: &[f32]| events.say(said, numbers);
        start.source = Some(scripts::attach(plan, rank, recorded, conditions, listener, say)?);
    }
    // A launcher that has given the run up starts nobody.
    let Ok((control, interfaces, script)) = started.recv() else { return Ok(()) };
    if let Some(ScriptKnown { layout, optimizer, params }) = script {
        start.params = params;
        context = RankContext::of_script(plan, layout, optimizer, rank);
    }
    let options = rank::options(context.setup.world() * plan.threads, None);
    let transport = rank::emulate(transport, EmulatedNetwork::of(plan), interfaces, options)?;
    // Of several ranks in one process, one tells of it.
    let (first, devices) = (rank == 0, rank == 0 && plan.script.is_some());
    let recording = launch.recording.map(|r| Recording { process: first, host: first, devices, ..r });
    let shipped = events.events.clone();
    let ship = move |batch: &Batch, _| {
        let said = RankEvent::Recorded(Box::new(batch.clone()));
        shipped.send(Incoming::Here(ProcessEvent::Rank(rank, said, batch.numbers()))).is_ok()
    };
    let recorder = RankRecorder::open(recording, &launch.registries.metrics, || Box::new(ship));
    context.play(transport, start, control, &recorder, &mut |said, numbers| events.say(said, numbers));
    Ok(())
}
