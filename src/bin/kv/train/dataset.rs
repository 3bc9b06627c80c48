//! Training and test examples: read, split, labelled with classes, scaled.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use kv::Error;
use ndarray::{Array2, Axis};

use super::args::{Args, LabelColumn, ModelKind};
use super::parse::{Layout, Table, parse};

/// UCI optical recognition of handwritten digits; see `data/README.md` for source and licence.
const DIGITS: &[u8] = include_bytes!("../../../../data/digits.csv.gz");

/// What errors call it.
const DIGITS_NAME: &str = "the bundled digits";

/// Longest file read, in bytes after decompression: a small one that unpacks without end must not fill the memory.
const TEXT_BYTES_MAX: u64 = 8 << 30;

/// Every `TEST_EVERY`-th example is for testing when there is no file for it.
const TEST_EVERY: usize = 5;

/// Largest scaled feature, in standard deviations: one that never varied much in training must not drown all others.
const SCALED_MAX: f32 = 5.0;

/// Most classes of a data set; so many different labels are numbers to be predicted.
const CLASSES_MAX: usize = 10_000;

/// A table of examples.
#[derive(Clone, Debug)]
pub(super) struct Examples {
    /// One row per example.
    pub(super) features: Array2<f32>,
    /// The number of its class, or the number to be predicted.
    pub(super) targets: Vec<f64>,
}

/// What a model is trained and tested on.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    pub(super) train: Examples,
    pub(super) test: Examples,
    /// The labels by class number, ascending; none when numbers are predicted.
    pub(super) classes: Vec<f64>,
    /// What was done to the features.
    pub(super) scaling: Scaling,
}

impl Dataset {
    /// Reads what the flags name.
    pub(super) fn load(args: &Args) -> Result<Self, Error> {
        let read = |path: &Path| {
            let file = File::open(path).map_err(|error| error.to_string())?;
            table(BufReader::new(file), args.label)
        };
        let named = |path: &Path, problem: String| Error::Config(format!("{}: {problem}", path.display()));
        let data_path = args.data.as_deref().unwrap_or(Path::new(DIGITS_NAME));
        let data = match &args.data {
            Some(path) => read(path),
            None => table(DIGITS, LabelColumn::Last),
        };
        let data = data.map_err(|problem| named(data_path, problem))?;
        let test = match &args.test {
            Some(path) => Some((path, read(path).map_err(|problem| named(path, problem))?)),
            None => None,
        };
        let tables: Vec<&Table> = std::iter::once(&data).chain(test.as_ref().map(|(_, table)| table)).collect();
        let layout = Layout::of(&tables, args.features.map(|features| features as usize));
        let data = Examples::new(&data, layout).map_err(|problem| named(data_path, problem))?;
        let (train, test) = match test {
            Some((path, table)) => (data, Examples::new(&table, layout).map_err(|problem| named(path, problem))?),
            None => split(&data)?,
        };
        Self::new(train, test, args.model).map_err(Error::Config)
    }

    /// The bundled digits.
    #[cfg(test)]
    pub(super) fn digits(model: ModelKind) -> Self {
        let table = table(DIGITS, LabelColumn::Last).unwrap();
        let (train, test) = split(&Examples::new(&table, Layout::of(&[&table], None)).unwrap()).unwrap();
        Self::new(train, test, model).unwrap()
    }

    fn new(mut train: Examples, mut test: Examples, model: ModelKind) -> Result<Self, String> {
        let classes = match model {
            ModelKind::Linear => {
                check_numbers(train.targets.iter().chain(&test.targets))?;
                Vec::new()
            }
            ModelKind::Logistic | ModelKind::Softmax | ModelKind::Mlp => number_classes(&mut train, &mut test)?,
        };
        match (model, classes.len()) {
            (ModelKind::Logistic, n) if n != 2 => {
                return Err(format!("a logistic model needs labels of 2 classes, found {n}"));
            }
            (ModelKind::Softmax | ModelKind::Mlp, 0 | 1) => {
                return Err("all labels are the same; there is nothing to tell apart".to_owned());
            }
            _ => {}
        }
        let scaling = Scaling::of(&train.features);
        scaling.apply(&mut train.features);
        scaling.apply(&mut test.features);
        Ok(Self { train, test, classes, scaling })
    }
}

fn table(source: impl Read, label: LabelColumn) -> Result<Table, String> {
    parse(&text(source)?, label)
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
    fn new(table: &Table, layout: Layout) -> Result<Self, String> {
        let shape = (table.labels.len(), layout.width());
        let features = Array2::from_shape_vec(shape, table.features(layout)?).map_err(|error| error.to_string())?;
        Ok(Self { features, targets: table.labels.clone() })
    }

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

/// Models compute in f32.
fn check_numbers<'a>(mut targets: impl Iterator<Item = &'a f64>) -> Result<(), String> {
    match targets.find(|target| !(**target as f32).is_finite()) {
        Some(target) => Err(format!("a linear model needs labels up to {:e}, found {target:e}", f32::MAX)),
        None => Ok(()),
    }
}

