//! Transactions of users: pushes, completions, takes and writes of holders in them, which end in all ways.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, poll_immediate, select};
use lockapi::driver::{Connector, Mode};
use lockapi::queue::{Delivery, Job};
use lockapi::{Error, ErrorKind, Failure, Fence};

use super::{Context, asked, jobs};
use crate::network::{Client, Network};

/// The name of the kind of task whose plans have transactions.
pub(super) const KIND: &str = "transaction";
/// The longest that a transaction stays open when nothing holds it up.
const OPEN: Duration = Duration::from_millis(300);

/// How long a program waits for the server.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Committed,
    /// It has done nothing.
    RolledBack,
    Unknown,
}

/// A transaction of a connection of its own.
struct Transaction {
    client: Client,
}

impl Transaction {
    /// Opens one; nothing where that fails.
    async fn open(context: &Context) -> Option<Self> {
        let network = Network {
            runtime: context.runtime.clone(),
            server: context.server.clone(),
            program: context.program,
        };
        let opened = async {
            let mut client = network.connect(Mode::Direct).await?;
            client.begin().await?;
            Ok::<_, Failure>(client)
        };
        match within(context, opened).await? {
            Ok(client) => Some(Self { client }),
            Err(failure) => {
                context.history.failed(&failure.error("begin"));
                None
            }
        }
    }

    /// Rolls back, leaves, or commits.
    async fn end(mut self, context: &Context) -> End {
        context.rest(OPEN).await;
        match context.runtime.draw(|random| random.u8(..6)) {
            0 => self.roll_back(context).await,
            1 => End::RolledBack,
            2 if context.runtime.happens(0.1) => {
                // Whoever leaves while it commits does not know.
                let polls = context.runtime.draw(|random| random.u32(1..3));
                let mut commit = pin!(self.client.end(true));
                for _ in 0..polls {
                    if poll_immediate(commit.as_mut()).await.is_some() {
                        break;
                    }
                    context.rest(Duration::from_micros(300)).await;
                }
                End::Unknown
            }
            _ => match within(context, self.client.end(true)).await {
                Some(Ok(true)) => End::Committed,
                Some(Ok(false)) => End::RolledBack,
                Some(Err(_)) | None => End::Unknown,
            },
        }
    }

    async fn roll_back(mut self, context: &Context) -> End {
        // If this fails, the server does it when the connection has ended.
        within(context, self.client.end(false)).await;
        End::RolledBack
    }
}

