//! A process that works on jobs and records when each delivery began, when its work ended, and that it was
//! acknowledged, or may have been: one line each, written at once, with the time of the clock that all processes share.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use futures_util::future::join_all;
use lockapi::ErrorKind;
use lockapi::queue::{Claim, Delivery};
use rustix::time::{ClockId, clock_gettime};

use crate::QUEUE;
use crate::common::{Problem, Task};

/// How many jobs a process has at once.
const MOST: usize = 40;
/// One in so many deliveries fails.
const FAILS: u32 = 40;

pub(crate) fn run(task: &Task) -> Result<(), Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work(task))
}

async fn work(task: &Task) -> Result<(), Problem> {
    let backend = task.connect().await?;
    let queue = backend.queue(QUEUE)?;
    let mut log = File::create(&task.file)?;
    let claim = Claim::new(MOST)
        .lease(Duration::from_secs(1))
        .wait(Duration::from_millis(300));
    let mut done = 0;
    // What others have done and could not record is their part of the work, and what ends this then.
    while done < task.work {
        let claimed = match queue.claim(&claim).await {
            Ok(claimed) => claimed,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        if claimed.is_empty() {
            match queue.statistics().await {
                Ok(left) if left.ready.count + left.running.count + left.delayed.count == 0 => {
                    break;
                }
                Ok(_) => continue,
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        let mut lines = String::new();
        for delivery in &claimed {
            lines.push_str(&line('b', delivery)?);
        }
        log.write_all(lines.as_bytes())?;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2000))).await;
        let (failed, worked): (Vec<_>, Vec<_>) = claimed
            .into_iter()
            .partition(|_| fastrand::u32(..FAILS) == 0);
        for delivery in failed {
            let after = Duration::from_millis(fastrand::u64(0..30));
            // One that was lost is with another process.
            match delivery.nack("on purpose", after).await {
                Err(error) if !is_passing(&error) && error.kind() != ErrorKind::Lost => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        let mut lines = String::new();
        for delivery in &worked {
            lines.push_str(&line('e', delivery)?);
        }
        log.write_all(lines.as_bytes())?;
        let said: Result<Vec<_>, Problem> = worked
            .iter()
            .map(|delivery| Ok((line('a', delivery)?, line('u', delivery)?)))
            .collect();
        let acks = worked.into_iter().map(Delivery::ack);
        let mut lines = String::new();
        for ((acknowledged, unknown), acked) in said?.iter().zip(join_all(acks).await) {
            match acked {
                Ok(()) => {
                    lines.push_str(acknowledged);
                    done += 1;
                }
                Err(error) if error.kind() == ErrorKind::Indeterminate => lines.push_str(unknown),
                Err(error) if error.kind() == ErrorKind::Lost || is_passing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        log.write_all(lines.as_bytes())?;
    }
    backend.close().await?;
    Ok(())
}

/// What happened to which delivery of which job, and when.
fn line(what: char, delivery: &Delivery) -> Result<String, Problem> {
    let (group, number): (u64, u64) = delivery.decode()?;
    let now = clock_gettime(ClockId::Monotonic);
    let token = delivery.ticket().token;
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    Ok(format!("{what} {group} {number} {token} {nanos}\n"))
}

/// A process that was stopped may find its connection given up.
fn is_passing(error: &lockapi::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Indeterminate | ErrorKind::TimedOut
    )
}
