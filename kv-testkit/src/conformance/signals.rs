//! Events between ranks that do not travel through the van under test.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Named events, each raised once with a text. A rank that must not read its inbox waits for one of these.
#[derive(Clone)]
pub struct Signals(Medium);

#[derive(Clone)]
enum Medium {
    InProcess(Arc<watch::Sender<HashMap<String, String>>>),
    Files(PathBuf),
}

/// How often a file is looked for.
const POLL_EVERY: Duration = Duration::from_millis(1);

impl Signals {
    /// For ranks that are tasks of one process.
    #[must_use]
    pub fn in_process() -> Self {
        Self(Medium::InProcess(Arc::new(watch::Sender::new(HashMap::new()))))
    }

    /// For ranks that are processes of one machine: each event is a file in `directory`, which all ranks are given
    /// and which is empty when the first of them starts.
    #[must_use]
    pub fn files(directory: PathBuf) -> Self {
        Self(Medium::Files(directory))
    }

    pub(super) fn raise(&self, name: &str, text: &str) -> io::Result<()> {
        match &self.0 {
            Medium::InProcess(raised) => {
                raised.send_modify(|raised| {
                    raised.insert(name.to_owned(), text.to_owned());
                });
                Ok(())
            }
            Medium::Files(directory) => {
                // Renamed into place, so that nobody reads half of it.
                let unfinished = directory.join(format!("{name}.unfinished"));
                std::fs::write(&unfinished, text)?;
                std::fs::rename(unfinished, directory.join(name))
            }
        }
    }

    /// Waits for the event and returns its text.
    pub(super) async fn wait(&self, name: &str) -> io::Result<String> {
        match &self.0 {
            Medium::InProcess(raised) => {
                let mut raised = raised.subscribe();
                let raised = raised.wait_for(|raised| raised.contains_key(name)).await.map_err(io::Error::other)?;
                Ok(raised[name].clone())
            }
            Medium::Files(directory) => loop {
                match std::fs::read_to_string(directory.join(name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => tokio::time::sleep(POLL_EVERY).await,
                    found => return found,
                }
            },
        }
    }
}
