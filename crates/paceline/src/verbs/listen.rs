//! The flags of a run that other machines join, and what the user must know to let them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_launch::key_file::{self, Temporary};
use paceline_launch::{HostAddress, LaunchError, Listen, how_to_join, run};
use paceline_plan::{Plan, PlanError};
use paceline_wire::line::join_listener::JoinListener;

use crate::failure::Failure;
use crate::flags::registries;
use crate::output::Show;
use paceline_record::FailureKind;

/// The environment's name of the key file.
const KEY_FILE: &str = "PACELINE_KEY_FILE";

/// Flags of runs that other machines join.
#[derive(clap::Args, Debug, Default)]
pub struct Listening {
    /// Wait here for other machines that `paceline join`, until there are as many --hosts (this one included);
    /// what they say to each other is encrypted (TLS 1.3)
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = |s: &str| s.parse::<HostAddress>())]
    listen: Option<HostAddress>,
    /// File with the key that lets machines join; made if there is none [default: PACELINE_KEY_FILE]. Needed
    /// unless --listen is on loopback
    #[arg(long, value_name = "FILE", requires = "listen")]
    key_file: Option<PathBuf>,
    /// Seconds to wait for the other machines
    #[arg(long, default_value_t = 300.0, value_parser = seconds, requires = "listen")]
    join_timeout: f64,
}

pub fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 1e6);
    value.ok_or_else(|| "a number of seconds above 0, at most a million, is needed".into())
}

/// The flag, else the environment.
pub fn key_path(flag: Option<&PathBuf>) -> Option<PathBuf> {
    flag.cloned().or_else(|| std::env::var_os(KEY_FILE).filter(|v| !v.is_empty()).map(PathBuf::from))
}

impl Listening {
    /// Whether other machines are waited for.
    pub fn given(&self) -> bool {
        self.listen.is_some()
    }

    /// Refuses to listen at all.
    pub fn refuse(&self, problem: &str) -> Result<(), PlanError> {
        let Some(address) = &self.listen else { return Ok(()) };
        Err(PlanError { flag: "--listen".into(), value: address.to_string(), problem: problem.into() })
    }

    /// Refuses what cannot be, before anything is loaded or made.
    pub fn check(&self, plan: &Plan, single: bool) -> Result<(), Failure> {
        run::check_processes(plan)?;
        let Some(address) = &self.listen else {
            return if single {
                Ok(())
            } else {
                Ok(run::check_hosts(plan, &registries().runs().transports, false)?)
            };
        };
        if single {
            let problem = "one worker alone runs on one machine; give more --workers, and --hosts".into();
            return Err(PlanError { flag: "--listen".into(), value: address.to_string(), problem }.into());
        }
        run::check_hosts(plan, &registries().runs().transports, true)?;
        if !address.all[0].ip().is_loopback() && key_path(self.key_file.as_ref()).is_none() {
            let message = format!(
                "other machines can reach {}: without a key this would let anybody in",
                address.all[0]
            );
            let hint = "give --key-file FILE (it is made if there is none), or listen at 127.0.0.1";
            return Err(Failure::new(FailureKind::Protocol, message, hint));
        }
        Ok(())
    }

    /// Listens, with the user's key or with one that goes with the run in `folder`; tells how to join.
    pub fn open(
        &self,
        plan: &Plan,
        folder: &Path,
        show: Show,
    ) -> Result<(Option<Listen>, Option<Temporary>), Failure> {
        let Some(address) = &self.listen else { return Ok((None, None)) };
        let given = key_path(self.key_file.as_ref());
        let path = given.clone().unwrap_or_else(|| folder.join("join.key"));
        if given.is_none() {
            std::fs::create_dir_all(folder).map_err(|e| Failure::file(folder, &e))?;
        }
        let (key, made) = key_file::read_or_create(&path).map_err(LaunchError::from)?;
        let temporary = given.is_none().then(|| Temporary(path.clone()));
        let join_listener = JoinListener::bind(address.all[0]).map_err(LaunchError::from)?;
        show.note(&how_to_join(&join_listener, plan.host_count() - 1, &path, made && given.is_some()));
        let timeout = Duration::from_secs_f64(self.join_timeout);
        Ok((Some(Listen { join_listener, key, timeout }), temporary))
    }
}
