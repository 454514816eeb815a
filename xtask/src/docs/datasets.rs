//! The page of the datasets.

use paceline_data::{DATASETS, DatasetKind, Origin, SampleForm};

use super::markdown::{Page, code};

/// What there is to train on.
pub fn page() -> String {
    let mut page = Page::new("Datasets");
    page.text(
        "`paceline train --data NAME` trains on one of these. `paceline data list` says which are here, \
         `paceline data get NAME` fetches one, `paceline data info NAME` says what is in it, and `paceline data \
         path NAME` where it lies.",
    );
    let shape = |source: &DatasetKind| match source.form {
        SampleForm::Fixed { shape: [h, w, c], classes } => format!("{h}×{w}×{c}, {classes} classes"),
        SampleForm::FromFiles(words) => words.to_owned(),
    };
    let flags = |source: &DatasetKind| match source.settings {
        [] => "—".to_owned(),
        settings => settings.iter().map(|name| code(&format!("--{name}"))).collect::<Vec<_>>().join(", "),
    };
    let rows: Vec<_> = DATASETS
        .iter()
        .map(|source| vec![code(source.name), source.about.to_owned(), shape(source), flags(source)])
        .collect();
    page.table(&["name", "what it is", "a sample", "own flags"], &rows);
    page.heading("How samples reach a network");
    page.items([
        "Images are bytes, normalised per channel when a batch is put together. Training shifts CIFAR-10's by \
         up to 4 pixels and mirrors half of them; from a folder it takes a random part of each image, \
         evaluation the middle."
            .into(),
        "A series is one row of steps: 1 × steps × channels. Channels are standardised with the training \
         split's moments, short series are filled up with zeros at the front, and a single channel gets a \
         second one beside it that tells real steps from filled-up ones."
            .into(),
        "A text is cut into windows; what is asked for at each position is the next character. The last \
         tenth is evaluated. Loss is in nats per character, accuracy the share of characters foretold. For \
         --shard, the label of a window is the tenth of the text that it lies in."
            .into(),
        "Variations are functions of the seed, the step and the sample: they are the same for any number of \
         workers and threads."
            .into(),
        "Images in folders (`DIR/train/<class>/*.jpg`, `DIR/val/<class>/*.jpg`) stay on disk; --decoders threads \
         decode the next batch while one computes. Where the next unit of work is not known beforehand (with \
         servers and another --sync than bsp), they decode it when it is."
            .into(),
    ]);
    page.heading("Where they come from");
    let rows: Vec<_> = DATASETS
        .iter()
        .filter_map(|source| match source.origin {
            Origin::Published(published) => {
                let from = match source.origin.parcels()[0].base {
                    Some(base) => base.to_owned(),
                    None => "a mirror".into(),
                };
                Some(vec![code(source.name), published.home.into(), from, published.licence.into()])
            }
            _ => None,
        })
        .collect();
    page.table(&["name", "published by", "fetched from", "licence"], &rows);
    page.text(
        "Every file is checked against its SHA-256, which was computed from copies at hand. The addresses \
         could not be tried where this was written; `--mirror URL` (or PACELINE_MIRROR) replaces them by a \
         folder on the net that is laid out like a folder of datasets, URL/NAME/FILE, or by an address with \
         {name} and {file} in it. Without a connection, put the files into DIR/NAME yourself and name DIR with \
         `--data-dir` or PACELINE_DATA.",
    );
    page.done()
}
