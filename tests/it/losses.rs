//! Nodes that go away: who waits for them learns it by name, and nobody hangs.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use kv::config::{Settings, WorkerLoss};
use kv::{Error, KvStore, Tensor};

use crate::cluster::{Cluster, Task, settings};

/// Much sooner than any deadline of a wait (20 s): a broken connection is noticed at once.
const QUICKLY: Duration = Duration::from_secs(8);

/// A key of 40 elements has three chunks: with two servers, both own some of it.
const LEN: usize = 40;

fn init(store: &KvStore) {
    store.set_barrier_before_exit(false);
    store.init("w", &[0.0_f32; LEN]).unwrap();
}

fn round(store: &KvStore, x: f32) -> Result<Tensor, Error> {
    store.push_pull("w", &[x; LEN])?.wait()
}

fn assert_round(store: &KvStore, x: f32, expected: f32) {
    assert_eq!(round(store, x).unwrap().as_slice::<f32>().unwrap(), [expected; LEN]);
}

/// Fails like a program that panics while it has a store.
fn fail(store: KvStore) {
    let _held = store;
    panic!("this worker fails, as the test wants it to");
}

/// Two workers, the second of which panics after the first round; `wait` is what the first then does, and gives the
/// text of its error.
fn worker_that_panics(loss: WorkerLoss, wait: fn(&KvStore)) -> (Result<(), Error>, Vec<Result<(), Error>>) {
    let cluster = Cluster::start_with(Settings { worker_loss: Some(loss), ..settings() }, 2, 2);
    let survivor = cluster.worker("dist_sync", 0, move |store| {
        init(&store);
        assert_round(&store, 1.0, 2.0);
        let began = Instant::now();
        wait(&store);
        assert!(began.elapsed() < QUICKLY, "{:?}", began.elapsed());
        store.close().unwrap();
    });
    let victim = cluster.worker("dist_sync", 1, |store| {
        init(&store);
        assert_round(&store, 1.0, 2.0);
        fail(store);
    });
    assert!(victim.has_panicked());
    survivor.join();
    cluster.results()
}

