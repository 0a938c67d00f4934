//! The table of answers, in memory.

use std::collections::BTreeMap;

use super::operations::{Recalled, RecordAnswer};
use crate::sweep::NamespacedKey;

/// The rows of all answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    rows: BTreeMap<NamespacedKey, AnswerRow>,
}

#[derive(Clone, Debug)]
struct AnswerRow {
    fence: i64,
    recalled: Recalled,
    keep_until: i64,
}

impl Answers {
    pub(crate) fn recall(&self, namespace: &str, key: &str, now: i64) -> Option<Recalled> {
        let row = self.rows.get(&(namespace.to_owned(), key.to_owned()))?;
        (row.keep_until > now).then(|| row.recalled.clone())
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Answers for each request whether the answer is its own.
    pub(crate) fn record(&mut self, batch: &[RecordAnswer], now: i64) -> Vec<bool> {
        let mut first = BTreeMap::new();
        for record in batch {
            let row_key = (record.namespace.clone(), record.key.clone());
            if first.contains_key(&row_key) {
                continue;
            }
            let known = self.rows.get(&row_key);
            let free = known.is_none_or(|it| it.keep_until <= now || it.fence == record.fence);
            if free {
                let row = AnswerRow {
                    fence: record.fence,
                    recalled: Recalled {
                        fingerprint: record.fingerprint.clone(),
                        answer: record.answer.clone(),
                    },
                    keep_until: now.saturating_add(record.retention),
                };
                self.rows.insert(row_key.clone(), row);
            }
            first.insert(row_key, free.then_some(record.fence));
        }
        let own = |record: &RecordAnswer| {
            let row_key = (record.namespace.clone(), record.key.clone());
            first.get(&row_key) == Some(&Some(record.fence))
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
        let rest = rest.filter(|row_key| (&row_key.1, &row_key.0) > (&after.1, &after.0));
        let part: Vec<_> = rest.take(most).collect();
        let rows = self.rows.len();
        for row_key in &part {
            if self.rows[row_key].keep_until <= now {
                self.rows.remove(row_key);
            }
        }
        let deleted = i64::try_from(rows - self.rows.len()).unwrap_or(i64::MAX);
        (deleted, part)
    }
}
