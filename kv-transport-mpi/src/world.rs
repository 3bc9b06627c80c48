//! This process as a rank: MPI from its start to its end.

use std::mem::MaybeUninit;
use std::time::Duration;

use kv_core::cluster::Role;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator};
use mpi::{Threading, ffi};
use tokio::time::Instant;

use crate::ending::Leaving;
use crate::error::{MpiError, check};

/// What a rank tells all others at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) role: Role,
    pub(crate) job: String,
    pub(crate) host: String,
}

/// Bytes of the job's and of the host's name that are told.
const NAME_BYTES: usize = 48;

/// An introduction on the wire: version, role, and two names with their lengths.
const INTRODUCTION_BYTES: usize = 4 + 2 * (1 + NAME_BYTES);

/// Version of the introduction and of the frames.
const VERSION: u16 = 1;

/// MPI, started, and to be used by whoever holds this, and by nobody else.
pub(crate) struct World {
    /// Ends MPI when dropped. `None` when this program has started MPI, and will end it.
    universe: Option<mpi::environment::Universe>,
    world: SimpleCommunicator,
    /// A copy of the world for this van alone, so that nothing else of this program meets its messages.
    comm: ffi::MPI_Comm,
    pub(crate) rank: i32,
    pub(crate) size: i32,
    /// From the end of closing on, the process waits for this to be dropped.
    leaving: Option<Leaving>,
    /// What MPI does at the start, and the memory it does it with.
    request: Option<ffi::MPI_Request>,
    meeting: Meeting,
}

struct Meeting {
    comm: Box<MaybeUninit<ffi::MPI_Comm>>,
    told: Vec<u8>,
    heard: Vec<u8>,
}

// SAFETY: what is not `Send` are handles of MPI, which may be used by any thread, one at a time: see `World::start`.
unsafe impl Send for World {}

/// Why MPI did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "this process is alone in its MPI world; start the job under mpirun (mpirun -n 5 ... gives a scheduler and 4 \
         servers and workers)"
    )]
    Alone,
    #[error(
        "this program has started MPI with thread support {0}, or its MPI gives no more; expected MPI_THREAD_SERIALIZED \
         or MPI_THREAD_MULTIPLE"
    )]
    ThreadSupport(i32),
    #[error("MPI was started and ended in this process before; it can be started only once")]
    Ended,
    #[error("not all {size} ranks have started within {waited:?}: every one of them has to join the job")]
    Missing { size: i32, waited: Duration },
    #[error("rank {rank}: {what}")]
    Disagrees { rank: usize, what: String },
    #[error(transparent)]
    Mpi(#[from] MpiError),
}

impl Meeting {
    fn new() -> Self {
        Self { comm: Box::new(MaybeUninit::uninit()), told: Vec::new(), heard: Vec::new() }
    }
}

impl World {
    /// Starts MPI, or joins the one that this program has started.
    pub(crate) fn start() -> Result<Self, StartError> {
        // Serialized, because a worker's I/O is driven by the thread that waits for it: one at a time, not always the
        // same.
        let universe = match mpi::initialize_with_threading(Threading::Serialized) {
            Some((universe, _)) => Some(universe),
            None if mpi::environment::is_finalized() => return Err(StartError::Ended),
            None => None,
        };
        let mut provided = 0;
        // SAFETY: MPI is initialised and not finalised, and `provided` is a valid place for the answer.
        check("MPI_Query_thread", unsafe { ffi::MPI_Query_thread(&mut provided) })?;
        // SAFETY: a constant of the library. The levels are ordered by the standard.
        if provided < unsafe { ffi::RSMPI_THREAD_SERIALIZED } {
            return Err(StartError::ThreadSupport(provided));
        }
        let world = SimpleCommunicator::world();
        let (rank, size) = (world.rank(), world.size());
        // SAFETY: `world` is a valid communicator, and the handler is a constant of the library.
        let set = unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", set)?;
        if size < 2 {
            return Err(StartError::Alone);
        }
        let comm = world.as_raw();
        Ok(Self { universe, world, comm, rank, size, leaving: None, request: None, meeting: Meeting::new() })
    }

