//! A request, from bytes to what the cache compares: spans and pieces, meanings, the chain of prefix hashes, and what is
//! known from the body before it. Nothing is copied, and nothing is checked beyond structure.

pub mod json;
pub mod marker;
pub mod anatomy;
pub mod meaning;
pub mod prefix;
pub mod images;
pub mod edit;
pub mod strip;
pub mod thread;
pub mod recall;
pub mod identify;
pub mod clients;
pub mod endpoint;
