use kv_core::cluster::Role;
use proptest::prelude::*;

use super::launcher::{Ranked, first_host};
use super::{Place, place};
use crate::config::Settings;

type Variables<'a> = &'a [(&'a str, &'a str)];

fn lookup(pairs: Variables<'_>) -> impl Fn(&str) -> Option<String> {
    |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
}

fn find(pairs: Variables<'_>) -> Option<Ranked> {
    Ranked::find(&lookup(pairs)).unwrap()
}

fn ranked(rank: u32, size: u32, first_host: Option<&str>) -> Option<Ranked> {
    Some(Ranked { rank, size, several_programs: false, first_host: first_host.map(str::to_owned) })
}

const OPEN_MPI: Variables<'_> = &[
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "5"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "5"),
    ("OMPI_NUM_APP_CTX", "1"),
    ("PMIX_RANK", "3"),
];

/// One of three tasks on two hosts, as `srun` starts it.
const SRUN: Variables<'_> = &[
    ("SLURM_PROCID", "2"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NUM_TASKS", "3"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "node[07-08]"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_NNODES", "4"),
    ("SLURM_JOB_NODELIST", "node[05-08]"),
];

/// `first` wins over `then`.
fn over<'a>(first: Variables<'a>, then: Variables<'a>) -> Vec<(&'a str, &'a str)> {
    [first, then].concat()
}

#[test]
fn open_mpi_says_rank_size_and_whether_all_are_here() {
    assert_eq!(find(OPEN_MPI), ranked(3, 5, Some("127.0.0.1")));
    assert_eq!(find(&over(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")], OPEN_MPI)), ranked(3, 5, None));
    assert!(find(&over(&[("OMPI_NUM_APP_CTX", "3")], OPEN_MPI)).unwrap().several_programs);
    // Its daemons are tasks of Slurm, whose variables the processes inherit.
    let inside = over(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("SLURM_STEP_NUM_TASKS", "5")], OPEN_MPI);
    assert_eq!(find(&over(&inside, SRUN)), ranked(3, 5, None));
}

#[test]
fn hydra_says_rank_size_and_how_many_are_here() {
    let hydra: Variables<'_> = &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "4")];
    assert_eq!(find(hydra), ranked(1, 4, Some("127.0.0.1")));
    assert_eq!(find(&over(&[("MPI_LOCALNRANKS", "2")], hydra)), ranked(1, 4, None));
    assert_eq!(find(&hydra[..2]), ranked(1, 4, None));
    // Started through srun, which has one task for each host.
    assert_eq!(find(&over(&over(&[("MPI_LOCALNRANKS", "2")], hydra), SRUN)), ranked(1, 4, None));
}

#[test]
fn srun_says_rank_size_and_the_hosts() {
    assert_eq!(find(SRUN), ranked(2, 3, Some("node07")));
    assert_eq!(find(&over(&[("SLURM_STEP_NUM_NODES", "1")], SRUN)), ranked(2, 3, Some("127.0.0.1")));
    assert_eq!(find(&over(&[("PMIX_RANK", "2")], SRUN)), ranked(2, 3, Some("node07")));
    assert_eq!(find(&over(&[("PMI_RANK", "2"), ("PMI_SIZE", "3")], SRUN)), ranked(2, 3, Some("node07")));
    let older: Vec<_> = SRUN.iter().filter(|(name, _)| !name.contains("_STEP_N")).copied().collect();
    assert_eq!(find(&older), ranked(2, 8, Some("node05")));
    assert_eq!(find(&over(&[("SLURM_STEP_ID", ""), ("SLURM_STEPID", "4")], SRUN)), ranked(2, 3, Some("node07")));
}

#[test]
fn a_batch_script_was_not_started_many_times() {
    for step in ["", "4294967291", "4294967290", "batch", "interactive"] {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_NNODES", "1"), ("SLURM_STEP_ID", step)];
        assert_eq!(find(&batch), None, "{step}");
    }
    assert_eq!(find(&[]), None);
    let inside = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "batch")];
    assert_eq!(find(&over(&inside, OPEN_MPI)), ranked(3, 5, Some("127.0.0.1")), "mpirun in a script");
}

