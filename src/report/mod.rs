//! Reports exchanges: each has one [`ExchangeRecord`], made when it has ended, and several views of it.
//!
//! ```text
//! ExchangeRecord ─┬─ log line    log.rs, on a terminal terminal.rs
//!                 ├─ metrics     metrics.rs
//!                 ├─ recording   recording/, if record.file is set
//!                 ├─ trace       traces/, if trace.endpoint is set
//!                 └─ event       events/, for the live page
//! ```
//!
//! The record holds no prompt text, no credential, no path and no raw id: endpoints, roles, plans, reasons and
//! endings are enums, sessions and agents are digests, models and clients are bounded names. Only a recording holds
//! bodies, and only if `record.bodies` or `record.match` asks for them.

pub mod events;
pub mod figures;
mod log;
mod metrics;
mod record;
pub mod recording;
mod sinks;
mod terminal;
pub mod traces;

pub use log::{LineFormat, TerminalFormat};
pub use record::{ChildTurn, Details, ExchangeRecord, OtherModel, Overhead, Times};
pub use recording::{Entries, Recording, RecordingDraft, VERSION};
pub use sinks::{ExchangeSinks, Sinks, StartError};
pub use terminal::{COLUMNS_MAX, LocalTime, cause};

use crate::metrics::Metrics;

/// Reports an exchange that has ended: counts it, writes its log line, and hands it to its sinks.
pub fn report(record: ExchangeRecord, metrics: &Metrics, sinks: ExchangeSinks) {
    metrics::count(metrics, &record);
    log::log(&record);
    if let Some(feed) = sinks.feed {
        feed.end(&record);
    }
    if let Some(trace) = sinks.trace {
        trace.end(&record);
    }
    if let Some(draft) = sinks.draft {
        draft.end(record);
    }
}
