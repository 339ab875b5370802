//! Waiting: for the end of a parent's answer, or for another request that writes what this one would write too.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::decide::{GatePass, Wait};
use crate::engine::tenant::TenantAccess;
use crate::engine::words::{GateOutcome, Ticket};
use crate::store::{Store, Tenant};

use super::clock::Clock;
use super::exchange::Exchange;

/// How often a child that waits for its parent's answer asks other processes for it. All children of a tenant share the
/// answer.
const SEAL_NEWS_EVERY: Duration = Duration::from_millis(40);

/// The gate's treatment of a request, and what that was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub outcome: GateOutcome,
    /// Its number at the gate, if it had a place there.
    pub ticket: Option<Ticket>,
    pub leader: Option<Ticket>,
    pub time: Duration,
    /// Tokens of the entry that was waited for.
    pub tokens: u64,
}

/// The waits of one request, until it goes out.
#[derive(Debug, Default)]
pub struct Waits {
    at_gate: Duration,
    /// Tokens that another was writing when it first waited at the gate.
    underway_tokens: Option<u64>,
}

impl Waits {
    /// The gate's treatment of a request that goes now.
    pub fn held(&self, ticket: Ticket, pass: &GatePass) -> Held {
        let has_place = pass.let_go.outcome != GateOutcome::TooSlow;
        Held {
            outcome: pass.let_go.outcome,
            ticket: has_place.then_some(ticket),
            leader: pass.let_go.leader,
            time: self.at_gate,
            tokens: self.underway_tokens.unwrap_or(pass.underway_tokens),
        }
    }

    /// Waits until the request has to look again.
    pub async fn wait(&mut self, wait: Wait, waiter: Waiter<'_>, exchange: &mut Exchange) {
        let Waiter { tenant, store, clock, ticket } = waiter;
        let (began, is_shared) = (clock.elapsed(), store.is_shared());
        exchange.facts.waits_since.get_or_insert_with(std::time::Instant::now);
        exchange.waits_at_gate = wait.underway_tokens.is_some();
        exchange.show();
        let place = Place { tenant, clock, ticket, has_left: false };
        // In time or not, what is known by then is looked at again.
        tokio::select! {
            biased;
            () = poll_fn(|cx| tenant.poll_wait(ticket, wait.until, cx)) => {}
            () = clock.sleep_until(wait.until) => {}
            () = hear_of_seal(store, tenant), if is_shared && wait.underway_tokens.is_none() => {}
        }
        place.leave();
        exchange.waits_at_gate = false;
        let waited = clock.elapsed() - began;
        match wait.underway_tokens {
            None => exchange.facts.awaited += waited,
            Some(tokens) => {
                self.at_gate += waited;
                self.underway_tokens.get_or_insert(tokens);
            }
        }
    }
}

/// A request that waits.
#[derive(Clone, Copy)]
pub struct Waiter<'a> {
    pub tenant: &'a Arc<Tenant>,
    pub store: &'a Store,
    pub clock: &'a Clock,
    pub ticket: Ticket,
}

/// Asks now and then whether another process has sealed what a child waits for. Never returns; the waiting request is
/// woken through its ticket.
async fn hear_of_seal(store: &Store, tenant: &Arc<Tenant>) {
    loop {
        tokio::time::sleep(SEAL_NEWS_EVERY).await;
        store.news_at_last(tenant).await;
    }
}

impl Held {
    /// Returns true if the wait was for an entry that should now be warm.
    pub fn follows(&self) -> bool {
        matches!(self.outcome, GateOutcome::Released | GateOutcome::Presumed)
    }
}

/// The place of a request that waits. If its client leaves, it is dropped, and whoever waits for it goes next.
struct Place<'a> {
    tenant: &'a Tenant,
    clock: &'a Clock,
    ticket: Ticket,
    has_left: bool,
}

impl Place<'_> {
    /// The request looks again.
    fn leave(mut self) {
        self.has_left = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.tenant.forget_waker(self.ticket);
        if !self.has_left {
            self.tenant.look(|state| state.stop_waiting(self.ticket, self.clock.now()));
        }
    }
}

#[cfg(test)]
mod tests;
