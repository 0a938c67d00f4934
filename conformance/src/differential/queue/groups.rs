//! Groups of jobs, on both sides.

use lockapi::driver::Connection;
use lockapi::suite::queue::{Admit, LimitRow, NewJob, Push, SetGroupLimit, SetGroups};

use super::super::near;
use super::{GroupAction, Pair, new_job};

/// The name of a group; the first is none.
fn group(number: usize) -> String {
    if number == 0 {
        String::new()
    } else {
        format!("g{number}")
    }
}

/// In a group, and limited by the key with the name of another; a job with a key alone is in that group.
pub(super) fn in_group(mut job: NewJob, of: usize, by: usize) -> NewJob {
    job.group = group(if of == 0 { by } else { of });
    if by > 0 {
        job.headers.insert("limit-by", group(by));
    }
    job
}

/// Of so many jobs at once, and of a rate with this burst, whose permits come back in hours.
fn limit(most: Option<u8>, burst: Option<u8>) -> LimitRow {
    const HOUR: i64 = 3_600_000_000_000;
    LimitRow {
        running: most.map(i64::from),
        permits: burst.map(|_| 1),
        period: burst.map(|_| HOUR),
        burst: burst.map(i64::from),
        step: burst.map(|_| HOUR),
    }
}

impl<C: Connection> Pair<'_, C> {
    pub(super) async fn of_groups(&mut self, action: &GroupAction) {
        match action {
            GroupAction::Push(jobs) => self.push_to_groups(jobs).await,
            GroupAction::Admit(groups) => {
                let admit = Admit {
                    name: self.name(),
                    groups: i64::from(*groups),
                };
                let (real, model) = self.both(admit).await;
                let [real, model] = [real, model].map(|it| it.expect("nobody else admits"));
                let counts = (model.jobs, model.examined);
                assert_eq!((real.jobs, real.examined), counts, "admitted");
                match (real.next_due, model.next_due) {
                    (Some(real), Some(model)) => near(real, model),
                    (real, model) => assert_eq!(real, model, "the next to admit"),
                }
            }
            GroupAction::Set(most, ordered, rate) => {
                let set = SetGroups {
                    name: self.name(),
                    limit: limit(Some(*most), *rate),
                    ordered: *ordered,
                    topic: 0,
                };
                self.same(set).await;
            }
            GroupAction::Limit(number, own) => {
                let set = SetGroupLimit {
                    name: self.name(),
                    group: format!("g{number}"),
                    limit: own.map(|(most, rate)| limit(most, rate)),
                    topic: 0,
                };
                self.same(set).await;
            }
        }
    }

    async fn push_to_groups(&mut self, jobs: &[((u8, u8), u8, u8, u8)]) {
        let first = self.jobs.len();
        let jobs = jobs.iter().enumerate();
        let jobs = jobs.map(|(nth, ((of, by), priority, delay, attempts))| {
            let job = new_job(first + nth, *priority, *delay, *attempts);
            in_group(job, usize::from(*of), usize::from(*by))
        });
        let push = Push {
            namespace: self.name.namespace.clone(),
            queue: self.name.queue.clone(),
            jobs: jobs.collect(),
            topic: None,
        };
        let (real, model) = self.both(push).await;
        assert_eq!(real.len(), model.len());
        self.jobs.extend(real.into_iter().zip(model));
    }
}
