//! The pages: [`home`], [`group`] (a study, or all runs; its [`filters`] and its [`table`]), [`run`], [`compare`].
//!
//! Parts with `data-live` and an id are replaced when something is new (`assets/live.js`); `#told` and `#charts` show
//! what [`background`](crate::background) made last. Every page can be read without scripts; only charts need them.

pub mod compare;
mod filters;
pub mod group;
pub mod home;
pub mod parts;
pub mod run;
pub mod table;

use hyper::StatusCode;
use paceline_analyze::sheet::escape;
use paceline_record::{RecordError, Store};

use crate::background::{BackgroundResult, Fragment, PATIENCE};
use crate::group::StudyOverview;
use crate::query::{Query, decode, encode};
use crate::route::ServerState;

pub struct Page {
    pub status: StatusCode,
    pub html: String,
}

/// A page, or the one that says why there is none.
pub type PageResult = Result<Page, Page>;

impl Page {
    /// The charts that a page shows, as far as they are there.
    fn charts(shown: BackgroundResult) -> Self {
        let html = shown.fragment.map_or_else(String::new, |fragment| fragment.charts.clone());
        Self { status: StatusCode::OK, html }
    }
}

/// What is worked out beside the page from what the store has.
fn of_store(
    site: &ServerState,
    key: &str,
    stamp: u64,
    make: impl FnOnce(&Store) -> Result<Fragment, RecordError> + Send + 'static,
) -> BackgroundResult {
    let folder = site.cache.folder().to_owned();
    let failed = |error: RecordError| Fragment { told: note(&error), ..Fragment::default() };
    let work = move || Store::open(&folder).and_then(|store| make(&store)).unwrap_or_else(failed);
    site.background.ask(key, stamp, PATIENCE, || Box::new(work))
}

fn note(error: &impl ToString) -> String {
    format!("<p class=\"note\">{}</p>", escape(&error.to_string()))
}

/// Which part of the site a page belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Room {
    Overview,
    Runs,
    Comparison,
    None,
}

fn frame(room: Room, title: &str, body: &str) -> Page {
    let link = |own: Room, to: &str, words: &str| {
        let current = if own == room { " aria-current=\"page\"" } else { "" };
        format!("<a href=\"{to}\"{current}>{words}</a>")
    };
    let html = format!(
        include_str!("../assets/frame.html"),
        title = escape(title),
        class = if matches!(room, Room::Runs | Room::Comparison) { "broad" } else { "" },
        overview = link(Room::Overview, "/", "Overview"),
        runs = link(Room::Runs, "/runs", "All runs"),
        body = body,
    );
    Page { status: StatusCode::OK, html }
}

/// A page that says what is wrong and what to do.
pub fn problem(status: StatusCode, what: &str, hint: &str) -> Page {
    let body = format!(
        "<div class=\"empty\"><h1>{}</h1><p>{}</p><p><a href=\"/\">To the overview</a></p></div>\n",
        escape(what),
        escape(hint)
    );
    Page { status, ..frame(Room::None, what, &body) }
}

/// Asks for the token; one that was brought is wrong.
pub fn sign_in(path: &str, brought: bool) -> Page {
    let title = if brought { "This is not the token" } else { "A token is needed" };
    // What needs the token (the style, too) is not loaded.
    let html = format!(include_str!("../assets/sign-in.html"), title = title, path = escape(path));
    Page { status: StatusCode::UNAUTHORIZED, html }
}

fn unknown() -> Page {
    problem(StatusCode::NOT_FOUND, "There is no such page", "The overview lists every study and run.")
}

fn failed(error: &RecordError) -> Page {
    match error {
        RecordError::Which { .. } | RecordError::Empty { .. } => {
            problem(StatusCode::NOT_FOUND, "There is no such run", &error.to_string())
        }
        _ => problem(StatusCode::SERVICE_UNAVAILABLE, "The store cannot be read", &error.to_string()),
    }
}

/// The name in an address, and what follows it.
fn named<'a>(path: &'a str, room: &str) -> Option<(String, &'a str)> {
    let rest = path.strip_prefix(room)?;
    let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
    (!name.is_empty()).then(|| (decode(name), rest))
}

pub fn make(site: &ServerState, path: &str, query: &Query) -> Page {
    let made = match path {
        "/" => home::page(site),
        "/runs" => all_runs(site).and_then(|view| group::page(site, &view, query)),
        "/runs/charts" => all_runs(site).and_then(|view| group::charts(site, &view, query)),
        "/compare" => compare::page(site, query),
        "/compare/charts" => compare::charts(site, query),
        _ => match (named(path, "/run/"), named(path, "/study/")) {
            (Some((name, "")), _) => run::page(site, &name),
            (Some((name, "charts")), _) => run::charts(site, &name),
            (_, Some((name, ""))) => of_study(site, &name).and_then(|view| group::page(site, &view, query)),
            (_, Some((name, "charts"))) => {
                of_study(site, &name).and_then(|view| group::charts(site, &view, query))
            }
            _ => Err(unknown()),
        },
    };
    made.unwrap_or_else(|page| page)
}

/// The lines of parallel coordinates, as JSON.
pub fn parallel(site: &ServerState, path: &str, query: &Query) -> Result<String, Page> {
    let view = match named(path, "/study/") {
        Some((name, "parallel.json")) => of_study(site, &name)?,
        _ if path == "/runs/parallel.json" => all_runs(site)?,
        _ => return Err(unknown()),
    };
    Ok(group::lines(&view, query))
}

fn all_runs(site: &ServerState) -> Result<group::View, Page> {
    let group = site.cache.group().map_err(|error| failed(&error))?;
    Ok(group::View { base: "/runs".into(), of: group::GroupKind::Runs(group) })
}

fn of_study(site: &ServerState, name: &str) -> Result<group::View, Page> {
    let missing = |error: String| problem(StatusCode::NOT_FOUND, "This study cannot be shown", &error);
    let mut study = StudyOverview::clone(&*site.cache.study(name).map_err(missing)?);
    study.group = study.group.labelled(&site.cache.runs().unwrap_or_default());
    Ok(group::View { base: format!("/study/{}", encode(name)), of: group::GroupKind::Study(Box::new(study)) })
}
