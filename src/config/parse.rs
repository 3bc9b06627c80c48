//! From text to a setting's value and back. Every parser is total: any text gives a value or `None`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use kv_core::Endpoint;
use kv_core::cluster::{Role, WorkerLoss};

/// Host and port of a listening node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl HostPort {
    /// The address in the form the vans understand: `tcp://host:port`.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint(format!("tcp://{self}"))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", bracketed(&self.host), self.port)
    }
}

/// An IPv6 address needs brackets before a port can follow.
pub(super) fn bracketed(host: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{host}]"),
        Err(_) => host.to_owned(),
    }
}

/// Parses `tcp://host:port`, `host:port`, `[::1]:port`, and each half alone: `host`, `:port`.
///
/// Halves alone are allowed because the halves may come from different sources.
#[must_use]
pub fn host_port(text: &str) -> Option<(Option<String>, Option<u16>)> {
    let text = text.strip_prefix("tcp://").unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    if let Some(port) = text.strip_prefix(':').and_then(port) {
        return Some((None, Some(port)));
    }
    if let Some(host) = host(text) {
        return Some((Some(host), None));
    }
    let (before, after) = text.rsplit_once(':')?;
    // Without brackets nobody can tell where an IPv6 address ends and its port begins.
    if before.contains(':') && !before.starts_with('[') {
        return None;
    }
    Some((Some(host(before)?), Some(port(after)?)))
}

/// A host name or an address; brackets around an IPv6 address are taken off.
#[must_use]
pub fn host(text: &str) -> Option<String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = inner {
        return address.parse::<Ipv6Addr>().ok().map(|address| address.to_string());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_string());
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!text.is_empty() && text.len() <= 253 && text.chars().all(is_name)).then(|| text.to_owned())
}

/// A port: digits only, because `u16` alone would also take `+80`.
fn port(text: &str) -> Option<u16> {
    number(text)
}

/// A whole number in decimal digits.
pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Parses `10s`, `500ms`, `1.5h`, or plain seconds. Units: `ns`, `us`, `ms`, `s`, `m`, `h`.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let nanos_each: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" | "" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let digits = digits.trim_end_matches(' ');
    if let Some(whole) = number::<u64>(digits) {
        return whole.checked_mul(nanos_each).map(Duration::from_nanos);
    }
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let amount: f64 = is_decimal.then(|| digits.parse().ok()).flatten()?;
    #[expect(clippy::cast_precision_loss, reason = "a fraction of a unit is not exact to begin with")]
    Duration::try_from_secs_f64(amount * (nanos_each as f64 / 1e9)).ok()
}

/// The shortest exact text of a duration, in a form that [`duration`] reads.
pub(super) fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (each, unit) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
        if nanos.is_multiple_of(each) {
            return format!("{}{unit}", nanos / each);
        }
    }
    format!("{nanos}ns")
}

/// Parses a number of bytes: `65536`, `64KiB`, `4MiB`, `1GiB`.
#[must_use]
pub fn byte_count(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let each: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number::<u64>(digits.trim_end_matches(' '))?.checked_mul(each)
}

/// Parses a role by its name.
#[must_use]
pub fn role(text: &str) -> Option<Role> {
    [Role::Scheduler, Role::Server, Role::Worker, Role::Observer].into_iter().find(|role| role.to_string() == text)
}

/// Parses `fail` or `continue`.
#[must_use]
pub fn worker_loss(text: &str) -> Option<WorkerLoss> {
    match text {
        "fail" => Some(WorkerLoss::Fail),
        "continue" => Some(WorkerLoss::Continue),
        _ => None,
    }
}

pub(super) fn worker_loss_text(loss: WorkerLoss) -> &'static str {
    match loss {
        WorkerLoss::Fail => "fail",
        WorkerLoss::Continue => "continue",
    }
}

/// A yes or no in the spellings that environments use.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}
