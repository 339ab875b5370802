//! The pages for operators, in JSON: figures and digests, never the text of a prompt.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use prometheus::core::Collector as _;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use crate::config::{KEYS, SECTIONS};
use crate::engine::cache::learned::LAYERS;
use crate::engine::family::fanout::Summary;
use crate::engine::fork::experiment::Rereads;
use crate::engine::tenant::TenantAccess;
use crate::engine::words::{Arm, Hex, Moment, TenantId};
use crate::metrics::{Metrics, SharedText};
use crate::proxy::Proxy;
use crate::proxy::live::Live;
use crate::store::Forgotten;

/// The most fan-outs (the newest) and tenants (the first) in one answer.
const LISTED_MAX: usize = 500;
/// The number of digits of a tenant that logs and metrics show, and of all its digits.
const DIGITS_SHOWN: usize = 8;
const DIGITS_ALL: usize = 64;
const UNKNOWN_TENANT: &str = "nothing is known of such a tenant";

#[derive(Clone)]
struct ApiState {
    live: Live,
    metrics: Arc<Metrics>,
    /// The pages for which every tenant is locked once.
    forks: SharedText,
    prefixes: SharedText,
    /// Held while one fan-out is looked for.
    looking: Arc<Mutex<()>>,
}

/// Returns the pages under `/api`.
pub fn router(live: Live, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/api/config", get(config))
        .route("/api/forks", get(forks))
        .route("/api/forks/{id}", get(fork))
        .route("/api/prefixes", get(prefixes))
        .route("/api/breaks", get(breaks))
        .route("/api/tenants/{digest}", delete(forget))
        .with_state(ApiState {
            live,
            metrics,
            forks: SharedText::default(),
            prefixes: SharedText::default(),
            looking: Arc::default(),
        })
}

/// Shows the configuration in force, with secrets masked.
async fn config(State(desk): State<ApiState>) -> Json<Value> {
    let proxy = desk.live.now();
    let section = |name: &str| -> Map<String, Value> {
        let keys = KEYS.iter().filter(|key| key.section() == name);
        keys.map(|key| (key.name().to_owned(), key.shown(proxy.config()).to_json())).collect()
    };
    let mut sections: Map<String, Value> =
        SECTIONS.iter().map(|s| (s.name.to_owned(), section(s.name).into())).collect();
    sections.insert("tenants".to_owned(), json!(proxy.config().tenants));
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "generation": proxy.generation().number,
        "needs_restart": proxy.generation().left,
        "config": sections,
    }))
}

/// Shows the newest fan-outs. It is rendered off the threads that serve connections, and shared.
async fn forks(State(desk): State<ApiState>) -> Response {
    let live = desk.live.clone();
    shared(&desk.forks, move || all_forks(&live)).await
}

fn all_forks(live: &Live) -> Value {
    let now = live.now().clock().now();
    let mut found = summaries(live);
    found.sort_by_key(|(_, fork)| std::cmp::Reverse(fork.since));
    let all = found.len();
    let listed: Vec<_> =
        found.iter().take(LISTED_MAX).map(|(tenant, fork)| shown(*tenant, fork, now)).collect();
    let mut rereads = live.now().store().rereads();
    rereads.sort_by_key(|(.., rereads)| std::cmp::Reverse(rereads.tokens));
    let reread = |(tenant, tool, arm, rereads): &(TenantId, String, Arm, Rereads)| {
        let (tokens, turns) = (rereads.tokens, rereads.turns);
        json!({ "tenant": tenant.to_string(), "tool": tool, "arm": arm.as_str(), "tokens": tokens, "turns": turns })
    };
    let rereads: Vec<_> = rereads.iter().take(LISTED_MAX).map(reread).collect();
    json!({ "forks": listed, "live": all, "rereads": rereads })
}

async fn fork(State(desk): State<ApiState>, Path(id): Path<String>) -> Response {
    let now = desk.live.now().clock().now();
    let live = desk.live.clone();
    let find = move || summaries(&live).into_iter().find(|(_, fork)| fork.id.to_string() == id);
    // One at a time, so that those who ask take one core at most.
    let looking = desk.looking.lock().await;
    let found = tokio::task::spawn_blocking(find).await;
    drop(looking);
    let Ok(Some((tenant, fork))) = found else {
        return nothing("no such fan-out is remembered");
    };
    let mut value = shown(tenant, &fork, now);
    let call = |call: &crate::engine::family::fanout::CallSummary| {
        json!({
            "tool": call.spawning.as_str(),
            "directives": call.directives,
            "child_seen": call.has_child,
            "result_returned": call.has_returned,
        })
    };
    value["calls"] = fork.calls.iter().map(call).collect();
    Json(value).into_response()
}

fn shown(tenant: TenantId, fork: &Summary, now: Moment) -> Value {
    let children = fork.calls.iter().filter(|call| call.has_child).count();
    let returned = fork.calls.iter().filter(|call| call.has_returned).count();
    json!({
        "id": fork.id.to_string(),
        "tenant": tenant.to_string(),
        "prefix": fork.prefix.to_string(),
        "state": if fork.is_sealed { "sealed" } else { "pending" },
        "age_s": now.since(fork.since) / 1000,
        "bytes": fork.bytes,
        "calls": fork.calls.len(),
        "children_seen": children,
        "results_returned": returned,
    })
}

