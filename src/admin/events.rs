//! `/events`: what happens, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::proxy::live::Live;
use crate::report::events::{Events, Subscriber};

/// The longest silence: after that a comment shows both ends whether the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

#[derive(Clone)]
struct Readers {
    events: Arc<Events>,
    /// One permit for each reader at a time.
    places: Arc<Semaphore>,
}

/// A reader with its place, which is free again when the connection ends.
struct Reader {
    subscriber: Subscriber,
    _place: OwnedSemaphorePermit,
}

/// Returns `/events`, for as many readers at once as `admin.subscribers` allows.
pub fn router(live: &Live) -> Router {
    let proxy = live.now();
    let readers = Readers {
        events: Arc::clone(&proxy.sinks().events),
        places: Arc::new(Semaphore::new(proxy.config().admin.subscribers)),
    };
    Router::new().route("/events", get(events)).with_state(readers)
}

async fn events(State(readers): State<Readers>, headers: HeaderMap) -> Response {
    let Ok(_place) = readers.places.try_acquire_owned() else {
        let hint = "as many read already as admin.subscribers allows\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "5")], hint).into_response();
    };
    let last_id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let reader = Reader { subscriber: readers.events.subscribe(last_id), _place };
    let body = stream::unfold(reader, |mut reader| async {
        let next = tokio::time::timeout(KEEP_ALIVE, reader.subscriber.next()).await;
        Some((Ok::<_, Infallible>(next.unwrap_or(COMMENT)), reader))
    });
    let head = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (head, Body::from_stream(body)).into_response()
}
