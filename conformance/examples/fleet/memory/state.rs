//! What is in the tables.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use lockapi::schedule::Run;

use crate::plan::Task;
use crate::store::Counts;
use crate::watch::Busy;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Running,
    Completed,
    Failed,
}

pub(super) struct Entry {
    pub(super) task: String,
    pub(super) due: Duration,
    pub(super) node: String,
    pub(super) status: Status,
    pub(super) started: Duration,
    pub(super) completed: Option<Duration>,
    pub(super) token: i64,
}

pub(super) struct Row {
    pub(super) task: Task,
    /// When it was due first.
    pub(super) first: SystemTime,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) started: Option<Instant>,
    pub(super) ends: Duration,
    pub(super) tasks: BTreeMap<String, Row>,
    pub(super) log: Vec<Entry>,
    pub(super) nodes: BTreeMap<String, Counts>,
    pub(super) disturbances: Vec<(Duration, String)>,
}

impl State {
    /// Time since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |start| start.elapsed())
    }

    /// The time of a run after the start, as the plan has it.
    pub(super) fn planned(run: &Run, row: &Row) -> Duration {
        let since = run.fire_at.duration_since(row.first).unwrap_or_default();
        row.task.offset + since
    }

    pub(super) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counts in self.nodes.values() {
            sum.abandoned += counts.abandoned;
            sum.refused += counts.refused;
        }
        sum
    }

    pub(super) fn busy(&self) -> Vec<Busy> {
        let mut busy: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for entry in &self.log {
            if entry.status == Status::Running {
                busy.entry(&entry.node)
                    .or_default()
                    .push(entry.task.clone());
            }
        }
        let mut busy: Vec<Busy> = busy
            .into_iter()
            .map(|(node, tasks)| Busy {
                node: node.to_owned(),
                tasks,
            })
            .collect();
        busy.sort_by_key(|busy| std::cmp::Reverse(busy.tasks.len()));
        busy
    }

    pub(super) fn due_times(&self, until: Duration) -> impl Iterator<Item = (&str, Duration)> {
        let enabled = self.tasks.values().filter(|row| row.task.enabled);
        enabled.flat_map(move |row| {
            let times =
                std::iter::successors(Some(row.task.offset), |at| Some(*at + row.task.every));
            times
                .take_while(move |at| *at <= until)
                .map(|at| (row.task.name.as_str(), at))
        })
    }

    pub(super) fn recoveries(&self) -> Vec<f64> {
        let mut seconds = Vec::new();
        for (number, lost) in self.log.iter().enumerate() {
            let Some(ended) = lost.completed.filter(|_| lost.status == Status::Failed) else {
                continue;
            };
            let disturbed = self
                .disturbances
                .iter()
                .filter(|(at, node)| *node == lost.node && (lost.started..=ended).contains(at));
            let again = self.log[number + 1..]
                .iter()
                .find(|next| next.task == lost.task && next.due == lost.due);
            if let (Some((at, _)), Some(again)) = (disturbed.max(), again) {
                seconds.push(again.started.saturating_sub(*at).as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        seconds
    }
}