/// Shows the number of remembered prefixes, by layer and tenant.
async fn prefixes(State(desk): State<ApiState>) -> Response {
    let live = desk.live.clone();
    shared(&desk.prefixes, move || all_prefixes(&live)).await
}

fn all_prefixes(live: &Live) -> Value {
    let proxy = live.now();
    let layers = |counts: [usize; 4]| -> Map<String, Value> {
        LAYERS.iter().zip(counts).map(|(layer, count)| (layer.as_str().to_owned(), count.into())).collect()
    };
    let known = proxy.store().known();
    let tenants: Vec<_> = known
        .iter()
        .take(LISTED_MAX)
        .map(
            |(id, tenant)| json!({ "tenant": id.to_string(), "layers": layers(tenant.look(|state| state.learned.prefixes())) }),
        )
        .collect();
    json!({ "layers": layers(proxy.store().prefixes()), "tenants": tenants, "live": known.len() })
}

/// Answers with a page that all share who ask for it.
async fn shared(page: &SharedText, render: impl FnOnce() -> Value + Send + 'static) -> Response {
    match page.text(|| Ok(render().to_string())).await {
        Ok((text, age)) => {
            let age = HeaderValue::from(age.as_millis() as u64);
            let kind = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, kind), (super::AGE.clone(), age)], text).into_response()
        }
        Err(error) => {
            tracing::error!(error, "a page cannot be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Shows the cache breaks since the start, by layer and cause.
async fn breaks(State(desk): State<ApiState>) -> Json<Value> {
    let mut found = Vec::new();
    for family in desk.metrics.cache_breaks_total.collect() {
        for sample in family.get_metric() {
            let label = |name: &str| {
                let label = sample.get_label().iter().find(|label| label.name() == name);
                label.map_or("", |label| label.value()).to_owned()
            };
            let (layer, cause) = (label("layer"), label("cause"));
            let tokens = desk.metrics.cache_break_tokens_total.with_label_values(&[&layer, &cause]).get();
            let count = sample.get_counter().get_value() as u64;
            if count == 0 {
                continue;
            }
            found.push(json!({ "layer": layer, "cause": cause, "count": count, "tokens_lost": tokens }));
        }
    }
    Json(json!({ "breaks": found }))
}

/// Forgets a tenant by its digest, or by the first digits that logs show.
async fn forget(State(desk): State<ApiState>, Path(digest): Path<String>) -> Response {
    let hex = digest.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !hex || !(DIGITS_SHOWN..=DIGITS_ALL).contains(&digest.len()) {
        let hint = format!(
            "a tenant is {DIGITS_SHOWN} to {DIGITS_ALL} hex digits, as in the field tenant of the log\n"
        );
        return (StatusCode::BAD_REQUEST, hint).into_response();
    }
    let proxy = desk.live.now();
    let digest = digest.to_ascii_lowercase();
    let known = proxy.store().known();
    let meant: Vec<_> =
        known.iter().map(|(id, _)| *id).filter(|id| digits(id).starts_with(&digest)).collect();
    match meant.as_slice() {
        // The store behind the memory knows tenants by their whole digest.
        [] => match whole(&digest) {
            Some(id) => forget_for_good(&proxy, &id).await,
            None => nothing(UNKNOWN_TENANT),
        },
        [id] => forget_for_good(&proxy, id).await,
        _ => (StatusCode::CONFLICT, "several tenants begin so; give more digits\n").into_response(),
    }
}

async fn forget_for_good(proxy: &Proxy, id: &TenantId) -> Response {
    let Forgotten { was_known, error } = proxy.store().forget_for_good(id).await;
    if let Some(error) = error {
        let error = error.as_str();
        tracing::warn!(tenant = %id, error, "a tenant was forgotten here; the store will forget it when it works again");
        let note =
            "forgotten here, and not yet in the store behind the memory: forkpoint tries again while it runs";
        let body = json!({ "tenant": id.to_string(), "forgotten": false, "error": note, "store": error });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    if !was_known {
        return nothing(UNKNOWN_TENANT);
    }
    tracing::info!(tenant = %id, "a tenant was forgotten, as an operator asked");
    Json(json!({ "tenant": id.to_string(), "forgotten": true })).into_response()
}

/// The tenant of a whole digest.
fn whole(digest: &str) -> Option<TenantId> {
    let mut id = [0; 32];
    if digest.len() != 2 * id.len() {
        return None;
    }
    for (byte, at) in id.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digest.get(at..at + 2)?, 16).ok()?;
    }
    Some(TenantId(id))
}

fn digits(id: &TenantId) -> String {
    Hex(&id.0).to_string()
}

fn nothing(why: &'static str) -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "error": why }))).into_response()
}

fn summaries(live: &Live) -> Vec<(TenantId, Summary)> {
    let known = live.now().store().known();
    let of = |(id, tenant): (TenantId, Arc<crate::store::Tenant>)| {
        let forks = tenant.look(|state| state.fan_outs.points().summaries());
        forks.into_iter().map(move |fork| (id, fork))
    };
    known.into_iter().flat_map(of).collect()
}
