//! The page as clients meet it: who is let in, what is shown, and what is not.
#![cfg(feature = "web")]

mod acting;
mod doors;
mod metrics;
mod screens;
mod visitor;
