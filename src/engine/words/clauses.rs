//! The same words as clauses of a sentence, for people.
//!
//! The live page has them too, in `src/admin/page/words.js`; a test holds the two to one text.

/// The reason why a request was left alone, aligned and not more, or answered here: "it brings no credential".
pub const REASONS: &[(&str, &str)] = &[
    ("none", ""),
    ("endpoint", "it is not a Messages call"),
    ("body_too_large", "its body exceeds limits.body_bytes"),
    ("held_requests", "limits.held_requests is reached"),
    ("held_bytes", "limits.held_bytes is reached"),
    ("trailers", "it announces trailers"),
    ("content_encoding", "its compression cannot be read"),
    ("not_json", "its body is not JSON that can be read"),
    ("signed", "its body is signed"),
    ("no_credential", "it brings no credential"),
    ("observe", "the mode is observe"),
    ("oauth", "it comes from a consumer login"),
    ("ambiguous", "it can be read in two ways"),
    ("unknown_thread", "it continues an answer that is not known"),
    ("unknown_parent", "it names a parent that is not known"),
    ("refused", "the upstream refused the rewritten request"),
    ("lost_prefix", "the prefix of its thinking is not known"),
    ("internal", "a bug in forkpoint"),
    ("align", "the mode is align"),
    ("not_a_child", "it is not a sub-agent"),
    ("client_fork", "its client has forked it itself"),
    ("automatic_cache", "the upstream caches by itself"),
    ("malformed_marker", "a marker of the client is malformed"),
    ("illegal_markers", "the client's markers will be refused"),
    ("one_shot", "nothing suggests a next turn"),
    ("seldom_continues", "such conversations seldom continue"),
    ("never_read", "its prefix changes on every turn"),
    ("below_minimum", "its prefix is too short to be cached"),
    ("no_slot", "all four breakpoints are in use"),
    ("hour", "a marker would have to last an hour"),
    ("no_legal_block", "no block there can carry a marker"),
    ("nested", "its parent is itself a child"),
    ("compaction", "it begins with a summary, or asks for one"),
    ("version", "its parent's API version differs"),
    ("unknown_tool", "its tool is not known to start agents"),
    ("holdout", "its fan-out is held out to compare"),
    ("stood_down", "forking cost more than it saved"),
    ("late", "its parent's answer had not ended"),
    ("unsealed", "its own call was not known yet"),
    ("prefill", "its parent's history ends with a prefill"),
    ("shape", "its first message cannot be split"),
    ("model", "its parent's model differs"),
    ("no_tools", "it has no tools"),
    ("tools_differ", "it has tools that its parent lacks"),
    ("tools_subset", "it has fewer tools than its parent"),
    ("thinking", "its parent's thinking differs"),
    ("tool_choice", "its parent's tool_choice differs"),
    ("output_config", "its parent's output_config differs"),
    ("output_format", "its parent's output_format differs"),
    ("context_management", "its parent's context_management differs"),
    ("speed", "its parent's speed differs"),
    ("mcp_servers", "its parent's mcp_servers differ"),
    ("container", "its parent's container differs"),
    ("unknown_field", "an unknown field differs from its parent"),
    ("media", "it has media that its parent lacks"),
    ("specialist", "it is an agent of a special kind"),
    ("teammate", "it joins a team"),
    ("isolation", "it runs elsewhere"),
    ("coordinator", "its session is excluded"),
    ("too_large", "forked, its body would be too large"),
    ("window", "forked, it would exceed the window"),
    ("context_share", "forked, it would fill too much context"),
    ("cost", "forking would cost more than allowed"),
    ("unlearned", "how long such children live is not known"),
    ("cost_unknown", "what forking would cost is not known"),
    ("store_full", "children that still work fill the store"),
    ("connect", "CONNECT is refused"),
    ("upgrade", "upgrades are refused"),
    ("ambiguous_length", "its length is ambiguous"),
    ("target", "its target is malformed"),
    ("thread_mismatch", "its thread is held otherwise than it says"),
    ("client_body", "the client broke off its body"),
    ("client_stalled", "the client stopped sending"),
    ("connections", "limits.connections is reached"),
    ("upstream_unreachable", "the upstream could not be reached"),
    ("upstream_connect_timeout", "connecting to the upstream took too long"),
    ("upstream_silent", "the upstream stayed silent"),
    ("upstream_broke", "the upstream broke off"),
];

/// The outcome of a request at the gate.
pub const GATE: &[(&str, &str)] = &[
    ("unneeded", "nothing to wait for"),
    ("led", "leads: it writes what its siblings read"),
    ("overtook", "leads: it streams, and overtook one that does not"),
    ("released", "waited for its leader, and reads what that wrote"),
    ("succeeded", "leads: the one before it came to nothing"),
    ("presumed", "waited as long as its leader should have taken"),
    ("timed_out", "waited as long as it may, and went"),
    ("json_given_up", "did not wait: its leader does not stream"),
    ("too_slow", "did not wait: answers to such a prompt begin too late"),
    ("full", "did not wait: too many do already"),
    ("client_left", "its client left while it waited"),
];

/// The reason why cached tokens were not read: each follows "because" and a colon alike.
pub const CAUSES: &[(&str, &str)] = &[
    ("tools", "the tools changed"),
    ("system", "the system or the speed changed"),
    ("model", "the model changed"),
    ("thinking", "thinking or effort changed"),
    ("tool_choice", "tool_choice changed"),
    ("betas", "the betas changed"),
    ("messages", "the history was changed"),
    ("spelling", "the same was spelt differently"),
    ("ttl_expired", "the cache entry expired"),
    ("below_minimum", "the prefix is too short to cache"),
    ("lookback", "no breakpoint is near the entry"),
    ("not_yet_visible", "the entry was still being written"),
    ("unknown", "something not seen here changed"),
];

/// The end of an exchange, if not well.
pub const ENDINGS: &[(&str, &str)] = &[
    ("complete", ""),
    ("client_left", "the client left"),
    ("upstream_broke", "the upstream broke off"),
    ("refused", "answered by forkpoint itself"),
];

/// Returns the clause for a word; none for a word that needs none, or that a later version has added.
pub fn clause(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    let found = table.iter().find(|(one, _)| *one == word)?;
    (!found.1.is_empty()).then_some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::words::{BreakCause, Ending, GateOutcome, Reason, Refusal, Skip, Why};

    #[test]
    fn every_word_has_a_clause() {
        let reasons = Reason::ALL.map(Reason::as_str).into_iter().chain(Skip::ALL.map(Skip::as_str));
        let reasons = reasons.chain(Refusal::ALL.map(Refusal::as_str));
        let others = [Why::Mode, Why::NotAChild, Why::ClientFork].map(Why::as_str);
        let missing: Vec<_> = reasons.chain(others).filter(|word| clause(REASONS, word).is_none()).collect();
        assert!(missing.is_empty(), "REASONS lacks {missing:?}");
        assert!(GateOutcome::ALL.iter().all(|outcome| clause(GATE, outcome.as_str()).is_some()));
        assert!(BreakCause::ALL.iter().all(|cause| clause(CAUSES, cause.as_str()).is_some()));
        for ending in Ending::ALL {
            assert_eq!(clause(ENDINGS, ending.as_str()).is_none(), ending == Ending::Complete);
        }
        assert_eq!(clause(REASONS, "of a later version"), None);
    }
}
