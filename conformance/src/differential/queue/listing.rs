//! What is listed of jobs, page by page.

use std::time::{Duration, SystemTime};

use lockapi::admin::{JobPlace, JobState, ListedJob};
use lockapi::driver::Connection;
use lockapi::queue::Progress;
use lockapi::suite::admin::{ListJobs, ListPausedNames, ListQueues, ReadJob};

use super::actions::Label;
use super::{Action, Pair};
use crate::differential::near;

/// What each side has of its own: its number and its times.
fn common(mut job: ListedJob) -> ListedJob {
    job.id = 0;
    (job.run_at, job.created_at) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
    for time in [&mut job.started_at, &mut job.ended_at] {
        *time = time.map(|_| SystemTime::UNIX_EPOCH);
    }
    job.lease_left = None;
    job.progress = job.progress.map(Progress::without_time);
    job
}

fn same_left(real: &ListedJob, model: &ListedJob) {
    let micros = |job: &ListedJob| {
        let left = job.lease_left.map(|left| left.as_micros());
        left.map(|left| i64::try_from(left).expect("a short time"))
    };
    match (micros(real), micros(model)) {
        (Some(real), Some(model)) => near(real, model),
        (real, model) => assert_eq!(real, model, "lease left"),
    }
}

impl<C: Connection> Pair<'_, C> {
    pub(super) async fn look_up(&mut self, action: &Action) {
        match action {
            Action::List(state, label, examined, most) => {
                self.list(*state, *label, *examined, *most).await;
            }
            Action::Read(back, payload) => self.read(*back, *payload).await,
            _ => self.queues().await,
        }
    }

    /// Lists jobs to the end, page by page.
    async fn list(&mut self, state: u8, label: Label, examined: u8, most: u8) {
        let state = JobState::ALL.get(usize::from(state)).copied();
        let name = self.name();
        // What has ended is examined across namespaces.
        let recent = matches!(state, Some(JobState::Completed | JobState::Cancelled));
        let examined = if recent { 100_000 } else { i64::from(examined) };
        let of_label = |of, text: &str| if of == label { text } else { "" }.to_owned();
        let of = |after: Option<JobPlace>| {
            [ListJobs {
                name: name.clone(),
                state,
                job: of_label(Label::Name, "job 1"),
                group: of_label(Label::Group, "g1"),
                tag: of_label(Label::Tag, "even"),
                created: (0, i64::MAX / 1_000),
                after,
                examined,
                most: i64::from(most),
            }]
        };
        let mut after = (None, None);
        loop {
            let (mut real, mut model) = self.compare(&of(after.0), &of(after.1)).await;
            let (real, model) = (real.remove(0), model.remove(0));
            assert_eq!(real.jobs.len(), model.jobs.len(), "{real:?}, {model:?}");
            for (real, model) in real.jobs.into_iter().zip(model.jobs) {
                self.same_job(real.id, model.id);
                same_left(&real, &model);
                assert_eq!(common(real), common(model));
            }
            match (real.next, model.next) {
                (None, None) => return,
                (Some(real), Some(model)) => after = (Some(real), Some(model)),
                (real, model) => panic!("next comes what is after {real:?} here, {model:?} there"),
            }
        }
    }

    /// Reads a job.
    async fn read(&mut self, back: u8, payload: bool) {
        let (real, model) = self.job(back);
        let of = |id| {
            [ReadJob {
                namespace: self.name.namespace.clone(),
                id,
                payload,
            }]
        };
        let (real, model) = (of(real), of(model));
        let (mut real, mut model) = self.compare(&real, &model).await;
        match (real.remove(0), model.remove(0)) {
            (None, None) => {}
            (Some(mut real), Some(mut model)) => {
                self.same_job(real.job.id, model.job.id);
                same_left(&real.job, &model.job);
                assert_eq!(real.payload.is_some(), payload);
                for side in [&mut real, &mut model] {
                    side.job = common(side.job.clone());
                    side.expires_at = side.expires_at.map(|_| SystemTime::UNIX_EPOCH);
                    for attempt in &mut side.history {
                        attempt.at = SystemTime::UNIX_EPOCH;
                    }
                }
                assert_eq!(real.payload, model.payload);
                assert_eq!(real.history, model.history);
                assert_eq!(
                    (&real.unique_key, &real.task),
                    (&model.unique_key, &model.task)
                );
                assert!(real == model, "{real:?}, {model:?}");
            }
            (real, model) => panic!("{real:?} here, {model:?} there"),
        }
    }

    /// Lists the queues.
    async fn queues(&mut self) {
        let list = ListQueues {
            namespace: Some(self.name.namespace.clone()),
            after: (self.name.namespace.clone(), String::new()),
            most: 10,
        };
        self.same(list).await;
        // For how long depends on both clocks.
        let name = self.name();
        let (most, examined) = (10, 20);
        let list = ListPausedNames {
            name,
            most,
            examined,
        };
        let (mut real, mut model) = self.both(list).await;
        for one in real.iter_mut().chain(&mut model) {
            one.resumes_in = one.resumes_in.map(|_| Duration::ZERO);
        }
        assert_eq!(real, model, "paused names");
    }
}
