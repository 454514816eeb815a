//! `paceline join`: one machine's part of a run that another machine leads.

use std::path::PathBuf;
use std::time::Duration;

use paceline_launch::agent::{self, Join};
use paceline_launch::engine::{key_from, leader_address};
use paceline_launch::{HostAddress, Interrupt, LaunchError, key_file};

use super::listen::{key_path, seconds};
use crate::failure::Failure;
use crate::flags::PlaceFlags;
use crate::output::{self, Show};
use paceline_record::FailureKind;

/// Flags of `paceline join`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The machine that leads runs `paceline train --listen ADDR --hosts N --key-file FILE ...`; it decides what is \
trained, and which ranks each machine gets. Copy its key file here first, readable by you alone. Started once \
per machine by torchrun or a scheduler, the environment is enough:

  MASTER_ADDR=10.0.0.1 MASTER_PORT=7700 WORLD_SIZE=2 RANK=1 PACELINE_KEY_FILE=run.key paceline join")]
pub struct Args {
    /// Where `paceline train --listen` waits [default: MASTER_ADDR and MASTER_PORT]
    #[arg(value_name = "ADDR[:PORT]", value_parser = |s: &str| s.parse::<HostAddress>())]
    address: Option<HostAddress>,
    /// File with the launcher's key [default: PACELINE_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Read the key from standard input, as `train --hosts-file` sends it
    #[arg(long, conflicts_with = "key_file")]
    key_stdin: bool,
    /// Which host to be, from 1 up; 0 is the launcher's [default: RANK, else the first that is free]
    #[arg(long, value_name = "N")]
    host: Option<usize>,
    /// Number of hosts that the run must have [default: WORLD_SIZE, else any]
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// Seconds to try until the launcher answers
    #[arg(long, default_value_t = 300.0, value_parser = seconds)]
    join_timeout: f64,
    #[command(flatten)]
    place: PlaceFlags,
}

/// `paceline join`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let bad = |message: String| Failure::new(FailureKind::Usage, message, "give the launcher's ADDR:PORT");
    let number = |name| paceline_launch::engine::number_of(name).map_err(bad);
    let address = args.address.clone().map_or_else(|| leader_address().map_err(bad), Ok)?;
    let host = args.host.map_or_else(|| number("RANK"), |host| Ok(Some(host)))?;
    let hosts = args.hosts.map_or_else(|| number("WORLD_SIZE"), |hosts| Ok(Some(hosts)))?;
    if host == Some(0) {
        let message = "host 0 (RANK=0) is the machine where `paceline train --listen` runs";
        return Err(Failure::new(
            FailureKind::Usage,
            message,
            "the others join as 1 and up, or without a number",
        ));
    }
    let key = match key_path(args.key_file.as_ref()) {
        _ if args.key_stdin => key_from(std::io::stdin())?,
        Some(path) => key_file::read(&path).map_err(LaunchError::from)?,
        None => {
            let message = "joining needs the launcher's key";
            let hint =
                "--key-file FILE or PACELINE_KEY_FILE; `paceline train --listen` says where its key is";
            return Err(Failure::new(FailureKind::Protocol, message, hint));
        }
    };
    let join = Join {
        folders: args.place.0.data_folders(),
        host,
        hosts,
        program: (std::env::current_exe()?, "rank"),
        patience: Duration::from_secs_f64(args.join_timeout),
        interrupt: Interrupt::on_signals()?,
        task: None,
    };
    let tell = &mut |line: &str| {
        show.note(line);
    };
    let joined = agent::join(&address.all, &key, &join, tell)?;
    if show.json {
        output::json(&joined.document())?;
    } else {
        show.note(&joined.words());
    }
    Ok(())
}
