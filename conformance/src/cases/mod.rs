//! The cases, a module for each subject matter, and the roles that other processes play.

use std::future::Future;
use std::pin::Pin;

use crate::child::Parent;
use crate::context::Context;
use crate::harness::Case;

mod keys;
mod lease;
mod mutex;

/// What another process does.
pub(crate) type Role = fn(Context, Vec<String>, Parent) -> Pin<Box<dyn Future<Output = ()>>>;

/// The roles by their names.
pub(crate) const ROLES: &[(&str, Role)] = &[];

const MODULES: &[&[Case]] = &[keys::CASES, lease::CASES, mutex::CASES];

/// All cases.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    MODULES.iter().copied().flatten()
}
