//! Weights in a safetensors file, whole or not at all.

use std::path::{Path, PathBuf};

use kv::Error;
use ndarray::Array2;
use safetensors::tensor::{Dtype, TensorView};

use super::model::Parameter;

/// Whether a file can be written there: said before the training, not after it.
pub(super) fn check_writable(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::Config(format!("--save {}: it is a directory", path.display())));
    }
    tempfile::NamedTempFile::new_in(folder(path)).map(drop).map_err(|error| failed(path, &error))
}

/// Writes the weights: into a temporary file beside it, synced, then renamed. The same weights give the same bytes.
pub(super) fn save(path: &Path, parameters: &[Parameter], values: &[Array2<f32>]) -> Result<(), Error> {
    let mut views = Vec::new();
    let contiguous: Vec<_> = values.iter().map(|value| value.as_standard_layout()).collect();
    for (parameter, value) in parameters.iter().zip(&contiguous) {
        let bytes: &[u8] = value.as_slice().map(bytes_of).unwrap_or_default();
        let shape = parameter.shape.to_vec();
        views.push((parameter.name, TensorView::new(Dtype::F32, shape, bytes).map_err(|error| failed(path, &error))?));
    }
    let bytes = safetensors::serialize(views, None).map_err(|error| failed(path, &error))?;
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder(path))?;
        std::io::Write::write_all(&mut file, &bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| failed(path, &error))
}

fn bytes_of(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Config(format!("--save {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::args::ModelKind;
    use crate::train::model::Model;

    #[test]
    fn the_same_weights_give_the_same_bytes_and_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let model = Model::new(ModelKind::Mlp, 4, 3, 5).unwrap();
        let values = model.start(1);
        let path = folder.path().join("model.safetensors");
        check_writable(&path).unwrap();
        save(&path, model.parameters(), &values).unwrap();
        let first = std::fs::read(&path).unwrap();
        save(&path, model.parameters(), &values).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
        let read = safetensors::SafeTensors::deserialize(&first).unwrap();
        let weight = read.tensor("hidden.weight").unwrap();
        assert_eq!(weight.shape(), [4, 5]);
        assert_eq!(weight.data(), bytes_of(values[0].as_slice().unwrap()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        assert!(check_writable(folder.path()).is_err());
        assert!(check_writable(&folder.path().join("no/such/folder/file")).is_err());
    }
}
