//! How the members of a run may change, and how they are made to: who is taken away and who comes back, a file that users write.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// How the members of a run may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Elastic {
    /// The fewest workers that the run goes on with.
    pub least: usize,
    /// The most.
    pub most: usize,
    /// Workers that wait until another one is lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spares: usize,
    /// Whether each server shard has a copy on another server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
}

impl Elastic {
    /// The fewest and the most workers, out of `2..4`.
    pub fn bounds(text: &str) -> Result<(usize, usize), String> {
        let bounds =
            text.split_once("..").and_then(|(least, most)| Some((least.parse().ok()?, most.parse().ok()?)));
        bounds.ok_or_else(|| "is the fewest and the most workers, e.g. 2..4".into())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Who is taken away when, as its file says.
///
/// ```toml
/// noticed-after-s = 0.01
/// regroup-s = 0.1
/// [[revoke]]
/// at-s = 2.5
/// rank = 3
/// notice-s = 1.0
/// back-after-s = 3.0
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Revocations {
    /// Seconds until the others know that a rank is lost; in virtual time only.
    #[serde(default = "noticed_after_s")]
    pub noticed_after_s: f64,
    /// Seconds to decide how the run goes on, and to connect again; in virtual time only.
    #[serde(default = "regroup_s")]
    pub regroup_s: f64,
    /// The ranks.
    #[serde(default)]
    pub revoke: Vec<RevokedRank>,
}

/// A rank that is taken away.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RevokedRank {
    /// When, in seconds of the training clock.
    pub at_s: f64,
    /// Which rank of those that the run begins with: workers, then servers.
    pub rank: usize,
    /// Seconds between the notice and the kill.
    #[serde(default)]
    pub notice_s: f64,
    /// Seconds after the kill at which it is there again, with nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_after_s: Option<f64>,
}

fn noticed_after_s() -> f64 {
    0.01
}

fn regroup_s() -> f64 {
    0.1
}

impl Default for Revocations {
    fn default() -> Self {
        Self { noticed_after_s: noticed_after_s(), regroup_s: regroup_s(), revoke: Vec::new() }
    }
}

impl RevokedRank {
    /// When it is killed.
    pub fn kill_s(&self) -> f64 {
        self.at_s + self.notice_s
    }

    /// When it is there again, if it is.
    pub fn back_s(&self) -> Option<f64> {
        Some(self.kill_s() + self.back_after_s?)
    }
}

impl Revocations {
    /// Reads a file's text; what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let times =
            file.revoke.iter().flat_map(|one| [one.at_s, one.notice_s, one.back_after_s.unwrap_or(0.0)]);
        let times = times.chain([file.noticed_after_s, file.regroup_s]);
        if times.into_iter().any(|time| !time.is_finite() || time < 0.0) {
            return Err("times are seconds, at least 0".into());
        }
        Ok(file)
    }

    /// What is wrong with the ranks that it names, if anything.
    pub(crate) fn problem(&self, plan: &Plan) -> Option<String> {
        let world = plan.workers.saturating_add(plan.servers);
        let unknown = self.revoke.iter().find(|one| one.rank >= world)?;
        Some(format!("there is no rank {}: the run begins with ranks 0 to {}", unknown.rank, world - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_who_is_taken_away_and_times_are_seconds() {
        let text = "regroup-s = 0.5\n[[revoke]]\nat-s = 2.5\nrank = 3\nback-after-s = 1\n";
        let file = Revocations::parse(text).unwrap();
        assert_eq!((file.noticed_after_s, file.regroup_s), (0.01, 0.5));
        let one = RevokedRank { at_s: 2.5, rank: 3, notice_s: 0.0, back_after_s: Some(1.0) };
        assert_eq!((one.kill_s(), one.back_s()), (2.5, Some(3.5)));
        assert_eq!(file.revoke, [one]);
        for wrong in ["[[revoke]]\nat = 3", "[[revoke]]\nat-s = -1\nrank = 0", "regroup-s = inf"] {
            assert!(Revocations::parse(wrong).is_err(), "{wrong}");
        }
    }
}
