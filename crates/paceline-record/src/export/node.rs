//! What each machine of a run used while it trained, as its control group and its network interfaces count.

use serde::Serialize;

use super::Exported;
use super::summary::Section;
use crate::store::RecordError;

/// A machine's use between the first and the last sample of its ranks; none where nobody counts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeSummary {
    /// Its name.
    pub host: String,
    /// CPU time of its control group, in seconds.
    pub cpu_s: Option<f64>,
    /// The same in percent of one core.
    pub cpu_percent: Option<f64>,
    /// The group's quota, in cores.
    pub cpu_limit: Option<f64>,
    /// Most memory of the group that was seen.
    pub memory_bytes: Option<f64>,
    /// The group's limit of memory.
    pub memory_limit_bytes: Option<f64>,
    /// Received over the network, loopback apart.
    pub received_bytes: Option<f64>,
    /// Sent over the network, loopback apart.
    pub sent_bytes: Option<f64>,
    /// Read from disks by the group.
    pub disk_read_bytes: Option<f64>,
    /// Written to disks by the group.
    pub disk_write_bytes: Option<f64>,
}

/// The machines of a run, in the order of their first ranks.
pub(super) fn nodes(exported: &Exported<'_>) -> Result<Vec<NodeSummary>, RecordError> {
    let Exported { store, run } = *exported;
    let groups = store.numbers(
        "SELECT min(s.rank), max(cgroup_cpu_s) - min(cgroup_cpu_s), max(t_ns) - min(t_ns), max(cgroup_cpu_limit), \
         max(cgroup_memory_bytes), max(cgroup_memory_limit_bytes), \
         max(cgroup_disk_read_bytes) - min(cgroup_disk_read_bytes), \
         max(cgroup_disk_write_bytes) - min(cgroup_disk_write_bytes) \
         FROM samples s JOIN ranks r ON r.run = s.run AND r.rank = s.rank WHERE s.run = ? \
         GROUP BY r.host ORDER BY min(s.rank)",
        run,
    )?;
    let network = store.numbers(
        "SELECT (SELECT min(rank) FROM ranks r WHERE r.run = i.run AND r.host = i.host), sum(received), sum(sent) \
         FROM (SELECT run, host, max(received_bytes) - min(received_bytes) AS received, \
         max(sent_bytes) - min(sent_bytes) AS sent FROM interfaces WHERE run = ? AND interface <> 'lo' \
         GROUP BY run, host, interface) i GROUP BY i.host",
        run,
    )?;
    let ranks = exported.table("ranks")?;
    let (numbers, hosts) = (ranks.numbers("rank"), ranks.texts("host"));
    let node = |group: &Vec<f64>| {
        let known = |value: f64| Some(value).filter(|value| !value.is_nan());
        let at = numbers.iter().position(|rank| *rank == Some(group[0]));
        let over = network.iter().find(|row| row[0] == group[0]);
        NodeSummary {
            host: at.and_then(|at| hosts[at].clone()).unwrap_or_default(),
            cpu_s: known(group[1]),
            cpu_percent: known(100e9 * group[1] / group[2]).filter(|percent| percent.is_finite()),
            cpu_limit: known(group[3]),
            memory_bytes: known(group[4]),
            memory_limit_bytes: known(group[5]),
            received_bytes: over.and_then(|row| known(row[1])),
            sent_bytes: over.and_then(|row| known(row[2])),
            disk_read_bytes: known(group[6]),
            disk_write_bytes: known(group[7]),
        }
    };
    Ok(groups.iter().map(node).collect())
}

/// Several machines as a table; one alone is what its ranks say.
pub(super) fn section(nodes: &[NodeSummary]) -> Option<Section> {
    let mb = |bytes: Option<f64>| bytes.map_or_else(|| "-".into(), |bytes| format!("{:.1}", bytes / 1e6));
    let some = |value: Option<f64>, digits| value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
    let row = |node: &NodeSummary| {
        vec![
            node.host.clone(),
            some(node.cpu_percent, 0),
            some(node.cpu_limit, 2),
            mb(node.memory_bytes),
            mb(node.memory_limit_bytes),
            mb(node.received_bytes),
            mb(node.sent_bytes),
            mb(node.disk_read_bytes),
            mb(node.disk_write_bytes),
        ]
    };
    let head = vec![
        "machine",
        "CPU %",
        "of cores",
        "memory MB",
        "of MB",
        "received MB",
        "sent MB",
        "read MB",
        "written MB",
    ];
    (nodes.len() > 1).then(|| ("Machines".into(), head, nodes.iter().map(row).collect()))
}
