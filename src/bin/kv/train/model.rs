//! Models: named parameters, the gradient of a batch, and how good they are.

use kv::{Error, Tensor};
use ndarray::{Array2, ArrayView1, ArrayView2, Axis, s};

use super::args::ModelKind;
use super::dataset::Examples;

/// Most parameters of a model: 2 GiB of them, and as much for their gradient.
const PARAMETERS_MAX: usize = 1 << 29;

/// Examples that are scored at once: bounds the memory for what the layers give.
const SCORED_AT_ONCE: usize = 1024;

/// A model without its parameters.
#[derive(Clone, Debug)]
pub(super) struct Model {
    kind: ModelKind,
    parameters: Vec<Parameter>,
}

/// A named array.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// Rows and columns; a bias has one row.
    pub(super) shape: [usize; 2],
}

/// How good a model is on some examples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score {
    /// Mean loss per example: half the squared error, or the cross entropy in nats.
    pub(super) loss: f64,
    /// Share of examples whose class is predicted; `None` when numbers are predicted.
    pub(super) accuracy: Option<f64>,
    /// Share of the variance that is explained, at most 1; `None` when classes are predicted or nothing varies.
    pub(super) r2: Option<f64>,
}

impl Model {
    /// A model for this many features and classes (0 classes: one number).
    ///
    /// # Errors
    /// It would have more parameters than fit.
    pub(super) fn new(kind: ModelKind, features: usize, classes: usize, hidden: usize) -> Result<Self, Error> {
        let layer = |weight, bias, inputs, outputs| {
            [Parameter { name: weight, shape: [inputs, outputs] }, Parameter { name: bias, shape: [1, outputs] }]
        };
        let parameters = match kind {
            ModelKind::Linear | ModelKind::Logistic => layer("weight", "bias", features, 1).to_vec(),
            ModelKind::Softmax => layer("weight", "bias", features, classes).to_vec(),
            ModelKind::Mlp => {
                let mut layers = layer("hidden.weight", "hidden.bias", features, hidden).to_vec();
                layers.extend(layer("output.weight", "output.bias", hidden, classes));
                layers
            }
        };
        let size = parameters.iter().try_fold(0_usize, |sum, Parameter { shape: [rows, columns], .. }| {
            sum.checked_add(rows.checked_mul(*columns)?)
        });
        match size {
            Some(..=PARAMETERS_MAX) => Ok(Self { kind, parameters }),
            _ => {
                let found = format!("{features} features, {classes} classes and {hidden} hidden units give more");
                Err(Error::Config(format!("a model has at most {PARAMETERS_MAX} parameters; {found}")))
            }
        }
    }

