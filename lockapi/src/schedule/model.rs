//! The model of the statements of schedulers.

use std::collections::{BTreeMap, BTreeSet};

use super::operations::{
    Due, DueTasks, Fire, FireDecision, Fired, MAX_HELD, Name, ReadDueTasks, ReadRuns, ReadTasks,
    RunNow, RunRow, SetTask, SweepRuns, SwitchTask, TaskName, TaskRow,
};
use super::recurrence::Planned;
use crate::memory::ModelState;
use crate::queue;

const MINUTE: i64 = 60_000_000;
const OVERLAPPED: &str = "the run before had not ended";

/// The tables of schedulers.
#[derive(Clone, Debug, Default)]
pub struct Schedules {
    tasks: BTreeMap<TaskName, TaskRow>,
    /// When each was last changed or fired.
    changed: BTreeMap<TaskName, i64>,
    /// By the task and the time that it was due.
    runs: BTreeMap<(TaskName, i64), Record>,
}

#[derive(Clone, Debug)]
struct Record {
    job: Option<i64>,
    held: bool,
    error: &'static str,
    missed: i64,
    fired_by: String,
    fired_at: i64,
}

impl Schedules {
    pub(crate) fn set(&mut self, now: i64, request: &SetTask) -> bool {
        let Some(there) = self.tasks.get_mut(&request.name) else {
            self.changed.insert(request.name.clone(), now);
            self.tasks.insert(request.name.clone(), request.row.clone());
            return true;
        };
        let recurs_as_before = there.recurrence == request.row.recurrence;
        let next = if recurs_as_before {
            there.next
        } else {
            request.row.next
        };
        let changed = TaskRow {
            version: there.version,
            next: there.next,
            now: there.now,
            enabled: there.enabled,
            last: there.last,
            ..request.row.clone()
        };
        if changed == *there {
            return false;
        }
        *there = TaskRow {
            version: there.version + 1,
            next,
            ..changed
        };
        self.changed.insert(request.name.clone(), now);
        true
    }

    /// Runs of these tasks were put back: whoever read the tasks before fires nothing.
    pub(crate) fn note(&mut self, queue: &queue::Name, tasks: &[String]) {
        for (name, task) in &mut self.tasks {
            let is_of = name.of.namespace == queue.namespace && name.of.scheduler == queue.queue;
            if is_of && tasks.contains(&name.task) {
                task.version += 1;
            }
        }
    }

    /// Whether there is such a task, and whether it was changed.
    pub(crate) fn switch(&mut self, now: i64, request: &SwitchTask) -> (bool, bool) {
        let there = self.tasks.get_mut(&request.name);
        let Some(task) = there.filter(|task| task.version == request.version) else {
            return (false, false);
        };
        if task.enabled == request.enabled {
            return (true, false);
        }
        task.enabled = request.enabled;
        task.version += 1;
        if request.enabled {
            task.next = request.next;
        }
        self.changed.insert(request.name.clone(), now);
        (true, true)
    }

    pub(crate) fn remove(&mut self, name: &TaskName, again: bool) -> bool {
        if again && self.tasks.contains_key(name) {
            return false;
        }
        for ((_, _), run) in self.runs.iter_mut().filter(|((task, _), _)| task == name) {
            if std::mem::take(&mut run.held) {
                run.error = "the task was removed";
            }
        }
        self.changed.remove(name);
        self.tasks.remove(name).is_some()
    }

    /// The schedulers of a namespace that have tasks.
    pub(crate) fn schedulers(&self, namespace: &str) -> BTreeSet<String> {
        let names = self.tasks.keys().map(|name| &name.of);
        let of = names.filter(|name| name.namespace == namespace);
        of.map(|name| name.scheduler.clone()).collect()
    }

    pub(crate) fn read(&self, request: &ReadTasks) -> Vec<TaskRow> {
        let most = usize::try_from(request.most).unwrap_or(0);
        let of = self.of(&request.name);
        of.filter(|(name, _)| {
            name.task > request.after && (request.task.is_empty() || request.task == name.task)
        })
        .take(most)
        .map(|(name, task)| TaskRow {
            last: self.runs_of(name).map(|(at, _)| at).max(),
            ..task.clone()
        })
        .collect()
    }

    fn of<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = (&'a TaskName, &'a TaskRow)> {
        self.tasks.iter().filter(move |(task, _)| task.of == *name)
    }

    fn runs_of<'a>(&'a self, name: &'a TaskName) -> impl Iterator<Item = (i64, &'a Record)> {
        let from = (name.clone(), i64::MIN);
        let to = (name.clone(), i64::MAX);
        self.runs.range(from..=to).map(|((_, at), run)| (*at, run))
    }

    /// Whether its next time was computed on a clock that was this much ahead.
    fn is_ahead(&self, name: &TaskName, now: i64, by: i64) -> bool {
        self.changed.get(name).is_some_and(|at| *at > now + by)
    }

    fn held_of(&self, name: &TaskName) -> Vec<i64> {
        let held = self.runs_of(name).filter(|(_, run)| run.held);
        held.map(|(at, _)| at).collect()
    }
}

