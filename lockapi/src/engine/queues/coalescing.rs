//! Pushes of one unique key that travel together, as one push.

use std::collections::HashMap;

use crate::queue::{How, PushKeyed, Pushed, Unique};

/// Pushes with a unique key of its own each.
pub(super) struct Coalesced {
    pub(super) pushes: Vec<PushKeyed>,
    /// For each push that was asked for: which of these it went into, its rule, and whether it is the
    /// first there.
    members: Vec<(usize, Unique, bool)>,
}

impl Coalesced {
    /// Combines pushes of one unique key: what is left is as if each had been carried out in turn.
    pub(super) fn of(asked: &[PushKeyed]) -> Self {
        let mut places: HashMap<(&str, &str), usize> = HashMap::with_capacity(asked.len());
        let mut pushes: Vec<PushKeyed> = Vec::with_capacity(asked.len());
        let mut members = Vec::with_capacity(asked.len());
        for push in asked {
            let unique = push.keys.unique;
            let place = if push.keys.unique_key.is_empty() {
                pushes.len()
            } else {
                let key = (&*push.queue, &*push.keys.unique_key);
                *places.entry(key).or_insert(pushes.len())
            };
            let first = place == pushes.len();
            if first {
                pushes.push(push.clone());
            } else {
                add(&mut pushes[place], push);
            }
            members.push((place, unique, first));
        }
        Self { pushes, members }
    }

    /// The answer to each push that was asked for.
    pub(super) fn answers(&self, answers: &[Option<Pushed>]) -> Vec<Option<Pushed>> {
        let answer = |&(place, unique, first): &(usize, Unique, bool)| {
            let mut pushed = (*answers.get(place)?)?;
            let changes = self.pushes[place].keys.unique != Unique::Skip;
            pushed.how = match pushed.how {
                How::New if first => How::New,
                how if first && (unique != Unique::Skip || !changes) => how,
                _ if unique == Unique::Skip => How::Existing,
                How::Running => How::Running,
                _ => How::Changed,
            };
            Some(pushed)
        };
        self.members.iter().map(answer).collect()
    }
}

/// Lets `push` follow `before`.
fn add(before: &mut PushKeyed, push: &PushKeyed) {
    let rule = &mut before.keys.unique;
    match push.keys.unique {
        Unique::Skip => {}
        Unique::Replace => {
            *rule = Unique::Replace;
            before.job = push.job.clone();
        }
        Unique::Keep => {
            if *rule == Unique::Skip {
                *rule = Unique::Keep;
            }
            before.job.name.clone_from(&push.job.name);
            before.job.payload.clone_from(&push.job.payload);
            before.job.headers = push.job.headers.with_limit_key_of(&before.job.headers);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use proptest::prelude::*;

    use crate::blocking::block_on;
    use crate::engine::ManualClock;
    use crate::memory::Database;
    use crate::queue::{Claim, Job, Priority, Unique};

    /// A rule, a priority, and whether there is one attempt only.
    type Push = (Unique, Priority, bool);

    fn pushes() -> impl Strategy<Value = Vec<Push>> {
        let rule = prop::sample::select(vec![Unique::Skip, Unique::Replace, Unique::Keep]);
        let priority = prop::sample::select(vec![Priority::Low, Priority::High]);
        prop::collection::vec((rule, priority, any::<bool>()), 1..12)
    }

    fn job(nth: usize, (unique, priority, short): Push, key: usize) -> Job {
        let job = Job::new("work", &nth).unwrap().priority(priority);
        // One in two has a header.
        let job = if nth.is_multiple_of(2) {
            job.header("nth", nth.to_string())
        } else {
            job
        };
        let job = if short { job.max_attempts(1) } else { job };
        // One in three has a key that it is limited by.
        let job = if nth.is_multiple_of(3) {
            job.limit_by(format!("limit {nth}"))
        } else {
            job
        };
        job.unique(format!("key {key}"), unique)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whether they travel together or one by one, the answers and the job are the same.
        #[test]
        fn pushes_of_one_key_have_the_same_effect_together(
            all in pushes(),
            before in prop::option::of(any::<bool>()),
        ) {
            let mut seen = Vec::new();
            for together in [true, false] {
                let clock = ManualClock::default();
                let backend = block_on(Database::with_clock(&clock).connect()).unwrap();
                let queue = backend.queue("queue").unwrap();
                let outcome = block_on(async {
                    let mut running = Vec::new();
                    if let Some(claimed) = before {
                        queue.push(job(100, (Unique::Skip, Priority::Normal, false), 1)).await.unwrap();
                        if claimed {
                            running = queue.claim(&Claim::new(1)).await.unwrap();
                        }
                    }
                    let push = |(nth, push): (usize, &Push)| queue.push(job(nth, *push, nth % 2));
                    let mut answers = Vec::new();
                    if together {
                        let all = all.iter().enumerate().map(push);
                        answers = join_all(all).await.into_iter().map(|it| it.unwrap().how).collect();
                    } else {
                        for one in all.iter().enumerate().map(push) {
                            answers.push(one.await.unwrap().how);
                        }
                    }
                    let mut jobs = queue.claim(&Claim::new(10)).await.unwrap();
                    jobs.sort_by_key(|it| it.payload().to_owned());
                    let jobs: Vec<_> = jobs
                        .iter()
                        .map(|it| (it.payload().to_owned(), it.headers().clone(), it.priority(), it.max_attempts()))
                        .collect();
                    drop(running);
                    (answers, jobs)
                });
                seen.push(outcome);
            }
            prop_assert_eq!(&seen[0], &seen[1]);
        }
    }
}
