//! What became of jobs.

use std::collections::{HashMap, HashSet};

use crate::history::History;
use crate::record::Outcome;

pub(super) struct Jobs {
    /// When the pushes of those that were lost had been answered.
    pub(super) lost: Vec<u64>,
    /// Those of them that had been found and not made by the push that was answered.
    pub(super) lost_found: usize,
    /// Those that were pushed, and of which nobody was told, or may believe, that they are completed.
    pub(super) vanished: usize,
    pub(super) again: usize,
    pub(super) tickets: usize,
    pub(super) confused: usize,
}

impl Jobs {
    pub(super) fn of(history: &History) -> Self {
        let delivered: HashSet<u64> = history
            .deliveries
            .iter()
            .map(|(job, _)| job.number)
            .collect();
        let lost = history
            .pushed
            .iter()
            .filter(|(number, _)| !delivered.contains(number));
        let lost: Vec<(u64, bool)> = lost.map(|(_, pushed)| *pushed).collect();
        let may_be_done: HashSet<u64> = history
            .acks
            .iter()
            .filter(|(.., outcome)| *outcome != Outcome::Refused)
            .map(|(job, ..)| job.number)
            .collect();
        let vanished = history.pushed.keys();
        let vanished = vanished.filter(|number| !may_be_done.contains(number));
        let mut done: HashMap<u64, u64> = HashMap::new();
        for (job, call, outcome) in &history.acks {
            if *outcome == Outcome::Done {
                let at = done.entry(job.number).or_insert(call.to);
                *at = call.to.min(*at);
            }
        }
        let again = history
            .deliveries
            .iter()
            .filter(|(job, call)| done.get(&job.number).is_some_and(|done| *done < call.from));
        let mut tickets: HashMap<(i64, i64), u64> = HashMap::new();
        let (mut repeated, mut confused) = (0, 0);
        for (job, _) in &history.deliveries {
            if let Some(number) = tickets.insert((job.id, job.token), job.number) {
                repeated += 1;
                confused += usize::from(number != job.number);
            }
        }
        Self {
            lost_found: lost.iter().filter(|(_, found)| *found).count(),
            lost: lost.into_iter().map(|(at, _)| at).collect(),
            vanished: vanished.count(),
            again: again.count(),
            tickets: repeated,
            confused,
        }
    }
}
