//! How many tests passed, failed and were skipped, and what those lacked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use paceline_testing::process::Outcome;
use paceline_testing::{Need, Skip};

/// The results of a test run. A test of which something was left out counts as skipped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    total: usize,
    failed: BTreeSet<String>,
    skips: BTreeSet<Skip>,
}

impl Tally {
    /// Of nextest's JUnit report and the file of skips.
    pub fn from_junit(report: &str, skips: &str) -> Outcome<Self> {
        if !report.contains("<testsuites ") {
            return Err("nextest's report is not JUnit".into());
        }
        let mut tally = Self { skips: parse(skips), ..Self::default() };
        for case in report.split("<testcase ").skip(1) {
            let attribute = |name: &str| {
                let (_, rest) = case.split_once(&format!("{name}=\""))?;
                Some(rest.split_once('"')?.0)
            };
            let name = attribute("name").zip(attribute("classname"));
            let (name, binary) = name.ok_or("a test case of nextest's report has no name")?;
            tally.total += 1;
            let case = case.split("</testcase>").next().unwrap_or_default();
            if case.contains("<failure") || case.contains("<error") {
                tally.failed.insert(format!("{binary} {name}"));
            }
        }
        Ok(tally)
    }

    /// Of what plain `cargo test` prints and the file of skips.
    pub fn from_cargo(output: &str, skips: &str) -> Self {
        let mut tally = Self { skips: parse(skips), ..Self::default() };
        let mut binary = "";
        for line in output.lines() {
            if let Some((_, program)) =
                line.trim_start().strip_prefix("Running ").and_then(|l| l.rsplit_once("deps/"))
            {
                binary = program.rsplit_once('-').map_or(program, |(name, _hash)| name);
            }
            let Some((name, result)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... "))
            else {
                continue;
            };
            match result {
                "ok" => tally.total += 1,
                "FAILED" => {
                    tally.total += 1;
                    tally.failed.insert(format!("{binary} {name}"));
                }
                _ => {}
            }
        }
        tally
    }

    /// Whether there are tests, and none failed.
    pub fn is_good(&self) -> bool {
        self.failed.is_empty() && self.total > 0
    }

    /// Names of the tests that lacked something.
    pub fn lacking(&self, need: Need) -> BTreeSet<&str> {
        self.skips.iter().filter(|skip| skip.need == need).map(|skip| skip.test.as_str()).collect()
    }

    /// Takes over the results of tests that were run a second time.
    pub fn replace(&mut self, again: Self, names: &BTreeSet<String>) {
        let rerun = |test: &str| names.contains(test);
        self.skips.retain(|skip| !rerun(&skip.test));
        self.failed.retain(|test| !test.split_once(' ').is_some_and(|(_, name)| rerun(name)));
        self.skips.extend(again.skips);
        self.failed.extend(again.failed);
    }

    /// What was skipped, by what it needs, and the closing line.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        let mut tests = BTreeMap::<Need, BTreeMap<String, BTreeSet<&str>>>::new();
        for skip in &self.skips {
            let name = format!("{} {}", skip.binary, skip.test);
            if !self.failed.contains(&name) {
                tests.entry(skip.need).or_default().entry(name).or_default().insert(&skip.detail);
            }
        }
        let skipped: BTreeSet<&String> = tests.values().flat_map(BTreeMap::keys).collect();
        if !tests.is_empty() {
            text += "Skipped, by what is needed:\n";
        }
        for (need, tests) in &tests {
            let _ = writeln!(
                text,
                "  {need}: {} {}",
                tests.len(),
                if tests.len() == 1 { "test" } else { "tests" }
            );
            for (name, details) in tests {
                let details: Vec<&str> = details.iter().copied().collect();
                let _ = writeln!(text, "    {name} ({})", details.join("; "));
            }
        }
        if !self.failed.is_empty() {
            text += "Failed:\n";
        }
        for name in &self.failed {
            let _ = writeln!(text, "  {name}");
        }
        let (failed, skipped) = (self.failed.len(), skipped.len());
        let passed = self.total.saturating_sub(failed + skipped);
        text + &format!("{passed} passed, {failed} failed, {skipped} skipped\n")
    }
}

