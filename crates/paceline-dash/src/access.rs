//! Who may look. On loopback, requests must name this machine: a foreign name that somebody makes resolve to here is
//! refused. Elsewhere they must bring the token, which no browser sends to a foreign name. Another site's scripts may
//! not ask at all.

use std::net::{IpAddr, SocketAddr};

/// What a request must bring.
#[derive(Clone)]
pub struct Access {
    address: SocketAddr,
    /// What everybody must know; needed off loopback.
    token: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A header that decides is there twice, or is no text.
    Ambiguous,
    /// `Host` or the target names another machine.
    Host,
    /// Another site asks.
    Origin,
    /// The token is missing or wrong.
    Token,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct AccessRequest<'a> {
    /// The authority of a target in absolute form, as proxies are asked.
    pub target: Option<&'a str>,
    pub host: Option<&'a str>,
    pub origin: Option<&'a str>,
    /// The header `Sec-Fetch-RunEnvironment`: where the page comes from that asks, as the browser says.
    pub site: Option<&'a str>,
    /// The header `Sec-Fetch-Mode`: what it asks for.
    pub mode: Option<&'a str>,
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
            return Err(format!(
                "other machines can reach {address}: without a token this would let anybody look"
            ));
        }
        Ok(Self { address, token })
    }

    /// Whether everybody needs the token.
    pub fn needs_token(&self) -> bool {
        self.token.is_some()
    }

    /// The cookie's name: servers on other ports of the same machine have others.
    pub fn cookie(&self) -> String {
        format!("paceline-{}", self.address.port())
    }

    /// Whether a request may be answered.
    pub fn check(&self, asking: AccessRequest<'_>) -> Result<(), Refused> {
        let host = asking.host.ok_or(Refused::Host)?;
        // This is no proxy: both names must be the same.
        if asking.target.is_some_and(|target| !target.eq_ignore_ascii_case(host)) {
            return Err(Refused::Host);
        }
        let local = match name(host).parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback(),
            Err(_) => name(host).eq_ignore_ascii_case("localhost"),
        };
        // Elsewhere the machine may have any name, and the token decides.
        if host.is_empty() || (self.address.ip().is_loopback() && !local) {
            return Err(Refused::Host);
        }
        if let Some(origin) = asking.origin {
            let site = origin.split_once("://").map_or(origin, |(_, site)| site);
            if !site.eq_ignore_ascii_case(host) {
                return Err(Refused::Origin);
            }
        }
        // A link from elsewhere may lead here; pictures, scripts and fetches of other sites may not come here.
        if asking.site.is_some_and(|site| site == "cross-site") && asking.mode != Some("navigate") {
            return Err(Refused::Origin);
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
        for token in [None, Some("secret")] {
            let access = at("127.0.0.1:8080", token);
            let host = |host| {
                access.check(AccessRequest { host: Some(host), query: token, ..AccessRequest::default() })
            };
            for good in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "localhost:9999"] {
                assert_eq!(host(good), Ok(()), "{good}");
            }
            for bad in ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1:8080", ""] {
                assert_eq!(host(bad), Err(Refused::Host), "{bad}");
            }
            assert_eq!(access.check(AccessRequest::default()), Err(Refused::Host));
            let target = |target| {
                access.check(AccessRequest {
                    target: Some(target),
                    host: Some("localhost:8080"),
                    query: token,
                    ..AccessRequest::default()
                })
            };
            assert_eq!(target("LocalHost:8080"), Ok(()));
            for bad in ["evil.example", "localhost:8080@evil.example", "localhost:9090", ""] {
                assert_eq!(target(bad), Err(Refused::Host), "{bad}");
            }
        }
    }

    #[test]
    fn other_sites_may_not_ask_but_may_link_here() {
        let access = at("127.0.0.1:8080", None);
        let from = AccessRequest { host: Some("localhost:8080"), ..AccessRequest::default() };
        let origin = |origin| access.check(AccessRequest { origin: Some(origin), ..from });
        assert_eq!(origin("http://localhost:8080"), Ok(()));
        for bad in
            ["http://evil.example", "http://localhost:9090", "null", "https://localhost:8080.evil.example"]
        {
            assert_eq!(origin(bad), Err(Refused::Origin), "{bad}");
        }
        let fetch = |site, mode| access.check(AccessRequest { site: Some(site), mode: Some(mode), ..from });
        assert_eq!((fetch("same-origin", "cors"), fetch("none", "navigate")), (Ok(()), Ok(())));
        assert_eq!(fetch("cross-site", "navigate"), Ok(()));
        assert_eq!(fetch("cross-site", "no-cors"), Err(Refused::Origin));
    }

    #[test]
    fn elsewhere_a_token_is_needed_in_any_of_three_places() {
        assert!(Access::new("0.0.0.0:8080".parse().unwrap(), None).is_err());
        let access = at("0.0.0.0:8080", Some("secret"));
        let with = |asking: AccessRequest<'static>| {
            access.check(AccessRequest { host: Some("machine:8080"), ..asking })
        };
        assert_eq!(with(AccessRequest::default()), Err(Refused::Token));
        assert_eq!(
            with(AccessRequest { bearer: Some("secret2"), ..AccessRequest::default() }),
            Err(Refused::Token)
        );
        for asking in [
            AccessRequest { bearer: Some("secret"), ..AccessRequest::default() },
            AccessRequest { cookie: Some("secret"), ..AccessRequest::default() },
            AccessRequest { query: Some("secret"), ..AccessRequest::default() },
        ] {
            assert_eq!(with(asking), Ok(()));
        }
    }
}
