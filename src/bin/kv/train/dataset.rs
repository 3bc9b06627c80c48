//! Training and test examples: read, split, labelled with classes, scaled.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use kv::Error;
use ndarray::{Array2, Axis};

use super::args::{Args, LabelColumn, ModelKind};
use super::parse::{Raw, parse};

/// UCI optical recognition of handwritten digits; see `data/README.md` for source and licence.
const DIGITS: &[u8] = include_bytes!("../../../../data/digits.csv.gz");

/// Longest file read, in bytes after decompression: a small one that unpacks without end must not fill the memory.
const TEXT_BYTES_MAX: u64 = 8 << 30;

/// Every `TEST_EVERY`-th example is for testing when there is no file for it.
const TEST_EVERY: usize = 5;

/// A table of examples.
#[derive(Clone, Debug)]
pub(super) struct Examples {
    /// One row per example.
    pub(super) features: Array2<f32>,
    /// The number of its class, or the number to be predicted.
    pub(super) targets: Vec<f32>,
}

/// What a model is trained and tested on.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    pub(super) train: Examples,
    pub(super) test: Examples,
    /// Number of classes; 0 when numbers are predicted.
    pub(super) classes: usize,
}

impl Dataset {
    /// Reads what the flags name.
    pub(super) fn load(args: &Args) -> Result<Self, Error> {
        let width = args.features.map(|features| features as usize);
        let read = |path: &Path, width| {
            let name = path.display();
            let file = File::open(path).map_err(|error| Error::Config(format!("{name}: {error}")))?;
            table(BufReader::new(file), args.label, width)
                .map_err(|problem| Error::Config(format!("{name}: {problem}")))
        };
        let all = match &args.data {
            Some(path) => read(path, width)?,
            None => table(DIGITS, LabelColumn::Last, None).map_err(Error::Config)?,
        };
        let (train, test) = match &args.test {
            Some(path) => {
                let test = read(path, Some(all.features.ncols()))?;
                if test.features.ncols() != all.features.ncols() {
                    let (expected, found) = (all.features.ncols(), test.features.ncols());
                    let name = path.display();
                    return Err(Error::Config(format!("{name}: expected {expected} features, found {found}")));
                }
                (all, test)
            }
            None => split(&all)?,
        };
        Self::new(train, test, args.model).map_err(Error::Config)
    }

    fn new(mut train: Examples, mut test: Examples, model: ModelKind) -> Result<Self, String> {
        let classes = if model == ModelKind::Linear { 0 } else { number_classes(&mut train, &mut test)? };
        match (model, classes) {
            (ModelKind::Logistic, n) if n != 2 => {
                return Err(format!("a logistic model needs labels of 2 classes, found {n}"));
            }
            (ModelKind::Softmax | ModelKind::Mlp, 0 | 1) => {
                return Err("all labels are the same; there is nothing to tell apart".to_owned());
            }
            _ => {}
        }
        scale(&mut train.features, &mut test.features);
        Ok(Self { train, test, classes })
    }
}

fn table(source: impl Read, label: LabelColumn, width: Option<usize>) -> Result<Examples, String> {
    let text = text(source)?;
    let Raw { features, width, labels } = parse(&text, label, width)?;
    let features = Array2::from_shape_vec((labels.len(), width), features).map_err(|error| error.to_string())?;
    Ok(Examples { features, targets: labels })
}

