//! The words for what is done to a request, and why no more.

/// The change to a request before it goes upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// The received bytes, untouched.
    Passthrough(Reason),
    /// One spelling, and breakpoints where they will be read.
    Aligned(Why),
    /// Put on its parent's prefix.
    Forked,
}

/// The reason why a request is aligned, and no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Why {
    /// The mode is `align`, and that was done.
    Mode,
    /// It is not a child.
    NotAChild,
    /// The client has put it on its parent's history itself.
    ClientFork,
    /// No breakpoint was added, for this reason.
    Skipped(Skip),
    /// It is a child that is not forked, for this reason.
    Refused(Refusal),
}

impl Why {
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Mode => "align",
            Why::NotAChild => "not_a_child",
            Why::ClientFork => "client_fork",
            Why::Skipped(skip) => skip.as_str(),
            Why::Refused(refusal) => refusal.as_str(),
        }
    }
}

impl Plan {
    pub fn as_str(self) -> &'static str {
        match self {
            Plan::Passthrough(_) => "passthrough",
            Plan::Aligned(_) => "aligned",
            Plan::Forked => "forked",
        }
    }

    /// Returns the reason why it is this plan and not one that does more.
    pub fn reason(self) -> &'static str {
        match self {
            Plan::Passthrough(reason) => reason.as_str(),
            Plan::Aligned(why) => why.as_str(),
            Plan::Forked => "none",
        }
    }
}