fn parse(skips: &str) -> BTreeSet<Skip> {
    skips.lines().filter_map(Skip::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="5" failures="1" errors="1" uuid="8" timestamp="2026" time="9.0">
    <testsuite name="paceline::cli" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="train::mnist" classname="paceline::cli" timestamp="2026" time="0.1">
        </testcase>
        <testcase name="join::ipv6" classname="paceline::cli" timestamp="2026" time="0.1"/>
        <testcase name="faults::disk" classname="paceline::cli" timestamp="2026" time="0.1">
            <failure message="it panicked" type="test failure with exit code 101">it panicked</failure>
        </testcase>
        <testcase name="train::digits" classname="paceline::cli" timestamp="2026" time="0.1">
        </testcase>
    </testsuite>
    <testsuite name="paceline-nn" tests="1" disabled="0" errors="1" failures="0">
        <testcase name="kernels" classname="paceline-nn" timestamp="2026" time="0.1">
            <error type="execution failure"/>
        </testcase>
    </testsuite>
</testsuites>
"#;

    const SKIPS: &str = "\
real datasets (PACELINE_DATA)\tpaceline::cli\ttrain::mnist\tmnist
real datasets (PACELINE_DATA)\tpaceline::cli\ttrain::mnist\tmnist
root\tpaceline::cli\tfaults::disk\ta small disk
programs and system features\tpaceline::cli\tjoin::ipv6\tIPv6
";

    #[test]
    fn a_skipped_test_is_not_passed_and_is_listed_once_under_what_it_needs() {
        let tally = Tally::from_junit(REPORT, SKIPS).unwrap();
        assert!(!tally.is_good());
        assert_eq!(
            tally.summary(),
            "Skipped, by what is needed:
  real datasets (PACELINE_DATA): 1 test
    paceline::cli train::mnist (mnist)
  programs and system features: 1 test
    paceline::cli join::ipv6 (IPv6)
Failed:
  paceline-nn kernels
  paceline::cli faults::disk
1 passed, 2 failed, 2 skipped
"
        );
    }

    #[test]
    fn tests_that_were_run_again_count_once() {
        let mut tally = Tally::from_junit(REPORT, SKIPS).unwrap();
        let names: BTreeSet<String> = tally.lacking(Need::Datasets).into_iter().map(Into::into).collect();
        assert_eq!(names, ["train::mnist".to_owned()].into());
        let case =
            r#"<testsuites name="x"><testcase name="train::mnist" classname="paceline::cli"/></testsuites>"#;
        tally.replace(Tally::from_junit(case, "").unwrap(), &names);
        assert!(tally.summary().ends_with("\n2 passed, 2 failed, 1 skipped\n"), "{}", tally.summary());
    }

    #[test]
    fn plain_cargo_test_is_counted_too() {
        let output = "
     Running unittests src/lib.rs (target/checked/deps/paceline_nn-0123abcd)
test kernels ... ok
test left_out ... ignored
test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/cli/main.rs (target/checked/deps/cli-0123abcd)
test train::mnist ... ok
test faults::disk ... FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let skips = "real datasets (PACELINE_DATA)\tcli\ttrain::mnist\tmnist\n";
        let tally = Tally::from_cargo(output, skips);
        assert!(tally.summary().ends_with("Failed:\n  cli faults::disk\n1 passed, 1 failed, 1 skipped\n"));
    }

    #[test]
    fn a_run_without_tests_is_not_good() {
        assert!(!Tally::from_junit("<testsuites name=\"x\"></testsuites>", "").unwrap().is_good());
        assert!(Tally::from_junit("", "").is_err());
    }
}
