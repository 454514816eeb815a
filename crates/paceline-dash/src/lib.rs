//! The live page: recorded runs in a browser while they are made, read-only over the store.
//!
//! # Layout
//! - [`access`]: who may look: loopback names, a token otherwise, no other site's scripts
//! - [`server`]: connections, their deadlines and their number
//! - [`route`]: from a request to an answer; [`pages`]: the pages; [`filters`]: what an address selects
//! - [`live`]: what is new, as server-sent events
//! - `assets/`: the script and the style of the pages
//!
//! # Deliberately absent
//! Writing: every method but GET and HEAD is refused. Anything that a terminal user could not get.

#![forbid(unsafe_code)]

pub mod access;
pub mod filters;
pub mod live;
pub mod pages;
pub mod route;
pub mod server;

pub use access::Access;
pub use server::serve;
