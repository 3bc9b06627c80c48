//! What is under way in MPI, and the memory it is about.
//!
//! MPI works on the memory of a request until the request completes. Here every request holds on to its memory, and
//! the memory of requests that never complete is never freed: that is what makes the calls below sound.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kv_core::Buffer;
use kv_core::van::Outgoing;
use mpi::ffi;

use crate::error::{MpiError, check};
use crate::frame::{self, FRAME_BYTES_MAX};

/// Tags of the van's communicator.
#[derive(Clone, Copy)]
pub(crate) enum Tag {
    Frame = 1,
    Part = 2,
    Finish = 3,
}

/// A message on its way out: kept until every request about it has completed.
pub(crate) struct Sending {
    frame: Vec<u8>,
    outgoing: Outgoing,
    pub(crate) to: usize,
}

/// A part on its way in.
pub(crate) struct Landing {
    // Only ever touched by the thread that drives the requests: the lock and the counter cost nothing, and let the
    // requests move to another thread.
    buffer: Mutex<Buffer>,
    /// Requests that still write into the buffer.
    pieces: AtomicUsize,
}

impl Landing {
    /// Takes the part, once it is complete.
    pub(crate) fn take(&self) -> Option<Buffer> {
        self.is_complete().then(|| std::mem::take(&mut *self.buffer.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.pieces.load(Ordering::Acquire) == 0
    }
}

enum Slot {
    Sending(#[allow(dead_code, reason = "it keeps the memory that MPI reads")] Arc<Sending>),
    Landing(Arc<Landing>),
    Nothing,
}

/// All requests that have not completed.
pub(crate) struct Requests {
    comm: ffi::MPI_Comm,
    piece_bytes_max: usize,
    raw: Vec<ffi::MPI_Request>,
    slots: Vec<Slot>,
    indices: Vec<c_int>,
    frame: Box<[u8; FRAME_BYTES_MAX]>,
}

// SAFETY: the handles of MPI may be used by any thread, one at a time: MPI was started for that, see `World::start`.
unsafe impl Send for Requests {}

impl Requests {
    /// `comm` must be a valid communicator, used by one thread at a time, as long as requests are made.
    pub(crate) fn new(comm: ffi::MPI_Comm, piece_bytes_max: usize) -> Self {
        let piece_bytes_max = piece_bytes_max.clamp(1, c_int::MAX as usize);
        let frame = Box::new([0; FRAME_BYTES_MAX]);
        Self { comm, piece_bytes_max, raw: Vec::new(), slots: Vec::new(), indices: Vec::new(), frame }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Starts to send a message. Its frame is sent synchronously: it counts as under way until the receiver has taken
    /// it, and that is the flow control that MPI itself lacks.
    pub(crate) fn send(&mut self, to: usize, outgoing: Outgoing) -> Result<(), MpiError> {
        let sending = Arc::new(Sending { frame: frame::encode(&outgoing.message), outgoing, to });
        self.start_send(&sending, &sending.frame, Tag::Frame)?;
        let message = &sending.outgoing.message;
        for (part, place) in message.parts().iter().zip(frame::places(message.header().part_len)) {
            if place.is_none() {
                for piece in part.chunks(self.piece_bytes_max) {
                    self.start_send(&sending, piece, Tag::Part)?;
                }
            }
        }
        Ok(())
    }

    fn start_send(&mut self, sending: &Arc<Sending>, piece: &[u8], tag: Tag) -> Result<(), MpiError> {
        let (call, function): (_, unsafe extern "C" fn(_, _, _, _, _, _, _) -> _) = match tag {
            Tag::Frame => ("MPI_Issend", ffi::MPI_Issend),
            Tag::Part | Tag::Finish => ("MPI_Isend", ffi::MPI_Isend),
        };
        let (at, len, to) = (piece.as_ptr(), piece.len() as c_int, sending.to as c_int);
        let mut request = MaybeUninit::uninit();
        // SAFETY: `piece` lies in memory that `sending` owns and never changes, and the slot keeps `sending` until
        // the request completes; its length fits: pieces are cut to that, and frames are small.
        let request = unsafe {
            check(
                call,
                function(at.cast(), len, ffi::RSMPI_UINT8_T, to, tag as c_int, self.comm, request.as_mut_ptr()),
            )?;
            request.assume_init()
        };
        self.raw.push(request);
        self.slots.push(Slot::Sending(Arc::clone(sending)));
        Ok(())
    }

    /// Starts to receive a part from a rank into `buffer`, after those that were started before.
    pub(crate) fn receive(&mut self, from: usize, mut buffer: Buffer) -> Result<Arc<Landing>, MpiError> {
        let bytes: &mut [u8] = buffer.bytes_mut();
        let pieces: Vec<(*mut u8, usize)> =
            bytes.chunks_mut(self.piece_bytes_max).map(|piece| (piece.as_mut_ptr(), piece.len())).collect();
        let landing = Arc::new(Landing { buffer: Mutex::new(buffer), pieces: AtomicUsize::new(pieces.len()) });
        for (at, len) in pieces {
            let (from, tag) = (from as c_int, Tag::Part as c_int);
            let mut request = MaybeUninit::uninit();
            // SAFETY: the piece lies in the buffer, of which there is no other reference: the buffer was just made
            // writable and nobody reads it before every piece has landed. The slot keeps it until then. Moving the
            // buffer does not move its memory.
            let request = unsafe {
                let request = request.as_mut_ptr();
                let code = ffi::MPI_Irecv(at.cast(), len as c_int, ffi::RSMPI_UINT8_T, from, tag, self.comm, request);
                check("MPI_Irecv", code)?;
                *request
            };
            self.raw.push(request);
            self.slots.push(Slot::Landing(Arc::clone(&landing)));
        }
        Ok(landing)
    }

    /// Takes the next frame that has arrived from anybody, if there is one.
    pub(crate) fn next_frame(&mut self) -> Result<Option<(usize, &[u8])>, MpiError> {
        let (mut found, mut message, mut status) = (0, MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: all three are places for the answer, of which the last two are read only if there is a message.
        let (mut message, status) = unsafe {
            let code = ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                Tag::Frame as c_int,
                self.comm,
                &mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            );
            check("MPI_Improbe", code)?;
            if found == 0 {
                return Ok(None);
            }
            (message.assume_init(), status.assume_init())
        };
        let mut len = 0;
        // SAFETY: the status was filled by the probe. The receive is for the message that was probed, and ends at
        // once because a frame comes with its announcement; at most the length of `frame` is written.
        unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            check("MPI_Get_count", ffi::MPI_Get_count(&status, byte, &mut len))?;
            let (at, room, ignore) = (self.frame.as_mut_ptr(), FRAME_BYTES_MAX as c_int, ffi::RSMPI_STATUS_IGNORE);
            check("MPI_Mrecv", ffi::MPI_Mrecv(at.cast(), room, byte, &mut message, ignore))?;
        }
        Ok(Some((status.MPI_SOURCE as usize, &self.frame[..len as usize])))
    }

    /// Sends or receives the word that a rank is through, which has no bytes.
    pub(crate) fn finish_word(&mut self, with: usize, send: bool) -> Result<(), MpiError> {
        let (with, tag, mut request) = (with as c_int, Tag::Finish as c_int, MaybeUninit::uninit());
        let byte = unsafe_byte();
        // SAFETY: nothing is read or written at the address, because the length is 0.
        let request = unsafe {
            let request = request.as_mut_ptr();
            if send {
                let code = ffi::MPI_Isend(std::ptr::null(), 0, byte, with, tag, self.comm, request);
                check("MPI_Isend", code)?;
            } else {
                let code = ffi::MPI_Irecv(std::ptr::null_mut(), 0, byte, with, tag, self.comm, request);
                check("MPI_Irecv", code)?;
            }
            *request
        };
        self.raw.push(request);
        self.slots.push(Slot::Nothing);
        Ok(())
    }

    /// Looks which requests have completed. `sent` hears of every message that is through. Returns how many requests
    /// completed.
    pub(crate) fn complete(&mut self, mut sent: impl FnMut(&Sending)) -> Result<usize, MpiError> {
        if self.raw.is_empty() {
            return Ok(0);
        }
        self.indices.resize(self.raw.len(), 0);
        let mut count = 0;
        let (len, raw, indices) = (self.raw.len() as c_int, self.raw.as_mut_ptr(), self.indices.as_mut_ptr());
        // SAFETY: all requests are active; there are as many indices as requests. Statuses are not asked for.
        let code = unsafe { ffi::MPI_Testsome(len, raw, &mut count, indices, ffi::RSMPI_STATUSES_IGNORE) };
        check("MPI_Testsome", code)?;
        // MPI_UNDEFINED, which is negative, would mean that none was active.
        let count = usize::try_from(count).unwrap_or(0);
        // From the back, so that the places of those to come stay what they are.
        self.indices[..count].sort_unstable_by(|a, b| b.cmp(a));
        for &index in &self.indices[..count] {
            self.raw.swap_remove(index as usize);
            match self.slots.swap_remove(index as usize) {
                Slot::Sending(sending) if Arc::strong_count(&sending) == 1 => sent(&sending),
                Slot::Landing(landing) => drop(landing.pieces.fetch_sub(1, Ordering::Release)),
                Slot::Sending(_) | Slot::Nothing => {}
            }
        }
        Ok(count)
    }
}

fn unsafe_byte() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // MPI may still read or write this memory.
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}
