//! A checkpoint: one byte that says how, the manifest's length (two bytes, low first), the manifest, and behind it
//! what every rank's file holds. Bit 0 of the first byte: the manifest is sealed first, so that mutations get past its
//! hash.

use paceline_record::RankState;
use paceline_record::checkpoint::{decode, encode, read_whole, seal};

const PLAN: &str = "fuzzed";

pub fn run(input: &[u8]) -> bool {
    let [how, low, high, rest @ ..] = input else { return false };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (manifest, file) = rest.split_at(length);
    // A file is data only: what is read can be written, and comes back the same.
    if let Ok(part) = decode(file) {
        let again = decode(&encode(&part).expect("what was read can be written"));
        let same = |a: &RankState, b: &RankState| {
            let bits = |p: &RankState| {
                let one = |(name, n): &(String, Vec<f32>)| {
                    (name.clone(), n.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
                };
                p.tensors.iter().map(one).collect::<Vec<_>>()
            };
            bits(a) == bits(b) && a.account == b.account
        };
        assert!(again.is_ok_and(|again| same(&again, &part)));
        assert!(part.tensors.iter().map(|(_, n)| 4 * n.len()).sum::<usize>() <= file.len());
    }
    let sealed;
    let manifest = match how & 1 {
        0 => manifest,
        _ => {
            let Some(made) = seal(manifest) else { return false };
            sealed = made;
            &sealed[..]
        }
    };
    let mut asked = 0;
    let read = read_whole(manifest, PLAN, |rank, bytes| {
        assert_eq!(rank, asked, "files are asked for in the order of the ranks");
        asked += 1;
        if bytes == file.len() as u64 { Ok(file.to_vec()) } else { Err("another length".into()) }
    });
    if let Ok(checkpoint) = &read {
        assert_eq!((checkpoint.plan_sha256.as_str(), checkpoint.parts.len()), (PLAN, asked));
    }
    read.is_ok()
}

pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let part = RankState {
        tensors: vec![("params".into(), vec![0.5, -1.0, f32::MAX]), ("state".into(), vec![])],
        account: "{\"steps\":3}".into(),
    };
    let file = encode(&part).expect("numbers can be written");
    let content = |files: usize| {
        let entry = format!("{{\"bytes\":{},\"sha256\":\"{}\"}}", file.len(), sha256(&file));
        format!(
            "{{\"version\":1,\"step\":3,\"plan-sha256\":\"{PLAN}\",\"account\":\"{{}}\",\"files\":[{}]}}",
            vec![entry; files].join(",")
        )
        .into_bytes()
    };
    let input = |how: u8, manifest: Vec<u8>| {
        let length = (manifest.len() as u16).to_le_bytes();
        [&[how][..], &length, &manifest, &file].concat()
    };
    let whole = seal(&content(1)).expect("it is a manifest's content");
    vec![
        ("to-be-sealed", input(1, content(1))),
        ("of-two-ranks", input(1, content(2))),
        ("of-nobody", input(1, content(0))),
        ("sealed", input(0, whole)),
    ]
}

fn sha256(bytes: &[u8]) -> String {
    paceline_record::checkpoint::hash(bytes)
}
