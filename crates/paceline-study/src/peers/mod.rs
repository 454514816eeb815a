//! Studies of other systems beside ours: a study file, and the programs that it runs. Each peer is a file here with its
//! script, and a line of [`PEERS`].

mod horovod;
mod tf_ps;
mod torch_ddp;

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Map, Value as Json, json};

use crate::error::StudyFailure;

/// A system beside which ours is studied: its own program, and how that is started.
#[derive(Debug)]
pub struct Peer {
    /// Its name: a level of the axis `system`.
    pub name: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    /// Modules that its program imports, and what pip installs for each.
    pub packages: &'static [(&'static str, &'static str)],
    /// Its script first, then what that imports: names and texts.
    pub files: &'static [(&'static str, &'static str)],
    /// The words that start it, up to the arguments of the script; `{python}`, `{workers}` and `{script}` are filled in.
    pub start: &'static str,
    /// Which of [`OURS`] are compared with it.
    pub beside: &'static [&'static str],
}

/// The peers.
pub static PEERS: [Peer; 3] = [torch_ddp::PEER, horovod::PEER, tf_ps::PEER];

paceline_registry::entries!(Peer, &PEERS);

/// Our own systems: names, and flags of `paceline train`.
const OURS: &[(&str, &str)] = &[
    ("paceline-auto", ""),
    ("paceline-tcp", "--transport tcp"),
    ("paceline-ps", "--strategy ps --servers 1 --sync asp"),
];

/// The networks in PyTorch, for every peer that uses it.
const TORCH_NETWORK: (&str, &str) = ("torch_network.py", include_str!("torch_network.py"));

/// What every peer's script imports: arguments, data, figures.
const WORKLOAD: (&str, &str) = ("workload.py", include_str!("workload.py"));

/// The program that runs one system, with places for those that were chosen.
const RUN: &str = include_str!("run.py");

/// The study file, with places for the same.
const STUDY: &str = include_str!("study.toml");

/// The files of a study of peers: paths and texts, the study file first.
pub struct PeerStudy(Vec<(PathBuf, String)>);

