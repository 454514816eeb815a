//! `paceline calibrate`: what things cost on this machine, for `simulate`.

use std::path::PathBuf;

use paceline_virtual::{VirtualError, calibrate};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Show};

/// Flags of `paceline calibrate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "calibration.toml")]
    out: PathBuf,
    /// A few seconds instead of a minute: one model, wider intervals
    #[arg(long)]
    quick: bool,
}

#[derive(Serialize)]
struct Summary<'a> {
    r#type: &'static str,
    out: String,
    seconds: f64,
    passes: usize,
    transports: usize,
    cpu: &'a str,
    cores: usize,
}

/// `paceline calibrate`.
pub fn run(args: &Args, show: Show) -> Result<(), Failure> {
    let start = std::time::Instant::now();
    // A file that cannot be written is told of before a minute is spent.
    let written = |text: &str| {
        std::fs::write(&args.out, text)
            .map_err(|source| VirtualError::File { path: args.out.clone(), source })
    };
    if !args.out.exists() {
        written("")?;
    }
    let say = &mut |what: &str| {
        show.note(&format!("{:>6.1} s  {what}", start.elapsed().as_secs_f64()));
    };
    let measured = calibrate::measure(&super::bench::program()?, args.quick, say)?;
    written(&measured.text())?;
    let (seconds, out) = (start.elapsed().as_secs_f64(), args.out.display().to_string());
    show.note(&format!("wrote {out} after {seconds:.1} s"));
    if show.to_people() {
        return Ok(());
    }
    output::json(&Summary {
        r#type: "calibration",
        out,
        seconds,
        passes: measured.pass.len(),
        transports: measured.transport.len(),
        cpu: &measured.cpu,
        cores: measured.cores,
    })?;
    Ok(())
}