fn assert_worker_lost(error: &Error) {
    assert!(matches!(error, Error::WorkerLost { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("worker 1") && text.contains("tcp://127.0.0.1:"), "{text}");
}

#[test]
fn a_worker_that_panics_is_named_to_who_waits_for_its_contribution() {
    let (scheduler, servers) = worker_that_panics(WorkerLoss::Fail, |store| {
        assert_worker_lost(&round(store, 1.0).unwrap_err());
        // The next ones too: the round cannot complete.
        assert_worker_lost(&store.pull("w").unwrap().wait().map(drop).unwrap_err());
        assert_worker_lost(&store.barrier().unwrap_err());
        // Keys that do not need it are of use still.
        store.init("own", &[1.0_f32; LEN]).unwrap();
        assert_eq!(store.pull("own").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [1.0; LEN]);
    });
    assert_worker_lost(&scheduler.unwrap_err());
    for server in servers {
        assert!(server.unwrap_err().to_string().contains("worker 1"));
    }
}

#[test]
fn a_worker_that_panics_is_named_at_the_barrier() {
    let (scheduler, _) = worker_that_panics(WorkerLoss::Fail, |store| {
        assert_worker_lost(&store.barrier().unwrap_err());
        assert_worker_lost(&store.barrier().unwrap_err());
    });
    assert_worker_lost(&scheduler.unwrap_err());
}

#[test]
fn with_worker_loss_continue_the_others_go_on() {
    let (scheduler, servers) = worker_that_panics(WorkerLoss::Continue, |store| {
        assert_round(store, 5.0, 5.0);
        store.barrier().unwrap();
        assert_round(store, 6.0, 6.0);
    });
    scheduler.unwrap();
    servers.into_iter().for_each(|server| server.unwrap());
}

/// What the lost worker contributed before counts.
#[test]
fn with_worker_loss_continue_an_open_round_keeps_the_lost_contribution() {
    let cluster = Cluster::start_with(Settings { worker_loss: Some(WorkerLoss::Continue), ..settings() }, 3, 2);
    let meet = Arc::new(Barrier::new(3));
    let start = |rank: u16| {
        let meet = Arc::clone(&meet);
        cluster.worker("dist_sync", rank, move |store| {
            init(&store);
            if rank == 2 {
                store.push("w", &[100.0_f32; LEN]).unwrap().wait().unwrap();
            }
            meet.wait();
            if rank == 2 {
                fail(store);
                return;
            }
            assert_round(&store, 1.0, 102.0);
            assert_round(&store, 1.0, 2.0);
            store.close().unwrap();
        })
    };
    let [first, second, victim] = [0, 1, 2].map(start);
    assert!(victim.has_panicked());
    first.join();
    second.join();
    cluster.end();
}

#[test]
fn a_worker_that_closes_early_is_not_waited_for() {
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(3, 2);
        let start = |rank: u16| {
            cluster.worker(kind, rank, move |store| {
                init(&store);
                let rounds = if rank == 1 { 3 } else { 5 };
                for step in 0..rounds {
                    // Which of the last two rounds worker 1 is still counted in is not a matter of time: it has
                    // contributed to three, and to no other.
                    let expected = if step < 3 { 3.0 } else { 2.0 };
                    let value = round(&store, 1.0).unwrap();
                    if kind == "dist_sync" {
                        assert_eq!(value.as_slice::<f32>().unwrap(), [expected; LEN], "round {step}");
                    }
                }
                if rank != 1 {
                    store.barrier().unwrap();
                }
                store.close().unwrap();
            })
        };
        let workers = [0, 1, 2].map(start);
        workers.into_iter().for_each(Task::join);
        cluster.end();
    }
}

/// An uneven number of batches, and an open round that only the early leaver kept open.
#[test]
fn a_round_is_closed_by_the_goodbye_of_the_one_it_waited_for() {
    let cluster = Cluster::start(2, 2);
    let meet = Arc::new(Barrier::new(2));
    let met = Arc::clone(&meet);
    let stays = cluster.worker("dist_sync", 0, move |store| {
        init(&store);
        (0..3).for_each(|_| assert_round(&store, 1.0, 2.0));
        let pushes: Vec<_> = (0..2).map(|_| store.push("w", &[7.0_f32; LEN]).unwrap()).collect();
        pushes.into_iter().for_each(|push| push.wait().unwrap());
        let pull = store.pull("w").unwrap();
        met.wait();
        assert_eq!(pull.wait().unwrap().as_slice::<f32>().unwrap(), [7.0; LEN]);
        store.close().unwrap();
    });
    let leaves = cluster.worker("dist_sync", 1, move |store| {
        init(&store);
        (0..3).for_each(|_| assert_round(&store, 1.0, 2.0));
        meet.wait();
        store.close().unwrap();
    });
    stays.join();
    leaves.join();
    cluster.end();
}

#[test]
fn a_store_dropped_without_close_leaves_and_its_pushes_count() {
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(2, 2);
        let drops = cluster.worker(kind, 1, |store| {
            init(&store);
            // Nobody waits for these.
            (0..20).for_each(|_| drop(store.push("w", &[3.0_f32; LEN]).unwrap()));
        });
        let stays = cluster.worker(kind, 0, move |store| {
            init(&store);
            if kind == "dist_sync" {
                (0..20).for_each(|_| assert_round(&store, 1.0, 4.0));
            }
            assert_round(&store, 1.0, 1.0);
            store.barrier().unwrap();
            store.close().unwrap();
        });
        drops.join();
        stays.join();
        cluster.end();
    }
}

