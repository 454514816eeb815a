//! Where datasets come from: addresses, hashes, licences.
//!
//! The hashes are of the uncompressed files and were computed from copies at hand. **The addresses could not
//! be tried** where this was written (no internet there); `paceline data get --mirror` replaces them.

/// Where a dataset comes from.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// It is part of the program, or made up by it.
    BuiltIn {
        /// What it is made of, and its licence.
        note: &'static str,
    },
    /// The user's own files.
    Yours,
    /// Somebody has published it.
    Published(Published),
}

/// A published dataset.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// Where people read about it.
    pub home: &'static str,
    /// What may be done with it.
    pub licence: &'static str,
    /// What is fetched.
    pub parcels: &'static [DownloadItem],
}

/// One thing to fetch.
#[derive(Clone, Copy, Debug)]
pub struct DownloadItem {
    /// The folder on the net that has it, with a slash at its end; none if no address is known.
    pub base: Option<&'static str>,
    /// Its name there.
    pub name: &'static str,
    /// How files are packed in it.
    pub packing: Packing,
    /// The files in it.
    pub files: &'static [File],
}

/// How files are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The file itself.
    Plain,
    /// One file, gzipped.
    Gz,
    /// An archive, gzipped; files are known by the last part of their path.
    TarGz,
}

/// A file as it must be.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its name in the dataset's folder.
    pub name: &'static str,
    /// Its length in bytes, uncompressed.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal, uncompressed.
    pub sha256: &'static str,
}

impl Origin {
    /// Everything that can be fetched.
    pub fn parcels(&self) -> &'static [DownloadItem] {
        match self {
            Origin::Published(published) => published.parcels,
            _ => &[],
        }
    }

    /// The files that are known by name and hash.
    pub fn files(&self) -> impl Iterator<Item = &'static File> {
        self.parcels().iter().flat_map(|parcel| parcel.files)
    }
}

#[cfg(test)]
mod tests {
    use crate::registry::DATASETS;

    #[test]
    fn hashes_are_sha256_in_lower_case_and_addresses_end_with_a_slash() {
        for source in DATASETS {
            for parcel in source.origin.parcels() {
                assert!(parcel.base.is_none_or(|base| base.ends_with('/')), "{}", source.name);
                assert!(!parcel.name.contains('/') && !parcel.files.is_empty(), "{}", source.name);
            }
            for file in source.origin.files() {
                assert_eq!(file.sha256.len(), 64, "{}", file.name);
                assert!(file.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
                assert!(file.bytes > 0);
            }
        }
    }
}