/// A program gives up a server that does not answer.
async fn within<T>(context: &Context, work: impl Future<Output = T>) -> Option<T> {
    let sleep = pin!(context.runtime.sleep(PATIENCE));
    match select(pin!(work), sleep).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// Makes a call in a transaction; `None` when it was left, or was not answered.
async fn call<T>(
    context: &Context,
    call: impl Future<Output = Result<T, Error>> + Send,
) -> Option<Result<T, Error>> {
    within(context, context.outcome(call)).await.flatten()
}

pub(super) async fn run(context: Context) {
    while !context.is_ending() {
        if context.coin() {
            push(&context).await;
        } else {
            take(&context).await;
        }
        context.rest(Duration::from_secs(1)).await;
    }
}

/// Pushes some jobs, which are there if it commits.
async fn push(context: &Context) {
    let queue = context.backend().queue(jobs::QUEUE).expect("a queue");
    let Some(mut transaction) = Transaction::open(context).await else {
        return;
    };
    let many = context.runtime.draw(|random| random.usize(1..=4));
    let numbers: Vec<_> = (0..many).map(|_| context.history.push()).collect();
    let pushed: Vec<Job> = numbers.iter().map(|it| jobs::job(context, *it)).collect();
    let outcome = call(context, queue.push_in(&mut transaction.client, &pushed));
    let end = match outcome.await {
        Some(Ok(_)) => transaction.end(context).await,
        Some(Err(error)) => {
            context.history.failed(&error);
            transaction.roll_back(context).await
        }
        // It may have been pushed before what follows.
        None => match transaction.end(context).await {
            End::RolledBack => End::RolledBack,
            End::Committed | End::Unknown => End::Unknown,
        },
    };
    for number in numbers {
        match end {
            End::Committed => context.history.pushed(number, Ok(())),
            End::RolledBack => context.history.pushed(number, Err(&rolled_back())),
            End::Unknown => {}
        }
    }
}

/// Takes some jobs, which are done if it commits.
async fn take(context: &Context) {
    let queue = context.backend().queue(jobs::QUEUE).expect("a queue");
    let Some(mut transaction) = Transaction::open(context).await else {
        return;
    };
    let most = context.runtime.draw(|random| random.usize(1..=3));
    let began = asked(context);
    let outcome = call(context, queue.take_in(&mut transaction.client, most));
    let taken = match outcome.await {
        Some(Ok(taken)) => taken,
        Some(Err(error)) => {
            context.history.failed(&error);
            transaction.roll_back(context).await;
            return;
        }
        None => {
            transaction.roll_back(context).await;
            return;
        }
    };
    let (server, session) = (context.server.clone(), transaction.client.session());
    let held: crate::history::Held = Arc::new(move || server.is_in_transaction(session));
    let mut done = Vec::new();
    for job in taken {
        let Ok(number) = job.decode::<u64>() else {
            let what = job.payload();
            return context
                .runtime
                .violate("what is delivered was pushed", what);
        };
        let claim = (0, began);
        let entry = context
            .history
            .delivered(number, context.program, claim, Arc::clone(&held));
        context.history.ack(number, i64::MAX);
        done.push((number, entry));
    }
    let asked = asked(context);
    let end = transaction.end(context).await;
    for (number, entry) in done {
        drop(entry);
        // A take has no token, and what it takes nobody else has.
        settled(context, number, (i64::MAX, asked), end);
    }
}

fn settled(context: &Context, job: u64, asked: (i64, crate::runtime::Time), end: End) {
    match end {
        End::Committed => context.history.acked(job, asked, Ok(())),
        End::RolledBack => context.history.acked(job, asked, Err(&rolled_back())),
        End::Unknown => {}
    }
}

/// Completes a delivery in a transaction; answers whether it has tried to.
pub(super) async fn complete(context: &Context, job: u64, delivery: &Delivery) -> bool {
    let Some(mut transaction) = Transaction::open(context).await else {
        return false;
    };
    let asked = (delivery.ticket().token, asked(context));
    context.history.ack(job, asked.0);
    match call(context, delivery.ack_in(&mut transaction.client)).await {
        Some(Ok(())) => {
            let end = transaction.end(context).await;
            settled(context, job, asked, end);
        }
        Some(Err(error)) => {
            if error.kind() == ErrorKind::Lost {
                context.history.lost_delivery(job, asked.0, &error);
            } else {
                context.history.failed(&error);
            }
            transaction.roll_back(context).await;
            settled(context, job, asked, End::RolledBack);
        }
        None => {
            transaction.roll_back(context).await;
            settled(context, job, asked, End::RolledBack);
        }
    }
    true
}

/// A holder writes something that nobody may write who does not hold any more; answers whether that was refused because
/// he does not.
pub(super) async fn write(context: &Context, fence: &Fence) -> bool {
    let Some(mut transaction) = Transaction::open(context).await else {
        return false;
    };
    let mut is_lost = false;
    match call(context, fence.check_in(&mut transaction.client)).await {
        Some(Ok(())) => {
            context.history.answered("check-in");
            transaction.end(context).await;
        }
        Some(Err(error)) => {
            is_lost = error.kind() == ErrorKind::Lost;
            if !is_lost {
                context.history.failed(&error);
            }
            transaction.roll_back(context).await;
        }
        None => drop(transaction),
    }
    is_lost
}

/// What has not happened.
fn rolled_back() -> Error {
    Failure::connect(None, "the transaction was rolled back").error("commit")
}
