//! `paceline serve`: studies and runs in a browser, live and read-only.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use paceline_dash::Access;
use paceline_launch::LaunchError;
use paceline_launch::key_file::{self, KeyError};
use paceline_record::store::FILE;
use paceline_study::StudyStore;
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::flags::registries;
use crate::output::{self, Show};
use paceline_record::FailureKind;

/// The port where nothing else is said.
const PORT: u16 = 7223;

/// Flags of `paceline serve`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR[:PORT]", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT), value_parser = address)]
    listen: SocketAddr,
    /// File with the token that everybody needs who looks; made if there is none. Needed unless --listen is on loopback
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
}

const HELP: &str = "\
Pages: / what is under way, studies and the latest runs; /study/NAME one study; /runs all runs;
/run/ID one run; /compare?pick=ID&pick=ID… runs beside each other, /compare?study=NAME&study=NAME…
studies; /metrics figures for Prometheus. Filters, order and what is picked stand in the address.
Pages follow the store while runs are made, and nothing can be changed through them. Without --listen they can be seen from this machine only;
elsewhere the token is asked for once, then the browser keeps it (programs send `Authorization:
Bearer TOKEN`). It does not encrypt: over networks that others can read, use a tunnel (ssh -L).

Examples:
  paceline serve
  paceline serve --store other-folder --listen 127.0.0.1:0
  paceline serve --listen 0.0.0.0 --token-file token";

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    text.parse().map_err(|_| format!("a numeric address is needed, e.g. 127.0.0.1:{PORT} or [::1]:{PORT}"))
}

/// The token of a file, and whether it was made just now.
fn token(path: &Path) -> Result<(String, bool), Failure> {
    let failed = |error: KeyError| {
        let hint = error.hint(&format!("paceline serve --token-file {}", path.display()));
        let message = format!("--token-file: {error}");
        Failure::new(LaunchError::from(error).kind(), message, hint)
    };
    let (key, made) = key_file::read_or_create(path).map_err(failed)?;
    Ok((key.as_bytes().iter().map(|b| format!("{b:02x}")).collect(), made))
}

/// `paceline serve`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    // Before anything is made: a refused address leaves no token behind.
    if args.token_file.is_none() {
        allowed(args.listen, None)?;
    }
    let token = args.token_file.as_deref().map(token).transpose()?;
    let busy = |error: std::io::Error| {
        let hint = "choose another address or port with --listen; port 0 takes a free one";
        Failure::new(FailureKind::Other, format!("cannot listen at {}: {error}", args.listen), hint)
    };
    let listener = TcpListener::bind(args.listen).map_err(busy)?;
    let address = listener.local_addr()?;
    let access = allowed(address, token.as_ref().map(|(token, _)| token.clone()))?;
    let folder = args.store.folder();
    let url = format!("http://{address}/");
    if !show.quiet {
        if !folder.join(FILE).is_file() {
            output::note(&format!(
                "nothing is recorded in {} yet: pages fill when there is",
                folder.display()
            ));
        }
        if let Some((path, (_, made))) = args.token_file.as_ref().zip(token.as_ref()) {
            let which = if *made { "a new token is in" } else { "the token is in" };
            output::note(&format!("{which} {}; pages ask for it once", path.display()));
        }
        output::note("serving until it is interrupted (Ctrl-C):");
    }
    if show.json {
        output::json(&json!({"type": "serving", "url": url, "address": address, "store": folder}))?;
    } else {
        output::text(&format!("{url}\n"))?;
    }
    // It changes nothing, so it can be ended at any moment.
    let studies = Box::new(StudyStore(folder.clone(), registries().clone()));
    let figures = registries().figures.clone();
    paceline_dash::serve(listener, folder, studies, figures, access, std::future::pending()).map_err(busy)
}

fn allowed(address: SocketAddr, token: Option<String>) -> Result<Access, Failure> {
    let hint = "give --token-file FILE (it is made if there is none), or listen at 127.0.0.1";
    Access::new(address, token).map_err(|problem| Failure::new(FailureKind::Protocol, problem, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_get_one() {
        let of = |text: &str| address(text).map(|a| a.to_string());
        assert_eq!(of("0.0.0.0").unwrap(), "0.0.0.0:7223");
        assert_eq!(of("[::1]:80").unwrap(), "[::1]:80");
        assert!(of("somewhere").unwrap_err().contains("numeric address"));
    }
}
