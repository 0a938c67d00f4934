//! The suite on the backend in memory.

use std::sync::Arc;

fn main() {
    conformance::run(vec![Arc::new(conformance::Memory)]);
}
