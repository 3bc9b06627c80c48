//! Opening a store.

use kv_core::cluster::Role;
use kv_core::{Consistency, Error};

use crate::config::{Settings, process_env};
use crate::kind::StoreKind;
use crate::session::Session;
use crate::store::{AsyncKvStore, KvStore};

/// How to open a store; made by [`KvStore::builder`].
///
/// What is not set here comes from the environment, then from the file named by `KV_CONFIG`, then from defaults: see
/// [`crate::config`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    kind: String,
    settings: Settings,
}

impl Builder {
    pub(crate) fn new(kind: &str) -> Self {
        Self { kind: kind.to_owned(), settings: Settings::default() }
    }

    /// Settings of this worker; those set in it win over environment and file.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings.or(self.settings);
        self
    }

    /// Sum every round in worker-rank order, so that results are bit-identical from run to run.
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.settings.deterministic = Some(deterministic);
        self
    }

    /// Opens the store; a distributed one returns when all nodes of the job are there. Blocks.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that are missing or make no sense, all of them at once; [`Error::Timeout`] when
    /// the scheduler is unreachable (its address is named) or nodes are missing; [`Error::Refused`].
    pub fn connect(self) -> Result<KvStore, Error> {
        let kind = StoreKind::parse(&self.kind)?;
        let name = self.kind.to_lowercase();
        if kind == StoreKind::Local {
            return Ok(KvStore::from_shared(AsyncKvStore::local(name)));
        }
        let settings = Settings::load(self.settings, None, &process_env);
        if let Some(role @ (Role::Server | Role::Scheduler)) = settings.role {
            return Err(Error::Config(format!(
                "this process is started as a {role}; call kv::node::serve_if_asked() before opening a store"
            )));
        }
        let config = settings.resolve(Role::Worker)?;
        let consistency = match kind {
            StoreKind::DistAsync => Consistency::Async,
            _ => Consistency::Sync { deterministic: config.deterministic },
        };
        let session = Session::open(config, consistency)?;
        Ok(KvStore::from_shared(AsyncKvStore::cluster(name, session)))
    }
}
