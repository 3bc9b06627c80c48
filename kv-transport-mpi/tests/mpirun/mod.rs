//! A test that starts itself again under `mpirun`.

use std::path::PathBuf;
use std::process::Command;

/// How to start.
pub(crate) struct Mpirun {
    ranks: usize,
}

/// Set in the ranks: a directory they share.
const SHARED: &str = "KV_TEST_MPI_SHARED";

impl Mpirun {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { ranks }
    }

    /// In the test: runs all ranks, checks that they ended well, and returns nothing. In a rank: a directory that all
    /// ranks share.
    pub(crate) fn rerun(&self, test: &str) -> Option<PathBuf> {
        if let Some(shared) = std::env::var_os(SHARED) {
            return Some(shared.into());
        }
        let shared = tempfile::tempdir().unwrap();
        let output = command(self.ranks)
            .env(SHARED, shared.path())
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
        println!("{out}");
        None
    }
}

/// `mpirun` on this machine and nowhere else, whoever runs the test and however few cores there are.
pub(crate) fn command(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .args(["--oversubscribe", "--bind-to", "none"])
        .args(["--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo"])
        .args(["-n", &ranks.to_string()]);
    command
}
