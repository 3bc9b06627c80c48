//! A server as a member of a job.

use std::time::Instant;

use super::member::{Member, News};
use super::server::{Server, ServerConfig};
use super::{Action, LinkEvent, Machine, MemberConfig};
use crate::cluster::{NodeId, Role, Standing};
use crate::wire::{Control, Kind, Message};

/// Membership and the server's decisions together.
pub struct ServerNode {
    member: Member,
    server: Server,
    joined: bool,
    stopped: bool,
}

impl ServerNode {
    /// A server that starts to join.
    #[must_use]
    pub fn new(member: MemberConfig, server: ServerConfig, now: Instant, out: &mut Vec<Action>) -> Self {
        Self { member: Member::new(member, now, out), server: Server::new(server), joined: false, stopped: false }
    }

    /// The server's decisions, for tests to look into.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    fn take(&mut self, news: Option<News>, out: &mut Vec<Action>) {
        match news {
            None | Some(News::Control(_) | News::Left) => {}
            Some(News::Roster) => {
                let Some(roster) = self.member.roster() else { return };
                self.server.set_workers(roster.job.worker_loss, roster.of_role(Role::Worker), out);
                if !std::mem::replace(&mut self.joined, true)
                    && let Some(place) = self.member.place()
                {
                    out.push(Action::Joined(place));
                }
            }
            Some(News::Over(result)) => {
                self.stopped = true;
                out.push(Action::Stop(result));
            }
        }
    }
}

impl Machine for ServerNode {
    fn handle(&mut self, now: Instant, from: NodeId, message: Message, out: &mut Vec<Action>) {
        if self.stopped {
            return;
        }
        if message.kind() != Kind::Control {
            self.server.handle(now, from, message, out);
            return;
        }
        if self.member.scheduler() != Some(from) {
            tracing::debug!(%from, "dropped a control message that is not from the scheduler");
            return;
        }
        match Control::of_message(&message) {
            Ok(control) => {
                let stats = self.server.stats();
                let news = self.member.handle(now, control, stats, out);
                self.take(news, out);
            }
            Err(error) => tracing::warn!(%error, "dropped a control message"),
        }
    }

    fn handle_link(&mut self, now: Instant, event: LinkEvent, out: &mut Vec<Action>) {
        if self.stopped {
            return;
        }
        let news = self.member.handle_link(now, &event, out);
        self.take(news, out);
        if let LinkEvent::Down { node, reason } = &event {
            let member = self.member.roster().and_then(|roster| roster.find(*node));
            if member.is_some_and(|member| member.standing == Standing::Live) && !self.server.has_left(*node) {
                self.member.report_lost(*node, reason, out);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.stopped {
            return;
        }
        self.server.handle_timeout(now, out);
        let news = self.member.handle_timeout(now, self.server.stats(), out);
        self.take(news, out);
    }

    fn deadline(&self) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        [self.member.deadline(), self.server.deadline()].into_iter().flatten().min()
    }
}
