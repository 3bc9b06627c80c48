//! The inner loop of a round: adding one contribution to another.

use crate::dtype::Element;
use crate::with_dtype;

/// `sum[i] += addend[i]` for elements of `dtype`. `sum` is aligned memory; `addend` may be any bytes of a message.
///
/// # Panics
/// When the lengths differ or are not whole elements: both are checked where bytes enter the program.
pub fn add_assign(dtype: crate::DType, sum: &mut [u8], addend: &[u8]) {
    with_dtype!(dtype, T => add_elements::<T>(bytemuck::cast_slice_mut(sum), addend));
}

fn add_elements<T: Element>(sum: &mut [T], addend: &[u8]) {
    assert_eq!(size_of_val(sum), addend.len(), "lengths are checked before a sum");
    if let Ok(addend) = bytemuck::try_cast_slice::<u8, T>(addend) {
        for (sum, addend) in sum.iter_mut().zip(addend) {
            *sum = sum.add(*addend);
        }
    } else {
        // An unaligned part: only a van that cannot place parts itself delivers one.
        for (sum, addend) in sum.iter_mut().zip(addend.chunks_exact(size_of::<T>())) {
            *sum = sum.add(bytemuck::pod_read_unaligned(addend));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, DType};

    #[test]
    fn unaligned_parts_give_the_same_sum() {
        let addend: Vec<f32> = (0..100).map(|i| i as f32 * 0.5).collect();
        let mut shifted = vec![0_u8];
        shifted.extend_from_slice(bytemuck::cast_slice(&addend));
        let mut sum = Buffer::of(&vec![1.0_f32; 100]);
        add_assign(DType::F32, sum.bytes_mut(), &shifted[1..]);
        let mut aligned = Buffer::of(&vec![1.0_f32; 100]);
        add_assign(DType::F32, aligned.bytes_mut(), bytemuck::cast_slice(&addend));
        assert_eq!(sum, aligned);
        assert_eq!(sum.elements::<f32>()[99], 50.5);
    }

    #[test]
    fn integers_wrap() {
        let mut sum = Buffer::of(&[i8::MAX, -1]);
        add_assign(DType::I8, sum.bytes_mut(), &[1, 1]);
        assert_eq!(sum.elements::<i8>(), [i8::MIN, 0]);
    }
}
