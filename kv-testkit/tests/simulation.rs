//! Thousands of simulated clusters.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kv_testkit::sim::plan::{Plan, Profile};
use kv_testkit::sim::stats::Stats;
use kv_testkit::sim::{Failure, replay as replay_seed, run};

/// Seeds of a default run.
const SEEDS: u64 = 2400;

#[test]
fn seeds() {
    let seeds = std::env::var("KV_SIM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("KV_SIM_SEEDS is a number"));
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let result: Mutex<(Stats, Vec<Box<Failure>>)> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut stats = Stats::default();
                let mut failures = Vec::new();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    match run(seed) {
                        Ok((counts, _)) => stats.add(&counts),
                        Err(failure) => failures.push(failure),
                    }
                }
                let mut result = result.lock().expect("no thread panics");
                result.0.add(&stats);
                result.1.extend(failures);
            });
        }
    });
    let (stats, mut failures) = result.into_inner().expect("no thread panics");
    let seconds = started.elapsed().as_secs_f64();
    println!("{stats}\n  {:.0} seeds per second", seeds as f64 / seconds);
    if seeds == SEEDS {
        enough(&stats);
    }
    failures.sort_by_key(|failure| failure.seed);
    if let Some(first) = failures.first() {
        for failure in &failures {
            println!("seed {:#x} ({:?}): {}", failure.seed, failure.profile, failure.what);
        }
        panic!("{} of {seeds} seeds fail; the first:\n{first}", failures.len());
    }
}

/// A simulator that injects nothing finds nothing: a default run must have met every kind of trouble, often.
fn enough(stats: &Stats) {
    for (name, least) in [
        ("calls", 50_000),
        ("errors", 1000),
        ("orphaned calls", 20),
        ("pushes", 50_000),
        ("pulls", 50_000),
        ("barriers", 5000),
        ("exact finals", 20_000),
        ("dropped", 20_000),
        ("duplicated", 20_000),
        ("overtaken", 50_000),
        ("lost in partitions", 1000),
        ("held back by partitions", 500),
        ("died with the sender", 5),
        ("retries", 20_000),
        ("stalls", 200),
        ("worker crashes", 150),
        ("server crashes", 50),
        ("scheduler crashes", 50),
        ("cut links", 20),
        ("garbage", 5000),
    ] {
        let count = stats.counts().iter().find(|(other, _)| *other == name).map(|(_, count)| *count);
        assert!(count.is_some_and(|count| count >= least), "only {count:?} {name}, at least {least} are needed");
    }
    assert!(stats.runs.values().all(|runs| *runs >= 100) && stats.runs.len() == 9, "{:?}", stats.runs);
}

/// One seed with its whole trace: the command that a failure prints.
#[test]
fn replay() {
    let Ok(seed) = std::env::var("KV_SIM_SEED") else { return };
    let seed = match seed.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => seed.parse(),
    };
    let seed = seed.expect("KV_SIM_SEED is a number, decimal or 0x...");
    println!("{:#?}", Plan::of(seed));
    match replay_seed(seed) {
        Ok(run) => {
            println!("{}\nseed {seed:#x}: ok, trace {:#018x}\n{}", run.trace.text(), run.trace.hash(), run.stats)
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..160 {
        let hashes = [run(seed), run(seed)].map(|result| result.map(|(_, hash)| hash).map_err(|failure| failure.what));
        assert_eq!(hashes[0], hashes[1], "seed {seed:#x} ({:?})", Profile::of(seed));
    }
}
