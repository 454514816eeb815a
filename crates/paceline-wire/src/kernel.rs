//! What the kernel knows of a TCP connection.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The kernel's view of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelView {
    /// Smoothed round trip in microseconds.
    pub round_trip_us: u32,
    /// Segments sent again, from the start.
    pub retransmits: u32,
    /// Congestion window in bytes.
    pub window_bytes: u64,
}

/// Asks the kernel about a TCP connection; none if it does not say.
pub fn tcp(socket: impl AsFd) -> Option<KernelView> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `len` bytes into `info`, which has
    // that length.
    let answer = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    if answer != 0 {
        return None;
    }
    // SAFETY: plain numbers, zero where an older kernel has written less.
    let info = unsafe { info.assume_init() };
    Some(KernelView {
        round_trip_us: info.tcpi_rtt,
        retransmits: info.tcpi_total_retrans,
        window_bytes: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_tcp_connection_has_a_round_trip_and_a_window_and_other_sockets_have_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        one.write_all(&[1; 100]).unwrap();
        other.read_exact(&mut [0; 100]).unwrap();
        let view = tcp(&one).unwrap();
        assert!(view.round_trip_us > 0 && view.window_bytes > 0, "{view:?}");
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(tcp(&unix), None);
    }
}
