//! Every transport by its name: what the command line offers and the launcher uses.

use std::time::Duration;

use crate::error::WireError;
use crate::identity::Identity;
use crate::stream::medium::Medium;
use crate::stream::{Listener, Options};
use crate::transport::Transport;
use crate::{grpc, inproc, shm, tcp, uds};

/// Lets a rank's process listen on this machine.
pub type Bind = fn() -> Result<Box<dyn Door>, WireError>;

/// A transport and what it can do.
pub struct TransportKind {
    /// Its name in plans and on the command line.
    pub name: &'static str,
    /// What the ranks are, and what they talk over.
    pub about: &'static str,
    /// What [`Options::buffer`] sizes; none if there is nothing to size.
    pub buffer: Option<&'static str>,
    /// How a rank's process listens; none if ranks are threads of one process.
    pub bind: Option<Bind>,
}

/// The transports.
pub const TRANSPORTS: &[TransportKind] = &[tcp::KIND, uds::KIND, shm::KIND, grpc::KIND, inproc::KIND];

/// The transport of a name.
pub fn find(name: &str) -> Option<&'static TransportKind> {
    TRANSPORTS.iter().find(|kind| kind.name == name)
}

/// A rank's process that listens, over whatever it does.
pub trait Door: Send {
    /// The address to tell the peers.
    fn address(&self) -> String;

    /// Connects to the peers at their addresses, as [`Listener::connect`] does.
    fn connect(
        self: Box<Self>,
        identity: Identity,
        peers: &[(usize, String)],
        options: Options,
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
        options: Options,
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
