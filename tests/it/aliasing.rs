//! The caller's memory and the store's are never the same memory.

use kv::optim::Sgd;
use kv::{KvStore, Tensor};

use crate::cluster::Cluster;

const LEN: usize = 100;

/// A single worker: then every kind of store gives the same values.
fn on_every_kind(work: impl Fn(&KvStore) + Send + Clone + 'static) {
    let store = KvStore::create("local").unwrap();
    work(&store);
    store.close().unwrap();
    for kind in ["dist_sync", "dist_async"] {
        for servers in [1, 2] {
            let cluster = Cluster::start(1, servers);
            cluster.run(kind, 1, work.clone());
            cluster.end();
        }
    }
}

fn pull(store: &KvStore, key: &str) -> Tensor {
    store.pull(key).unwrap().wait().unwrap()
}

fn assert_all(value: &Tensor, expected: f32) {
    assert_eq!(value.as_slice::<f32>().unwrap(), [expected; LEN]);
}

#[test]
fn what_init_was_given_may_change_afterwards() {
    on_every_kind(|store| {
        let mut array = vec![1.0_f32; LEN];
        store.init("array", &array).unwrap();
        array.fill(9.0);
        let mut tensor = Tensor::new(&[LEN], &[2.0_f32; LEN]).unwrap();
        store.init("tensor", &tensor).unwrap();
        tensor.as_mut_slice::<f32>().unwrap().fill(9.0);
        // One array for two keys.
        let mut both = vec![3.0_f32; LEN];
        store.init_all(["a", "b"], [&both, &both]).unwrap();
        both.fill(9.0);
        let mut returned = store.broadcast("broadcast", &[4.0_f32; LEN]).unwrap();
        returned.as_mut_slice::<f32>().unwrap().fill(9.0);
        for (key, expected) in [("array", 1.0), ("tensor", 2.0), ("a", 3.0), ("b", 3.0), ("broadcast", 4.0)] {
            assert_all(&pull(store, key), expected);
        }
        store.push("a", &[5.0_f32; LEN]).unwrap().wait().unwrap();
        assert_all(&pull(store, "b"), 3.0);
    });
}

#[test]
fn what_was_pushed_may_change_before_the_push_is_waited_for() {
    on_every_kind(|store| {
        store.init_all(["k", "l"], [&[0.0_f32; LEN], &[0.0; LEN]]).unwrap();
        let mut array = vec![1.0_f32; LEN];
        let mut tensor = Tensor::new(&[LEN], &[2.0_f32; LEN]).unwrap();
        // Behind enough others that it cannot have been sent when the array changes.
        let before: Vec<_> = (0..200).map(|_| store.push("l", &[7.0_f32; LEN]).unwrap()).collect();
        let push = store.push("k", &array).unwrap();
        array.fill(9.0);
        let all = store.push_all(["l", "l"], [&tensor, &tensor]).unwrap();
        tensor.as_mut_slice::<f32>().unwrap().fill(9.0);
        before.into_iter().for_each(|push| push.wait().unwrap());
        push.wait().unwrap();
        all.wait().unwrap();
        assert_all(&pull(store, "k"), 1.0);
        assert_all(&pull(store, "l"), 4.0);

        array.fill(3.0);
        let result = store.push_pull("k", &array).unwrap();
        array.fill(9.0);
        assert_all(&result.wait().unwrap(), 3.0);
        assert_eq!(array, [9.0; LEN]);
    });
}

#[test]
fn what_was_pulled_is_the_callers() {
    on_every_kind(|store| {
        store.init("k", &[1.0_f32; LEN]).unwrap();
        let (mut first, second) = (pull(store, "k"), pull(store, "k"));
        first.as_mut_slice::<f32>().unwrap().fill(9.0);
        assert_all(&second, 1.0);
        assert_all(&pull(store, "k"), 1.0);
        let mut twice = store.pull_all(["k", "k"]).unwrap().wait().unwrap();
        twice[0].as_mut_slice::<f32>().unwrap().fill(9.0);
        assert_all(&twice[1], 1.0);
        let mut out = [0.0_f32; LEN];
        store.pull_into("k", &mut out).unwrap();
        out.fill(9.0);
        assert_all(&pull(store, "k"), 1.0);
        // Pushed back as it came, it is read and not kept.
        store.push("k", &first).unwrap().wait().unwrap();
        first.as_mut_slice::<f32>().unwrap().fill(8.0);
        assert_all(&pull(store, "k"), 9.0);
        assert_all(&second, 1.0);
    });
}

#[test]
fn what_was_pulled_stays_as_it_was_while_the_value_changes() {
    on_every_kind(|store| {
        store.init("k", &[0.0_f32; LEN]).unwrap();
        let mut seen = vec![pull(store, "k")];
        // Replaced by sums first, updated in place after.
        for step in 1..=4 {
            if step == 3 {
                store.set_optimizer(&Sgd::new(1.0)).unwrap();
            }
            let gradient = if step < 3 { step as f32 } else { -1.0 };
            seen.push(store.push_pull("k", &[gradient; LEN]).unwrap().wait().unwrap());
            seen.push(pull(store, "k"));
        }
        let expected = [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0];
        assert_eq!(seen.len(), expected.len());
        seen.iter().zip(expected).for_each(|(value, expected)| assert_all(value, expected));
    });
}

#[test]
fn pushing_and_pulling_leave_the_gradient_alone() {
    on_every_kind(|store| {
        store.init("k", &[10.0_f32; LEN]).unwrap();
        store.set_optimizer(&Sgd::new(1.0).momentum(0.5).wd(0.25).clip_gradient(1.0)).unwrap();
        let array = vec![3.0_f32; LEN];
        let tensor = Tensor::new(&[LEN], &array).unwrap();
        for _ in 0..3 {
            store.push("k", &tensor).unwrap().wait().unwrap();
            store.push_sum("k", [&array, &array]).unwrap().wait().unwrap();
            let pulled = store.push_pull_all(["k"], [&tensor]).unwrap().wait().unwrap();
            assert_ne!(pulled[0], tensor);
            let mut out = vec![0.0_f32; LEN];
            store.push("k", &array).unwrap().wait().unwrap();
            store.pull_into("k", &mut out).unwrap();
            assert_ne!(out, array);
        }
        assert_eq!(array, [3.0; LEN]);
        assert_all(&tensor, 3.0);
    });
}

/// The local updater sees the store's own memory, but not the caller's.
#[test]
fn an_updater_of_this_process_cannot_reach_the_callers_arrays() {
    let store = KvStore::create("local").unwrap();
    let initial = Tensor::new(&[LEN], &[1.0_f32; LEN]).unwrap();
    store.init("k", &initial).unwrap();
    store
        .set_updater(|_, incoming, stored| {
            stored.elements::<f32>()?.copy_from_slice(incoming.elements::<f32>()?);
            Ok(())
        })
        .unwrap();
    let mut gradient = Tensor::new(&[LEN], &[2.0_f32; LEN]).unwrap();
    let before = pull(&store, "k");
    store.push("k", &gradient).unwrap().wait().unwrap();
    gradient.as_mut_slice::<f32>().unwrap().fill(9.0);
    assert_all(&pull(&store, "k"), 2.0);
    assert_all(&before, 1.0);
    assert_all(&initial, 1.0);
}
