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
        let sizes = parameters.iter().map(|parameter| parameter.shape[0].checked_mul(parameter.shape[1]));
        let size = sizes.fold(Some(0_usize), |sum, size| sum?.checked_add(size?));
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
        let examples = examples.len().max(1) as f64;
        let is_classifier = self.kind != ModelKind::Linear;
        Score { loss: loss / examples, accuracy: is_classifier.then_some(right as f64 / examples) }
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
mod tests {
    use super::*;

    fn examples(kind: ModelKind) -> Examples {
        let mut random = fastrand::Rng::with_seed(7);
        let features = Array2::from_shape_simple_fn([6, 4], || random.f32() * 2.0 - 1.0);
        let targets: &[f64] = match kind {
            ModelKind::Linear => &[0.5, -1.0, 2.0, 0.0, 1.5, -0.5],
            ModelKind::Logistic => &[0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
            ModelKind::Softmax | ModelKind::Mlp => &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0],
        };
        Examples { features, targets: targets.to_vec() }
    }

    /// Every component against the difference quotient of the loss.
    #[test]
    fn gradients_are_the_derivatives_of_the_loss() {
        for kind in [ModelKind::Linear, ModelKind::Logistic, ModelKind::Softmax, ModelKind::Mlp] {
            let examples = examples(kind);
            let model = Model::new(kind, 4, 3, 5).unwrap();
            let mut random = fastrand::Rng::with_seed(3);
            let mut values = model.start(1);
            values.iter_mut().for_each(|value| value.mapv_inplace(|v| v + (random.f32() - 0.5) * 0.5));
            let (gradients, _) = model.gradient(&values, &examples);
            for (index, gradient) in gradients.iter().enumerate() {
                for (place, found) in gradient.indexed_iter() {
                    let step = 1e-2_f32;
                    let mut loss_at = |offset: f32| {
                        let old = values[index][place];
                        values[index][place] = old + offset;
                        let (_, loss) = model.gradient(&values, &examples);
                        values[index][place] = old;
                        loss
                    };
                    let expected = (loss_at(step) - loss_at(-step)) / f64::from(2.0 * step);
                    let close = (expected - f64::from(*found)).abs() < 0.02 * expected.abs().max(1.0);
                    assert!(close, "{kind:?} {} {place:?}: {found}, expected {expected}", model.parameters[index].name);
                }
            }
        }
    }

    /// The loss of a softmax model whose scores for the single example are `scores`.
    fn loss_of(scores: &[f32], class: f64) -> f64 {
        let model = Model::new(ModelKind::Softmax, 1, scores.len(), 0).unwrap();
        let bias = Array2::from_shape_vec([1, scores.len()], scores.to_vec()).unwrap();
        let examples = Examples { features: Array2::zeros([1, 1]), targets: vec![class] };
        model.score(&[Array2::zeros([1, scores.len()]), bias], &examples).loss
    }

    #[test]
    fn losses_far_from_the_target_are_exact() {
        assert!((loss_of(&[7.0, 7.0, 7.0], 1.0) - 3.0_f64.ln()).abs() < 1e-6);
        assert_eq!(loss_of(&[1000.0, -1000.0], 1.0), 2000.0);
        assert_eq!(loss_of(&[1000.0, -1000.0], 0.0), 0.0);
    }

    #[test]
    fn what_is_not_a_number_stays_visible() {
        assert!(loss_of(&[f32::NAN, 0.0], 1.0).is_nan());
        let examples = examples(ModelKind::Mlp);
        let model = Model::new(ModelKind::Mlp, 4, 3, 5).unwrap();
        let mut values = model.start(1);
        values[0][[0, 0]] = f32::NAN;
        assert!(model.score(&values, &examples).loss.is_nan());
        assert!(model.gradient(&values, &examples).1.is_nan());
    }

    #[test]
    fn models_that_do_not_fit_are_refused() {
        let error = Model::new(ModelKind::Mlp, 9_000_000, 2, 1_000_000).unwrap_err().to_string();
        assert!(error.contains("9000000 features") && error.contains("1000000 hidden units"), "{error}");
        assert!(Model::new(ModelKind::Mlp, usize::MAX, 2, usize::MAX).is_err());
    }

    #[test]
    fn scores_do_not_depend_on_chunks() {
        let one = examples(ModelKind::Softmax);
        let rows: Vec<usize> = (0..SCORED_AT_ONCE + 10).map(|row| row % one.len()).collect();
        let many = one.select(&rows);
        let model = Model::new(ModelKind::Softmax, 4, 3, 0).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        let values: Vec<_> = model.start(1).iter().map(|value| value.mapv(|_| random.f32() - 0.5)).collect();
        let Score { loss, accuracy } = model.score(&values, &many);
        assert!((loss - model.gradient(&values, &many).1 / many.len() as f64).abs() < 1e-6);
        let single = |row: usize| model.score(&values, &one.select(&[row])).accuracy.unwrap();
        let right: f64 = rows.iter().map(|row| single(*row)).sum();
        assert!((accuracy.unwrap() - right / many.len() as f64).abs() < 1e-12);
    }

    #[test]
    fn no_examples_give_zero_gradients() {
        let model = Model::new(ModelKind::Mlp, 4, 3, 5).unwrap();
        let none = examples(ModelKind::Mlp).select(&[]);
        let (gradients, loss) = model.gradient(&model.start(1), &none);
        assert_eq!(loss, 0.0);
        for (gradient, parameter) in gradients.iter().zip(model.parameters()) {
            assert_eq!(gradient.shape(), parameter.shape);
            assert!(gradient.iter().all(|g| *g == 0.0));
        }
    }

    #[test]
    fn tensors_keep_values_and_shape() {
        let model = Model::new(ModelKind::Mlp, 4, 3, 5).unwrap();
        for (value, parameter) in model.start(9).iter().zip(model.parameters()) {
            assert_eq!(from_tensor(&to_tensor(value).unwrap(), parameter).unwrap(), *value);
        }
    }
}
