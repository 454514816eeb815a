//! Charts of single runs, out of the store: accuracy against time, resources, phases of steps, links.

use paceline_plan::Plan;
use paceline_record::store::RunRow;
use paceline_record::{RecordError, Store};

use super::dot;
use crate::explain::{RecordedRun, RecordedStage, bubble_of};
use crate::figure::{Bar, ChartAxis, ChartMark, Dot, Figure, Panel};

/// Steps of each rank whose phases are shown.
const STEPS: usize = 12;
/// Points of a curve; of longer ones every n-th is shown.
const POINTS: usize = 400;

fn thin<T: Clone>(values: &[T]) -> Vec<T> {
    let every = values.len().div_ceil(POINTS).max(1);
    values.iter().step_by(every).cloned().collect()
}

/// One more than the highest rank.
fn world(ranks: &[Option<f64>]) -> usize {
    ranks.iter().flatten().fold(0.0f64, |most, r| most.max(r + 1.0)) as usize
}

fn figure(id: &str, title: &str, reading: &str, n: String, panels: Vec<Panel>) -> Option<Figure> {
    let figure = Figure { id: id.into(), title: title.into(), reading: reading.into(), n, panels };
    (!figure.is_empty()).then_some(figure)
}

/// Accuracy of several runs against their training clocks.
pub fn accuracy(store: &Store, runs: &[RunRow]) -> Result<Option<Figure>, RecordError> {
    let (mut marks, mut n) = (Vec::new(), 0);
    for run in runs {
        let rows = store.rows("evaluations", run)?;
        let clocks = rows.numbers("train_s").into_iter().zip(rows.numbers("accuracy"));
        let points: Vec<Dot> = clocks.filter_map(|(x, y)| Some(dot(x?, 100.0 * y?))).collect();
        n += points.len();
        marks.push(ChartMark::line(&run.run, points));
    }
    let y = ChartAxis::linear("accuracy on the test split, %");
    let panel = Panel::new(ChartAxis::linear("training clock, s"), y, marks);
    let reading = "Each point is an evaluation: a run that is higher earlier learns faster in time, whatever its steps take.";
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let n = format!("{n} evaluation{} of {} run{}", plural(n), runs.len(), plural(runs.len()));
    Ok(figure("accuracy", "Accuracy against time", reading, n, vec![panel]))
}

/// Loss of several runs by steps: of training, and on the test split.
pub fn loss(store: &Store, runs: &[RunRow]) -> Result<Option<Figure>, RecordError> {
    // The loss of a step is that of all its samples, whoever had them.
    const BY_STEP: &str = "SELECT step, sum(loss * samples) / sum(samples) FROM steps \
                           WHERE run = ? AND samples > 0 AND loss IS NOT NULL GROUP BY step ORDER BY step";
    let (mut marks, mut n) = (Vec::new(), 0);
    for run in runs {
        let own = if runs.len() == 1 { String::new() } else { format!(" of {}", run.run) };
        let steps = store.numbers(BY_STEP, run)?;
        let points: Vec<Dot> =
            steps.iter().filter(|row| row[1].is_finite()).map(|row| dot(row[0], row[1])).collect();
        n += points.len();
        marks.push(ChartMark::curve(&format!("training{own}"), thin(&points)));
        let rows = store.rows("evaluations", run)?;
        let tested = rows.numbers("step").into_iter().zip(rows.numbers("loss"));
        let points = tested.filter_map(|(x, y)| Some(dot(x?, y?))).collect();
        marks.push(ChartMark::line(&format!("test split{own}"), points));
    }
    let values = marks.iter().flat_map(|mark| match mark {
        ChartMark::Points { points, .. } => points.iter().map(|p| p.y).collect(),
        _ => Vec::new(),
    });
    let y = ChartAxis::fitting("loss", values);
    let panel = Panel::new(ChartAxis::linear("step"), y, marks);
    let reading = "The mean loss over the samples of each step, and over the test split at evaluations: where the two \
                   part, the network learns its training samples by heart.";
    Ok(figure("loss", "Loss", reading, format!("{n} steps"), vec![panel]))
}

