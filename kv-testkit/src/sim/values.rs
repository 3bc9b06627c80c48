//! The numbers of a simulated job: what keys hold at first and what every worker pushes.
//!
//! Every element of every push is a pure function of (key, rank, index of the push, element), so an oracle can
//! compute what any set of pushes adds up to without having seen the run.

use kv_core::machine::Value;
use kv_core::{AsTensor, DType, Key, Tensor};

/// One element. Two are equal when their bits are.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A 64-bit integer.
    I64(i64),
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits(),
            (Self::I64(a), Self::I64(b)) => a == b,
            _ => false,
        }
    }
}

impl Number {
    /// The sum in the element's own arithmetic.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => Self::F32(a + b),
            (Self::F64(a), Self::F64(b)) => Self::F64(a + b),
            (Self::I64(a), Self::I64(b)) => Self::I64(a.wrapping_add(b)),
            (a, b) => panic!("{a:?} and {b:?} are elements of one key"),
        }
    }

    /// As a whole number, for the oracles that bracket exact sums.
    #[must_use]
    pub fn whole(self) -> i64 {
        match self {
            Self::F32(x) => x as i64,
            Self::F64(x) => x as i64,
            Self::I64(x) => x,
        }
    }

    fn of(dtype: DType, x: i64) -> Self {
        match dtype {
            DType::F32 => Self::F32(x as f32),
            DType::F64 => Self::F64(x as f64),
            _ => Self::I64(x),
        }
    }
}

/// One key of the job.
#[derive(Clone, Debug)]
pub struct KeySpec {
    /// The key.
    pub key: Key,
    /// f32, f64 or i64.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// Gradients whose sum depends on the order of addition; else small whole numbers, whose sum never does.
    pub wild: bool,
}

impl KeySpec {
    /// What rank 0 initialises it with.
    #[must_use]
    pub fn initial(&self) -> Vec<Number> {
        (0..self.len).map(|element| Number::of(self.dtype, (element % 17) as i64)).collect()
    }

    /// What `rank` pushes as its `index`-th push of this key.
    #[must_use]
    pub fn gradient(&self, rank: usize, index: usize) -> Vec<Number> {
        (0..self.len).map(|element| self.gradient_at(rank, index, element)).collect()
    }

    /// One element of [`KeySpec::gradient`].
    #[must_use]
    pub fn gradient_at(&self, rank: usize, index: usize, element: usize) -> Number {
        let hash = mix(mix(mix(self.key.id().0 ^ rank as u64) ^ index as u64) ^ element as u64);
        if !self.wild {
            return Number::of(self.dtype, 1 + (hash % 1000) as i64);
        }
        let mantissa = (hash % 2001) as f64 - 1000.0;
        let scale = 10_f64.powi((hash >> 20) as i32 % 13 - 6);
        match self.dtype {
            DType::F32 => Number::F32((mantissa * scale) as f32),
            DType::F64 => Number::F64(mantissa * scale * 1e7),
            _ => Number::I64(hash as i64),
        }
    }

    /// The numbers as a tensor.
    ///
    /// # Panics
    /// When they are not of this key.
    #[must_use]
    pub fn tensor(&self, numbers: &[Number]) -> Tensor {
        let shape = [numbers.len()];
        let tensor = match self.dtype {
            DType::F32 => Tensor::new(&shape, &pick(numbers, |n| if let Number::F32(x) = n { Some(x) } else { None })),
            DType::F64 => Tensor::new(&shape, &pick(numbers, |n| if let Number::F64(x) = n { Some(x) } else { None })),
            _ => Tensor::new(&shape, &pick(numbers, |n| if let Number::I64(x) = n { Some(x) } else { None })),
        };
        tensor.expect("the shape is the length")
    }

    /// The numbers as a value to push.
    #[must_use]
    pub fn value(&self, numbers: &[Number]) -> Value {
        Value::from(self.tensor(numbers).as_tensor())
    }
}

/// The elements of a pulled tensor; none for an element type that simulated keys do not have.
#[must_use]
pub fn numbers(tensor: &Tensor) -> Vec<Number> {
    let wrong = "the match gives the type";
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().expect(wrong).iter().map(|&x| Number::F32(x)).collect(),
        DType::F64 => tensor.as_slice::<f64>().expect(wrong).iter().map(|&x| Number::F64(x)).collect(),
        DType::I64 => tensor.as_slice::<i64>().expect(wrong).iter().map(|&x| Number::I64(x)).collect(),
        _ => Vec::new(),
    }
}

fn pick<T>(numbers: &[Number], as_type: impl Fn(Number) -> Option<T>) -> Vec<T> {
    numbers.iter().map(|number| as_type(*number).expect("all numbers of a key have its type")).collect()
}

/// Spreads bits (the finaliser of SplitMix64).
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_gradients_do_depend_on_the_order_of_addition() {
        let key = KeySpec { key: Key::from("w"), dtype: DType::F32, len: 100, wild: true };
        let orders = [[0, 1, 2], [2, 1, 0]];
        let [a, b] = orders.map(|order| {
            let parts: Vec<Vec<Number>> = order.iter().map(|&rank| key.gradient(rank, 0)).collect();
            (0..100).map(|e| parts[0][e].plus(parts[1][e]).plus(parts[2][e])).collect::<Vec<_>>()
        });
        assert_ne!(a, b);
    }

    #[test]
    fn tensors_round_trip() {
        for dtype in [DType::F32, DType::F64, DType::I64] {
            let key = KeySpec { key: Key::from("w"), dtype, len: 9, wild: false };
            assert_eq!(numbers(&key.tensor(&key.gradient(1, 2))), key.gradient(1, 2));
        }
    }
}
