//! The suite on the backend in memory.

use std::sync::Arc;

fn main() {
    lockapi_conformance::run(&[Arc::new(lockapi_conformance::Memory)]);
}
