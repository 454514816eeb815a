//! `paceline serve`: the recorded runs in a browser, live and read-only.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use paceline_dash::Access;
use serde_json::json;

use super::store::Where;
use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline serve`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7223")]
    listen: SocketAddr,
    /// File with the token that everybody needs who looks from elsewhere (at least 16 characters); nobody else may be
    /// able to read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
}

const HELP: &str = "\
Pages: / has all runs with filters, findings and charts; /run/ID one run; /compare?a=ID&b=ID two
beside each other; /metrics figures for Prometheus. They follow the store while runs are made.
Nothing can be changed through them. Without --listen they can be seen from this machine only;
elsewhere the token is needed, once as ?token=…, then the browser keeps it. It does not encrypt:
over networks that others can read, use a tunnel (ssh -L).

Examples:
  paceline serve
  paceline serve --listen 0.0.0.0:7223 --token-file token";

fn token(path: &PathBuf) -> Result<String, Failure> {
    let refuse = |problem: &str| {
        Failure::new(6, format!("--token-file {}: {problem}", path.display()), "e.g. `openssl rand -hex 24 > token; chmod 600 token`".into())
    };
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).map_err(|e| Failure::file(path, &e))?);
    if mode & 0o077 != 0 {
        return Err(refuse("others can read it"));
    }
    let token = text.trim();
    if token.len() < 16 || !token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(refuse("at least 16 letters, digits, - _ . are needed"));
    }
    Ok(token.into())
}

/// `paceline serve`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let token = args.token_file.as_ref().map(token).transpose()?;
    let folder = args.store.folder();
    // It must be there now; it is opened again for every page.
    drop(args.store.open()?);
    let busy = |error: std::io::Error| {
        Failure::new(1, format!("{}: {error}", args.listen), "choose another port with --listen".into())
    };
    let listener = TcpListener::bind(args.listen).map_err(busy)?;
    let address = listener.local_addr()?;
    let access = Access::new(address, token).map_err(|problem| {
        Failure::new(6, problem, "name a file with --token-file, or listen on 127.0.0.1".into())
    })?;
    let url = format!("http://{address}/");
    if show.json {
        output::json(&json!({"type": "serving", "url": url, "store": folder}))?;
    } else {
        output::text(&format!("{url}\n"))?;
    }
    // Until it is interrupted: it changes nothing, so it can be ended at any moment.
    paceline_dash::serve(listener, folder, access, std::future::pending()).map_err(busy)
}
