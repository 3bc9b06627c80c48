//! Values and lists of every size, and keys of every kind.

use std::time::{Duration, Instant};

use kv::config::Settings;
use kv::optim::Sgd;
use kv::{Key, KvStore};

use crate::cluster::{Cluster, block_on, reserve_memory, settings};

/// Elements that differ from each other and from those of another seed; small enough to be summed exactly.
fn elements(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|index| ((index * 31 + seed * 7) % 1009) as f32).collect()
}

fn sum(len: usize, seeds: std::ops::Range<usize>) -> Vec<f32> {
    let mut sum = vec![0.0; len];
    for seed in seeds {
        sum.iter_mut().zip(elements(len, seed)).for_each(|(sum, x)| *sum += x);
    }
    sum
}

#[test]
fn any_number_of_elements_comes_back_as_it_went() {
    // A chunk has 16 elements of f32.
    const LENGTHS: [usize; 14] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1000, 4097];
    for servers in [1, 3] {
        let cluster = Cluster::start(2, servers);
        cluster.run("dist_sync", 2, |store| {
            for len in LENGTHS {
                store.init(len, &elements(len, 0)).unwrap();
                let pull = || store.pull(len).unwrap().wait().unwrap().to_vec::<f32>().unwrap();
                assert_eq!(pull(), elements(len, 0), "{len} elements");
                store.push(len, &elements(len, 1 + store.rank())).unwrap().wait().unwrap();
                assert_eq!(pull(), sum(len, 1..3), "{len} elements");
            }
            // All of them at once, in one call.
            let gradients: Vec<_> = LENGTHS.iter().map(|len| elements(*len, 3 + store.rank())).collect();
            let values = store.push_pull_all(LENGTHS, &gradients).unwrap().wait().unwrap();
            for (len, value) in LENGTHS.into_iter().zip(values) {
                assert_eq!(value.as_slice::<f32>().unwrap(), sum(len, 3..5), "{len} elements");
            }
        });
        cluster.end();
    }
}

#[test]
fn elements_of_one_byte_need_no_round_number_of_them() {
    let cluster = Cluster::start(1, 2);
    cluster.run("dist_async", 1, |store| {
        for len in [0_usize, 1, 7, 63, 64, 65, 127, 128, 129, 1000] {
            let values: Vec<u8> = (0..len).map(|index| index as u8).collect();
            store.init(len, &values).unwrap();
            assert_eq!(store.pull(len).unwrap().wait().unwrap().as_slice::<u8>().unwrap(), values);
            store.push(len, &vec![7_u8; len]).unwrap().wait().unwrap();
            assert_eq!(store.pull(len).unwrap().wait().unwrap().as_slice::<u8>().unwrap(), vec![7; len]);
        }
    });
    cluster.end();
}

