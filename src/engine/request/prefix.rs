//! The chain of prefix hashes: one per piece, each over everything before it.
//!
//! The prompt cache is keyed by what the model would read up to a block. So a hash here covers model, tools,
//! system and messages in that order, and leaves out what the model never sees: markers (those on blocks inside a
//! result too, which the upstream counts and leaves without effect), white space between
//! tokens, and the order of a block's own members. Values inside are raw: another key order *within* a schema
//! or a tool's input is another prompt. A string is not a block, though they may say the same.
//!
//! Each piece is digested by itself (its *leaf*), then one short hash ties the leaf to everything before it. So
//! when an early piece changes, the later ones are tied again and not read again.
//!
//! ```
//! use forkpoint::engine::{request::anatomy::Anatomy, request::prefix::{Attribution, Chain}};
//! let chain = |body: &[u8]| Chain::of(body, &Anatomy::read(body).unwrap(), Attribution::Counted);
//! let one = chain(br#"{"model":"m","system":[{"type":"text","text":"s"}]}"#);
//! let two = chain(br#"{"system": [{"text": "s", "type": "text", "cache_control": null}], "model": "m"}"#);
//! assert_eq!(one, two);
//! ```

mod leaf;
mod unmarked;

pub(in crate::engine) use leaf::{Digester, Leaf};

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use self::leaf::push_compact;
use super::anatomy::{Anatomy, Message};
use super::json;
use super::recall::SharedParts;
use crate::engine::words::{Layer, digits, first};

/// The hash of a prompt up to and including one piece; shown as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrefixHash(#[serde(with = "digits")] [u8; 32]);

impl Hash for PrefixHash {
    /// Eight bytes of a digest tell keys apart as well as all of them.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from_be_bytes(first(&self.0)));
    }
}

impl PrefixHash {
    #[cfg(test)]
    pub fn numbered(number: u64) -> PrefixHash {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_be_bytes());
        PrefixHash(digest)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PrefixHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(first(&self.0)))
    }
}

/// The upstream's treatment of the attribution line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// It is no part of the prompt when it is alone in `system[0]`: the upstream strips it.
    Stripped,
    Counted,
}

/// Every prefix hash of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub model: PrefixHash,
    /// One per piece of the anatomy.
    pub pieces: Vec<PrefixHash>,
}

impl Chain {
    pub fn of(body: &[u8], anatomy: &Anatomy, attribution: Attribution) -> Chain {
        let leaves = Leaf::all(body, anatomy);
        Chain::linked(&DigestedRequest { body, anatomy, leaves: &leaves }, attribution, None)
    }

