//! One Messages request from its bytes to its answer.
//!
//! ```text
//! collect → faults → who asks → parse → thread → rules → prompt → cache → script → time to first token → bytes
//! ```
//!
//! Everything between parsing and the answer is one synchronous step; only waiting and sending are not.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::answer::{FinishedAnswer, Iteration, StreamEvent};
use super::body::{self, PromptEndpoint};
use super::cache::{Consultation, Position};
use super::caller::Caller;
use super::config::Encoding;
use super::encode::id;
use super::error::{ApiError, kind_of};
use super::faults::Weather;
use super::journal::Hit;
use super::outgoing::{self, Effect, Frame, pause};
use super::prompt::DigestedPrompt;
use super::recital::{self, Cue, Cues, Recital};
use super::reply;
use super::rules::{self, signature};
use super::script::{AnswerBlock, Play, Scene};
use super::settings::{Iterations, Visibility};
use super::threads::rules::ThreadCache;
use super::threads::{Continued, SentContinue, ThreadRequest, ThreadTurn};
use super::visit::Visit;
use super::world::World;

/// An answer and when it is due.
struct PreparedAnswer {
    reply: Reply,
    to_first_token: Duration,
    pace: Duration,
    /// Of an answer that is recited.
    cues: Option<Cues>,
}

enum Reply {
    Json(Value),
    /// JSON that took as long to write as this number of events.
    Message {
        json: Value,
        events: usize,
    },
    Stream(Vec<StreamEvent>),
}

impl Reply {
    fn of(answer: &FinishedAnswer, stream: bool, pace: Duration) -> Reply {
        if stream {
            return Reply::Stream(answer.events());
        }
        let events = if pace.is_zero() { 0 } else { answer.events().len() };
        Reply::Message { json: answer.json(), events }
    }
}

/// Answers a request whose body has been collected.
pub async fn answer(
    world: &World,
    mut visit: Visit,
    caller: &Caller,
    headers: &HeaderMap,
    bytes: &Bytes,
    endpoint: PromptEndpoint,
    weather: &Weather,
) -> Response {
    let prepared = match prepare(world, &mut visit, caller, headers, bytes, endpoint) {
        Ok(prepared) => prepared,
        Err(error) => return reply::refuse(visit, Some(caller), &error),
    };
    pause(prepared.to_first_token).await;
    if let Some(mut cues) = prepared.cues.clone() {
        cues.wait_for(Cue::Begin).await;
    }
    send(world, visit, caller, headers, prepared, weather).await
}

/// Reads, checks, bills and answers a prompt, in one synchronous step.
fn prepare(
    world: &World,
    visit: &mut Visit,
    caller: &Caller,
    headers: &HeaderMap,
    bytes: &Bytes,
    endpoint: PromptEndpoint,
) -> Result<PreparedAnswer, ApiError> {
    let config = &world.config;
    let recital = headers.get(recital::HEADER).and_then(|name| world.recitals.ask(name.to_str().ok()?));
    let betas = betas_of(headers);
    let sent = body::parse(bytes)?;
    let (value, bytes, is_resumption) = open_thread(world, visit, caller, &betas, sent, bytes, endpoint)?;
    let mut body = body::Body::read(&value, &config.models, endpoint, config.limits.messages)?;
    body.is_resumption = is_resumption;
    visit.note(|record| record.model = Some(body.model.id.clone()));
    rules::compaction::check(&body, &betas, &world.signer, &config.rules)?;
    let markers = rules::check(&body, &betas, caller.version, &config.rules)?;
    let prompt = DigestedPrompt::render(&body, &bytes, &betas, &config.rules);
    let unread = signature::check(&body, &prompt, &world.signer, &config.rules)?;
    let mut dropped = unread.places;
    dropped.extend(prompt.stripped_thinking(&body, &config.rules));
    dropped.sort_unstable();
    dropped.dedup();
    let tokens = prompt.tokens(&dropped);
    if endpoint == PromptEndpoint::CountTokens {
        let reply = Reply::Json(json!({"input_tokens": tokens}));
        return Ok(PreparedAnswer {
            reply,
            to_first_token: Duration::ZERO,
            pace: Duration::ZERO,
            cues: None,
        });
    }
    rules::check_window(&body, tokens)?;

    let is_apart = visit.thread.is_some() && config.rules.threads.cache == ThreadCache::Separate;
    let shared =
        if is_apart { format!("{} threads", caller.shared_cache) } else { caller.shared_cache.clone() };
    let positions = prompt.positions(&shared, &body, &markers, &dropped, &config.rules);
    let now_ms = world.clock.now_ms();
    let consultation = world.cache().consult(&positions, body.model.minimum_tokens, now_ms, &config.rules);
    let (play, message_id) = play(world, visit, &body, &prompt, recital.as_deref());
    let mut usage = consultation.usage;
    usage.output = play.output_tokens;
    if let Some(recital) = &recital {
        recital.bill(usage);
    }
    let uncached = usage.prompt() - usage.cache_read;
    let to_first_token =
        config.latency.to_first_token(uncached).saturating_add(Duration::from_millis(play.first_ms));
    let pace = play.pace_ms.map_or(config.latency.pace, Duration::from_millis);
    let answer = FinishedAnswer {
        diagnostics: diagnose(world, caller, &body, &message_id, &positions),
        id: message_id,
        iteration: iteration(&play, config.rules.iterations),
        model: body.model_name.to_owned(),
        blocks: play.blocks,
        stop_reason: play.stop_reason,
        usage,
        dropped_thinking: unread.reported.iter().map(|place| place.path()).collect(),
        speed: body.member("speed").cloned(),
    };
    note(visit, &answer, &body, consultation);
    let reply = Reply::of(&answer, body.stream, pace);
    if let Some(turn) = &mut visit.thread {
        turn.answer(value, &answer, &config.rules);
    }
    Ok(PreparedAnswer { reply, to_first_token, pace, cues: recital.map(|recital| recital.cues()) })
}

