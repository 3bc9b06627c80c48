//! The names by which stores are created.

use kv_core::Error;

/// What a store is, behind the many names it may have been created by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process only.
    Local,
    /// On servers, in synchronous rounds.
    DistSync,
    /// On servers, every push on its own.
    DistAsync,
}

/// Every name, in MXNet's spelling. Names with `device` and `nccl` ask for the arrays of one key to be summed where
/// they live; without accelerators that is the CPU.
const NAMES: [(&str, StoreKind); 12] = [
    ("local", StoreKind::Local),
    ("local_update_cpu", StoreKind::Local),
    ("local_allreduce_cpu", StoreKind::Local),
    ("local_allreduce_device", StoreKind::Local),
    ("device", StoreKind::Local),
    ("nccl", StoreKind::Local),
    ("dist", StoreKind::DistSync),
    ("dist_sync", StoreKind::DistSync),
    ("dist_device_sync", StoreKind::DistSync),
    ("dist_sync_device", StoreKind::DistSync),
    ("dist_async", StoreKind::DistAsync),
    ("dist_async_device", StoreKind::DistAsync),
];

impl StoreKind {
    /// The kind with this name, in any case.
    ///
    /// # Errors
    /// [`Error::Config`] that lists the known names.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let lower = name.to_lowercase();
        let Some((known, kind)) = NAMES.iter().find(|(known, _)| *known == lower) else {
            let known: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(Error::Config(format!(
                "'{}' is not a kind of store; there are {}",
                name.escape_debug(),
                known.join(", ")
            )));
        };
        if known.contains("device") || known.contains("nccl") {
            tracing::info!("store '{known}': arrays of one key are summed on the CPU, this build has no accelerators");
        }
        Ok(*kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case_and_nonsense_is_not_local() {
        assert_eq!(StoreKind::parse("Dist_Sync").unwrap(), StoreKind::DistSync);
        assert_eq!(StoreKind::parse("nccl").unwrap(), StoreKind::Local);
        let error = StoreKind::parse("xyz").unwrap_err().to_string();
        assert!(error.contains("'xyz'") && error.contains("dist_async"), "{error}");
    }
}
