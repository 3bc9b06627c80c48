//! `tcp://HOST:PORT`.

use std::net::SocketAddr;

use kv_core::van::{Endpoint, VanError};

use crate::config::TcpConfig;
use crate::handshake::TEXT_BYTES_MAX;

pub(crate) const SCHEME: &str = "tcp://";

/// Host, without brackets, and port of an address in the form this van takes.
pub(crate) fn parse(endpoint: &Endpoint) -> Result<(&str, u16), VanError> {
    let parsed = endpoint.0.strip_prefix(SCHEME).and_then(split).filter(|(_, port)| *port != 0);
    parsed.ok_or_else(|| VanError::UnsupportedEndpoint {
        endpoint: endpoint.clone(),
        expected: "tcp://HOST:PORT (an IPv6 address in brackets)",
    })
}

/// Splits `HOST:PORT`.
pub(crate) fn split(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']').filter(|host| host.contains(':'))?,
        None => Some(host).filter(|host| !host.contains([':', ']']))?,
    };
    let plain = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    // `u16::from_str` would take a sign.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if plain && digits { Some((host, port.parse().ok()?)) } else { None }
}

/// What others are told to connect to, for a van that listens on `local`.
pub(crate) fn advertised(config: &TcpConfig, local: SocketAddr) -> Result<Endpoint, String> {
    let port = config.advertise_port.unwrap_or(local.port());
    let host = match &config.advertise_host {
        Some(host) => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        None if local.ip().is_unspecified() => {
            return Err("it stands for every address; say which host others are to connect to".to_owned());
        }
        None => local.ip().to_string(),
    };
    let endpoint = Endpoint(if host.contains(':') {
        format!("{SCHEME}[{host}]:{port}")
    } else {
        format!("{SCHEME}{host}:{port}")
    });
    if endpoint.0.len() > TEXT_BYTES_MAX {
        return Err(format!("the address to advertise is longer than {TEXT_BYTES_MAX} bytes"));
    }
    parse(&endpoint).map_err(|error| error.to_string())?;
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use kv_core::cluster::{NodeId, Role};

    use super::*;

    #[test]
    fn addresses_are_understood_or_refused() {
        for (text, expected) in [
            ("tcp://10.0.0.7:9100", Some(("10.0.0.7", 9100))),
            ("tcp://[::1]:1", Some(("::1", 1))),
            ("tcp://node-3.cluster.local:65535", Some(("node-3.cluster.local", 65535))),
            ("tcp://::1:1", None),
            ("tcp://[::1]", None),
            ("tcp://[10.0.0.7]:1", None),
            ("tcp://:1", None),
            ("tcp://a:0", None),
            ("tcp://a:65536", None),
            ("tcp://a:+1", None),
            ("tcp://a b:1", None),
            ("tcp://a/b:1", None),
            ("tcp://a", None),
            ("10.0.0.7:9100", None),
            ("mem://3", None),
            ("", None),
        ] {
            let endpoint = Endpoint::from(text);
            assert_eq!(parse(&endpoint).ok(), expected, "{text}");
        }
    }

    #[test]
    fn advertised_is_bound_unless_said_otherwise() {
        let mut config = TcpConfig::new("job", NodeId(1), Role::Server);
        let v6 = "[::1]:7".parse().unwrap();
        assert_eq!(advertised(&config, v6).unwrap().0, "tcp://[::1]:7");
        assert!(advertised(&config, "0.0.0.0:7".parse().unwrap()).is_err());
        config.advertise_host = Some("fe80::1".to_owned());
        assert_eq!(advertised(&config, v6).unwrap().0, "tcp://[fe80::1]:7");
        config.advertise_host = Some("front".to_owned());
        config.advertise_port = Some(80);
        assert_eq!(advertised(&config, "0.0.0.0:7".parse().unwrap()).unwrap().0, "tcp://front:80");
        config.advertise_host = Some("x".repeat(300));
        assert!(advertised(&config, v6).is_err());
    }
}
