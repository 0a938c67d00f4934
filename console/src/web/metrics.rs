//! The same numbers for Prometheus, in its text format.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use tokio::time::timeout;

use super::Shared;
use crate::watch::{MAX_ENTRIES, MAX_QUEUES, Part, Snapshot};

/// Prometheus waits for 10 s, unless it is told otherwise.
const PATIENCE: Duration = Duration::from_secs(8);

/// A text in which the samples of each metric are together, as the format wants it.
struct Text<'a> {
    text: String,
    namespace: &'a str,
}

impl Text<'_> {
    fn metric<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, V)>,
    ) {
        // Writing to a string cannot fail.
        let _ok = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in samples {
            let mut all = format!("namespace=\"{}\"", quoted(self.namespace));
            for (label, text) in labels {
                let _ok = write!(all, ",{label}=\"{}\"", quoted(&text));
            }
            let _ok = writeln!(self.text, "{name}{{{all}}} {value}");
        }
    }

    fn one<V: Display>(&mut self, name: &str, help: &str, value: Option<V>) {
        self.metric(name, help, value.map(|value| (Vec::new(), value)));
    }
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let namespace = shared.watch.backend().namespace().to_owned();
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let seen = timeout(PATIENCE, shared.watch.look_closely()).await;
    let seen = seen.ok().and_then(Result::ok);
    (kind, text(seen.as_deref(), &namespace)).into_response()
}

fn count<T>(part: &Part<T>) -> Option<usize> {
    part.as_ref().ok().map(Vec::len)
}

/// The answer is there also while the database is away, as those of other exporters are: Prometheus keeps nothing of an
/// answer that tells of an error.
fn text(seen: Option<&Snapshot>, namespace: &str) -> String {
    let mut out = Text {
        text: String::new(),
        namespace,
    };
    let up = seen.is_some_and(is_up);
    out.one(
        "lockapi_up",
        "Whether the database could be read.",
        Some(u8::from(up)),
    );
    let Some(seen) = seen else {
        return out.text;
    };
    parts(&mut out, seen);
    locks(&mut out, seen);
    queues(&mut out, seen);
    tasks(&mut out, seen);
    out.text
}

