//! Small parts of pages.

use paceline_analyze::sheet::escape;
use paceline_analyze::table::number;
use paceline_record::store::RunRow;

use crate::background::BackgroundResult;
use crate::query::encode;

/// A state as a word with a colour.
pub fn badge(state: &str) -> String {
    let kind = match state {
        "ok" | "finished" => "good",
        "running" => "busy",
        "failed" | "diverged" | "lost" => "bad",
        _ => "other",
    };
    format!("<span class=\"badge {kind}\">{}</span>", escape(state))
}

/// What a run is called: the name that somebody gave it, else its id.
pub fn called(run: &RunRow) -> &str {
    run.labels.name.as_deref().unwrap_or(&run.run)
}

pub fn link(run: &RunRow) -> String {
    let [id, called] = [&run.run, called(run)].map(escape);
    format!("<a href=\"/run/{}\" title=\"{id}\">{called}</a>", encode(&run.run))
}

/// A link to the runs of a tag.
pub fn tagged(tag: &str) -> String {
    format!("/runs?tag={}", encode(tag))
}

pub fn study_link(study: &str) -> String {
    format!("<a href=\"/study/{}\">{}</a>", encode(study), escape(study))
}

/// Tags, each with where it leads; `here` says that it is the same page.
pub fn tags(tags: &[String], here: bool, to: impl Fn(&str) -> String) -> String {
    if tags.is_empty() {
        return String::new();
    }
    let go = if here { " data-go" } else { "" };
    let chip = |tag: &String| {
        let [to, tag] = [&to(tag), tag].map(|text| escape(text));
        format!("<li><a{go} class=\"tag\" href=\"{to}\" title=\"runs with the tag {tag}\">{tag}</a></li>")
    };
    format!("<ul class=\"tags\" aria-label=\"Tags\">{}</ul>", tags.iter().map(chip).collect::<String>())
}

/// The state of a run, whether it was made in virtual time, and whether it is archived.
pub fn state(run: &RunRow) -> String {
    let mark = |word: &str, holds: bool| if holds { format!(" {}", badge(word)) } else { String::new() };
    badge(&run.state) + &mark("simulated", run.origin == "simulated") + &mark("archived", run.archived)
}

/// A figure with its name above and a remark below.
pub fn tile(name: &str, value: &str, below: &str) -> String {
    let below = if below.is_empty() { "&nbsp;".to_owned() } else { escape(below) };
    let [name, value] = [name, value].map(escape);
    format!("<div class=\"tile\"><dt>{name}</dt><dd>{value}<small>{below}</small></dd></div>\n")
}

pub fn progress(done: u64, all: Option<u64>, what: &str) -> String {
    let what = escape(what);
    let bar = |most: u64, done: u64, words: String| {
        format!(
            "<span class=\"progress\"><progress max=\"{most}\" value=\"{done}\" aria-label=\"{what}\"></progress> \
             <span class=\"n\">{words}</span></span>"
        )
    };
    match all {
        None | Some(0) if done == 0 => bar(1, 0, "starting".into()),
        // How long a script goes on is not known.
        None | Some(0) => {
            format!("<span class=\"progress\"><span class=\"n\">{} {what} so far</span></span>", count(done))
        }
        Some(all) => bar(all, done.min(all), format!("{} of {} {what}", count(done), count(all))),
    }
}

/// A count, its digits in groups of three.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let (first, rest) = digits.split_at((digits.len() - 1) % 3 + 1);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    [first.to_owned()].into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

/// What was worked out, or room for it.
pub fn told(shown: &BackgroundResult) -> String {
    match &shown.fragment {
        Some(fragment) => format!("<div id=\"told\" data-live>{}</div>\n", fragment.told),
        None => "<div id=\"told\" data-live><section class=\"waiting\"><h2>Findings</h2><p class=\"note\">Working out what \
                 these runs say …</p></section></div>\n"
            .into(),
    }
}

