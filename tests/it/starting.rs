//! Jobs that do not come together: everybody learns why, and in time.

use std::net::TcpListener;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use kv::config::{Role, Settings};
use kv::{Error, KvStore, node};

use crate::cluster::{Cluster, block_on, settings, start};

fn startup_timeout(seconds: u64) -> Settings {
    Settings { startup_timeout: Some(Duration::from_secs(seconds)), ..settings() }
}

#[test]
fn an_unreachable_scheduler_is_named_at_the_deadline() {
    // A port that nobody listens on: it was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings =
        Settings { scheduler_host: Some("127.0.0.1".to_owned()), scheduler_port: Some(port), ..startup_timeout(1) };
    let began = Instant::now();
    let server = settings.clone().resolve(Role::Server).unwrap();
    let server = start(move || block_on(node::run_server(&server, node::updaters(), |_| {})));
    let worker = KvStore::builder("dist_sync").settings(settings).connect().map(drop);
    for error in [worker.unwrap_err(), server.join().unwrap_err()] {
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("tcp://127.0.0.1:{port}")), "{error}");
    }
    let waited = began.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(10)).contains(&waited), "{waited:?}");
}

/// Somebody listens there and never says a word.
#[test]
fn a_scheduler_that_does_not_answer_is_named_at_the_deadline() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = mute.local_addr().unwrap().port();
    let settings =
        Settings { scheduler_host: Some("127.0.0.1".to_owned()), scheduler_port: Some(port), ..startup_timeout(1) };
    let began = Instant::now();
    let error = KvStore::builder("dist_async").settings(settings).connect().map(drop).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("tcp://127.0.0.1:{port}")), "{error}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = Settings {
        scheduler_host: Some("127.0.0.1".to_owned()),
        scheduler_port: Some(9),
        num_workers: Some(1),
        num_servers: Some(1),
        port: Some(port),
        ..settings()
    };
    let scheduler = settings.clone().resolve(Role::Scheduler).unwrap();
    let server = settings.clone().resolve(Role::Server).unwrap();
    let results = [
        block_on(node::run_scheduler(&scheduler, |_| {})),
        block_on(node::run_server(&server, node::updaters(), |_| {})),
        KvStore::builder("dist_sync").settings(settings).connect().map(drop),
    ];
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("cannot listen on") && text.contains(&format!("127.0.0.1:{port}")), "{text}");
    }
}