/// Charts of one run that have something to show.
pub fn charts(store: &Store, run: &RunRow) -> Result<Vec<Figure>, RecordError> {
    let all = [
        members(store, run)?,
        stages(store, run)?,
        phases(store, run)?,
        resources(store, run)?,
        links(store, run)?,
    ];
    Ok(all.into_iter().flatten().collect())
}

/// Of a run in stages.
fn stages(store: &Store, run: &RunRow) -> Result<Option<Figure>, RecordError> {
    match run.plan.as_ref().filter(|plan| plan.stages > 1) {
        None => Ok(None),
        Some(plan) => {
            let recorded = RecordedRun::read(store, run)?;
            Ok(recorded.stages().and_then(|stages| of_stages(plan, &stages)))
        }
    }
}

/// Where each stage's time goes, how long it is idle, and how many micro-batches are under way in it.
pub fn of_stages(plan: &Plan, stages: &[RecordedStage]) -> Option<Figure> {
    type Part = (&'static str, fn(&RecordedStage) -> f64);
    const PARTS: [Part; 5] = [
        ("forward", |stage| stage.forward_s),
        ("backward", |stage| stage.backward_s),
        ("wait for earlier stages", |stage| stage.wait_up_s),
        ("wait for later stages", |stage| stage.wait_down_s),
        ("hand over, average, update", |stage| stage.averaging_s),
    ];
    let mut bars: Vec<Vec<Bar>> = vec![Vec::new(); PARTS.len()];
    for (i, stage) in stages.iter().enumerate() {
        let mut from = 0.0;
        for ((name, of), bars) in PARTS.iter().zip(&mut bars) {
            let length = 1e3 * of(stage).max(0.0);
            if length > 0.0 {
                let label = format!("stage {i}: {name} {length:.3} ms");
                bars.push(Bar { at: i as f64, from, to: from + length, range: None, label });
            }
            from += length;
        }
    }
    let axis = || ChartAxis::names("stage", (0..stages.len()).map(|i| i.to_string()));
    let mark = |((name, _), bars): (&Part, _)| ChartMark::Bars { name: (*name).into(), lying: true, bars };
    let times = PARTS.iter().zip(bars).map(mark).collect();
    let measured = |of: &dyn Fn(&RecordedStage) -> f64| {
        stages.iter().enumerate().map(|(i, stage)| dot(i as f64, of(stage))).collect()
    };
    let even = 100.0 * bubble_of(plan);
    let formula = (0..stages.len()).map(|i| dot(i as f64, even)).collect();
    let idle = vec![
        ChartMark::line("measured", measured(&|stage| 100.0 * stage.idle)),
        ChartMark::line("(s−1)/(m+s−1)", formula),
    ];
    let slots = vec![ChartMark::line("measured", measured(&|stage| stage.live_slots as f64))];
    let panels = vec![
        Panel::new(ChartAxis::linear("time of a step, ms"), axis(), times).titled("time"),
        Panel::new(axis(), ChartAxis::linear("waiting for stages, %"), idle).titled("idle"),
        Panel::new(axis(), ChartAxis::linear("micro-batches at once"), slots).titled("slots"),
    ];
    let reading = "Medians over steps. The longest bar of both passes is the stage that sets the pace. Even stages wait for \
                   the part that the formula tells, while they fill and drain; whoever waits longer waits for a longer \
                   stage or for messages. Slots are micro-batches whose activations a stage keeps.";
    let (s, m) = (plan.stages, plan.micro_batches);
    figure("stages", "Stages", reading, format!("{s} stages, {m} micro-batches"), panels)
}

/// Who took part when, in a run whose members have changed.
fn members(store: &Store, run: &RunRow) -> Result<Option<Figure>, RecordError> {
    let (changes, Some(plan)) = (store.membership(run)?, &run.plan) else { return Ok(None) };
    let first = plan.workers + plan.servers;
    let last = changes.iter().flat_map(|change| change.joined.iter().copied()).max().unwrap_or(0);
    let world = first.max(last + 1);
    let recorded = run.result.as_ref().map(|result| result.seconds.train).or(run.train_s);
    let end = changes.last().map_or(0.0, |change| recorded.unwrap_or(0.0).max(change.at_s + change.pause_s));
    let mut since: Vec<Option<f64>> = (0..world).map(|member| (member < first).then_some(0.0)).collect();
    let (mut there, mut pauses) = (Vec::new(), Vec::new());
    let mut took_part = |member: usize, from: f64, to: f64| {
        let label = format!("rank {member}: {from:.3} to {to:.3} s");
        there.push(Bar { at: member as f64, from, to, range: None, label });
    };
    for change in &changes {
        for member in change.lost.iter().chain(&change.left) {
            if let Some(from) = since.get_mut(*member).and_then(Option::take) {
                took_part(*member, from, change.at_s);
            }
        }
        let goes_on = change.at_s + change.pause_s;
        for member in &change.joined {
            since[*member] = Some(goes_on);
        }
        for member in (0..world).filter(|member| since[*member].is_some_and(|from| from <= change.at_s)) {
            let (at, label) = (member as f64, change.words());
            pauses.push(Bar { at, from: change.at_s, to: goes_on, range: None, label });
        }
    }
    for (member, from) in since.iter().enumerate() {
        from.iter().for_each(|from| took_part(member, *from, end));
    }
    let mark = |name: &str, bars| ChartMark::Bars { name: name.into(), lying: true, bars };
    let marks = vec![mark("took part", there), mark("paused", pauses)];
    let y = ChartAxis::names("rank", (0..world).map(|member| member.to_string()));
    let panel = Panel::new(ChartAxis::linear("training clock, s"), y, marks);
    let reading = "Each bar is a process from when it took part to when it was lost or left. Where it is marked, all \
                   waited until the others had taken over its work.";
    let n = format!("{} change{}", changes.len(), if changes.len() == 1 { "" } else { "s" });
    if changes.is_empty() {
        return Ok(None);
    }
    Ok(figure("members", "Who took part", reading, n, vec![panel]))
}

/// The last steps of each rank, phase by phase.
fn phases(store: &Store, run: &RunRow) -> Result<Option<Figure>, RecordError> {
    const PHASES: [(&str, &str); 6] = [
        ("data", "data_ns"),
        ("forward", "forward_ns"),
        ("backward", "backward_ns"),
        ("send, receive, sum", "send_ns"),
        ("wait", "wait_ns"),
        ("update", "apply_ns"),
    ];
    let rows = store.rows("steps", run)?;
    let (ranks, begins, steps) = (rows.numbers("rank"), rows.numbers("t_ns"), rows.numbers("step"));
    let columns = PHASES.map(|(_, column)| rows.numbers(column));
    let world = world(&ranks);
    let mut bars: Vec<Vec<Bar>> = vec![Vec::new(); PHASES.len()];
    // The same stretch of time for all: the last steps of the slowest worker.
    let first = |rank: usize| {
        let own = begins.iter().zip(&ranks).filter(|(_, r)| **r == Some(rank as f64));
        let own: Vec<f64> = own.filter_map(|(begin, _)| *begin).collect();
        own.get(own.len().saturating_sub(STEPS)).copied()
    };
    let from = (0..world).filter_map(first).fold(f64::INFINITY, f64::min);
    let mut shown = 0;
    for i in 0..rows.rows.len() {
        let (Some(rank), Some(begin)) = (ranks[i], begins[i]) else { continue };
        if begin < from {
            continue;
        }
        shown += 1;
        let mut at = 1e-6 * (begin - from);
        for (p, (name, _)) in PHASES.iter().enumerate() {
            let length = 1e-6 * columns[p][i].unwrap_or(0.0);
            if length > 0.0 {
                let label = format!("rank {rank}, step {}: {name} {length:.3} ms", steps[i].unwrap_or(0.0));
                bars[p].push(Bar { at: rank, from: at, to: at + length, range: None, label });
            }
            at += length;
        }
    }
    let mark =
        |((name, _), bars): (&(&str, _), _)| ChartMark::Bars { name: (*name).into(), lying: true, bars };
    let y = ChartAxis::names("rank", (0..world).map(|r| r.to_string()));
    let panel = Panel::new(ChartAxis::linear("time, ms"), y, PHASES.iter().zip(bars).map(mark).collect());
    let reading = "The last steps of each rank; phases of a step are drawn one after another, although sending overlaps \
                   with backward. Long waits beside a rank that computes point at that rank.";
    Ok(figure("phases", "Phases of steps", reading, format!("{shown} steps"), vec![panel]))
}

fn resources(store: &Store, run: &RunRow) -> Result<Option<Figure>, RecordError> {
    let rows = store.rows("samples", run)?;
    let (ranks, times) = (rows.numbers("rank"), rows.numbers("t_ns"));
    let [user, system, memory] =
        ["cpu_user_s", "cpu_system_s", "resident_bytes"].map(|name| rows.numbers(name));
    let world = world(&ranks);
    let (mut cpu, mut resident) = (Vec::new(), Vec::new());
    for rank in 0..world {
        let own: Vec<usize> = (0..ranks.len()).filter(|i| ranks[*i] == Some(rank as f64)).collect();
        let name = format!("rank {rank}");
        let second = |i: usize| 1e-9 * times[i].unwrap_or(0.0);
        // Counters count from the start: a difference of two is what happened between them.
        let busy = own.windows(2).filter_map(|pair| {
            let spent = |i: usize| Some(user[i]? + system[i]?);
            let (a, b) = (pair[0], pair[1]);
            let passed = second(b) - second(a);
            (passed > 0.0).then(|| Some(dot(second(b), 100.0 * (spent(b)? - spent(a)?) / passed)))?
        });
        cpu.push(ChartMark::curve(&name, thin(&busy.collect::<Vec<_>>())));
        let held = own.iter().filter_map(|i| Some(dot(second(*i), memory[*i]? / 1e6)));
        resident.push(ChartMark::curve(&name, thin(&held.collect::<Vec<_>>())));
    }
    let time = || ChartAxis::linear("time from the start of the run, s");
    let panels = vec![
        Panel::new(time(), ChartAxis::linear("CPU, % of one core"), cpu).titled("CPU"),
        Panel::new(time(), ChartAxis::linear("resident memory, MB"), resident).titled("memory"),
    ];
    let reading = "What each rank's process used: a rank far below 100% of its cores waits for something.";
    Ok(figure("resources", "Resources by rank", reading, format!("{} samples", rows.rows.len()), panels))
}

fn links(store: &Store, run: &RunRow) -> Result<Option<Figure>, RecordError> {
    let rows = store.rows("links", run)?;
    let (ranks, peers, sent) = (rows.numbers("rank"), rows.numbers("peer"), rows.numbers("sent_bytes"));
    let world = world(&ranks).max(world(&peers));
    let mut cells: Vec<Vec<Option<f64>>> = vec![vec![None; world]; world];
    for ((rank, peer), sent) in ranks.into_iter().zip(peers).zip(sent) {
        if let (Some(rank), Some(peer), Some(sent)) = (rank, peer, sent) {
            // Counters only grow: the greatest is the whole run's.
            let cell = &mut cells[rank as usize][peer as usize];
            *cell = Some(cell.unwrap_or(0.0).max(sent / 1e6));
        }
    }
    let axis = |title: &str| ChartAxis::names(title, (0..world).map(|r| format!("rank {r}")));
    let panel =
        Panel::new(axis("to"), axis("from"), vec![ChartMark::Heat { value: "sent, MB".into(), cells }]);
    let reading =
        "Bytes that each rank (row) sent to each other (column) over the whole run, headers included.";
    Ok(figure("links", "Links", reading, format!("{world} ranks"), vec![panel]))
}
