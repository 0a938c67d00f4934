//! What inspectors see of a queue, and what operators do to it.

use lockapi::driver::Connection;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockapi::admin::{JobDetails, JobEdit};
use lockapi::queue::Priority;
use lockapi::suite::admin::{CancelJobs, EditJobs, JobMatch, ListRunning, ReadJob};
use lockapi::suite::queue::{
    CountJobs, CountRunning, DeadLetterRow, ReadDeadLetters, ReadQueueLimit, ReadUnhandled,
    RunningPart, UnhandledRow,
};

use super::actions::EditIf;
use super::{Both, Pair};
use crate::differential::{UNIT, near};

impl EditIf {
    /// What is told to have been seen of a job.
    fn seen(self, mut job: JobDetails) -> Option<JobDetails> {
        match self {
            Self::Waits | Self::Differs => return None,
            Self::IsAsSeen(_) => {}
            Self::IsOther(0) => job.job.run_at += Duration::from_micros(1),
            Self::IsOther(1) => {
                let first = job.job.priority == Priority::ALL[0];
                job.job.priority = Priority::ALL[usize::from(first)];
            }
            Self::IsOther(2) => job.job.max_attempts += 1,
            Self::IsOther(3) => job.job.attempt += 1,
            // It begins so.
            Self::IsOther(_) => {
                let payload = job.payload.as_mut();
                let _last = payload.expect("it was read").pop();
            }
        }
        Some(job)
    }
}

