//! The table of answers, in memory.

use std::collections::BTreeMap;

use super::operations::{Recalled, RecordAnswer};
use crate::sweep::NamespacedKey;

/// The rows of all answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    rows: BTreeMap<NamespacedKey, Kept>,
}

#[derive(Clone, Debug)]
struct Kept {
    fence: i64,
    recalled: Recalled,
    keep_until: i64,
}

impl Answers {
    pub(crate) fn recall(&self, namespace: &str, key: &str, now: i64) -> Option<Recalled> {
        let kept = self.rows.get(&(namespace.to_owned(), key.to_owned()))?;
        (kept.keep_until > now).then(|| kept.recalled.clone())
    }

    /// Answers for each request whether the answer is its own.
    pub(crate) fn record(&mut self, batch: &[RecordAnswer], now: i64) -> Vec<bool> {
        let mut first = BTreeMap::new();
        for want in batch {
            let place = (want.namespace.clone(), want.key.clone());
            if first.contains_key(&place) {
                continue;
            }
            let known = self.rows.get(&place);
            let free = known.is_none_or(|it| it.keep_until <= now || it.fence == want.fence);
            if free {
                let kept = Kept {
                    fence: want.fence,
                    recalled: Recalled {
                        fingerprint: want.fingerprint.clone(),
                        answer: want.answer.clone(),
                    },
                    keep_until: now.saturating_add(want.retention),
                };
                self.rows.insert(place.clone(), kept);
            }
            first.insert(place, free.then_some(want.fence));
        }
        let own = |want: &RecordAnswer| {
            let place = (want.namespace.clone(), want.key.clone());
            first.get(&place) == Some(&Some(want.fence))
        };
        batch.iter().map(own).collect()
    }

    /// Answers how many were deleted, and what was looked at.
    pub(crate) fn sweep(
        &mut self,
        after: &NamespacedKey,
        most: i64,
        now: i64,
    ) -> (i64, Vec<NamespacedKey>) {
        let most = usize::try_from(most).unwrap_or_default();
        // In the order of keys and not of namespaces, as the table has them.
        let mut places: Vec<_> = self.rows.keys().cloned().collect();
        places.sort_by(|one, other| (&one.1, &one.0).cmp(&(&other.1, &other.0)));
        let rest = places.into_iter();
        let rest = rest.filter(|place| (&place.1, &place.0) > (&after.1, &after.0));
        let part: Vec<_> = rest.take(most).collect();
        let rows = self.rows.len();
        for place in &part {
            if self.rows[place].keep_until <= now {
                self.rows.remove(place);
            }
        }
        let deleted = i64::try_from(rows - self.rows.len()).unwrap_or(i64::MAX);
        (deleted, part)
    }
}