fn queue_of(name: &Name) -> queue::Name {
    queue::Name {
        namespace: name.namespace.clone(),
        queue: name.scheduler.clone(),
    }
}

fn key_of(task: &str) -> String {
    format!("{}{task}", queue::RUN_KEY)
}

impl ModelState {
    fn is_busy(&self, name: &TaskName) -> bool {
        let found = self
            .jobs
            .with_unique_key(&queue_of(&name.of), &key_of(&name.task));
        found.is_some()
    }

    fn overdue_runs(&self, name: &Name) -> Vec<i64> {
        let queue = queue_of(name);
        let runs = self.jobs.delivered_runs(&queue);
        let late = runs.filter(|(_, task, started_at)| {
            let task = TaskName {
                of: name.clone(),
                task: (*task).to_owned(),
            };
            let timeout = self.tasks.tasks.get(&task).map_or(0, |task| task.timeout);
            timeout > 0 && *started_at <= self.now - timeout
        });
        let mut late: Vec<_> = late.map(|(id, _, _)| id).collect();
        late.sort_unstable();
        late
    }

    /// Tasks of which a run that is held back may go.
    fn releasable(&self, name: &Name) -> Vec<TaskName> {
        let tasks = self.tasks.of(name);
        tasks
            .filter(|(task, row)| row.enabled && !self.tasks.held_of(task).is_empty())
            .filter(|(task, _)| !self.is_busy(task))
            .map(|(task, _)| task.clone())
            .collect()
    }

    pub(crate) fn read_due_tasks(&self, request: &ReadDueTasks) -> DueTasks {
        let now = self.now;
        let enabled = || {
            self.tasks
                .of(&request.name)
                .filter(|(_, task)| task.enabled)
        };
        let mut due: Vec<_> = enabled()
            .filter_map(|(name, task)| {
                let ahead = self.tasks.is_ahead(name, now, MINUTE);
                Some(Due {
                    name: task.name.clone(),
                    version: task.version,
                    next: task.next.filter(|next| *next <= now || ahead)?,
                    now,
                    recurrence: task.recurrence.clone(),
                    misfire: task.misfire,
                    misfire_most: task.misfire_most,
                })
            })
            .collect();
        if let Some((at, task)) = &request.behind {
            due.retain(|due| (due.next, &due.name) > (*at, task));
        }
        due.sort_by(|a, b| (a.next, &a.name).cmp(&(b.next, &b.name)));
        due.truncate(usize::try_from(request.most).unwrap_or(0));
        DueTasks {
            due,
            now,
            next: enabled()
                .filter_map(|(_, task)| task.next.filter(|next| *next > now))
                .min(),
            overdue: !self.overdue_runs(&request.name).is_empty(),
            releasable: !self.releasable(&request.name).is_empty(),
        }
    }

    pub(crate) fn fire_tasks(&mut self, fire: &Fire) -> Vec<Fired> {
        let now = self.now;
        let mut fired = Vec::new();
        for request in &fire.requests {
            let name = TaskName {
                of: fire.name.clone(),
                task: request.task.clone(),
            };
            let ahead = self.tasks.is_ahead(&name, now, 0);
            let there = self.tasks.tasks.get_mut(&name);
            let Some(task) = there.filter(|task| {
                task.enabled
                    && task.version == request.version
                    && task.next == Some(request.due)
                    && (request.due <= now || ahead)
            }) else {
                continue;
            };
            task.version += 1;
            task.next = request.next;
            let task = task.clone();
            self.tasks.changed.insert(name.clone(), now);
            for run in &request.runs {
                if !self.tasks.runs.contains_key(&(name.clone(), run.at)) {
                    fired.push(self.decide(&name, &task, *run, &fire.node));
                }
            }
        }
        fired
    }

    pub(crate) fn run_task_now(&mut self, request: &RunNow) -> Option<Fired> {
        let there = self.tasks.tasks.get_mut(&request.name);
        let task = there.filter(|task| task.version == request.version)?;
        task.version += 1;
        let task = task.clone();
        let mut run = Planned {
            at: self.now,
            skipped: false,
            missed: 0,
        };
        // Time may stand still here.
        while self
            .tasks
            .runs
            .contains_key(&(request.name.clone(), run.at))
        {
            run.at += 1;
        }
        Some(self.decide(&request.name, &task, run, &request.node))
    }

