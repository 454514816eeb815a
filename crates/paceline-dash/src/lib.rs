//! The live page: recorded runs and studies in a browser while they are made, read-only over the store.
//!
//! # Layout
//! - `access`: who may look: loopback names, a token otherwise, no other site's scripts
//! - `server`: connections, their deadlines and their number
//! - `route`: from a request to an answer; [`query`]: what an address says
//! - `cache`: what is in the store now; `group`: runs that are looked at together, `select`: some of them, `columns`:
//!   what a table shows of them
//! - `background`: charts and findings, made beside the pages, so that no page waits for them for long
//! - `pages`: the pages; `metrics`: figures for Prometheus
//! - `live`: what is new, as server-sent events
//! - `assets/`: scripts, style and frames of the pages
//!
//! # Deliberately absent
//! Writing: every method but GET and HEAD is refused. Anything that a terminal user could not get. How a study's state
//! is kept: whoever serves hands it in ([`group::Studies`]).

#![forbid(unsafe_code)]

mod access;
mod background;
mod cache;
mod columns;
mod group;
mod live;
mod metrics;
mod pages;
pub mod query;
mod route;
mod select;
mod server;

pub use access::Access;
pub use group::{Group, Member, Studies, StudyOverview};
pub use server::serve;