/// The whole conversation of a request, its bytes, and whether the model only goes on with its own answer.
///
/// A thread holds what was said and not how it was spelt, so the bytes of a continued one are written anew.
fn open_thread(
    world: &World,
    visit: &mut Visit,
    caller: &Caller,
    betas: &[&str],
    sent: Value,
    bytes: &Bytes,
    endpoint: PromptEndpoint,
) -> Result<(Value, Bytes, bool), ApiError> {
    let rules = &world.config.rules;
    let Some(root) = sent.as_object() else { return Ok((sent, bytes.clone(), false)) };
    match ThreadRequest::read(root, betas, endpoint, rules)? {
        None => {}
        Some(ThreadRequest::Create) => {
            visit.thread = Some(ThreadTurn::create(caller, root, betas, bytes.len()));
        }
        Some(ThreadRequest::Continue { previous }) => {
            let sent = SentContinue { previous: &previous, root, bytes: bytes.len(), betas, caller };
            let now_ms = world.clock.now_ms();
            let Continued { value, turn, is_resumption } =
                world.threads().resume(sent, now_ms, &rules.threads)?;
            visit.thread = Some(turn);
            let bytes = Bytes::from(value.to_string());
            return Ok((value, bytes, is_resumption));
        }
    }
    Ok((sent, bytes.clone(), false))
}

/// The entry of `usage.iterations`, for answers that have one.
fn iteration(play: &Play, rule: Iterations) -> Option<Iteration> {
    let fallback = play.blocks.iter().find_map(|block| match block {
        AnswerBlock::Other(block) if body::kind(block) == "fallback" => block.get("to"),
        _ => None,
    });
    match (fallback, rule) {
        _ if play.is_compaction => Some(Iteration::Compaction),
        (Some(model), _) => {
            let name = model.as_str().or_else(|| body::text(model, "model"));
            Some(Iteration::Fallback { model: name.unwrap_or_default().to_owned() })
        }
        (None, Iterations::Always) => Some(Iteration::Message),
        (None, Iterations::WhenNeeded) => None,
    }
}

/// The answer's content and its message id: recited, or else scripted.
fn play(
    world: &World,
    visit: &Visit,
    body: &body::Body<'_>,
    prompt: &DigestedPrompt,
    recital: Option<&Recital>,
) -> (Play, String) {
    let config = &world.config;
    let (signer, rules, seed) = (&world.signer, &config.rules, config.seed);
    let digest = prompt.digest();
    let ordinal = world.repetition(digest, visit.number());
    let play = match recital {
        Some(recital) => Play::recite(recital),
        None => Scene { body, prompt, signer, rules, seed, digest, ordinal }.play(),
    };
    let message_id = recital.and_then(|recital| recital.message_id.clone());
    let message_id = message_id.unwrap_or_else(|| id("msg_", seed, &[&digest, &ordinal.to_le_bytes()]));
    (play, message_id)
}

/// The answer's `diagnostics`, for requests that ask; they alone leave a fingerprint.
fn diagnose(
    world: &World,
    caller: &Caller,
    body: &body::Body<'_>,
    message_id: &str,
    positions: &[Position],
) -> Option<Value> {
    let previous = body::text(body.member("diagnostics")?, "previous_message_id");
    let (owner, model) = (&caller.shared_cache, &body.model.id);
    let mut fingerprints = world.fingerprints();
    let found = fingerprints.compare(owner, previous, model, positions, world.config.rules.diagnosis);
    fingerprints.remember(owner, message_id, model, positions);
    Some(found)
}

fn note(visit: &mut Visit, answer: &FinishedAnswer, body: &body::Body<'_>, consultation: Consultation) {
    let (usage, cost_usd) = (answer.usage, body.model.price.cost_usd(&answer.usage));
    let hit = consultation.hit.map(|position| Hit { position, tokens: usage.cache_read });
    visit.note(|record| {
        record.message_id = Some(answer.id.clone());
        record.usage = Some(usage);
        record.cost_usd = Some(cost_usd);
        record.hit = hit;
        record.breakpoints = consultation.breakpoints;
    });
    visit.owe(consultation.writes);
}