/// Where charts come to be; `src` has them.
pub fn charts(shown: &BackgroundResult, src: &str) -> String {
    let again = shown.again.map_or_else(String::new, |rest| format!(" data-again=\"{}\"", rest.as_millis()));
    let note = match (&shown.fragment, &shown.again) {
        (Some(fragment), None) => format!("Of {}.", fragment.of),
        (Some(fragment), Some(_)) => format!("Of {}, newer ones follow.", fragment.of),
        _ => "They are being drawn …".into(),
    };
    format!(
        "<section aria-labelledby=\"charts-title\"><h2 id=\"charts-title\">Charts</h2>\n\
         <p id=\"charts-note\" class=\"note\" data-live{again}>{}</p>\n\
         <div id=\"charts\" data-src=\"{}\" data-made=\"{}\"></div></section>\n",
        escape(&note),
        escape(src),
        shown.made
    )
}

pub fn figures(figures: &[paceline_analyze::figure::Figure]) -> String {
    if figures.is_empty() {
        return "<div class=\"empty\"><p>There is nothing to draw yet.</p></div>\n".into();
    }
    let mut html = String::from("<nav class=\"jump\" aria-label=\"Charts\">");
    for figure in figures {
        html += &format!("<a href=\"#{}\">{}</a>", escape(&figure.id), escape(&figure.title));
    }
    html += "</nav>\n";
    figures.iter().for_each(|figure| html += &paceline_analyze::report::figure_html(figure, false));
    html
}

/// A time of so many seconds.
pub fn seconds(value: f64) -> String {
    match value {
        s if s < 0.001 => format!("{} µs", number(1e6 * s)),
        s if s < 1.0 => format!("{} ms", number(1e3 * s)),
        s if s < 120.0 => format!("{} s", number(s)),
        s if s < 7200.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
        s => format!("{:.0} h {:.0} min", (s / 3600.0).floor(), (s % 3600.0) / 60.0),
    }
}

pub fn bytes(value: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) => format!("{} {unit}", number(value / size)),
        None => format!("{value:.0} bytes"),
    }
}

/// A moment, in seconds since 1970, in UTC.
pub fn moment(at_s: f64) -> String {
    let text = calendar(at_s);
    format!("<time datetime=\"{}Z\">{text} UTC</time>", text.replace(' ', "T"))
}

/// The same without its year, under a head that names the zone.
pub fn day(at_s: f64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, month, day) = date(at_s);
    let text = calendar(at_s);
    let month = MONTHS[(month - 1).clamp(0, 11) as usize];
    let (_, time) = text.split_once(' ').unwrap_or_default();
    format!(
        "<time datetime=\"{}Z\" title=\"{text} UTC\">{month} {day}, {time}</time>",
        text.replace(' ', "T")
    )
}

fn calendar(at_s: f64) -> String {
    let ((year, month, day), second) = (date(at_s), at_s.rem_euclid(86400.0) as u64);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second % 3600 / 60)
}

/// Year, month and day.
fn date(at_s: f64) -> (i64, i64, i64) {
    // Years begin in March here, so that the day that some have is their last.
    let from = (at_s / 86400.0).floor() as i64 + 719_468;
    let (era, day) = (from.div_euclid(146_097), from.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_times_and_sizes_have_their_units() {
        assert!(moment(0.0).contains("1970-01-01 00:00 UTC"));
        assert!(moment(951_827_696.0).contains("2000-02-29 12:34 UTC"), "{}", moment(951_827_696.0));
        assert!(moment(1_794_700_000.0).contains("2026-11-14 "), "{}", moment(1_794_700_000.0));
        assert!(day(951_827_696.0).contains(">Feb 29, 12:34<"), "{}", day(951_827_696.0));
        assert_eq!(
            [seconds(0.0125), seconds(3.0), seconds(130.0), seconds(7260.0)],
            ["12.5 ms", "3 s", "2 min 10 s", "2 h 1 min"]
        );
        assert_eq!([count(0), count(999), count(45_000_000)], ["0", "999", "45,000,000"]);
        assert_eq!([bytes(12.0), bytes(1_500_000.0)], ["12 bytes", "1.5 MB"]);
    }

    #[test]
    fn names_mean_themselves() {
        assert!(!badge("<script>").contains("<script>"));
        assert!(!tile("<b>", "<b>", "<b>").contains("<b>"));
    }
}
