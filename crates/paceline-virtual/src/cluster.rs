//! The hosts of a cluster that need not be there.

use std::path::Path;

use paceline_plan::{Hosts, NetworkLimits, Plan};
use paceline_resolve::auto_transport;
use serde::Deserialize;

use crate::error::{VirtualError, read, refuse};

/// A cluster, as its file says: a list of hosts, alike ones counted.
///
/// ```toml
/// currency = "EUR"
/// [[host]]
/// name = "small"
/// count = 4
/// cores = 8
/// speed = 1.5
/// bandwidth = "10gbit"
/// latency = "50us"
/// price-per-hour = 0.34
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cluster {
    /// The unit of prices, for those who read costs.
    pub currency: Option<String>,
    /// The hosts.
    pub host: Vec<HostGroup>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HostGroup {
    #[serde(default = "unnamed")]
    pub name: String,
    #[serde(default = "one")]
    pub count: usize,
    pub cores: usize,
    /// How fast a core is, relative to the calibrated machine's.
    #[serde(default = "as_fast")]
    pub speed: f64,
    /// Bandwidth of the interface, in each direction, e.g. `10gbit`.
    pub bandwidth: String,
    /// Time that a bit is under way, e.g. `50us`.
    pub latency: String,
    pub price_per_hour: Option<f64>,
}

fn unnamed() -> String {
    "host".into()
}

fn one() -> usize {
    1
}

fn as_fast() -> f64 {
    1.0
}

impl HostGroup {
    /// The interface's bandwidth and latency.
    pub fn link(&self) -> Result<NetworkLimits, String> {
        format!("{},{}", self.bandwidth, self.latency).parse()
    }
}

impl Cluster {
    /// Reads a cluster's file.
    pub fn load(path: &Path) -> Result<Self, VirtualError> {
        let cluster: Self = read("--cluster", path)?;
        let check = |kind: &HostGroup| {
            let whole = kind.count > 0 && kind.cores > 0 && kind.speed > 0.0 && kind.speed.is_finite();
            if !whole || kind.price_per_hour.is_some_and(|price| price.is_nan() || price < 0.0) {
                return Err("count, cores and speed must be positive, a price at least 0".into());
            }
            kind.link().map(drop)
        };
        if cluster.host.is_empty() {
            return Err(refuse("--cluster", path, "needs at least one [[host]]").into());
        }
        for kind in &cluster.host {
            check(kind).map_err(|problem: String| {
                refuse("--cluster", path, format!("host {}: {problem}", kind.name))
            })?;
        }
        Ok(cluster)
    }

    /// Every host, by its kind.
    pub fn hosts(&self) -> Vec<&HostGroup> {
        self.host.iter().flat_map(|kind| std::iter::repeat_n(kind, kind.count)).collect()
    }

    /// The plan as it is laid out on the cluster: where it does not say which hosts there are, workers are spread
    /// over as many as they can fill.
    pub fn place(&self, plan: &Plan) -> Result<Plan, VirtualError> {
        let hosts = self.hosts();
        let link = hosts[0].link().expect("links were checked when the cluster was read");
        let mut placed = Plan { network: Some(plan.network.unwrap_or(link)), ..plan.clone() };
        if placed.hosts.is_none() && plan.strategy != paceline_protocol::SINGLE {
            let dedicated = plan.placement == paceline_plan::Placement::Dedicated && plan.servers > 0;
            let most = if dedicated { plan.workers + plan.servers } else { plan.workers };
            placed.hosts = Some(Hosts::Count(hosts.len().min(most)));
        }
        placed.check(usize::MAX)?;
        let used = placed.host_count();
        // Memory is not shared between hosts: what would be chosen for them is.
        if used > 1 && placed.transport == auto_transport(false) {
            placed.transport = auto_transport(true).into();
        }
        if used > hosts.len() {
            let value = placed.hosts.as_ref().map_or_else(String::new, ToString::to_string);
            let problem = format!("uses {used} hosts; the cluster has {}", hosts.len());
            return Err(paceline_plan::PlanError { flag: "--hosts".into(), value, problem }.into());
        }
        Ok(placed)
    }
}
