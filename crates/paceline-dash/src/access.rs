//! Who may look. On loopback, requests must name this machine (a foreign name that resolves here does not help);
//! elsewhere they must bring the token. Another site's scripts may not ask at all.

use std::net::{IpAddr, SocketAddr};

/// What a request must bring.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where the server listens.
    address: SocketAddr,
    /// What everybody must know; needed off loopback.
    token: Option<String>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `Host` names another machine.
    Host,
    /// Another site asks.
    Origin,
    /// The token is missing or wrong.
    Token,
}

/// What of a request decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking<'a> {
    /// The header `Host`.
    pub host: Option<&'a str>,
    /// The header `Origin`.
    pub origin: Option<&'a str>,
    /// `Authorization: Bearer …`.
    pub bearer: Option<&'a str>,
    /// The cookie that a first visit sets.
    pub cookie: Option<&'a str>,
    /// `?token=…` of a first visit.
    pub query: Option<&'a str>,
}

/// Compares without telling by its time where the first difference is.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A host without its port.
fn name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

impl Access {
    /// Off loopback a token is needed.
    pub fn new(address: SocketAddr, token: Option<String>) -> Result<Self, String> {
        if !address.ip().is_loopback() && token.is_none() {
            return Err(format!("{address} can be reached from elsewhere: a token is needed"));
        }
        Ok(Self { address, token })
    }

    /// Whether everybody needs the token.
    pub fn needs_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request may be answered.
    pub fn check(&self, asking: Asking<'_>) -> Result<(), Refused> {
        let host = asking.host.ok_or(Refused::Host)?;
        let own = match name(host).parse::<IpAddr>() {
            // By number nobody can be tricked: the browser knows where it goes.
            Ok(ip) => ip.is_loopback() || !self.address.ip().is_loopback(),
            Err(_) => name(host).eq_ignore_ascii_case("localhost") || self.token.is_some(),
        };
        if !own {
            return Err(Refused::Host);
        }
        if let Some(origin) = asking.origin {
            let site = origin.split_once("://").map_or(origin, |(_, site)| site);
            if !site.eq_ignore_ascii_case(host) {
                return Err(Refused::Origin);
            }
        }
        let Some(token) = &self.token else { return Ok(()) };
        let brought = [asking.bearer, asking.cookie, asking.query];
        if brought.into_iter().flatten().any(|t| same(t, token)) { Ok(()) } else { Err(Refused::Token) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, token: Option<&str>) -> Access {
        Access::new(address.parse().unwrap(), token.map(String::from)).unwrap()
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_answered() {
        let access = at("127.0.0.1:8080", None);
        let host = |host| access.check(Asking { host: Some(host), ..Asking::default() });
        for good in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"] {
            assert_eq!(host(good), Ok(()), "{good}");
        }
        for bad in ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1:8080", ""] {
            assert_eq!(host(bad), Err(Refused::Host), "{bad}");
        }
        assert_eq!(access.check(Asking::default()), Err(Refused::Host));
    }

    #[test]
    fn other_sites_may_not_ask() {
        let access = at("127.0.0.1:8080", None);
        let origin = |origin| {
            access.check(Asking { host: Some("localhost:8080"), origin: Some(origin), ..Asking::default() })
        };
        assert_eq!(origin("http://localhost:8080"), Ok(()));
        for bad in ["http://evil.example", "http://localhost:9090", "null", "https://localhost:8080.evil.example"] {
            assert_eq!(origin(bad), Err(Refused::Origin), "{bad}");
        }
    }

    #[test]
    fn elsewhere_a_token_is_needed_in_any_of_three_places() {
        assert!(Access::new("0.0.0.0:8080".parse().unwrap(), None).is_err());
        let access = at("0.0.0.0:8080", Some("secret"));
        let with = |asking: Asking<'static>| access.check(Asking { host: Some("machine:8080"), ..asking });
        assert_eq!(with(Asking::default()), Err(Refused::Token));
        assert_eq!(with(Asking { bearer: Some("secret2"), ..Asking::default() }), Err(Refused::Token));
        for asking in [
            Asking { bearer: Some("secret"), ..Asking::default() },
            Asking { cookie: Some("secret"), ..Asking::default() },
            Asking { query: Some("secret"), ..Asking::default() },
        ] {
            assert_eq!(with(asking), Ok(()));
        }
    }
}
