//! Words of what is kept beyond this process.

shown_enums! {
    /// The kinds of records.
    #[derive(PartialOrd, Ord)]
    pub enum RecordKind {
        /// A fan-out, pending or sealed.
        ForkPoint = "fork_point",
        /// A child and its prefix.
        Child = "child",
        /// A spelling that was seen first.
        Spelling = "spelling",
        /// The entries in the provider's cache.
        Worlds = "worlds",
        /// The lessons of a tenant's traffic.
        Learned = "learned",
        /// A conversation that is held by the server.
        Thread = "thread",
    }

    /// The calls to a store that outlives the process.
    pub enum StoreOp {
        /// All records of a tenant that is seen first.
        Load = "load",
        /// The records that others have written since.
        News = "news",
        Write = "write",
        Forget = "forget",
        /// A request that went on before the load of its tenant was done.
        Wait = "wait",
        /// Weights of models, learned from bills; all tenants share them.
        Weights = "weights",
        /// The right to write an entry before other processes do.
        Lease = "lease",
    }

    /// The failures of a store. To a request each means that nothing is known.
    pub enum StoreError {
        /// It cannot be reached, or failed.
        Down = "down",
        /// It did not answer in time.
        Slow = "slow",
        /// It has no room.
        Full = "full",
        /// It takes nothing.
        ReadOnly = "read_only",
        /// It holds something that is not ours, or is damaged.
        Garbage = "garbage",
        /// Another process has it.
        Locked = "locked",
    }
}
