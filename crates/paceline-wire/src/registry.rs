//! Every transport by its name: what the command line offers and the launcher uses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::WireError;
use crate::identity::Identity;
use crate::stream::medium::Medium;
use crate::stream::{Listener, StreamOptions};
use crate::transport::Transport;
use crate::{grpc, inproc, shm, tcp, uds};

/// Lets a rank's process listen on this machine.
pub type Bind = fn() -> Result<Box<dyn Door>, WireError>;

/// Lets a rank's process listen at an address that other machines reach; what it says there is encrypted.
pub type BindAt = fn(IpAddr) -> Result<Box<dyn Door>, WireError>;

/// Connects ranks that are threads of this process; the ends are in order of rank.
pub type Mesh = fn(usize) -> Vec<Box<dyn Transport>>;

/// What a transport costs on a machine where it was not measured: round numbers of ordinary ones.
#[derive(Clone, Copy, Debug)]
pub struct TransportDefaults {
    /// Time of an empty message on its way, in microseconds.
    pub latency_us: f64,
    /// Time that a message costs its sender, in microseconds.
    pub message_us: f64,
    /// Time that a byte costs, in nanoseconds.
    pub ns_per_byte: f64,
}

/// A transport and what it can do.
pub struct TransportKind {
    /// Its name in plans and on the command line.
    pub name: &'static str,
    /// What the ranks are, and what they talk over.
    pub about: &'static str,
    /// Whether what is sent stays in the memory of this machine.
    pub memory: bool,
    /// What [`Options::buffer`] sizes; none if there is nothing to size.
    pub buffer: Option<&'static str>,
    /// What it costs where nothing was measured.
    pub defaults: TransportDefaults,
    /// Whether bodies can stay in their sender's memory.
    pub lends: bool,
    /// How ranks that are threads of one process are connected; none if ranks are processes.
    pub mesh: Option<Mesh>,
    /// How a rank's process listens; none if ranks are threads of one process.
    pub bind: Option<Bind>,
    /// How it listens for other machines; none if it cannot leave this one.
    pub bind_at: Option<BindAt>,
}

/// The transports.
pub static TRANSPORTS: &[TransportKind] = &[tcp::KIND, uds::KIND, shm::KIND, grpc::KIND, inproc::KIND];

paceline_registry::entries!(TransportKind, TRANSPORTS);

/// A rank's process that listens, over whatever it does.
pub trait Door: Send {
    /// The address to tell the peers.
    fn address(&self) -> String;

    /// Connects to the peers at their addresses, as [`Listener::connect`] does.
    fn connect(
        self: Box<Self>,
        identity: Identity,
        peers: &[(usize, String)],
        options: StreamOptions,
        deadline: Duration,
    ) -> Result<Box<dyn Transport>, WireError>;
}

impl<M: Medium> Door for Listener<M> {
    fn address(&self) -> String {
        Self::address(self).to_string()
    }

    fn connect(
        self: Box<Self>,
        identity: Identity,
        peers: &[(usize, String)],
        options: StreamOptions,
        deadline: Duration,
    ) -> Result<Box<dyn Transport>, WireError> {
        let parse = |(rank, address): &(usize, String)| match address.parse() {
            Ok(parsed) => Ok((*rank, parsed)),
            Err(_) => {
                let problem = format!("{address:?} is no address for rank {rank}");
                Err(WireError::Identity { rank: identity.rank, world: identity.world, problem })
            }
        };
        let peers = peers.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new((*self).connect(identity, &peers, options, deadline)?))
    }
}

/// Listens anywhere on this machine.
pub(crate) fn door<M: Medium>() -> Result<Box<dyn Door>, WireError> {
    Ok(Box::new(Listener::<M>::anywhere()?))
}

/// Listens at an address of this machine that others reach, on any free port.
pub(crate) fn door_at<M: Medium<Address = SocketAddr>>(address: IpAddr) -> Result<Box<dyn Door>, WireError> {
    Ok(Box::new(Listener::<M>::bind(SocketAddr::new(address, 0))?))
}
