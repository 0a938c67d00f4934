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

    /// How often the main session of the first program looks whether it is alive, in so long.
    pub(in super::super) fn pings(&mut self, time: Duration) -> usize {
        let until = self.now + time;
        let mut pings = 0;
        while self.now < until {
            self.work(0, 0);
            let state = &self.processes[0].workers[0].state;
            pings += usize::from(matches!(state, WorkerState::Ping));
            self.pass_time(MS);
        }
        pings
    }
}
