//! Dead letters that are put back or deleted, and jobs that are purged, in parts that follow each other.

use lockapi::driver::Connection;
use lockapi::suite::queue::{Discard, Purge, Redrive};

use super::{Both, Pair};

/// How many parts.
const PARTS: usize = 2;

impl<C: Connection> Pair<'_, C> {
    /// Puts these jobs back if they are dead letters, or deletes them.
    pub(super) async fn dead_letters(&mut self, backs: &[u8], again: bool) {
        let ids: Vec<_> = backs.iter().map(|back| self.job(*back)).collect();
        let ids = ids.into_iter().unzip();
        if again {
            self.redrive(ids, 3).await;
        } else {
            self.discard(ids, 3).await;
        }
    }

    /// Puts dead letters back, `most` in each part.
    pub(super) async fn redrive(&mut self, ids: Both<Vec<i64>>, most: i64) {
        let mut after = (0, 0);
        for _ in 0..PARTS {
            let name = self.name();
            let of = |ids: &Vec<i64>, after| {
                [Redrive {
                    name: name.clone(),
                    ids: ids.clone(),
                    after,
                    most,
                    topic: 0,
                }]
            };
            let (real, model) = (of(&ids.0, after.0), of(&ids.1, after.1));
            let (real, model) = self.compare(&real, &model).await;
            let (real, model) = (&real[0], &model[0]);
            assert_eq!(real.count, model.count, "put back: {ids:?}");
            assert_eq!(real.busy.len(), model.busy.len(), "put back: {ids:?}");
            let Some(next) = self.next((real.last, model.last)) else {
                return;
            };
            after = next;
        }
    }

    /// Deletes dead letters, `most` in each part.
    pub(super) async fn discard(&mut self, ids: Both<Vec<i64>>, most: i64) {
        let mut after = (0, 0);
        for _ in 0..PARTS {
            let name = self.name();
            let of = |ids: &Vec<i64>, after| {
                [Discard {
                    name: name.clone(),
                    ids: ids.clone(),
                    after,
                    most,
                }]
            };
            let (real, model) = (of(&ids.0, after.0), of(&ids.1, after.1));
            let (real, model) = self.compare(&real, &model).await;
            assert_eq!(real[0].deleted, model[0].deleted, "discarded: {ids:?}");
            let Some(next) = self.next((real[0].last, model[0].last)) else {
                return;
            };
            after = next;
        }
    }

    /// Deletes jobs that wait, among `most` in each part.
    pub(super) async fn purge(&mut self, most: i64) {
        let mut after = (Purge::FIRST, Purge::FIRST);
        for _ in 0..PARTS {
            let name = self.name();
            let of = |after| {
                [Purge {
                    name: name.clone(),
                    after,
                    most,
                }]
            };
            let (real, model) = self.compare(&of(after.0), &of(after.1)).await;
            assert_eq!(real[0].deleted, model[0].deleted, "purged");
            let last = (real[0].last, model[0].last);
            let ids = (last.0.map(|place| place.2), last.1.map(|place| place.2));
            if self.next(ids).is_none() {
                return;
            }
            after = last.0.zip(last.1).expect("both go on");
        }
    }

    /// Where the next part begins, if there is one; both sides name the same job.
    fn next(&self, last: Both<Option<i64>>) -> Option<Both<i64>> {
        assert_eq!(last.0.is_some(), last.1.is_some(), "more: {last:?}");
        let next = last.0.zip(last.1)?;
        self.same_job(next.0, next.1);
        Some(next)
    }
}
