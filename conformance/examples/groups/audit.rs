//! What the logs tell.
//!
//! A delivery holds its place from before its beginning was recorded until after its end was: it was claimed
//! before, and acknowledged after. So of those that were acknowledged no more may overlap than the limit
//! says. In order, whatever begins must find an end of every job before it, also if it was never
//! acknowledged itself.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::common::Problem;

#[derive(Default)]
pub(crate) struct Found {
    pub(crate) begun: u64,
    pub(crate) overruns: u64,
    pub(crate) inversions: u64,
    pub(crate) lost: u64,
    /// Jobs that two deliveries completed.
    pub(crate) twice: u64,
}

/// What became of a delivery.
#[derive(Clone, Copy, Default)]
struct Delivered {
    begun: Option<i128>,
    ended: Option<i128>,
    acked: bool,
    /// Nobody knows: the answer was lost, or the process was killed.
    may_be_acked: bool,
}

/// The deliveries of a group, by the numbers of the jobs and by their tokens.
type Group = BTreeMap<u64, BTreeMap<i64, Delivered>>;

pub(crate) fn judge(
    (files, killed): (&[PathBuf], &[PathBuf]),
    jobs: u64,
    groups: u64,
    limit: Option<u32>,
) -> Result<Found, Problem> {
    let mut all = BTreeMap::<u64, Group>::new();
    for file in files {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            // It was killed before it had one.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        // Whoever was killed may have written a part of its last line.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [what, group, number, token, at] = words[..] else {
                return Err(format!("a line of the log: {line}").into());
            };
            let of_group = all.entry(group.parse()?).or_default();
            let of_job = of_group.entry(number.parse()?).or_default();
            let delivered = of_job.entry(token.parse()?).or_default();
            match what {
                "b" => delivered.begun = Some(at.parse()?),
                "e" => {
                    delivered.ended = Some(at.parse()?);
                    delivered.may_be_acked |= killed.contains(file);
                }
                "u" => delivered.may_be_acked = true,
                _ => delivered.acked = true,
            }
        }
    }
    let mut found = Found::default();
    for nth in 0..jobs {
        let job = all
            .get(&(nth % groups))
            .and_then(|of| of.get(&(nth / groups)));
        let done = |it: &Delivered| it.ended.is_some() && (it.acked || it.may_be_acked);
        found.lost += u64::from(!job.is_some_and(|of| of.values().any(done)));
        let acked = job.map_or(0, |of| of.values().filter(|it| it.acked).count());
        found.twice += u64::from(acked > 1);
    }
    let most = limit.map_or(1, i64::from);
    for group in all.values() {
        let deliveries = group.values().flat_map(BTreeMap::values);
        found.begun += u64::try_from(deliveries.clone().count())?;
        found.overruns += overruns(deliveries, most);
        if limit.is_none() {
            found.inversions += inversions(group);
        }
    }
    Ok(found)
}

/// How many deliveries began while as many as may were held.
fn overruns<'a>(deliveries: impl Iterator<Item = &'a Delivered>, most: i64) -> u64 {
    let held = deliveries.filter(|it| it.acked);
    let mut steps: Vec<(i128, i64)> = held
        .filter_map(|it| Some([(it.begun?, 1), (it.ended?, -1)]))
        .flatten()
        .collect();
    // At the same moment one ends before another begins.
    steps.sort_unstable();
    let (mut running, mut overruns) = (0, 0);
    for (_, step) in steps {
        running += step;
        overruns += u64::from(step > 0 && running > most);
    }
    overruns
}

/// How many deliveries began before a job before theirs was done.
fn inversions(group: &Group) -> u64 {
    let mut done = i128::MIN;
    let mut inversions = 0;
    for deliveries in group.values() {
        let begun = deliveries.values().filter_map(|it| it.begun);
        let early = begun.filter(|begun| *begun < done);
        inversions += u64::try_from(early.count()).unwrap_or(u64::MAX);
        let ended = deliveries.values().filter_map(|it| it.ended).min();
        done = ended.map_or(i128::MAX, |ended| done.max(ended));
    }
    inversions
}
