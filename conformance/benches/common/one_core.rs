//! Work that is not to move between cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::common::Server;

/// Does work with client and server on one core: between two, waking a core that sleeps takes
/// longer than anything that is to be compared, and not equally long each time.
pub(crate) fn on_one_core<T>(work: impl FnOnce(&str) -> T) -> T {
    let before = sched_getaffinity(None).expect("the cores");
    let first = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core));
    let mut one = CpuSet::new();
    one.set(first.expect("a core"));
    sched_setaffinity(None, &one).expect("one core");
    let server = Server::private();
    let done = work(server.url());
    sched_setaffinity(None, &before).expect("all cores");
    done
}
