//! Checkpoints: `checkpoints/step-000000000040/` in a run's folder, with one safetensors file per rank and
//! `manifest.json`, which is written last and names every file's length and SHA-256. Only what a manifest says is
//! believed; a checkpoint without a valid one does not exist.
//!
//! A checkpoint is made in a folder of another name, synced, and renamed when it is whole: whoever is killed on
//! the way leaves the last one as it was.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::store::RecordError;

const VERSION: u32 = 1;
const MANIFEST: &str = "manifest.json";
/// A manifest is a few lines per rank: more than this is none.
const LONGEST_MANIFEST: u64 = 64 << 20;
/// The key of a part's account in its file's metadata.
const ACCOUNT: &str = "account";

/// What a rank needs to go on: named numbers, and an account of what it has done so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankState {
    /// Named numbers.
    pub tensors: Vec<(String, Vec<f32>)>,
    /// A JSON document of the rank's own.
    pub account: String,
}

impl RankState {
    /// The numbers of a name; none if there are none.
    pub fn numbers(&self, name: &str) -> &[f32] {
        self.tensors.iter().find(|(n, _)| n == name).map_or(&[], |(_, numbers)| numbers)
    }
}

/// Where a run can go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// SHA-256 of the plan that it belongs to.
    pub plan_sha256: String,
    /// The launcher's own account, a JSON document.
    pub account: String,
    /// Each rank's part.
    pub parts: Vec<RankState>,
}

/// The manifest's file: its own hash is there too.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    manifest: Manifest,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Manifest {
    version: u32,
    step: u64,
    plan_sha256: String,
    account: String,
    /// In the order of the ranks.
    files: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    bytes: u64,
    sha256: String,
}

impl Manifest {
    fn hash(&self) -> String {
        hash(serde_json::to_string(self).expect("a manifest is plain data").as_bytes())
    }

    /// Its file: what it says, and its hash.
    fn sealed(self) -> Vec<u8> {
        let sealed = Sealed { sha256: self.hash(), manifest: self };
        (serde_json::to_string_pretty(&sealed).expect("a manifest is plain data") + "\n").into_bytes()
    }
}

/// A checkpoint that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its folder.
    pub path: PathBuf,
    /// Why.
    pub problem: String,
}

