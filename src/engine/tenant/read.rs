//! Reads a request by what is known of its tenant, and finds what it follows.

use std::sync::Arc;

use bytes::Bytes;

use super::TenantAccess;
use super::asked::last_message;
use crate::engine::cache::entry::Parameters;
use crate::engine::family::arrival::{Arrival, OriginalBody, Predecessor};
use crate::engine::family::recent::{Hint, Recent, RecentId};
use crate::engine::family::thread::Delta;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::json::Malformed;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{
    FirstAnswer, Known, KnownLayer, Last, Like, Opening, Remembered, SharedParts,
};
use crate::engine::request::thread::ThreadField;
use crate::engine::respell::canonical::Order;
use crate::engine::respell::echo::{self, Echoed};
use crate::engine::words::{Layer, Reason, Recall};

/// The name of the member by which a request goes on from an answer.
const CONTINUES: &[u8] = b"\"previous_message_id\"";

/// The mode in which a request is read.
#[derive(Clone, Copy, Debug)]
pub enum ReadMode {
    /// It goes out as it came.
    AsItCame,
    /// It may go out in another spelling, and the tenant's order is this.
    Spelt(Order),
}

/// A tenant as one request sees it.
pub struct View<'a, T> {
    pub tenant: &'a T,
    pub hint: Option<Hint>,
}

