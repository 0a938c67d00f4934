//! Faults of settings: those of the role, and the clock.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postgres::Client;

use super::clients::PATIENCE;
use super::{Conductor, Draw, Effect, seconds};
use crate::Result;
use crate::server::USER;

/// What an administrator may set for a role.
const SETTINGS: [&str; 10] = [
    "statement_timeout = '20ms'",
    "lock_timeout = '5ms'",
    "idle_in_transaction_session_timeout = '50ms'",
    "idle_session_timeout = '100ms'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_read_only = on",
    "search_path = 'torture'",
    "synchronous_commit = off",
    "TimeZone = 'Asia/Kathmandu'",
];

impl Conductor<'_> {
    /// Changes the settings of the role of all programs, and ends sessions, so that there are some that begin
    /// with them.
    pub(super) fn settings(&self, draw: &mut Draw) -> Result<Effect> {
        let _one = self.setting();
        let mut client = self.server.client()?;
        let setting = draw.random.choice(SETTINGS).unwrap_or(SETTINGS[0]);
        client.batch_execute(&format!("ALTER ROLE {USER} SET {setting}"))?;
        let outcome = end_sessions(&mut client, setting, draw.time);
        // Also where the server has ended the session meanwhile: nobody would be answered in the calm.
        let mut client = self.server.patient_client(PATIENCE)?;
        client.batch_execute(&format!("ALTER ROLE {USER} RESET ALL"))?;
        outcome
    }

    /// By how much the server's clock is ahead of this machine's, in microseconds.
    fn ahead(&self) -> Result<i64> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";
        let server: i64 = self.server.client()?.query_one(sql, &[])?.get(0);
        let here = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        Ok(server - i64::try_from(here)?)
    }

    /// Sets the clock of the server.
    pub(super) fn clock(&self, draw: &mut Draw) -> Result<Effect> {
        let _one = self.setting();
        let by = Duration::from_millis(draw.random.u64(200..10_000));
        let ahead = draw.random.bool();
        let before = self.ahead()?;
        self.server.cluster().set_clock(by, ahead)?;
        let moved = Duration::from_micros((self.ahead()? - before).unsigned_abs());
        let way = if ahead { "ahead" } else { "back" };
        Ok(Effect::new(
            u64::from(moved > by / 2),
            format!("{} {way}", seconds(by)),
        ))
    }
}

/// Ends sessions of a role that has been set, and sees who comes.
fn end_sessions(client: &mut Client, setting: &str, time: Duration) -> Result<Effect> {
    let ended = client.execute(
        "SELECT pg_terminate_backend(pid) FROM (
             SELECT pid FROM pg_stat_activity WHERE usename = $1 ORDER BY random() LIMIT 30) AS a",
        &[&USER],
    )?;
    thread::sleep(time);
    let begun: i64 = client
        .query_one(
            "SELECT count(*) FROM pg_stat_activity
              WHERE usename = $1 AND backend_start > clock_timestamp() - $2 * interval '1 second'",
            &[&USER, &time.as_secs_f64()],
        )?
        .get(0);
    Ok(Effect::new(
        begun.unsigned_abs(),
        format!("{setting}: {ended} sessions ended, {begun} began"),
    ))
}
