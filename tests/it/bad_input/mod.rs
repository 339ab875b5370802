//! Input that is not what it should be, in requests and in answers.

mod bodies;
mod mangled;
