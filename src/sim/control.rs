//! The simulator's own endpoints, under `/sim`: what arrived, what is cached, the clock and the faults.
//!
//! | | |
//! |---|---|
//! | `GET /sim/requests`, `DELETE` | every request as it arrived, and what it cost; forget them |
//! | `GET /sim/cache`, `DELETE` | the live entries; forget them |
//! | `GET /sim/threads`, `DELETE` | the held answers of threads; lose them |
//! | `GET /sim/clock`, `POST` | `{"advance_ms":N}`, `{"set_ms":N}`, `{"frozen":true}`, in this order |
//! | `GET /sim/faults`, `POST`, `DELETE` | the waiting rules; order one or a list; forget them |

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cache::CacheEntry;
use super::faults::Rule;
use super::world::{SharedWorld, World};

pub fn router() -> Router<Arc<World>> {
    Router::new()
        .route("/sim/requests", get(requests).delete(forget_requests))
        .route("/sim/cache", get(cache).delete(forget_cache))
        .route("/sim/threads", get(threads).delete(lose_threads))
        .route("/sim/clock", get(clock).post(set_clock))
        .route("/sim/faults", get(faults).post(order_faults).delete(forget_faults))
}

async fn requests(State(world): SharedWorld) -> Json<Value> {
    let records = world.journal().records();
    Json(json!({"requests": records.iter().map(super::journal::RequestRecord::json).collect::<Vec<_>>()}))
}

async fn forget_requests(State(world): SharedWorld) -> StatusCode {
    world.journal().clear();
    StatusCode::NO_CONTENT
}

async fn cache(State(world): SharedWorld) -> Json<Value> {
    let now_ms = world.clock.now_ms();
    let entries = world.cache().entries(now_ms);
    let shown = entries.iter().map(|(key, entry)| show(key.hex(), entry));
    Json(json!({"now_ms": now_ms, "entries": shown.collect::<Vec<_>>()}))
}

fn show(prefix: String, entry: &CacheEntry) -> Value {
    let mut shown = json!(entry);
    shown["prefix"] = Value::String(prefix);
    shown
}

async fn forget_cache(State(world): SharedWorld) -> StatusCode {
    world.cache().clear();
    StatusCode::NO_CONTENT
}

async fn threads(State(world): SharedWorld) -> Json<Value> {
    Json(json!({"now_ms": world.clock.now_ms(), "threads": world.threads().shown()}))
}

async fn lose_threads(State(world): SharedWorld) -> StatusCode {
    world.threads().clear();
    StatusCode::NO_CONTENT
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockOrder {
    advance_ms: Option<u64>,
    set_ms: Option<u64>,
    frozen: Option<bool>,
}

async fn clock(State(world): SharedWorld) -> Json<Value> {
    Json(json!({"now_ms": world.clock.now_ms(), "frozen": world.clock.is_frozen()}))
}

async fn set_clock(state: SharedWorld, body: Bytes) -> Response {
    let order: ClockOrder = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => return wrong(&error.to_string()),
    };
    let clock = &state.clock;
    if let Some(ms) = order.advance_ms {
        clock.advance(Duration::from_millis(ms));
    }
    if let Some(ms) = order.set_ms {
        clock.set_ms(ms);
    }
    match order.frozen {
        Some(true) => clock.freeze(),
        Some(false) => clock.resume(),
        None => {}
    }
    self::clock(state).await.into_response()
}

async fn faults(State(world): SharedWorld) -> Json<Value> {
    Json(json!({"faults": world.faults.waiting()}))
}

/// One rule or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Orders {
    Several(Vec<Rule>),
    One(Rule),
}

async fn order_faults(state: SharedWorld, body: Bytes) -> Response {
    let rules = match serde_json::from_slice(&body) {
        Ok(Orders::Several(rules)) => rules,
        Ok(Orders::One(rule)) => vec![rule],
        // Said again of the single form, whose message names what is wrong.
        Err(error) => {
            let reason = serde_json::from_slice::<Rule>(&body).err().unwrap_or(error);
            return wrong(&reason.to_string());
        }
    };
    for rule in rules {
        if let Err(error) = state.faults.order(rule) {
            return wrong(&error.to_string());
        }
    }
    faults(state).await.into_response()
}

async fn forget_faults(State(world): SharedWorld) -> StatusCode {
    world.faults.clear();
    StatusCode::NO_CONTENT
}

fn wrong(reason: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({"error": reason}))).into_response()
}
