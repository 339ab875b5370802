//! The body of a Messages call: the bytes that came, and those that are read.
//!
//! The two differ where the body came compressed, and where the model is named by the path instead (Vertex): then what
//! is read has it as its first member, so that it is a part of the prompt's identity like any other model. What is not
//! changed goes out as it came, and what is changed goes out uncompressed and without that member.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::collect::Permit;
use super::encoded::{Coding, Decoding};
use super::forward::SentBody;
use super::large::{LARGE_BYTES, LargeBodies};
use crate::config::Limits;
use crate::engine::words::Reason;

/// The body of a Messages call.
#[derive(Clone, Debug)]
pub struct CallBody {
    came: Bytes,
    /// None if one of them is not known.
    codings: Option<Vec<Coding>>,
    /// The model that the path names.
    model: Option<String>,
    /// None until it is opened.
    read: Option<Bytes>,
    /// The member that was put in for the model, up to the next one.
    member: Option<Bytes>,
}

impl CallBody {
    /// `codings`: by which it came compressed, if all of them are known. `model`: the one that its path names.
    pub fn new(came: Bytes, codings: Option<Vec<Coding>>, model: Option<String>) -> CallBody {
        CallBody { came, codings, model, read: None, member: None }
    }

    /// The bytes that came.
    pub fn came(&self) -> &Bytes {
        &self.came
    }

    /// The bytes that are read: those that came, until they are opened.
    pub fn read(&self) -> &Bytes {
        self.read.as_ref().unwrap_or(&self.came)
    }

    /// Makes the body readable: decodes it, and puts the model in that its path names.
    pub async fn open(
        &mut self,
        permit: &mut Permit,
        limits: &Limits,
        large: &Arc<LargeBodies>,
    ) -> Result<(), Reason> {
        if self.read.is_some() {
            return Ok(());
        }
        let codings = self.codings.as_ref().ok_or(Reason::ContentEncoding)?;
        let payer = permit.charge().payer();
        let mut read = self.came.clone();
        if !codings.is_empty() {
            let mut decoding = Decoding::new(read, codings, limits)?;
            let is_small = self.came.len() < LARGE_BYTES;
            // How long the rest is, only decoding it tells.
            if !(is_small && decoding.decode(LARGE_BYTES, permit, limits)?) {
                let rest = || decoding.decode(usize::MAX, permit, limits);
                large.work(payer, LARGE_BYTES, rest).await?;
            }
            read = decoding.finish();
        }
        if let Some(model) = &self.model {
            let put_in = || with_model(&read, model, permit, limits);
            (read, self.member) = large.work(payer, read.len(), put_in).await?;
        }
        self.read = Some(read);
        Ok(())
    }

    /// The body that goes out where `pieces` were made of what was read, and headers that fit it.
    pub fn changed(&self, pieces: Vec<Bytes>, headers: &mut HeaderMap) -> SentBody {
        let pieces = match &self.member {
            None => Some(pieces),
            Some(member) => without_first(pieces, member),
        };
        // What is read begins with the member, and so does whatever is made of it; were it otherwise, what came is
        // still right.
        let Some(pieces) = pieces else { return SentBody::whole(self.came.clone()) };
        headers.remove(CONTENT_ENCODING);
        SentBody::spliced(pieces)
    }
}

/// The body with this model as its first member, and that member. What is no object is left alone.
fn with_model(
    body: &Bytes,
    model: &str,
    permit: &mut Permit,
    limits: &Limits,
) -> Result<(Bytes, Option<Bytes>), Reason> {
    let Some(start) = memchr::memchr(b'{', body).filter(|at| body[..*at].trim_ascii().is_empty()) else {
        return Ok((body.clone(), None));
    };
    let (head, rest) = body.split_at(start + 1);
    let is_alone = rest.trim_ascii_start().starts_with(b"}");
    let name = serde_json::Value::from(model);
    let member = format!("\"model\":{name}{}", if is_alone { "" } else { "," });
    permit.grow(body.len() + member.len(), limits)?;
    let mut read = BytesMut::with_capacity(body.len() + member.len());
    read.put_slice(head);
    read.put_slice(member.as_bytes());
    read.put_slice(rest);
    Ok((read.freeze(), Some(member.into())))
}

/// The pieces of an object without its first member, if that is this one.
fn without_first(mut pieces: Vec<Bytes>, member: &[u8]) -> Option<Vec<Bytes>> {
    let first = pieces.first_mut()?;
    let start = memchr::memchr(b'{', first)? + 1;
    let rest = first[start..].strip_prefix(member)?;
    let (head, rest) = (first.slice(..start), first.slice_ref(rest));
    *first = rest;
    pieces.insert(0, head);
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use http_body_util::BodyExt;

    async fn opened(came: &'static str, model: &str) -> CallBody {
        let limits = Config::default().limits;
        let mut permit = Permit::of_a_test(&limits);
        let mut body = CallBody::new(came.into(), Some(Vec::new()), Some(model.to_owned()));
        body.open(&mut permit, &limits, &Arc::default()).await.unwrap();
        body
    }

    #[tokio::test]
    async fn the_model_of_a_path_is_read_as_the_first_member_and_never_sent() {
        for (came, read) in [
            (r#"{"a":1}"#, r#"{"model":"m@1","a":1}"#),
            (" \n{ \"a\":1 }", " \n{\"model\":\"m@1\", \"a\":1 }"),
            ("{ }", r#"{"model":"m@1" }"#),
        ] {
            let body = opened(came, "m@1").await;
            assert_eq!((&body.came()[..], &body.read()[..]), (came.as_bytes(), read.as_bytes()));
            let (head, tail) = read.split_at(read.len() - 1);
            let pieces = vec![Bytes::from(head), Bytes::from(tail)];
            let sent = body.changed(pieces, &mut HeaderMap::new()).collect().await.unwrap().to_bytes();
            assert_eq!(sent, came);
        }
        for odd in ["", "[]", "null", "x{}"] {
            let body = opened(odd, "m").await;
            assert_eq!(body.read(), odd);
        }
        let quoted = opened(r#"{"a":1}"#, "a\"b").await;
        assert_eq!(quoted.read(), r#"{"model":"a\"b","a":1}"#);
    }
}
