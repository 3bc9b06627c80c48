//! A worker's side of its link to one server: sequence numbers, what is unanswered, what waits at home.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::calls::CallId;
use super::outgoing::Fill;
use super::{Action, Resend};
use crate::cluster::{NodeId, NodeName};
use crate::key::{Key, KeyId};
use crate::limits::{UNANSWERED_BYTES_MAX, UNANSWERED_REQUESTS_MAX};
use crate::wire::Message;

/// Longest time between two tries.
const RESEND_AFTER_MAX: Duration = Duration::from_secs(8);

/// A request ready to go, without its sequence number.
pub(super) struct Prepared {
    pub(super) message: Message,
    /// The keys it touches: requests on one key never overtake each other. Empty: on all keys.
    pub(super) keys: Vec<KeyId>,
    pub(super) expected: Expected,
}

/// What a good reply brings.
#[derive(Debug)]
pub(super) enum Expected {
    Nothing,
    Values(Vec<Fill>),
    Description(Vec<Key>),
}

pub(super) struct ServerLink {
    pub(super) node: NodeId,
    pub(super) name: NodeName,
    /// Why it is gone, when it is.
    pub(super) lost: Option<String>,
    next_sequence: u64,
    unanswered: BTreeMap<u64, Unanswered>,
    unanswered_bytes: usize,
    /// When which unanswered request is to be sent again.
    due: BTreeSet<(Instant, u64)>,
    /// Requests kept at home, most urgent first, then oldest first.
    backlog: BTreeMap<(Reverse<i32>, u64), Queued>,
    next_queued: u64,
    /// For each key in the backlog: the lowest urgency there and the number of requests.
    queued_keys: HashMap<KeyId, (i32, usize)>,
    /// Requests on all keys in the backlog.
    queued_on_all: usize,
    last_heard: Instant,
    resend: Resend,
}

struct Queued {
    call: CallId,
    prepared: Prepared,
}

struct Unanswered {
    call: CallId,
    expected: Expected,
    bytes: usize,
    sent_at: Instant,
    /// Kept only where it may have to be sent again.
    again: Option<Again>,
}

struct Again {
    message: Message,
    at: Instant,
    after: Duration,
}

impl ServerLink {
    pub(super) fn new(node: NodeId, name: NodeName, resend: Resend, now: Instant) -> Self {
        Self {
            node,
            name,
            lost: None,
            next_sequence: 1,
            unanswered: BTreeMap::new(),
            unanswered_bytes: 0,
            due: BTreeSet::new(),
            backlog: BTreeMap::new(),
            next_queued: 0,
            queued_keys: HashMap::new(),
            queued_on_all: 0,
            last_heard: now,
            resend,
        }
    }

    /// Sends the request, or keeps it until there is room.
    pub(super) fn queue(
        &mut self,
        now: Instant,
        call: CallId,
        priority: i32,
        prepared: Prepared,
        out: &mut Vec<Action>,
    ) {
        if self.backlog.is_empty() && self.has_room() {
            self.send(now, call, prepared, out);
            return;
        }
        let on_all = prepared.keys.is_empty();
        self.queued_on_all += usize::from(on_all);
        // Nothing overtakes a request on all keys, and it overtakes nothing.
        let priority = if self.queued_on_all > 0 {
            i32::MIN
        } else {
            prepared.keys.iter().filter_map(|key| self.queued_keys.get(key)).map(|(p, _)| *p).fold(priority, i32::min)
        };
        for key in &prepared.keys {
            let (lowest, count) = self.queued_keys.entry(*key).or_insert((priority, 0));
            *lowest = priority.min(*lowest);
            *count += 1;
        }
        self.backlog.insert((Reverse(priority), self.next_queued), Queued { call, prepared });
        self.next_queued += 1;
    }

