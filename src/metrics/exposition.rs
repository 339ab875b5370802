//! The metrics as text, for many scrapers at little cost.
//!
//! To render them, every tenant is locked once and the open files of the process are listed. So it is done off the threads
//! that serve connections, one at a time, and no more than once a second for long: a scraper that asks more often gets the
//! previous text, with its age.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Mutex;

use super::Metrics;

/// How often it is rendered where somebody asks all the time.
const RENDER_EVERY: Duration = Duration::from_secs(1);
/// Renderings that a pause saves up: a few scrapers that come together, or a person who looks, see what is true now.
const SAVED_MAX: f64 = 10.0;

#[derive(Clone)]
pub struct Exposition {
    metrics: Arc<Metrics>,
    shared: SharedText,
}

/// A text that is rendered for whoever asks, with what is said above of it.
#[derive(Clone)]
pub struct SharedText(Arc<Mutex<State>>);

struct State {
    allowance: Allowance,
    last: Option<(Bytes, Instant)>,
}

impl Exposition {
    pub fn of(metrics: Arc<Metrics>) -> Exposition {
        Exposition { metrics, shared: SharedText::default() }
    }

    /// Returns the text and its age.
    pub async fn text(&self) -> Result<(Bytes, Duration), String> {
        let metrics = Arc::clone(&self.metrics);
        self.shared.text(move || metrics.render().map_err(|error| error.to_string())).await
    }
}

impl Default for SharedText {
    fn default() -> SharedText {
        let state = State { allowance: Allowance::new(Instant::now()), last: None };
        SharedText(Arc::new(Mutex::new(state)))
    }
}

impl SharedText {
    /// Returns the text and its age. Those who ask while it is rendered wait for it.
    pub async fn text(
        &self,
        render: impl FnOnce() -> Result<String, String> + Send + 'static,
    ) -> Result<(Bytes, Duration), String> {
        let asked = Instant::now();
        let mut guard = self.0.lock().await;
        let state = &mut *guard;
        if let Some((text, rendered)) = &state.last
            && (*rendered >= asked || !state.allowance.has_one(Instant::now()))
        {
            return Ok((text.clone(), rendered.elapsed()));
        }
        state.allowance.take();
        let began = Instant::now();
        let rendered = tokio::task::spawn_blocking(render).await;
        let text = Bytes::from(rendered.map_err(|error| error.to_string())??);
        state.last = Some((text.clone(), began));
        Ok((text, Duration::ZERO))
    }
}

/// How many times it may be rendered now. Time comes in as an argument.
struct Allowance {
    saved: f64,
    at: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance { saved: SAVED_MAX, at: now }
    }

    fn has_one(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64() / RENDER_EVERY.as_secs_f64();
        (self.saved, self.at) = ((self.saved + passed).min(SAVED_MAX), now);
        self.saved >= 1.0
    }

    fn take(&mut self) {
        self.saved = (self.saved - 1.0).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_few_it_is_rendered_once_a_second() {
        let begin = Instant::now();
        let mut allowance = Allowance::new(begin);
        let mut rendered = 0;
        for tenth in 0..600 {
            if allowance.has_one(begin + Duration::from_millis(100 * tenth)) {
                allowance.take();
                rendered += 1;
            }
        }
        assert!((68..=70).contains(&rendered), "{rendered} in a minute");
        let later = begin + Duration::from_secs(3600);
        assert!(
            allowance.has_one(later) && allowance.saved <= SAVED_MAX,
            "a pause saves up no more than that"
        );
    }

    #[tokio::test]
    async fn scrapers_that_come_together_share_one_text() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let rendered = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&rendered);
        metrics.at_scrape(move |_| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        });
        let exposition = Exposition::of(metrics);
        let all = futures_util::future::join_all((0..200).map(|_| exposition.text())).await;
        assert!(all.iter().all(|text| text.as_ref().unwrap().0.starts_with(b"# HELP")));
        let times = rendered.load(std::sync::atomic::Ordering::SeqCst);
        assert!((1..=12).contains(&times), "rendered {times} times for 200 scrapes");
        let (_, age) = exposition.text().await.unwrap();
        assert!(age < Duration::from_secs(60));
    }
}
