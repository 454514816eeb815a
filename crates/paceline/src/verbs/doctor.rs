//! `paceline doctor`: what will hurt runs on this machine, on others, and between them.

use std::path::PathBuf;
use std::sync::Arc;

use paceline_doctor::links::survey;
use paceline_doctor::{Checkup, Examination, HostReport, responder};
use paceline_launch::{HostAddress, Interrupt, LaunchError, key_file};
use paceline_record::FailureKind;
use paceline_wire::Key;
use paceline_wire::line::join_listener::JoinListener;

use super::listen::key_path;
use super::store::Where;
use crate::failure::Failure;
use crate::flags::{PlaceFlags, registries};
use crate::output::Show;

/// Flags of `paceline doctor`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Ends with 0 if nothing was found that will hurt, and with 1 otherwise.

Links are measured over the encrypted line that `train --listen` and `join` use. Start a doctor on each other \
machine first, with the same key:

  paceline doctor --listen 10.0.0.2 --key-file run.key     # there
  paceline doctor 10.0.0.2 10.0.0.3 --key-file run.key     # here")]
pub struct Args {
    /// Machines where `paceline doctor --listen` waits: what it finds there, and the links to and between them
    #[arg(value_name = "HOST[:PORT]", value_parser = |s: &str| s.parse::<HostAddress>())]
    hosts: Vec<HostAddress>,
    /// Answer the doctors of other machines here, until Ctrl-C
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with = "hosts", value_parser = |s: &str| s.parse::<HostAddress>())]
    listen: Option<HostAddress>,
    /// File with the key that doctors must share; --listen makes it if there is none [default: PACELINE_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    store: Where,
    #[command(flatten)]
    place: PlaceFlags,
}

impl Args {
    fn examine(&self) -> impl Fn() -> HostReport + Send + Sync + 'static {
        let (store, folders) = (self.store.folder(), self.place.0.data_folders());
        let datasets = &registries().runs().datasets;
        move || Examination { store: &store, folders: &folders, datasets }.here()
    }

    /// The key; made if it may be.
    fn key(&self, make: bool) -> Result<Key, Failure> {
        let Some(path) = key_path(self.key_file.as_ref()) else {
            let message = "doctors of several machines need a key that they share";
            let hint =
                "--key-file FILE or PACELINE_KEY_FILE; `paceline doctor --listen` makes it if there is none";
            return Err(Failure::new(FailureKind::Protocol, message, hint));
        };
        let key =
            if make { key_file::read_or_create(&path).map(|(key, _)| key) } else { key_file::read(&path) };
        Ok(key.map_err(LaunchError::from)?)
    }
}

/// `paceline doctor`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    if let Some(address) = &args.listen {
        let (key, interrupt) = (args.key(true)?, Interrupt::on_signals()?);
        let listener = JoinListener::bind(address.all[0]).map_err(LaunchError::from)?;
        show.note(&format!("answering doctors at {}, until Ctrl-C", listener.address()));
        interrupt.arm();
        let answered = responder::answer(listener, key, Arc::new(args.examine()), &interrupt, &mut |line| {
            show.note(line)
        });
        return Ok(answered.map_err(LaunchError::from)?);
    }
    let key = if args.hosts.is_empty() { None } else { Some(args.key(false)?) };
    let here = args.examine()();
    let addresses: Vec<_> = args.hosts.iter().map(|host| host.all[0]).collect();
    let asked = key.map(|key| survey(&addresses, &key, &here.host, &mut |line| show.note(line)));
    let checkup = Checkup::new(here, asked.unwrap_or_default());
    show.print(&checkup, || checkup.text())?;
    match checkup.problems {
        0 => Ok(()),
        n => {
            let message = format!("{n} of the things that were looked at will hurt runs");
            Err(Failure::new(FailureKind::Other, message, "each line above says how to mend it"))
        }
    }
}
