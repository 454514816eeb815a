//! Where ranks sit, and what lies between their hosts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, PlanError};

/// Emulated links: every host has one interface of this bandwidth in each direction, and every message between
/// two hosts is under way for the latency. Traffic inside a host is not slowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkLimits {
    /// Bits per second of a host's interface, in each direction.
    pub bits_per_s: u64,
    /// Nanoseconds that a bit is under way.
    pub latency_ns: u64,
}

impl NetworkLimits {
    /// The form that a user can write.
    pub const FORM: &'static str = "BANDWIDTH,LATENCY, e.g. 1gbit,200us or 100mbit,5ms";
}

/// Bandwidths' units, in bits per second.
const BANDWIDTHS: &[(&str, f64)] = &[("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
const LATENCIES: &[(&str, f64)] = &[("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// A number with one of the units.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, unit) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    number.parse::<f64>().ok().filter(|n| (0.0..1e9).contains(n)).map(|n| (n * unit).round() as u64)
}

/// A number in the largest of the units that leaves it at least 1.
fn show(value: u64, units: &[(&str, f64)]) -> String {
    let value = value as f64;
    let smallest = units.iter().fold(units[0], |a, b| if b.1 < a.1 { *b } else { a });
    let fits = units.iter().filter(|(_, factor)| value >= *factor);
    let (unit, factor) = fits.fold(smallest, |a, b| if b.1 > a.1 { *b } else { a });
    format!("{}{unit}", value / factor)
}

impl FromStr for NetworkLimits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |problem: &str| format!("{problem}; possible: {}", Self::FORM);
        let (bandwidth, latency) = text.split_once(',').unwrap_or((text, "0us"));
        let bits_per_s = measure(bandwidth, BANDWIDTHS)
            .filter(|b| (1_000..=400_000_000_000).contains(b))
            .ok_or_else(|| wrong("a bandwidth between 1kbit and 400gbit (per second) is needed"))?;
        let latency_ns = measure(latency, LATENCIES)
            .filter(|l| *l <= 10_000_000_000)
            .ok_or_else(|| wrong("a latency between 0us and 10s is needed"))?;
        Ok(Self { bits_per_s, latency_ns })
    }
}

impl fmt::Display for NetworkLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", show(self.bits_per_s, BANDWIDTHS), show(self.latency_ns, LATENCIES))
    }
}

/// Which hosts there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hosts {
    /// So many in all; ranks are spread over them, neighbours together.
    Count(usize),
    /// The host of each worker (servers follow the placement), or of each worker and then each server.
    Each(Vec<usize>),
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([0]) | Err(_) => {
                Err("a number of hosts, e.g. 2, or the host of each worker, e.g. 0,0,1,1, is needed".into())
            }
            Ok([count]) => Ok(Self::Count(*count)),
            Ok(each) => Ok(Self::Each(each.to_vec())),
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Each(each) => {
                let each: Vec<String> = each.iter().map(usize::to_string).collect();
                f.write_str(&each.join(","))
            }
        }
    }
}

/// Where servers sit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On the workers' hosts, in turn.
    #[default]
    Colocated,
    /// On hosts of their own.
    Dedicated,
}

impl Placement {
    /// Every placement, by its name and what it means.
    pub const ALL: &'static [(&'static str, &'static str)] = &[
        ("colocated", "servers sit on the workers' hosts, in turn"),
        ("dedicated", "servers have hosts of their own"),
    ];
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "colocated" => Ok(Self::Colocated),
            "dedicated" => Ok(Self::Dedicated),
            _ => Err("possible: colocated, dedicated".into()),
        }
    }
}

/// Spreads `count` things over `over` places, neighbours together.
fn spread(count: usize, over: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * over / count)
}

impl Plan {
    /// The host of each rank, workers first; host 0 is the launcher's. Without a network or hosts there is one.
    /// To be asked of plans that [`Plan::check`] lets pass.
    pub fn layout(&self) -> Vec<usize> {
        let (workers, servers) = (self.workers, self.servers);
        let dedicated = self.placement == Placement::Dedicated && servers > 0;
        let mut layout: Vec<usize> = match &self.hosts {
            Some(Hosts::Each(each)) => each.clone(),
            Some(Hosts::Count(count)) => {
                let for_servers = if dedicated { servers.min(count - 1) } else { 0 };
                spread(workers, count - for_servers).collect()
            }
            None if self.network.is_some() => (0..workers).collect(),
            None => return vec![0; workers + servers],
        };
        if layout.len() == workers && servers > 0 {
            let taken = layout.iter().max().map_or(1, |last| last + 1);
            let own = match self.hosts {
                Some(Hosts::Count(count)) => count - taken,
                _ => servers,
            };
            if dedicated {
                layout.extend(spread(servers, own).map(|host| taken + host));
            } else {
                layout.extend((0..servers).map(|server| server % taken));
            }
        }
        layout
    }

