//! The suite that every lockapi backend passes.
pub mod cluster;
