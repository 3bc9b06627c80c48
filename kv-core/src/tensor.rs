//! Values: element type, shape and contiguous bytes.

use std::fmt;

use crate::buffer::Buffer;
use crate::dtype::{DType, Element};
use crate::error::Error;

/// A dense value: element type, shape (row-major) and contiguous elements.
///
/// A clone shares the memory; nothing that the store hands out is ever changed by the store afterwards.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<u64>,
    buffer: Buffer,
}

impl Tensor {
    /// A tensor over `elements` (copied) with `shape`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] when the shape does not hold exactly that many elements.
    pub fn new<T: Element>(shape: &[usize], elements: &[T]) -> Result<Self, Error> {
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        Self::from_buffer(T::DTYPE, shape, Buffer::of(elements))
    }

    /// A tensor over bytes already in a buffer.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] when shape and element type do not give exactly that many bytes.
    pub fn from_buffer(dtype: DType, shape: Vec<u64>, buffer: Buffer) -> Result<Self, Error> {
        let expected = byte_len(dtype, &shape);
        if expected != Some(buffer.len() as u64) {
            return Err(Error::LengthMismatch {
                what: format!("a value of {dtype}{}", ShapeText(&shape)),
                expected: expected.unwrap_or(u64::MAX),
                found: buffer.len() as u64,
            });
        }
        Ok(Self { dtype, shape, buffer })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] when the shape's product overflows.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self, Error> {
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        let bytes = byte_len(dtype, &shape).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| Error::LengthMismatch {
            what: format!("a value of {dtype}{}", ShapeText(&shape)),
            expected: u64::MAX,
            found: 0,
        })?;
        Self::from_buffer(dtype, shape, Buffer::zeroed(bytes))
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape: the length of each dimension, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() / self.dtype.size()
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        self.check_dtype::<T>()?;
        Ok(self.buffer.elements())
    }

    /// The elements for writing; copies them first when another clone is alive.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], Error> {
        self.check_dtype::<T>()?;
        Ok(self.buffer.elements_mut())
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        self.as_slice().map(<[T]>::to_vec)
    }

    /// The memory behind it.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Gives up the memory behind it.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// Adds `other` element by element.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] or [`Error::LengthMismatch`] when the two do not fit.
    pub fn add_assign(&mut self, other: TensorRef<'_>) -> Result<(), Error> {
        if self.dtype != other.dtype {
            return Err(Error::DTypeMismatch { key: None, expected: self.dtype, found: other.dtype });
        }
        if self.buffer.len() != other.bytes.len() {
            return Err(Error::LengthMismatch {
                what: "an array to be summed with the others of its key".to_owned(),
                expected: self.buffer.len() as u64,
                found: other.bytes.len() as u64,
            });
        }
        crate::sum::add_assign(self.dtype, self.buffer.bytes_mut(), other.bytes);
        Ok(())
    }

    fn check_dtype<T: Element>(&self) -> Result<(), Error> {
        if T::DTYPE == self.dtype {
            Ok(())
        } else {
            Err(Error::DTypeMismatch { key: None, expected: self.dtype, found: T::DTYPE })
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{})", self.dtype, ShapeText(&self.shape))
    }
}

/// A borrowed value: what `init` and `push` take. The caller's memory is read during the call and never kept.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape, when the caller's type has one. A plain slice has none: only its length is checked.
    pub shape: Option<&'a [u64]>,
    /// The elements' bytes.
    pub bytes: &'a [u8],
}

impl TensorRef<'_> {
    /// The shape to initialise with: the caller's, or one dimension.
    #[must_use]
    pub fn shape_or_flat(&self) -> Vec<u64> {
        match self.shape {
            Some(shape) => shape.to_vec(),
            None => vec![(self.bytes.len() / self.dtype.size()) as u64],
        }
    }

    /// An owned copy.
    #[must_use]
    pub fn to_tensor(&self) -> Tensor {
        Tensor { dtype: self.dtype, shape: self.shape_or_flat(), buffer: Buffer::copy_of(self.bytes) }
    }
}

/// Whatever can be pushed or initialised: tensors (with a shape), slices, arrays and vectors (without).
pub trait AsTensor {
    /// Borrows it as a value.
    fn as_tensor(&self) -> TensorRef<'_>;
}

impl AsTensor for Tensor {
    fn as_tensor(&self) -> TensorRef<'_> {
        TensorRef { dtype: self.dtype, shape: Some(&self.shape), bytes: self.buffer.bytes() }
    }
}

impl<T: Element> AsTensor for [T] {
    fn as_tensor(&self) -> TensorRef<'_> {
        TensorRef { dtype: T::DTYPE, shape: None, bytes: bytemuck::cast_slice(self) }
    }
}

impl<T: Element> AsTensor for Vec<T> {
    fn as_tensor(&self) -> TensorRef<'_> {
        self.as_slice().as_tensor()
    }
}

impl<T: Element, const N: usize> AsTensor for [T; N] {
    fn as_tensor(&self) -> TensorRef<'_> {
        self.as_slice().as_tensor()
    }
}

impl<A: AsTensor + ?Sized> AsTensor for &A {
    fn as_tensor(&self) -> TensorRef<'_> {
        (**self).as_tensor()
    }
}

/// Bytes of a value of this type and shape; `None` when the product does not fit 64 bits.
#[must_use]
pub fn byte_len(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.size() as u64, |bytes, &dim| bytes.checked_mul(dim))
}

/// A shape as text: `[2, 3]`.
pub(crate) struct ShapeText<'a>(pub(crate) &'a [u64]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_and_length_must_agree() {
        assert!(Tensor::new(&[2, 3], &[0.0_f32; 6]).is_ok());
        assert!(matches!(Tensor::new(&[2, 3], &[0.0_f32; 5]), Err(Error::LengthMismatch { .. })));
        assert!(Tensor::new::<f32>(&[0], &[]).is_ok());
        assert!(Tensor::new(&[], &[1.0_f64]).is_ok(), "a scalar has no dimension and one element");
        assert!(Tensor::zeros(DType::F32, &[usize::MAX, 2]).is_err());
    }

    #[test]
    fn sums_check_type_and_length() {
        let mut sum = Tensor::new(&[2], &[1.0_f32, 2.0]).unwrap();
        sum.add_assign([10.0_f32, 20.0].as_tensor()).unwrap();
        assert_eq!(sum.as_slice::<f32>().unwrap(), [11.0, 22.0]);
        assert!(matches!(sum.add_assign([1.0_f64, 1.0].as_tensor()), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(sum.add_assign([1.0_f32].as_tensor()), Err(Error::LengthMismatch { .. })));
    }
}
