//! Admissions of jobs, of which there is one at a time for a queue: others do nothing.

use std::time::Duration;

use lockapi::driver::{Row, Rows, Type, Value};

use super::State;
use crate::judges::Turn;
use crate::runtime::{Runtime, Time};

/// How long one takes.
const TAKES: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(5));

impl State {
    /// What one is answered that comes while another session admits; it begins otherwise.
    pub(super) fn meets_another(
        &mut self,
        (session, turn): (u64, &Turn),
        now: Time,
        runtime: &Runtime,
    ) -> Option<Rows> {
        let queue = (turn.queue.namespace.clone(), turn.queue.queue.clone());
        let before = self.admitting.get(&queue);
        if before.is_some_and(|(other, until)| *other != session && now < *until) {
            *self.struck.entry("admitting").or_default() += 1;
            return Some(vec![Row(vec![
                Value::Null(Type::Int),
                Value::Int(0),
                Value::Null(Type::Int),
            ])]);
        }
        let until = now + runtime.between(TAKES.0, TAKES.1);
        self.admitting.insert(queue, (session, until));
        None
    }
}