    /// The chain over pieces whose content is digested already. A hash is taken from the chain of an earlier
    /// request where everything before it is the same.
    pub(in crate::engine) fn linked(
        subject: &DigestedRequest<'_>,
        attribution: Attribution,
        before: Option<&LinkedRequest<'_>>,
    ) -> Chain {
        let DigestedRequest { body, anatomy, leaves } = *subject;
        let model = subject.model();
        let model = match before {
            Some(old) if old.subject.model() == model => old.chain.model,
            _ => PrefixHash(blake3::derive_key("forkpoint chain v1", model)),
        };
        // With as many tools and system blocks, a piece of the same number is the attribution line in both or
        // in neither.
        let same_layers = |old: &&LinkedRequest<'_>| {
            let old = old.subject.anatomy;
            (old.tools, old.system) == (anatomy.tools, anatomy.system)
        };
        let before = before.filter(same_layers);
        let mut linker = Linker { link: model, input: Vec::new(), before };
        let mut chain = Chain { model, pieces: Vec::with_capacity(leaves.len()) };
        let mut messages = 0;
        if let Some(old) = before.filter(|old| old.chain.model == model) {
            // A message without pieces has no hash in the chain to go on from, and one that vanishes may have done so
            // since.
            let goes_on = |it: &&Message| !it.pieces.is_empty() && !vanishes(body, it);
            let same = anatomy.messages[..old.same.messages].iter().take_while(goes_on);
            let same = SharedParts { messages: same.count(), ..old.same };
            chain.pieces.extend_from_slice(&old.chain.pieces[..same.pieces(anatomy)]);
            messages = if chain.pieces.len() < anatomy.tools + anatomy.system { 0 } else { same.messages };
            linker.link = chain.tip();
        }
        let statics = leaves.iter().enumerate().take(anatomy.tools + anatomy.system);
        for (index, leaf) in statics.skip(chain.pieces.len()) {
            let is_stripped = attribution == Attribution::Stripped && is_attribution(body, anatomy, index);
            if !(is_stripped || anatomy.pieces[index].deferred) {
                linker.piece(index, leaf, None);
            }
            chain.pieces.push(linker.link);
        }
        let last_user = || anatomy.messages.iter().rposition(|message| message.has_role(body, "user"));
        for (number, message) in anatomy.messages.iter().enumerate().skip(messages) {
            if vanishes(body, message) && last_user() > Some(number) {
                chain.pieces.extend(message.pieces.clone().map(|_| linker.link));
            } else {
                linker.message(subject, number, message, &mut chain.pieces);
            }
        }
        chain
    }

    /// Returns the chain with other hashes from a piece on, which no other prompt has.
    pub(in crate::engine) fn astray(&self, from: usize) -> Chain {
        let mut chain = self.clone();
        // A later turn has another tip. Turned by half, it does not cancel out at the tip itself.
        let mut salt = self.tip().0;
        salt.rotate_left(16);
        for hash in chain.pieces.iter_mut().skip(from) {
            *hash = PrefixHash(std::array::from_fn(|at| hash.0[at] ^ salt[at]));
        }
        chain
    }

    /// Returns the hash of a whole layer: that of its last piece, or of everything before it.
    pub fn layer(&self, anatomy: &Anatomy, layer: Layer) -> PrefixHash {
        let end = match layer {
            Layer::Model => 0,
            Layer::Tools => anatomy.tools,
            Layer::System => anatomy.tools + anatomy.system,
            Layer::Messages => self.pieces.len(),
        };
        self.before(end)
    }

    /// Returns how many leading pieces of each say the same. A piece that adds nothing to a prompt, such as a tool
    /// whose loading is deferred, may be in one of them only.
    pub fn shared(&self, other: &Chain) -> [usize; 2] {
        if other.model != self.model {
            return [0, 0];
        }
        // Mostly both number their pieces alike. Where they agree, they agree about everything before.
        let common = self.pieces.len().min(other.pieces.len());
        let (mut low, mut high) = (0, common + 1);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.pieces[middle - 1] == other.pieces[middle - 1] {
                low = middle;
            } else {
                high = middle;
            }
        }
        let (mut mine, mut theirs) = (low, low);
        let mut link = low.checked_sub(1).map_or(&self.model, |last| &self.pieces[last]);
        loop {
            mine += self.pieces[mine..].iter().take_while(|piece| *piece == link).count();
            theirs += other.pieces[theirs..].iter().take_while(|piece| *piece == link).count();
            match (self.pieces.get(mine), other.pieces.get(theirs)) {
                (Some(one), Some(two)) if one == two => link = one,
                _ => return [mine, theirs],
            }
        }
    }

    /// Returns the piece at which another chain has the prefix that ends with this one: mostly the same.
    pub fn place_in(&self, piece: usize, other: &Chain) -> Option<usize> {
        let prefix = self.pieces.get(piece)?;
        if other.pieces.get(piece) == Some(prefix) {
            return Some(piece);
        }
        other.pieces.iter().position(|known| known == prefix)
    }

    /// Returns how many of the leading `pieces` add something to the prompt.
    pub fn positions(&self, pieces: usize) -> usize {
        (0..pieces.min(self.pieces.len())).filter(|piece| self.before(*piece) != self.pieces[*piece]).count()
    }

    /// The hash of the whole prompt.
    pub fn tip(&self) -> PrefixHash {
        self.before(self.pieces.len())
    }

    /// The hash of everything before a piece.
    fn before(&self, piece: usize) -> PrefixHash {
        piece.checked_sub(1).and_then(|last| self.pieces.get(last)).copied().unwrap_or(self.model)
    }
}

/// Returns true if a message is in the prompt only until a user says more: it stays where it is, and the upstream leaves
/// it out.
fn vanishes(body: &[u8], message: &Message) -> bool {
    let clears = message.extra.iter().find(|member| json::is_key(body, &member.key, "clear_at"));
    clears.is_some_and(|clears| json::text(body, &clears.value).is_some_and(|at| at == "next_user_message"))
        && message.has_role(body, "system")
}

/// Returns true if this piece is the attribution line: the first of the system list.
fn is_attribution(body: &[u8], anatomy: &Anatomy, piece: usize) -> bool {
    piece == anatomy.tools && anatomy.pieces[piece].is_attribution(body)
}

/// One request with everything needed to compare it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub body: &'a [u8],
    pub anatomy: &'a Anatomy,
    pub chain: &'a Chain,
}

impl Subject<'_> {
    /// Returns true if its bytes are not known.
    pub fn is_outline(&self) -> bool {
        self.body.is_empty()
    }
}

