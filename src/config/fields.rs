//! The table of settings: each with its name in a file, its variable, and how its text is read and written.

use super::Settings;
use super::{address, parse};

/// One setting.
pub(super) struct Field {
    /// Key in the file; the flag is the same with dashes.
    pub(super) name: &'static str,
    /// Own variable.
    pub(super) variable: &'static str,
    /// What a value looks like.
    pub(super) expected: &'static str,
    /// Reads a text into the settings; `None` when it is not as expected.
    pub(super) set: fn(&mut Settings, &str) -> Option<()>,
    /// The text that `set` reads back.
    pub(super) get: fn(&Settings) -> Option<String>,
}

/// A variable of ps-lite or MXNet.
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
    pub(super) set: fn(&mut Settings, &str) -> Option<()>,
}

const HOST: &str = "a host name or an address";
const ADDRESS: &str = "host:port, tcp://host:port, [ipv6]:port or ipc:///path";
const PORT: &str = "a port from 0 to 65535";
const NUMBER: &str = "a whole number from 0 to 65535";
const DURATION: &str = "a duration such as 10s, 500ms or plain seconds";
const BYTES: &str = "a number of bytes such as 131072, 128KiB or 4MiB";
const FLAG: &str = "true or false";

/// A field whose text is read by `$parse` and written by `$text`.
macro_rules! field {
    ($name:ident, $variable:literal, $expected:expr, $parse:expr, $text:expr) => {
        Field {
            name: stringify!($name),
            variable: $variable,
            expected: $expected,
            set: |settings, text| {
                settings.$name = Some($parse(text)?);
                Some(())
            },
            get: |settings| settings.$name.clone().map($text),
        }
    };
}

/// Every setting, in the order of the documentation.
pub(super) const FIELDS: &[Field] = &[
    field!(role, "KV_ROLE", "scheduler, server, worker or observer", parse::role, |role| role.to_string()),
    field!(by_rank, "KV_BY_RANK", FLAG, parse::flag, |flag| flag.to_string()),
    Field { name: "scheduler", variable: "KV_SCHEDULER", expected: ADDRESS, set: set_scheduler, get: scheduler_text },
    field!(num_workers, "KV_NUM_WORKERS", NUMBER, parse::number, |n| n.to_string()),
    field!(num_servers, "KV_NUM_SERVERS", NUMBER, parse::number, |n| n.to_string()),
    field!(job, "KV_JOB", "a name", text, |job| job),
    field!(bind, "KV_BIND", "an address of this machine such as 0.0.0.0 or ::1", ip, |ip| ip.to_string()),
    field!(advertise, "KV_ADVERTISE", HOST, parse::host, |host| host),
    field!(interface, "KV_INTERFACE", "the name of a network interface", text, |name| name),
    field!(port, "KV_PORT", PORT, parse::number, |port| port.to_string()),
    field!(node_port, "KV_NODE_PORT", PORT, parse::number, |port| port.to_string()),
    field!(rank, "KV_RANK", NUMBER, parse::number, |rank| rank.to_string()),
    field!(transport, "KV_TRANSPORT", "the name of a transport", text, |name| name),
    field!(trust_network, "KV_TRUST_NETWORK", FLAG, parse::flag, |flag| flag.to_string()),
    field!(timeout, "KV_TIMEOUT", DURATION, parse::duration, parse::duration_text),
    field!(spin, "KV_SPIN", DURATION, parse::duration, parse::duration_text),
    field!(startup_timeout, "KV_STARTUP_TIMEOUT", DURATION, parse::duration, parse::duration_text),
    field!(heartbeat_interval, "KV_HEARTBEAT_INTERVAL", DURATION, parse::duration, parse::duration_text),
    field!(dead_after, "KV_DEAD_AFTER", DURATION, parse::duration, parse::duration_text),
    field!(worker_loss, "KV_WORKER_LOSS", "fail or continue", parse::worker_loss, |loss| {
        parse::worker_loss_text(loss).to_owned()
    }),
    field!(chunk_bytes, "KV_CHUNK_BYTES", BYTES, parse::byte_count, |bytes| bytes.to_string()),
    field!(deterministic, "KV_DETERMINISTIC", FLAG, parse::flag, |flag| flag.to_string()),
    field!(window_messages, "KV_WINDOW_MESSAGES", "a whole number", parse::number, |n| n.to_string()),
    field!(window_bytes, "KV_WINDOW_BYTES", BYTES, parse::byte_count, |bytes| bytes.to_string()),
    field!(kubernetes, "KV_KUBERNETES", FLAG, parse::flag, |flag| flag.to_string()),
    field!(log, "KV_LOG", "a log filter such as info or kv_core=debug", text, |log| log),
];

