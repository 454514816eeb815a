//! Causes that were planted are named: runs of a parameter server in a small model of ranks and links, each cause in
//! twenty sizes.

use paceline_analyze::{
    Cause, Explanation, Message, RecordedLink, RecordedPause, RecordedRank, RecordedRun, RecordedStep,
    RecordedWait, RunComparison, WhatIf,
};
use paceline_plan::{Plan, Script};
use paceline_random::{Purpose, Stream};
use paceline_record::{GpuUse, ScriptRecord, ScriptStaging};

/// A synchronous run with one server.
#[derive(Clone)]
struct Model {
    /// Computing per step, by worker.
    compute: Vec<f64>,
    /// Messages per push, and as many back.
    messages: usize,
    bytes: f64,
    bytes_per_s: f64,
    latency: f64,
    /// What a worker and the server spend per message.
    handling: f64,
    serving: f64,
    jitter: Stream,
}

impl Model {
    fn usual(seed: u64) -> Self {
        let jitter = Stream::new(seed, Purpose::Bench);
        let base = 0.02 * (1.0 + jitter.unit(1));
        Self {
            compute: vec![base; 2 + (seed % 3) as usize],
            messages: 3 + (seed % 4) as usize,
            bytes: 200e3 * (1.0 + jitter.unit(2)),
            bytes_per_s: 2e9,
            latency: 20e-6,
            handling: 15e-6,
            serving: 20e-6,
            jitter: jitter.fork(9),
        }
    }

    fn run(&self, steps: u64) -> RecordedRun {
        let (p, server) = (self.compute.len(), self.compute.len());
        let mut recorded = RecordedRun { run: "r1".into(), ..RecordedRun::default() };
        for rank in 0..=p {
            recorded.ranks.push(RecordedRank {
                worker: rank < p,
                host: format!("h{rank}"),
                ..RecordedRank::default()
            });
        }
        let (mut begin, mut free, mut draws) = (vec![0.0f64; p], 0.0f64, 0);
        let mut waited = vec![vec![0.0; p + 1]; p + 1];
        for step in 1..=steps {
            let mut noise = || {
                draws += 1;
                1.0 + 0.05 * self.jitter.normal(draws).clamp(-2.0, 2.0)
            };
            let computes: Vec<f64> = self.compute.iter().map(|c| c * noise()).collect();
            // Pushes, through the server's one interface in the order in which they are sent.
            let mut pushes: Vec<(f64, usize, usize)> = Vec::new();
            for w in 0..p {
                for m in 0..self.messages {
                    pushes.push((begin[w] + computes[w] + self.handling * (m + 1) as f64, w, m));
                }
            }
            pushes.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (mut interface, mut left) = (0.0f64, vec![p; self.messages]);
            let (step_begin, mut served, mut idle) = (free, 0.0, 0.0);
            let mut answers: Vec<Vec<f64>> = vec![Vec::new(); p];
            for (sent, w, m) in pushes {
                interface = interface.max(sent + self.latency) + self.bytes / self.bytes_per_s;
                if interface > free {
                    recorded.pauses.push(RecordedPause { rank: server, from_s: free, to_s: interface });
                    waited[server][w] += interface - free;
                    idle += interface - free;
                    free = interface;
                }
                let (from, to) = (w, server);
                recorded.messages.push(Message {
                    from,
                    to,
                    sent_s: sent,
                    received_s: free,
                    bytes: self.bytes,
                    step,
                    bucket: m as u64,
                });
                free += self.serving;
                served += self.serving;
                left[m] -= 1;
                if left[m] == 0 {
                    for answers in &mut answers {
                        free += self.serving / 4.0;
                        served += self.serving / 4.0;
                        answers.push(free);
                    }
                }
            }
            let server_step = RecordedStep {
                rank: server,
                step,
                begin_s: step_begin,
                send_s: served,
                wait_s: idle,
                ..RecordedStep::default()
            };
            recorded.steps.push(server_step);
            for w in 0..p {
                let pushed = begin[w] + computes[w] + self.handling * self.messages as f64;
                let (mut now, mut interface, mut idle) = (pushed, 0.0f64, 0.0);
                for (m, sent) in answers[w].iter().enumerate() {
                    interface = interface.max(sent + self.latency) + self.bytes / self.bytes_per_s;
                    if interface > now {
                        recorded.pauses.push(RecordedPause { rank: w, from_s: now, to_s: interface });
                        idle += interface - now;
                        now = interface;
                    }
                    let (from, to) = (server, w);
                    recorded.messages.push(Message {
                        from,
                        to,
                        sent_s: *sent,
                        received_s: now,
                        bytes: self.bytes,
                        step,
                        bucket: m as u64,
                    });
                    now += self.handling;
                }
                waited[w][server] += idle;
                recorded.steps.push(RecordedStep {
                    rank: w,
                    step,
                    begin_s: begin[w],
                    compute_s: computes[w],
                    send_s: now - begin[w] - computes[w] - idle,
                    wait_s: idle,
                    samples: 64,
                    ..RecordedStep::default()
                });
                begin[w] = now;
            }
        }
        for (rank, on) in (0..=p).flat_map(|r| (0..=p).map(move |on| (r, on))) {
            recorded.waits.push(RecordedWait { rank, on, seconds: waited[rank][on] });
        }
        for (rank, peer) in (0..p).flat_map(|w| [(w, server), (server, w)]) {
            let sent_messages = (steps * self.messages as u64) as f64;
            recorded.links.push(RecordedLink {
                rank,
                peer,
                sent_messages,
                sent_bytes: sent_messages * self.bytes,
                received_bytes: sent_messages * self.bytes,
                greeting_s: Some(2.0 * self.latency + 4.0 * self.handling),
            });
        }
        recorded
    }
}