/// A run's checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// The checkpoints of the run whose folder this is.
    pub fn of(run: &Path) -> Self {
        Self { folder: run.join("checkpoints") }
    }

    /// The run's folder.
    pub fn run_folder(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    /// Writes a checkpoint, then removes all but the `keep` newest.
    pub fn save(&self, checkpoint: &Checkpoint, keep: usize) -> Result<PathBuf, RecordError> {
        let path = self.folder.join(format!("step-{:012}", checkpoint.step));
        let draft = self.folder.join(format!(".step-{:012}.part", checkpoint.step));
        let write = || {
            fs::create_dir_all(&self.folder)?;
            remove(&draft)?;
            fs::create_dir(&draft)?;
            let mut files = Vec::with_capacity(checkpoint.parts.len());
            for (rank, part) in checkpoint.parts.iter().enumerate() {
                let bytes = encode(part)?;
                store(&draft.join(file_name(rank)), &bytes)?;
                files.push(Entry { bytes: bytes.len() as u64, sha256: hash(&bytes) });
            }
            let manifest = Manifest {
                version: VERSION,
                step: checkpoint.step,
                plan_sha256: checkpoint.plan_sha256.clone(),
                account: checkpoint.account.clone(),
                files,
            };
            store(&draft.join(MANIFEST), &manifest.sealed())?;
            File::open(&draft)?.sync_all()?;
            remove(&path)?;
            fs::rename(&draft, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(|source| {
            // What could not be finished only takes up room; the run that fails will say why.
            let _ = remove(&draft);
            RecordError::File { path: path.clone(), source }
        })?;
        self.forget(keep.max(1))?;
        Ok(path)
    }

    fn forget(&self, keep: usize) -> Result<(), RecordError> {
        let mut folders = self.folders()?;
        folders.truncate(folders.len().saturating_sub(keep));
        for path in folders {
            remove(&path).map_err(|source| RecordError::File { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// Removes what somebody who was killed has left unfinished. Only for who goes on with the run.
    pub fn tidy(&self) -> Result<(), RecordError> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let draft = |name: &str| name.starts_with(".step-") && name.ends_with(".part");
        for entry in entries.filter(|entry| draft(&entry.file_name().to_string_lossy())) {
            let path = entry.path();
            remove(&path).map_err(|source| RecordError::File { path, source })?;
        }
        Ok(())
    }

    /// Folders that may be checkpoints, oldest first.
    fn folders(&self) -> Result<Vec<PathBuf>, RecordError> {
        let failed = |source| RecordError::File { path: self.folder.clone(), source };
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_string_lossy().starts_with("step-") {
                folders.push(entry.path());
            }
        }
        folders.sort();
        Ok(folders)
    }

    /// The checkpoint of this folder, which must be one of the plan's; otherwise what is wrong with it.
    pub fn open(path: &Path, plan_sha256: &str) -> Result<Checkpoint, Damaged> {
        load(path, plan_sha256).map_err(|problem| Damaged { path: path.to_owned(), problem })
    }

    /// The step of the newest valid checkpoint of a plan.
    pub fn latest_step(&self, plan_sha256: &str) -> Option<u64> {
        Some(self.latest(plan_sha256).ok()?.0?.step)
    }

    /// The newest valid checkpoint of a plan, and the newer ones that are not.
    pub fn latest(&self, plan_sha256: &str) -> Result<(Option<Checkpoint>, Vec<Damaged>), RecordError> {
        let mut damaged = Vec::new();
        for path in self.folders()?.into_iter().rev() {
            match load(&path, plan_sha256) {
                Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
                Err(problem) => damaged.push(Damaged { path, problem }),
            }
        }
        Ok((None, damaged))
    }
}

/// The file of a manifest with this content, its hash included; none if it is no manifest's content.
pub fn seal(content: &[u8]) -> Option<Vec<u8>> {
    serde_json::from_slice(content).ok().map(Manifest::sealed)
}

/// A checkpoint out of a manifest and the ranks' files, none of which is believed before it is checked.
pub fn read_whole(
    manifest: &[u8],
    plan_sha256: &str,
    mut file: impl FnMut(usize, u64) -> Result<Vec<u8>, String>,
) -> Result<Checkpoint, String> {
    let Sealed { manifest, sha256 } =
        serde_json::from_slice(manifest).map_err(|e| format!("{MANIFEST}: {e}"))?;
    if manifest.hash() != sha256 {
        return Err(format!("{MANIFEST}: its content is not what its hash says"));
    }
    let differs = |what: &str, expected: &dyn std::fmt::Display, found: &dyn std::fmt::Display| {
        Err(format!("{MANIFEST}: {what} {expected} was expected, {found} was found"))
    };
    if manifest.version != VERSION {
        return differs("version", &VERSION, &manifest.version);
    }
    if manifest.plan_sha256 != plan_sha256 {
        return differs("the plan", &plan_sha256, &manifest.plan_sha256);
    }
    let mut parts = Vec::new();
    for (rank, entry) in manifest.files.iter().enumerate() {
        let name = file_name(rank);
        let bytes = file(rank, entry.bytes)?;
        if hash(&bytes) != entry.sha256 {
            return Err(format!("{name}: its content is not what the manifest says"));
        }
        parts.push(decode(&bytes).map_err(|problem| format!("{name}: {problem}"))?);
    }
    let Manifest { step, plan_sha256, account, .. } = manifest;
    Ok(Checkpoint { step, plan_sha256, account, parts })
}

/// The name follows from the rank: no manifest can lead elsewhere.
fn file_name(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

/// Reads a checkpoint; what is wrong with it otherwise.
fn load(path: &Path, plan_sha256: &str) -> Result<Checkpoint, String> {
    let manifest = read(&path.join(MANIFEST), None)?;
    read_whole(&manifest, plan_sha256, |rank, bytes| read(&path.join(file_name(rank)), Some(bytes)))
}

/// A whole file of a known length, or of at most a manifest's.
fn read(path: &Path, length: Option<u64>) -> Result<Vec<u8>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let failed = |error: io::Error| format!("{name}: {error}");
    let file = paceline_files::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    match length {
        Some(expected) if expected != found => {
            return Err(format!("{name}: {expected} bytes were expected, {found} were found"));
        }
        None if found > LONGEST_MANIFEST => return Err(format!("{name}: {found} bytes are too long")),
        _ => {}
    }
    let mut bytes = Vec::new();
    file.take(found).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A rank's part as its file holds it.
pub fn encode(part: &RankState) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(part.tensors.len());
    for (name, numbers) in &part.tensors {
        bytes.push((name, numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()));
    }
    let views: Result<Vec<_>, _> = bytes
        .iter()
        .map(|(name, data)| Ok((*name, TensorView::new(Dtype::F32, vec![data.len() / 4], data)?)))
        .collect();
    let metadata = HashMap::from([(ACCOUNT.to_owned(), part.account.clone())]);
    let wrong = |error: safetensors::SafeTensorError| io::Error::other(error.to_string());
    safetensors::serialize(views.map_err(wrong)?, Some(metadata)).map_err(wrong)
}

/// A rank's part out of its file.
pub fn decode(bytes: &[u8]) -> Result<RankState, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let account = metadata.metadata().as_ref().and_then(|m| m.get(ACCOUNT)).cloned().unwrap_or_default();
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("{name} should be F32 and is {:?}", view.dtype()));
        }
        let numbers = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        tensors.push((name, numbers.collect()));
    }
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(RankState { tensors, account })
}

