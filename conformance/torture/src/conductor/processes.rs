//! Faults of processes: of programs and of the server.

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
        while client.simple_query(switch).is_ok() && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(draw.time / 2);
        disk.clear()?;
        self.server.revive(RESTART)?;
        let ended = sessions.iter().filter(|pid| !lives(**pid)).count() as u64;
        let text = format!("{ended} of {} sessions ended", sessions.len());
        Ok(Effect::new(ended, text))
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

    /// Lets a function end or cancel sessions, one after the other.
    pub(super) fn signal_sessions(
        &self,
        draw: &mut Draw,
        function: &str,
        done: &str,
    ) -> Result<Effect> {
        let mut client = self.server.client()?;
        // A cancel has an effect on a session that runs something.
        let sql = format!(
            "SELECT {function}(pid) FROM (
                 SELECT pid FROM pg_stat_activity
                  WHERE usename = '{USER}' AND (state = 'active' OR '{function}' <> 'pg_cancel_backend')
                  ORDER BY random() LIMIT 1) AS a"
        );
        let end = Instant::now() + draw.time;
        let mut count = 0;
        while Instant::now() < end {
            let hit = client.query_opt(&sql, &[])?;
            count += u64::from(hit.is_some_and(|row| row.get(0)));
            thread::sleep(Duration::from_millis(draw.random.u64(20..250)));
        }
        Ok(Effect::new(
            count,
            format!("{count} sessions {done} in {}", seconds(draw.time)),
        ))
    }
}
