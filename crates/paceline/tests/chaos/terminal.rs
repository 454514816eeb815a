//! A pseudo-terminal: a key pressed there signals every process of its foreground group.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Interrupt (Ctrl-C), and suspend (Ctrl-Z).
pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";

/// The side of a terminal where somebody types and reads.
pub struct Terminal(File);

impl Terminal {
    /// A new one, and the command turned into the leader of a session on it.
    pub fn run(command: &Command) -> (Self, Command) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let screen = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args()).stdin(screen);
        for (name, value) in command.get_envs() {
            value.map(|value| session.env(name, value));
        }
        let master = File::from(master);
        let mut shown = master.try_clone().unwrap();
        // What is shown is read by nobody, but must not pile up. It ends with the last process on the terminal.
        std::thread::spawn(move || while matches!(shown.read(&mut [0; 4096]), Ok(1..)) {});
        (Self(master), session)
    }

    pub fn press(&mut self, keys: &str) {
        self.0.write_all(keys.as_bytes()).unwrap();
    }
}
