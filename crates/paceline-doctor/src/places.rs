//! The store that runs are recorded in, and the datasets.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use paceline_data::{DataError, DatasetKind, Folders, common_path};
use paceline_record::store::{OutOfSpace, free_bytes, scarce};
use paceline_record::{RecordError, Store};
use paceline_registry::Registry;
use rustix::fs::{Access, access};

use crate::diagnosis::Diagnosis;
use crate::limits::mb;

/// Free space below which a study's records and checkpoints get narrow, in bytes.
const LITTLE_SPACE: u64 = 1 << 30;
/// A checkpoint of a small model, in bytes.
const CHECKPOINT: u64 = 1 << 20;
/// Bytes of a dataset's file that are read.
const SAMPLE: u64 = 4 << 10;

/// Whether runs can be recorded in a folder.
pub(crate) fn store(folder: &Path) -> Diagnosis {
    let shown = folder.display();
    let mend = "free some space, or choose another place: --store DIR, PACELINE_STORE";
    let here = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let nearest = here.ancestors().find(|place| place.exists()).unwrap_or(&here);
    if !nearest.is_dir() {
        return Diagnosis::fails("store", format!("{} is not a folder", nearest.display()), mend);
    }
    if let Err(error) = access(nearest, Access::WRITE_OK | Access::EXEC_OK) {
        let found = format!("{}: {}", nearest.display(), io::Error::from(error));
        return Diagnosis::fails("store", found, "choose a folder of your own: --store DIR, PACELINE_STORE");
    }
    if let Some(OutOfSpace { needed, free }) = scarce(&here, 1, CHECKPOINT) {
        let found = format!("{shown} has {} free, and the shortest record needs {}", mb(free), mb(needed));
        return Diagnosis::fails("store", found, mend);
    }
    let free = free_bytes(&here);
    let space = free.map_or("unknown space".into(), mb);
    let runs = match Store::open(folder).and_then(|store| store.runs()) {
        Ok(runs) => format!("{} runs", runs.len()),
        Err(RecordError::Empty { .. }) => "no runs yet".into(),
        Err(error) => return Diagnosis::fails("store", error.to_string(), &error.hint()),
    };
    if free.is_some_and(|free| free < LITTLE_SPACE) {
        let found = format!("{shown} has {space} free: studies and checkpoints of large models need more");
        return Diagnosis::hurts("store", found, mend);
    }
    Diagnosis::ok("store", format!("{shown}: {runs}, {space} free"))
}

/// Datasets that are here, one by one where something is wrong; those that are not here in one line.
pub(crate) fn datasets(kinds: &Registry<DatasetKind>, folders: &Folders) -> Vec<Diagnosis> {
    let (mut found, mut here, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for kind in kinds.iter() {
        match kind.locate(folders) {
            Err(DataError::NotFound { .. }) => missing.push(kind.name),
            Err(error) => found.push(unreadable(kind.name, &error.to_string(), &error.hint())),
            Ok(files) => match files.iter().find_map(|path| Some((path, readable(path).err()?))) {
                None => here.push(kind.name),
                Some((path, error)) => {
                    let place = common_path(&files).unwrap_or(path).display();
                    let mend =
                        format!("chmod -R u+r {place}, or `paceline data get {}` once more", kind.name);
                    found.push(unreadable(kind.name, &format!("{}: {error}", path.display()), &mend));
                }
            },
        }
    }
    found.extend(folders.0.iter().filter_map(unreadable_folder));
    let here = Diagnosis::ok("datasets", format!("ready: {}", here.join(", ")));
    let missing = (!missing.is_empty()).then(|| {
        let found = format!("not here: {}", missing.join(", "));
        Diagnosis::absent("datasets", found, "`paceline data get NAME` fetches one")
    });
    found.into_iter().chain([here]).chain(missing).collect()
}

fn unreadable(name: &str, problem: &str, mend: &str) -> Diagnosis {
    Diagnosis::fails("datasets", format!("{name} cannot be read: {problem}"), mend)
}

/// A folder of datasets that cannot be looked into: what is in it is taken for missing.
fn unreadable_folder(folder: &PathBuf) -> Option<Diagnosis> {
    let error = fs::read_dir(folder).err().filter(|error| error.kind() == io::ErrorKind::PermissionDenied)?;
    let found = format!("{} cannot be looked into: {error}", folder.display());
    Some(Diagnosis::fails("datasets", found, &format!("chmod u+rx {}", folder.display())))
}

/// Reads the beginning of a file, or lists a folder.
fn readable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return fs::read_dir(path).map(drop);
    }
    let mut bytes = Vec::new();
    paceline_files::open(path)?.take(SAMPLE).read_to_end(&mut bytes)?;
    if bytes.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    #[test]
    fn a_store_is_judged_where_it_is_or_would_be() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = store(&folder.path().join("not/yet"));
        assert!(fresh.found.contains("no runs yet") || fresh.severity == Severity::Hurts, "{fresh:?}");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let found = store(&file.join("store"));
        assert_eq!(found.severity, Severity::Fails);
        assert!(found.found.ends_with("is not a folder"), "{found:?}");
        fs::create_dir(folder.path().join("broken")).unwrap();
        fs::write(folder.path().join("broken/paceline.db"), "no database at all, whatever its name").unwrap();
        let found = store(&folder.path().join("broken"));
        assert_eq!(found.severity, Severity::Fails, "{found:?}");
    }

    #[test]
    fn an_empty_file_of_a_dataset_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("tinyshakespeare");
        fs::create_dir(&text).unwrap();
        fs::write(text.join("input.txt"), "").unwrap();
        let folders = Folders(vec![folder.path().into()]);
        let found = datasets(&Registry::default(), &folders);
        assert!(found[0].severity == Severity::Fails && found[0].found.contains("it is empty"), "{found:?}");
        assert!(found.iter().any(|one| one.found.starts_with("ready: digits")), "{found:?}");
        assert!(found.iter().any(|one| one.found.starts_with("not here: mnist")), "{found:?}");
    }
}
