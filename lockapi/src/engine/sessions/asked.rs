//! A caller that waits for an answer.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::{Granted, Want};
use super::{News, Phase, Sessions};

/// What a caller was promised. Dropping it tells the others that nobody waits any more.
pub(crate) struct Asked {
    pub(super) sessions: Arc<Sessions>,
    pub(super) want: Want,
    pub(super) reply: oneshot::Receiver<Granted>,
    pub(super) answered: bool,
}

impl Asked {
    /// The answer: a grant, `None` when the lock is held, or an error.
    pub(crate) async fn answer(mut self) -> Option<Granted> {
        let answer = (&mut self.reply).await.ok();
        self.answered = true;
        answer
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.reply.close();
        }
        if !self.answered || self.want.line.is_some() {
            self.sessions.left(self.want, self.answered);
        }
    }
}

impl Sessions {
    /// A caller waits no longer. Those behind it who want to share what is shared are let in.
    fn left(&self, want: Want, answered: bool) {
        let mut news = News::default();
        let mut state = self.lock();
        state.lines.ended(want.line, want.lock);
        let slot = state.slots.get(&want.lock);
        if !answered && slot.is_some_and(|slot| matches!(slot.phase, Phase::Shared(_))) {
            self.admit(&mut state, want.lock, &mut news);
        }
        drop(state);
        news.tell();
    }
}
