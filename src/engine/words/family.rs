//! Fan-outs, and the children that start from them.

shown_enums! {
    /// The certainty of a recognition; the surer comes later.
    #[derive(PartialOrd, Ord)]
    pub enum Rank {
        /// The directive makes up enough of a text block.
        Contained = "contained",
        /// The directive is a whole text block.
        Whole = "whole",
        /// The request names its parent.
        Explicit = "explicit",
    }

    /// The reason why a request has nothing to do with a fork point.
    pub enum WhyPlain {
        /// The tenant has no fork points.
        NoForkPoint = "no_fork_point",
        /// Readers could disagree about the request.
        Unreadable = "unreadable",
        /// A conversation that goes on.
        LaterTurn = "later_turn",
        /// No known directive in its first message.
        NoDirective = "no_directive",
        /// A directive is too small a part of its text.
        Coverage = "coverage",
        /// Session or user are not the parent's.
        Hints = "hints",
        /// The client has named agents in this session, and names none here.
        NoAgent = "no_agent",
        /// It has no tools: a title, a summary, a review that quotes the input of a tool.
        NoTools = "no_tools",
        /// Without hints, and too long after the seal.
        Window = "window",
        /// Without hints, and another request has started from that directive.
        Claimed = "claimed",
        /// The call is over: its result has come back.
        Returned = "returned",
        /// It names a parent that is not known.
        UnknownParent = "unknown_parent",
        /// It names a call that its parent has not made.
        UnknownCall = "unknown_call",
        /// Searching its first message would cost too much.
        SearchLimit = "search_limit",
    }

    /// The evidence that a tool starts agents.
    pub enum Spawning {
        /// Its name fits `fork.tools`.
        Listed = "listed",
        /// Children of one of its earlier fan-outs were seen.
        Learned = "learned",
        /// Its children may be gated, not forked.
        Unknown = "unknown",
    }

    /// The reason why an answer left no fork point.
    pub enum FanOutDropped {
        /// The request was itself a child, and no child is put on its turn.
        Child = "child",
        /// The answer has no message id to name it by.
        NoMessageId = "no_message_id",
        /// The answer broke off.
        Unfinished = "unfinished",
        /// A block could not be rebuilt.
        Unfaithful = "unfaithful",
        /// The answer, or what would have to be kept of it, exceeds a limit.
        TooLarge = "too_large",
        /// The turn ended otherwise than with its calls.
        StopReason = "stop_reason",
        /// Fewer calls than make a fan-out: most answers.
        FewCalls = "few_calls",
        /// Enough calls, but too few that say what to do.
        FewDirectives = "few_directives",
        /// A call without id, name or input.
        BadCall = "bad_call",
        /// Two calls have one id.
        ReusedId = "reused_id",
        /// A server tool has not answered yet, or is the one who calls: nothing but results may follow.
        ServerTools = "server_tools",
        /// `limits.pending_forks` fan-outs stream already.
        PendingForks = "pending_forks",
    }

    /// Which children are compared.
    pub enum Arm {
        Forked = "forked",
        /// Left alone to be compared with.
        Holdout = "holdout",
        /// Not forked for any other reason.
        Unforked = "unforked",
    }

    /// The reason why forking stands down.
    pub enum StandDown {
        /// Forked children were billed more than they would have cost as sent.
        Dearer = "dearer",
        /// They answer with nothing more often than others.
        EmptyAnswers = "empty_answers",
    }
}
