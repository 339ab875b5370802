//! How a request and its answer went.

shown_enums! {
    /// Which part of the API a path belongs to; the path itself may carry ids and is never logged.
    pub enum Endpoint {
        Messages = "messages",
        CountTokens = "count_tokens",
        Batches = "batches",
        Models = "models",
        Files = "files",
        /// `/model/{id}/invoke` and `/model/{id}/invoke-with-response-stream`.
        Bedrock = "bedrock",
        /// `…/publishers/anthropic/models/{id}:rawPredict` and `:streamRawPredict`.
        Vertex = "vertex",
        Other = "other",
    }

    /// The end of an exchange.
    pub enum Ending {
        /// The last byte of the answer was handed on.
        Complete = "complete",
        /// The client went away first.
        ClientLeft = "client_left",
        /// The upstream broke off, before or within its answer.
        UpstreamBroke = "upstream_broke",
        /// We answered ourselves: the request was refused, or the upstream could not be reached.
        Refused = "refused",
    }

    /// The reason why the upstream refused a request.
    pub enum UpstreamRefusal {
        /// Prompt and answer exceed the model's window.
        Window = "window",
        /// The body exceeds what the upstream takes.
        TooLarge = "too_large",
        /// A thinking block belongs behind another prefix: the one that this child had before its state was lost.
        LostPrefix = "lost_prefix",
        /// The server holds a conversation otherwise than its client knows it: the client is asked for the whole of it.
        Thread = "thread",
        Other = "refused",
    }

    /// The degree to which the conversation of a request was remembered.
    pub enum Recall {
        /// Its last request is known.
        Hit = "hit",
        /// It begins, or nothing was seen of it before.
        New = "new",
        /// Of its last request only digests are known: what it lost of the cache can be said, and not in which words.
        Faded = "faded",
        /// It goes on, and conversations of its tenant were forgotten for want of room.
        Forgotten = "forgotten",
    }

    /// The end of a turn.
    pub enum StopReason {
        EndTurn = "end_turn",
        ToolUse = "tool_use",
        MaxTokens = "max_tokens",
        StopSequence = "stop_sequence",
        PauseTurn = "pause_turn",
        Refusal = "refusal",
        ContextWindow = "model_context_window_exceeded",
        /// Any other word, or none.
        Other = "other",
    }

    /// The outcome of the gate. Every request that enters has exactly one.
    pub enum GateOutcome {
        /// All it writes is small or warm already: the gate was not asked.
        Unneeded = "unneeded",
        /// No request was writing its entries: it went at once, and others may wait for it.
        Led = "led",
        /// It streams and met only leaders that do not: it went at once, and is waited for instead of them.
        Overtook = "overtook",
        /// It waited, and its leader's answer began.
        Released = "released",
        /// It waited, its leader came to nothing, and it leads now.
        Succeeded = "succeeded",
        /// Its leader does not stream and has had `gate.json_hold_ms` or what was learned since: the entry is
        /// presumed warm.
        Presumed = "presumed",
        /// Its deadline came before its leader's answer began.
        TimedOut = "timed_out",
        /// Its leader does not stream, and waiting for such leaders is given up for this tenant and model.
        GivenUp = "json_given_up",
        /// Answers to so large a write begin later than anybody would wait: it went at once. The gate was not asked.
        TooSlow = "too_slow",
        /// Too many wait already: it went at once.
        Full = "full",
        /// Its client left while it waited. Reported where the wait is dropped, since nothing is left to be released.
        ClientLeft = "client_left",
    }
}

/// A stop reason that only the log names: as a variant it would be a new label of `forkpoint_arm_stop_reasons_total`.
const COMPACTION: &str = "compaction";

impl Recall {
    /// Returns the spelling in the log, where only what is missing is said.
    pub fn logged(self) -> Option<&'static str> {
        matches!(self, Recall::Faded | Recall::Forgotten).then(|| self.as_str())
    }
}

impl StopReason {
    /// Returns the reason for the API's word.
    pub fn of(stop_reason: Option<&str>) -> StopReason {
        let known = StopReason::ALL.into_iter().find(|stop| stop_reason == Some(stop.as_str()));
        known.unwrap_or(StopReason::Other)
    }

    /// Returns the spelling of the API's word in the log; unknown text does not reach it.
    pub fn logged(stop_reason: &str) -> &'static str {
        if stop_reason == COMPACTION { COMPACTION } else { StopReason::of(Some(stop_reason)).as_str() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_known_stop_reasons_and_no_others() {
        let known = [
            "end_turn",
            "max_tokens",
            "stop_sequence",
            "tool_use",
            "pause_turn",
            "compaction",
            "refusal",
            "model_context_window_exceeded",
        ];
        assert_eq!(known.map(StopReason::logged), known);
        assert_eq!(["", "of a later version"].map(StopReason::logged), ["other", "other"]);
    }
}
