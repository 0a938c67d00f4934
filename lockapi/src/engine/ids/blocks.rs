//! Ids of blocks that the database hands out.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::engine::batcher::{Batcher, ended};
use crate::engine::{Core, catch_panic};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{IdGen, IdOptions, Ids, MAX_BLOCK, NextBlock};
use crate::sync::{Mutex, MutexGuard};

pub(super) struct Handle {
    source: Arc<Source>,
    options: IdOptions,
    _core: Arc<Core>,
}

/// What the handle and the batcher share.
struct Source {
    namespace: Arc<str>,
    name: Arc<str>,
    size: u64,
    batcher: Weak<Batcher>,
    state: Mutex<State>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    /// What is left of the block.
    next: u64,
    end: u64,
    asking: bool,
    waiting: VecDeque<Waiting>,
}

/// A caller that waits for so many ids.
struct Waiting {
    count: u64,
    reply: oneshot::Sender<Result<()>>,
}

impl Handle {
    pub(super) fn new(core: &Arc<Core>, name: &str, options: IdOptions, size: u64) -> Self {
        let source = Arc::new_cyclic(|this| Source {
            namespace: Arc::clone(&core.namespace),
            name: name.into(),
            size,
            batcher: Arc::downgrade(&core.batcher),
            state: Mutex::default(),
            this: this.clone(),
        });
        Self {
            source,
            options,
            _core: Arc::clone(core),
        }
    }

    fn about(&self, error: Error) -> Error {
        error.during("next").on(&self.source.name)
    }
}

impl Source {
    /// Takes another block for all who wait, unless one is being taken.
    fn ask(&self, mut state: MutexGuard<'_, State>) {
        if state.asking {
            return;
        }
        state.waiting.retain(|one| !one.reply.is_closed());
        if state.waiting.is_empty() {
            return;
        }
        state.asking = true;
        let wanted: u64 = state.waiting.iter().map(|one| one.count).sum();
        drop(state);
        let size = block_for(wanted, self.size);
        let next = NextBlock {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            size: size.cast_signed(),
        };
        let (Some(this), Some(batcher)) = (self.this.upgrade(), self.batcher.upgrade()) else {
            // Nobody has the generator any more.
            return;
        };
        batcher.submit(next, move |outcome| this.answered(size, outcome));
    }

    fn answered(&self, size: u64, outcome: Result<Option<i64>>) {
        let mut state = lock(&self.state);
        state.asking = false;
        let outcome = outcome.and_then(|first| {
            let message = "the sequence has reached its largest number";
            first.ok_or_else(|| Error::new(ErrorKind::Capacity, "next", message))
        });
        let outcome = outcome.and_then(|first| state.add(first.unsigned_abs(), size));
        let told = match &outcome {
            Ok(()) => state.served(),
            Err(_) => std::mem::take(&mut state.waiting),
        };
        // The others wait for a block of their own.
        self.ask(state);
        for one in told {
            // A caller that left does not want to know, and the waker of one may panic.
            catch_panic(|| drop(one.reply.send(outcome.clone())));
        }
    }
}

impl State {
    fn add(&mut self, first: u64, size: u64) -> Result<()> {
        // Blocks of a name only go up, unless an older state of the database came back.
        if first < self.end {
            return Err(set_back(first, self.end));
        }
        // A block that follows goes on from what is left; of another what is left, too
        // little for who asks, stays unused.
        if self.end != first {
            self.next = first;
        }
        self.end = first + size;
        Ok(())
    }

    /// Those in front for whom there are ids.
    fn served(&mut self) -> VecDeque<Waiting> {
        self.waiting.retain(|one| !one.reply.is_closed());
        let mut left = self.end - self.next;
        let mut many = 0;
        for one in &self.waiting {
            let Some(less) = left.checked_sub(one.count) else {
                break;
            };
            left = less;
            many += 1;
        }
        self.waiting.drain(..many).collect()
    }
}

/// As many whole blocks as have the ids that are wanted, or as one statement gives.
fn block_for(wanted: u64, size: u64) -> u64 {
    let most = (MAX_BLOCK / size).max(1);
    wanted.div_ceil(size).clamp(1, most) * size
}

#[async_trait]
impl IdGen for Handle {
    fn name(&self) -> &str {
        &self.source.name
    }

    fn try_take(&self, count: u64) -> Result<Option<Ids>> {
        let checked = self.options.check_count(count);
        checked.map_err(|error| self.about(error))?;
        let mut state = lock(&self.source.state);
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
        let answer = {
            let mut state = lock(&self.source.state);
            if state.end - state.next >= count {
                return Ok(());
            }
            let (reply, answer) = oneshot::channel();
            if state.waiting.len() == state.waiting.capacity() {
                // Callers that left, while the server is silent, take no more room than those that wait.
                state.waiting.retain(|one| !one.reply.is_closed());
            }
            state.waiting.push_back(Waiting { count, reply });
            self.source.ask(state);
            answer
        };
        let answer = answer.await.unwrap_or_else(|_| Err(ended("next")));
        answer.map_err(|error| self.about(error))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGen")
            .field("name", &self.source.name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_as_large_as_what_is_wanted() {
        assert_eq!(block_for(1, 1000), 1000);
        assert_eq!(block_for(1001, 1000), 2000);
        assert_eq!(block_for(0, 7), 7);
        assert_eq!(block_for(10_000, 1), 10_000);
        // Of the largest blocks there is one.
        assert_eq!(block_for(3 * MAX_BLOCK, MAX_BLOCK), MAX_BLOCK);
        assert_eq!(block_for(3 * MAX_BLOCK, MAX_BLOCK - 1), MAX_BLOCK - 1);
        assert_eq!(block_for(u64::MAX, 3), MAX_BLOCK / 3 * 3);
    }

    /// Who comes first is served first, and who has left keeps nobody waiting.
    #[test]
    fn those_in_front_are_served() {
        let mut state = State {
            next: 10,
            end: 15,
            ..State::default()
        };
        let mut answers = Vec::new();
        for count in [2, 4, 2, 1, 3] {
            let (reply, answer) = oneshot::channel();
            state.waiting.push_back(Waiting { count, reply });
            answers.push(answer);
        }
        // The second one has left.
        drop(answers.remove(1));
        let counts = |waiting: &VecDeque<Waiting>| -> Vec<u64> {
            waiting.iter().map(|one| one.count).collect()
        };
        assert_eq!(counts(&state.served()), [2, 2, 1]);
        assert_eq!(counts(&state.waiting), [3]);
    }
}