/// A request with the digests of its pieces.
pub(in crate::engine) struct DigestedRequest<'a> {
    pub body: &'a [u8],
    pub anatomy: &'a Anatomy,
    pub leaves: &'a [Leaf],
}

/// A request whose hashes are known.
pub(in crate::engine) struct LinkedRequest<'a> {
    pub subject: DigestedRequest<'a>,
    pub chain: &'a Chain,
    /// The parts that the new one has too.
    pub same: SharedParts,
}

impl DigestedRequest<'_> {
    fn model(&self) -> &[u8] {
        self.anatomy.member(self.body, "model").map_or(&b""[..], |span| &self.body[span.clone()])
    }
}

/// Ties each piece to everything before it: one short keyed hash per piece, whatever its size.
struct Linker<'a> {
    link: PrefixHash,
    input: Vec<u8>,
    before: Option<&'a LinkedRequest<'a>>,
}

impl Linker<'_> {
    fn message(
        &mut self,
        subject: &DigestedRequest<'_>,
        number: usize,
        message: &Message,
        links: &mut Vec<PrefixHash>,
    ) {
        let old = self.before.map(|before| &before.subject);
        let old = old.and_then(|old| old.anatomy.messages.get(number).map(|it| (old, it)));
        let known = old.is_some_and(|(old, it)| {
            it.pieces.start == message.pieces.start
                && !it.pieces.is_empty()
                && same_head(subject.body, message, old.body, it)
        });
        if !known {
            self.before = None;
        }
        if message.pieces.is_empty() {
            self.input.clear();
            self.input.push(b'h');
            push_head(&mut self.input, subject.body, message);
            self.advance();
            return;
        }
        for index in message.pieces.clone() {
            // Past the end of the old message its next one begins, whose head is part of its hash.
            if old.is_some_and(|(_, it)| index >= it.pieces.end) {
                self.before = None;
            }
            let head = (index == message.pieces.start).then_some((subject.body, message));
            self.piece(index, &subject.leaves[index], head);
            links.push(self.link);
        }
    }

    /// `head`: the body and the message, for the first piece of one. Its hash covers the message's other members too.
    fn piece(&mut self, index: usize, leaf: &Leaf, head: Option<(&[u8], &Message)>) {
        if let Some(LinkedRequest { subject, chain, .. }) = self.before
            && chain.before(index) == self.link
            && subject.leaves.get(index) == Some(leaf)
            && let Some(link) = chain.pieces.get(index)
        {
            self.link = *link;
            return;
        }
        self.input.clear();
        self.input.push(b'p');
        self.input.extend_from_slice(leaf.as_bytes());
        if let Some((body, message)) = head {
            push_head(&mut self.input, body, message);
        }
        self.advance();
    }

    fn advance(&mut self) {
        self.link = PrefixHash(*blake3::keyed_hash(&self.link.0, &self.input).as_bytes());
    }
}

/// Returns true if two messages have byte for byte the same members besides their content.
fn same_head(body: &[u8], message: &Message, old_body: &[u8], old: &Message) -> bool {
    let role = message.role.as_ref().map(|span| &body[span.clone()]);
    role == old.role.as_ref().map(|span| &old_body[span.clone()])
        && message.extra.len() == old.extra.len()
        && message.extra.iter().zip(&old.extra).all(|(new, old)| {
            body[new.key.clone()] == old_body[old.key.clone()]
                && body[new.value.clone()] == old_body[old.value.clone()]
        })
}

