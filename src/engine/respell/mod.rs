//! One spelling: the bytes in which a meaning was first seen, and what a conversation repeats put back into them.

pub mod canonical;
pub mod echo;
pub mod system_block;
