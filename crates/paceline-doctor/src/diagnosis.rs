//! What was found, for people and as JSON.

use serde::{Deserialize, Serialize};

use crate::links::{LinkMeasurement, Survey};

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Not there; runs that do not use it do not miss it.
    Absent,
    /// Runs work, and are slower or smaller than they need be.
    Hurts,
    /// Runs that use it fail.
    Fails,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Hurts => "hurts",
            Self::Fails => "fails",
        }
    }

    /// Whether something should be mended.
    pub fn is_problem(self) -> bool {
        self >= Self::Hurts
    }
}

/// What was found of one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// What it is about, e.g. `descriptors`.
    pub subject: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is there, and what follows from it.
    pub found: String,
    /// How to mend it; empty where nothing needs to be.
    pub mend: String,
}

impl Diagnosis {
    pub(crate) fn new(subject: &str, severity: Severity, found: impl Into<String>, mend: &str) -> Self {
        Self { subject: subject.into(), severity, found: found.into(), mend: mend.into() }
    }

    pub(crate) fn ok(subject: &str, found: impl Into<String>) -> Self {
        Self::new(subject, Severity::Ok, found, "")
    }

    pub(crate) fn absent(subject: &str, found: impl Into<String>, mend: &str) -> Self {
        Self::new(subject, Severity::Absent, found, mend)
    }

    pub(crate) fn hurts(subject: &str, found: impl Into<String>, mend: &str) -> Self {
        Self::new(subject, Severity::Hurts, found, mend)
    }

    pub(crate) fn fails(subject: &str, found: impl Into<String>, mend: &str) -> Self {
        Self::new(subject, Severity::Fails, found, mend)
    }

    fn line(&self, width: usize) -> String {
        let mut line = format!("  {:<6}  {:<width$}  {}\n", self.severity.word(), self.subject, self.found);
        if !self.mend.is_empty() {
            line += &format!("          {:<width$}  mend: {}\n", "", self.mend);
        }
        line
    }
}

/// What was found of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// Its processor.
    pub cpu: String,
    /// What was found.
    pub found: Vec<Diagnosis>,
}

/// What was found of machines and of the links between them.
#[derive(Clone, Debug, Serialize)]
pub struct Checkup {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Things that will hurt.
    pub problems: usize,
    /// The machines, this one first.
    pub hosts: Vec<HostReport>,
    /// The links that could be measured.
    pub links: Vec<LinkMeasurement>,
    /// What all links mean for runs.
    pub found_of_links: Vec<Diagnosis>,
}

impl Checkup {
    /// This machine, and what others said.
    pub fn new(here: HostReport, survey: Survey) -> Self {
        let Survey { hosts, links, found } = survey;
        let hosts: Vec<HostReport> = [here].into_iter().chain(hosts).collect();
        let mut checkup = Self { kind: "doctor", problems: 0, hosts, links, found_of_links: found };
        checkup.problems = checkup.all().filter(|one| one.severity.is_problem()).count();
        checkup
    }

    fn all(&self) -> impl Iterator<Item = &Diagnosis> {
        self.hosts.iter().flat_map(|host| &host.found).chain(&self.found_of_links)
    }

    /// As a text for people.
    pub fn text(&self) -> String {
        let width = self.all().map(|one| one.subject.len()).max().unwrap_or(0);
        let mut text = String::new();
        for host in &self.hosts {
            text += &format!("{} ({}):\n", host.host, host.cpu);
            host.found.iter().for_each(|one| text += &one.line(width));
        }
        if !self.found_of_links.is_empty() {
            text += "links:\n";
            self.found_of_links.iter().for_each(|one| text += &one.line(width));
        }
        text + &match self.problems {
            0 => "nothing was found that will hurt\n".into(),
            1 => "1 thing will hurt\n".into(),
            n => format!("{n} things will hurt\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_what_will_hurt_and_how_to_mend_it() {
        let found =
            vec![Diagnosis::ok("cores", "4 cores"), Diagnosis::hurts("memory", "100 MB free", "buy some")];
        let here = HostReport { host: "a".into(), cpu: "Abacus".into(), found };
        let text = Checkup::new(here, Survey::default()).text();
        assert_eq!(
            text,
            "a (Abacus):\n  ok      cores   4 cores\n  hurts   memory  100 MB free\n                  mend: buy some\n\
             1 thing will hurt\n"
        );
    }
}
