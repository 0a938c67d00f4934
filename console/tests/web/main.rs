//! The page as clients meet it: who is let in, what is shown, and what is not.
#![cfg(feature = "web")]

mod acting;
#[path = "../common/mod.rs"]
mod common;
mod doors;
mod edits;
mod metrics;
mod outages;
mod queues;
mod screens;
mod visitor;
