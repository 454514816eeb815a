//! Downloads: from an address to verified files under their final names.
//!
//! Nothing lies under a final name that does not have the SHA-256 that it must have: bytes are collected in
//! `NAME.part` beside it, which a later call goes on with, are unpacked and hashed while they stream through,
//! and only then renamed.
//!
//! # Layout
//! - [`transfer`]: one address to one `.part` file: resuming, redirects, stalls, limits
//! - [`unpack`]: from there to verified files
//! - [`error`]: what can go wrong, and what to do about it
//!
//! # Deliberately absent
//! Which datasets there are (`paceline_data::origin` says so); the environment; words for the terminal.

#![forbid(unsafe_code)]

pub mod error;
pub mod transfer;
mod unpack;

use std::fs;
use std::path::{Path, PathBuf};

use paceline_data::content;
use paceline_data::origin::{DownloadItem, File};

pub use error::FetchError;
pub use transfer::Client;

/// An event of a download.
#[derive(Debug)]
#[allow(missing_docs, reason = "what an event reports says what its fields are")]
pub enum FetchEvent<'a> {
    /// An address is asked; `have` bytes are there from before.
    Asking { address: &'a str, have: u64 },
    /// Bytes have come: how many are there, of how many if the server says so.
    Bytes { have: u64, total: Option<u64> },
    /// The transfer broke off, for this cause, and goes on from where it was.
    Resuming { cause: &'a str },
    /// An address is given up; the next one is asked.
    GaveUp(&'a FetchError),
}

/// The addresses of a parcel: on the mirrors, if there are any, else its own. A mirror is laid out like a folder
/// of datasets (`MIRROR/<dataset>/<file>`), unless it says itself where `{name}` and `{file}` belong.
pub fn addresses(dataset: &str, parcel: &DownloadItem, mirrors: &[String]) -> Vec<String> {
    let on = |mirror: &String| match mirror.contains("{name}") || mirror.contains("{file}") {
        true => mirror.replace("{name}", dataset).replace("{file}", parcel.name),
        false => format!("{}/{dataset}/{}", mirror.trim_end_matches('/'), parcel.name),
    };
    match mirrors {
        [] => parcel.base.map(|base| format!("{base}{}", parcel.name)).into_iter().collect(),
        _ => mirrors.iter().map(on).collect(),
    }
}

/// The path of a file that is there as it must be, gzipped or not.
fn verified(folder: &Path, file: &File) -> Option<PathBuf> {
    let paths = [folder.join(file.name), folder.join(format!("{}.gz", file.name))];
    paths
        .into_iter()
        .find(|path| path.is_file() && content::sha256(path).is_ok_and(|(_, sha256)| sha256 == file.sha256))
}

/// Fetches a parcel into `folder`, from the first of the addresses that has it. Returns its files.
pub fn fetch(
    client: &Client,
    parcel: &DownloadItem,
    addresses: &[String],
    folder: &Path,
    news: &mut dyn FnMut(FetchEvent<'_>),
) -> Result<Vec<PathBuf>, FetchError> {
    let here: Option<Vec<PathBuf>> = parcel.files.iter().map(|file| verified(folder, file)).collect();
    if let Some(here) = here {
        return Ok(here);
    }
    fs::create_dir_all(folder).map_err(|source| FetchError::Io { path: folder.into(), source })?;
    let mut last = FetchError::NoAddress { file: parcel.name };
    for (i, address) in addresses.iter().enumerate() {
        match fetch_from(client, parcel, address, folder, news) {
            Ok(()) => return Ok(parcel.files.iter().map(|file| folder.join(file.name)).collect()),
            Err(error) if error.is_ours() => return Err(error),
            Err(error) => {
                if i + 1 < addresses.len() {
                    news(FetchEvent::GaveUp(&error));
                }
                last = error;
            }
        }
    }
    Err(last)
}

fn fetch_from(
    client: &Client,
    parcel: &DownloadItem,
    address: &str,
    folder: &Path,
    news: &mut dyn FnMut(FetchEvent<'_>),
) -> Result<(), FetchError> {
    let part = folder.join(format!("{}.part", parcel.name));
    loop {
        let resumed = match client.transfer(address, &part, limit(parcel), news) {
            Ok(resumed) => resumed,
            Err(error) => {
                if error.is_content() || fs::metadata(&part).is_ok_and(|part| part.len() == 0) {
                    remove(&part)?;
                }
                return Err(error);
            }
        };
        match unpack::unpack(parcel, address, &part, folder) {
            // What was there from before may have been of another version.
            Err(error) if resumed && error.is_content() => {
                let cause = error.to_string();
                news(FetchEvent::Resuming { cause: &cause });
                remove(&part)?;
            }
            Err(error) => {
                if error.is_content() {
                    remove(&part)?;
                }
                return Err(error);
            }
            Ok(()) => return Ok(()),
        }
    }
}

/// Most bytes that are taken for a parcel: what is in it, and something for the packing.
fn limit(parcel: &DownloadItem) -> u64 {
    let content: u64 = parcel.files.iter().map(|file| file.bytes).sum();
    content + content / 8 + (1 << 20)
}

fn remove(part: &Path) -> Result<(), FetchError> {
    match fs::remove_file(part) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(FetchError::Io { path: part.into(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_data::origin::Packing;

    #[test]
    fn mirrors_replace_the_address_and_say_where_names_belong() {
        let parcel =
            DownloadItem { base: Some("https://a/b/"), name: "f.gz", packing: Packing::Gz, files: &[] };
        let on = |mirrors: &[&str]| {
            addresses("set", &parcel, &mirrors.iter().map(|m| m.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(on(&[]), ["https://a/b/f.gz"]);
        assert_eq!(on(&["http://m/", "http://n/x"]), ["http://m/set/f.gz", "http://n/x/set/f.gz"]);
        assert_eq!(on(&["http://m/{file}?of={name}"]), ["http://m/f.gz?of=set"]);
        assert!(addresses("set", &DownloadItem { base: None, ..parcel }, &[]).is_empty());
    }
}
