//! Nothing is told.

use std::sync::Arc;

use super::{Kind, Renewal, Warn};
use crate::engine::Keeper;
use crate::hold::Hold;
use crate::key::Key;
use crate::queue::Statistics;

/// A point in time that nobody asks for.
#[derive(Clone, Copy)]
pub(crate) struct Stamp;

impl Stamp {
    #[inline]
    pub(crate) fn take(_: &Keeper) -> Self {
        Self
    }
}

/// A hold that nobody is told of.
pub(crate) struct Held;

impl Held {
    #[inline]
    #[allow(clippy::unused_self, reason = "it ends a hold where somebody is told")]
    pub(crate) fn end(self) {}
}

#[inline]
pub(crate) fn granted(_: Kind, _: &Key, _: Stamp, _: Warn, _: &Keeper, _: &Arc<Hold>) -> Held {
    Held
}

#[inline]
pub(crate) fn contended(_: Kind) {}

#[inline]
pub(crate) fn lost(_: Kind, _: usize) {}

#[inline]
pub(crate) fn renewed(_: &str, _: Renewal) {}

#[inline]
pub(crate) fn claimed(_: &str, _: usize) {}

#[inline]
pub(crate) fn counted(_: &str, _: &Statistics) {}

#[inline]
pub(crate) fn batch(_: &'static str, _: usize) {}
