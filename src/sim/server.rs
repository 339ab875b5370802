//! The routes, and the way of a request from the socket to its answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{PromptEndpoint, wrong};
use super::caller;
use super::control;
use super::encode::id;
use super::error::ApiError;
use super::exchange;
use super::incoming::{self, VertexCall};
use super::models::{ModelSpec, find};
use super::outgoing::pause;
use super::reply;
use super::visit::Visit;
use super::world::{SharedWorld, World};

/// The calls of Vertex: `{model}:rawPredict`, `{model}:streamRawPredict`, `count-tokens:rawPredict`.
const VERTEX: &str = "/v1/projects/{project}/locations/{location}/publishers/anthropic/models/{call}";

pub fn router(world: Arc<World>) -> Router {
    Router::new()
        .route("/v1/messages", post(messages).fallback(method_not_allowed))
        .route("/v1/messages/count_tokens", post(count_tokens).fallback(method_not_allowed))
        .route(VERTEX, post(vertex).fallback(method_not_allowed))
        .route("/v1/models", get(models).fallback(method_not_allowed))
        .route("/v1/models/{id}", get(model).fallback(method_not_allowed))
        .route("/health", any(health))
        .route("/api/hello", any(hello))
        .route("/", any(hello))
        .merge(control::router())
        .fallback(not_found)
        .with_state(world)
}

async fn messages(State(world): SharedWorld, request: Request) -> Response {
    post_prompt(world, request, PromptEndpoint::Messages, None).await
}

async fn vertex(
    State(world): SharedWorld,
    Path((_, _, call)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    match VertexCall::read(&call) {
        Some(call) => post_prompt(world, request, call.endpoint(), Some(call)).await,
        None => not_found(State(world), request).await,
    }
}

async fn count_tokens(State(world): SharedWorld, request: Request) -> Response {
    post_prompt(world, request, PromptEndpoint::CountTokens, None).await
}

async fn post_prompt(
    world: Arc<World>,
    request: Request,
    endpoint: PromptEndpoint,
    vertex: Option<VertexCall>,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let visit = open(&world, &parts);
    let most = world.config.limits.body_bytes;
    let bytes = match collect(body, most).await {
        Ok(bytes) => bytes,
        Err(error) => return reply::refuse(visit, None, &error),
    };
    world.journal().set_body(visit.number(), bytes.clone());
    let read = incoming::decode(bytes, &parts.headers, most).and_then(|bytes| match &vertex {
        Some(vertex) => vertex.body(&bytes, &mut parts.headers),
        None => Ok(bytes),
    });
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => return reply::refuse(visit, None, &error),
    };
    let weather = world.faults.draw(parts.uri.path(), &parts.headers, &bytes);
    visit.note(|record| record.faults.clone_from(&weather.names));
    pause(Duration::from_millis(weather.latency_ms)).await;
    let caller = match caller::identify(&parts.headers, &world.config) {
        Ok(caller) => caller,
        Err(error) => return reply::refuse(visit, None, &error),
    };
    visit.note(|record| record.workspace = Some(caller.workspace.clone()));
    if let Some((status, retry_after_s)) = weather.status {
        return reply::refuse(visit, Some(&caller), &ordered_failure(status, retry_after_s));
    }
    if let Some(code) = weather.refusal {
        return reply::refuse(visit, Some(&caller), &code.ordered());
    }
    exchange::answer(&world, visit, &caller, &parts.headers, &bytes, endpoint, &weather).await
}

fn ordered_failure(status: u16, retry_after_s: Option<u64>) -> ApiError {
    let message = match status {
        429 => "This request would exceed your organization's rate limit. Please try again later.",
        529 => "Overloaded",
        500..=599 => "Internal server error",
        _ => "refused by a fault",
    };
    // The service names a time with every rate limit; the shortest keeps tests quick.
    let retry_after_s = retry_after_s.or((status == 429).then_some(1));
    ApiError { retry_after_s, ..ApiError::new(status, message) }
}

fn open(world: &Arc<World>, parts: &Parts) -> Visit {
    let target = parts.uri.path_and_query().map_or(parts.uri.path(), |target| target.as_str());
    let arrived_us = world.elapsed_us();
    let seed = world.config.seed;
    let (number, request_id) =
        world.journal().open(parts.method.as_str(), target, &parts.headers, arrived_us, |number| {
            id("req_", seed, &[&number.to_le_bytes()])
        });
    Visit::new(Arc::clone(world), number, request_id)
}