impl<C: Connection> Pair<'_, C> {
    /// Lists which jobs run, in this queue or in all of the namespace.
    pub(super) async fn running(&mut self, of_queue: bool) {
        let list = ListRunning {
            namespace: Some(self.name.namespace.clone()),
            queue: of_queue.then(|| self.name.queue.clone()),
            most: 1000,
        };
        let (mut real, mut model) = self.both(list).await;
        let place = |side: fn(&Both<i64>) -> i64, id| {
            let known = self.jobs.iter().position(|job| side(job) == id);
            known.expect("it was pushed")
        };
        real.sort_by_key(|one| place(|job| job.0, one.id));
        model.sort_by_key(|one| place(|job| job.1, one.id));
        assert_eq!(real.len(), model.len(), "{real:?}, {model:?}");
        for (mut real, mut model) in real.into_iter().zip(model) {
            self.same_job(real.id, model.id);
            let micros = |time: &mut std::time::Duration| {
                i64::try_from(std::mem::take(time).as_micros()).expect("a short time")
            };
            near(micros(&mut real.runs_for), micros(&mut model.runs_for));
            near(micros(&mut real.lease_left), micros(&mut model.lease_left));
            (real.id, model.id) = (0, 0);
            assert_eq!(real, model);
        }
    }

    /// Of some jobs only those of a name, in a group or with a tag, which they may have or not.
    fn only(back: u8) -> Option<JobMatch> {
        let mut only = JobMatch::default();
        match back % 5 {
            1 => only.name = format!("job {}", back / 5 % 4),
            2 => only.group = format!("group {}", back / 5 % 3),
            3 => only.tag = format!("tag {}", back / 5 % 3),
            _ => return None,
        }
        Some(only)
    }

    /// Cancels a job as an operator.
    pub(super) async fn cancel_one(&mut self, back: u8, running: bool) {
        let (real, model) = self.job(back);
        let of = |id| {
            [CancelJobs {
                name: self.name(),
                ids: vec![id, -1],
                only: Self::only(back),
                running,
                reason: "a mistake".to_owned(),
            }]
        };
        let (real, model) = (of(real), of(model));
        let (real, model) = self.compare(&real, &model).await;
        assert_eq!(real, model, "cancelled");
    }

    /// Changes a job as an operator, after so many units of time by the clock of each side.
    pub(super) async fn edit_one(
        &mut self,
        back: u8,
        (at, priority, attempts, payload): (Option<u8>, Option<u8>, Option<u8>, bool),
        when: EditIf,
    ) {
        let (real, model) = self.job(back);
        let read = |id| {
            [ReadJob {
                namespace: self.name.namespace.clone(),
                id,
                payload: !matches!(when, EditIf::IsAsSeen(false)),
            }]
        };
        let (read_here, read_there) = (read(real), read(model));
        let (seen_here, seen_there) = self.compare(&read_here, &read_there).await;
        let here = SystemTime::now();
        let there = UNIX_EPOCH + Duration::from_micros(self.model.now.unsigned_abs());
        let of = |id, now: SystemTime, seen: Vec<Option<JobDetails>>| {
            let mut edit = JobEdit::new();
            if let Some(units) = at {
                let units = Duration::from_micros(UNIT.unsigned_abs()) * u32::from(units);
                edit = if units.is_zero() {
                    edit.now()
                } else {
                    edit.at(now + units)
                };
            }
            if let Some(priority) = priority {
                edit = edit.priority(Priority::ALL[usize::from(priority)]);
            }
            if let Some(attempts) = attempts {
                edit = edit.max_attempts(u32::from(attempts));
            }
            if payload {
                edit = edit.payload("[\"edited\", 1]");
            }
            let seen = seen.into_iter().flatten().next();
            if let Some(seen) = seen.and_then(|seen| when.seen(seen)) {
                edit = edit.if_unchanged(&seen);
            }
            [EditJobs {
                name: self.name(),
                ids: vec![id, -1],
                only: Self::only(back),
                edit,
                again: matches!(when, EditIf::Differs),
                topic: 0,
                reason: "a mistake".to_owned(),
            }]
        };
        let (real, model) = (of(real, here, seen_here), of(model, there, seen_there));
        let (real, model) = self.compare(&real, &model).await;
        assert_eq!(real, model, "edited");
    }

    /// Counts and lists jobs, at most so many.
    pub(super) async fn count(&mut self, most: i64) {
        let read = ReadUnhandled {
            name: self.name(),
            names: vec!["job 1".to_owned(), "job 3".to_owned()],
            most,
        };
        let (real, model) = self.both(read).await;
        let of = |rows: &[UnhandledRow]| -> Vec<_> {
            rows.iter()
                .map(|row| (row.name.clone(), row.jobs))
                .collect()
        };
        assert_eq!(of(&real), of(&model), "what waits");
        for (real, model) in real.iter().zip(&model) {
            near(real.waited, model.waited);
        }
        let count = CountRunning {
            name: self.name(),
            priorities: (0..4).map(|it| (it, (0, 0))).collect(),
            most,
        };
        let (real, model) = self.both(count).await;
        let of = |part: &RunningPart| {
            let levels = part.levels.iter();
            let levels: Vec<_> = levels
                .map(|it| (it.priority, it.examined, it.running, it.reached.is_some()))
                .collect();
            (levels, part.paused)
        };
        assert_eq!(of(&real), of(&model), "what runs");
        for (real, model) in real.levels.iter().zip(&model.levels) {
            if let (Some(real), Some(model)) = (real.reached, model.reached) {
                self.same_job(real.1, model.1);
            }
        }
        let name = self.name();
        let (real, model) = self.both(ReadQueueLimit { name }).await;
        assert_eq!(real, model, "the limit, and how many have a place");
        let name = self.name();
        let (mut real, mut model) = self.both(CountJobs { name, most }).await;
        for (real, model) in [
            (real.oldest.take(), model.oldest.take()),
            (real.resumes_in.take(), model.resumes_in.take()),
        ] {
            match (real, model) {
                (Some(real), Some(model)) => near(real, model),
                (real, model) => assert_eq!(real, model, "a time"),
            }
        }
        assert_eq!(real, model);
        let read = ReadDeadLetters {
            name: self.name(),
            after: 0,
            most,
        };
        let (real, model) = self.both(read).await;
        assert_eq!(real.len(), model.len(), "dead letters");
        for (real, model) in real.iter().zip(&model) {
            self.same_job(real.id, model.id);
            let of = |row: &DeadLetterRow| {
                let history = row.errors.iter();
                let history = history.map(|it| (it.attempt, it.worker.clone(), it.error.clone()));
                let last = (row.error.clone(), row.attempt, row.worker.clone());
                (last, history.collect::<Vec<_>>(), row.headers.clone())
            };
            assert_eq!(of(real), of(model));
        }
    }
}