#[test]
fn a_hundred_thousand_keys_in_one_call() {
    const KEYS: u64 = 100_000;
    let cluster = Cluster::start(2, 2);
    cluster.run("dist_sync", 2, |store| {
        let began = Instant::now();
        let values: Vec<[f32; 1]> = (0..KEYS).map(|key| [key as f32]).collect();
        store.init_all(0..KEYS, &values).unwrap();
        store.push_all(0..KEYS, &values).unwrap().wait().unwrap();
        let pulled = store.pull_all(0..KEYS).unwrap().wait().unwrap();
        assert_eq!(pulled.len() as u64, KEYS);
        for (key, value) in pulled.iter().enumerate() {
            assert_eq!(value.as_slice::<f32>().unwrap(), [2.0 * key as f32]);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    });
    cluster.end();
}

#[test]
fn any_utf8_is_a_name_and_any_64_bits_are_a_number() {
    let names = ["", "\0", "a\0b", "a", "A", " a", "🦀", "ключ", "line\nbreak", "e\u{301}", "é"];
    let mut keys: Vec<Key> = names.iter().map(Key::from).collect();
    keys.push(Key::from("x".repeat(10_000)));
    keys.push(Key::from("x".repeat(10_001)));
    keys.extend([0_u64, 1, (1 << 32) + 1, u64::MAX, i64::MIN as u64].map(Key::from));
    keys.extend([-2_i64, i64::MAX, -1 << 40].map(Key::from));
    let check = move |store: &KvStore| {
        let values: Vec<[i64; 3]> = (0..keys.len() as i64).map(|index| [index, -index, i64::MAX - index]).collect();
        store.init_all(&keys, &values).unwrap();
        for (key, value) in keys.iter().zip(&values) {
            let pulled = store.pull(key).unwrap().wait().unwrap();
            assert_eq!(pulled.as_slice::<i64>().unwrap(), value, "key {key}");
        }
        store.push_all(&keys, &values).unwrap().wait().unwrap();
        assert_eq!(store.pull(-1_i64).unwrap().wait().unwrap(), store.pull(u64::MAX).unwrap().wait().unwrap());
    };
    let local = KvStore::create("local").unwrap();
    check(&local);
    let cluster = Cluster::start(1, 3);
    cluster.run("dist_sync", 1, check);
    cluster.end();
}

#[test]
fn more_servers_than_keys() {
    let cluster = Cluster::start(2, 7);
    cluster.run("dist_sync", 2, |store| {
        store.init("only", &[1.0_f32]).unwrap();
        store.set_optimizer(&Sgd::new(1.0)).unwrap();
        store.barrier().unwrap();
        let value = store.push_pull("only", &[0.25_f32]).unwrap().wait().unwrap();
        assert_eq!(value.as_slice::<f32>().unwrap(), [0.5]);
    });
    cluster.end();
}

#[test]
fn lists_need_no_order_and_may_name_a_key_twice() {
    let check = |store: &KvStore| {
        store.init_all([9, 2, 5], [&[9.0_f32; 20], &[2.0; 20], &[5.0; 20]]).unwrap();
        let firsts = |values: Vec<kv::Tensor>| -> Vec<f32> {
            values.iter().map(|value| value.as_slice::<f32>().unwrap()[19]).collect()
        };
        let pulled = store.pull_all([5, 9, 2, 9, 5]).unwrap().wait().unwrap();
        assert_eq!(firsts(pulled), [5.0, 9.0, 2.0, 9.0, 5.0]);
        store.push_all([5, 2, 5, 9, 5], [1.0_f32, 2.0, 10.0, 4.0, 100.0].map(|x| [x; 20])).unwrap().wait().unwrap();
        let pulled = store.pull_all([9, 5, 2]).unwrap().wait().unwrap();
        let workers = store.num_workers() as f32;
        assert_eq!(firsts(pulled), [4.0 * workers, 111.0 * workers, 2.0 * workers]);
        let pulled = store.push_pull_all([2, 9, 2], [1.0_f32, 3.0, 1.0].map(|x| [x; 20])).unwrap().wait().unwrap();
        assert_eq!(firsts(pulled), [2.0 * workers, 3.0 * workers, 2.0 * workers]);
    };
    check(&KvStore::create("local").unwrap());
    let cluster = Cluster::start(2, 2);
    cluster.run("dist_sync", 2, check);
    cluster.end();
}

#[test]
fn ten_thousand_pushes_without_waiting() {
    const PUSHES: usize = 10_000;
    for kind in ["dist_sync", "dist_async"] {
        let cluster = Cluster::start(2, 2);
        cluster.run(kind, 2, |store| {
            store.init("k", &[0.0_f64; 10]).unwrap();
            store.set_optimizer(&Sgd::new(1.0)).unwrap();
            store.barrier().unwrap();
            let pushes: Vec<_> = (0..PUSHES).map(|_| store.push("k", &[-1.0_f64; 10]).unwrap()).collect();
            pushes.into_iter().for_each(|push| push.wait().unwrap());
            store.barrier().unwrap();
            let value = store.pull("k").unwrap().wait().unwrap();
            assert_eq!(value.as_slice::<f64>().unwrap(), [2.0 * PUSHES as f64; 10]);
        });
        cluster.end();
    }
}

/// Eight rounds may be open; the pushes of the next ones are not acknowledged, and as many as the window holds are let
/// in. The one after that waits until the other worker has caught up.
#[test]
fn a_push_waits_while_the_window_is_full() {
    const WINDOW: usize = 16;
    let cluster = Cluster::start_with(Settings { window_messages: Some(WINDOW as u64), ..settings() }, 2, 1);
    let meet = std::sync::Arc::new(std::sync::Barrier::new(2));
    cluster.run("dist_sync", 2, move |store| {
        let accepted = kv_core::limits::OPEN_ROUNDS_MAX + WINDOW;
        store.init("k", &[0.0_f32; 4]).unwrap();
        if store.rank() == 0 {
            let store = store.to_async();
            let mut pushes = Vec::new();
            block_on(async {
                for _ in 0..accepted {
                    pushes.push(store.push("k", &[1.0_f32; 4]).await.unwrap());
                }
                let one_more = store.push("k", &[1.0_f32; 4]);
                tokio::pin!(one_more);
                let early = tokio::time::timeout(Duration::from_millis(500), &mut one_more).await;
                assert!(early.is_err(), "the window let in more than {accepted} pushes");
                meet.wait();
                pushes.push(one_more.await.unwrap());
                for push in pushes {
                    push.await.unwrap();
                }
            });
        } else {
            meet.wait();
            for _ in 0..=accepted {
                store.push("k", &[2.0_f32; 4]).unwrap().wait().unwrap();
            }
        }
        assert_eq!(store.pull("k").unwrap().wait().unwrap().as_slice::<f32>().unwrap(), [3.0; 4]);
    });
    cluster.end();
}

/// Bytes of memory that could be used; `None` where nobody says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// Lengths have 64 bits everywhere: one byte more than 31 bits can count.
#[test]
fn a_value_of_more_than_two_gibibytes() {
    const BYTES: usize = (1 << 31) + 1;
    const NEEDED: u64 = 14 << 30;
    let _reserved = reserve_memory();
    let available = available_memory();
    if std::env::var_os("CI").is_some() || available.is_none_or(|available| available < NEEDED) {
        eprintln!("skipped: it needs {NEEDED} bytes of memory ({available:?} available) and no CI in the environment");
        return;
    }
    let settings = Settings { chunk_bytes: Some(1 << 20), timeout: Some(Duration::from_secs(120)), ..settings() };
    let cluster = Cluster::start_with(settings, 1, 2);
    cluster.run("dist_sync", 1, |store| {
        let mut value = vec![3_u8; BYTES];
        value[BYTES - 1] = 5;
        store.init("big", &value).unwrap();
        value.fill(4);
        value[BYTES - 1] = 6;
        let push = store.push("big", &value).unwrap();
        drop(value);
        push.wait().unwrap();
        let pulled = store.pull("big").unwrap().wait().unwrap();
        let bytes = pulled.as_slice::<u8>().unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[1 << 31], bytes[(1 << 31) - 1]), (BYTES, 4, 6, 4));
        assert!(bytes[..BYTES - 1].iter().all(|byte| *byte == 4));
    });
    cluster.end();
}
