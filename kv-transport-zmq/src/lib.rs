//! The ZeroMQ van.
