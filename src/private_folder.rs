//! A folder for the sockets of one job, which only this user can enter, removed with its content in the end.

use std::fs::DirBuilder;
use std::path::PathBuf;

use kv_core::Error;
use kv_core::cluster::NodeId;

/// Removed when dropped.
pub(crate) struct PrivateFolder {
    path: PathBuf,
}

impl PrivateFolder {
    /// Makes one in the system's folder for temporary files.
    ///
    /// # Errors
    /// [`Error::Config`] with what the operating system said.
    pub(crate) fn new() -> Result<Self, Error> {
        let random = NodeId::random().map_err(|error| Error::Config(format!("no random name to be had: {error}")))?;
        let path = std::env::temp_dir().join(format!("kv-{random}"));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // Fails when there is something of that name already, whoever made it.
        let made = builder.create(&path);
        made.map_err(|error| Error::Config(format!("cannot make the folder {}: {error}", path.display())))?;
        Ok(Self { path })
    }

    /// Its absolute path, which must be text to be part of an address.
    ///
    /// # Errors
    /// [`Error::Config`] when it is not.
    pub(crate) fn path(&self) -> Result<&str, Error> {
        let text = self.path.to_str().filter(|_| self.path.is_absolute());
        text.ok_or_else(|| {
            Error::Config(format!(
                "TMPDIR: expected an absolute path of UTF-8 text for the sockets of a job, found {:?}",
                self.path.parent().unwrap_or(&self.path)
            ))
        })
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!("cannot remove the folder {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_private_and_goes_with_what_is_in_it() {
        let folder = PrivateFolder::new().unwrap();
        let path = PathBuf::from(folder.path().unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(path.join("socket"), "").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
