//! What inspectors see of a queue, and what operators do to it.

use lockapi::driver::Connection;
use lockapi::suite::admin::{CancelJob, ListRunning};

use super::{Both, Pair};
use crate::differential::near;

impl<C: Connection> Pair<'_, C> {
    /// Lists which jobs run, in this queue or in all of the namespace.
    pub(super) async fn running(&mut self, of_queue: bool) {
        let list = ListRunning {
            namespace: Some(self.namespace.to_owned()),
            queue: of_queue.then(|| "work".to_owned()),
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

    /// Cancels a job as an operator.
    pub(super) async fn cancel_one(&mut self, back: u8) {
        let (real, model) = self.job(back);
        let of = |id| {
            [CancelJob {
                name: self.name(),
                id,
                reason: "a mistake".to_owned(),
            }]
        };
        let (real, model) = (of(real), of(model));
        let (real, model) = self.compare(&real, &model).await;
        assert_eq!(real, model, "cancelled");
    }
}