    /// Meets all other ranks: a communicator of our own, and everybody's introduction by rank. Collective.
    pub(crate) async fn meet(
        &mut self,
        own: &Introduction,
        deadline: Duration,
    ) -> Result<Vec<Introduction>, StartError> {
        let until = Instant::now() + deadline;
        self.duplicate()?;
        self.completed(until, deadline).await?;
        // SAFETY: the duplication has completed, so the communicator is written.
        self.comm = unsafe { *self.meeting.comm.assume_init_ref() };
        // SAFETY: as in `start`.
        let set = unsafe { ffi::MPI_Comm_set_errhandler(self.comm, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", set)?;

        self.meeting.told = own.encode().to_vec();
        self.meeting.heard = vec![0; INTRODUCTION_BYTES * self.size as usize];
        self.gather()?;
        self.completed(until, deadline).await?;
        let gathered = std::mem::take(&mut self.meeting.heard);
        let introductions = gathered.chunks_exact(INTRODUCTION_BYTES).enumerate();
        introductions
            .map(|(rank, bytes)| Introduction::decode(bytes).map_err(|what| StartError::Disagrees { rank, what }))
            .collect()
    }

    fn duplicate(&mut self) -> Result<(), MpiError> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: the world is valid; `meeting.comm` is not touched and not freed before the request has completed
        // (see `Drop`); the request is initialised by the call.
        unsafe {
            let code = ffi::MPI_Comm_idup(self.comm, self.meeting.comm.as_mut_ptr(), request.as_mut_ptr());
            check("MPI_Comm_idup", code)?;
            self.request = Some(request.assume_init());
        }
        Ok(())
    }

    fn gather(&mut self) -> Result<(), MpiError> {
        let (from, to) = (self.meeting.told.as_ptr().cast(), self.meeting.heard.as_mut_ptr().cast());
        let (count, mut request) = (INTRODUCTION_BYTES as i32, MaybeUninit::uninit());
        // SAFETY: `told` holds `count` bytes and `heard` as many for each rank, and neither is touched or freed before
        // the request has completed (see `Drop`).
        unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            let code = ffi::MPI_Iallgather(from, count, byte, to, count, byte, self.comm, request.as_mut_ptr());
            check("MPI_Iallgather", code)?;
            self.request = Some(request.assume_init());
        }
        Ok(())
    }

    /// Waits for the request, looking now and then: there is no hurry yet.
    async fn completed(&mut self, until: Instant, deadline: Duration) -> Result<(), StartError> {
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        while let Some(request) = &mut self.request {
            let mut done = 0;
            // SAFETY: the request is active until `done`, and not used afterwards.
            let code = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            check("MPI_Test", code)?;
            if done != 0 {
                self.request = None;
            } else if Instant::now() >= until {
                return Err(StartError::Missing { size: self.size, waited: deadline });
            } else {
                ticks.tick().await;
            }
        }
        Ok(())
    }

    pub(crate) fn comm(&self) -> ffi::MPI_Comm {
        self.comm
    }

    /// From now on the process does not exit before MPI has ended, or cannot be.
    pub(crate) fn begin_to_leave(&mut self) {
        self.leaving.get_or_insert_with(Leaving::begin);
    }

    /// Ends MPI. Waits for all other ranks to do the same.
    pub(crate) fn finish(&mut self) {
        drop(self.universe.take());
    }

    /// Ends the job, because of a bug of our own.
    pub(crate) fn abort(&self) {
        self.world.abort(70);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Without `finish` this process has failed, and must not wait for the others.
        std::mem::forget(self.universe.take());
        if self.request.is_some() {
            // MPI may still use this memory: it is never freed.
            std::mem::forget(std::mem::replace(&mut self.meeting, Meeting::new()));
        }
    }
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    mpi::environment::processor_name().unwrap_or_default()
}

impl Introduction {
    fn encode(&self) -> [u8; INTRODUCTION_BYTES] {
        let mut bytes = [0; INTRODUCTION_BYTES];
        bytes[0..2].copy_from_slice(&VERSION.to_le_bytes());
        bytes[2] = match self.role {
            Role::Scheduler => 1,
            Role::Server => 2,
            Role::Worker => 3,
            Role::Observer => 4,
        };
        for (field, name) in bytes[4..].chunks_exact_mut(1 + NAME_BYTES).zip([&self.job, &self.host]) {
            let name = cut(name);
            field[0] = name.len() as u8;
            field[1..=name.len()].copy_from_slice(name.as_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (&[v0, v1, role, _], names) = bytes.split_first_chunk().ok_or("no introduction")?;
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(format!("it speaks version {version} of the MPI transport, this one version {VERSION}"));
        }
        let role = match role {
            1 => Role::Scheduler,
            2 => Role::Server,
            3 => Role::Worker,
            4 => Role::Observer,
            other => return Err(format!("an unknown role {other}")),
        };
        let mut names = names.chunks_exact(1 + NAME_BYTES).map(|field| {
            let name = field.split_first().and_then(|(len, name)| name.get(..usize::from(*len)));
            name.map(|name| String::from_utf8_lossy(name).into_owned()).ok_or("a name that is too long")
        });
        let mut next = || names.next().unwrap_or(Err("a missing name"));
        Ok(Self { role, job: next()?, host: next()? })
    }
}

/// The beginning of a name, as far as it is told.
pub(crate) fn cut(name: &str) -> &str {
    let end = (0..=NAME_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introductions_come_back() {
        let name = "ä".repeat(30);
        let told = Introduction { role: Role::Server, job: name.clone(), host: String::new() };
        let heard = Introduction::decode(&told.encode()).unwrap();
        assert_eq!(heard, Introduction { job: "ä".repeat(24), ..told });
        let mut other = told_bytes();
        other[0] = 9;
        assert!(Introduction::decode(&other).unwrap_err().contains("version 9"));
        other[0] = 1;
        other[4] = 200;
        assert!(Introduction::decode(&other).is_err());
    }

    fn told_bytes() -> [u8; INTRODUCTION_BYTES] {
        Introduction { role: Role::Worker, job: "job".to_owned(), host: "host".to_owned() }.encode()
    }
}
