//! The scheduler's address over each transport, whether or not it is compiled in.

use kv_core::cluster::{NodeId, Role};

use super::{env, file, problem};
use crate::config::address::{check_socket, scheduler_socket_in, socket_path};
use crate::config::{SchedulerAddress, Settings};
use crate::transport;

/// What is wrong beside that a transport is not compiled in; nothing when the settings are right.
fn others(settings: Settings, role: Role) -> Vec<String> {
    match settings.resolve(role) {
        Ok(_) => Vec::new(),
        Err(error) => {
            let text = error.to_string();
            let lines = text.strip_prefix("configuration: ").unwrap().lines();
            let problems = lines.map(|line| line.trim_start_matches(' ').trim_start_matches("- ").to_owned());
            problems.filter(|line| !line.contains("Cargo feature") && !line.ends_with("problems:")).collect()
        }
    }
}

const SIZES: [(&str, &str); 2] = [("KV_NUM_WORKERS", "2"), ("KV_NUM_SERVERS", "1")];

fn with(pairs: &[(&str, &str)]) -> Settings {
    env(&[&SIZES, pairs].concat())
}

#[test]
fn each_transport_takes_addresses_of_its_kind() {
    let (ipc, tcp) = (("KV_SCHEDULER", "ipc:///run/job/scheduler"), ("KV_SCHEDULER", "tcp://10.0.0.1:9091"));
    for (transport, address, expected) in [
        ("tcp", ipc, "expected host:port, which is where a scheduler listens with transport tcp, found ipc:///run/job"),
        ("zmq", ipc, "expected host:port, which is where a scheduler listens with transport zmq, found ipc:///run/job"),
        ("zmq-ipc", tcp, "expected ipc:///path, the scheduler's socket with transport zmq-ipc, found tcp://10.0.0.1:9"),
        ("zmq", tcp, ""),
        ("zmq-ipc", ipc, ""),
        ("mpi", tcp, ""),
        ("memory", ipc, ""),
    ] {
        for role in [Role::Scheduler, Role::Server, Role::Worker] {
            let problems = others(with(&[("KV_TRANSPORT", transport), address]), role);
            match (expected, problems.as_slice()) {
                ("", []) => {}
                (_, [one]) if !expected.is_empty() => assert!(one.contains(expected), "{one}"),
                _ => panic!("{transport}, {address:?}, {role}: {problems:#?}"),
            }
        }
    }
}

#[test]
fn only_hosts_and_sockets_must_be_told() {
    for transport in ["mpi", "memory"] {
        for role in [Role::Scheduler, Role::Server, Role::Worker] {
            let settings = with(&[("KV_TRANSPORT", transport), ("KV_INTERFACE", "none-such"), ("KV_PORT", "1")]);
            assert_eq!(others(settings, role), Vec::<String>::new(), "{transport}, {role}");
        }
    }
    let zmq_ipc = || with(&[("KV_TRANSPORT", "zmq-ipc")]);
    assert_eq!(others(zmq_ipc(), Role::Scheduler), Vec::<String>::new(), "it makes a folder");
    assert!(others(zmq_ipc(), Role::Server)[0].ends_with("found nothing"));
    assert_eq!(others(env(&[("KV_TRANSPORT", "mpi")]), Role::Scheduler), Vec::<String>::new(), "MPI knows the sizes");
    assert_eq!(others(env(&[("KV_TRANSPORT", "memory")]), Role::Scheduler).len(), 2);
    assert!(others(env(&[("KV_TRANSPORT", "mpi")]), Role::Observer)[0].contains("join from outside"));
}

#[test]
fn a_memory_job_is_known_by_its_name() {
    let settings = with(&[("KV_TRANSPORT", "memory"), ("KV_JOB", "night")]);
    let config = settings.resolve(Role::Worker).unwrap();
    assert_eq!(config.scheduler, Some(SchedulerAddress::Job("night".to_owned())));
    assert_eq!(config.scheduler.as_ref().unwrap().to_string(), "mem://night");
    assert_eq!(config.listens_on(NodeId(1)), None);
    assert_eq!(SchedulerAddress::RankZero.to_string(), "mpi://0");
}

