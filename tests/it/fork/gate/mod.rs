//! The gate: one writer per cache entry, and nobody waits too long for it.

mod siblings;
mod shapes;
mod leaders;
mod whole_answers;
mod fairness;
mod observed;
mod line;
mod replicas;
