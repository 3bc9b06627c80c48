//! Stochastic gradient descent with momentum.

use kv_core::updater::{Slice, SliceMut, State, Step, Updater};
use kv_core::wire::UpdaterSpec;
use kv_core::{DType, Error};
use serde::{Deserialize, Serialize};

use crate::Optimizer;
use crate::spec::{Settings, encode, in_range};

/// Name on the wire.
pub(crate) const NAME: &str = "sgd";

/// SGD: `d = clip(rescale_grad * g) + wd * w`, then
/// `w -= learning_rate * d` without momentum, or
/// `m = momentum * m - learning_rate * d; w += m` with it.
///
/// The formula, its order (clip, then weight decay) and the defaults are those of MXNet's `SGD`; the default learning
/// rate is 0.01. Values of type f32 and f64 are updated in their own precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    learning_rate: f64,
    momentum: f64,
    wd: f64,
    rescale_grad: f64,
    clip_gradient: Option<f64>,
}

impl Default for Sgd {
    fn default() -> Self {
        Self::new(0.01)
    }
}

impl Sgd {
    /// Plain SGD. `learning_rate` is a finite number >= 0.
    #[must_use]
    pub fn new(learning_rate: f64) -> Self {
        Self { learning_rate, momentum: 0.0, wd: 0.0, rescale_grad: 1.0, clip_gradient: None }
    }

    /// Sets the momentum, in `[0, 1)`.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Sets the weight decay, >= 0.
    #[must_use]
    pub fn wd(self, wd: f64) -> Self {
        Self { wd, ..self }
    }

    /// Multiplies every gradient; any finite number.
    #[must_use]
    pub fn rescale_grad(self, rescale_grad: f64) -> Self {
        Self { rescale_grad, ..self }
    }

    /// Cuts every rescaled gradient to `[-limit, limit]`, `limit` > 0.
    #[must_use]
    pub fn clip_gradient(self, limit: f64) -> Self {
        Self { clip_gradient: Some(limit), ..self }
    }
}

impl Optimizer for Sgd {
    fn spec(&self) -> Result<UpdaterSpec, Error> {
        encode(NAME, self)
    }
}

impl Settings for Sgd {
    fn check(&self) -> Result<(), String> {
        in_range("learning_rate", self.learning_rate, 0.0, f64::INFINITY)?;
        in_range("momentum", self.momentum, 0.0, 1.0)?;
        in_range("wd", self.wd, 0.0, f64::INFINITY)?;
        if !self.rescale_grad.is_finite() {
            return Err(format!("rescale_grad is {}, it must be a finite number", self.rescale_grad));
        }
        match self.clip_gradient {
            Some(limit) if limit.is_nan() || limit <= 0.0 => {
                Err(format!("clip_gradient is {limit}, it must be a number > 0"))
            }
            _ => Ok(()),
        }
    }
}

/// One update of a slice; a function of its own so that the loop sees plain slices.
macro_rules! kernel {
    ($name:ident, $float:ty) => {
        fn $name(sgd: &Sgd, weight: &mut [$float], momentum: Option<&mut [$float]>, gradient: &[$float]) {
            #[allow(clippy::cast_possible_truncation, reason = "settings are used in the value's precision")]
            let [lr, mom, wd, rescale, clip] =
                [sgd.learning_rate, sgd.momentum, sgd.wd, sgd.rescale_grad, sgd.clip_gradient.unwrap_or(f64::INFINITY)]
                    .map(|setting| setting as $float);
            // `clamp` keeps a NaN a NaN; `max` and `min` would hide it.
            let direction = |w: $float, g: $float| (rescale * g).clamp(-clip, clip) + wd * w;
            match momentum {
                None => {
                    for (w, g) in weight.iter_mut().zip(gradient) {
                        *w -= lr * direction(*w, *g);
                    }
                }
                Some(momentum) => {
                    for ((w, m), g) in weight.iter_mut().zip(momentum).zip(gradient) {
                        *m = mom * *m - lr * direction(*w, *g);
                        *w += *m;
                    }
                }
            }
        }
    };
}
kernel!(update_f32, f32);
kernel!(update_f64, f64);

