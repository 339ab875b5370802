//! Requests of recorded clients.
