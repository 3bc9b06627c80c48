//! The smallest program: `cargo run --example quickstart`, or distributed, with two workers and two servers:
//! `cargo run -- launch -n 2 -s 2 -- target/debug/examples/quickstart dist_sync`.

use kv::optim::Sgd;
use kv::{Error, KvStore};

fn main() -> Result<(), Error> {
    let kind = std::env::args().nth(1).unwrap_or_else(|| "local".to_owned());
    let store = KvStore::create(&kind)?;
    store.init("weight", [0.0_f32; 4])?;
    store.set_optimizer(&Sgd::new(0.1))?;
    let mut weight = [0.0_f32; 4];
    for _ in 0..100 {
        // Minimise (weight - 3)^2, every worker a share of it.
        let gradient = weight.map(|w| 2.0 * (w - 3.0) / store.num_workers() as f32);
        store.push("weight", gradient)?.wait()?;
        store.pull_into("weight", &mut weight)?;
    }
    println!("worker {} of {}: {weight:?}", store.rank(), store.num_workers());
    store.close()
}