type Plant = fn(&mut Model, f64);

/// The causes, and how large they are planted: `part` goes from 0 to 1.
const PLANTED: [(Cause, Plant); 6] = [
    (Cause::Compute, |model, part| model.compute.iter_mut().for_each(|c| *c *= 1.0 + part)),
    (Cause::Straggler, |model, part| model.compute[1] *= 1.8 + 3.0 * part),
    (Cause::Server, |model, part| {
        model.serving = (1.0 + 2.0 * part) * model.compute[0] / model.messages as f64
    }),
    (Cause::Bandwidth, |model, part| {
        model.bytes_per_s = model.bytes * model.messages as f64 / ((1.0 + 3.0 * part) * model.compute[0]);
    }),
    (Cause::Latency, |model, part| model.latency = (1.0 + 2.0 * part) * model.compute[0]),
    (Cause::SmallMessages, |model, part| {
        model.messages = 250 + (500.0 * part) as usize;
        model.bytes = 2e3 + 4e3 * part;
        model.handling = 40e-6;
        model.serving = 40e-6;
    }),
];

#[test]
fn planted_causes_are_named_from_events_alone() {
    for (cause, plant) in PLANTED {
        let mut wrong = Vec::new();
        for seed in 0..20 {
            let mut model = Model::usual(seed);
            plant(&mut model, seed as f64 / 19.0);
            let said = Explanation::new(&model.run(60)).unwrap();
            if said.verdict.cause != cause {
                wrong.push(format!("seed {seed}: {:?}, {:?}", said.verdict, said.path));
            }
        }
        assert!(wrong.len() <= 1, "{cause:?}: {} of 20 wrong\n{}", wrong.len(), wrong.join("\n"));
    }
}

