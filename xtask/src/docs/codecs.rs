//! The page of codecs.

use paceline_protocol::{CODECS, Codec, Coder, Family, STRATEGIES};

use super::markdown::{Page, code};
use super::measured::Measured;
use super::tried;
use crate::process::Outcome;

/// Every codec, where it can be used, and how they compare.
pub fn page(measured: &Measured) -> Outcome<String> {
    let mut page = Page::new("Codecs");
    page.text(
        "How messages are made shorter: `--compression NAME`. The default is none: values travel as f32.",
    );
    let row = |codec: &Codec| vec![format!("[{0}](#{0})", codec.name), codec.about.to_owned()];
    page.table(&["codec", "what it is"], &CODECS.iter().map(row).collect::<Vec<_>>());
    page.text(
        "No codec rounds at random, so that a run can be repeated bit by bit. Where a codec loses much, error \
         feedback makes up for it: the sender keeps what its message did not say and adds it to the next one.",
    );
    for codec in CODECS {
        page.heading(codec.name);
        page.motto(codec.about);
        page.text(codec.detail);
        page.text(family(codec.family));
        if let Some(setting) = &codec.setting {
            let default = setting.default.to_string();
            let row = [code(setting.name), setting.about.into(), setting.range.into(), code(&default)];
            page.table(&["setting", "what it sets", "possible values", "default"], &[row.to_vec()]);
        }
        page.code(&[format!("paceline train --workers 4 --compression {}", Coder::new(codec))]);
    }
    page.heading("Where they can be used");
    matrix(&mut page);
    page.heading("Measured");
    measured.compression(&mut page)?;
    Ok(page.done())
}

fn family(family: Family) -> &'static str {
    match family {
        Family::PerHop => {
            "How it travels: every hop decodes, sums in f32 and encodes anew; servers answer in it too."
        }
        Family::Gathered => {
            "How it travels: workers gather the codes of all others, and each decodes and sums them. Sums are \
             not encoded again, since error feedback would not reach what that loses. The price: round a ring \
             of p workers, codes that are c times shorter make 2c/p times fewer bytes, all of c with 2 \
             workers and half of it with 4. To a server each worker sends its code, and parameters come back \
             in full."
        }
        Family::LowRank => "How it travels: its factors are summed in two small all-reduces of plain values.",
    }
}

/// Codecs beside strategies and what these average; reasons are numbered.
fn matrix(page: &mut Page) {
    let mut reasons: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for strategy in STRATEGIES {
        let sync = "bsp";
        for averages in strategy.averages.iter().filter(|a| tried(strategy, **a, sync, None).is_ok()) {
            let mut row = vec![format!("[{0}](strategies/{0}.md)", strategy.name), averages.name().into()];
            for codec in CODECS {
                row.push(match tried(strategy, *averages, sync, Some(codec)) {
                    Ok(()) => "yes".into(),
                    Err(refusal) => {
                        let known = reasons.iter().position(|reason| *reason == refusal.problem);
                        let at = known.unwrap_or(reasons.len());
                        if known.is_none() {
                            reasons.push(refusal.problem);
                        }
                        format!("no ({})", at + 1)
                    }
                });
            }
            rows.push(row);
        }
    }
    let head: Vec<_> = ["strategy", "averages"].into_iter().chain(CODECS.iter().map(|c| c.name)).collect();
    page.table(&head, &rows);
    page.text(
        "What a strategy averages with further flags only (its page says which) is left out. The reasons, in \
         the program's words:",
    );
    page.numbered(reasons.into_iter().map(|reason| format!("“{reason}”")));
}
