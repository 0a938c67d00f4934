//! Jobs that expire although nobody claims them.

use lockapi::driver::Connection;
use lockapi::suite::queue::{ExpireJobs, FOR_EVER};

use super::Pair;
use crate::differential::UNIT;

impl<C: Connection> Pair<'_, C> {
    /// Sweeps expired jobs to the end, as a process does: so many in a statement, and of few bytes or of many;
    /// the queue has a time of its own to keep dead letters, or another one has.
    pub(super) async fn expire(&mut self, most: u8, small: bool, own: bool) {
        let namespace = self.name.namespace.clone();
        let expire = |after| {
            [ExpireJobs {
                namespace: namespace.clone(),
                after,
                most: i64::from(most),
                bytes: if small { 2 } else { 1000 },
                retentions: vec![(if own { "work" } else { "other" }.to_owned(), UNIT)],
                keep_dead: FOR_EVER,
            }]
        };
        let mut after = ((0, 0), (0, 0));
        loop {
            let (real, model) = (expire(after.0), expire(after.1));
            let (mut real, mut model) = self.compare(&real, &model).await;
            let (real, model) = (real.remove(0), model.remove(0));
            assert_eq!(real.deleted, model.deleted, "moved");
            match (real.last, model.last) {
                (Some(real), Some(model)) => {
                    self.same_job(real.1, model.1);
                    after = (real, model);
                }
                (None, None) => return,
                (real, model) => panic!("next comes what is after {real:?} here, {model:?} there"),
            }
        }
    }
}
