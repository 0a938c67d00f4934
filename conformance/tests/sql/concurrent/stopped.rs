//! A session that is stopped inside of its statement.
//!
//! A statement takes its snapshot, locks rows and changes them. In other schedules it has done all of that before
//! another session gets its turn, or nothing. Here it is stopped in between. After the snapshot this is done by a
//! policy of the table, which waits for an advisory lock when the first row is read; and after the locks by the
//! next number of a sequence that somebody else is altering.

use std::collections::BTreeMap;

use postgres::{Client, NoTls};

use super::Running;
use super::expiring::expire;
use super::leases::acquire;
use super::permits;
use super::queue::{ack, claim, claim_as_limited, push, push_with_ttl, take};
use super::queue_keys::{Key, push_key};
use super::schedule::{Overlap, fire, release, set};
use super::sides::{Plans, Side, Step, elapse, own_url, sql};

/// Makes the policy, and a role that has to follow it, which a superuser has not.
const GATE: &str = "
    CREATE ROLE $role;
    GRANT USAGE ON SCHEMA lockapi TO $role;
    GRANT ALL ON ALL TABLES IN SCHEMA lockapi TO $role;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA lockapi TO $role;
    GRANT ALL ON ALL FUNCTIONS IN SCHEMA lockapi TO $role;
    CREATE FUNCTION public.gate() RETURNS bool LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(7, 7); RETURN true; END';
    GRANT USAGE ON SCHEMA public TO $role;
    ALTER TABLE lockapi.job ENABLE ROW LEVEL SECURITY;
    CREATE POLICY gate ON lockapi.job USING (public.gate())";

const SHUT: &str = "SELECT pg_catalog.pg_advisory_lock(7, 7)";
const OPEN: &str = "SELECT pg_catalog.pg_advisory_unlock(7, 7)";

/// The sessions of a schedule, in a database of its own.
struct Sessions {
    namespace: String,
    observer: Side,
    /// Who stops another.
    keeper: Side,
    given: BTreeMap<String, i64>,
}

impl Sessions {
    fn new(before: &[&Step]) -> Self {
        let namespace = format!("n{:016x}", fastrand::u64(..));
        let mut sessions = Self {
            observer: side(&namespace),
            keeper: side(&namespace),
            given: BTreeMap::new(),
            namespace,
        };
        for step in before {
            sessions.observe(step);
        }
        sessions
    }

    fn observe(&mut self, step: &Step) -> String {
        self.observer.run(step, &mut self.given)
    }

    /// Begins a statement, which the keeper stops.
    fn stop(&mut self, side: Side, step: &Step) -> Running {
        let running = Running::start(side, step, self.given.clone());
        running.waits_for(self.keeper.pid(), &mut self.observer);
        running
    }
}

fn side(namespace: &str) -> Side {
    let mut side = Side::server(own_url(), Plans::Engine);
    namespace.clone_into(&mut side.namespace);
    side
}

/// A role for which the jobs of this database are behind the gate.
fn gated() -> String {
    let role = format!("gated_{:016x}", fastrand::u64(..));
    let mut client = Client::connect(own_url(), NoTls).expect("a connection");
    let gate = GATE.replace("$role", &role);
    client.batch_execute(&gate).expect("a gate");
    role
}

/// Roles are those of all databases.
fn drop_role(role: &str) {
    let mut client = Client::connect(own_url(), NoTls).expect("a connection");
    let dropped = client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    dropped.expect("dropped");
}

/// What B does who has read the rows as they were before A, and locks them after A.
struct Late<'a> {
    before: &'a [&'a Step],
    first: &'a [&'a Step],
    second: (&'a Step, &'a str),
    /// What is left of what A did.
    after: (&'a Step, &'a str),
}

impl Late<'_> {
    fn run(&self, role: &str) {
        let mut sessions = Sessions::new(self.before);
        let mut second = side(&sessions.namespace);
        second.script(&format!("SET ROLE {role}"));
        sessions.keeper.script(SHUT);
        let stopped = sessions.stop(second, self.second.0);
        sessions.observer.script("BEGIN");
        for step in self.first {
            sessions.observe(step);
        }
        sessions.observer.script("COMMIT");
        sessions.keeper.script(OPEN);
        let (mut second, answer) = stopped.answer(&mut sessions.given);
        second.script("RESET ROLE");
        assert_eq!(answer, self.second.1, "what B answers");
        let (step, expected) = self.after;
        assert_eq!(sessions.observe(step), expected, "what A has left");
    }
}

const LATER: &str =
    "UPDATE lockapi.job SET expires_at = expires_at + interval '1 day' WHERE namespace = $n";
const SOONER: &str =
    "UPDATE lockapi.job SET expires_at = expires_at - interval '1 day' WHERE namespace = $n";