    /// The number of hosts.
    pub fn host_count(&self) -> usize {
        self.layout().into_iter().max().map_or(1, |last| last + 1)
    }

    /// Whether ranks can be spread as the plan says.
    pub(crate) fn check_hosts(&self) -> Result<(), PlanError> {
        let (workers, servers) = (self.workers, self.servers);
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let refuse = |problem: String| Err(PlanError::new("--hosts", hosts, problem));
        match hosts {
            Hosts::Count(count) => {
                let dedicated = self.placement == Placement::Dedicated && servers > 0;
                if dedicated && *count < 2 {
                    let problem = "dedicated servers need a host beside the workers': at least 2 hosts";
                    return refuse(problem.into());
                }
                let most = if dedicated { workers + servers } else { workers };
                if *count > most {
                    return refuse(format!(
                        "{workers} workers and {servers} servers fill at most {most} hosts with this placement"
                    ));
                }
            }
            Hosts::Each(each) => {
                if each.len() != workers && each.len() != workers + servers {
                    return refuse(format!(
                        "names {} hosts; one for each of the {workers} workers (or of all {} ranks) is needed",
                        each.len(),
                        workers + servers
                    ));
                }
                let last = each.iter().max().copied().unwrap_or(0);
                if let Some(gap) = (0..last).find(|host| !each.contains(host)) {
                    return refuse(format!("hosts are counted from 0 without gaps; host {gap} has nobody"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    fn layout(workers: usize, servers: usize, hosts: Option<&str>, placement: Placement) -> Vec<usize> {
        let network = "1gbit,200us".parse().ok();
        let hosts = hosts.map(|h| h.parse().unwrap());
        let plan = Plan { workers, servers, hosts, placement, network, ..plan() };
        assert_eq!(plan.check_hosts(), Ok(()));
        plan.layout()
    }

    #[test]
    fn networks_are_read_as_they_are_written() {
        let network: NetworkLimits = "1gbit,200us".parse().unwrap();
        assert_eq!(network, NetworkLimits { bits_per_s: 1_000_000_000, latency_ns: 200_000 });
        for text in ["1gbit,200us", "2.5gbit,50us", "10mbit,20ms", "64kbit,1s", "1gbit,0us"] {
            assert_eq!(text.parse::<NetworkLimits>().unwrap().to_string(), text);
        }
        assert_eq!("1gbit".parse::<NetworkLimits>().unwrap().latency_ns, 0);
        for bad in ["", "1", "gbit,1us", "0gbit,1us", "1gbit,-1us", "1gbit,200", "NaNgbit", "1gbit,1us,2"] {
            assert!(bad.parse::<NetworkLimits>().unwrap_err().contains("1gbit,200us"), "{bad}");
        }
    }

    #[test]
    fn ranks_are_spread_over_hosts() {
        use Placement::{Colocated, Dedicated};
        assert_eq!(layout(3, 0, None, Colocated), [0, 1, 2]);
        assert_eq!(layout(3, 2, None, Colocated), [0, 1, 2, 0, 1]);
        assert_eq!(layout(3, 2, None, Dedicated), [0, 1, 2, 3, 4]);
        assert_eq!(layout(4, 0, Some("2"), Dedicated), [0, 0, 1, 1]);
        assert_eq!(layout(4, 1, Some("2"), Colocated), [0, 0, 1, 1, 0]);
        assert_eq!(layout(4, 2, Some("2"), Dedicated), [0, 0, 0, 0, 1, 1]);
        assert_eq!(layout(4, 2, Some("4"), Dedicated), [0, 0, 1, 1, 2, 3]);
        assert_eq!(layout(2, 3, Some("5"), Dedicated), [0, 1, 2, 3, 4]);
        assert_eq!(layout(2, 1, Some("0,1"), Dedicated), [0, 1, 2]);
        assert_eq!(layout(2, 1, Some("0,1,1"), Colocated), [0, 1, 1]);
        assert_eq!(Plan { workers: 4, ..plan() }.layout(), [0; 4]);
    }

    #[test]
    fn hosts_that_cannot_be_filled_are_refused() {
        for (hosts, placement) in [("5", "colocated"), ("0,2,1,3,1,1", "colocated"), ("0,2,2,3", "colocated")]
        {
            let hosts = hosts.parse().ok();
            let plan = Plan { workers: 4, hosts, placement: placement.parse().unwrap(), ..plan() };
            assert_eq!(plan.check_hosts().unwrap_err().flag, "--hosts", "{plan:?}");
        }
        let one = Plan { workers: 2, servers: 1, hosts: Some(Hosts::Count(1)), ..plan() };
        assert_eq!(one.check_hosts(), Ok(()));
        assert!(Plan { placement: Placement::Dedicated, ..one }.check_hosts().is_err());
        for bad in ["0", "", "a", "1,", "-1"] {
            assert!(bad.parse::<Hosts>().is_err(), "{bad}");
        }
    }
}