/// All waits of two workers end when `kill` has happened: a pull of an open round and a barrier, each with an error
/// that `check` likes, and so does every later call.
fn everybody_learns(kill: fn(&mut Cluster), check: fn(&Error)) -> (Result<(), Error>, Vec<Result<(), Error>>) {
    let mut cluster = Cluster::start(2, 3);
    let meet = Arc::new(Barrier::new(3));
    let start = |rank: u16| {
        let meet = Arc::clone(&meet);
        cluster.worker("dist_sync", rank, move |store| {
            // Many chunks: every server owns some.
            store.init("w", &[0.0_f32; 2000]).unwrap();
            store.push_pull("w", &[1.0_f32; 2000]).unwrap().wait().unwrap();
            let open = if rank == 0 { Some(store.push_pull("w", &[1.0_f32; 2000]).unwrap()) } else { None };
            meet.wait();
            let began = Instant::now();
            match open {
                Some(open) => check(&open.wait().map(drop).unwrap_err()),
                None => check(&store.barrier().unwrap_err()),
            }
            assert!(began.elapsed() < QUICKLY, "{:?}", began.elapsed());
            let later = || store.push("w", &[1.0_f32; 2000])?.wait();
            check(&later().unwrap_err());
            check(&store.pull("w").and_then(|pull| pull.wait()).map(drop).unwrap_err());
            check(&store.barrier().unwrap_err());
            check(&store.close().unwrap_err());
            assert!(matches!(store.close(), Err(Error::Closed)));
            assert!(began.elapsed() < QUICKLY, "{:?}", began.elapsed());
        })
    };
    let workers = [0, 1].map(start);
    meet.wait();
    kill(&mut cluster);
    workers.into_iter().for_each(Task::join);
    cluster.results()
}

#[test]
fn a_lost_server_ends_the_job_and_is_named_to_everybody() {
    let (scheduler, servers) = everybody_learns(
        |cluster| cluster.kill_server(1),
        |error| {
            assert!(matches!(error, Error::ServerLost { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("server 1") && text.contains("tcp://127.0.0.1:"), "{text}");
        },
    );
    let scheduler = scheduler.unwrap_err();
    assert!(matches!(scheduler, Error::ServerLost { .. }), "{scheduler:?}");
    assert!(scheduler.to_string().contains("server 1"), "{scheduler}");
    for (rank, server) in servers.into_iter().enumerate() {
        let error = server.unwrap_err();
        if rank != 1 {
            assert!(matches!(error, Error::JobFailed { .. }), "{error:?}");
            assert!(error.to_string().contains("server 1"), "{error}");
        }
    }
}

#[test]
fn a_lost_scheduler_ends_the_job_for_everybody() {
    fn check(error: &Error) {
        assert!(matches!(error, Error::SchedulerLost { .. }), "{error:?}");
        assert!(error.to_string().contains("tcp://127.0.0.1:"), "{error}");
    }
    let (_, servers) = everybody_learns(Cluster::kill_scheduler, check);
    for server in servers {
        check(&server.unwrap_err());
    }
}

/// Neither worker waits for anything when it happens; they learn it with the next call.
#[test]
fn a_server_lost_while_nobody_waits_is_reported_by_the_next_call() {
    let mut cluster = Cluster::start(1, 2);
    let meet = Arc::new(Barrier::new(2));
    let met = Arc::clone(&meet);
    let worker = cluster.worker("dist_async", 0, move |store| {
        store.init("w", &[0.0_f32; 2000]).unwrap();
        met.wait();
        met.wait();
        let error = store.pull("w").and_then(|pull| pull.wait()).map(drop).unwrap_err();
        assert!(matches!(error, Error::ServerLost { .. }), "{error:?}");
        assert!(error.to_string().contains("server 0"), "{error}");
        drop(store);
    });
    meet.wait();
    cluster.kill_server(0);
    meet.wait();
    worker.join();
    assert!(matches!(cluster.results().0, Err(Error::ServerLost { .. })));
}

/// Before everybody is there, a lost node only frees its place.
#[test]
fn a_server_that_dies_while_the_job_gathers_may_be_replaced() {
    let mut cluster = Cluster::gather(settings(), 1, 2);
    cluster.add_server(0);
    while cluster.status().waiting.servers.0 < 1 {}
    cluster.kill_server(0);
    while cluster.status().waiting.servers.0 > 0 {}
    cluster.add_server(0);
    cluster.add_server(1);
    cluster.run("dist_sync", 1, |store| {
        store.init("w", &[1.0_f32; 2000]).unwrap();
        assert_eq!(store.pull("w").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [1.0; 2000]);
    });
    let (scheduler, servers) = cluster.results();
    scheduler.unwrap();
    assert!(matches!(servers[..], [Err(Error::Closed), Ok(()), Ok(())]), "{servers:?}");
}