/// A study of these peers in the file `study`; their programs lie in a folder beside it.
pub fn peer_study(study: &Path, peers: &[&'static Peer], python: &str) -> PeerStudy {
    let mut named = HashSet::new();
    let peers: Vec<_> = peers.iter().copied().filter(|peer| named.insert(peer.name)).collect();
    let stem = study.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = format!("{stem}-peers");
    let beside: Vec<_> =
        OURS.iter().filter(|(name, _)| peers.iter().any(|p| p.beside.contains(name))).collect();
    let names = beside.iter().map(|(name, _)| *name).chain(peers.iter().map(|peer| peer.name));
    let ours: Map<String, Json> =
        beside.iter().map(|(name, flags)| ((*name).to_owned(), json!(flags))).collect();
    let theirs: Map<String, Json> =
        peers.iter().map(|peer| (peer.name.to_owned(), described(peer))).collect();
    let about = peers.iter().map(|peer| format!("#   {}: {}\n", peer.name, peer.about));
    let text = STUDY
        .replace("{STUDY}", &study.display().to_string())
        .replace("{ABOUT}\n", &about.collect::<String>())
        .replace("{PYTHON}", &json!(python).to_string())
        .replace("{PROGRAMS}", &folder)
        .replace("{SYSTEMS}", &names.map(|name| json!(name).to_string()).collect::<Vec<_>>().join(", "));
    let run = RUN.replace("{PEERS}", &table(&theirs)).replace("{OURS}", &table(&ours));
    let mut files = vec![(study.to_owned(), text)];
    let folder = study.with_file_name(folder);
    let mut add = |name: &str, text: &str| {
        let path = folder.join(name);
        if files.iter().all(|(known, _)| *known != path) {
            files.push((path, text.to_owned()));
        }
    };
    add("run.py", &run);
    add(WORKLOAD.0, WORKLOAD.1);
    peers.iter().flat_map(|peer| peer.files).for_each(|(name, text)| add(name, text));
    PeerStudy(files)
}

/// A peer as the program that runs it reads it.
fn described(peer: &Peer) -> Json {
    let packages: Map<String, Json> =
        peer.packages.iter().map(|(module, package)| ((*module).to_owned(), json!(package))).collect();
    json!({"script": peer.files[0].0, "start": peer.start, "packages": packages})
}

/// A table as Python writes it.
fn table(table: &Map<String, Json>) -> String {
    let mut text = Vec::new();
    let indented = PrettyFormatter::with_indent(b"    ");
    table.serialize(&mut Serializer::with_formatter(&mut text, indented)).expect("plain data");
    String::from_utf8(text).expect("JSON is UTF-8")
}

impl PeerStudy {
    /// Writes the files; where one of them is there already, nothing is written.
    pub fn write(&self) -> Result<(), StudyFailure> {
        if let Some((path, _)) = self.0.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
            return Err(StudyFailure::FileExists { path: path.into() });
        }
        for (path, text) in &self.0 {
            let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
                OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
            });
            written.map_err(|source| StudyFailure::File { path: path.into(), source })?;
        }
        Ok(())
    }

    /// The folder with the programs.
    pub fn programs(&self) -> &Path {
        self.0[1].0.parent().unwrap_or(Path::new(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AllRegistries;

    /// A study of these peers in a folder of its own, written and read again.
    fn written(names: &[&str]) -> (tempfile::TempDir, paceline_plan::Study) {
        let folder = tempfile::tempdir().unwrap();
        let registries = AllRegistries::default();
        let peers: Vec<_> = names.iter().map(|name| registries.peers.find(name).unwrap()).collect();
        let file = folder.path().join("beside.toml");
        peer_study(&file, &peers, "a \"python\"").write().unwrap();
        let study = crate::read(&file, &registries).unwrap_or_else(|error| panic!("{names:?}: {error}"));
        (folder, study)
    }

    #[test]
    fn what_is_written_is_a_study_with_the_systems_as_levels() {
        for (names, systems) in [
            (&["torch-ddp"][..], &["paceline-auto", "paceline-tcp", "torch-ddp"][..]),
            (&["horovod"], &["paceline-auto", "paceline-tcp", "horovod"]),
            (&["tf-ps"], &["paceline-auto", "paceline-ps", "tf-ps"]),
            (
                &["torch-ddp", "tf-ps"],
                &["paceline-auto", "paceline-tcp", "paceline-ps", "torch-ddp", "tf-ps"],
            ),
        ] {
            let (folder, study) = written(names);
            let axis = study.space.axes().iter().find(|axis| axis.name == "system").unwrap();
            let levels: Vec<String> = axis.levels.iter().map(ToString::to_string).collect();
            assert_eq!(levels, systems);
            assert_eq!(study.repeats, 5, "differences are told from noise by repeats");
            for name in names {
                let peer = PEERS.iter().find(|peer| peer.name == *name).unwrap();
                for (file, _) in peer.files {
                    assert!(folder.path().join("beside-peers").join(file).is_file(), "{file}");
                }
            }
            let run = fs::read_to_string(folder.path().join("beside-peers/run.py")).unwrap();
            assert!(!run.contains("{PEERS}") && !run.contains("{OURS}"), "{run}");
        }
    }

    #[test]
    fn every_peer_names_packages_scripts_and_systems_that_are_there() {
        for peer in &PEERS {
            assert!(peer.start.contains("{script}") && peer.start.contains("{workers}"), "{}", peer.name);
            assert!(peer.files[0].0.ends_with(".py") && !peer.packages.is_empty(), "{}", peer.name);
            assert!(
                peer.beside.iter().all(|name| OURS.iter().any(|(ours, _)| ours == name)),
                "{}",
                peer.name
            );
        }
    }
}
