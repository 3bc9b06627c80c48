//! Exactly once, in order: what a server remembers of one worker's requests.

use std::collections::BTreeMap;

use crate::limits::{MESSAGE_VALUE_BYTES, UNANSWERED_BYTES_MAX, UNANSWERED_REQUESTS_MAX};
use crate::wire::Message;

/// Restores the order of a worker's requests and recognises repeated ones.
///
/// Over a reliable van every request arrives as [`Arrival::Run`] and nothing is kept.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// Sequence of the next request to run; all before it have run.
    next: u64,
    /// Requests that overtook others.
    early: BTreeMap<u64, Message>,
    early_bytes: u64,
    /// Replies that the worker has not confirmed, when they are kept at all.
    replies: BTreeMap<u64, Message>,
}

/// What to do with a request.
#[derive(Debug, PartialEq)]
pub(super) enum Arrival {
    /// Run it now, then ask [`ReceiveWindow::next_early`].
    Run(Message),
    /// It has run; send this reply again, if it was answered and the reply is kept.
    Repeated(Option<Message>),
    /// It waits for those before it.
    Early,
    /// Beyond what a correct worker sends: dropped.
    Dropped,
}

/// Most bytes of requests that may wait for those before them.
const EARLY_BYTES_MAX: u64 = (UNANSWERED_BYTES_MAX + 2 * MESSAGE_VALUE_BYTES) as u64;

impl ReceiveWindow {
    pub(super) fn new() -> Self {
        Self { next: 1, early: BTreeMap::new(), early_bytes: 0, replies: BTreeMap::new() }
    }

    pub(super) fn arrive(&mut self, message: Message) -> Arrival {
        let header = message.header();
        let (sequence, oldest) = (header.sequence, header.sequence.saturating_sub(u64::from(header.behind)));
        // Neither is ever used: numbers begin at 1, and no worker lives to see the last.
        if sequence == 0 || sequence == u64::MAX {
            return Arrival::Dropped;
        }
        while self.replies.first_key_value().is_some_and(|(&answered, _)| answered < oldest) {
            self.replies.pop_first();
        }
        if self.has_run(sequence) {
            return Arrival::Repeated(self.replies.get(&sequence).cloned());
        }
        if oldest > self.next {
            self.skip_to(oldest);
        }
        if sequence == self.next {
            self.next += 1;
            return Arrival::Run(message);
        }
        let bytes = message.body_bytes();
        if sequence - self.next >= UNANSWERED_REQUESTS_MAX || self.early_bytes + bytes > EARLY_BYTES_MAX {
            return Arrival::Dropped;
        }
        // The first copy stays: a correct worker's second one is the same, and any other must not upset the count.
        self.early.entry(sequence).or_insert_with(|| {
            self.early_bytes += bytes;
            message
        });
        Arrival::Early
    }

    /// The worker has given up on every request before `oldest` and will never send one of them again: those that have
    /// not arrived are not waited for any more, or nothing behind them would ever run.
    fn skip_to(&mut self, oldest: u64) {
        let later = self.early.split_off(&oldest);
        let given_up = std::mem::replace(&mut self.early, later);
        self.early_bytes -= given_up.values().map(Message::body_bytes).sum::<u64>();
        self.next = oldest;
    }

    /// Whether the request with this sequence has run (or will never run).
    pub(super) fn has_run(&self, sequence: u64) -> bool {
        sequence < self.next
    }

    /// The request that may run now because the one before it has.
    pub(super) fn next_early(&mut self) -> Option<Message> {
        let message = self.early.remove(&self.next)?;
        self.early_bytes -= message.body_bytes();
        self.next += 1;
        Some(message)
    }

    pub(super) fn keep_reply(&mut self, sequence: u64, reply: Message) {
        self.replies.insert(sequence, reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    fn request(sequence: u64, behind: u32) -> Message {
        Message::new(Kind::Push).with_header(|header| {
            header.sequence = sequence;
            header.behind = behind;
        })
    }

    #[test]
    fn any_order_runs_in_sequence_and_once() {
        let mut window = ReceiveWindow::new();
        let mut ran = Vec::new();
        for sequence in [3, 1, 1, 2, 5, 3, 4, 2] {
            if let Arrival::Run(message) = window.arrive(request(sequence, sequence as u32 - 1)) {
                ran.push(message.header().sequence);
                while let Some(message) = window.next_early() {
                    ran.push(message.header().sequence);
                }
            }
        }
        assert_eq!(ran, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn replies_are_kept_until_confirmed() {
        let mut window = ReceiveWindow::new();
        assert!(matches!(window.arrive(request(1, 0)), Arrival::Run(_)));
        window.keep_reply(1, Message::new(Kind::Reply));
        assert!(matches!(window.arrive(request(1, 0)), Arrival::Repeated(Some(_))));
        assert!(matches!(window.arrive(request(2, 0)), Arrival::Run(_)));
        assert_eq!(window.arrive(request(1, 0)), Arrival::Repeated(None));
    }

    #[test]
    fn what_the_worker_has_given_up_does_not_hold_up_the_rest() {
        let mut window = ReceiveWindow::new();
        assert!(matches!(window.arrive(request(1, 0)), Arrival::Run(_)));
        // 2 is lost, 3 and 5 wait for it; then the worker gives up on 2 and 3.
        assert_eq!(window.arrive(request(3, 1)), Arrival::Early);
        assert_eq!(window.arrive(request(5, 3)), Arrival::Early);
        assert!(matches!(window.arrive(request(4, 0)), Arrival::Run(_)));
        assert_eq!(window.next_early().map(|message| message.header().sequence), Some(5));
        assert_eq!(window.next_early(), None);
        // Late copies never run.
        assert_eq!(window.arrive(request(2, 0)), Arrival::Repeated(None));
        assert_eq!(window.arrive(request(3, 1)), Arrival::Repeated(None));
    }

    #[test]
    fn a_second_message_with_the_same_number_does_not_upset_the_count() {
        let mut window = ReceiveWindow::new();
        for bytes in [1, 1000] {
            let message = request(2, 1).with_part(3, bytes::Bytes::from(vec![0; bytes]));
            assert_eq!(window.arrive(message), Arrival::Early);
        }
        assert!(matches!(window.arrive(request(1, 0)), Arrival::Run(_)));
        assert_eq!(window.next_early().map(|message| message.body_bytes()), Some(1));
        assert_eq!(window.early_bytes, 0);
    }

    #[test]
    fn nonsense_is_dropped() {
        let mut window = ReceiveWindow::new();
        assert_eq!(window.arrive(request(0, 0)), Arrival::Dropped);
        assert_eq!(window.arrive(request(u64::MAX, u32::MAX)), Arrival::Dropped);
        assert_eq!(window.arrive(request(u64::MAX, 0)), Arrival::Dropped);
        let behind = UNANSWERED_REQUESTS_MAX as u32;
        assert_eq!(window.arrive(request(1 + UNANSWERED_REQUESTS_MAX, behind)), Arrival::Dropped);
    }
}