/// The whole body. One that is too large is read on for a while, so that the client hears the refusal.
async fn collect(mut body: Body, most: usize) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    let mut total = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("The request body could not be read"))?;
        let Some(data) = frame.data_ref() else { continue };
        total = total.saturating_add(data.len());
        if total <= most {
            whole.extend_from_slice(data);
        } else if total > most.saturating_mul(2) {
            break;
        }
    }
    if total <= most {
        Ok(whole.freeze())
    } else {
        Err(ApiError::new(413, "Request exceeds the maximum size"))
    }
}

/// How a list of models is paged.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    /// As sent, so that what is no number is refused in the API's words.
    limit: Option<String>,
    after_id: Option<String>,
    before_id: Option<String>,
}

/// The API's default page and its largest.
const PAGE_MODELS: usize = 20;
const LARGEST_PAGE: usize = 1_000;

async fn models(State(world): SharedWorld, Query(page): Query<Page>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let visit = open(&world, &parts);
    match caller::identify(&parts.headers, &world.config) {
        Err(error) => reply::refuse(visit, None, &error),
        Ok(caller) => match list(&world.config.models, &page) {
            Ok(list) => reply::json(visit, Some(&caller), &list),
            Err(error) => reply::refuse(visit, Some(&caller), &error),
        },
    }
}

fn list(models: &[ModelSpec], page: &Page) -> Result<Value, ApiError> {
    let index_of = |id: &String| models.iter().position(|model| model.id == *id);
    let limit = match &page.limit {
        None => PAGE_MODELS,
        Some(limit) => limit.parse::<usize>().map_err(|_| wrong("limit", "integer"))?,
    };
    let limit = limit.clamp(1, LARGEST_PAGE);
    let (from, until) = match (&page.after_id, &page.before_id) {
        (Some(after), _) => (index_of(after).map_or(models.len(), |index| index + 1), models.len()),
        (None, Some(before)) => {
            let until = index_of(before).unwrap_or_default();
            (until.saturating_sub(limit), until)
        }
        (None, None) => (0, models.len()),
    };
    let shown = &models[from..until.min(from + limit)];
    let has_more = if page.before_id.is_some() { from > 0 } else { from + shown.len() < models.len() };
    Ok(json!({
        "data": shown.iter().map(describe).collect::<Vec<_>>(),
        "has_more": has_more,
        "first_id": shown.first().map(|model| &model.id),
        "last_id": shown.last().map(|model| &model.id),
    }))
}

fn describe(model: &ModelSpec) -> Value {
    json!({
        "type": "model",
        "id": model.id,
        "display_name": model.display_name,
        "created_at": model.created_at,
        "max_input_tokens": model.window_tokens,
        "max_tokens": model.max_output_tokens,
    })
}

async fn model(State(world): SharedWorld, Path(name): Path<String>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let visit = open(&world, &parts);
    match caller::identify(&parts.headers, &world.config) {
        Err(error) => reply::refuse(visit, None, &error),
        Ok(caller) => match find(&world.config.models, &name) {
            Some(model) => reply::json(visit, Some(&caller), &describe(model)),
            None => reply::refuse(visit, Some(&caller), &ApiError::new(404, format!("model: {name}"))),
        },
    }
}

async fn health() -> StatusCode {
    StatusCode::OK
}

/// Clients ask for `HEAD /` or `HEAD /api/hello` to see whether anybody is there.
async fn hello(State(world): SharedWorld, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    reply::json(open(&world, &parts), None, &json!({"status": "ok"}))
}

async fn method_not_allowed(State(world): SharedWorld, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    reply::refuse(open(&world, &parts), None, &ApiError::new(405, "Method Not Allowed"))
}

async fn not_found(State(world): SharedWorld, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let visit = open(&world, &parts);
    let error = match parts.method {
        Method::OPTIONS => ApiError::new(405, "Method Not Allowed"),
        _ => ApiError::new(404, "Not Found"),
    };
    reply::refuse(visit, None, &error)
}