    pub(super) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.parameters.iter().map(|parameter| parameter.name)
    }

    /// Number of all parameters together.
    pub(super) fn size(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.shape[0] * parameter.shape[1]).sum()
    }

    /// Start values, the same for the same seed: biases 0; weights 0 where the loss is convex, else uniform by the
    /// number of inputs (He).
    pub(super) fn start(&self, seed: u64) -> Vec<Array2<f32>> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut values = Vec::new();
        for parameter in &self.parameters {
            let bound = (6.0 / parameter.shape[0] as f32).sqrt();
            let zero = self.kind != ModelKind::Mlp || parameter.name.ends_with("bias");
            let value = || if zero { 0.0 } else { (random.f32() * 2.0 - 1.0) * bound };
            values.push(Array2::from_shape_simple_fn(parameter.shape, value));
        }
        values
    }

    /// The gradient of the summed loss over the examples, one array per parameter, and that loss. No example gives
    /// zeros.
    pub(super) fn gradient(&self, values: &[Array2<f32>], examples: &Examples) -> (Vec<Array2<f32>>, f64) {
        let x = examples.features.view();
        let (hidden, output) = self.forward(values, x);
        let (delta, loss) = self.delta(output, &examples.targets);
        let mut gradients = Vec::with_capacity(values.len());
        let input = match &hidden {
            Some(hidden) => {
                // Through the output layer, where the rectifier was open.
                let mut back = delta.dot(&values[2].t());
                back.zip_mut_with(hidden, |back, h| {
                    if *h <= 0.0 {
                        *back = 0.0;
                    }
                });
                gradients.push(x.t().dot(&back));
                gradients.push(column_sums(&back));
                hidden.view()
            }
            None => x,
        };
        gradients.push(input.t().dot(&delta));
        gradients.push(column_sums(&delta));
        (gradients, loss)
    }

    /// How good the model is.
    pub(super) fn score(&self, values: &[Array2<f32>], examples: &Examples) -> Score {
        let (mut loss, mut right) = (0.0, 0);
        for (chunk, targets) in examples.targets.chunks(SCORED_AT_ONCE).enumerate() {
            let start = chunk * SCORED_AT_ONCE;
            let (_, output) = self.forward(values, examples.features.slice(s![start..start + targets.len(), ..]));
            right +=
                output.rows().into_iter().zip(targets).filter(|(row, target)| self.predict(row) == **target).count();
            loss += self.delta(output, targets).1;
        }
        let count = examples.len().max(1) as f64;
        let loss = loss / count;
        if self.kind == ModelKind::Linear {
            let variance = variance(&examples.targets);
            let r2 = (variance > 0.0).then(|| 1.0 - 2.0 * loss / variance);
            return Score { loss, accuracy: None, r2 };
        }
        Score { loss, accuracy: Some(right as f64 / count), r2: None }
    }

    fn predict(&self, row: &ArrayView1<'_, f32>) -> f64 {
        if self.kind == ModelKind::Logistic {
            return f64::from(u8::from(row[0] > 0.0));
        }
        let mut best = 0;
        for (class, score) in row.iter().enumerate() {
            if *score > row[best] {
                best = class;
            }
        }
        best as f64
    }

    /// The hidden layer, if there is one, and the output before its loss.
    fn forward(&self, values: &[Array2<f32>], x: ArrayView2<'_, f32>) -> (Option<Array2<f32>>, Array2<f32>) {
        if self.kind != ModelKind::Mlp {
            return (None, x.dot(&values[0]) + &values[1]);
        }
        let mut hidden = x.dot(&values[0]) + &values[1];
        // Not `max`, which makes 0 of a NaN and hides that the training has diverged.
        hidden.mapv_inplace(|h| if h < 0.0 { 0.0 } else { h });
        let output = hidden.dot(&values[2]) + &values[3];
        (Some(hidden), output)
    }

    /// The derivative of the summed loss by the output, and the loss.
    fn delta(&self, mut output: Array2<f32>, targets: &[f64]) -> (Array2<f32>, f64) {
        let mut loss = 0.0;
        for (mut row, target) in output.rows_mut().into_iter().zip(targets) {
            match self.kind {
                ModelKind::Linear => {
                    row[0] -= *target as f32;
                    loss += 0.5 * f64::from(row[0]).powi(2);
                }
                ModelKind::Logistic => {
                    let (z, target) = (row[0], *target as f32);
                    // log(1 + e^z) without overflow.
                    loss += f64::from(z.max(0.0) + (-z.abs()).exp().ln_1p() - target * z);
                    row[0] = 1.0 / (1.0 + (-z).exp()) - target;
                }
                ModelKind::Softmax | ModelKind::Mlp => {
                    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let class = *target as usize;
                    let below_max = max - row[class];
                    row.mapv_inplace(|z| (z - max).exp());
                    let sum = row.sum();
                    // The logarithm of the probability itself would be that of 0 for a class that is far from it.
                    loss += f64::from(below_max + sum.ln());
                    row.mapv_inplace(|e| e / sum);
                    row[class] -= 1.0;
                }
            }
        }
        (output, loss)
    }
}

fn variance(values: &[f64]) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count
}

fn column_sums(of: &Array2<f32>) -> Array2<f32> {
    of.sum_axis(Axis(0)).insert_axis(Axis(0))
}

/// A parameter's values as the store takes them.
pub(super) fn to_tensor(values: &Array2<f32>) -> Result<Tensor, Error> {
    let values = values.as_standard_layout();
    Tensor::new(values.shape(), values.as_slice().unwrap_or_default())
}

/// A parameter's values as the store gives them.
pub(super) fn from_tensor(tensor: &Tensor, parameter: &Parameter) -> Result<Array2<f32>, Error> {
    let fit = |error: ndarray::ShapeError| Error::Protocol(format!("{}: {error}", parameter.name));
    Array2::from_shape_vec(parameter.shape, tensor.to_vec()?).map_err(fit)
}

#[cfg(test)]
mod tests;