/// Writes a file and sees that it is on the disk.
fn store(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a folder, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// SHA-256 of bytes, in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(step: u64) -> Checkpoint {
        let part = |rank: usize| RankState {
            tensors: vec![
                ("optimiser.0".into(), vec![]),
                ("params".into(), (0..50 + rank).map(|i| (i as f32).sqrt() * step as f32).collect()),
            ],
            account: format!("{{\"rank\":{rank}}}"),
        };
        let account = "{\"curve\":[]}".into();
        Checkpoint { step, plan_sha256: "abc".into(), account, parts: (0..3).map(part).collect() }
    }

    fn with(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::of(folder.path());
        steps.iter().for_each(|&step| drop(checkpoints.save(&checkpoint(step), 2).unwrap()));
        (folder, checkpoints)
    }

    #[test]
    fn the_newest_comes_back_as_it_was_and_old_ones_are_forgotten() {
        let (_folder, checkpoints) = with(&[10, 20, 30]);
        assert_eq!(checkpoints.latest("abc").unwrap(), (Some(checkpoint(30)), vec![]));
        let names: Vec<_> = checkpoints.folders().unwrap();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(Checkpoints::of(Path::new("nowhere")).latest("abc").unwrap(), (None, vec![]));
    }

    #[test]
    fn any_damage_is_noticed_and_the_one_before_is_taken() {
        let files = ["manifest.json", "rank-0.safetensors", "rank-2.safetensors"];
        for name in files {
            let good = fs::read(with(&[20]).1.folder.join("step-000000000020").join(name)).unwrap();
            let mut damages: Vec<Option<Vec<u8>>> =
                vec![None, Some(vec![]), Some(good[..good.len() / 2].to_vec())];
            for bit in (0..good.len() * 8).step_by(211) {
                let mut flipped = good.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                damages.push(Some(flipped));
            }
            let (_folder, checkpoints) = with(&[10, 20]);
            let path = checkpoints.folder.join("step-000000000020");
            for damage in damages {
                match &damage {
                    Some(bytes) => fs::write(path.join(name), bytes).unwrap(),
                    None => fs::remove_file(path.join(name)).unwrap(),
                }
                let (found, damaged) = checkpoints.latest("abc").unwrap();
                // A bit that turns one kind of white space into another changes nothing.
                if found == Some(checkpoint(20)) {
                    assert_eq!(name, MANIFEST);
                    continue;
                }
                assert_eq!(found, Some(checkpoint(10)), "{name}: {damage:?}");
                assert_eq!(damaged.len(), 1);
                assert_eq!(damaged[0].path, path);
                assert!(damaged[0].problem.contains(name.split('.').next().unwrap()), "{damaged:?}");
            }
        }
    }

    #[test]
    fn what_was_left_unfinished_is_removed_and_nothing_else() {
        let (_folder, checkpoints) = with(&[10, 20]);
        let draft = checkpoints.folder.join(".step-000000000030.part");
        fs::create_dir(&draft).unwrap();
        fs::write(draft.join("rank-0.safetensors"), b"half of it").unwrap();
        checkpoints.tidy().unwrap();
        assert!(!draft.exists());
        assert_eq!(checkpoints.latest("abc").unwrap(), (Some(checkpoint(20)), vec![]));
        Checkpoints::of(Path::new("nowhere")).tidy().unwrap();
    }

    #[test]
    fn a_checkpoint_of_another_plan_is_not_taken() {
        let (_folder, checkpoints) = with(&[10]);
        let (found, damaged) = checkpoints.latest("xyz").unwrap();
        assert_eq!(found, None);
        assert!(damaged[0].problem.contains("xyz was expected, abc was found"), "{damaged:?}");
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_leaves_the_last_one() {
        let (_folder, checkpoints) = with(&[10]);
        // A file in the way of the draft's folder.
        fs::write(checkpoints.folder.join(".step-000000000020.part"), b"").unwrap();
        let error = checkpoints.save(&checkpoint(20), 2).unwrap_err();
        assert!(error.to_string().contains("step-000000000020"), "{error}");
        assert_eq!(checkpoints.latest("abc").unwrap().0, Some(checkpoint(10)));
    }
}
