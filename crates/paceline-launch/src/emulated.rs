//! A run on an emulated network: which rank is on which host, and what lies between them.

use std::sync::Arc;
use std::time::Duration;

use paceline_plan::{NetworkLimits, Plan};
use paceline_wire::{Interfaces, Link, Shaped, Transport};

use crate::error::LaunchError;

/// Hosts and what lies between them.
#[derive(Clone, Debug)]
pub struct EmulatedNetwork {
    /// The links.
    pub network: NetworkLimits,
    /// The host of each rank.
    pub hosts: Vec<usize>,
    /// How many hosts there are, wherever ranks are.
    count: usize,
}

impl EmulatedNetwork {
    /// The emulated network of a plan that has one.
    pub fn of(plan: &Plan) -> Option<Self> {
        plan.network.map(|network| Self::new(network, plan.layout()))
    }

    /// A network on which each of `ranks` ranks is a host of its own.
    pub fn apart(network: NetworkLimits, ranks: usize) -> Self {
        Self::new(network, (0..ranks).collect())
    }

    fn new(network: NetworkLimits, hosts: Vec<usize>) -> Self {
        let count = hosts.iter().max().map_or(1, |last| last + 1);
        Self { network, hosts, count }
    }

    /// The same network for ranks that are these members of a run. Spares sit where members that the run begins with do.
    pub(crate) fn of_members(&self, members: &[usize]) -> Self {
        let hosts = members.iter().map(|member| self.hosts[member % self.hosts.len()]).collect();
        Self { hosts, ..self.clone() }
    }

    /// The number of hosts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The hosts' interfaces, for all ranks of a run.
    pub fn interfaces(&self) -> Result<Interfaces, LaunchError> {
        let failed = |source| LaunchError::System { what: "sharing the emulated interfaces".into(), source };
        Interfaces::create(self.count()).map_err(failed)
    }

    /// Puts a rank's transport on the network.
    pub fn wrap(
        &self,
        transport: Box<dyn Transport>,
        interfaces: Arc<Interfaces>,
        buffer: Option<usize>,
        own_core: bool,
    ) -> Box<dyn Transport> {
        let NetworkLimits { bits_per_s, latency_ns } = self.network;
        let link = Link { bits_per_s, latency: Duration::from_nanos(latency_ns) };
        Box::new(Shaped::new(transport, self.hosts.clone(), link, interfaces, buffer, own_core))
    }
}
