//! Which sessions may have ended, and when: by faults, as far as these are known.

use super::History;
use crate::args::Role;
use crate::conductor::AppliedFault;
use crate::log::{Nanos, SECOND};
use crate::plan::Fault;

/// For how long after a fault the server may still end sessions, and proxies close them.
const LATE: Nanos = SECOND;

impl History {
    /// Whether a session of a program that runs may have ended in this time.
    pub(super) fn may_have_ended(&self, program: usize, from: Nanos, to: Nanos) -> bool {
        let hits_nobody = |it: &AppliedFault| {
            let counts = [
                Fault::KillBackend,
                Fault::Terminate,
                Fault::CutBefore,
                Fault::CutAfter,
            ];
            it.effect == 0 && counts.contains(&it.fault)
        };
        let ends = |it: &&AppliedFault| ends_sessions(it.fault) && !hits_nobody(it);
        let mut faults = self.applied.iter().filter(ends);
        faults.any(|it| {
            self.concerns(it, program) && it.from <= to && self.lasts(it, program) >= from
        })
    }

    /// Whether the library may have sent a statement again in this time, although the call was answered.
    pub(super) fn may_be_repeated(&self, (program, from, to): (usize, Nanos, Nanos)) -> bool {
        let repeats = |it: &&AppliedFault| {
            let fault = it.fault;
            fault == Fault::Cancel || ends_sessions(fault) || is_of_pooler(fault)
        };
        let mut faults = self.applied.iter().filter(repeats);
        faults.any(|it| {
            self.concerns(it, program) && it.from <= to && self.lasts(it, program) >= from
        })
    }

    /// Whether anything may have held up a statement of a program in this time: any fault that does more than end sessions.
    pub(super) fn held_up(&self, (program, from, to): (usize, Nanos, Nanos)) -> bool {
        let mut faults = self.applied.iter().filter(|it| {
            let is_quick = matches!(
                it.fault,
                Fault::Kill
                    | Fault::KillBackend
                    | Fault::Terminate
                    | Fault::Crash
                    | Fault::CutBefore
                    | Fault::CutAfter
            );
            !is_quick && self.concerns(it, program)
        });
        faults.any(|it| it.from <= to && it.to + LATE >= from)
    }

    fn concerns(&self, fault: &AppliedFault, program: usize) -> bool {
        let place = self.programs[program].place;
        fault.place.is_none_or(|of| of == place)
    }

    /// Until when a program may have sessions that end by a fault.
    fn lasts(&self, fault: &AppliedFault, program: usize) -> Nanos {
        // What holds back the end of a session, or an answer that came before it.
        let late = self.applied.iter().filter(|it| {
            let meets = it.from <= fault.to && it.to >= fault.from;
            delays(it.fault) && meets && self.concerns(it, program)
        });
        let end = late.map(|it| it.to).fold(fault.to, Nanos::max);
        // Sessions of plain clients keep what they began with, until they are ended in the calm.
        let plain = self.programs[program].role == Role::Plain;
        let end = match fault.fault {
            Fault::Settings if plain => end.max(self.calm.0),
            _ => end,
        };
        end + LATE
    }
}

/// Whether sessions of programs that run end by a fault. Those of a program that is killed have nobody who believes in them; one
/// that gives a session up itself knows; and sessions behind the pooler hold nothing.
fn ends_sessions(fault: Fault) -> bool {
    match fault {
        Fault::KillBackend
        | Fault::Terminate
        | Fault::Crash
        | Fault::FullDisk
        | Fault::Settings
        | Fault::CutBefore
        | Fault::CutAfter
        | Fault::HalfOpen
        | Fault::Unplug => true,
        Fault::Kill
        | Fault::Stop
        | Fault::Cancel
        | Fault::FreezeSessions
        | Fault::FreezeServer
        | Fault::Stall
        | Fault::Delay
        | Fault::Dribble
        | Fault::PausePooler
        | Fault::RestartPooler
        | Fault::FullLocks
        | Fault::FullConnections
        | Fault::Index
        | Fault::Vacuum
        | Fault::LockTable
        | Fault::RowLocks
        | Fault::Snapshot
        | Fault::Clock => false,
    }
}

fn is_of_pooler(fault: Fault) -> bool {
    matches!(fault, Fault::PausePooler | Fault::RestartPooler)
}

/// Whether processes or messages do not go on meanwhile.
fn delays(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Stop
            | Fault::FreezeSessions
            | Fault::FreezeServer
            | Fault::Stall
            | Fault::Delay
            | Fault::Dribble
            | Fault::HalfOpen
            | Fault::Unplug
    )
}
