//! Rounds, as users see them.

use kv::optim::Sgd;
use kv::{KvStore, Tensor};

use crate::cluster::Cluster;

/// MXNet counts requests, not workers: there, the two workers pull 11 and 22.
#[test]
fn two_pushes_without_a_pull_between_are_two_rounds() {
    for servers in [1, 3] {
        let cluster = Cluster::start(2, servers);
        let pulled = cluster.run("dist_sync", 2, |store| {
            store.init("k", &[0.0_f32; 40]).unwrap();
            let (first, second) = if store.rank() == 0 { (1.0_f32, 10.0_f32) } else { (2.0, 20.0) };
            let first = store.push("k", &[first; 40]).unwrap();
            let second = store.push("k", &[second; 40]).unwrap();
            first.wait().unwrap();
            second.wait().unwrap();
            store.pull("k").unwrap().wait().unwrap().to_vec::<f32>().unwrap()
        });
        assert_eq!(pulled, [[30.0_f32; 40], [30.0_f32; 40]]);
        cluster.end();
    }
}

#[test]
fn any_number_of_workers_and_servers_agree_on_every_pull() {
    for workers in [1, 2, 4, 8] {
        for servers in [1, 2, 3, 5] {
            let cluster = Cluster::start(workers, servers);
            let pulled = cluster.run("dist_sync", workers, |store| {
                store.init_all(["a", "b"], [&vec![0.0_f32; 33], &vec![0.0; 1]]).unwrap();
                store.set_optimizer(&Sgd::new(1.0)).unwrap();
                let mut seen = Vec::new();
                for step in 0..5 {
                    let gradient = (store.rank() + step) as f32;
                    let (a, b) = (vec![gradient; 33], vec![-gradient; 1]);
                    let values = store.push_pull_all(["a", "b"], [&a, &b]).unwrap().wait().unwrap();
                    seen.extend(values.iter().map(|value| value.as_slice::<f32>().unwrap()[0]));
                }
                store.barrier().unwrap();
                seen
            });
            let mut expected = Vec::new();
            let mut weight = 0.0;
            for step in 0..5 {
                weight -= (0..workers).map(|rank| f32::from(rank) + step as f32).sum::<f32>();
                expected.extend([weight, -weight]);
            }
            pulled.iter().for_each(|seen| assert_eq!(*seen, expected, "{workers} workers, {servers} servers"));
            cluster.end();
        }
    }
}

#[test]
fn asynchronous_pushes_are_visible_to_their_worker_once_acknowledged() {
    let cluster = Cluster::start(2, 2);
    cluster.run("dist_async", 2, |store| {
        store.init("sum", &[0.0_f64; 20]).unwrap();
        store.set_optimizer(&Sgd::new(1.0)).unwrap();
        for step in 1..=10 {
            store.push("sum", &[-1.0_f64; 20]).unwrap().wait().unwrap();
            let seen = store.pull("sum").unwrap().wait().unwrap();
            assert!(seen.as_slice::<f64>().unwrap().iter().all(|x| *x >= f64::from(step)));
        }
        store.barrier().unwrap();
        let all = store.pull("sum").unwrap().wait().unwrap();
        assert_eq!(all.as_slice::<f64>().unwrap(), [20.0; 20]);
    });
    cluster.end();
}

/// Behaviour that MXNet's own examples show.
#[test]
fn local_store_assigns_sums_and_updates() {
    let store = KvStore::create("local").unwrap();
    assert_eq!((store.rank(), store.num_workers(), store.kind()), (0, 1, "local"));
    let pull = |key: i32| store.pull(key).unwrap().wait().unwrap();
    store.init(3, Tensor::new(&[2, 3], &[2.0_f32; 6]).unwrap()).unwrap();
    assert_eq!(pull(3).as_slice::<f32>().unwrap(), [2.0; 6]);
    store.push(3, &[8.0_f32; 6]).unwrap().wait().unwrap();
    assert_eq!((pull(3).as_slice::<f32>().unwrap(), pull(3).shape()), (&[8.0; 6][..], &[2, 3][..]));
    store.push_sum(3, [&[1.0_f32; 6]; 4]).unwrap().wait().unwrap();
    assert_eq!(pull(3).as_slice::<f32>().unwrap(), [4.0; 6]);
    // Keys that stand twice in a list are the arrays of one key.
    store.init_all([1, 2], [&[0.0_f32], &[0.0]]).unwrap();
    store.push_all([2, 1, 2], [&[1.0_f32], &[5.0], &[10.0]]).unwrap().wait().unwrap();
    assert_eq!((pull(2).to_vec::<f32>().unwrap(), pull(1).to_vec::<f32>().unwrap()), (vec![11.0], vec![5.0]));
    store
        .set_updater(|_, incoming, stored| {
            for (stored, incoming) in stored.elements::<f32>()?.iter_mut().zip(incoming.elements::<f32>()?) {
                *stored += incoming * 2.0;
            }
            Ok(())
        })
        .unwrap();
    store.push(3, &[1.0_f32; 6]).unwrap().wait().unwrap();
    assert_eq!(pull(3).as_slice::<f32>().unwrap(), [6.0; 6]);
    store.init(9, &[0.0_f32]).unwrap();
    store.set_optimizer(&Sgd::default()).unwrap();
    store.push(9, &[1.0_f32]).unwrap().wait().unwrap();
    assert_eq!(pull(9).as_slice::<f32>().unwrap(), [-0.01]);
    store.close().unwrap();
    assert!(matches!(store.pull(3), Err(kv::Error::Closed)));
    assert!(matches!(store.close(), Err(kv::Error::Closed)));
}

#[test]
fn the_store_serves_async_code_on_any_runtime() {
    let cluster = Cluster::start(1, 2);
    cluster.run("dist_sync", 1, |store| {
        let store = store.to_async();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            store.init("w", &[1.0_f32; 100]).await.unwrap();
            let pushes: Vec<_> = {
                let mut pushes = Vec::new();
                for _ in 0..50 {
                    pushes.push(store.push("w", &[2.0_f32; 100]).await.unwrap());
                }
                pushes
            };
            for push in pushes {
                push.await.unwrap();
            }
            let value = store.pull("w").await.unwrap().await.unwrap();
            assert_eq!(value.as_slice::<f32>().unwrap(), [2.0; 100]);
        });
    });
    cluster.end();
}
