//! Weights in a safetensors file, whole or not at all.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kv::Error;
use ndarray::Array2;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::{Builder, NamedTempFile};

use super::dataset::Dataset;
use super::model::Model;

/// Whether a file can be written there: said before the training, not after it.
pub(super) fn check_writable(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::Config(format!("--save {}: it is a directory", path.display())));
    }
    temporary(&folder(path)).map(drop).map_err(|error| failed(path, &error))
}

/// Writes what is needed to use a model: its weights, `input.mean` and `input.factor` (a model takes
/// `clamp((x - mean) * factor, -5, 5)`, see [`Scaling`](super::dataset::Scaling)), and as metadata `classes`, the labels
/// by class number, separated by commas.
///
/// Into a temporary file beside it, synced, then renamed. The same weights give the same bytes.
pub(super) fn save(path: &Path, model: &Model, values: &[Array2<f32>], data: &Dataset) -> Result<(), Error> {
    let view = |name, shape: &[usize], elements| {
        let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes_of(elements));
        view.map(|view| (name, view)).map_err(|error| failed(path, &error))
    };
    let contiguous: Vec<_> = values.iter().map(|value| value.as_standard_layout()).collect();
    let mut views = Vec::new();
    for (parameter, value) in model.parameters().iter().zip(&contiguous) {
        views.push(view(parameter.name, &parameter.shape, value.as_slice().unwrap_or_default())?);
    }
    for (name, elements) in [("input.mean", &data.scaling.mean), ("input.factor", &data.scaling.factor)] {
        views.push(view(name, &[elements.len()], elements)?);
    }
    // One entry: several would be written in the random order of a hash map.
    let classes: Vec<String> = data.classes.iter().map(ToString::to_string).collect();
    let metadata = (!classes.is_empty()).then(|| HashMap::from([("classes".to_owned(), classes.join(","))]));
    let bytes = safetensors::serialize(views, metadata).map_err(|error| failed(path, &error))?;
    write(path, &bytes).map_err(|error| failed(path, &error))
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = folder(path);
    let mut file = temporary(&folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    // The name is in the folder's own data.
    File::open(folder)?.sync_all()
}

/// A file that can be read by whom the system lets read new files; temporary files usually cannot.
fn temporary(folder: &Path) -> std::io::Result<NamedTempFile> {
    Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
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

    #[test]
    fn the_same_weights_give_the_same_bytes_and_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let data = Dataset::digits(ModelKind::Mlp);
        let model = Model::new(ModelKind::Mlp, 64, 10, 5).unwrap();
        let values = model.start(1);
        let path = folder.path().join("model.safetensors");
        check_writable(&path).unwrap();
        save(&path, &model, &values, &data).unwrap();
        let first = std::fs::read(&path).unwrap();
        for _ in 0..20 {
            save(&path, &model, &values, &data).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), first);
        }
        let read = safetensors::SafeTensors::deserialize(&first).unwrap();
        let weight = read.tensor("hidden.weight").unwrap();
        assert_eq!(weight.shape(), [64, 5]);
        assert_eq!(weight.data(), bytes_of(values[0].as_slice().unwrap()));
        assert_eq!(read.tensor("input.mean").unwrap().data(), bytes_of(&data.scaling.mean));
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&first).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["classes"], "0,1,2,3,4,5,6,7,8,9");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn saved_files_are_as_readable_as_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        std::fs::write(folder.path().join("other"), "").unwrap();
        write(&folder.path().join("saved"), b"").unwrap();
        assert_eq!(mode("saved"), mode("other"));
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let error = check_writable(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it is a directory"), "{error}");
        assert!(check_writable(&folder.path().join("no/such/folder/file")).is_err());
    }
}
