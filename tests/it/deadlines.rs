//! Waits for something that does not come: they end at their deadline and name it, and what comes later still counts.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use kv::optim::Sgd;
use kv::{Error, KvStore, Tensor};

use crate::cluster::{Cluster, settings_with_timeout};

const TIMEOUT: Duration = Duration::from_secs(1);

/// The text of an error that came at the deadline, not before and not much later.
fn at_the_deadline<T>(call: impl FnOnce() -> Result<T, Error>) -> String {
    let began = Instant::now();
    let error = call().map(drop).unwrap_err();
    let waited = began.elapsed();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!((TIMEOUT..TIMEOUT * 10).contains(&waited), "{waited:?}");
    error.to_string()
}

#[test]
fn a_round_without_a_worker_names_worker_round_and_key() {
    let cluster = Cluster::start_with(settings_with_timeout(1), 3, 2);
    // A barrier of the test's own: the store's would have a deadline too.
    let meet = Arc::new(Barrier::new(3));
    cluster.run("dist_sync", 3, move |store| {
        store.init("w", &[0.0_f32; 50]).unwrap();
        store.push_pull("w", &[1.0_f32; 50]).unwrap().wait().unwrap();
        meet.wait();
        if store.rank() == 2 {
            store.push("w", &[10.0_f32; 50]).unwrap().wait().unwrap();
            let text = at_the_deadline(|| store.pull("w").unwrap().wait());
            assert!(text.contains("round 2 of key 'w': no contribution from workers 0, 1"), "{text}");
            // Not even an error that comes twice contributes twice.
            let text = at_the_deadline(|| store.pull_all(["w", "w"]).unwrap().wait());
            assert!(text.contains("round 2 of key 'w'"), "{text}");
        }
        meet.wait();
        if store.rank() == 1 {
            let text = at_the_deadline(|| store.push_pull("w", &[20.0_f32; 50]).unwrap().wait());
            assert!(text.contains("round 2 of key 'w': no contribution from worker 0"), "{text}");
        }
        meet.wait();
        if store.rank() == 0 {
            store.push("w", &[30.0_f32; 50]).unwrap().wait().unwrap();
        }
        assert_eq!(store.pull("w").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [60.0; 50]);
        // And the rounds after it are whole again.
        let next = store.push_pull("w", &[1.0_f32; 50]).unwrap().wait().unwrap();
        assert_eq!(next.as_slice::<f32>().unwrap(), [3.0; 50]);
    });
    cluster.end();
}

#[test]
fn a_barrier_that_nobody_else_enters_names_who_is_missing_and_the_next_works() {
    let cluster = Cluster::start_with(settings_with_timeout(1), 3, 1);
    let meet = Arc::new(Barrier::new(3));
    cluster.run("dist_async", 3, move |store| {
        for _ in 0..3 {
            if store.rank() == 0 {
                let text = at_the_deadline(|| store.barrier());
                assert!(text.contains("the barrier: workers 1, 2 not there"), "{text}");
            }
            meet.wait();
            store.barrier().unwrap();
        }
    });
    cluster.end();
}

#[test]
fn an_init_without_worker_zero_says_so() {
    let cluster = Cluster::start_with(settings_with_timeout(1), 2, 2);
    let meet = Arc::new(Barrier::new(2));
    cluster.run("dist_sync", 2, move |store| {
        if store.rank() == 1 {
            let text = at_the_deadline(|| store.init("late", &[1.0_f32; 40]));
            assert!(text.contains("key 'late': worker 0 has not initialised it"), "{text}");
            let text = at_the_deadline(|| store.init_all(["late", "later"], [&[1.0_f32; 40], &[1.0; 40]]));
            assert!(text.contains("worker 0 has not initialised it"), "{text}");
        }
        meet.wait();
        store.init("late", &[store.rank() as f32 + 1.0; 40]).unwrap();
        let value = store.pull("late").unwrap().wait().unwrap();
        assert_eq!(value.as_slice::<f32>().unwrap(), [1.0; 40]);
    });
    cluster.end();
}

#[test]
fn workers_that_disagree_about_a_key_learn_it_and_go_on() {
    type Init = fn(&KvStore) -> Result<(), Error>;
    const THEIRS: [(&str, Init, &str); 3] = [
        (
            "shape",
            |s| s.init("shape", Tensor::new(&[3, 2], &[5.0_f32; 6])?),
            "key 'shape' has shape [2, 3], found [3, 2]",
        ),
        ("length", |s| s.init("length", &[5.0_f32; 7]), "key 'length' has shape [2, 3], found [7]"),
        (
            "dtype",
            |s| s.init("dtype", Tensor::new(&[2, 3], &[5.0_f64; 6])?),
            "key 'dtype' has element type f32, found f64",
        ),
    ];
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(2, 2);
        cluster.run(kind, 2, |store| {
            for (key, theirs, expected) in THEIRS {
                let result = match store.rank() {
                    0 => store.init(key, Tensor::new(&[2, 3], &[1.0_f32; 6]).unwrap()),
                    _ => theirs(store),
                };
                match store.rank() {
                    0 => result.unwrap(),
                    _ => assert_eq!(result.unwrap_err().to_string(), expected),
                }
                store.barrier().unwrap();
                assert_eq!(store.pull(key).unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [1.0; 6]);
                store.set_optimizer(&Sgd::new(1.0)).unwrap();
                store.barrier().unwrap();
                store.push(key, &[0.25_f32; 6]).unwrap().wait().unwrap();
                store.barrier().unwrap();
                assert_eq!(store.pull(key).unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [0.5; 6]);
            }
        });
        cluster.end();
    }
}

/// Every call of a store of the wrong kind is refused, not only its `init`.
#[test]
fn stores_of_different_consistency_do_not_share_a_key() {
    let cluster = Cluster::start(2, 2);
    let kinds = ["dist_sync", "dist_async"];
    let workers: Vec<_> = (0..2_u16)
        .map(|rank| {
            cluster.worker(kinds[usize::from(rank)], rank, move |store| {
                let made = store.init("w", &[1.0_f32; 40]);
                if rank == 0 {
                    made.unwrap();
                } else {
                    let results = [
                        made,
                        store.pull("w").unwrap().wait().map(drop),
                        store.push("w", &[9.0_f32; 40]).unwrap().wait(),
                        store.push_pull("w", &[9.0_f32; 40]).unwrap().wait().map(drop),
                    ];
                    for (number, result) in results.into_iter().enumerate() {
                        let error = result.expect_err(&format!("call {number}")).to_string();
                        assert!(error.contains("key 'w' was initialised as sync, this store is async"), "{error}");
                    }
                }
                store.barrier().unwrap();
                if rank == 0 {
                    assert_eq!(store.pull("w").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [1.0; 40]);
                }
                store.close().unwrap();
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join());
    cluster.end();
}
