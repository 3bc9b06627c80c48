//! The training loop of one worker, or of all workers in one process.

use kv::optim::Sgd;
use kv::{Error, KvStore, Tensor};
use ndarray::Array2;

use super::args::{Args, Mode};
use super::batches::{order, share, steps};
use super::dataset::Dataset;
use super::model::{Model, from_tensor, to_tensor};
use super::report::{Report, Traffic};
use super::save;

/// Everything that every worker knows before it starts.
pub(super) struct Job {
    args: Args,
    data: Dataset,
    model: Model,
}

impl Job {
    /// Reads the examples and checks what can be checked.
    pub(super) fn prepare(args: &Args) -> Result<Self, Error> {
        let data = Dataset::load(args)?;
        let features = data.train.features.ncols();
        let model = Model::new(args.model, features, data.classes.len(), args.hidden as usize)?;
        if let Some(path) = &args.save {
            save::check_writable(path)?;
        }
        Ok(Self { args: args.clone(), data, model })
    }
}

/// Trains over the store to the end and closes it. In a `local` store this process does the work of all workers, one
/// after another, by the same rule: all gradients of a step on the same weights, summed in worker order.
pub(super) fn run(job: &Job, store: &KvStore) -> Result<(), Error> {
    let Job { args, data, model } = job;
    let (workers, own) = match args.local {
        true => (usize::from(args.workers()), 0..usize::from(args.workers())),
        false => (store.num_workers(), store.rank()..store.rank() + 1),
    };
    let names: Vec<&str> = model.names().collect();
    let mut values = model.start(args.seed);
    store.init_all(&names, &tensors(&values)?)?;
    store.set_optimizer(&Sgd::new(args.lr).momentum(args.momentum).wd(args.wd))?;

    let reports = store.rank() == 0;
    let steps_per_epoch = steps(data.train.len(), workers, args.batch as usize).count() as u64;
    let mut report = reports.then(|| Report::new(args.json, args.quiet, steps_per_epoch * u64::from(args.epochs)));
    let mut exchange = Exchange { store, names: &names, model, traffic: Traffic::default() };
    for epoch in 1..=args.epochs {
        let order = order(data.train.len(), args.seed, epoch);
        let (mut loss_sum, mut seen) = (0.0, 0);
        for step in steps(data.train.len(), workers, args.batch as usize) {
            let mut gradients = Vec::new();
            for rank in own.clone() {
                let examples = data.train.select(&order[share(&step, workers, rank)]);
                let (mut gradient, loss) = model.gradient(&values, &examples);
                // The mean over the examples of all workers.
                gradient.iter_mut().for_each(|g| *g /= step.len() as f32);
                loss_sum += loss;
                seen += examples.len();
                gradients.push(gradient);
                if args.mode == Mode::Async {
                    values = exchange.step(std::mem::take(&mut gradients))?;
                }
            }
            if args.mode == Mode::Sync {
                values = exchange.step(gradients)?;
            }
            if let Some(report) = &mut report {
                report.step(step.len(), exchange.traffic, loss_sum / seen.max(1) as f64);
            }
        }
        let loss = loss_sum / seen.max(1) as f64;
        check_finite(loss, epoch)?;
        if let Some(report) = &report {
            let test = model.score(&values, &data.test);
            // The last step of the epoch may be the one that went too far.
            check_finite(test.loss, epoch)?;
            report.epoch(epoch, loss, test);
        }
    }
    // In an asynchronous store the others' last pushes count too.
    store.barrier()?;
    values = exchange.pull()?;
    if let Some(report) = report {
        let test = model.score(&values, &data.test);
        check_finite(test.loss, args.epochs)?;
        report.done(test);
        if let Some(path) = &args.save {
            save::save(path, model, &values, data)?;
        }
    }
    store.close()
}

fn check_finite(loss: f64, epoch: u32) -> Result<(), Error> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(Error::Config(format!("the training has diverged in epoch {epoch} (loss {loss}); try a lower --lr")))
}

/// Gradients out, weights in.
struct Exchange<'a> {
    store: &'a KvStore,
    names: &'a [&'a str],
    model: &'a Model,
    traffic: Traffic,
}

impl Exchange<'_> {
    /// Pushes the gradients of one or more workers as one contribution and gives the weights that result.
    fn step(&mut self, gradients: Vec<Vec<Array2<f32>>>) -> Result<Vec<Array2<f32>>, Error> {
        let bytes = (self.model.size() * size_of::<f32>()) as u64;
        self.traffic.pushed += bytes * gradients.len() as u64;
        let mut keys = Vec::new();
        let mut tensors = Vec::new();
        for gradient in &gradients {
            for (name, gradient) in self.names.iter().zip(gradient) {
                keys.push(*name);
                tensors.push(to_tensor(gradient)?);
            }
        }
        if gradients.len() == 1 {
            let pulled = self.store.push_pull_all(keys, tensors)?.wait()?;
            return self.take(&pulled);
        }
        // Values of one key are summed in the order in which they stand: that of the workers.
        self.store.push_all(keys, tensors)?.wait()?;
        self.pull()
    }

    fn pull(&mut self) -> Result<Vec<Array2<f32>>, Error> {
        let pulled = self.store.pull_all(self.names)?.wait()?;
        self.take(&pulled)
    }

    fn take(&mut self, pulled: &[Tensor]) -> Result<Vec<Array2<f32>>, Error> {
        self.traffic.pulled += (self.model.size() * size_of::<f32>()) as u64;
        pulled.iter().zip(self.model.parameters()).map(|(tensor, parameter)| from_tensor(tensor, parameter)).collect()
    }
}

fn tensors(values: &[Array2<f32>]) -> Result<Vec<Tensor>, Error> {
    values.iter().map(to_tensor).collect()
}