#[test]
fn a_straggler_is_named_with_its_rank_and_what_would_help() {
    let mut model = Model::usual(4);
    model.compute[1] *= 3.0;
    let said = Explanation::new(&model.run(40)).unwrap();
    assert_eq!((said.verdict.cause, said.verdict.rank), (Cause::Straggler, Some(1)));
    assert!(said.verdict.sentence.contains("Worker 1 on `h1` is a straggler"), "{}", said.verdict.sentence);
    assert!(said.verdict.changes[0].what.contains("rank 1") && said.verdict.changes[0].gain > 0.4);
    assert!(said.text().contains("What would help"), "{}", said.text());
    // The others wait for the server, and the server for the straggler.
    assert_eq!(said.ranks[said.ranks.len() - 1].waits_for.unwrap().0, 1);
}

#[test]
fn without_messages_causes_are_named_too_and_it_says_that_this_is_an_estimate() {
    for (cause, plant) in PLANTED {
        let mut model = Model::usual(4);
        plant(&mut model, 0.7);
        let mut recorded = model.run(60);
        recorded.messages.clear();
        recorded.pauses.clear();
        let said = Explanation::new(&recorded).unwrap();
        assert_eq!(said.verdict.cause, cause, "{:?} {:?} {:?}", said.verdict, said.wires, said.ranks);
        assert!(said.cannot_tell[0].contains("--trace"), "{:?}", said.cannot_tell);
    }
    let mut recorded = Model::usual(4).run(40);
    recorded.steps.retain(|s| s.rank != 0);
    assert!(Explanation::new(&recorded).unwrap_err().to_string().contains("no recorded step"));
}

#[test]
fn what_is_planted_in_nothing_is_blamed_on_nothing() {
    for seed in 0..20 {
        let said = Explanation::new(&Model::usual(seed).run(60)).unwrap();
        assert_eq!(said.verdict.cause, Cause::Compute, "seed {seed}: {:?}, {:?}", said.verdict, said.path);
    }
}

#[test]
fn a_straggler_that_moves_is_one_without_a_rank() {
    let mut model = Model::usual(5);
    model.compute = vec![0.02; 4];
    let mut recorded = model.run(40);
    let slow = |step: u64| (step % 4) as usize;
    for step in &mut recorded.steps {
        match (step.rank == slow(step.step), step.rank < 4) {
            (true, true) => step.compute_s *= 3.0,
            (false, true) => step.wait_s += 0.04,
            _ => {}
        }
    }
    let said = Explanation::new(&recorded).unwrap();
    assert_eq!((said.verdict.cause, said.verdict.rank), (Cause::Straggler, None), "{:?}", said.verdict);
}

#[test]
fn gains_are_those_of_whoever_simulates_and_the_greatest_comes_first() {
    let mut model = Model::usual(3);
    model.compute = vec![0.01; 2];
    model.latency = 0.03;
    let mut said = Explanation::new(&model.run(40)).unwrap();
    said.predict(&|what_if| match what_if {
        WhatIf::Latency => Some(0.2),
        WhatIf::Local => Some(0.1),
        WhatIf::OneWorker => Some(0.5),
        WhatIf::FewerHops => Some(1.3),
        _ => None,
    });
    let first: Vec<_> = said.verdict.changes.iter().take(2).map(|c| (c.if_, c.predicted)).collect();
    assert_eq!(first, [(WhatIf::Local, true), (WhatIf::Latency, true)], "{:?}", said.verdict.changes);
    assert!(said.verdict.changes.iter().all(|c| c.if_ != WhatIf::FewerHops), "what slows down is no help");
    let alone = said.alone.as_ref().unwrap();
    assert!(alone.sentence.contains("2 workers are 2 times slower than one would be"), "{}", alone.sentence);
    assert!(said.text().contains("predicted by simulation"), "{}", said.text());
}