impl<T: TenantAccess> View<'_, T> {
    /// Reads a request and finds what it follows.
    pub fn read<'b>(
        &self,
        body: &Bytes,
        attribution: Attribution,
        mode: ReadMode,
        betas: impl Iterator<Item = &'b str> + Clone,
    ) -> Result<Arrival, Reason> {
        let arrival = self.read_whole(body, attribution, mode, betas.clone())?;
        // What the server holds is compared there with what came, and is never spelt otherwise.
        match ThreadField::read(arrival.received.body(), arrival.received.anatomy()) {
            None => Ok(arrival),
            Some(ThreadField::Create) if arrival.came.is_none() => Ok(self.created(arrival)),
            Some(ThreadField::Create) => {
                self.read_as_it_came(body, attribution, betas).map(|arrival| self.created(arrival))
            }
            Some(ThreadField::Continue(id)) => self.read_held(body, &id, attribution, betas),
            Some(ThreadField::Other) => Err(Reason::UnknownThread),
        }
    }

    /// A whole request that the server is to hold from now on: its client may have been asked for it.
    fn created(&self, arrival: Arrival) -> Arrival {
        let received = &arrival.received;
        let is_asked_for = received.is_answered()
            && self.tenant.look(|state| state.has_asked_whole())
            && last_message(received.body(), received.anatomy())
                .is_some_and(|last| self.tenant.look(|state| state.has_asked_for(last)));
        Arrival { is_asked_for, ..arrival }
    }

    /// The bytes of the conversation that a request goes on from, if the server holds that: reading such a request takes
    /// as long as reading all of it.
    pub fn held_bytes(&self, body: &[u8]) -> usize {
        // Few tenants have conversations that the server holds, and few requests go on from one: the others are neither
        // searched nor read for this. Searching takes 7 % of the work on an aligned request of 200 KB.
        if !self.recent(|recent| recent.holds_any()) || memchr::memmem::find(body, CONTINUES).is_none() {
            return 0;
        }
        let Ok(anatomy) = Anatomy::read(body) else { return 0 };
        match ThreadField::read(body, &anatomy) {
            Some(ThreadField::Continue(id)) => self.recent(|recent| recent.held_bytes(&id)),
            _ => 0,
        }
    }

    /// Reads a request as if all of it had come, in the spelling of its conversation.
    fn read_whole<'b>(
        &self,
        body: &Bytes,
        attribution: Attribution,
        mode: ReadMode,
        betas: impl Iterator<Item = &'b str>,
    ) -> Result<Arrival, Reason> {
        let echoed = match mode {
            ReadMode::AsItCame => None,
            ReadMode::Spelt(order) => self.echo(body, order),
        };
        let Some((last, Echoed { body: echoed, from, same: repeated })) = echoed else {
            return self.read_as_it_came(body, attribution, betas);
        };
        let came = Some(OriginalBody { body: body.clone(), from });
        let sent = last.trace.forwarded();
        let known = Last { request: &sent, repeated };
        let (received, like) = Remembered::recall(echoed, &known, attribution).map_err(unreadable)?;
        let before = last.sent(&received, like);
        Ok(Arrival { came, ..self.arrival(received, Some(before), betas) })
    }

    fn read_as_it_came<'b>(
        &self,
        body: &Bytes,
        attribution: Attribution,
        betas: impl Iterator<Item = &'b str>,
    ) -> Result<Arrival, Reason> {
        let (received, like) = Remembered::recall(body.clone(), self, attribution).map_err(unreadable)?;
        let before = like.and_then(|like| self.recent(|recent| self.predecessor(recent, like, &received)));
        Ok(self.arrival(received, before, betas))
    }

    /// Reads a request that goes on from an answer which the server holds.
    fn read_held<'b>(
        &self,
        body: &Bytes,
        message_id: &str,
        attribution: Attribution,
        betas: impl Iterator<Item = &'b str>,
    ) -> Result<Arrival, Reason> {
        let last = self.recent(|recent| recent.predecessor(recent.held(message_id)?));
        let last = last.ok_or(Reason::UnknownThread)?;
        let answer = last.outcome.held.as_ref().ok_or(Reason::UnknownThread)?;
        let completed = Delta::complete(body, &last.trace.received, answer).map_err(unreadable)?;
        let (whole, delta) = completed.ok_or(Reason::UnknownThread)?;
        let known = Last { request: &last.trace.received, repeated: SharedParts::default() };
        let (received, like) = Remembered::recall(whole, &known, attribution).map_err(unreadable)?;
        let same = like.map(|like| like.same).unwrap_or_default();
        let before = Predecessor { same, continued: true, ..last };
        Ok(Arrival { delta: Some(delta), ..self.arrival(received, Some(before), betas) })
    }

    /// The request that another was found to be like.
    fn predecessor(&self, recent: &Recent, like: Like, received: &Remembered) -> Option<Predecessor> {
        let (found, hinted) = recent.find(&like.request, self.hint.as_ref())?;
        let found = if hinted { found } else { recent.closest(found, received) };
        let before = recent.predecessor(found)?;
        let is_like = Arc::ptr_eq(&before.trace.received, &like.request);
        let same = if is_like { like.same } else { SharedParts::default() };
        let continued = before.trace.is_continued_by(received, hinted);
        Some(Predecessor { same, continued, ..before })
    }

    fn arrival<'b>(
        &self,
        received: Remembered,
        before: Option<Predecessor>,
        betas: impl Iterator<Item = &'b str>,
    ) -> Arrival {
        let (body, anatomy) = (received.body(), received.anatomy());
        let parameters = match &before {
            Some(before) => Parameters::read_after(&before.trace.parameters, body, anatomy, betas),
            None => Parameters::read(self.tenant.look(|state| state.id), body, anatomy, betas),
        };
        let is_continued = before.as_ref().is_some_and(|before| before.continued);
        let is_unlike = before.is_none();
        let lost = |recent: &Recent| {
            let (chosen, outlines) = (recent.chosen(&received, self.hint), recent.outlines());
            let faded = outlines.find(&received, self.hint);
            let recall = match &faded {
                Some(_) => Recall::Faded,
                None if is_unlike && received.is_answered() && outlines.has_forgotten() => Recall::Forgotten,
                None => Recall::New,
            };
            (chosen, faded, recall)
        };
        let (chosen, faded, recall) =
            if is_continued { (None, None, Recall::Hit) } else { self.recent(lost) };
        Arrival { before, chosen, faded, recall, ..Arrival::alone(received, parameters) }
    }

    /// The request in the spelling of the conversation that it continues, and the last request of that.
    fn echo(&self, body: &Bytes, order: Order) -> Option<(Predecessor, Echoed)> {
        if !self.recent(Recent::respells) {
            return None;
        }
        let hinted = self.hint.as_ref().and_then(|hint| self.recent(|recent| recent.hinted(hint)));
        let opened = || -> Vec<RecentId> {
            let opening = Opening::glimpse(body);
            opening.map_or_else(Vec::new, |opening| self.recent(|recent| recent.opened(opening).collect()))
        };
        let candidates = hinted.map_or_else(opened, |id| vec![id]);
        candidates.into_iter().find_map(|id| {
            let last = self.recent(|recent| recent.predecessor(id))?;
            let conversation = &last.conversation;
            if conversation.order(order) != Order::FirstSeen || conversation.is_stood_down() {
                return None;
            }
            let whole = last.trace.whole()?;
            // What it finds in the cache as sent is known only if it is read as it came.
            if echo::keeps_its_own(body, &last.trace.received, whole) {
                return None;
            }
            let mut spelling = self.tenant.look(|state| state.recent.take_spelling(conversation.id))?;
            let echoed = echo::echo(body, whole, &mut spelling);
            self.tenant.look(|state| state.recent.bring_back_spelling(conversation.id, spelling));
            Some((last, echoed?))
        })
    }

    fn recent<R>(&self, look: impl FnOnce(&Recent) -> R) -> R {
        self.tenant.look(|state| look(&state.recent))
    }

    fn received(&self, ids: impl FnOnce(&Recent) -> Vec<RecentId>) -> Vec<Arc<Remembered>> {
        self.recent(|recent| ids(recent).into_iter().filter_map(|id| recent.received(id)).cloned().collect())
    }
}

fn unreadable(_: Malformed) -> Reason {
    Reason::NotJson
}

impl<T: TenantAccess> Known for View<'_, T> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        let hint = self.hint.as_ref()?;
        self.recent(|recent| recent.received(recent.hinted(hint)?).cloned())
    }

    fn opened(&self, opening: Opening) -> Vec<Arc<Remembered>> {
        self.received(|recent| recent.opened(opening).collect())
    }

    fn answered(&self, opening: Opening, answer: Option<FirstAnswer>) -> Vec<Arc<Remembered>> {
        self.received(|recent| recent.answered(opening, answer).collect())
    }

    fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        self.recent(|recent| recent.layers(layer))
    }
}
