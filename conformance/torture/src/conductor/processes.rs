//! Faults of processes: of programs and of the server.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lockapi_conformance::cluster::StopMode;
use rustix::process::{Pid, Signal, kill_process};

use super::{Conductor, Draw, Effect, seconds};
use crate::Result;
use crate::programs::TTL;
use crate::server::USER;

const RESTART: Duration = Duration::from_mins(1);
/// Within this time the server has logged what it cancelled.
const LOGGED: Duration = Duration::from_millis(300);

/// Processes that are stopped until this is dropped.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn new(pids: &[i32]) -> Self {
        let pids = pids.iter().filter_map(|pid| Pid::from_raw(*pid));
        // Those that have ended are not frozen.
        Self(
            pids.filter(|pid| kill_process(*pid, Signal::STOP).is_ok())
                .collect(),
        )
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            // It may have been killed meanwhile.
            let _gone = kill_process(*pid, Signal::CONT);
        }
    }
}

fn lives(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

impl Conductor<'_> {
    pub(super) fn kill(&self, draw: &mut Draw) -> Result<Effect> {
        let place = self.place(draw);
        let killed = self.crew.kill(place, draw.time)?;
        Ok(Effect::new(
            u64::from(killed),
            format!("{}, another after {}", self.name(place), seconds(draw.time)),
        )
        .of(place))
    }

    pub(super) fn stop(&self, draw: &mut Draw) -> Result<Effect> {
        let place = self.place(draw);
        let stopped = self.crew.stop(place, draw.time)? && draw.time > TTL;
        Ok(Effect::new(
            u64::from(stopped),
            format!("{} for {}", self.name(place), seconds(draw.time)),
        )
        .of(place))
    }

    /// Process numbers of sessions of programs; those of one program if its name is given.
    fn sessions(&self, program: Option<usize>) -> Result<Vec<i32>> {
        let name =
            program.map_or_else(|| "%".to_owned(), |place| format!("program{} %", place + 1));
        let sql = "SELECT pid FROM pg_stat_activity WHERE usename = $1
                   AND application_name || ' ' LIKE $2 ORDER BY pid";
        let rows = self.server.client()?.query(sql, &[&USER, &name])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) fn kill_backend(&self, draw: &mut Draw) -> Result<Effect> {
        let sessions = self.sessions(None)?;
        let victim = draw.random.choice(&sessions).ok_or("no session")?;
        let pid = Pid::from_raw(*victim).ok_or("a process number")?;
        kill_process(pid, Signal::KILL)?;
        let start = Instant::now();
        while sessions.iter().any(|pid| lives(*pid)) && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(20));
        }
        let gone = sessions.iter().filter(|pid| !lives(**pid)).count() as u64;
        drop(self.server.patient_client(RESTART)?);
        let all = if gone > 1 { gone } else { 0 };
        Ok(Effect::new(
            all,
            format!("one of {} sessions; {gone} ended", sessions.len()),
        ))
    }

    pub(super) fn crash(&self, draw: &mut Draw) -> Result<Effect> {
        let sessions = self.sessions(None)?.len() as u64;
        let mut cluster = self.server.cluster();
        cluster.stop(StopMode::Immediate)?;
        thread::sleep(draw.time / 2);
        drop(cluster);
        self.server.revive(RESTART)?;
        Ok(Effect::new(
            sessions,
            format!("{sessions} sessions, away for {}", seconds(draw.time / 2)),
        ))
    }

    /// Leaves no room for the log, until the server gives up.
    pub(super) fn full_disk(&self, draw: &mut Draw) -> Result<Effect> {
        let disk = self.server.disk().ok_or("there is no small disk")?;
        let sessions = self.sessions(None)?;
        let mut client = self.server.client()?;
        disk.fill()?;
        let start = Instant::now();
        // Each begins a new segment, for which there is no room sooner or later.
        let switch = "SELECT pg_logical_emit_message(false, 'torture', 'full'), pg_switch_wal()";
        let mut is_full = false;
        while !is_full && start.elapsed() < Duration::from_secs(20) {
            is_full = client.simple_query(switch).is_err();
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(draw.time / 2);
        disk.clear()?;
        self.server.revive(RESTART)?;
        let ended = sessions.iter().filter(|pid| !lives(**pid)).count() as u64;
        let text = if is_full {
            format!("{ended} of {} sessions ended", sessions.len())
        } else {
            "there was room for all of the log".to_owned()
        };
        // Sessions end by other faults as well.
        Ok(Effect::new(if is_full { ended } else { 0 }, text))
    }

    pub(super) fn freeze_sessions(&self, draw: &mut Draw) -> Result<Effect> {
        let place = self.place(draw);
        let sessions = self.sessions(Some(place))?;
        let frozen = Frozen::new(&sessions);
        thread::sleep(draw.time);
        let count = frozen.0.len() as u64;
        let text = format!("{count} of {} for {}", self.name(place), seconds(draw.time));
        Ok(Effect::new(count, text).of(place))
    }

    pub(super) fn freeze_server(&self, draw: &mut Draw) -> Result<Effect> {
        let frozen = Frozen::new(&self.server.processes()?);
        thread::sleep(draw.time);
        let count = frozen.0.len() as u64;
        Ok(Effect::new(
            count,
            format!("{count} processes for {}", seconds(draw.time)),
        ))
    }

    /// Ends sessions, one after the other.
    pub(super) fn terminate(&self, draw: &mut Draw) -> Result<Effect> {
        let signalled = self.signal_sessions(draw, "pg_terminate_backend", "true")?;
        let count = signalled.len();
        Ok(Effect::new(
            count as u64,
            format!("{count} sessions terminated in {}", seconds(draw.time)),
        ))
    }

    /// Cancels statements, one after the other; the log of the server tells which ended by that.
    pub(super) fn cancel(&self, draw: &mut Draw) -> Result<Effect> {
        let log = self.server.log()?;
        let begin = fs::metadata(&log)?.len();
        let signalled = self.signal_sessions(draw, "pg_cancel_backend", "state = 'active'")?;
        thread::sleep(LOGGED);
        let (mut file, mut text) = (File::open(&log)?, Vec::new());
        file.seek(SeekFrom::Start(begin))?;
        file.read_to_end(&mut text)?;
        let ended = cancelled(&String::from_utf8_lossy(&text), &signalled);
        let count = signalled.len();
        // The library cancels others in the same sessions.
        let ended = ended.min(count as u64);
        let time = seconds(draw.time);
        Ok(Effect::new(
            ended,
            format!("{ended} statements ended by {count} cancellations in {time}"),
        ))
    }

    /// Calls a function with sessions of a state, one after the other; the processes for which it returned true.
    fn signal_sessions(&self, draw: &mut Draw, function: &str, state: &str) -> Result<Vec<i32>> {
        let mut client = self.server.client()?;
        let sql = format!(
            "SELECT {function}(pid), pid FROM (
                 SELECT pid FROM pg_stat_activity WHERE usename = '{USER}' AND {state}
                  ORDER BY random() LIMIT 1) AS a"
        );
        let end = Instant::now() + draw.time;
        let mut signalled = Vec::new();
        while Instant::now() < end {
            let hit = client.query_opt(&sql, &[])?.filter(|row| row.get(0));
            signalled.extend(hit.map(|row| row.get::<_, i32>(1)));
            thread::sleep(Duration::from_millis(draw.random.u64(20..250)));
        }
        Ok(signalled)
    }
}

/// How many statements of these processes ended because somebody had cancelled them, as the log tells. The library cancels some itself.
fn cancelled(log: &str, pids: &[i32]) -> u64 {
    let is_meant = |line: &&str| {
        let ended = line.contains("canceling statement due to user request");
        ended && pids.iter().any(|pid| line.contains(&format!("[{pid}]")))
    };
    log.lines().filter(is_meant).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_were_cancelled_are_in_the_log() {
        let log = "2026-11-28 20:42:03.123 UTC [12] ERROR:  canceling statement due to user request\n\
                   2026-11-28 20:42:03.124 UTC [13] ERROR:  canceling statement due to lock timeout\n\
                   2026-11-28 20:42:03.125 UTC [1] LOG:  canceling statement due to user request\n";
        assert_eq!(cancelled(log, &[12, 13]), 1);
        assert_eq!(cancelled(log, &[2, 13]), 0);
        assert_eq!(cancelled(log, &[1, 12]), 2);
    }
}