#[test]
fn two_workers_that_are_slower_than_one_get_a_direct_answer() {
    let mut model = Model::usual(3);
    model.compute = vec![0.01; 2];
    model.latency = 0.03;
    let two = Explanation::new(&model.run(40)).unwrap();
    let alone = RecordedRun {
        run: "r0".into(),
        ranks: vec![RecordedRank { worker: true, host: "h0".into(), ..RecordedRank::default() }],
        steps: (1..=40)
            .map(|step| RecordedStep {
                step,
                begin_s: 0.01 * step as f64,
                compute_s: 0.01,
                samples: 64,
                ..RecordedStep::default()
            })
            .collect(),
        ..RecordedRun::default()
    };
    let one = Explanation::new(&alone).unwrap();
    assert_eq!(one.verdict.cause, Cause::Compute);
    let said = RunComparison::new(&two, &one);
    assert!(said.speed < 1.0, "{said:?}");
    for part in ["times slower than", "waiting", "2 workers", "Messages are long under way"] {
        assert!(said.sentence.contains(part), "{part}: {}", said.sentence);
    }
}

/// Runs whose workers are held up in their own work: each cause in twenty sizes, `part` from 0 to 1.
type OwnPlant = fn(&mut RecordedRun, f64);

fn workers_of(run: &mut RecordedRun) -> impl Iterator<Item = &mut RecordedStep> {
    let workers: Vec<bool> = run.ranks.iter().map(|rank| rank.worker).collect();
    run.steps.iter_mut().filter(move |step| workers[step.rank])
}

const OWN_WORK: [(Cause, OwnPlant); 5] = [
    (Cause::SharedCores, |run, part| {
        run.ranks.iter_mut().for_each(|rank| (rank.host, rank.cores) = ("h".into(), Some(1)));
        workers_of(run).for_each(|s| s.core_wait_s = Some((0.4 + 0.4 * part) * s.compute_s));
    }),
    (Cause::OtherPrograms, |run, part| {
        run.ranks.iter_mut().for_each(|rank| rank.cores = Some(8));
        workers_of(run).for_each(|s| s.core_wait_s = Some((0.55 + 0.3 * part) * s.compute_s));
    }),
    (Cause::Data, |run, part| workers_of(run).for_each(|s| s.data_s = (0.5 + 0.4 * part) * s.compute_s)),
    (Cause::Memory, |run, part| {
        run.params = 1_000_000;
        workers_of(run).for_each(|s| s.apply_s = (0.5 + part) * s.compute_s);
    }),
    (Cause::Codec, |run, part| {
        workers_of(run).for_each(|s| {
            s.codec_s = (1.0 + part) * s.compute_s;
            s.send_s += s.codec_s;
        });
    }),
];

#[test]
fn what_holds_workers_up_in_their_own_work_is_named() {
    for (cause, plant) in OWN_WORK {
        for seed in 0..20 {
            let mut recorded = Model::usual(seed).run(60);
            plant(&mut recorded, seed as f64 / 19.0);
            let said = Explanation::new(&recorded).unwrap();
            assert_eq!(said.verdict.cause, cause, "seed {seed}: {:?}, {:?}", said.verdict, said.path);
        }
    }
}

#[test]
fn records_without_the_columns_of_today_are_explained_as_before() {
    let recorded = Model::usual(4).run(40);
    assert!(recorded.steps.iter().all(|s| s.core_wait_s.is_none() && s.codec_s == 0.0));
    let said = Explanation::new(&recorded).unwrap();
    assert_eq!(said.verdict.cause, Cause::Compute);
    assert!(said.ranks.iter().all(|rank| rank.core_wait_s.is_none()));
}

#[test]
fn a_slow_group_of_hosts_is_one_cause_and_all_of_it_is_replaced() {
    let mut model = Model::usual(4);
    model.compute = vec![0.02, 0.02, 0.05, 0.05, 0.05];
    let mut recorded = model.run(40);
    for (i, rank) in recorded.ranks.iter_mut().enumerate() {
        rank.host = if i < 2 || i == 5 { format!("own-{i}") } else { format!("spot-{i}") };
    }
    let said = Explanation::new(&recorded).unwrap();
    let verdict = &said.verdict;
    assert_eq!((verdict.cause, verdict.rank), (Cause::Straggler, None), "{verdict:?}");
    assert_eq!(verdict.ranks, [2, 3, 4], "{verdict:?}");
    assert!(verdict.sentence.contains("The 3 workers on `spot` are stragglers"), "{}", verdict.sentence);
    let first = &verdict.changes[0];
    assert!(first.what.contains("all 3 workers on `spot`"), "{}", first.what);
    assert!(first.gain > 0.4, "{first:?}");
}