#[test]
fn an_address_comes_from_one_source() {
    let own = env(&[("KV_SCHEDULER", "ipc:///run/s"), ("DMLC_PS_ROOT_URI", "host"), ("DMLC_PS_ROOT_PORT", "9")]);
    assert_eq!((own.scheduler_host, own.scheduler_port), (None, None));
    assert_eq!(own.scheduler_socket.as_deref(), Some("/run/s"));
    let flag = env(&[("DMLC_PS_ROOT_PORT", "9")]).or(file("scheduler = 'ipc:///run/s'"));
    assert_eq!((flag.scheduler_port, flag.scheduler_socket), (Some(9), None));
    let mut settings = env(&[("KV_SCHEDULER", "ipc:///run/s")]);
    assert!(settings.set_scheduler("host:1"));
    assert_eq!((settings.scheduler_socket.as_ref(), settings.scheduler_port), (None, Some(1)));
    assert!(settings.set_scheduler("ipc:///run/t"));
    assert_eq!((settings.scheduler_socket.as_deref(), settings.scheduler_port), (Some("/run/t"), None));
}

#[test]
fn sockets_of_one_job_lie_in_one_folder() {
    let mut config = with(&[("KV_TRANSPORT", "memory")]).resolve(Role::Worker).unwrap();
    config.transport = "zmq-ipc";
    config.scheduler = Some(scheduler_socket_in("/tmp/kv-1").unwrap());
    assert_eq!(config.listens_on(NodeId(0xab)).unwrap().0, "ipc:///tmp/kv-1/worker-00000000000000ab");
    config.role = Role::Scheduler;
    assert_eq!(config.listens_on(NodeId(0xab)).unwrap().0, "ipc:///tmp/kv-1/scheduler");
    config.transport = "zmq";
    assert_eq!(config.listens_on(NodeId(0xab)).unwrap().0, format!("tcp://{}", config.listen));
}

#[test]
fn paths_of_sockets() {
    for (text, expected) in [
        ("ipc:///run/job/scheduler", Some("/run/job/scheduler")),
        ("ipc:///s", Some("/s")),
        ("ipc:///a b", Some("/a b")),
        ("ipc://run/s", None),
        ("ipc:///run/", None),
        ("ipc:///", None),
        ("ipc://", None),
        ("ipc:///a\u{0}b", None),
        ("ipc:///a\u{fffd}b", None),
        ("tcp:///s", None),
        ("/run/s", None),
    ] {
        assert_eq!(socket_path(text), expected, "{text}");
    }
}

#[test]
fn sockets_have_short_paths() {
    // The longest socket beside it is that of an observer: 26 bytes with the slash.
    let fits = format!("/{}/s", "f".repeat(if cfg!(target_os = "linux") { 80 } else { 76 }));
    check_socket(&fits).unwrap();
    let too_long = format!("/f{fits}");
    let problem_text = check_socket(&too_long).unwrap_err();
    assert!(problem_text.contains("sockets of the other nodes beside it have at most"), "{problem_text}");
    assert!(problem_text.contains(&too_long[..20]), "{problem_text}");
    let settings = with(&[("KV_TRANSPORT", "zmq-ipc"), ("KV_SCHEDULER", &format!("ipc://{too_long}"))]);
    for role in [Role::Scheduler, Role::Worker] {
        assert_eq!(others(settings.clone(), role).len(), 1, "{:?}", others(settings.clone(), role));
    }
    let own_name = format!("/{}", "n".repeat(107));
    check_socket(&own_name).unwrap_err();
    assert!(scheduler_socket_in(&"/folder".repeat(20)).is_err());
}

#[test]
fn what_is_not_compiled_in_says_how_to_get_it() {
    for (name, feature) in [("zmq", "zmq"), ("zmq-ipc", "zmq"), ("mpi", "mpi")] {
        if transport::names().contains(&name) {
            continue;
        }
        let text = problem(env(&[("KV_TRANSPORT", name), ("KV_NUM_WORKERS", "1")]), Role::Observer);
        assert!(text.contains(&format!("found \"{name}\"")) && text.contains(&format!("feature {feature}")), "{text}");
    }
}