    /// The reply with this sequence arrived: which call it answers and what that expects. `None` when it was answered
    /// before.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        sequence: u64,
        out: &mut Vec<Action>,
    ) -> Option<(CallId, Expected)> {
        let request = self.unanswered.remove(&sequence)?;
        self.unanswered_bytes -= request.bytes;
        if let Some(again) = &request.again {
            self.due.remove(&(again.at, sequence));
        }
        self.last_heard = now;
        self.send_backlog(now, out);
        Some((request.call, request.expected))
    }

    /// Takes everything out, because nothing will be answered any more: the calls concerned, one mention for each
    /// request.
    pub(super) fn give_up(&mut self) -> Vec<CallId> {
        let unanswered = std::mem::take(&mut self.unanswered).into_values().map(|request| request.call);
        let backlog = std::mem::take(&mut self.backlog).into_values().map(|queued| queued.call);
        let calls = unanswered.chain(backlog).collect();
        self.unanswered_bytes = 0;
        self.due.clear();
        self.queued_keys.clear();
        self.queued_on_all = 0;
        calls
    }

    /// Sends again what is due; says how long nothing was heard when that is longer than `limit`.
    pub(super) fn handle_timeout(&mut self, now: Instant, limit: Duration, out: &mut Vec<Action>) -> Option<Duration> {
        let silent = self.silent_since().map(|since| now.saturating_duration_since(since));
        if let Some(silent) = silent
            && silent >= limit
        {
            return Some(silent);
        }
        let oldest = self.unanswered.keys().next().copied().unwrap_or(0);
        // In the order of their numbers, so that the server can run each as it comes.
        let later = self.due.split_off(&(now, u64::MAX));
        let mut due: Vec<u64> = std::mem::replace(&mut self.due, later).into_iter().map(|(_, number)| number).collect();
        due.sort_unstable();
        for sequence in due {
            let Some(request) = self.unanswered.get_mut(&sequence) else { continue };
            let Some(again) = &mut request.again else { continue };
            again.after = (again.after * 2).min(RESEND_AFTER_MAX);
            again.at = now + again.after;
            self.due.insert((again.at, sequence));
            let waited = now.saturating_duration_since(request.sent_at).as_millis();
            let message = again.message.clone().with_header(|header| {
                header.behind = u32::try_from(sequence - oldest).unwrap_or(u32::MAX);
                // What is left of the time: the server's answer, which names what was missing, must come before this
                // worker loses its patience.
                let left = u128::from(header.deadline_ms).saturating_sub(waited).max(1);
                header.deadline_ms = u32::try_from(left).unwrap_or(u32::MAX);
            });
            out.push(Action::Send { to: self.node, message });
        }
        None
    }

    pub(super) fn deadline(&self, limit: Duration) -> Option<Instant> {
        let silent = self.silent_since().map(|since| since + limit);
        let again = self.due.first().map(|(at, _)| *at);
        [silent, again].into_iter().flatten().min()
    }

    fn silent_since(&self) -> Option<Instant> {
        self.unanswered.values().next().map(|oldest| oldest.sent_at.max(self.last_heard))
    }

    fn has_room(&self) -> bool {
        let oldest = self.unanswered.keys().next().copied().unwrap_or(self.next_sequence);
        self.next_sequence - oldest < UNANSWERED_REQUESTS_MAX && self.unanswered_bytes < UNANSWERED_BYTES_MAX
    }

    fn send_backlog(&mut self, now: Instant, out: &mut Vec<Action>) {
        while self.has_room()
            && let Some((_, Queued { call, prepared })) = self.backlog.pop_first()
        {
            self.queued_on_all -= usize::from(prepared.keys.is_empty());
            for key in &prepared.keys {
                if let Some((_, count)) = self.queued_keys.get_mut(key) {
                    *count -= 1;
                    if *count == 0 {
                        self.queued_keys.remove(key);
                    }
                }
            }
            self.send(now, call, prepared, out);
        }
    }

    fn send(&mut self, now: Instant, call: CallId, prepared: Prepared, out: &mut Vec<Action>) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let oldest = self.unanswered.keys().next().copied().unwrap_or(sequence);
        let message = prepared.message.with_header(|header| {
            header.sequence = sequence;
            header.behind = u32::try_from(sequence - oldest).unwrap_or(u32::MAX);
        });
        let bytes = message.body_bytes() as usize;
        let again = match self.resend {
            Resend::Never => None,
            Resend::After(after) => Some(Again { message: message.clone(), at: now + after, after }),
        };
        self.due.extend(again.iter().map(|again| (again.at, sequence)));
        let request = Unanswered { call, expected: prepared.expected, bytes, sent_at: now, again };
        self.unanswered.insert(sequence, request);
        self.unanswered_bytes += bytes;
        out.push(Action::Send { to: self.node, message });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cluster::{Rank, Role};
    use crate::van::Endpoint;
    use crate::wire::Kind;

    fn link() -> ServerLink {
        link_with(Resend::Never, Instant::now())
    }

    fn link_with(resend: Resend, now: Instant) -> ServerLink {
        let name = NodeName { role: Role::Server, rank: Rank(0), endpoint: Endpoint("mem://1".into()) };
        ServerLink::new(NodeId(1), name, resend, now)
    }

    fn request(key: u64, bytes: usize) -> Prepared {
        let message = Message::new(Kind::Push).with_part(3, Bytes::from(vec![0; bytes]));
        Prepared { message, keys: vec![KeyId(key)], expected: Expected::Nothing }
    }

    /// Answers requests one by one and returns the calls in the order in which they were sent.
    fn drain(link: &mut ServerLink, mut out: Vec<Action>) -> Vec<u64> {
        let mut order = Vec::new();
        while !out.is_empty() {
            let Action::Send { message, .. } = out.remove(0) else { panic!("only sends") };
            let (call, _) = link.answered(Instant::now(), message.header().sequence, &mut out).unwrap();
            order.push(call.0);
        }
        order
    }

    #[test]
    fn urgent_requests_go_first_but_never_past_their_own_key() {
        let (mut link, mut out, now) = (link(), Vec::new(), Instant::now());
        // The first fills the link; the rest waits at home.
        for (call, (key, priority, bytes)) in
            [(1, 0, UNANSWERED_BYTES_MAX), (2, 0, 8), (3, 5, 8), (2, 9, 8), (4, 9, 8)].into_iter().enumerate()
        {
            link.queue(now, CallId(call as u64), priority, request(key, bytes), &mut out);
        }
        assert_eq!(drain(&mut link, out), [0, 4, 2, 1, 3]);
    }

    #[test]
    fn a_request_on_all_keys_overtakes_nothing_and_is_not_overtaken() {
        let (mut link, mut out, now) = (link(), Vec::new(), Instant::now());
        link.queue(now, CallId(0), 0, request(1, UNANSWERED_BYTES_MAX), &mut out);
        link.queue(now, CallId(1), -7, request(2, 8), &mut out);
        link.queue(now, CallId(2), 0, Prepared { keys: Vec::new(), ..request(0, 0) }, &mut out);
        // More urgent, and on another key: still behind it.
        link.queue(now, CallId(3), 9, request(3, 8), &mut out);
        assert_eq!(drain(&mut link, out), [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_sent_again_has_less_time_and_what_is_answered_is_not_sent_again() {
        let (now, mut out) = (Instant::now(), Vec::new());
        let mut link = link_with(Resend::After(Duration::from_secs(1)), now);
        for call in 0..3 {
            let mut prepared = request(call, 8);
            prepared.message = prepared.message.with_header(|header| header.deadline_ms = 10_000);
            link.queue(now, CallId(call), 0, prepared, &mut out);
        }
        assert!(link.answered(now, 2, &mut out).is_some());
        out.clear();
        for (seconds, left) in [(1, Some(9000)), (2, None), (3, Some(7000)), (7, Some(3000)), (15, Some(1))] {
            let now = now + Duration::from_secs(seconds);
            assert_eq!(link.handle_timeout(now, Duration::from_secs(60), &mut out), None);
            let sent = out.drain(..).map(|action| match action {
                Action::Send { message, .. } => (message.header().sequence, message.header().deadline_ms),
                other => panic!("{other:?}"),
            });
            let expected = left.map_or(Vec::new(), |left| vec![(1, left), (3, left)]);
            assert_eq!(sent.collect::<Vec<_>>(), expected, "after {seconds} s");
        }
        assert_eq!(link.deadline(Duration::from_secs(60)), Some(now + Duration::from_secs(15 + 8)));
    }

    #[test]
    fn the_number_of_unanswered_requests_is_bounded() {
        let (mut link, mut out, now) = (link(), Vec::new(), Instant::now());
        for call in 0..UNANSWERED_REQUESTS_MAX + 10 {
            link.queue(now, CallId(call), 0, request(call, 1), &mut out);
        }
        assert_eq!(out.len() as u64, UNANSWERED_REQUESTS_MAX);
        link.answered(now, 1, &mut out);
        assert_eq!(out.len() as u64, UNANSWERED_REQUESTS_MAX + 1);
        // Not the oldest: the window moves with the oldest only.
        link.answered(now, 3, &mut out);
        assert_eq!(out.len() as u64, UNANSWERED_REQUESTS_MAX + 1);
    }
}
