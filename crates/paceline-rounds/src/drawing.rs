//! The rounds of an iteration as a picture: a line for each worker, an arrow for each message.

use std::collections::HashMap;
use std::fmt::Write;

use crate::compile::{Iteration, RoundOp};
use crate::file::StrategyFileError;
use crate::program::Program;

/// Most workers and messages of a picture.
const MOST_WORKERS: usize = 32;
const MOST_MESSAGES: usize = 600;

/// Distances, in pixels.
const COLUMN: usize = 70;
const ROW: usize = 26;
const LEFT: usize = 190;
const TOP: usize = 70;

/// A message in logical time.
struct Arrow {
    from: usize,
    to: usize,
    sent: usize,
    received: usize,
    chunk: usize,
    phase: u32,
    added: bool,
}

/// The rounds of a step as SVG. Time is logical: a message is received at least one row below where it was sent.
pub fn rounds_svg(
    program: &Program,
    workers: usize,
    step: u64,
    seed: u64,
) -> Result<String, StrategyFileError> {
    let compiled = program.compiled(workers, &[], seed)?;
    compiled.check(step + 1)?;
    let iteration = compiled.iteration(step);
    let arrows = arrows(&iteration, workers);
    Ok(draw(program.name(), &iteration, workers.min(MOST_WORKERS), step, &arrows))
}

fn arrows(iteration: &Iteration, workers: usize) -> Vec<Arrow> {
    let mut all = Vec::new();
    for (independent, ops) in iteration.ops.iter().enumerate() {
        // When each worker is where it is, and when each message was sent.
        let (mut now, mut at) = (vec![0; workers], vec![0; workers]);
        let mut sent: HashMap<(usize, usize, u32), usize> = HashMap::new();
        loop {
            let mut moved = false;
            for rank in 0..workers {
                while let Some(op) = ops[rank].get(at[rank]) {
                    match op {
                        RoundOp::Send { to, phase, .. } => {
                            sent.extend(to.iter().map(|peer| ((rank, *peer, *phase), now[rank])));
                        }
                        RoundOp::Receive { from, phase, chunks, keep, .. } => {
                            let Some(begun) = sent.get(&(*from, rank, *phase)).copied() else { break };
                            now[rank] = now[rank].max(begun + 1);
                            let chunk = independent.max(chunks.start);
                            let (to, received, added) = (rank, now[rank], *keep != 0.0);
                            all.push(Arrow {
                                from: *from,
                                to,
                                sent: begun,
                                received,
                                chunk,
                                phase: *phase,
                                added,
                            });
                        }
                        _ => {}
                    }
                    at[rank] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
    }
    all.sort_by_key(|arrow| (arrow.sent, arrow.from));
    all
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn draw(name: &str, iteration: &Iteration, workers: usize, step: u64, arrows: &[Arrow]) -> String {
    let fits = |arrow: &&Arrow| arrow.from < workers && arrow.to < workers;
    let drawn: Vec<&Arrow> = arrows.iter().filter(fits).take(MOST_MESSAGES).collect();
    let rows = drawn.iter().map(|arrow| arrow.received).max().unwrap_or(0);
    let (width, height) = (LEFT + COLUMN * workers, TOP + ROW * (rows + 1) + 40);
    let x = |rank: usize| LEFT + COLUMN * rank;
    let y = |row: usize| TOP + ROW * row;
    let mut svg = String::new();
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="12">
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>
<rect width="{width}" height="{height}" fill="#fff"/>
<text x="12" y="22" font-size="15" font-weight="bold">{}, step {step}</text>
<text x="12" y="42" fill="#555">blue: added to what the receiver has; orange: takes its place</text>
"##,
        escaped(name)
    );
    for rank in 0..workers {
        let _ = writeln!(
            svg,
            r##"<line x1="{0}" y1="{TOP}" x2="{0}" y2="{1}" stroke="#ccc"/><text x="{0}" y="{2}" text-anchor="middle" fill="#333">{rank}</text>"##,
            x(rank),
            y(rows) + 10,
            TOP - 8
        );
    }
    let mut named: Vec<(usize, &str)> = Vec::new();
    for arrow in &drawn {
        let round = iteration.phases.get(arrow.phase as usize).map_or("", String::as_str);
        if named.iter().all(|(_, known)| *known != round) {
            named.push((arrow.sent, round));
        }
        let colour = if arrow.added { "#1f6fb4" } else { "#d9730d" };
        let _ = writeln!(
            svg,
            r#"<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{colour}" stroke-width="1.4" marker-end="url(#head)"><title>{round}: worker {} to worker {}, chunk {}</title></line>"#,
            x(arrow.from),
            y(arrow.sent),
            x(arrow.to),
            y(arrow.received),
            arrow.from,
            arrow.to,
            arrow.chunk,
            round = escaped(round)
        );
    }
    let mut last = None;
    for (row, round) in named {
        // Two names never lie on each other.
        let row = last.map_or(row, |last: usize| row.max(last + 1));
        last = Some(row);
        let _ = writeln!(svg, r##"<text x="12" y="{}" fill="#333">{}</text>"##, y(row) + 4, escaped(round));
    }
    let more = arrows.len() - drawn.len();
    if more > 0 {
        let _ =
            writeln!(svg, r##"<text x="12" y="{}" fill="#555">{more} messages more</text>"##, height - 12);
    }
    svg.push_str("</svg>\n");
    svg
}
