//! The MPI van.