shown_enums! {
    /// The most that is done to requests. Each mode does what the one before does, and more.
    #[derive(PartialOrd, Ord)]
    pub enum Mode {
        Observe = "observe",
        Align = "align",
        Fork = "fork",
    }

    /// A step of a request that is measured, and that a bug of ours must not cost the client.
    pub enum Step {
        /// The body is read.
        Read = "read",
        /// The request to send instead is planned.
        Align = "align",
        /// A child is put on its parent's prefix.
        Fork = "fork",
        /// A part of the answer is watched.
        Observe = "observe",
        /// The answer is learned from and reported.
        Settle = "settle",
    }

    /// The part of a request in a fan-out.
    pub enum Role {
        /// Neither brings results back to a fork point nor starts from one.
        Plain = "plain",
        /// Brings results back to a known fork point.
        Parent = "parent",
        /// A turn of a conversation that started from a fork point.
        Child = "child",
    }

    /// The reason why a request was left alone.
    pub enum Reason {
        /// Not a `POST` to a path that ends in `/messages`, nor a call of Vertex: streamed through unread.
        Endpoint = "endpoint",
        /// The body is larger than `limits.body_bytes`, or would be decoded: forwarded unread.
        BodyTooLarge = "body_too_large",
        /// `limits.held_requests` bodies are in memory already: streamed through unread.
        HeldRequests = "held_requests",
        /// `limits.held_bytes` of bodies are in memory already: forwarded unread.
        HeldBytes = "held_bytes",
        /// The request announces trailers, so its body is more than one piece of bytes: streamed through unread.
        Trailers = "trailers",
        /// The request body is compressed in a way that is not known, or corrupt: forwarded unread.
        ContentEncoding = "content_encoding",
        /// The body is no JSON object, nests too deep or has too many parts: the upstream decides.
        NotJson = "not_json",
        /// The body is signed: any change would break the signature.
        Signed = "signed",
        /// No credential: there is no tenant to act for.
        NoCredential = "no_credential",
        /// The configured mode is `observe`, or the request asked for it.
        Observe = "observe",
        /// A consumer login, and `identity.oauth` does not say otherwise.
        OAuth = "oauth",
        /// Readers could disagree about what the request says.
        Ambiguous = "ambiguous",
        /// It names a parent that is not known here.
        UnknownParent = "unknown_parent",
        /// It goes on from an answer that is not known here, or its `thread` is of no kind that we know.
        UnknownThread = "unknown_thread",
        /// An earlier request of the conversation was refused as we had rewritten it, and accepted as it came.
        Refused = "refused",
        /// It holds thinking of a prefix that is no longer known, and asks the upstream to drop it.
        LostPrefix = "lost_prefix",
        /// A bug of ours while reading.
        Internal = "internal",
    }

    /// The reason why no breakpoint was added.
    pub enum Skip {
        /// The upstream has no markers.
        AutomaticCache = "automatic_cache",
        /// Readers could disagree about what the request says.
        Ambiguous = "ambiguous",
        /// A marker of the client is of no kind that we know.
        MalformedMarker = "malformed_marker",
        /// The client's own markers will be refused: too many, out of order, or on what cannot carry one.
        IllegalMarkers = "illegal_markers",
        /// Neither tools nor an assistant turn, and a prefix that never came before.
        OneShot = "one_shot",
        /// Conversations like this one seldom continue, or the turns of this one come too late.
        SeldomContinues = "seldom_continues",
        /// Something before it changes from turn to turn.
        NeverRead = "never_read",
        /// The prefix is shorter than the model caches.
        BelowMinimum = "below_minimum",
        /// All four are in use.
        NoSlot = "no_slot",
        /// It would have to last an hour, for a marker of the client that may do nothing.
        Hour = "hour",
        /// Nothing there can carry a marker.
        NoLegalBlock = "no_legal_block",
    }

    /// The reason why a child is not forked. It is aligned and gated all the same.
    pub enum Refusal {
        /// Readers could disagree about what the child or its parent says.
        Ambiguous = "ambiguous",
        /// It is a forked child already, or its parent is itself a child.
        Nested = "nested",
        /// The tool that started it is not known to start agents.
        UnknownTool = "unknown_tool",
        /// The fan-out belongs to the holdout.
        Holdout = "holdout",
        /// Forking has cost more or answered less than foreseen, and was stopped.
        StoodDown = "stood_down",
        /// The parent still streams, and `fork.late` does not let a child continue a part of its turn.
        Late = "late",
        /// The parent still streams, and the child's own call is not known.
        Unsealed = "unsealed",
        /// The parent's history ends with words that were put into the model's mouth.
        Prefill = "prefill",
        /// The child's first message cannot be split without loss.
        Shape = "shape",
        /// It asks for a summary, or begins with one: nothing may come before that.
        Compaction = "compaction",
        /// It asks for another version of the API than its parent.
        Version = "version",
        Model = "model",
        /// It has no tools at all.
        NoTools = "no_tools",
        /// It has a tool that its parent lacks.
        ToolsDiffer = "tools_differ",
        /// It has fewer tools than its parent, and nothing is known to keep it to them.
        ToolsSubset = "tools_subset",
        Thinking = "thinking",
        ToolChoice = "tool_choice",
        OutputConfig = "output_config",
        OutputFormat = "output_format",
        ContextManagement = "context_management",
        Speed = "speed",
        McpServers = "mcp_servers",
        Container = "container",
        /// A field that we do not know, and that may shape the prompt, differs.
        UnknownField = "unknown_field",
        /// It shows an image or a document that its parent lacks.
        Media = "media",
        /// The call asks for an agent of a special kind.
        Specialist = "specialist",
        /// The call adds somebody to a team.
        Teammate = "teammate",
        /// The call runs its agent elsewhere.
        Isolation = "isolation",
        /// The session coordinates others.
        Coordinator = "coordinator",
        /// The body would exceed what the upstream takes, or what we read.
        TooLarge = "too_large",
        /// Prompt and answer would exceed the model's window.
        Window = "window",
        /// The prompt would fill more of the window than `fork.max_context_share`.
        ContextShare = "context_share",
        /// It would cost more than `fork.max_cost_ratio` or `fork.context_premium` allow.
        Cost = "cost",
        /// It would cost more if it lived long, and it is not known yet how long children of its tool with its tools live.
        Unlearned = "unlearned",
        /// The cost cannot be predicted.
        CostUnknown = "cost_unknown",
        /// The prefixes of children that work take all that `store.max_bytes` and `store.tenant_share` leave.
        StoreFull = "store_full",
        /// A bug of ours.
        Internal = "internal",
    }

    /// A change to a child, beside putting it on its parent's prefix.
    pub enum ForkNote {
        /// Its own attribution line replaces the parent's.
        OwnLine = "own_line",
        /// Its own attribution line was left out.
        LineLeftOut = "line_left_out",
        /// Its system prompt travels in its first message.
        Instructions = "instructions",
        /// A system message travels there too.
        Hoisted = "hoisted",
        /// A note says which tools are its own.
        Tools = "tools",
        /// A note says how to report.
        Report = "report",
        /// A note says that it works elsewhere.
        Worktree = "worktree",
        /// It continues the parent's turn up to its own call.
        Partial = "partial",
        /// It is a message to a turn, and no agent.
        Snapshot = "snapshot",
        /// It has replaced its first message since.
        Compacted = "compacted",
        /// It has changed its system prompt since.
        NewInstructions = "new_instructions",
        /// It has changed fields that shape the prompt since, and keeps them.
        ChangedFields = "changed_fields",
    }
}

impl Refusal {
    pub fn named(word: &str) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| refusal.as_str() == word)
    }
}

impl Mode {
    pub fn named(word: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_spelling() {
        let spellings: std::collections::HashSet<_> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(spellings.len(), Reason::ALL.len());
    }
}
