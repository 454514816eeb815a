//! A program as a picture: a line for each rank, time to the right.

use std::fmt::Write;

use crate::report::PipelineReport;
use crate::timeline::TimedWork;
use paceline_protocol::WorkKind;

/// Distances of the picture, in pixels.
const LEFT: usize = 64;
const WIDTH: usize = 900;
const ROW: usize = 34;
const BAR: usize = 26;
const TOP: usize = 44;
const RIGHT: usize = 230;

/// Colours that differ for colour-blind eyes too, on light and on dark ground.
const STYLE: &str = ".ground{fill:#fff}text{font:11px system-ui,sans-serif;fill:#1b1b1b}\
.title{font-size:15px;font-weight:600}.in{fill:#fff;text-anchor:middle}.idle{fill:#8881}\
.f{fill:#0072b2}.b{fill:#b04a00}.f,.b{stroke:#fff;stroke-width:.6}\
@media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#e6edf3}.in{fill:#fff}.f,.b{stroke:#0d1117}}";

impl PipelineReport {
    /// The program as text of at most `width` columns, with a legend.
    pub fn text(&self, width: usize) -> String {
        let ranks = &self.timeline().ranks;
        let label = format!("rank {}  ", ranks.len().saturating_sub(1)).len();
        let columns = width.saturating_sub(label).max(10);
        let mut text = String::new();
        for (rank, work) in ranks.iter().enumerate() {
            let mut line = vec!['·'; columns];
            for timed in work {
                let (from, to) = (self.column(timed.start, columns), self.column(timed.end, columns));
                let fill = match timed.work.kind {
                    WorkKind::Forward => '─',
                    WorkKind::Backward => '═',
                };
                line[from..to].fill(fill);
                let name = timed.work.micro.to_string();
                if name.len() <= to - from {
                    line[from..].iter_mut().zip(name.chars()).for_each(|(place, digit)| *place = digit);
                }
            }
            let line: String = line.into_iter().collect();
            let _ = writeln!(text, "{:<label$}{line}", format!("rank {rank}"));
        }
        let key = "N─ forward of micro-batch N, N═ backward, · nothing to do";
        let _ = writeln!(text, "{key};\n{}", self.source());
        text
    }

    /// The column that a time falls on.
    fn column(&self, time: u64, columns: usize) -> usize {
        let length = u128::from(self.length.max(1));
        ((u128::from(time) * columns as u128 + length / 2) / length) as usize
    }

    /// The program as SVG.
    pub fn svg(&self) -> String {
        let ranks = &self.timeline().ranks;
        let (width, height) = (LEFT + WIDTH + RIGHT, TOP + ROW * ranks.len() + 34);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<style>{STYLE}</style>\n\
             <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n\
             <text x=\"16\" y=\"26\" class=\"title\">{}</text>\n",
            escaped(&self.headline())
        );
        for (rank, work) in ranks.iter().enumerate() {
            let y = TOP + ROW * rank;
            let middle = y + BAR / 2 + 4;
            let _ = writeln!(svg, "<text x=\"16\" y=\"{middle}\">rank {rank}</text>");
            let _ = writeln!(
                svg,
                "<rect class=\"idle\" x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{BAR}\"/>"
            );
            work.iter().for_each(|timed| self.bar(&mut svg, timed, y));
            let beside = LEFT + WIDTH + 12;
            let _ =
                writeln!(svg, "<text x=\"{beside}\" y=\"{middle}\">{}</text>", escaped(&self.beside(rank)));
        }
        let y = TOP + ROW * ranks.len() + 16;
        let key = "blue: forward, orange: backward, with the micro-batch's number";
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\">{key}; {}</text>\n</svg>", self.source());
        svg
    }

    fn bar(&self, svg: &mut String, timed: &TimedWork, y: usize) {
        let place = |time: u64| LEFT as f64 + WIDTH as f64 * time as f64 / self.length.max(1) as f64;
        let (x, end) = (place(timed.start), place(timed.end));
        let class = match timed.work.kind {
            WorkKind::Forward => 'f',
            WorkKind::Backward => 'b',
        };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{BAR}\"><title>{}: {} to {}</title></rect>",
            end - x,
            timed.work,
            timed.start,
            timed.end
        );
        let name = timed.work.micro.to_string();
        // A digit is about 7 pixels wide.
        if (name.len() * 7) as f64 + 3.0 <= end - x {
            let (middle, base) = ((x + end) / 2.0, y + BAR / 2 + 4);
            let _ = writeln!(svg, "<text class=\"in\" x=\"{middle:.2}\" y=\"{base}\">{name}</text>");
        }
    }

    /// What stands beside a rank: idle time and memory.
    fn beside(&self, rank: usize) -> String {
        let own: Vec<_> = self.stage.iter().filter(|stage| stage.rank == rank).collect();
        let slots: usize = own.iter().map(|stage| stage.slots).sum();
        let idle = own.first().map_or(0.0, |stage| 100.0 * stage.idle);
        let words = format!("idle {idle:.1}%, {slots} slot{}", if slots == 1 { "" } else { "s" });
        let bytes =
            own.iter().map(|stage| Some(stage.part.as_ref()?.activation_bytes)).sum::<Option<usize>>();
        bytes.map_or(words.clone(), |bytes| format!("{words}, {:.3} MB", bytes as f64 / 1e6))
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipelines::PIPELINES;

    fn report(name: &str, stages: usize, micro_batches: usize) -> PipelineReport {
        let pipeline = PIPELINES.iter().find(|pipeline| pipeline.name == name).unwrap();
        PipelineReport::of_equal_stages(name, &pipeline.program(stages, micro_batches).unwrap())
    }

    #[test]
    fn a_small_program_is_drawn_to_scale() {
        let drawn = report("1f1b", 2, 3).text(8 + 24);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "rank 0  0─1─····0═══2─1═══··2═══");
        assert_eq!(lines[1], "rank 1  ··0─0═══1─1═══2─2═══····");
    }

    #[test]
    fn work_that_is_too_short_for_a_number_is_still_drawn() {
        let drawn = report("gpipe", 3, 200).text(40);
        assert!(drawn.lines().take(3).all(|line| line.chars().count() == 40), "{drawn}");
        assert!(drawn.contains("───") && drawn.contains("═══"), "{drawn}");
    }

    #[test]
    fn a_picture_has_a_bar_for_each_work() {
        let svg = report("1f1b", 4, 8).svg();
        assert_eq!(svg.matches("<title>").count(), 2 * 4 * 8);
        assert!(svg.contains(">0F0: 0 to 1<") && svg.contains("idle 27.3%, 4 slots"), "{svg}");
    }
}