/// A JSON value shows where it ends, so that names and values may follow each other without lengths.
fn push_head(out: &mut Vec<u8>, body: &[u8], message: &Message) {
    match &message.role {
        Some(role) => {
            out.push(b'r');
            push_compact(out, &body[role.clone()]);
        }
        None => out.push(b'-'),
    }
    for member in &message.extra {
        out.extend_from_slice(&body[member.key.clone()]);
        push_compact(out, &body[member.value.clone()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::recall::{Last, Nothing, Remembered};

    fn chain(body: &str) -> Chain {
        chain_with(body, Attribution::Counted)
    }

    fn chain_with(body: &str, attribution: Attribution) -> Chain {
        Chain::of(body.as_bytes(), &Anatomy::read(body.as_bytes()).unwrap(), attribution)
    }

    /// How many leading pieces two bodies share.
    fn shared(a: &str, b: &str) -> usize {
        let (a, b) = (chain(a), chain(b));
        a.pieces.iter().zip(&b.pieces).take_while(|(a, b)| a == b).count()
    }

    const BODY: &str = r#"{"model":"m","tools":[{"name":"t","input_schema":{"a":1,"b":2}}],"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"t","input":{"x":1,"y":2}}]}]}"#;

    #[test]
    fn two_turns_that_stray_share_what_comes_before() {
        let first = chain(BODY);
        let second = chain(&BODY.replace(r#"]}]}"#, r#"]},{"role":"user","content":"more"}]}"#));
        assert_eq!(first.shared(&second)[1], 5);
        for from in 0..5 {
            assert_eq!(first.astray(from).shared(&second.astray(from))[1], from);
            assert_eq!(first.astray(from).shared(&second)[1], from);
        }
    }

    #[test]
    fn what_the_model_never_sees_does_not_count() {
        assert_eq!(shared(BODY, BODY), 5);
        let markers =
            BODY.replace(r#""text":"one"}"#, r#""text":"one","cache_control":{"type":"ephemeral"}}"#);
        assert_eq!(shared(BODY, &markers), 5);
        let spaced = BODY.replace(':', " : ").replace(',', " ,\n");
        assert_eq!(shared(BODY, &spaced), 5);
        let members = BODY.replace(r#"{"type":"text","text":"two"}"#, r#"{"text":"two","type":"text"}"#);
        assert_eq!(shared(BODY, &members), 5);
        let order =
            r#"{"messages":[],"system":"s","tools":[{"name":"t","input_schema":{"a":1,"b":2}}],"model":"m"}"#;
        assert_eq!(shared(BODY, order), 2);
        assert_eq!(shared(BODY, &BODY.replace(r#""model":"m""#, r#""max_tokens":5,"model":"m""#)), 5);
    }

    #[test]
    fn each_change_breaks_the_chain_where_it_stands() {
        assert_eq!(shared(BODY, &BODY.replace(r#""m""#, r#""n""#)), 0);
        assert_eq!(shared(BODY, &BODY.replace(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#)), 0);
        assert_eq!(shared(BODY, &BODY.replace(r#""system":"s""#, r#""system":"S""#)), 1);
        assert_eq!(
            shared(BODY, &BODY.replace(r#""system":"s""#, r#""system":[{"type":"text","text":"s"}]"#)),
            1
        );
        assert_eq!(shared(BODY, &BODY.replace("one", "One")), 2);
        assert_eq!(shared(BODY, &BODY.replace(r#""role":"user""#, r#""role":"system""#)), 2);
        assert_eq!(shared(BODY, &BODY.replace(r#"{"x":1,"y":2}"#, r#"{"y":2,"x":1}"#)), 4);
        assert_eq!(shared(BODY, &BODY.replace(r#"{"x":1,"y":2}"#, r#"{"x":1.0,"y":2}"#)), 4);
        assert_eq!(
            shared(BODY, &BODY.replace(r#"{"role":"assistant","#, r#"{"role":"assistant","x":1,"#)),
            4
        );
    }

    #[test]
    fn a_longer_conversation_keeps_the_hashes_of_a_shorter_one() {
        let longer = BODY.replace("]}]}", r#"]},{"role":"user","content":"next"}]}"#);
        assert_eq!(shared(BODY, &longer), 5);
        assert_eq!(chain(&longer).pieces.len(), 6);
    }

    #[test]
    fn the_attribution_line_counts_only_where_the_upstream_reads_it() {
        let line = |n: u32| {
            format!(
                r#"{{"system":[{{"type":"text","text":"x-anthropic-billing-header: v={n};"}},{{"type":"text","text":"s"}}]}}"#
            )
        };
        let last = |n, attribution| *chain_with(&line(n), attribution).pieces.last().unwrap();
        assert_eq!(last(1, Attribution::Stripped), last(2, Attribution::Stripped));
        assert_ne!(last(1, Attribution::Counted), last(2, Attribution::Counted));
        let second = r#"{"system":[{"type":"text","text":"s"},{"type":"text","text":"x-anthropic-billing-header: 1"}]}"#;
        let chain = chain_with(second, Attribution::Stripped);
        assert_ne!(chain.pieces[0], chain.pieces[1]);
    }

    #[test]
    fn a_marker_inside_a_result_does_not_count() {
        let body = |content: &str| {
            let result = format!(r#"{{"type":"tool_result","tool_use_id":"i","content":{content}}}"#);
            format!(r#"{{"messages":[{{"role":"user","content":[{result}]}}]}}"#)
        };
        let plain = body(
            r#"[{"type":"text","text":"a"},{"type":"search_result","content":[{"type":"text","text":"b"}]}]"#,
        );
        for marked in [
            r#"[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"search_result","content":[{"type":"text","text":"b"}]}]"#,
            r#"[ {"cache_control":null, "type":"text","text":"a"},{"type":"search_result","content":[{"type":"text", "cache_control" : {"type":"ephemeral"}, "text":"b"}]}]"#,
        ] {
            assert_eq!(shared(&plain, &body(marked)), 1, "{marked}");
        }
        // What only looks like one does.
        for other in [
            r#"[{"type":"text","text":"a\"cache_control\""},{"type":"search_result","content":[{"type":"text","text":"b"}]}]"#,
            r#"[{"type":"text","text":"a","x":{"cache_control":1}},{"type":"search_result","content":[{"type":"text","text":"b"}]}]"#,
            r#"["cache_control",{"type":"text","text":"a"},{"type":"search_result","content":[{"type":"text","text":"b"}]}]"#,
        ] {
            assert_eq!(shared(&plain, &body(other)), 0, "{other}");
        }
        let call = |input: &str| {
            format!(
                r#"{{"messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"i","input":{input}}}]}}]}}"#
            )
        };
        let data = r#"{"content":[{"cache_control":1}]}"#;
        assert_eq!(shared(&call(data), &call(r#"{"content":[{}]}"#)), 0, "what a call brings is data");
    }

    #[test]
    fn a_tool_whose_loading_is_deferred_is_no_part_of_the_prompt() {
        let deferred = r#"{"name":"d","defer_loading":true}"#;
        for with in [
            BODY.replace(r#""tools":["#, &format!(r#""tools":[{deferred},"#)),
            BODY.replace(r#"}],"system""#, &format!(r#"}},{deferred},{deferred}],"system""#)),
        ] {
            let (one, two) = (chain(BODY), chain(&with));
            let more = two.pieces.len() - one.pieces.len();
            assert_eq!(one.shared(&two), [5, 5 + more]);
            assert_eq!(two.shared(&one), [5 + more, 5]);
            assert_eq!((one.place_in(4, &two), two.place_in(4 + more, &one)), (Some(4 + more), Some(4)));
            assert_eq!((one.positions(2), two.positions(2 + more)), (2, 2));
        }
        let loaded = BODY.replace(r#""tools":["#, r#""tools":[{"name":"d","defer_loading":false},"#);
        assert_eq!(chain(BODY).shared(&chain(&loaded)), [0, 0]);
    }

    #[test]
    fn a_message_that_is_cleared_is_no_part_of_the_prompt_once_a_user_says_more() {
        let body = |messages: &[&str]| format!(r#"{{"system":"s","messages":[{}]}}"#, messages.join(","));
        let [one, two] = ["a", "b"].map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#));
        let said = r#"{"role":"assistant","content":"c"}"#;
        let gone = r#"{"role":"system","content":"now","clear_at":"next_user_message"}"#;
        let stays = r#"{"role":"system","content":"now","clear_at":"some_day"}"#;
        let tip = |messages: &[&str]| chain(&body(messages)).tip();
        assert_ne!(tip(&[&one, gone]), tip(&[&one]), "the model reads it");
        assert_ne!(tip(&[&one, gone, said]), tip(&[&one, said]));
        assert_eq!(tip(&[&one, gone, said, &two]), tip(&[&one, said, &two]), "and then no more");
        assert_eq!(tip(&[&one, said, gone, &two]), tip(&[&one, said, &two]));
        assert_ne!(tip(&[&one, stays, said, &two]), tip(&[&one, said, &two]));
        // Read on from the turn before it is the same.
        let bytes = |messages: &[&str]| bytes::Bytes::from(body(messages));
        let before = Remembered::read(bytes(&[&one, gone]), &Nothing, Attribution::Counted).unwrap();
        let known = Last { request: &std::sync::Arc::new(before), repeated: Default::default() };
        let next = bytes(&[&one, gone, said, &two]);
        let after = Remembered::read(next.clone(), &known, Attribution::Counted).unwrap();
        let anew = Remembered::read(next, &Nothing, Attribution::Counted).unwrap();
        assert_eq!(after.chain(), anew.chain());
    }

    #[test]
    fn a_layer_ends_with_its_last_piece() {
        let anatomy = Anatomy::read(BODY.as_bytes()).unwrap();
        let chain = chain(BODY);
        assert_eq!(chain.layer(&anatomy, Layer::Model), chain.model);
        assert_eq!(chain.layer(&anatomy, Layer::Tools), chain.pieces[0]);
        assert_eq!(chain.layer(&anatomy, Layer::System), chain.pieces[1]);
        assert_eq!(chain.layer(&anatomy, Layer::Messages), chain.pieces[4]);
        assert_eq!(chain.model.to_string().len(), 16);
    }
}
