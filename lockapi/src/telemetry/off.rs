//! Without the features: nothing is reported.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Fault, Kind, Renewal, Subject};
use crate::engine::Timer;
use crate::error::{Failure, Result};
use crate::hold::Hold;
use crate::key::Key;
use crate::queue::{Delivery, Headers, Statistics};
use crate::worker::Ending;

/// A point in time that nobody asks for.
#[derive(Clone, Copy)]
pub(crate) struct Stamp;

impl Stamp {
    #[inline]
    pub(crate) fn take(_: &Timer) -> Self {
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

/// A job that nobody is told of.
#[derive(Clone)]
pub(crate) struct Handling;

impl Handling {
    #[inline]
    pub(crate) fn of(_: &Delivery) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn current() -> Self {
        Self
    }

    #[inline]
    #[allow(clippy::unused_self, reason = "it has a span where somebody is told")]
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    #[inline]
    #[allow(clippy::unused_self, reason = "it has a span where somebody is told")]
    pub(crate) fn around<F: Future>(&self, work: F) -> F {
        work
    }

    #[inline]
    #[allow(clippy::unused_self, reason = "it has a span where somebody is told")]
    pub(crate) fn ended(&self, _: &Delivery, _: &Ending, _: Duration) {}
}

#[inline]
pub(crate) fn pushes(_: &str, _: &mut Headers) {}

const _: () = assert!(
    size_of::<(Stamp, Held, Handling)>() == 0,
    "it costs nothing"
);

#[inline]
pub(crate) fn describe() {}

#[inline]
pub(crate) fn acquiring<T: Answer, F: Future<Output = Result<T>>>(
    _: Subject<'_>,
    _: &'static str,
    work: F,
) -> F {
    work
}

#[inline]
pub(crate) fn granted(_: Subject<'_>, _: Stamp, _: &Arc<Hold>) -> Held {
    Held
}

#[inline]
pub(crate) fn waited(_: Subject<'_>, _: Stamp) {}

#[inline]
pub(crate) fn contended(_: Kind) {}

#[inline]
pub(crate) fn fault(_: Fault) {}

#[inline]
pub(crate) fn lost(_: impl Iterator<Item = Kind>) {}

#[inline]
pub(crate) fn renewed(_: Kind, _: &dyn Display, _: Renewal) {}

pub(crate) fn warn(what: std::fmt::Arguments<'_>) {
    super::write(what);
}

#[inline]
pub(crate) fn decided(_: &Key, _: bool) {}

#[inline]
pub(crate) fn claimed(_: &str, _: usize) {}

#[inline]
pub(crate) fn counted(_: &str, _: &Statistics) {}

#[inline]
pub(crate) fn statement<T, F: Future<Output = Result<T, Failure>>>(
    _: &'static str,
    _: usize,
    work: F,
) -> F {
    work
}
