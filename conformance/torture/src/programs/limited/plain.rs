//! What plain clients have to do with limited queues: they set a limit, and count in the tables. In one of the controls
//! they take jobs without regard to the limit.

use std::thread;
use std::time::Duration;

use postgres::{Client, SimpleQueryMessage};

use super::{GROUPED, LIMITED, OF_GROUPS, OF_QUEUE, ORDERED, PACED};
use crate::log::{Answer, Claimed, How, Log, Op};
use crate::programs::before;
use crate::programs::plain::{Ending, ask, number};

/// Sets the limit of a queue with the function that the library uses.
pub(in crate::programs) fn changes(
    client: &mut Client,
    log: &Log,
    ending: Ending<'_>,
) -> Result<(), postgres::Error> {
    while !ending() {
        let most = fastrand::u32(2..=OF_QUEUE);
        let op = Op::SetLimit {
            queue: LIMITED.to_owned(),
            group: None,
            most: Some(most),
        };
        let sql = format!(
            "SELECT lockapi.set_queue_limit('default', '{LIMITED}', {most}, NULL, NULL, NULL, NULL)"
        );
        ask(log, op, || number(client, &sql), |_| Answer::Done)?;
        thread::sleep(Duration::from_millis(fastrand::u64(..6000)));
    }
    Ok(())
}

/// Counts what runs beyond the largest limit that there ever is, as one snapshot shows it.
pub(in crate::programs) fn audits(
    client: &mut Client,
    log: &Log,
    ending: Ending<'_>,
) -> Result<(), postgres::Error> {
    let admitted = |queue, by, most| {
        let sql = format!(
            "SELECT coalesce(sum(g.n - {most}), 0)
               FROM (SELECT count(*) AS n FROM lockapi.job
                      WHERE queue = '{queue}' AND due_at IS NULL AND {by} IS NOT NULL GROUP BY {by}) AS g
              WHERE g.n > {most}"
        );
        (queue, sql)
    };
    let by_key = "headers ->> 'limit-by'";
    let run = format!(
        "SELECT greatest(count(*) - {OF_QUEUE}, 0) FROM lockapi.job
          WHERE queue = '{LIMITED}' AND lease_until > clock_timestamp()"
    );
    let counts = [
        admitted(GROUPED, "group_key", OF_GROUPS),
        admitted(GROUPED, by_key, OF_GROUPS),
        admitted(PACED, "group_key", OF_GROUPS),
        admitted(ORDERED, "group_key", 1),
        (LIMITED, run),
    ];
    while !ending() {
        for (queue, sql) in &counts {
            let op = Op::Audit {
                queue: (*queue).to_owned(),
            };
            let told = |count: &i64| Answer::Number(*count);
            ask(log, op, || number(client, sql), told)?;
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..800)));
    }
    Ok(())
}

/// Takes as many jobs as there may be at once, and more, without asking for the limit.
pub(in crate::programs) fn beyond(
    client: &mut Client,
    log: &Log,
    ending: Ending<'_>,
) -> Result<(), postgres::Error> {
    while !ending() {
        let op = Op::Claim {
            queue: LIMITED.to_owned(),
            wait: 0,
            extended: false,
        };
        let told = |jobs: &Vec<Claimed>| Answer::Jobs(jobs.clone());
        let (call, jobs) = ask(log, op, || take(client), told)?;
        for _ in 0..5 {
            for job in &jobs {
                log.held(before(), call, job.token);
            }
            thread::sleep(Duration::from_millis(200));
        }
        for Claimed { job, token, .. } in jobs {
            let op = Op::Settle {
                job,
                token,
                // It goes back, and counts.
                how: How::Abandon,
            };
            let sql = format!(
                "UPDATE lockapi.job SET token = NULL, lease_until = NULL WHERE token = {token}"
            );
            ask(log, op, || client.simple_query(&sql), |_| Answer::Done)?;
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..400)));
    }
    Ok(())
}

fn take(client: &mut Client) -> Result<Vec<Claimed>, postgres::Error> {
    let rows = client.simple_query(&format!(
        "UPDATE lockapi.job AS j
            SET token = nextval('lockapi.delivery_seq'), claim = 0, attempt = j.attempt + 1,
                started_at = clock_timestamp(), lease_until = clock_timestamp() + interval '3 s'
          WHERE j.id = ANY (ARRAY(
                    SELECT o.id FROM lockapi.job AS o
                     WHERE o.queue = '{LIMITED}' AND o.run_at <= clock_timestamp()
                       AND coalesce(o.lease_until <= clock_timestamp(), true)
                     LIMIT {} FOR UPDATE SKIP LOCKED))
         RETURNING j.payload::text, j.token, j.attempt, j.max_attempts",
        OF_QUEUE + 1
    ))?;
    let taken = rows.iter().filter_map(|row| match row {
        SimpleQueryMessage::Row(row) => Some(Claimed {
            job: row.get(0)?.parse().ok()?,
            token: row.get(1)?.parse().ok()?,
            due: 0,
            attempt: row.get(2)?.parse().ok()?,
            most: row.get(3)?.parse().ok()?,
        }),
        _ => None,
    });
    Ok(taken.collect())
}