/// What of the state could not be read.
fn unread(seen: &Snapshot) -> [(&'static str, bool); 8] {
    [
        ("locks", seen.locks.is_err()),
        ("waiters", seen.waiters.is_err()),
        ("leases", seen.leases.is_err()),
        ("running", seen.running.is_err()),
        ("queues", seen.queues.is_err()),
        ("tasks", seen.tasks.is_err()),
        ("limits", seen.limits.is_err()),
        ("workers", seen.workers.is_err()),
    ]
}

/// Whether anything could be read: a role may lack the rights to a part.
fn is_up(seen: &Snapshot) -> bool {
    unread(seen).iter().any(|(_, failed)| !failed)
}

fn parts(out: &mut Text<'_>, seen: &Snapshot) {
    let samples =
        unread(seen).map(|(part, failed)| (vec![("part", part.to_owned())], u8::from(failed)));
    out.metric(
        "lockapi_unread",
        "Whether a part of the state could not be read.",
        samples,
    );
    let bound = |part: Option<usize>| part.is_some_and(|entries| entries >= MAX_ENTRIES);
    let full = [
        ("locks", bound(count(&seen.locks))),
        ("waiters", bound(count(&seen.waiters))),
        ("leases", bound(count(&seen.leases))),
        ("limits", bound(count(&seen.limits))),
        ("workers", bound(count(&seen.workers))),
        ("tasks", bound(count(&seen.tasks))),
        (
            "queues",
            count(&seen.queues).is_some_and(|queues| queues >= MAX_QUEUES),
        ),
    ];
    let samples = full.map(|(part, full)| (vec![("part", part.to_owned())], u8::from(full)));
    out.metric(
        "lockapi_bounded",
        "Whether a count has reached its bound, and may be larger.",
        samples,
    );
    let took = Some(seconds(seen.took));
    out.one(
        "lockapi_read_seconds",
        "How long it took to read the state.",
        took,
    );
}

fn locks(out: &mut Text<'_>, seen: &Snapshot) {
    out.one(
        "lockapi_locks_held",
        "Advisory locks that are held, of all namespaces.",
        count(&seen.locks),
    );
    out.one(
        "lockapi_locks_waiting",
        "Waits for locks of the server.",
        count(&seen.waiters),
    );
    let longest = seen.waiters.as_ref().ok().map(|waiters| {
        let longest = waiters.iter().filter_map(|waiter| waiter.waits_for).max();
        seconds(longest.unwrap_or_default())
    });
    out.one(
        "lockapi_lock_wait_longest_seconds",
        "The longest of these waits so far.",
        longest,
    );
    out.one(
        "lockapi_leases_held",
        "Leases, permits, leaders and leased mutexes that are held.",
        count(&seen.leases),
    );
    let leaders = seen
        .leases
        .iter()
        .flatten()
        .filter(|lease| lease.slot == -1);
    let leaders = leaders.map(|lease| (vec![("key", lease.key.clone())], seconds(lease.held_for)));
    out.metric(
        "lockapi_leader_seconds",
        "For how long a key has had its leader.",
        leaders,
    );
    let blocked = seen.limits.as_ref().ok();
    let blocked = blocked.map(|limits| {
        limits
            .iter()
            .filter(|limit| limit.blocked.is_some())
            .count()
    });
    out.one(
        "lockapi_limits",
        "Rate limits that are in use.",
        count(&seen.limits),
    );
    out.one(
        "lockapi_limits_blocked",
        "Rate limits that are blocked.",
        blocked,
    );
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for worker in seen.workers.iter().flatten() {
        *numbers.entry(&worker.name).or_default() += 1;
    }
    let mut numbers: Vec<_> = numbers.into_iter().collect();
    numbers.sort_unstable();
    let numbers = numbers
        .into_iter()
        .map(|(ids, held)| (vec![("ids", ids.to_owned())], held));
    out.metric(
        "lockapi_id_workers_held",
        "Worker numbers of ids that are held.",
        numbers,
    );
}

fn queues(out: &mut Text<'_>, seen: &Snapshot) {
    let lines = || seen.queues.iter().flatten();
    let label = |name: &str| ("queue", name.to_owned());
    let jobs = lines().flat_map(|line| {
        let of = &line.statistics;
        [
            ("ready", of.ready),
            ("running", of.running),
            ("delayed", of.delayed),
            ("dead", of.dead),
        ]
        .map(|(state, tally)| {
            (
                vec![label(&line.queue.name), ("state", state.to_owned())],
                tally.count,
            )
        })
    });
    out.metric(
        "lockapi_queue_jobs",
        "Jobs of a queue, of each priority and state at most 5000.",
        jobs,
    );
    let oldest = lines().map(|line| {
        let oldest = line.statistics.oldest.unwrap_or_default();
        (vec![label(&line.queue.name)], seconds(oldest))
    });
    out.metric(
        "lockapi_queue_oldest_seconds",
        "How long the oldest job that waits has been due.",
        oldest,
    );
    let paused = lines().map(|line| {
        (
            vec![label(&line.queue.name)],
            u8::from(line.statistics.paused),
        )
    });
    out.metric("lockapi_queue_paused", "Whether a queue is paused.", paused);
}

fn tasks(out: &mut Text<'_>, seen: &Snapshot) {
    let lines = || seen.tasks.iter().flatten().take(MAX_ENTRIES);
    let labels = |scheduler: &str, task: &str| {
        vec![
            ("scheduler", scheduler.to_owned()),
            ("task", task.to_owned()),
        ]
    };
    let enabled = lines().map(|line| {
        (
            labels(&line.scheduler, &line.task.name),
            u8::from(line.task.enabled),
        )
    });
    out.metric(
        "lockapi_task_enabled",
        "Whether a recurring task is fired when it is due.",
        enabled,
    );
    let late = lines().filter(|line| line.task.enabled).filter_map(|line| {
        let late = seen
            .at
            .duration_since(line.task.next_at?)
            .unwrap_or_default();
        Some((labels(&line.scheduler, &line.task.name), seconds(late)))
    });
    out.metric(
        "lockapi_task_late_seconds",
        "For how long a task has been due and was not fired, by the clock of this host.",
        late,
    );
}

#[cfg(test)]
mod fuzz {
    use lockapi_fuzz::{check, text_like};
    use proptest::{prop_assert, prop_assert_eq};

    use super::*;

    /// What a label says by the format of Prometheus, and what follows it.
    fn read(text: &str) -> Option<(String, &str)> {
        let mut letters = text.strip_prefix('"')?.char_indices();
        let mut value = String::new();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => return Some((value, &text[at + 2..])),
                '\\' => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other @ ('"' | '\\') => other,
                    _ => return None,
                }),
                '\n' => return None,
                other => value.push(other),
            }
        }
        None
    }

    #[test]
    fn labels_are_read_as_they_were() {
        let known = [
            "",
            "plain",
            "a\"} 7\nother{x=\"\\",
            "\\",
            "\\n",
            "\r\n",
            "ä\u{2028}",
        ];
        check(known.map(str::to_owned), &text_like(&known), |value| {
            let mut out = Text {
                text: String::new(),
                namespace: &value,
            };
            out.metric("m", "M.", [(vec![("queue", value.clone())], 1)]);
            let mut lines = out.text.split_inclusive('\n');
            let line = lines.nth(2).unwrap_or_default();
            prop_assert!(lines.next().is_none(), "{}", out.text);
            let namespace = line.strip_prefix("m{namespace=").and_then(read);
            let (namespace, rest) = namespace.expect("a label");
            let (queue, rest) = rest
                .strip_prefix(",queue=")
                .and_then(read)
                .expect("a label");
            prop_assert_eq!((namespace, queue, rest), (value.clone(), value, "} 1\n"));
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_leave_their_quotes() {
        let mut out = Text {
            text: String::new(),
            namespace: "n",
        };
        let nasty = "a\"} 7\nother{x=\"\\".to_owned();
        out.metric("m", "M.", [(vec![("queue", nasty)], 1)]);
        let last = out.text.lines().last().unwrap_or_default();
        assert_eq!(out.text.lines().count(), 3, "{}", out.text);
        assert_eq!(last, r#"m{namespace="n",queue="a\"} 7\nother{x=\"\\"} 1"#);
    }
}
