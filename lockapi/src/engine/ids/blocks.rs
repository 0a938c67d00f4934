//! Ids of blocks that the database hands out.

use std::fmt;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::engine::batcher::ended;
use crate::engine::{Core, catch_panic};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{IdGen, IdOptions, Ids, NextBlock};
use crate::sync::{Mutex, MutexGuard};

pub(super) struct Handle {
    core: Arc<Core>,
    name: Arc<str>,
    options: IdOptions,
    size: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What is left of the block.
    next: u64,
    end: u64,
    asking: bool,
    waiting: Vec<oneshot::Sender<Result<()>>>,
}

impl Handle {
    pub(super) fn new(core: &Arc<Core>, name: &str, options: IdOptions, size: u64) -> Self {
        Self {
            core: Arc::clone(core),
            name: name.into(),
            options,
            size,
            state: Arc::default(),
        }
    }

    /// Takes another block, or joins who does already.
    fn ask(&self, mut state: MutexGuard<'_, State>) -> oneshot::Receiver<Result<()>> {
        let (sender, answer) = oneshot::channel();
        state.waiting.push(sender);
        if std::mem::replace(&mut state.asking, true) {
            return answer;
        }
        drop(state);
        let next = NextBlock {
            namespace: self.core.namespace.to_string(),
            name: self.name.to_string(),
            size: self.size.cast_signed(),
        };
        let (state, size) = (Arc::clone(&self.state), self.size);
        self.core.batcher.submit(next, move |outcome| {
            let mut state = lock(&state);
            let outcome = outcome.and_then(|first| {
                let message = "the sequence has reached its largest number";
                first.ok_or_else(|| Error::new(ErrorKind::Capacity, "next", message))
            });
            let outcome = outcome.map(|first| (first.unsigned_abs(), state.end));
            let outcome = outcome.and_then(|(first, end)| {
                // Blocks of a name only go up, unless an older state of the database came back.
                if first < end {
                    return Err(set_back(first, end));
                }
                // A block that follows goes on from what is left; of another what is left, too
                // little for who asks, stays unused.
                if state.end != first {
                    state.next = first;
                }
                state.end = first + size;
                Ok(())
            });
            state.asking = false;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            for sender in waiting {
                // A caller that left does not want to know, and the waker of one may panic.
                catch_panic(|| drop(sender.send(outcome.clone())));
            }
        });
        answer
    }

    fn about(&self, error: Error) -> Error {
        error.during("next").on(&self.name)
    }
}

#[async_trait]
impl IdGen for Handle {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_take(&self, count: u64) -> Result<Option<Ids>> {
        let checked = self.options.check_count(count);
        checked.map_err(|error| self.about(error))?;
        let mut state = lock(&self.state);
        let from = state.next;
        if state.end - from < count {
            return Ok(None);
        }
        state.next += count;
        Ok(Some(Ids::numbers(from, from + count)))
    }

    async fn ready(&self, count: u64) -> Result<()> {
        let checked = self.options.check_count(count);
        checked.map_err(|error| self.about(error))?;
        loop {
            let answer = {
                let state = lock(&self.state);
                if state.end - state.next >= count {
                    return Ok(());
                }
                self.ask(state)
            };
            let answer = answer.await.unwrap_or_else(|_| Err(ended("next")));
            answer.map_err(|error| self.about(error))?;
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGen")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn set_back(first: u64, end: u64) -> Error {
    let message = format!(
        "the sequence was set back, as by a restore: it gives {first} again, but this generator has used all \
         below {end}; set next in lockapi.id_block beyond the largest id in use"
    );
    Error::new(ErrorKind::Corrupt, "next", message)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