/// Replaces labels by class numbers, in ascending order of the labels; returns the labels by class number.
fn number_classes(train: &mut Examples, test: &mut Examples) -> Result<Vec<f64>, String> {
    // Adding 0.0 makes the two zeros one label.
    let mut labels: Vec<f64> = train.targets.iter().map(|label| label + 0.0).collect();
    labels.sort_by(f64::total_cmp);
    labels.dedup();
    if labels.len() > CLASSES_MAX {
        return Err(format!("{} different labels; for numbers use the linear model", labels.len()));
    }
    for target in train.targets.iter_mut().chain(&mut test.targets) {
        let class = labels.binary_search_by(|label| label.total_cmp(&(*target + 0.0)));
        *target = class.map_err(|_| format!("a test example has label {target}, no training example has"))? as f64;
    }
    Ok(labels)
}

/// Brings features to one size: `(x - mean) * factor`, within the finite numbers.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    /// Per feature, over the training examples.
    pub(super) mean: Vec<f32>,
    /// Per feature: one over the standard deviation; 0 for a feature that does not vary.
    pub(super) factor: Vec<f32>,
}

impl Scaling {
    /// What gives every feature of `train` mean 0 and standard deviation 1.
    fn of(train: &Array2<f32>) -> Self {
        let rows = train.nrows() as f64;
        let columns = train.columns().into_iter().map(|column| {
            let mean = column.iter().map(|x| f64::from(*x)).sum::<f64>() / rows;
            let variance = column.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / rows;
            // Less than f32 can tell apart around the mean is rounding of the mean, not a feature that varies.
            let varies = variance.sqrt() > mean.abs() * f64::from(f32::EPSILON);
            let factor = if varies { variance.sqrt().recip() as f32 } else { 0.0 };
            (mean as f32, if factor.is_finite() { factor } else { 0.0 })
        });
        let (mean, factor) = columns.unzip();
        Self { mean, factor }
    }

    fn apply(&self, features: &mut Array2<f32>) {
        let max = f64::from(SCALED_MAX);
        for (mut column, (mean, factor)) in features.columns_mut().into_iter().zip(self.mean.iter().zip(&self.factor)) {
            let scaled = |x: f32| (f64::from(x) - f64::from(*mean)) * f64::from(*factor);
            column.mapv_inplace(|x| scaled(x).clamp(-max, max) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_bundled_digits_are_there() {
        let data = Dataset::digits(ModelKind::Softmax);
        assert_eq!(data.train.features.dim(), (1438, 64));
        assert_eq!(data.test.features.dim(), (359, 64));
        assert_eq!(data.classes, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        let column = data.train.features.column(20);
        assert!(column.mean().unwrap().abs() < 1e-4);
    }

    #[test]
    fn packed_and_plain_files_are_the_same() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(b"1,2,0\n3,4,1\n").unwrap();
        let packed = table(&packed.finish().unwrap()[..], LabelColumn::Last).unwrap();
        assert_eq!(packed, table(&b"1,2,0\n3,4,1\n"[..], LabelColumn::Last).unwrap());
        assert!(table(&[0x1f, 0x8b, 1, 2, 3][..], LabelColumn::Last).is_err());
        assert!(table(&[0xff, 0xfe][..], LabelColumn::Last).unwrap_err().contains("not text"));
    }

    #[test]
    fn labels_become_classes() {
        let examples =
            |targets: &[f64]| Examples { features: Array2::zeros((targets.len(), 1)), targets: targets.to_vec() };
        let data = Dataset::new(examples(&[1.0, -1.0, 1.0]), examples(&[-1.0]), ModelKind::Logistic).unwrap();
        assert_eq!((data.train.targets, data.test.targets), (vec![1.0, 0.0, 1.0], vec![0.0]));
        let zeros = Dataset::new(examples(&[0.0, -0.0, 3.0]), examples(&[-0.0]), ModelKind::Logistic).unwrap();
        assert_eq!(zeros.train.targets, [0.0, 0.0, 1.0]);
        let large = examples(&[1e300, 0.0]);
        assert!(Dataset::new(large.clone(), large, ModelKind::Linear).unwrap_err().contains("1e300"));
        assert!(Dataset::new(examples(&[1.0, 2.0, 3.0]), examples(&[1.0]), ModelKind::Logistic).is_err());
        assert!(Dataset::new(examples(&[1.0, 2.0]), examples(&[5.0]), ModelKind::Softmax).is_err());
        assert!(Dataset::new(examples(&[1.0, 1.0]), examples(&[1.0]), ModelKind::Mlp).is_err());
    }
    #[test]
    fn features_are_brought_to_one_size() {
        let mut features = ndarray::array![[1.0, 7.0, 1e6], [3.0, 7.0, 2e6]];
        let scaling = Scaling::of(&features);
        scaling.apply(&mut features);
        assert_eq!(features, ndarray::array![[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]);
        let mut unusual = ndarray::array![[f32::MAX, 8.0, f32::MIN]];
        scaling.apply(&mut unusual);
        assert_eq!(unusual, ndarray::array![[SCALED_MAX, 0.0, -SCALED_MAX]]);
    }

    #[test]
    fn rounding_is_no_variation_and_extremes_stay_finite() {
        let same = Array2::from_elem([30, 1], 1_000_000_050.0_f32);
        assert_eq!(Scaling::of(&same).factor, [0.0]);
        let mut extreme = ndarray::array![[f32::MAX, f32::MIN_POSITIVE], [f32::MIN, 0.0], [f32::MAX, 1e-45]];
        Scaling::of(&extreme).apply(&mut extreme);
        assert!(extreme.iter().all(|x| x.is_finite()), "{extreme}");
    }
}
