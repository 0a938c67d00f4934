//! Dead letters that are named by their numbers.

use lockapi::driver::Connection;
use lockapi::suite::queue::{Discard, Redrive};

use super::{Both, Pair};

impl<C: Connection> Pair<'_, C> {
    /// Puts these jobs back if they are dead letters, or deletes them.
    pub(super) async fn dead_letters(&mut self, backs: &[u8], again: bool) {
        let ids: Vec<_> = backs.iter().map(|back| self.job(*back)).collect();
        let (name, most) = (self.name(), 3);
        let side = |of: fn(&Both<i64>) -> i64| ids.iter().map(of).collect::<Vec<_>>();
        let (real, model) = (side(|ids| ids.0), side(|ids| ids.1));
        if again {
            let of = |ids| {
                [Redrive {
                    name: name.clone(),
                    ids,
                    most,
                    topic: 0,
                }]
            };
            let (real, model) = self.compare(&of(real), &of(model)).await;
            assert_eq!(real, model, "put back: {backs:?}");
        } else {
            let of = |ids| {
                [Discard {
                    name: name.clone(),
                    ids,
                    most,
                }]
            };
            let (real, model) = self.compare(&of(real), &of(model)).await;
            assert_eq!(real, model, "discarded: {backs:?}");
        }
    }
}
