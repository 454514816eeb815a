//! From a `.part` file to verified files under their names.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use paceline_data::content::hex;
use paceline_data::origin::{self, DownloadItem, Packing};
use sha2::{Digest, Sha256};

use crate::error::FetchError;

/// Unpacks what lies in `part`, checks every file and gives it its name. `address` is for error messages.
pub(crate) fn unpack(
    parcel: &DownloadItem,
    address: &str,
    part: &Path,
    folder: &Path,
) -> Result<(), FetchError> {
    let read = || {
        let open = paceline_files::open(part).map(BufReader::new);
        open.map_err(|source| FetchError::Io { path: part.into(), source })
    };
    let damaged = |problem: String| FetchError::Damaged { address: address.into(), problem };
    let mut finished: Vec<(PathBuf, &origin::File)> = Vec::new();
    match parcel.packing {
        Packing::Plain => {
            let file = &parcel.files[0];
            copy(&mut read()?, None, file, address)?;
            finished.push((part.to_owned(), file));
        }
        Packing::Gz => {
            let file = &parcel.files[0];
            finished.push((unpacked(folder, file, address, &mut MultiGzDecoder::new(read()?))?, file));
        }
        Packing::TarGz => {
            let mut archive = tar::Archive::new(MultiGzDecoder::new(read()?));
            for entry in archive.entries().map_err(|e| damaged(e.to_string()))? {
                let mut entry = entry.map_err(|e| damaged(e.to_string()))?;
                // Only names that are known are ever written, wherever the archive wants them to be.
                let path = entry.path().map_err(|e| damaged(e.to_string()))?;
                let name = path.file_name().unwrap_or_default().to_owned();
                let file = parcel.files.iter().find(|file| name == file.name);
                if let Some(file) = file.filter(|_| entry.header().entry_type().is_file()) {
                    finished.push((unpacked(folder, file, address, &mut entry)?, file));
                }
            }
        }
    }
    if let Some(missing) = parcel.files.iter().find(|file| !finished.iter().any(|(_, f)| f.name == file.name))
    {
        return Err(damaged(format!("{} is not in it", missing.name)));
    }
    for (path, file) in finished {
        fs::rename(&path, folder.join(file.name)).map_err(|source| FetchError::Io { path, source })?;
    }
    if parcel.packing != Packing::Plain {
        fs::remove_file(part).map_err(|source| FetchError::Io { path: part.into(), source })?;
    }
    // Names last only when their folder was written, too; where that cannot be done they still are there.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Unpacks one file beside its final place; of a file that is not right nothing is left.
fn unpacked(
    folder: &Path,
    file: &origin::File,
    address: &str,
    from: &mut dyn Read,
) -> Result<PathBuf, FetchError> {
    let path = folder.join(format!("{}.part", file.name));
    let failed = |source| FetchError::Io { path: path.clone(), source };
    let mut to = File::create(&path).map_err(failed)?;
    let copied = copy(from, Some((&mut to, &path)), file, address);
    let copied = copied.and_then(|()| to.sync_all().map_err(failed));
    if let Err(error) = copied {
        // The error is worth more than a second one.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(path)
}

/// Reads a file to its end, writes it if there is somewhere to write to, and checks length and hash.
fn copy(
    from: &mut dyn Read,
    mut to: Option<(&mut File, &Path)>,
    file: &origin::File,
    address: &str,
) -> Result<(), FetchError> {
    let damaged = |problem: String| FetchError::Damaged { address: address.into(), problem };
    let (mut hash, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(damaged(error.to_string())),
        };
        length += count as u64;
        if length > file.bytes {
            return Err(damaged(format!("{} is longer than {} bytes", file.name, file.bytes)));
        }
        hash.update(&buffer[..count]);
        if let Some((file, path)) = &mut to {
            file.write_all(&buffer[..count]).map_err(|source| match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FetchError::NoSpace {
                    folder: path.parent().unwrap_or(path).into(),
                    needed: None,
                    free: None,
                },
                _ => FetchError::Io { path: path.to_path_buf(), source },
            })?;
        }
    }
    let found = hex(&hash.finalize());
    if found != file.sha256 {
        let (file, expected) = (file.name, file.sha256);
        return Err(FetchError::Wrong { address: address.into(), file, expected, found });
    }
    Ok(())
}