fn betas_of(headers: &HeaderMap) -> Vec<&str> {
    let values = headers.get_all("anthropic-beta").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|beta| !beta.is_empty()).collect()
}

async fn send(
    world: &World,
    mut visit: Visit,
    caller: &Caller,
    headers: &HeaderMap,
    prepared: PreparedAnswer,
    weather: &Weather,
) -> Response {
    let visibility = world.config.rules.visibility;
    if visibility == Visibility::Headers {
        visit.publish();
    }
    let encoding = weather.compress.or(world.config.compress).filter(|encoding| accepts(headers, *encoding));
    let request_id = visit.request_id.clone();
    visit.note(|record| record.status = Some(200));
    let (content_type, length, body) = match prepared.reply {
        Reply::Stream(events) => {
            if weather.error_event.is_some() {
                visit.break_off();
            }
            let frames = stream_frames(&events, prepared.pace, prepared.cues.as_ref(), visibility, weather);
            ("text/event-stream; charset=utf-8", None, outgoing::body(visit, frames, encoding, weather))
        }
        Reply::Message { json, events } => {
            // The first token exists now; the message is sent when the last one does.
            if visibility == Visibility::FirstContent {
                visit.publish();
            }
            prepared.cues.iter().for_each(Cues::began);
            let writing = prepared.pace.saturating_mul(u32::try_from(events).unwrap_or(u32::MAX));
            pause(writing).await;
            if let Some(mut cues) = prepared.cues {
                cues.wait_for(Cue::End).await;
            }
            let (length, body) = json_body(visit, &json, encoding, visibility, weather);
            ("application/json", Some(length), body)
        }
        Reply::Json(json) => {
            let (length, body) = json_body(visit, &json, encoding, visibility, weather);
            ("application/json", Some(length), body)
        }
    };
    let mut response = reply::bare(StatusCode::OK, &request_id, Some(caller), body);
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    if content_type.starts_with("text/event-stream") {
        out.insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-cache"));
    }
    if let Some(encoding) = encoding {
        out.insert(header::CONTENT_ENCODING, http::HeaderValue::from_static(encoding.as_str()));
        out.insert(header::VARY, http::HeaderValue::from_static("accept-encoding"));
    }
    if let Some(length) = length {
        out.insert(header::CONTENT_LENGTH, http::HeaderValue::from(length));
    }
    response
}

fn json_body(
    visit: Visit,
    json: &Value,
    encoding: Option<Encoding>,
    visibility: Visibility,
    weather: &Weather,
) -> (usize, Body) {
    let plain = json.to_string().into_bytes();
    let bytes = match encoding {
        None => plain,
        Some(encoding) => outgoing::compress(&plain, encoding),
    };
    let length = bytes.len();
    let effect = if visibility == Visibility::End { Effect::Publish } else { Effect::Nothing };
    let frame = Frame { wait: Duration::ZERO, cue: None, bytes: Bytes::from(bytes), effect };
    (length, outgoing::body(visit, vec![frame], None, weather))
}

fn stream_frames(
    events: &[StreamEvent],
    pace: Duration,
    cues: Option<&Cues>,
    visibility: Visibility,
    weather: &Weather,
) -> Vec<Frame> {
    let before_error = weather.error_event.map(|(after, _)| usize::try_from(after).unwrap_or(usize::MAX));
    let mut frames: Vec<Frame> = Vec::with_capacity(events.len() + 1);
    for (index, event) in events.iter().take(before_error.unwrap_or(usize::MAX)).enumerate() {
        // The event after `message_start` is the first content, or the end of an answer that has none.
        let begins = match visibility {
            Visibility::Headers => false,
            Visibility::FirstContent => index == 1,
            Visibility::End => index + 1 == events.len(),
        };
        // The last two events wait for the cue: what the message is billed, and that it has ended.
        let is_last_but_one = index + 2 == events.len();
        frames.push(Frame {
            wait: if index == 0 { Duration::ZERO } else { pace },
            cue: if is_last_but_one { cues.map(|cues| (cues.clone(), Cue::End)) } else { None },
            bytes: Bytes::from(event.bytes()),
            effect: if begins { Effect::Publish } else { Effect::Nothing },
        });
    }
    if let Some((_, status)) = weather.error_event {
        let message = if status == 529 { "Overloaded" } else { "Internal server error" };
        let event =
            StreamEvent::new("error", json!({"error": {"type": kind_of(status), "message": message}}));
        frames.push(Frame {
            wait: pace,
            cue: None,
            bytes: Bytes::from(event.bytes()),
            effect: Effect::Nothing,
        });
    }
    frames
}

fn accepts(headers: &HeaderMap, encoding: Encoding) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_named = parts.next() == Some(encoding.as_str());
        is_named && !parts.any(|weight| matches!(weight, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}
