//! The suite on the backend in memory.

use std::sync::Arc;

fn main() {
    conformance::run(&[Arc::new(conformance::Memory)]);
}
