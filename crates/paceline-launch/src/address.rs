//! Where a machine can be reached, as a user writes it.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The port where nothing else is said.
pub const PORT: u16 = 7700;

/// An address as the user wrote it, and what it stands for.
#[derive(Clone, Debug)]
pub struct HostAddress {
    text: String,
    /// What it stands for, at least one.
    pub all: Vec<SocketAddr>,
}

impl std::str::FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = if let Ok(address) = text.parse::<IpAddr>() {
            vec![SocketAddr::new(address, PORT)]
        } else {
            let named = if text.contains(':') { text.to_owned() } else { format!("{text}:{PORT}") };
            let found = named.to_socket_addrs().map_err(|e| {
                format!("{e}; an address and a port are needed, e.g. 10.0.0.1:{PORT} or [fd00::1]:{PORT}")
            })?;
            found.collect()
        };
        if all.is_empty() {
            return Err("no address has that name".into());
        }
        Ok(Self { text: text.to_owned(), all })
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_get_one() {
        let first = |text: &str| text.parse::<HostAddress>().map(|a| a.all[0].to_string());
        assert_eq!(first("10.0.0.1").unwrap(), "10.0.0.1:7700");
        assert_eq!(first("10.0.0.1:80").unwrap(), "10.0.0.1:80");
        assert_eq!(first("::1").unwrap(), "[::1]:7700");
        assert_eq!(first("[::1]:0").unwrap(), "[::1]:0");
        assert!(first("10.0.0.1:99999").unwrap_err().contains("a port are needed"));
        assert!(first("").is_err());
    }
}
