//! Messages between the ranks of a run: frames, handshake, authentication, limits.
//!
//! A message is 48 opaque bytes of the caller's and a body of `f32`s. Nothing blocks but a wait that the
//! caller bounds, and one call moves both directions, so that two ranks which send first never wait for
//! each other. A connection carries frames only after both ends have proved that they hold the run's key.
//!
//! # Layout
//! - `transport`: the trait, its events, and how bodies are lent
//! - [`registry`]: every transport by its name
//! - [`inproc`]: the trait between threads of one process
//! - [`stream`]: the trait between processes, over any stream of bytes: listening, dialling, strangers, one
//!   file each
//! - `tcp`, `uds`, `shm`, `grpc`: what such streams are made of; `tls`: the same between machines;
//!   `mixed`: shared memory within a machine, `tls` between machines
//! - `shared`: memory that several processes have mapped
//! - `shaped`: any transport with the bandwidth and latency of an emulated network
//! - [`line`]: documents and heartbeats between the machines of a run, and the port where they join
//! - `frame`: the header of a message on a byte stream, and its checks
//! - `hello`: what an end says of itself; `handshake`: who may connect, without sockets or clocks
//! - [`identity`]: one rank of one run, and the run's key
//! - `body`: received bodies and the pool that their memory returns to
//! - `kernel`: what the kernel knows of a connection
//! - `error`: what can go wrong
//!
//! # Deliberately absent
//! Strategies and what the 48 bytes mean; joining again after a loss. Frames carry checksums,
//! not MACs: `tcp` is for one machine, and what leaves it goes through `tls`.

// Only `shared` and `kernel` allow it.
#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("bodies travel little-endian and are moved without conversion");

mod body;
mod error;
mod frame;
mod grpc;
mod handshake;
mod hello;
pub mod identity;
pub mod inproc;
mod kernel;
pub mod line;
mod mixed;
pub mod registry;
mod shaped;
mod shared;
mod shm;
pub mod stream;
mod tcp;
mod tls;
mod transport;
mod uds;

pub use body::Body;
pub use error::WireError;
pub use frame::{HEADER, Header, LentPlace, VERSION, checksum};
pub use grpc::Rpc;
pub use handshake::{Handshake, HandshakeState, Side, VERDICT};
pub use hello::{HELLO, Hello};
pub use identity::{Identity, Key};
pub use kernel::KernelView;
pub use registry::{Door, TRANSPORTS, TransportDefaults, TransportKind};
pub use shaped::{Interfaces, Link, Shaped};
pub use shm::SharedMemory;
pub use stream::StreamOptions;
pub use tcp::Net;
pub use tls::Secure;
pub use transport::{Event, META, Meta, Source, Span, Traffic, Transport};
pub use uds::Unix;
