//! This process as a rank: MPI from its start to its end, on one thread.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::time::Duration;

use kv_core::cluster::Role;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator};
use mpi::{Threading, ffi};
use tokio::time::Instant;

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

/// MPI, started and owned by this thread. It cannot be sent to another one.
pub(crate) struct World {
    /// Ends MPI when dropped. `None` when this program has started MPI, and will end it.
    universe: Option<mpi::environment::Universe>,
    world: SimpleCommunicator,
    /// A copy of the world for this van alone, so that nothing else of this program meets its messages.
    comm: ffi::MPI_Comm,
    pub(crate) rank: i32,
    pub(crate) size: i32,
    _one_thread: PhantomData<*const ()>,
}

/// Why MPI did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "this process is alone in its MPI world; start the job under mpirun (mpirun -n 5 ... gives a scheduler and 4 \
         servers and workers)"
    )]
    Alone,
    #[error(
        "this program has started MPI itself with thread support {0}; ask for MPI_THREAD_SERIALIZED or \
         MPI_THREAD_MULTIPLE there, or leave the start to kv"
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

impl World {
    /// Starts MPI on this thread, or joins the one that this program has started.
    pub(crate) fn start() -> Result<Self, StartError> {
        let started = mpi::initialize_with_threading(Threading::Funneled);
        let universe = match started {
            Some((universe, _)) => Some(universe),
            None if mpi::environment::is_finalized() => return Err(StartError::Ended),
            None => {
                let mut provided = 0;
                // SAFETY: MPI is initialised and not finalised, and `provided` is a valid place for the answer.
                check("MPI_Query_thread", unsafe { ffi::MPI_Query_thread(&mut provided) })?;
                // SAFETY: a constant of the library.
                if provided < unsafe { ffi::RSMPI_THREAD_SERIALIZED } {
                    return Err(StartError::ThreadSupport(provided));
                }
                None
            }
        };
        let world = SimpleCommunicator::world();
        let (rank, size) = (world.rank(), world.size());
        // SAFETY: `world` is a valid communicator, and the handler is a constant of the library.
        let set = unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", set)?;
        if size < 2 {
            return Err(StartError::Alone);
        }
        let comm = world.as_raw();
        Ok(Self { universe, world, comm, rank, size, _one_thread: PhantomData })
    }

    /// Meets all other ranks: a communicator of our own, and everybody's introduction by rank. Collective.
    pub(crate) async fn meet(
        &mut self,
        own: &Introduction,
        deadline: Duration,
    ) -> Result<Vec<Introduction>, StartError> {
        let until = Instant::now() + deadline;
        // Both are filled by MPI while this waits. On an error they are leaked: MPI may still write into them.
        let comm = Box::leak(Box::new(MaybeUninit::<ffi::MPI_Comm>::uninit()));
        let gathered = Vec::leak(vec![0_u8; INTRODUCTION_BYTES * self.size as usize]);
        let sent = Vec::leak(own.encode().to_vec());

        let mut request = MaybeUninit::uninit();
        // SAFETY: the world is valid; `comm` lives for ever; the request is initialised by the call.
        let request = unsafe {
            check("MPI_Comm_idup", ffi::MPI_Comm_idup(self.comm, comm.as_mut_ptr(), request.as_mut_ptr()))?;
            request.assume_init()
        };
        self.completed(request, until, deadline).await?;
        // SAFETY: the duplication has completed, so the communicator is written; the box is not used again.
        self.comm = *unsafe { Box::from_raw(comm).assume_init() };
        // SAFETY: as in `start`.
        let set = unsafe { ffi::MPI_Comm_set_errhandler(self.comm, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", set)?;

        let (count, mut request) = (INTRODUCTION_BYTES as i32, MaybeUninit::uninit());
        let (from, to) = (sent.as_ptr(), gathered.as_mut_ptr());
        // SAFETY: `sent` holds `count` bytes and `gathered` as many for each rank, and both live for ever.
        let request = unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            let code =
                ffi::MPI_Iallgather(from.cast(), count, byte, to.cast(), count, byte, self.comm, request.as_mut_ptr());
            check("MPI_Iallgather", code)?;
            request.assume_init()
        };
        self.completed(request, until, deadline).await?;
        // SAFETY: the gathering has completed: MPI is done with both, and they were leaked from vectors of this
        // length and capacity.
        let gathered = unsafe {
            drop(Vec::from_raw_parts(sent.as_mut_ptr(), sent.len(), sent.len()));
            Vec::from_raw_parts(to, gathered.len(), gathered.len())
        };
        let introductions = gathered.chunks_exact(INTRODUCTION_BYTES).enumerate();
        introductions
            .map(|(rank, bytes)| Introduction::decode(bytes).map_err(|what| StartError::Disagrees { rank, what }))
            .collect()
    }

    /// Waits for a request, looking now and then: there is no hurry yet.
    async fn completed(
        &self,
        mut request: ffi::MPI_Request,
        until: Instant,
        deadline: Duration,
    ) -> Result<(), StartError> {
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        loop {
            let mut done = 0;
            // SAFETY: the request is active until `done`, and not used afterwards.
            let code = unsafe { ffi::MPI_Test(&mut request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
            check("MPI_Test", code)?;
            if done != 0 {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(StartError::Missing { size: self.size, waited: deadline });
            }
            ticks.tick().await;
        }
    }

    pub(crate) fn comm(&self) -> ffi::MPI_Comm {
        self.comm
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
    &name[..name.floor_char_boundary(NAME_BYTES)]
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
