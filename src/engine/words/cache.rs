//! The prompt cache: what it is made of, what was lost of it, and what that cost.

shown_enums! {
    /// A part of the prompt, in the order in which the cache hashes them.
    #[derive(PartialOrd, Ord)]
    pub enum Layer {
        Model = "model",
        Tools = "tools",
        System = "system",
        Messages = "messages",
    }

    /// The relation of a layer of a request to what came before.
    pub enum SightingClass {
        New = "new",
        Repeat = "repeat",
        /// The conversation had another one.
        Drift = "drift",
    }

    /// The lifetime of an entry that is not read.
    pub enum Ttl {
        FiveMinutes = "5m",
        OneHour = "1h",
    }

    /// The purpose of a breakpoint.
    pub enum BreakpointPlace {
        /// All of them.
        Request = "request",
        /// The newest end of the conversation.
        Tail = "tail",
        /// The end of what siblings share of their parent.
        Shared = "shared",
        /// The end of the system prompt.
        System = "system",
        /// The end of the tools.
        Tools = "tools",
        /// Within the lookback of an entry that the tail does not reach.
        Bridge = "bridge",
    }

    /// Whose breakpoint it is.
    pub enum Origin {
        Client = "client",
        Added = "added",
    }

    /// The object that has the marker as a member.
    pub enum Carrier {
        Block = "block",
        /// The request itself: the upstream marks the last piece that it can.
        TopLevel = "top_level",
    }

    /// A member of the request, or a fact about it, that entries depend on; spelt as the member or header that
    /// holds it.
    pub enum Parameter {
        Speed = "speed",
        Thinking = "thinking",
        ToolChoice = "tool_choice",
        /// `output_config`, and `output_format` as it was called before.
        OutputConfig = "output_config",
        ContextManagement = "context_management",
        /// The set of `anthropic-beta` values.
        Betas = "anthropic-beta",
        /// The presence of an image anywhere.
        Image = "image",
    }

    /// The reason why fewer tokens were read than predicted.
    pub enum BreakCause {
        /// A tool was changed, added, removed or moved.
        Tools = "tools",
        /// The system prompt or the speed changed.
        System = "system",
        Model = "model",
        /// Thinking or the effort changed.
        Thinking = "thinking",
        ToolChoice = "tool_choice",
        /// Another set of betas.
        Betas = "betas",
        /// The history was changed, the first image came or the last went, or context management changed.
        Messages = "messages",
        /// Other bytes with an unchanged meaning.
        Spelling = "spelling",
        /// The entry's lifetime was over.
        TtlExpired = "ttl_expired",
        /// The prefix is shorter than the model caches.
        BelowMinimum = "below_minimum",
        /// No breakpoint is close enough behind the entry.
        Lookback = "lookback",
        /// The entry's writer had not begun to answer.
        NotYetVisible = "not_yet_visible",
        Unknown = "unknown",
    }

    /// The difference between two requests in the first piece that is not the same in both.
    pub enum DivergenceKind {
        /// Equal in meaning, in another spelling: only the cache notices.
        Spelling = "spelling",
        /// Different content.
        Meaning = "meaning",
        /// The first request has pieces here that the second lacks.
        Missing = "missing",
        /// The second has pieces here that the first lacks, before the messages grow.
        Added = "added",
    }

    /// The kind of a text that changes.
    pub enum VolatileKind {
        Date = "date",
        /// A time of day or a timestamp.
        Clock = "clock",
        /// An absolute path.
        Directory = "directory",
        /// A branch, a commit, the state of files.
        Git = "git",
        /// A number that differs, and nothing else.
        Counter = "counter",
        Id = "id",
        Other = "other",
    }

    /// The upstream's explanation of a cache miss.
    pub enum DiagnosisVerdict {
        /// A first turn, or no divergence.
        None = "none",
        /// Not known yet.
        Pending = "pending",
        ModelChanged = "model_changed",
        SystemChanged = "system_changed",
        ToolsChanged = "tools_changed",
        MessagesChanged = "messages_changed",
        PreviousMessageNotFound = "previous_message_not_found",
        Unavailable = "unavailable",
        /// One that we do not know.
        Other = "other",
    }

    /// A baseline that bills are compared with.
    pub enum Baseline {
        /// As the client sent it.
        Sent = "sent",
        /// In one spelling, with breakpoints, behind the gate.
        Aligned = "aligned",
        /// All its tokens without any cache.
        Uncached = "uncached",
    }

    /// The unit of predicted and measured costs.
    pub enum CostUnit {
        Dollars = "usd",
        /// Uncached input tokens: the model's price is not known, only its multipliers. Output is left out.
        Tokens = "tokens",
    }
}

impl Ttl {
    pub const fn ms(self) -> u64 {
        match self {
            Ttl::FiveMinutes => 300_000,
            Ttl::OneHour => 3_600_000,
        }
    }
}