#[test]
fn the_scheduler_says_who_has_not_come() {
    let mut cluster = Cluster::gather(startup_timeout(2), 3, 2);
    cluster.settings.startup_timeout = Some(Duration::from_secs(30));
    cluster.add_server(1);
    let began = Instant::now();
    let error = cluster.open("dist_sync", 1).map(drop).unwrap_err();
    assert!(matches!(error, Error::JobFailed { .. }), "{error:?}");
    let (scheduler, servers) = cluster.results();
    let scheduler = scheduler.unwrap_err();
    assert!(matches!(scheduler, Error::Timeout { .. }), "{scheduler:?}");
    for text in [error.to_string(), scheduler.to_string(), servers[0].clone().unwrap_err().to_string()] {
        let missing = "1 of 3 workers and 1 of 2 servers have joined; not there: server 0, worker 0, worker 2";
        assert!(text.contains(missing), "{text}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_waiting_node_with_less_patience_says_how_far_the_job_has_gathered() {
    let mut cluster = Cluster::gather(startup_timeout(4), 2, 1);
    let scheduler_port = cluster.settings.scheduler_port.unwrap();
    cluster.settings.startup_timeout = Some(Duration::from_secs(1));
    let error = cluster.open("dist_sync", 0).map(drop).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let text = error.to_string();
    let expected = format!("the job at tcp://127.0.0.1:{scheduler_port} to gather: 1 of 2 workers and 0 of 1 servers");
    assert!(text.contains(&expected), "{text}");
    // Its place is free again: the scheduler does not count a node that has given up.
    let text = cluster.results().0.unwrap_err().to_string();
    assert!(text.contains("not there: server 0, worker 0, worker 1"), "{text}");
}

/// A node that starts anew takes the place of the one that gave up.
#[test]
fn a_node_that_gave_up_may_come_again() {
    let mut cluster = Cluster::gather(settings(), 1, 1);
    let patient = cluster.settings.clone();
    cluster.settings.startup_timeout = Some(Duration::from_millis(300));
    assert!(matches!(cluster.open("dist_sync", 0), Err(Error::Timeout { .. })));
    cluster.settings = patient;
    cluster.add_server(0);
    cluster.run("dist_sync", 1, |store| store.init("k", &[1.0_f32]).unwrap());
    cluster.end();
}

fn refused(result: Result<KvStore, Error>) -> String {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    error.to_string()
}

/// Runs a job of two workers in which `disturb` happens after the first round; both must get right values.
fn undisturbed(disturb: impl FnOnce(&Cluster)) {
    let cluster = Cluster::start(2, 2);
    let (reached, disturbing) = sync_channel(2);
    let (disturbed, go_on) = sync_channel::<()>(0);
    let go_on = std::sync::Arc::new(std::sync::Mutex::new(go_on));
    let workers: Vec<_> = (0..2)
        .map(|rank| {
            let (reached, go_on) = (reached.clone(), go_on.clone());
            cluster.worker("dist_sync", rank, move |store| {
                store.init("k", &[0.0_f32; 40]).unwrap();
                let round = |x: f32| store.push_pull("k", &[x; 40]).unwrap().wait().unwrap();
                assert_eq!(round(1.0).as_slice::<f32>().unwrap(), [2.0; 40]);
                reached.send(()).unwrap();
                // Ends when the other side is dropped.
                let _ = go_on.lock().unwrap().recv();
                assert_eq!(round(2.0).as_slice::<f32>().unwrap(), [4.0; 40]);
                store.close().unwrap();
            })
        })
        .collect();
    (0..2).for_each(|_| disturbing.recv().unwrap());
    disturb(&cluster);
    drop(disturbed);
    workers.into_iter().for_each(|worker| worker.join());
    cluster.end();
}

#[test]
fn a_node_too_many_is_refused() {
    undisturbed(|cluster| {
        for rank in [0, 2] {
            let text = refused(cluster.open("dist_sync", rank));
            assert!(text.contains("the job is complete: all of its 2 workers have joined"), "{text}");
        }
        let server = cluster.settings.clone().resolve(Role::Server).unwrap();
        let error = block_on(node::run_server(&server, node::updaters(), |_| {})).unwrap_err();
        assert!(error.to_string().contains("all of its 2 servers have joined"), "{error}");
    });
}

#[test]
fn a_node_of_another_job_is_refused_with_both_names() {
    undisturbed(|cluster| {
        let settings = Settings { job: Some("other".to_owned()), ..cluster.settings.clone() };
        let began = Instant::now();
        let error = KvStore::builder("dist_sync").settings(settings.clone()).connect().map(drop).unwrap_err();
        assert!(error.to_string().contains("'kv'") && error.to_string().contains("'other'"), "{error}");
        let server = settings.clone().resolve(Role::Server).unwrap();
        let error = block_on(node::run_server(&server, node::updaters(), |_| {})).unwrap_err();
        assert!(error.to_string().contains("'kv'") && error.to_string().contains("'other'"), "{error}");
        let observer = settings.resolve(Role::Observer).unwrap();
        let error = block_on(node::status(&observer)).map(drop).unwrap_err();
        assert!(error.to_string().contains("'kv'") && error.to_string().contains("'other'"), "{error}");
        // At once, not at a deadline.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    });
}

#[test]
fn a_rank_goes_to_the_first_that_asks_and_must_exist() {
    let mut cluster = Cluster::gather(settings(), 2, 1);
    let text = refused(cluster.open("dist_sync", 7));
    assert!(text.contains("worker rank 7 was asked for, but there are ranks 0 to 1"), "{text}");

    let (opened, results) = sync_channel(2);
    for _ in 0..2 {
        let (opened, settings) = (opened.clone(), Settings { rank: Some(1), ..cluster.settings.clone() });
        start(move || opened.send(KvStore::builder("dist_sync").settings(settings).connect()).unwrap());
    }
    // The other one waits for the job.
    let text = refused(results.recv_timeout(Duration::from_secs(30)).unwrap());
    assert!(text.contains("worker rank 1 is taken by another node"), "{text}");

    cluster.add_server(0);
    let first = cluster.open("dist_sync", 0).unwrap();
    let second = results.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
    assert_eq!((first.rank(), second.rank()), (0, 1));
    first.set_barrier_before_exit(false);
    second.set_barrier_before_exit(false);
    first.close().unwrap();
    second.close().unwrap();
    cluster.end();
}

#[test]
fn a_worker_without_a_scheduler_address_is_told_what_to_set() {
    let error = KvStore::builder("dist_sync").settings(Settings::default()).connect().map(drop).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    let text = error.to_string();
    assert!(["KV_SCHEDULER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"].iter().all(|name| text.contains(name)), "{text}");
}
