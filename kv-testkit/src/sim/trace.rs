//! The trace of a run: its hash, and its text when somebody wants to read it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use kv_core::wire::{Control, Kind, Message};

/// Lines kept when not all are.
const TAIL: usize = 40;

/// How much text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// None, only the hash.
    Hash,
    /// The last lines.
    Tail,
    /// Everything.
    All,
}

/// Everything that happened, in order.
#[derive(Debug)]
pub struct Trace {
    hasher: DefaultHasher,
    keep: Keep,
    lines: VecDeque<String>,
}

impl Trace {
    /// An empty trace.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self { hasher: DefaultHasher::new(), keep, lines: VecDeque::new() }
    }

    /// Something happened to a node.
    pub fn note(&mut self, at: Duration, node: usize, what: &str, detail: impl FnOnce() -> String) {
        (at, node, what).hash(&mut self.hasher);
        if self.keep != Keep::Hash {
            self.line(format!("{:>11.6} {node:>2} {what}{}", at.as_secs_f64(), detail()));
        }
    }

    /// A message was delivered.
    pub fn message(&mut self, at: Duration, from: u64, node: usize, message: &Message) {
        (at, from, node).hash(&mut self.hasher);
        message.header().encode().hash(&mut self.hasher);
        message.parts().iter().for_each(|part| part.hash(&mut self.hasher));
        if self.keep != Keep::Hash {
            // The low bits of a node's identity are its number.
            self.line(format!("{:>11.6} {node:>2} <- {} {}", at.as_secs_f64(), from & 0xffff, describe(message)));
        }
    }

    /// The hash of everything noted.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// The lines kept.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }

    fn line(&mut self, line: String) {
        if self.keep == Keep::Tail && self.lines.len() == TAIL {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// A message in a few words.
#[must_use]
pub fn describe(message: &Message) -> String {
    let header = message.header();
    if header.kind == Kind::Control {
        return match Control::of_message(message) {
            Ok(Control::Roster(roster)) => {
                let members =
                    roster.members.iter().map(|m| format!("{} {} {:?}", m.name.role, m.name.rank, m.standing));
                format!("Roster {} {:?}", roster.epoch.0, members.collect::<Vec<_>>())
            }
            Ok(control) => format!("{control:?}"),
            Err(error) => format!("Control, {error}"),
        };
    }
    let keys = message.part(0).len() / kv_core::wire::ENTRY_BYTES;
    let status = if header.status == 0 { String::new() } else { format!(" status {}", header.status) };
    format!(
        "{:?} #{} behind {}{status}, {keys} entries, {} bytes",
        header.kind,
        header.sequence,
        header.behind,
        message.body_bytes()
    )
}
