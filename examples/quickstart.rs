//! Fits a line, in this process or on a cluster: the argument names the kind of store.
//!
//! ```text
//! cargo run --example quickstart
//! cargo run -- launch -n 2 -s 2 -- target/debug/examples/quickstart dist_sync
//! ```

use kv::KvStore;
use kv::optim::Sgd;

fn main() -> Result<(), kv::Error> {
    let kind = std::env::args().nth(1).unwrap_or("local".to_owned());
    let store = KvStore::create(&kind)?;
    let (rank, workers) = (store.rank(), store.num_workers());
    // 100 points of y = 3x - 1; each worker has its share of them.
    let xs: Vec<f32> = (rank..100).step_by(workers).map(|i| i as f32 / 50.0 - 1.0).collect();
    store.init("line", [0.0_f32; 2])?;
    store.set_optimizer(&Sgd::new(0.01))?;
    let mut line = [0.0_f32; 2];
    for _ in 0..100 {
        let errors = xs.iter().map(|x| (x, line[0] * x + line[1] - (3.0 * x - 1.0)));
        let gradient = errors.fold([0.0; 2], |[a, b], (x, error)| [a + error * x, b + error]);
        // On the servers: the sum over all workers, then one step of SGD. Back comes what results.
        line.copy_from_slice(store.push_pull("line", gradient)?.wait()?.as_slice()?);
    }
    println!("worker {rank} of {workers}: y = {:.3} x + {:.3}", line[0], line[1]);
    store.close()
}