    fn decide(&mut self, name: &TaskName, task: &TaskRow, run: Planned, node: &str) -> Fired {
        let held = self.tasks.held_of(name).len();
        let busy = self.is_busy(name) || (task.overlap == 2 && held > 0);
        let decision = if run.skipped {
            FireDecision::Missed
        } else if task.overlap == 0 || !busy {
            FireDecision::Fired
        } else if task.overlap == 2 && i64::try_from(held).unwrap_or(i64::MAX) < MAX_HELD {
            FireDecision::Held
        } else {
            FireDecision::Overlapped
        };
        let job = (decision == FireDecision::Fired).then(|| {
            let key = match task.overlap {
                0 => String::new(),
                _ => key_of(&name.task),
            };
            let (queue, now) = (queue_of(&name.of), self.now);
            self.jobs
                .push_run(now, run.at, &queue, &name.task, &task.job, &key)
        });
        let record = Record {
            job,
            held: decision == FireDecision::Held,
            error: match decision {
                FireDecision::Missed => "its time was missed",
                FireDecision::Overlapped => OVERLAPPED,
                FireDecision::Fired | FireDecision::Held => "",
            },
            missed: run.missed,
            fired_by: node.to_owned(),
            fired_at: self.now,
        };
        self.tasks.runs.insert((name.clone(), run.at), record);
        Fired {
            task: name.task.clone(),
            at: run.at,
            job,
            decision,
        }
    }

    pub(crate) fn release_runs(&mut self, name: &Name) -> i64 {
        let mut released = 0;
        for task in self.releasable(name) {
            let first = self.tasks.held_of(&task).first().copied();
            let (Some(at), Some(row)) = (first, self.tasks.tasks.get_mut(&task)) else {
                continue;
            };
            row.version += 1;
            let (queue, now, key) = (queue_of(name), self.now, key_of(&task.task));
            let job = self
                .jobs
                .push_run(now, at, &queue, &task.task, &row.job, &key);
            if let Some(run) = self.tasks.runs.get_mut(&(task, at)) {
                run.held = false;
                run.job = Some(job);
                released += 1;
            }
        }
        released
    }

    pub(crate) fn expire_runs(&mut self, name: &Name) -> i64 {
        let late = self.overdue_runs(name);
        for id in &late {
            let now = self.now;
            self.jobs
                .fail(*id, now, "it lasted longer than its timeout");
        }
        i64::try_from(late.len()).unwrap_or(i64::MAX)
    }

    pub(crate) fn read_runs(&self, request: &ReadRuns) -> Vec<RunRow> {
        let most = usize::try_from(request.most).unwrap_or(0);
        let mut runs: Vec<_> = self.tasks.runs_of(&request.name).collect();
        runs.reverse();
        let runs = runs.into_iter().filter(|(at, _)| *at < request.before);
        runs.take(most)
            .map(|(at, run)| {
                let state = match run.job {
                    Some(job) => self.jobs.run_state(job, self.now),
                    None => queue::RunState {
                        status: if run.held { "held" } else { "skipped" },
                        ..queue::RunState::default()
                    },
                };
                let own = (!run.error.is_empty()).then(|| run.error.to_owned());
                RunRow {
                    at,
                    status: state.status.to_owned(),
                    job: run.job,
                    node: state.node,
                    started_at: state.started_at,
                    completed_at: state.completed_at,
                    error: own.or(state.error),
                    token: state.token,
                    attempt: state.attempt,
                    missed: run.missed,
                    fired_by: run.fired_by.clone(),
                    fired_at: run.fired_at,
                }
            })
            .collect()
    }

    /// Answers which were deleted, by their schedulers and when these fired them.
    pub(crate) fn sweep_runs(&mut self, request: &SweepRuns) -> Vec<(String, i64)> {
        let most = usize::try_from(request.most).unwrap_or(0);
        let before = self.now - request.keep;
        let old = self.tasks.runs.iter().filter(|((name, _), run)| {
            let swept = name.of == request.name
                || (name.of.namespace == request.name.namespace
                    && self.tasks.of(&name.of).next().is_none());
            swept
                && run.fired_at < before
                && (&name.of.scheduler, run.fired_at) >= (&request.from.0, request.from.1)
                && !run.held
                && !run.job.is_some_and(|job| self.jobs.is_live(job))
        });
        let of = |((name, at), run): (&(TaskName, i64), &Record)| {
            (name.of.scheduler.clone(), run.fired_at, (name.clone(), *at))
        };
        let mut old: Vec<_> = old.map(of).collect();
        old.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        old.truncate(most);
        let mut delete = |(scheduler, fired_at, place)| {
            if let Some(Record { job: Some(job), .. }) = self.tasks.runs.remove(&place) {
                self.jobs.forget(job);
            }
            (scheduler, fired_at)
        };
        old.into_iter().map(&mut delete).collect()
    }
}
