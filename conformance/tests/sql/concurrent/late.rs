//! What somebody changes after the snapshot of a statement, and before the statement locks the row.
//!
//! The statement runs as a role whose policy lets it see a row once it has an advisory lock. A has that lock, changes the row, and
//! commits.

use std::sync::Arc;

use super::Schedule;
use super::expiring::expire;
use super::queue::push_with_ttl;
use super::sides::{Place, Plans, Side, Step, elapse, number, own_url, sql};
use super::{Meets, queue};

/// What A has from the beginning.
const HAVE: &str = "SELECT pg_catalog.pg_advisory_xact_lock(42)";

/// A role that sees jobs late.
fn late_reader() -> String {
    let role = format!("late_{:016x}", fastrand::u64(..));
    let mut side = Side::server(own_url(), Plans::Engine);
    side.script(&format!(
        "CREATE ROLE {role};
         GRANT USAGE ON SCHEMA lockapi TO {role};
         GRANT ALL ON ALL TABLES IN SCHEMA lockapi TO {role};
         CREATE OR REPLACE FUNCTION public.late() RETURNS bool LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(42); RETURN true; END';
         ALTER TABLE lockapi.job ENABLE ROW LEVEL SECURITY;
         CREATE POLICY late ON lockapi.job TO {role} USING (public.late())"
    ));
    role
}

/// Does this as that role.
fn by(role: &str, step: &Step) -> Step {
    let (set, step) = (format!("SET ROLE {role}"), Step::clone(step));
    Arc::new(move |side: &mut Side| {
        side.script(&set);
        let answer = step(side);
        side.script("RESET ROLE");
        answer
    })
}

/// No more of the role is left on the server.
fn drop_role(role: &str) {
    let mut side = Side::server(own_url(), Plans::Engine);
    side.script(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_job_that_is_changed_while_a_sweep_looks_at_it_does_not_expire() {
    const LEFT: &str = "SELECT count(*) FROM lockapi.job WHERE namespace = $n";
    let role = late_reader();
    let before = [&push_with_ttl(5), &elapse(6)];
    for change in [
        "UPDATE lockapi.job SET attempt = 1 WHERE namespace = $n",
        "UPDATE lockapi.job SET lease_until = now() + interval '1 min' WHERE namespace = $n",
        "UPDATE lockapi.job SET expires_at = now() + interval '1 min' WHERE namespace = $n",
        "UPDATE lockapi.job SET expires_at = NULL WHERE namespace = $n",
    ] {
        let (change, gone) = (sql(change), queue::cancel(&["a"]));
        let first: Step = Arc::new(move |side: &mut Side| {
            match side.place {
                Place::Server(_) => change(side),
                Place::Model(_) => gone(side),
            };
            String::new()
        });
        let expire = by(&role, &expire(10));
        let schedule = Schedule::new(&before, &first, &expire, Meets::Waits);
        let schedule = schedule
            .looked(&sql(HAVE))
            .at(own_url())
            .only_if_committed();
        schedule.then(&number(LEFT, 1)).run();
    }
    drop_role(&role);
}
