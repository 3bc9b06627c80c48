//! Calls that cannot be done: the error says why, and nothing else has changed.

use kv::optim::{Optimizer, Sgd};
use kv::{Error, Key, KvStore, Tensor};
use kv_core::wire::UpdaterSpec;

use crate::cluster::Cluster;

/// What is wrong with a call, the call, and the error's text.
type Mistake = (&'static str, fn(&KvStore) -> Result<(), Error>, &'static str);

const WEIGHT: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

/// The 64-bit id of the name "w".
const W_ID: u64 = 0xe5a5_5aff_4974_3dfc;

struct Unknown;

impl Optimizer for Unknown {
    fn spec(&self) -> Result<UpdaterSpec, Error> {
        Ok(UpdaterSpec { name: "lion".to_owned(), settings: String::new() })
    }
}

struct FromTheFuture;

impl Optimizer for FromTheFuture {
    fn spec(&self) -> Result<UpdaterSpec, Error> {
        Ok(UpdaterSpec { name: "sgd".to_owned(), settings: r#"{"version":9,"settings":{}}"#.to_owned() })
    }
}

const MISTAKES: &[Mistake] = &[
    ("pull of no key", |s| s.pull("no")?.wait().map(drop), "key 'no' is not initialised; call init on it first"),
    ("push to no key", |s| s.push("no", &WEIGHT)?.wait(), "key 'no' is not initialised; call init on it first"),
    (
        "push and pull of no key",
        |s| s.push_pull(-7_i64, &WEIGHT)?.wait().map(drop),
        "key 18446744073709551609 is not initialised; call init on it first",
    ),
    (
        "one of the keys to push to is none",
        |s| s.push_all(["w", "no"], [&WEIGHT, &WEIGHT])?.wait(),
        "key 'no' is not initialised; call init on it first",
    ),
    (
        "one of the keys to pull is none",
        |s| s.pull_all(["w", "no"])?.wait().map(drop),
        "key 'no' is not initialised; call init on it first",
    ),
    (
        "one of the keys to push and pull is none",
        |s| s.push_pull_all(["no", "w"], [&WEIGHT, &WEIGHT])?.wait().map(drop),
        "key 'no' is not initialised; call init on it first",
    ),
    (
        "init again, by name",
        |s| s.init("w", &[9.0_f32; 6]),
        "key 'w' is already initialised; a key is initialised once, then pushed to",
    ),
    (
        "init again, by number",
        |s| s.init(3, &[9_i64]),
        "key 3 is already initialised; a key is initialised once, then pushed to",
    ),
    (
        "init of one that is new and one that is not",
        |s| s.init_all(["new", "w"], [&WEIGHT, &WEIGHT]),
        "key 'w' is already initialised; a key is initialised once, then pushed to",
    ),
    (
        "the new one was not made",
        |s| s.pull("new")?.wait().map(drop),
        "key 'new' is not initialised; call init on it first",
    ),
    (
        "init of a key twice in one list",
        |s| s.init_all([5, 6, 5], [&[1_u8], &[2], &[3]]),
        "key 5 is already initialised; a key is initialised once, then pushed to",
    ),
    ("none of the list was made", |s| s.pull(6)?.wait().map(drop), "key 6 is not initialised; call init on it first"),
    (
        "push of another shape",
        |s| s.push("w", Tensor::new(&[3, 2], &[9.0_f32; 6])?)?.wait(),
        "key 'w' has shape [2, 3], found [3, 2]",
    ),
    ("push of another length", |s| s.push("w", &[9.0_f32; 5])?.wait(), "key 'w' has shape [2, 3], found [5]"),
    ("push of nothing", |s| s.push("w", &[0.0_f32; 0])?.wait(), "key 'w' has shape [2, 3], found [0]"),
    ("push of another type", |s| s.push("w", &[9.0_f64; 6])?.wait(), "key 'w' has element type f32, found f64"),
    // As many bytes as the value has: only the element type is wrong.
    (
        "push of another type, same bytes",
        |s| s.push("w", &[9_i32; 6])?.wait(),
        "key 'w' has element type f32, found i32",
    ),
    (
        "one of the values has another type",
        |s| s.push_all([Key::from("w"), Key::from(3)], [&[9.0_f32; 6][..], &[9.0]])?.wait(),
        "key 3 has element type i64, found f32",
    ),
    (
        "push and pull of another shape",
        |s| s.push_pull("w", &[9.0_f32; 7])?.wait().map(drop),
        "key 'w' has shape [2, 3], found [7]",
    ),
    (
        "pull into another type",
        |s| {
            let mut out = [7.0_f64; 6];
            let result = s.pull_into("w", &mut out);
            assert_eq!(out, [7.0; 6]);
            result
        },
        "key 'w' has element type f32, found f64",
    ),
    (
        "pull into another length",
        |s| {
            let mut out = [7.0_f32; 8];
            let result = s.pull_into("w", &mut out);
            assert_eq!(out, [7.0; 8]);
            result
        },
        "key 'w' has shape [2, 3], found [8]",
    ),
    (
        "init of a number that is the id of a name",
        |s| s.init(W_ID, &WEIGHT),
        "keys 16547732458338270716 and 'w' have the same 64-bit id; rename one of them",
    ),
    (
        "push to a number that is the id of a name",
        |s| s.push(W_ID, &WEIGHT)?.wait(),
        "keys 16547732458338270716 and 'w' have the same 64-bit id; rename one of them",
    ),
    (
        "pull of a name that has the id of a number",
        |s| s.pull("")?.wait().map(drop),
        "keys '' and 14087677454934409008 have the same 64-bit id; rename one of them",
    ),
    (
        "init of a name that has the id of a number",
        |s| s.init("", &WEIGHT),
        "keys '' and 14087677454934409008 have the same 64-bit id; rename one of them",
    ),
    (
        "two keys of one list clash",
        |s| s.init_all([Key::from("v"), Key::Int(Key::from("v").id().0)], [&WEIGHT, &WEIGHT]),
        "and 'v' have the same 64-bit id; rename one of them",
    ),
    (
        "more keys than values to init",
        |s| s.init_all(["a", "b"], [&WEIGHT]),
        "the call has 2 keys but 1 values; give one value for each key",
    ),
    (
        "more values than keys to push",
        |s| s.push_all(["w"], [&WEIGHT, &WEIGHT])?.wait(),
        "the call has 1 keys but 2 values; give one value for each key",
    ),
    (
        "no values to push and pull",
        |s| s.push_pull_all(["w"], [&WEIGHT; 0])?.wait().map(drop),
        "the call has 1 keys but 0 values; give one value for each key",
    ),
    (
        "a sum of nothing",
        |s| s.push_sum("w", [&WEIGHT; 0])?.wait(),
        "the call has 1 keys but 0 values; give one value for each key",
    ),
    (
        "a sum of arrays of different lengths",
        |s| s.push_sum("w", [&[1.0_f32; 6][..], &[1.0; 5]])?.wait(),
        "an array to be summed with the others of its key needs 24 bytes, found 20",
    ),
    ("an optimizer that learns nothing sensible", |s| s.set_optimizer(&Sgd::new(f64::NAN)), "learning_rate is NaN"),
    (
        "an optimizer beyond its range",
        |s| s.set_optimizer(&Sgd::new(0.1).momentum(1.5)),
        "momentum is 1.5, it must be in [0, 1)",
    ),
    ("an optimizer that servers do not know", |s| s.set_optimizer(&Unknown), "lion"),
    ("an optimizer of another version", |s| s.set_optimizer(&FromTheFuture), "version 9"),
];

#[test]
fn a_mistake_is_explained_and_changes_nothing() {
    let work = |store: &KvStore| {
        store.init("w", Tensor::new(&[2, 3], &WEIGHT).unwrap()).unwrap();
        store.init_all([Key::from(3), Key::Int(Key::from("").id().0)], [&[1_i64], &[0]]).unwrap();
        let pull = || store.pull("w").unwrap().wait().unwrap();
        if store.rank() == store.num_workers() - 1 {
            for (what, call, expected) in MISTAKES {
                let error = call(store).expect_err(what).to_string();
                assert!(error.contains(expected), "{} store, {what}: {error}", store.kind());
                assert_eq!((pull().as_slice::<f32>().unwrap(), pull().shape()), (&WEIGHT[..], &[2, 3][..]), "{what}");
            }
            let closure = store.set_updater(|_, _, _| Ok(()));
            match store.kind() {
                "local" => closure.unwrap(),
                _ => assert!(matches!(closure, Err(Error::Unsupported { .. })), "{closure:?}"),
            }
        }
        store.barrier().unwrap();
        assert_eq!(pull().as_slice::<f32>().unwrap(), WEIGHT);
        assert_eq!(store.pull(3).unwrap().wait().unwrap().as_slice::<i64>().unwrap(), [1]);
        store.barrier().unwrap();
        if store.kind() == "local" {
            return;
        }
        // The next round is the first one: no refused push has left a contribution behind.
        store.push(3, &[10_i64]).unwrap().wait().unwrap();
        let expected = if store.kind() == "dist_sync" { 20 } else { 10 };
        assert_eq!(store.pull(3).unwrap().wait().unwrap().as_slice::<i64>().unwrap(), [expected]);
        store.set_optimizer(&Sgd::new(1.0)).unwrap();
        store.barrier().unwrap();
        store.push("w", &[1.0_f32; 6]).unwrap().wait().unwrap();
        store.barrier().unwrap();
        assert_eq!(pull().as_slice::<f32>().unwrap(), WEIGHT.map(|weight| weight - 2.0));
    };
    on_every_kind(work);
}

/// Runs `work` on a local store, and on both workers of clusters with two servers.
fn on_every_kind(work: impl Fn(&KvStore) + Send + Clone + 'static) {
    let store = KvStore::create("local").unwrap();
    work(&store);
    store.close().unwrap();
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(2, 2);
        cluster.run(kind, 2, work.clone());
        cluster.end();
    }
}

#[test]
fn empty_lists_do_nothing() {
    on_every_kind(|store| {
        let (keys, values) = ([""; 0], [&[0.0_f32]; 0]);
        store.init_all(keys, values).unwrap();
        store.push_all(keys, values).unwrap().wait().unwrap();
        assert!(store.pull_all(keys).unwrap().wait().unwrap().is_empty());
        assert!(store.push_pull_all(keys, values).unwrap().wait().unwrap().is_empty());
        store.init("k", &[1_u8]).unwrap();
        assert_eq!(store.pull("k").unwrap().wait().unwrap().as_slice::<u8>().unwrap(), [1]);
    });
}

#[test]
fn every_call_on_a_closed_store_says_so() {
    const CALLS: &[fn(&KvStore) -> Result<(), Error>] = &[
        |s| s.init("new", &WEIGHT),
        |s| s.init_all(["new"], [&WEIGHT]),
        |s| s.broadcast("new", &WEIGHT).map(drop),
        |s| s.push("w", &WEIGHT).map(drop),
        |s| s.push_sum("w", [&WEIGHT]).map(drop),
        |s| s.push_all(["w"], [&WEIGHT]).map(drop),
        |s| s.pull("w").map(drop),
        |s| s.pull_all(["w"]).map(drop),
        |s| s.pull_into("w", &mut [0.0_f32; 6]),
        |s| s.push_pull("w", &WEIGHT).map(drop),
        |s| s.push_pull_all(["w"], [&WEIGHT]).map(drop),
        |s| s.set_optimizer(&Sgd::default()),
        |s| s.set_updater(|_, _, _| Ok(())),
        |s| s.barrier(),
        |s| s.close(),
    ];
    let check = |store: &KvStore| {
        store.init("w", &WEIGHT).unwrap();
        store.close().unwrap();
        for (number, call) in CALLS.iter().enumerate() {
            let result = call(store);
            assert!(matches!(result, Err(Error::Closed)), "{} store, call {number}: {result:?}", store.kind());
        }
        let text = call_text(store);
        assert_eq!(text, "the store is closed; open a new one");
    };
    check(&KvStore::create("local").unwrap());
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(2, 1);
        let workers: Vec<_> = (0..2).map(|rank| cluster.worker(kind, rank, move |store| check(&store))).collect();
        workers.into_iter().for_each(|worker| worker.join());
        cluster.end();
    }
}