/// The variables of ps-lite and MXNet that mean something here. A later one wins over an earlier one.
pub(super) const FOREIGN: &[Variable] = &[
    Variable {
        name: "DMLC_ROLE",
        expected: "scheduler, server or worker",
        set: |s, text| parse::role(text).map(|role| s.role = Some(role)),
    },
    Variable {
        name: "DMLC_PS_ROOT_URI",
        expected: HOST,
        set: |s, text| match parse::host_port(text)? {
            (Some(host), port) => {
                s.scheduler_host = Some(host);
                s.scheduler_port = port;
                Some(())
            }
            _ => None,
        },
    },
    Variable {
        name: "DMLC_PS_ROOT_PORT",
        expected: PORT,
        set: |s, text| parse::number(text).map(|port| s.scheduler_port = Some(port)),
    },
    Variable {
        name: "DMLC_NUM_WORKER",
        expected: NUMBER,
        set: |s, text| parse::number(text).map(|n| s.num_workers = Some(n)),
    },
    Variable {
        name: "DMLC_NUM_SERVER",
        expected: NUMBER,
        set: |s, text| parse::number(text).map(|n| s.num_servers = Some(n)),
    },
    Variable {
        name: "DMLC_NODE_HOST",
        expected: HOST,
        set: |s, text| parse::host(text).map(|host| s.advertise = Some(host)),
    },
    Variable {
        name: "DMLC_INTERFACE",
        expected: "the name of a network interface",
        set: |s, text| {
            s.interface = Some(text.to_owned());
            Some(())
        },
    },
    Variable { name: "DMLC_RANK", expected: NUMBER, set: |s, text| parse::number(text).map(|n| s.rank = Some(n)) },
    Variable { name: "PORT", expected: PORT, set: |s, text| parse::number(text).map(|n| s.node_port = Some(n)) },
    Variable { name: "DMLC_PORT", expected: PORT, set: |s, text| parse::number(text).map(|n| s.node_port = Some(n)) },
    Variable {
        name: "DMLC_USE_KUBERNETES",
        expected: FLAG,
        set: |s, text| parse::flag(text).map(|flag| s.kubernetes = Some(flag)),
    },
    // ps-lite switches heartbeats off with 0, its default. Here they are always on, so 0 keeps the default.
    Variable {
        name: "PS_HEARTBEAT_INTERVAL",
        expected: DURATION,
        set: |s, text| parse::duration(text).map(|d| s.heartbeat_interval = Some(d).filter(|d| !d.is_zero())),
    },
    Variable {
        name: "PS_HEARTBEAT_TIMEOUT",
        expected: DURATION,
        set: |s, text| parse::duration(text).map(|d| s.dead_after = Some(d).filter(|d| !d.is_zero())),
    },
    Variable {
        name: "PS_VERBOSE",
        expected: "0, 1 or 2",
        set: |s, text| {
            s.log = match parse::number::<u8>(text)? {
                0 => None,
                1 => Some("info".to_owned()),
                _ => Some("debug".to_owned()),
            };
            Some(())
        },
    },
];

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn ip(text: &str) -> Option<std::net::IpAddr> {
    parse::host(text)?.parse().ok()
}

fn set_scheduler(settings: &mut Settings, text: &str) -> Option<()> {
    if let Some(path) = address::socket_path(text) {
        settings.scheduler_socket = Some(path.to_owned());
        (settings.scheduler_host, settings.scheduler_port) = (None, None);
        return Some(());
    }
    let (host, port) = parse::host_port(text)?;
    settings.scheduler_host = host.or(settings.scheduler_host.take());
    settings.scheduler_port = port.or(settings.scheduler_port.take());
    settings.scheduler_socket = None;
    Some(())
}

pub(super) fn scheduler_text(settings: &Settings) -> Option<String> {
    if let Some(path) = &settings.scheduler_socket {
        return Some(address::socket_text(path));
    }
    let host = settings.scheduler_host.as_deref().map(parse::bracketed);
    match (host, settings.scheduler_port) {
        (Some(host), Some(port)) => Some(format!("tcp://{host}:{port}")),
        (Some(host), None) => Some(host),
        (None, Some(port)) => Some(format!(":{port}")),
        (None, None) => None,
    }
}

impl Settings {
    /// Reads `tcp://host:port`, `host:port`, `[::1]:port` or one half of it into the scheduler's host and port, and
    /// `ipc:///path` into its socket; false when the text is none of these. For a flag.
    #[must_use]
    pub fn set_scheduler(&mut self, text: &str) -> bool {
        set_scheduler(self, text).is_some()
    }
}
