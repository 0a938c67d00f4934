//! Time goes by without waiting, and clocks are set.

use std::sync::PoisonError;
use std::time::Duration;

use super::database::OnPostgres;
use super::observer::literal;

impl OnPostgres {
    /// Makes everything in the namespace older.
    pub(super) async fn older(&self, by: Duration) {
        self.shift(by.as_micros().try_into().expect("a time")).await;
    }

    /// Makes everything in the namespace older by so many microseconds.
    async fn shift(&self, micros: i64) {
        let namespace = literal(&self.namespace);
        self.observer
            .rows(format!(
                "UPDATE lockapi.lease
                    SET acquired_at = acquired_at - {micros} * interval '1 microsecond',
                        renewed_at = renewed_at - {micros} * interval '1 microsecond',
                        held_until = held_until - {micros} * interval '1 microsecond',
                        expires_at = expires_at - {micros} * interval '1 microsecond',
                        released_at = released_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.rate_limit
                    SET tat = tat - {micros}::int8 * 1000, at = at - {micros}::int8 * 1000,
                        started = started - {micros}::int8 * 1000,
                        blocked_until = blocked_until - {micros}::int8 * 1000,
                        due = due - {micros}::int8 * 1000,
                        withheld_from = withheld_from - {micros}::int8 * 1000
                  WHERE namespace = {namespace};
                 UPDATE lockapi.answer
                    SET answered_at = answered_at - {micros} * interval '1 microsecond',
                        keep_until = keep_until - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.rate_reservation
                    SET at = at - {micros}::int8 * 1000, expires = expires - {micros}::int8 * 1000
                  WHERE namespace = {namespace}"
            ))
            .await;
        if self.site.own.is_some() {
            self.observer
                .rows(format!(
                    "UPDATE lockapi.epoch SET begun_at = begun_at - {micros} * interval '1 microsecond',
                            waits_from = waits_from - {micros} * interval '1 microsecond'
                      WHERE number > first"
                ))
                .await;
        }
        self.observer
            .rows(format!(
                "WITH ended AS (
                     UPDATE lockapi.job_archive SET completed_at = completed_at - {micros} * interval '1 microsecond',
                                                   expires_at = expires_at - {micros} * interval '1 microsecond'
                      WHERE namespace = {namespace}
                 ), results AS (
                     UPDATE lockapi.job_result SET completed_at = completed_at - {micros} * interval '1 microsecond',
                                                  expires_at = expires_at - {micros} * interval '1 microsecond'
                      WHERE namespace = {namespace}
                 ), keys AS (
                     UPDATE lockapi.push_key SET created_at = created_at - {micros} * interval '1 microsecond'
                      WHERE namespace = {namespace}
                 )
                 UPDATE lockapi.job
                    SET run_at = CASE WHEN due_at IS NULL THEN run_at - {micros} * interval '1 microsecond' ELSE run_at END,
                        due_at = due_at - {micros} * interval '1 microsecond',
                        created_at = created_at - {micros} * interval '1 microsecond',
                        started_at = started_at - {micros} * interval '1 microsecond',
                        lease_until = lease_until - {micros} * interval '1 microsecond',
                        expires_at = expires_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.queue SET paused_until = paused_until - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.paused_name SET paused_until = paused_until - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.job_history_part
                    SET written_at = written_at - {micros} * interval '1 microsecond',
                        minute = minute - interval '5000 years'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.job_history_part
                    SET minute = minute + interval '5000 years' - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.job_history SET at = at - interval '5000 years' WHERE namespace = {namespace};
                 UPDATE lockapi.job_history
                    SET at = at + interval '5000 years' - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.queue_limit SET tat = tat - {micros}::int8 * 1000, at = at - {micros}::int8 * 1000
                  WHERE namespace = {namespace};
                 UPDATE lockapi.group_rate SET tat = tat - {micros}::int8 * 1000, at = at - {micros}::int8 * 1000
                  WHERE namespace = {namespace}"
            ))
            .await;
        self.observer
            .rows(format!(
                "UPDATE lockapi.lock_name SET seen_at = seen_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.lock_note SET since = since - {micros} * interval '1 microsecond'
                  WHERE backend IN (SELECT backend FROM lockapi.lock_session WHERE namespace = {namespace})"
            ))
            .await;
        self.shift_tasks(micros).await;
    }

    async fn shift_tasks(&self, micros: i64) {
        let namespace = literal(&self.namespace);
        // The time that a run was due is in its key: all leave before the first comes back.
        self.observer
            .rows(format!(
                "UPDATE lockapi.task SET next_at = next_at - {micros} * interval '1 microsecond',
                                        changed_at = changed_at - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.task_run
                    SET fired_at = fired_at - {micros} * interval '1 microsecond',
                        fire_at = fire_at - interval '5000 years'
                  WHERE namespace = {namespace};
                 UPDATE lockapi.task_run
                    SET fire_at = fire_at + interval '5000 years' - {micros} * interval '1 microsecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
    }

    /// Sets the clock ahead, or makes the namespace look as if.
    pub(super) async fn clock_ahead(&self, by: Duration) {
        if self.sets_clock(by, true) {
            return;
        }
        // What was written before is older by a clock that was set ahead.
        self.older(by).await;
        // The floor stays: ids of real times are below it.
        let (namespace, millis) = (literal(&self.namespace), by.as_millis());
        self.observer
            .rows(format!(
                "UPDATE lockapi.id_worker
                    SET claimed_at = claimed_at - {millis} * interval '1 millisecond',
                        renewed_at = renewed_at - {millis} * interval '1 millisecond',
                        expires_at = expires_at - {millis} * interval '1 millisecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
    }

    /// Sets the clock back, or makes the namespace look as if.
    pub(super) async fn clock_back(&self, by: Duration) {
        if self.sets_clock(by, false) {
            return;
        }
        // Compared with a clock that was set back, what it wrote before is later.
        let micros: i64 = by.as_micros().try_into().expect("a time");
        self.shift(-micros).await;
        let (namespace, millis) = (literal(&self.namespace), by.as_millis());
        self.observer
            .rows(format!(
                "UPDATE lockapi.id_worker
                    SET floor = floor + {millis},
                        claimed_at = claimed_at + {millis} * interval '1 millisecond',
                        renewed_at = renewed_at + {millis} * interval '1 millisecond',
                        expires_at = expires_at + {millis} * interval '1 millisecond'
                  WHERE namespace = {namespace}"
            ))
            .await;
    }

    /// Sets the clock of a server that has one which can be set.
    fn sets_clock(&self, by: Duration, ahead: bool) -> bool {
        let Some(own) = &self.site.own else {
            return false;
        };
        let cluster = own.lock().unwrap_or_else(PoisonError::into_inner);
        if cluster.has_clock() {
            cluster.set_clock(by, ahead).expect("the clock is set");
        }
        cluster.has_clock()
    }
}