#[test]
fn a_worker_with_more_samples_is_no_slower_machine() {
    let mut model = Model::usual(4);
    model.compute = vec![0.04, 0.02, 0.02];
    let mut recorded = model.run(40);
    recorded.steps.iter_mut().filter(|s| s.rank == 0).for_each(|s| s.samples = 128);
    let said = Explanation::new(&recorded).unwrap();
    assert_eq!(said.verdict.cause, Cause::Imbalance, "{:?}", said.verdict);
    assert!(said.verdict.sentence.contains("worker 0 has more samples"), "{}", said.verdict.sentence);
}

#[test]
fn one_slow_server_of_two_is_named_with_its_rank() {
    let mut model = Model::usual(4);
    model.serving = 2.0 * model.compute[0] / model.messages as f64;
    let mut recorded = model.run(40);
    // A second server that does as many updates in a tenth of the time.
    let slow = recorded.ranks.len() - 1;
    recorded.ranks.push(RecordedRank { worker: false, host: "quick".into(), ..RecordedRank::default() });
    let quick: Vec<RecordedStep> = recorded
        .steps
        .iter()
        .filter(|s| s.rank == slow)
        .map(|s| RecordedStep {
            rank: slow + 1,
            send_s: s.send_s / 10.0,
            wait_s: s.wait_s + 0.9 * s.send_s,
            ..*s
        })
        .collect();
    recorded.steps.extend(quick);
    let said = Explanation::new(&recorded).unwrap();
    assert_eq!((said.verdict.cause, said.verdict.rank), (Cause::Server, Some(slow)), "{:?}", said.verdict);
    assert!(said.verdict.sentence.contains("10 times as long"), "{}", said.verdict.sentence);
}

#[test]
fn workers_that_are_as_fast_as_one_are_not_1_times_faster() {
    let mut said = Explanation::new(&Model::usual(3).run(40)).unwrap();
    said.predict(&|what_if| (what_if == WhatIf::OneWorker).then_some(1.01));
    let alone = &said.alone.as_ref().unwrap().sentence;
    assert!(alone.contains("are about as fast as one would be"), "{alone}");
}

fn of_script(delegated: Option<&str>) -> RecordedRun {
    let mut recorded = Model::usual(4).run(40);
    recorded.params = 30;
    recorded.script = Some(ScriptRecord {
        tensors: vec![("first".into(), 10), ("middle".into(), 12), ("last".into(), 8)],
        staging: vec![ScriptStaging {
            rank: 0,
            staging_s: 0.1,
            ready_s: vec![Some(0.004), None, Some(0.001)],
        }],
        observed: delegated.is_none(),
        ..ScriptRecord::default()
    });
    recorded.steps.iter_mut().for_each(|step| step.backward_s = step.compute_s / 2.0);
    let script = Script {
        file: "/train.py".into(),
        sha256: String::new(),
        args: Vec::new(),
        python: "python3".into(),
        apply: "worker".into(),
        delegated: delegated.map(str::to_owned),
        gpus: Vec::new(),
        without_mps: false,
        staged: false,
        auto: false,
    };
    recorded.plan = Some(Plan { workers: 2, script: Some(script), ..Plan::example() });
    recorded
}

