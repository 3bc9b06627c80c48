//! Which transports are compiled in. The only place that asks for transport features.

/// Names of the transports compiled into this build, the preferred one first.
#[must_use]
pub fn names() -> &'static [&'static str] {
    &[
        #[cfg(feature = "tcp")]
        "tcp",
    ]
}

/// Names of all transports there are, compiled in or not; each is also the name of its feature.
const KNOWN: &[&str] = &["tcp", "zmq", "mpi"];

/// The transport of this name, or why there is none: what was expected and what was found.
///
/// # Errors
/// When the name is unknown, or its transport is not compiled in.
pub fn find(name: &str) -> Result<&'static str, String> {
    if let Some(found) = names().iter().find(|known| **known == name) {
        return Ok(found);
    }
    let expected = match names() {
        [] => "a build with a transport (this one has none)".to_owned(),
        some => format!("one of {}", some.join(", ")),
    };
    let hint = match KNOWN.contains(&name) {
        true => format!(" (not compiled in: build with the feature {name})"),
        false => String::new(),
    };
    Err(format!("expected {expected}, found {name:?}{hint}"))
}
