//! `record.match`: the exchanges whose bodies are kept in full, for `record.match_minutes`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::{ExchangeRecord, Now};
use crate::config::{Record, Selector};
use crate::engine::words::Moment;

/// The exchanges that are looked for at the moment, if any.
pub struct Matching {
    wanted: Mutex<Option<Wanted>>,
    /// Read for every request, so that no bodies are kept once the time is over.
    until_ms: AtomicU64,
    now: Now,
}

impl Matching {
    pub fn new(now: Now) -> Matching {
        Matching { wanted: Mutex::default(), until_ms: AtomicU64::default(), now }
    }

    /// Starts to look for the exchanges that `record.match` names, for `record.match_minutes`.
    pub fn begin(&self, record: &Record) {
        let until = (self.now)().after(60_000 * record.match_minutes as u64);
        let wanted = record.matching.clone().map(|selector| Wanted { selector, until });
        self.until_ms.store(wanted.as_ref().map_or(0, |wanted| wanted.until.0), Relaxed);
        // The value is replaced as a whole, so a panic elsewhere leaves it usable.
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
    }

    /// Returns true while any exchanges are looked for.
    pub fn is_on(&self) -> bool {
        (self.now)().0 < self.until_ms.load(Relaxed)
    }

    /// Returns true if this exchange is looked for.
    pub fn wants(&self, record: &ExchangeRecord) -> bool {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.as_ref().is_some_and(|wanted| wanted.is(record, (self.now)()))
    }
}

#[derive(Debug)]
struct Wanted {
    selector: Selector,
    until: Moment,
}

impl Wanted {
    fn is(&self, record: &ExchangeRecord, now: Moment) -> bool {
        let (shown, digest) = match &self.selector {
            Selector::Tenant(digest) => (&record.tenant, digest),
            Selector::Agent(digest) => (&record.agent, digest),
            Selector::Fork(digest) if record.fanned_out.as_ref() == Some(digest) => {
                (&record.fanned_out, digest)
            }
            Selector::Fork(digest) => (&record.fork, digest),
        };
        shown.as_ref() == Some(digest) && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_an_agent_or_a_fork_is_matched_until_its_time_has_run_out() {
        let minutes = |minutes: u64| Moment(60_000 * minutes);
        let digest = || "0123abcd".to_owned();
        let named = || Some(digest());
        let records = [
            ExchangeRecord { tenant: named(), ..ExchangeRecord::default() },
            ExchangeRecord { agent: named(), ..ExchangeRecord::default() },
            ExchangeRecord { fork: named(), ..ExchangeRecord::default() },
            ExchangeRecord { fanned_out: named(), ..ExchangeRecord::default() },
            ExchangeRecord { session: named(), ..ExchangeRecord::default() },
        ];
        for (selector, expected) in [
            (Selector::Tenant(digest()), [true, false, false, false, false]),
            (Selector::Agent(digest()), [false, true, false, false, false]),
            (Selector::Fork(digest()), [false, false, true, true, false]),
            (Selector::Fork("ffffffff".into()), [false; 5]),
        ] {
            let wanted = Wanted { selector, until: minutes(10) };
            assert_eq!(records.each_ref().map(|record| wanted.is(record, minutes(9))), expected);
            assert_eq!(records.each_ref().map(|record| wanted.is(record, minutes(10))), [false; 5]);
        }
    }
}