#[test]
fn nonsense_is_named() {
    for (pairs, expected) in [
        (&[("PMI_RANK", "1")][..], "PMI_SIZE: expected a whole number beside the rank, found nothing"),
        (&[("PMI_RANK", "-1"), ("PMI_SIZE", "2")], "PMI_RANK: expected a whole number, found \"-1\""),
        (&[("PMI_RANK", "2"), ("PMI_SIZE", "2")], "PMI_RANK: expected a rank below 2 (PMI_SIZE), found 2"),
        (&[("PMIX_RANK", "0")], "SLURM_STEP_NUM_TASKS or SLURM_NTASKS: expected a whole number"),
        (
            &[
                ("SLURM_PROCID", "0"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_NTASKS", "3"),
                ("SLURM_NNODES", "2"),
                ("SLURM_JOB_NODELIST", "node["),
            ],
            "SLURM_JOB_NODELIST: expected names of hosts such as node[01-03,07],other, found \"node[\"",
        ),
    ] {
        let problem = Ranked::find(&lookup(pairs)).unwrap_err();
        assert!(problem.starts_with(expected), "{problem}");
    }
}

#[test]
fn the_first_host_of_a_list() {
    for (list, first) in [
        ("node[01-03,07],other", Some("node01")),
        ("node[7,9]", Some("node7")),
        ("rack[2-3]-n[08,10].local,x", Some("rack2-n08.local")),
        ("head,node[1-2]", Some("head")),
        ("a-b", Some("a-b")),
        ("10.0.0.1,10.0.0.2", Some("10.0.0.1")),
        ("", None),
        (",a", None),
        ("node[", None),
        ("node[]", None),
        ("node[-3]", None),
        ("no de", None),
    ] {
        assert_eq!(first_host(list).as_deref(), first, "{list}");
    }
}

#[test]
fn ranks_are_scheduler_then_servers_then_workers() {
    let places: Vec<_> = (0..6).map(|rank| place(rank, 6, 2).unwrap()).collect();
    let expected = [
        (Role::Scheduler, 0),
        (Role::Server, 0),
        (Role::Server, 1),
        (Role::Worker, 0),
        (Role::Worker, 1),
        (Role::Worker, 2),
    ];
    assert_eq!(places, expected.map(|(role, rank)| Place { role, rank, workers: 3 }));
    let few = place(0, 3, 2).unwrap_err();
    assert!(few.ends_with("at least 4 processes (a scheduler, 2 servers and a worker), found 3"), "{few}");
    assert!(place(0, 100_000, 2).unwrap_err().contains("at most 65535 workers, found 99997"));
}

fn load(flags: Settings, pairs: Variables<'_>) -> Settings {
    Settings::load(flags, None, &lookup(pairs))
}

fn one_problem(settings: &Settings) -> &str {
    assert_eq!(settings.problems.len(), 1, "{:?}", settings.problems);
    assert_eq!(settings.role, Some(Role::Worker));
    if settings.transport.as_deref() != Some("zmq-ipc") {
        let said = settings.clone().resolve(Role::Worker).unwrap_err().to_string();
        assert_eq!(said, format!("configuration: {}", settings.problems[0]), "and nothing else");
    }
    &settings.problems[0]
}

#[test]
fn a_place_by_rank_is_complete() {
    let asked = over(&[("KV_BY_RANK", "1"), ("KV_NUM_SERVERS", "2")], OPEN_MPI);
    let worker = load(Settings::default(), &asked);
    assert_eq!((worker.role, worker.rank, worker.num_workers), (Some(Role::Worker), Some(0), Some(2)));
    let worker = worker.resolve(Role::Worker).unwrap();
    assert_eq!(worker.scheduler.unwrap().to_string(), "tcp://127.0.0.1:9091");
    let rank_0 = over(&[("OMPI_COMM_WORLD_RANK", "0"), ("KV_SCHEDULER", ":9200"), ("KV_RANK", "4")], &asked);
    let scheduler = load(Settings::default(), &rank_0).resolve(Role::Scheduler).unwrap();
    assert_eq!(scheduler.listen.to_string(), "127.0.0.1:9200");
    assert_eq!((scheduler.num_workers, scheduler.num_servers, scheduler.rank), (Some(2), Some(2), None));
    let far = over(&[("KV_BY_RANK", "1"), ("KV_NUM_SERVERS", "1"), ("SLURM_PROCID", "1")], SRUN);
    let server = load(Settings::default(), &far).resolve(Role::Server).unwrap();
    assert_eq!(server.scheduler.unwrap().to_string(), "tcp://node07:9091");
    assert_eq!(server.rank.unwrap().0, 0);
    let given = over(&[("KV_SCHEDULER", "10.0.0.1:7")], &far);
    let server = load(Settings::default(), &given).resolve(Role::Server).unwrap();
    assert_eq!(server.scheduler.unwrap().to_string(), "tcp://10.0.0.1:7");
}

#[test]
fn it_applies_only_when_asked_for_and_a_role_wins() {
    let servers = over(&[("KV_NUM_SERVERS", "2")], OPEN_MPI);
    assert_eq!(load(Settings::default(), &servers).role, None);
    let over_mpi = over(&[("KV_TRANSPORT", "mpi")], &servers);
    let worker = load(Settings::default(), &over_mpi);
    assert_eq!((worker.role, worker.rank, worker.scheduler_host), (Some(Role::Worker), Some(0), None));
    let not = Settings { by_rank: Some(false), ..Settings::default() };
    assert_eq!(load(not, &over_mpi).role, None);
    for role in ["KV_ROLE", "DMLC_ROLE"] {
        let server = load(Settings::default(), &over(&[(role, "server")], &over_mpi));
        assert_eq!((server.role, server.rank, server.num_workers), (Some(Role::Server), None, None));
    }
}

#[test]
fn among_several_programs_this_one_is_a_worker() {
    let several = over(&[("KV_TRANSPORT", "mpi"), ("OMPI_NUM_APP_CTX", "3")], OPEN_MPI);
    let worker = load(Settings::default(), &several);
    assert_eq!((worker.role, worker.rank, worker.problems.len()), (Some(Role::Worker), None, 0));
    let asked = over(&[("KV_BY_RANK", "1"), ("KV_NUM_SERVERS", "3")], &several);
    assert_eq!(load(Settings::default(), &asked).role, Some(Role::Server), "unless it is asked for");
}

#[test]
fn what_is_missing_is_named() {
    let asked: Variables<'_> = &[("KV_BY_RANK", "1")];
    let none = load(Settings::default(), asked);
    let problem = one_problem(&none);
    assert!(problem.contains("expected a process that mpirun, mpiexec or srun has started"), "{problem}");
    assert!(problem.contains("OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, SLURM_PROCID"), "{problem}");
    let no_servers = load(Settings::default(), &over(asked, OPEN_MPI));
    assert!(one_problem(&no_servers).starts_with("num_servers (--servers, KV_NUM_SERVERS or DMLC_NUM_SERVER)"));
    let servers = over(&[("KV_NUM_SERVERS", "2"), ("KV_BY_RANK", "1")], OPEN_MPI);
    let workers = load(Settings::default(), &over(&[("DMLC_NUM_WORKER", "9")], &servers));
    assert!(one_problem(&workers).contains("expected 2, which is what 5 processes less a scheduler and 2 servers are"));
    let far = load(Settings::default(), &over(&[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")], &servers));
    assert!(one_problem(&far).starts_with("scheduler (--scheduler, KV_SCHEDULER): expected host:port of rank 0"));
    let socket = load(Settings::default(), &over(&[("KV_TRANSPORT", "zmq-ipc")], &servers));
    assert!(one_problem(&socket).contains("expected ipc:///path, the same for all ranks, found nothing"));
    let memory = load(Settings::default(), &over(&[("KV_TRANSPORT", "memory")], &servers));
    assert!(one_problem(&memory).ends_with("expected a transport between processes, found memory"));
}

proptest! {
    #[test]
    fn no_environment_panics(texts in proptest::collection::vec("[0-9a-z\\[\\],-]{0,6}", 16), list in any::<String>()) {
        let names = [
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_NUM_APP_CTX",
            "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK", "SLURM_PROCID", "SLURM_STEP_ID",
            "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NODELIST",
            "SLURM_JOB_NODELIST",
        ];
        let lookup = |name: &str| names.iter().position(|known| *known == name).map(|index| texts[index].clone());
        let _ = Ranked::find(&lookup);
        let _ = first_host(&list);
    }
}