fn call_text(store: &KvStore) -> String {
    store.pull("w").map(drop).unwrap_err().to_string()
}

#[test]
fn an_unknown_kind_of_store_lists_the_known_ones() {
    for kind in ["", "dist-sync", "local\n"] {
        let error = KvStore::create(kind).map(drop).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error}");
        let text = error.to_string();
        assert!(["local", "dist_sync", "dist_async"].iter().all(|known| text.contains(known)), "{text}");
        assert!(text.contains(&format!("'{}'", kind.escape_debug())), "{text}");
    }
}

/// The id of a name is taken by a number on the server, and this worker has not heard of it.
#[test]
fn keys_that_clash_are_refused_by_the_servers_too() {
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(2, 2);
        cluster.run(kind, 2, |store| {
            if store.rank() == 0 {
                store.init("w", &WEIGHT).unwrap();
                store.init(Key::from("").id().0, &WEIGHT).unwrap();
            }
            store.barrier().unwrap();
            if store.rank() == 1 {
                let results = [
                    store.pull(W_ID).unwrap().wait().map(drop),
                    store.push(W_ID, &WEIGHT).unwrap().wait(),
                    store.init(W_ID, &WEIGHT),
                    store.pull("").unwrap().wait().map(drop),
                    store.init("", &WEIGHT),
                ];
                for (number, result) in results.into_iter().enumerate() {
                    assert!(matches!(result, Err(Error::KeyClash { .. })), "call {number}: {result:?}");
                }
                assert_eq!(store.pull("w").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), WEIGHT);
            }
            store.barrier().unwrap();
        });
        cluster.end();
    }
}

/// In a round the fault is the pull's business, by itself a push is refused; the value stays, the next one works.
#[test]
fn a_value_that_the_optimizer_cannot_update_stays() {
    on_every_kind(|store| {
        store.init("count", &[5_u8; 100]).unwrap();
        store.init("w", &[5.0_f32; 100]).unwrap();
        store.set_optimizer(&Sgd::new(1.0)).unwrap();
        store.barrier().unwrap();
        let pushed = store.push("count", &[1_u8; 100]).unwrap().wait();
        let pulled = store.pull("count").unwrap().wait();
        let error = match store.kind() {
            "dist_async" => {
                assert_eq!(pulled.unwrap().as_slice::<u8>().unwrap(), [5; 100]);
                pushed.unwrap_err()
            }
            _ => {
                pushed.unwrap();
                pulled.map(drop).unwrap_err()
            }
        };
        assert!(matches!(error, Error::Updater { .. }), "{} store: {error:?}", store.kind());
        store.push("w", &[1.0_f32; 100]).unwrap().wait().unwrap();
        store.barrier().unwrap();
        let left = 5.0 - store.num_workers() as f32;
        assert_eq!(store.pull("w").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [left; 100]);
    });
}