#[test]
fn a_script_is_bound_by_copying_by_its_gpus_or_by_the_host_that_they_wait_for() {
    let mut recorded = of_script(None);
    let usual = Explanation::new(&recorded).unwrap();
    assert!(![Cause::Staging, Cause::Gpu, Cause::Host].contains(&usual.verdict.cause), "{:?}", usual.verdict);
    let (step_s, steps) = (usual.step_s, recorded.steps.iter().filter(|step| step.rank == 0).count());
    let script = |recorded: &mut RecordedRun| recorded.script.take().unwrap();
    // Nine tenths of each step.
    let copying = ScriptStaging { rank: 0, staging_s: 0.9 * step_s * steps as f64, ready_s: Vec::new() };
    recorded.script = Some(ScriptRecord { staging: vec![copying], ..script(&mut recorded) });
    let copied = Explanation::new(&recorded).unwrap();
    assert_eq!(copied.verdict.cause, Cause::Staging, "{:?}", copied.verdict);
    assert!((copied.verdict.share - 0.9).abs() < 1e-9, "{:?}", copied.verdict);
    assert!(
        copied.verdict.sentence.contains("Copying gradients sets the pace"),
        "{}",
        copied.verdict.sentence
    );

    let gpu = |utilisation: f64, workers: &[usize]| GpuUse {
        gpu: "0".into(),
        workers: workers.to_vec(),
        utilisation_percent: Some(utilisation),
        ..GpuUse::default()
    };
    // Passes take all of the time: what they are is what the GPUs say.
    recorded.steps.iter_mut().for_each(|step| (step.wait_s, step.send_s, step.apply_s) = (0.0, 0.0, 0.0));
    for (utilisation, workers, cause) in [
        (95.0, &[0, 1][..], Cause::Gpu),
        (25.0, &[0, 1], Cause::Host),
        (0.5, &[0, 1], Cause::Host),
        // Nobody was given one, and nobody uses one: workers compute on cores.
        (0.5, &[], Cause::Compute),
        (95.0, &[], Cause::Gpu),
    ] {
        let gpus = vec![gpu(utilisation, workers), gpu(0.0, &[])];
        recorded.script = Some(ScriptRecord { staging: Vec::new(), gpus, ..script(&mut recorded) });
        let said = Explanation::new(&recorded).unwrap();
        assert_eq!(said.verdict.cause, cause, "{utilisation}% of {workers:?}: {:?}", said.verdict);
    }
}

#[test]
fn what_a_scripts_own_framework_waits_for_is_said_to_be_unknown() {
    let said = Explanation::new(&of_script(Some("gloo"))).unwrap();
    assert_eq!(said.verdict.cause, Cause::NotObserved);
    assert!(said.verdict.changes.is_empty(), "nothing is advised of what was not seen");
    let text = said.text();
    assert!(
        text.contains("was not observed") && text.contains("Links and waits were not observed"),
        "{text}"
    );
    let rows = &said.sheets()[0].rows;
    let workers = rows.iter().filter(|row| row[1] == "worker");
    assert!(
        workers.clone().count() > 1 && workers.clone().all(|row| row[5..7] == ["not observed"; 2]),
        "{rows:?}"
    );
}

#[test]
fn gradients_of_a_script_are_sent_from_the_end_and_what_is_late_holds_up_what_lies_before() {
    let said = Explanation::new(&of_script(None)).unwrap();
    let at: Vec<(usize, f64)> = said.ready.iter().map(|ready| (ready.from, ready.at)).collect();
    // Backward is the second half of a pass; one that was not used is known with the last.
    assert_eq!(at.iter().map(|(from, _)| *from).collect::<Vec<_>>(), [22, 10, 0]);
    assert!((at[0].1 - 0.625).abs() < 1e-9 && at[1].1 == 1.0 && at[2].1 == 1.0, "{at:?}");
    let late: Vec<&str> = said.late_gradients.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(late, ["first", "last"]);
    assert!(said.text().contains("Gradients that were ready last"));
    let words = said.verdict.changes.iter().map(|change| change.words().to_string()).collect::<String>();
    assert!(!words.contains("--batch") && !words.contains("--decoders"), "a script decides that: {words}");
}
