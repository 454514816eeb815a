//! Programs as comma-separated values: a line per rank, a cell per pass, as `torch.distributed.pipelining` reads and
//! writes its tables of computations. Empty cells are waits and say nothing here: when work is done follows from what
//! it waits for.

use std::path::Path;

use paceline_plan::{SheetRow, Terminator, to_csv};

use crate::check::CheckedProgram;
use crate::program::{PipelineProgram, ProgramError, RankProgram};
use paceline_protocol::{Work, WorkKind};

/// Most stages and micro-batches of a table.
const MOST: usize = 1 << 16;
/// Characters of a cell that is no work, as it is shown.
const SHOWN: usize = 40;

impl PipelineProgram {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ProgramError> {
        SheetRow::read_all(path).map_err(ProgramError::Table).and_then(Self::from_rows)
    }

    /// Reads a text.
    pub fn parse(text: &str) -> Result<Self, ProgramError> {
        SheetRow::parse_all(text).map_err(ProgramError::Table).and_then(Self::from_rows)
    }

    fn from_rows(rows: Vec<SheetRow>) -> Result<Self, ProgramError> {
        let rank = |row: SheetRow| {
            let cell = |(i, text): (usize, &String)| {
                let shown = || text.chars().take(SHOWN).collect();
                let wrong =
                    |problem| ProgramError::Cell { line: row.line, cell: i + 1, text: shown(), problem };
                work(text.trim()).map_err(wrong).transpose()
            };
            let work = row.fields.iter().enumerate().filter_map(cell).collect::<Result<_, _>>()?;
            Ok(RankProgram { line: row.line, work })
        };
        Ok(Self { ranks: rows.into_iter().map(rank).collect::<Result<_, _>>()? })
    }
}

impl CheckedProgram {
    /// The table.
    pub fn to_csv(&self) -> String {
        let row = |rank: &RankProgram| rank.work.iter().map(Work::to_string).collect::<Vec<_>>();
        to_csv(Terminator::CRLF, self.ranks().iter().map(row))
    }
}

/// What a cell says; nothing if it is empty, or asks for the averaging that follows the last backward pass anyway.
fn work(text: &str) -> Result<Option<Work>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (stage, rest) = text.split_at(digits(text));
    let (kind, micro) = rest.split_at(rest.len() - digits_behind(rest));
    let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n < MOST);
    let form = || "a cell is STAGE, F or B, MICRO-BATCH (0F0), or empty".to_owned();
    let stage = number(stage).ok_or_else(form)?;
    let kind = match kind {
        "F" => WorkKind::Forward,
        "B" => WorkKind::Backward,
        "REDUCE_GRAD" | "WAIT_REDUCE_GRAD" => return Ok(None),
        "I" | "W" => {
            return Err(
                "gradients of inputs (I) and of weights (W) are computed together here: write B".into()
            );
        }
        "SEND_F" | "RECV_F" | "SEND_B" | "RECV_B" | "WAIT_SEND_F" | "WAIT_SEND_B" | "UNSHARD" | "RESHARD" => {
            return Err("a table of computations alone is needed: leave out what is sent and received".into());
        }
        _ => return Err(form()),
    };
    Ok(Some(Work { stage, kind, micro: number(micro).ok_or_else(form)? }))
}

fn digits_behind(text: &str) -> usize {
    text.bytes().rev().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_and_written() {
        let text = "0F0,0F1,,,0B0,0B1\r\n\"1F0\", 1B0 ,,1F1,1B1,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\r\n";
        let program = PipelineProgram::parse(text).unwrap();
        let checked = program.clone().check(None, None).unwrap();
        assert_eq!(checked.to_csv(), "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n");
        assert_eq!(PipelineProgram::parse(&checked.to_csv()).unwrap(), program);
    }

    #[test]
    fn a_cell_that_is_no_work_is_named() {
        for (text, said) in [
            ("0F0,0X0", "line 1, cell 2: `0X0`: a cell is STAGE, F or B, MICRO-BATCH (0F0), or empty"),
            ("0F0\n1F", "line 2, cell 1: `1F`: a cell is"),
            ("F0", "a cell is STAGE"),
            ("0F99999", "a cell is STAGE"),
            ("99999F0", "a cell is STAGE"),
            ("0é0", "a cell is STAGE"),
            ("0F0,0I0", "write B"),
            ("0F0,1RECV_F0", "leave out what is sent and received"),
            ("0F0,0WAIT_SEND_F0", "leave out what is sent and received"),
            ("(0F0;1B0)OVERLAP_F_B", "a cell is STAGE"),
            ("0F0,\"", "a quote is opened"),
        ] {
            let refused = PipelineProgram::parse(text).unwrap_err().to_string();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
