//! Memory for received parts, used again.

use std::collections::VecDeque;

use crate::buffer::Buffer;

/// Buffers below this size are not worth looking for.
const POOLED_BYTES_MIN: usize = 4096;

/// Buffers remembered at most: they are searched one after the other.
const BUFFERS_MAX: usize = 64;

/// Memory for received parts. A buffer that was lent is taken again once nobody refers to it any more, which saves the
/// operating system's work of finding fresh pages for each message.
#[derive(Debug)]
pub struct BufferPool {
    lent: VecDeque<Buffer>,
    bytes: usize,
    bytes_max: usize,
}

impl BufferPool {
    /// A pool that keeps at most `bytes_max` bytes from being freed.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { lent: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// A buffer of `len` bytes, to be overwritten: it may hold what was received earlier.
    #[must_use]
    pub fn take(&mut self, len: usize) -> Buffer {
        let fits = |buffer: &Buffer| {
            // One that is much too large stays for a message that needs it.
            let capacity = buffer.capacity();
            len <= capacity && capacity / 2 <= len && !buffer.is_shared()
        };
        if len >= POOLED_BYTES_MIN
            && let Some(at) = self.lent.iter().position(fits)
            && let Some(buffer) = self.lent.remove(at)
        {
            self.bytes -= buffer.capacity();
            return buffer.resized(len);
        }
        Buffer::zeroed(len)
    }

    /// Remembers a buffer that is given away, to be taken again when it comes back.
    pub fn lend(&mut self, buffer: &Buffer) {
        let capacity = buffer.capacity();
        if capacity < POOLED_BYTES_MIN || capacity > self.bytes_max {
            return;
        }
        self.lent.push_back(buffer.clone());
        self.bytes += capacity;
        while self.bytes > self.bytes_max || self.lent.len() > BUFFERS_MAX {
            let Some(oldest) = self.lent.pop_front() else { break };
            self.bytes -= oldest.capacity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_only_when_nobody_refers_to_it() {
        let mut pool = BufferPool::new(1 << 20);
        let mut first = pool.take(10_000);
        first.bytes_mut().fill(7);
        let place = first.bytes().as_ptr();
        pool.lend(&first);
        let held = first.share();
        drop(first);
        assert_ne!(pool.take(10_000).bytes().as_ptr(), place, "it is still referred to");
        assert!(held.iter().all(|&byte| byte == 7));
        drop(held);
        let again = pool.take(9_000);
        assert_eq!((again.bytes().as_ptr(), again.len()), (place, 9_000));
    }

    #[test]
    fn the_bound_holds() {
        let mut pool = BufferPool::new(100_000);
        for _ in 0..100 {
            let buffer = pool.take(30_000);
            pool.lend(&buffer);
            pool.lend(&Buffer::zeroed(200_000));
            assert!(pool.bytes <= 100_000);
            assert_eq!(pool.bytes, pool.lent.iter().map(Buffer::capacity).sum::<usize>());
        }
    }
}
