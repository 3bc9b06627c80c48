//! Element types.

use std::fmt;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The element type of a value. The discriminants are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum DType {
    /// 32-bit IEEE float.
    F32 = 0,
    /// 64-bit IEEE float.
    F64 = 1,
    /// 16-bit IEEE float.
    F16 = 2,
    /// 16-bit brain float.
    BF16 = 3,
    /// 8-bit signed integer.
    I8 = 4,
    /// 8-bit unsigned integer.
    U8 = 5,
    /// 32-bit signed integer.
    I32 = 6,
    /// 64-bit signed integer.
    I64 = 7,
}

impl DType {
    /// Every element type, in wire order.
    pub const ALL: [Self; 8] = [Self::F32, Self::F64, Self::F16, Self::BF16, Self::I8, Self::U8, Self::I32, Self::I64];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The type with this wire code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The wire code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be an element of a value. Sealed: the set is the wire format's.
pub trait Element: bytemuck::Pod + sealed::Sealed + Send + Sync + fmt::Debug + PartialEq {
    /// Its element type.
    const DTYPE: DType;

    /// `self + other` as the sum of two contributions: floats add in their own precision (16-bit floats through
    /// f32, rounded once per addition), integers wrap around on overflow (two's complement).
    #[must_use]
    fn add(self, other: Self) -> Self;
}

macro_rules! elements {
    ($($type:ty, $dtype:ident, $a:ident, $b:ident, $sum:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            #[inline]
            fn add(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
        }
    )*};
}
elements! {
    f32, F32, a, b, a + b;
    f64, F64, a, b, a + b;
    f16, F16, a, b, Self::from_f32(a.to_f32() + b.to_f32());
    bf16, BF16, a, b, Self::from_f32(a.to_f32() + b.to_f32());
    i8, I8, a, b, a.wrapping_add(b);
    u8, U8, a, b, a.wrapping_add(b);
    i32, I32, a, b, a.wrapping_add(b);
    i64, I64, a, b, a.wrapping_add(b);
}

/// Runs `$body` with `$T` bound to the Rust type of `$dtype`: the one place where a run-time element type becomes a
/// compile-time one, so that inner loops are monomorphic.
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F16 => {
                type $T = $crate::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $T = $crate::half::bf16;
                $body
            }
            $crate::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_codes_are_refused() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            with_dtype!(dtype, T => assert_eq!((size_of::<T>(), T::DTYPE), (dtype.size(), dtype)));
        }
        assert_eq!(DType::from_code(8), None);
        assert_eq!(DType::from_code(255), None);
    }
}
