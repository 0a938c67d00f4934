//! Permits and ids.

use lockapi::limit::Quota;

use super::History;

impl History {
    /// A permit was taken at a time of the server's clock, in nanoseconds.
    pub(crate) fn permitted(&self, key: &str, quota: Quota, at: i64) {
        self.answered("permit");
        let mut state = self.lock();
        let permits = state
            .permits
            .entry(key.to_owned())
            .or_insert((quota, Vec::new()));
        permits.1.push(at);
    }

    /// In the end: in no time were there more permits than the quota allows.
    pub(crate) fn check_limits(&self, interval: impl Fn(&Quota) -> i64) {
        if self.stepped {
            return;
        }
        let mut state = self.lock();
        let fail_overs = state.fail_overs.len() as u64;
        for (key, (quota, times)) in &mut state.permits {
            times.sort_unstable();
            let interval = interval(quota);
            // A fail-over forgets at most what a burst is.
            let bursts = quota.limit() * (1 + fail_overs);
            let depth = interval * i64::try_from(bursts).unwrap_or(i64::MAX);
            let mut arrival = i64::MIN;
            for at in &*times {
                arrival = arrival.max(*at) + interval;
                // The times are read in microseconds.
                if arrival - at > depth + 1_000 {
                    let what = format!("{key}: more than {quota:?} at {at}");
                    self.runtime.violate("limits hold", what);
                    break;
                }
            }
        }
    }

    pub(crate) fn drew(&self, name: &'static str, ids: impl IntoIterator<Item = i64>) {
        self.answered("id");
        let mut state = self.lock();
        let seen = state.ids.entry(name).or_default();
        for id in ids {
            if !seen.insert(id) {
                self.runtime
                    .violate("ids are unique", format!("{name}: {id} twice"));
            }
        }
    }
}
