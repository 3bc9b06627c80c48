//! The flags of `kv train`.

use std::path::PathBuf;

use clap::ValueEnum;
use kv::Error;
use kv::config::{Role, Settings, process_env};

/// Train a model on this machine with workers and servers of its own.
///
/// Without arguments: a network with one hidden layer on the bundled handwritten digits (UCI, 1,797 images of 8 x 8
/// pixels), 2 workers, 2 servers, synchronous rounds. Under a launcher it is one node of the job: in the role that
/// DMLC_ROLE, KV_ROLE or --role says, or with --by-rank in the role of its rank.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// What to train
    #[arg(long, value_enum, default_value_t = ModelKind::Mlp)]
    pub(crate) model: ModelKind,
    /// Training examples, CSV or libsvm, plain or gzip; the bundled digits if not given
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Test examples; every fifth training example if not given
    #[arg(long, value_name = "FILE", requires = "data")]
    pub(crate) test: Option<PathBuf>,
    /// Which column of a CSV file is the label
    #[arg(long, value_enum, default_value_t = LabelColumn::Last)]
    pub(crate) label: LabelColumn,
    /// Number of features; the columns of a CSV file, the largest index of libsvm files if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) features: Option<u32>,
    /// Number of workers [default: 2; with --by-rank what the others leave]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Number of servers [default: 2]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=i64::from(kv_core::limits::SLOTS)))]
    servers: Option<u16>,
    /// When a push is applied
    #[arg(long, value_enum, default_value_t = Mode::Sync)]
    pub(crate) mode: Mode,
    /// Transport between the nodes; with memory they are threads of one process
    #[arg(long, value_name = "NAME", value_parser = |name: &str| kv::transport::find(name))]
    pub(crate) transport: Option<&'static str>,
    /// Be one node of a job that others start, in this role [env: KV_ROLE, DMLC_ROLE]
    #[arg(long, value_parser = role)]
    role: Option<Role>,
    /// Be one of the processes that mpirun or srun has started: scheduler, then servers, then workers [env: KV_BY_RANK]
    #[arg(long)]
    by_rank: bool,
    /// Where the scheduler of that job is [env: KV_SCHEDULER; DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT]
    #[arg(long, value_name = "ADDRESS")]
    scheduler: Option<String>,
    /// Optimizer on the servers
    #[arg(long, value_enum, default_value_t = OptimizerKind::Sgd)]
    pub(crate) optimizer: OptimizerKind,
    /// Learning rate
    #[arg(long, default_value_t = 0.05, value_parser = positive)]
    pub(crate) lr: f64,
    /// Momentum, in [0, 1)
    #[arg(long, default_value_t = 0.9, value_parser = fraction)]
    pub(crate) momentum: f64,
    /// Weight decay
    #[arg(long, default_value_t = 0.0001, value_parser = not_negative)]
    pub(crate) wd: f64,
    /// Passes over the training examples
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
    /// Examples of one worker in one step
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) batch: u32,
    /// Hidden units of the mlp
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) hidden: u32,
    /// Seed of initial weights and order of examples
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Sum gradients in worker order: the same weights to the last bit in every run, and with --local
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Do the work of all workers in this process, without servers
    #[arg(long)]
    pub(crate) local: bool,
    /// Write the weights to this safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// One JSON object per line on the standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Only the final line
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Workers and servers of a job when nobody says how many.
const NODES: u16 = 2;

impl Args {
    /// Number of workers of a job that is started here.
    pub(crate) fn workers(&self) -> u16 {
        self.workers.unwrap_or(NODES)
    }

    /// Number of servers of a job that is started here.
    pub(crate) fn servers(&self) -> u16 {
        self.servers.unwrap_or(NODES)
    }

    /// Whether a job is meant that others start.
    pub(crate) fn names_a_scheduler(&self) -> bool {
        self.scheduler.is_some()
    }

    /// The settings of a node that these flags make; environment and file have the others.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        let mut settings = Settings {
            role: self.role,
            by_rank: self.by_rank.then_some(true),
            transport: self.transport.map(str::to_owned),
            num_workers: self.workers,
            deterministic: self.deterministic.then_some(true),
            ..Settings::default()
        };
        if let Some(text) = &self.scheduler
            && !settings.set_scheduler(text)
        {
            let found = text.escape_debug();
            return Err(Error::Config(format!("--scheduler: expected host:port or ipc:///path, found '{found}'")));
        }
        // By rank their number decides who is what, so the default must be known there, too.
        let not_by_rank = Settings { by_rank: Some(false), ..Settings::default() };
        let elsewhere = || Settings::load(not_by_rank, None, &process_env).num_servers;
        settings.num_servers = Some(self.servers.or_else(elsewhere).unwrap_or(NODES));
        Ok(settings)
    }
}

fn role(text: &str) -> Result<Role, &'static str> {
    kv::config::role(text).filter(|role| *role != Role::Observer).ok_or("expected scheduler, server or worker")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// Least squares on a number
    Linear,
    /// Two classes
    Logistic,
    /// Any number of classes
    Softmax,
    /// One hidden layer, any number of classes
    Mlp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabelColumn {
    First,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// In rounds, when all workers have pushed
    Sync,
    /// On arrival
    Async,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerKind {
    /// Stochastic gradient descent with momentum
    Sgd,
}

impl Mode {
    /// The kind of store.
    pub(crate) fn store(self) -> &'static str {
        match self {
            Self::Sync => "dist_sync",
            Self::Async => "dist_async",
        }
    }
}

fn number(text: &str, ok: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && ok(number) => Ok(number),
        _ => Err(format!("expected {expected}")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |x| x > 0.0, "a number > 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |x| x >= 0.0, "a number >= 0")
}

fn fraction(text: &str) -> Result<f64, String> {
    number(text, |x| (0.0..1.0).contains(&x), "a number >= 0 and < 1")
}
