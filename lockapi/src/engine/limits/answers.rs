//! Waiting for answers: for one that is undone if its caller is gone, and for one that is not.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot::{self, Receiver, Sender};

use crate::engine::batcher::{Answer, Repeated, ended};
use crate::error::{Error, ErrorKind, Result};
use crate::limit::{Outcome, RawDecision};

/// What may have been taken is not told as refused.
pub(super) fn certain(decided: &RawDecision) -> Result<()> {
    if decided.outcome == Outcome::Unknown {
        let message = "the connection was lost, and the second try was refused: the first may have taken the permits";
        return Err(Error::new(ErrorKind::Indeterminate, "check", message));
    }
    Ok(())
}

type Undo<T> = Arc<dyn Fn(T) + Send + Sync>;

/// The sending and the waiting side; `undo` gets an answer whose caller is gone.
pub(super) fn answer<T: Send + 'static>(
    undo: impl Fn(T) + Send + Sync + 'static,
) -> (UndoingReply<T>, Waiting<T>) {
    let undo: Undo<T> = Arc::new(undo);
    let (sender, receiver) = oneshot::channel();
    let reply = UndoingReply {
        sender,
        undo: Arc::clone(&undo),
    };
    (reply, Waiting { receiver, undo })
}

/// See [`answer`].
pub(super) struct UndoingReply<T> {
    sender: Sender<Result<T>>,
    undo: Undo<T>,
}

impl<T: Send> Answer<T> for UndoingReply<T> {
    fn answer(self: Box<Self>, outcome: Result<T>, _: Repeated) {
        if let Err(Ok(answer)) = self.sender.send(outcome) {
            (self.undo)(answer);
        }
    }

    fn is_awaited(&self) -> bool {
        !self.sender.is_closed()
    }
}

/// Of a request of one line.
pub(super) struct SingleLineReply(pub(super) UndoingReply<RawDecision>);

impl Answer<Vec<RawDecision>> for SingleLineReply {
    fn answer(self: Box<Self>, outcome: Result<Vec<RawDecision>>, repeated: Repeated) {
        let outcome = outcome.map(|mut decided| decided.pop().unwrap_or_else(RawDecision::again));
        Box::new(self.0).answer(outcome, repeated);
    }

    fn is_awaited(&self) -> bool {
        self.0.is_awaited()
    }
}

/// See [`answer`].
pub(super) struct Waiting<T> {
    receiver: Receiver<Result<T>>,
    undo: Undo<T>,
}

/// Starts a request that completes even if its caller is gone, and waits for it.
pub(super) fn complete<T: Send + 'static>(
    operation: &'static str,
    start: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>),
) -> Pin<Box<dyn Future<Output = Result<T>> + Send>> {
    let (sender, answer) = oneshot::channel();
    // A caller that left does not want the answer.
    start(Box::new(move |outcome| drop(sender.send(outcome))));
    Box::pin(async move { answer.await.unwrap_or_else(|_| Err(ended(operation))) })
}

impl<T> Future for Waiting<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.receiver)
            .poll(context)
            .map(|answer| answer.unwrap_or_else(|_| Err(ended("check"))))
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        self.receiver.close();
        // Nothing is there when it was taken, or when the other side is still to find it closed.
        if let Ok(Ok(answer)) = self.receiver.try_recv() {
            (self.undo)(answer);
        }
    }
}
