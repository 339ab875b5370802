//! Who else is told of an exchange, where anybody asked for that: the recording, and the collector of traces.

use std::sync::Arc;

use http::HeaderMap;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::proxy::clock::Clock;
use crate::proxy::forward::SetupError;
use crate::proxy::recording::{Recording, Tape};

use super::traces::{Traced, Tracer};

pub struct Witnesses {
    pub recording: Option<Arc<Recording>>,
    pub tracer: Option<Arc<Tracer>>,
}

impl Witnesses {
    pub fn start(
        config: &Config,
        metrics: &Arc<Metrics>,
        clock: &Arc<Clock>,
    ) -> Result<Witnesses, SetupError> {
        let (recording, tracer) =
            (Recording::start(config, metrics, clock)?, Tracer::start(config, metrics)?);
        Ok(Witnesses { recording, tracer })
    }

    /// For a request with these headers.
    pub fn of(&self, headers: &mut HeaderMap) -> (Option<Tape>, Option<Traced>) {
        let tape = self.recording.as_ref().map(Tape::new);
        (tape, self.tracer.as_ref().and_then(|tracer| tracer.begin(headers)))
    }

    /// Waits, a little, until all of them have what they are to have.
    pub async fn flush(&self) {
        if let Some(recording) = self.recording.clone() {
            let _ = tokio::task::spawn_blocking(move || recording.flush()).await;
        }
        if let Some(tracer) = &self.tracer {
            tracer.flush().await;
        }
    }
}
