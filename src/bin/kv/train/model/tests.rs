use super::*;

const KINDS: [ModelKind; 4] = [ModelKind::Linear, ModelKind::Logistic, ModelKind::Softmax, ModelKind::Mlp];

/// A model for [`examples`] with random parameters.
fn random_model(kind: ModelKind, seed: u64) -> (Model, Vec<Array2<f32>>) {
    let model = Model::new(kind, 4, 3, 5).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let values = model.start(1).iter().map(|value| value.mapv(|_| random.f32() * 2.0 - 1.0)).collect();
    (model, values)
}

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

/// The summed loss by its textbook formula in f64, one number at a time: nothing here is shared with the model.
fn reference_loss(kind: ModelKind, values: &[Array2<f64>], examples: &Examples) -> f64 {
    let mut sum = 0.0;
    for (row, target) in examples.features.rows().into_iter().zip(&examples.targets) {
        let mut numbers: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        for (index, layer) in values.chunks(2).enumerate() {
            let inputs: Vec<f64> = numbers.iter().map(|x| if index == 0 { *x } else { x.max(0.0) }).collect();
            let output = |column: usize| {
                let dot: f64 = inputs.iter().enumerate().map(|(row, x)| x * layer[0][[row, column]]).sum();
                dot + layer[1][[0, column]]
            };
            numbers = (0..layer[0].ncols()).map(output).collect();
        }
        sum += match kind {
            ModelKind::Linear => (numbers[0] - target).powi(2) / 2.0,
            ModelKind::Logistic => {
                let probability = 1.0 / (1.0 + (-numbers[0]).exp());
                -(target * probability.ln() + (1.0 - target) * (1.0 - probability).ln())
            }
            ModelKind::Softmax | ModelKind::Mlp => {
                let total: f64 = numbers.iter().map(|score| score.exp()).sum();
                -(numbers[*target as usize].exp() / total).ln()
            }
        };
    }
    sum
}

/// Every component against the difference quotient of the reference loss.
#[test]
fn gradients_are_the_derivatives_of_the_loss() {
    const STEP: f64 = 1e-5;
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| [1, 2, 3].map(|seed| (kind, seed))) {
        let examples = examples(kind);
        let (model, values) = random_model(kind, seed);
        let (gradients, loss) = model.gradient(&values, &examples);
        let mut wide: Vec<Array2<f64>> = values.iter().map(|value| value.mapv(f64::from)).collect();
        let expected = reference_loss(kind, &wide, &examples);
        assert!((loss - expected).abs() < 1e-5 * expected.max(1.0), "{kind:?}: loss {loss}, expected {expected}");
        for (index, gradient) in gradients.iter().enumerate() {
            for (place, found) in gradient.indexed_iter() {
                let old = wide[index][place];
                let mut loss_at = |value: f64| {
                    wide[index][place] = value;
                    reference_loss(kind, &wide, &examples)
                };
                let expected = (loss_at(old + STEP) - loss_at(old - STEP)) / (2.0 * STEP);
                wide[index][place] = old;
                let close = (expected - f64::from(*found)).abs() < 1e-4 * expected.abs().max(1.0);
                assert!(close, "{kind:?} {} {place:?}: {found}, expected {expected}", model.parameters[index].name);
            }
        }
    }
}

#[test]
fn gradients_of_shares_add_up() {
    for kind in KINDS {
        let (examples, (model, values)) = (examples(kind), random_model(kind, 4));
        let (whole, loss) = model.gradient(&values, &examples);
        let (one, one_loss) = model.gradient(&values, &examples.select(&[0, 1]));
        let (other, other_loss) = model.gradient(&values, &examples.select(&[2, 3, 4, 5]));
        assert!((one_loss + other_loss - loss).abs() < 1e-5);
        for ((whole, one), other) in whole.iter().zip(&one).zip(&other) {
            assert!((one + other - whole).iter().all(|difference| difference.abs() < 1e-5), "{kind:?}");
        }
    }
}

#[test]
fn the_same_examples_give_the_same_bits() {
    for kind in KINDS {
        for count in [1, 2, 16, 33] {
            let rows: Vec<usize> = (0..count).map(|row| row % 6).collect();
            let (model, values) = random_model(kind, 6);
            let (one, loss) = model.gradient(&values, &examples(kind).select(&rows));
            // Other memory, other alignment.
            let _between = Box::new([0_u8; 13]);
            let (other, other_loss) = model.gradient(&values.clone(), &examples(kind).select(&rows));
            assert_eq!((one, loss.to_bits()), (other, other_loss.to_bits()));
        }
    }
}

#[test]
fn a_perfect_line_explains_everything() {
    let mut examples = examples(ModelKind::Linear);
    let (model, mut values) = random_model(ModelKind::Linear, 8);
    let (_, predictions) = model.forward(&values, examples.features.view());
    examples.targets = predictions.iter().map(|prediction| f64::from(*prediction)).collect();
    assert_eq!(model.score(&values, &examples), Score { loss: 0.0, accuracy: None, r2: Some(1.0) });
    values.iter_mut().for_each(|value| value.fill(0.0));
    assert!(model.score(&values, &examples).r2.unwrap() <= 0.0);
    examples.targets.fill(3.0);
    assert_eq!(model.score(&values, &examples).r2, None);
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
    let Score { loss, accuracy, .. } = model.score(&values, &many);
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