/// The text of a file, unpacked if it is packed.
fn text(source: impl Read) -> Result<String, String> {
    let mut source = BufReader::new(source);
    let is_gzip =
        std::io::BufRead::fill_buf(&mut source).map_err(|error| error.to_string())?.starts_with(&[0x1f, 0x8b]);
    let mut bytes = Vec::new();
    let unpacked: &mut dyn Read = if is_gzip { &mut MultiGzDecoder::new(source) } else { &mut source };
    unpacked.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(format!("longer than {TEXT_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| format!("not text: {error}"))
}

fn split(all: &Examples) -> Result<(Examples, Examples), Error> {
    let rows = all.targets.len();
    if rows < TEST_EVERY {
        return Err(Error::Config(format!("{rows} examples; at least {TEST_EVERY} are needed to set some aside")));
    }
    let (test, train): (Vec<usize>, Vec<usize>) = (0..rows).partition(|row| row % TEST_EVERY == TEST_EVERY - 1);
    Ok((all.select(&train), all.select(&test)))
}

impl Examples {
    /// The examples of these rows.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        Self {
            features: self.features.select(Axis(0), rows),
            targets: rows.iter().map(|&row| self.targets[row]).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }
}

/// Replaces labels by class numbers, in ascending order of the labels.
fn number_classes(train: &mut Examples, test: &mut Examples) -> Result<usize, String> {
    let mut labels = train.targets.clone();
    labels.sort_by(f32::total_cmp);
    labels.dedup();
    if labels.len() > 10_000 {
        return Err(format!("{} different labels; for numbers use the linear model", labels.len()));
    }
    for target in train.targets.iter_mut().chain(&mut test.targets) {
        // -0.0 and 0.0 are one label.
        let class = labels.iter().position(|label| *label == *target);
        *target = class.ok_or_else(|| format!("a test example has label {target}, no training example has"))? as f32;
    }
    Ok(labels.len())
}

/// Gives every feature mean 0 and standard deviation 1 over the training examples; constant ones become 0.
fn scale(train: &mut Array2<f32>, test: &mut Array2<f32>) {
    let rows = train.nrows() as f64;
    for (mut train, mut test) in train.columns_mut().into_iter().zip(test.columns_mut()) {
        let mean = train.iter().map(|x| f64::from(*x)).sum::<f64>() / rows;
        let variance = train.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / rows;
        let factor = if variance > 1e-20 { 1.0 / variance.sqrt() } else { 0.0 };
        let scaled = |x: &mut f32| *x = ((f64::from(*x) - mean) * factor) as f32;
        train.iter_mut().for_each(scaled);
        test.iter_mut().for_each(scaled);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_bundled_digits_are_there() {
        let all = table(DIGITS, LabelColumn::Last, None).unwrap();
        assert_eq!(all.features.dim(), (1797, 64));
        let (train, test) = split(&all).unwrap();
        assert_eq!((train.len(), test.len()), (1438, 359));
        let data = Dataset::new(train, test, ModelKind::Softmax).unwrap();
        assert_eq!(data.classes, 10);
        let column = data.train.features.column(20);
        assert!(column.mean().unwrap().abs() < 1e-4);
    }

    #[test]
    fn packed_and_plain_files_are_the_same() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(b"1,2,0\n3,4,1\n").unwrap();
        let packed = table(&packed.finish().unwrap()[..], LabelColumn::Last, None).unwrap();
        let plain = table(&b"1,2,0\n3,4,1\n"[..], LabelColumn::Last, None).unwrap();
        assert_eq!((packed.features, packed.targets), (plain.features, plain.targets));
        assert!(table(&[0x1f, 0x8b, 1, 2, 3][..], LabelColumn::Last, None).is_err());
        assert!(table(&[0xff, 0xfe][..], LabelColumn::Last, None).unwrap_err().contains("not text"));
    }

    #[test]
    fn labels_become_classes() {
        let examples =
            |targets: &[f32]| Examples { features: Array2::zeros((targets.len(), 1)), targets: targets.to_vec() };
        let data = Dataset::new(examples(&[1.0, -1.0, 1.0]), examples(&[-1.0]), ModelKind::Logistic).unwrap();
        assert_eq!((data.train.targets, data.test.targets), (vec![1.0, 0.0, 1.0], vec![0.0]));
        assert!(Dataset::new(examples(&[1.0, 2.0, 3.0]), examples(&[1.0]), ModelKind::Logistic).is_err());
        assert!(Dataset::new(examples(&[1.0, 2.0]), examples(&[5.0]), ModelKind::Softmax).is_err());
        assert!(Dataset::new(examples(&[1.0, 1.0]), examples(&[1.0]), ModelKind::Mlp).is_err());
    }
}