const EXPIRES: &str = "UPDATE lockapi.job SET expires_at = pg_catalog.now() - interval '1 minute'
                        WHERE namespace = $n";
/// The job is kept by its attempt, and not by its lease.
const LEASE_ENDS: &str = "UPDATE lockapi.job SET lease_until = lease_until - interval '1 day'
                           WHERE namespace = $n";

#[test]
fn a_job_that_was_changed_after_the_snapshot_is_checked_again() {
    let role = gated();
    // A claim that saw the job before it expired.
    Late {
        before: &[&push_with_ttl(5), &elapse(6)],
        first: &[&sql(LATER), &claim(1), &sql(SOONER), &sql(LEASE_ENDS)],
        second: (&expire(10), "moved 0"),
        after: (&ack(&["a"]), "true"),
    }
    .run(&role);
    // A push that replaced it by a job that does not expire.
    Late {
        before: &[&push_key("a", Key::Skip), &sql(EXPIRES)],
        first: &[&push_key("b", Key::Replace)],
        second: (&expire(10), "moved 0"),
        after: (&claim(1), "done [], picked 1: job a 1 true"),
    }
    .run(&role);
    for (second, answer) in [
        (claim(1), "done [], picked 0:"),
        (claim_as_limited(1), "done [], picked 0:"),
        (take(1), "took []"),
    ] {
        Late {
            before: &[&push(&["a"])],
            first: &[&claim(1)],
            second: (&second, answer),
            after: (&ack(&["a"]), "true"),
        }
        .run(&role);
    }
    drop_role(&role);
}

/// A has locked its rows, and stops at the next number of a sequence before it changes them. B skips them.
fn skipped(sequence: &str, before: &[&Step], steps: [&Step; 2], answers: [&str; 2]) {
    let mut sessions = Sessions::new(before);
    let hold = format!("BEGIN; ALTER SEQUENCE lockapi.{sequence} CACHE 1");
    sessions.keeper.script(&hold);
    let (first_side, second_side) = (side(&sessions.namespace), side(&sessions.namespace));
    let first = sessions.stop(first_side, steps[0]);
    let second = Running::start(second_side, steps[1], sessions.given.clone());
    // If it had locked them too, it would come as far as the sequence.
    second.passes(sessions.keeper.pid(), &mut sessions.observer);
    let (_, answer) = second.answer(&mut sessions.given);
    assert_eq!(answer, answers[1], "what B answers");
    sessions.keeper.script("ROLLBACK");
    let (_, answer) = first.answer(&mut sessions.given);
    assert_eq!(answer, answers[0], "what A answers");
}

#[test]
fn a_job_is_claimed_by_one_of_two_before_either_changes_it() {
    for claim in [claim(1), claim_as_limited(1)] {
        let answers = ["done [], picked 1: job a 1 true", "done [], picked 0:"];
        skipped("delivery_seq", &[&push(&["a"])], [&claim, &claim], answers);
    }
}

#[test]
fn slots_are_taken_by_one_of_two_before_either_changes_them() {
    // The rows have to be made first.
    let takes = [1, 2, 3].map(|acquisition| permits::take(1, 1, acquisition));
    let answers = ["[1] a larger token", "refused false 0"];
    skipped("fence_seq", &[&takes[0]], [&takes[1], &takes[2]], answers);
}

#[test]
fn a_lease_is_acquired_by_one_of_two_before_either_changes_it() {
    let before = [&acquire(&[("first", "a", 1)]), &elapse(2)];
    let answers = ["a larger token", "held 0"];
    let steps = [
        &acquire(&[("second", "a", 2)]),
        &acquire(&[("third", "a", 3)]),
    ];
    skipped("fence_seq", &before, steps, answers);
    let before = [
        &acquire(&[("first", "a", 1), ("first", "b", 1)]),
        &elapse(2),
    ];
    let answers = ["a larger token; a larger token", "held 0; held 0"];
    let steps = [
        &acquire(&[("second a", "a", 2), ("second b", "b", 2)]),
        &acquire(&[("third a", "a", 3), ("third b", "b", 3)]),
    ];
    skipped("fence_seq", &before, steps, answers);
}

#[test]
fn a_task_is_fired_by_one_of_two_before_either_changes_it() {
    let fire = fire(1);
    let answers = ["Fired true", ""];
    skipped("job_seq", &[&set(Overlap::Skipped, 0)], [&fire; 2], answers);
}

#[test]
fn a_run_is_released_by_one_of_two_before_either_changes_it() {
    let before = [&set(Overlap::Held, 0), &fire(2), &claim(1), &ack(&["a"])];
    let release = release();
    let answers = ["1 released", "0 released"];
    skipped("job_seq", &before, [&release; 2], answers);
}