impl Updater for Sgd {
    fn update(
        &self,
        step: &Step<'_>,
        weight: SliceMut<'_>,
        state: &mut State,
        gradient: Slice<'_>,
    ) -> Result<(), String> {
        /// The typed slices of an update.
        macro_rules! run {
            ($float:ty, $kernel:ident) => {{
                let weight = weight.elements::<$float>().map_err(|error| error.to_string())?;
                let gradient = gradient.elements::<$float>().map_err(|error| error.to_string())?;
                let momentum = (self.momentum != 0.0).then(|| state.slot::<$float>(0, weight.len()));
                $kernel(self, weight, momentum, gradient);
                Ok(())
            }};
        }
        match weight.dtype() {
            DType::F32 => run!(f32, update_f32),
            DType::F64 => run!(f64, update_f64),
            other => Err(format!("sgd updates f32 and f64 values; key {} is {other}", step.meta.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_core::driver::LocalStore;
    use kv_core::machine::{Op, Outcome, Value};
    use kv_core::updater::UpdaterRegistry;
    use kv_core::{AsTensor, Element, Key, Tensor};

    use super::*;

    /// Runs pushes of `gradients` on a value that starts at `weight`, through the store.
    fn run<T: Element>(sgd: &Sgd, weight: &[T], gradients: &[&[T]]) -> Vec<T> {
        let mut registry = UpdaterRegistry::default();
        crate::register(&mut registry);
        let mut store = LocalStore::new(registry.into());
        let key = Key::from("w");
        store.call(Op::Init(vec![(key.clone(), Tensor::new(&[weight.len()], weight).unwrap())])).unwrap();
        store.call(Op::SetUpdater(sgd.spec().unwrap())).unwrap();
        for gradient in gradients {
            store.call(Op::Push(vec![(key.clone(), Value::from(gradient.as_tensor()))])).unwrap();
        }
        match store.call(Op::Pull(vec![key])).unwrap() {
            Outcome::Values(values) => values[0].to_vec().unwrap(),
            Outcome::Done => panic!("a pull gives values"),
        }
    }

    #[test]
    fn the_default_moves_zero_by_a_hundredth() {
        assert_eq!(run(&Sgd::default(), &[0.0_f32], &[&[1.0]]), [-0.01]);
    }

    #[test]
    fn momentum_by_hand() {
        // m1 = -0.5*2 = -1, w1 = 9; m2 = 0.5*-1 - 0.5*4 = -2.5, w2 = 6.5
        assert_eq!(run(&Sgd::new(0.5).momentum(0.5), &[10.0_f64], &[&[2.0], &[4.0]]), [6.5]);
    }

    #[test]
    fn rescale_then_clip_then_decay() {
        // rescale: 10 -> 5, clip: 1, decay: 1 + 0.5*4 = 3, w = 4 - 0.1*3
        let sgd = Sgd::new(0.1).rescale_grad(0.5).clip_gradient(1.0).wd(0.5);
        assert_eq!(run(&sgd, &[4.0_f64], &[&[10.0]]), [4.0 - 0.1 * 3.0]);
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        for (sgd, name) in [
            (Sgd::new(-0.1), "learning_rate"),
            (Sgd::new(f64::NAN), "learning_rate"),
            (Sgd::new(0.1).momentum(1.0), "momentum"),
            (Sgd::new(0.1).wd(f64::INFINITY), "wd"),
            (Sgd::new(0.1).rescale_grad(f64::NAN), "rescale_grad"),
            (Sgd::new(0.1).clip_gradient(0.0), "clip_gradient"),
        ] {
            let error = sgd.spec().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn foreign_settings_are_refused() {
        let good = Sgd::new(0.1).momentum(0.9).spec().unwrap().settings;
        let decode = crate::spec::decode::<Sgd>;
        assert!(decode(&good).is_ok());
        let err = |text: &str| decode(text).err().unwrap();
        assert!(err(&good.replace("\"version\":1", "\"version\":2")).contains("version 2"));
        assert!(err(&good.replace("\"wd\"", "\"weight_decay\"")).contains("weight_decay"));
        assert!(err(&good.replace("0.9", "1.9")).contains("momentum"));
        for text in ["", "{}", "null", "[]", "{\"version\":1}", "\u{0}"] {
            assert!(decode(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn settings_round_trip(lr in 0.0..10.0_f64, momentum in 0.0..1.0_f64, wd in 0.0..1.0_f64) {
            let sgd = Sgd::new(lr).momentum(momentum).wd(wd);
            let text = sgd.spec().unwrap().settings;
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let back: Sgd = serde_json::from_value(value["settings"].clone()).unwrap();
            proptest::prop_assert_eq!(back, sgd);
        }
    }
}
