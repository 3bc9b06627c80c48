//! Aligned, shared, copy-on-write memory: where values and received parts live.

mod recycle;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::dtype::Element;

/// Bytes in one allocation aligned for every element type, shared by reference count, copied on write.
///
/// A clone is a reference. [`Buffer::bytes_mut`] copies first when another reference is alive, so whoever holds a
/// clone (a pull in flight, say) keeps seeing the bytes it was given.
///
/// Memory of 16 KiB and more is kept for the next buffer when the last reference goes, up to 32 MiB in all.
#[derive(Clone, Default)]
pub struct Buffer {
    words: Arc<Words>,
    len: usize,
}

// Words of the widest element give the alignment without any unsafe code. There may be more than the length needs.
#[derive(Default)]
struct Words(Vec<u64>);

impl Drop for Words {
    fn drop(&mut self) {
        recycle::give(std::mem::take(&mut self.0));
    }
}

impl Buffer {
    /// `len` zero bytes. Large requests are backed by fresh zero pages and cost nothing until touched.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { words: Arc::new(Words(vec![0; len.div_ceil(8)])), len }
    }

    /// `len` bytes of any content, to be overwritten: cheaper than zeros, because memory is used again.
    #[must_use]
    pub fn recycled(len: usize) -> Self {
        Self { words: Arc::new(Words(recycle::take(len.div_ceil(8)))), len }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut words = recycle::take(bytes.len().div_ceil(8));
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { words: Arc::new(Words(words)), len: bytes.len() }
    }

    /// A copy of `elements`.
    #[must_use]
    pub fn of<T: Element>(elements: &[T]) -> Self {
        Self::copy_of(bytemuck::cast_slice(elements))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether another reference to the same memory is alive.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.words) > 1
    }

    /// The bytes, aligned to 8.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words.0)[..self.len]
    }

    /// The bytes for writing; copies them first when another clone is alive.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.is_shared() {
            *self = Self::copy_of(self.bytes());
        }
        // Nobody else has a reference now, and without one nobody can make another.
        let words = Arc::get_mut(&mut self.words).map_or(&mut [][..], |words| &mut words.0);
        &mut bytemuck::cast_slice_mut(words)[..self.len]
    }

    /// The bytes as elements.
    ///
    /// # Panics
    /// When the length is not a whole number of elements: lengths are checked where bytes enter the program.
    #[must_use]
    pub fn elements<T: Element>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes())
    }

    /// The bytes as elements for writing; copies them first when another clone is alive.
    ///
    /// # Panics
    /// As [`Buffer::elements`].
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// The same memory as [`Bytes`], for a message: no copy, one more reference.
    #[must_use]
    pub fn share(&self) -> Bytes {
        if self.len == 0 { Bytes::new() } else { Bytes::from_owner(self.clone()) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_never_changes_what_a_reader_holds() {
        let mut value = Buffer::of(&[1.0_f32, 2.0, 3.0]);
        let in_flight = value.share();
        value.elements_mut::<f32>()[0] = 9.0;
        assert_eq!(bytemuck::cast_slice::<u8, f32>(&in_flight), [1.0, 2.0, 3.0]);
        assert_eq!(value.elements::<f32>(), [9.0, 2.0, 3.0]);
    }

    #[test]
    fn a_sole_owner_writes_in_place() {
        let mut value = Buffer::zeroed(4096);
        let before = value.bytes().as_ptr();
        value.bytes_mut()[0] = 1;
        assert_eq!(value.bytes().as_ptr(), before);
    }

    #[test]
    fn any_length_works() {
        for len in [0, 1, 7, 8, 9, 1000] {
            let bytes = vec![5_u8; len];
            assert_eq!(Buffer::copy_of(&bytes).bytes(), bytes);
            assert_eq!(Buffer::copy_of(&bytes).share(), bytes);
            assert_eq!(Buffer::zeroed(len).len(), len);
        }
    }
}
