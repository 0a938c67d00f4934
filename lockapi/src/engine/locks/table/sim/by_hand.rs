//! Two processes whose callers a test plays itself.

use super::*;

/// Two programs without faults, whose callers the test plays itself.
pub(in super::super) fn two(waiters: usize, keys: i64) -> Sim {
    let mut sim = Sim::new(0);
    sim.faults = false;
    sim.keys = keys;
    let process = || Process {
        table: LockTable::new(Limits {
            waiters,
            max_locks: 100,
            heartbeat: HEARTBEAT,
            observed: false,
            seed: 7,
        }),
        workers: (0..=waiters).map(|_| Worker::default()).collect(),
        callers: BTreeMap::new(),
    };
    sim.processes = vec![process(), process()];
    sim
}

impl Sim {
    /// A caller of a process waits for a lock.
    pub(in super::super) fn wait_in(&mut self, p: usize, key: i64, mode: LockMode) -> u64 {
        let wanted = Acquisition {
            lock: lock(key),
            mode,
            owner: None,
            policy: WaitPolicy::Forever,
        };
        self.ask_for(p, wanted)
    }

    pub(in super::super) fn holds(&self, p: usize, caller: u64) -> bool {
        matches!(
            self.processes[p].callers.get(&caller),
            Some(Caller::Holds { .. })
        )
    }
}
