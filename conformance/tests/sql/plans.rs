//! What statements read, however full the tables are and whatever the statistics say.

use lockapi::suite::admin::{ListJobs, ListRunning, SweepNotes};
use lockapi::suite::driver::Operation;
use lockapi::suite::idempotency::SweepAnswers;
use lockapi::suite::mutex::SweepMarks;
use lockapi::suite::queue::{CompleteAndClaim, CountJobs, ExpireJobs};
use lockapi::suite::{lease, limit};
use lockapi_conformance::cluster::Cluster;
use postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

/// A level or two more of an index, and pages that are not full.
const SLACK: i64 = 60;

/// A database of its own: others would not like what this does to statistics.
pub(super) fn database() -> (String, tokio::runtime::Runtime) {
    let cluster = match Cluster::shared() {
        Ok(cluster) => cluster,
        Err(error) => panic!("no server: {error}"),
    };
    let name = format!("plans_{:016x}", fastrand::u64(..));
    let mut client = Client::connect(cluster.url(), NoTls).expect("a connection");
    let created = client.batch_execute(&format!("CREATE DATABASE {name}"));
    created.expect("a database");
    let mut url = cluster.url().to_owned();
    let options = url.find('?').unwrap_or(url.len());
    let start = url[..options].rfind('/').expect("a database in the URL");
    url.replace_range(start + 1..options, &name);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let backend = lockapi_sqlx::connect_url(&url).await.expect("a backend");
        backend.migrate().await.expect("migrated");
    });
    (url, runtime)
}

/// How many pages a statement looks at, planned as the backends have it planned.
fn pages(client: &mut Client, sql: &str, values: &str) -> i64 {
    let script = format!(
        "BEGIN;
         SET LOCAL plan_cache_mode = force_generic_plan;
         SET LOCAL enable_seqscan = off;
         SET LOCAL enable_bitmapscan = off;
         PREPARE it AS {sql};
         EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, COSTS OFF, TIMING OFF) EXECUTE it({values});
         DEALLOCATE it;
         ROLLBACK"
    );
    let plan = plan(client, &script);
    let of = |kind: &str| plan[kind].as_i64().expect("it tells pages");
    of("Shared Hit Blocks") + of("Shared Read Blocks")
}

/// The plan that a script explains.
pub(super) fn plan(client: &mut Client, script: &str) -> serde_json::Value {
    let rows = client.simple_query(script).expect("a plan");
    let lines = rows.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plans: serde_json::Value =
        serde_json::from_str(&lines.collect::<String>()).expect("a plan is JSON");
    plans[0]["Plan"].clone()
}

/// The pages of a claim of ten jobs of the queue `work`, from a place on in normal priority.
fn claim(client: &mut Client, sql: &str, floor: (i64, i64)) -> i64 {
    let values = format!(
        "'{{}}', '{{}}', '{{}}', 'n', 'work', 60000000, '{{0,1,2,3}}', '{{0,0,{},0}}', 10, '{{0,0,{},0}}', 'w', 1, '{{}}', '{{}}', 1000000, 1",
        floor.0, floor.1
    );
    pages(client, sql, &values)
}

/// Of queues with a limit and without.
fn claims() -> [&'static str; 2] {
    let simple = CompleteAndClaim::SIMPLE.expect("a simple statement");
    [CompleteAndClaim::STATEMENT.sql, simple.sql]
}

pub(super) fn fill(client: &mut Client, sql: &str) {
    client.batch_execute(sql).expect("it is filled");
}

const SOME_DUE: &str = "
    INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
    SELECT now() - interval '1 minute', 20, 2, 'n', 'work', 'due', '1' FROM generate_series(1, 30)";

#[test]
fn claims_stay_flat() {
    claims().into_iter().for_each(claim_stays_flat);
}

fn claim_stays_flat(sql: &str) {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    fill(&mut client, SOME_DUE);
    let base = claim(&mut client, sql, (0, 0));

    fill(
        &mut client,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() + interval '1 hour' + n * interval '1 ms', 20, n % 4, 'n', 'work', 'later', '1'
           FROM generate_series(1, 100000) AS n",
    );
    let future = claim(&mut client, sql, (0, 0));
    assert!(
        future <= base + SLACK,
        "{base} pages, {future} with 100 thousand for later"
    );

    fill(
        &mut client,
        "INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority,
                                          namespace, queue, name, payload)
         SELECT -n, 'completed', now(), now(), 1, 20, 2, 'n', 'work', 'done', '1'
           FROM generate_series(1, 1000000) AS n",
    );
    let archive = claim(&mut client, sql, (0, 0));
    assert!(
        archive <= base + SLACK,
        "{base} pages, {archive} with a million in the archive"
    );

    let count = pages(&mut client, CountJobs::STATEMENT.sql, "'n', 'work', 1000");
    assert!(count <= 6000, "{count} pages to count");
}

#[test]
fn claims_stay_flat_under_a_snapshot_that_is_held() {
    claims()
        .into_iter()
        .for_each(claim_stays_flat_under_a_snapshot_that_is_held);
}

fn claim_stays_flat_under_a_snapshot_that_is_held(sql: &str) {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    // It tells of space that is not free yet, and an update that looks for some reads these pages.
    fill(
        &mut client,
        "ALTER TABLE lockapi.job SET (autovacuum_enabled = off)",
    );
    fill(&mut client, SOME_DUE);
    let base = claim(&mut client, sql, (0, 0));
    let mut reader = Client::connect(&url, NoTls).expect("a connection");
    fill(
        &mut reader,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM lockapi.job",
    );
    fill(
        &mut client,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() - interval '1 hour' + n * interval '1 ms', 20, 2, 'n', 'work', 'gone', '1'
           FROM generate_series(1, 50000) AS n",
    );
    let last = client
        .query_one(
            "SELECT (extract(epoch FROM max(run_at)) * 1000000)::int8, max(id) FROM lockapi.job WHERE name = 'gone'",
            &[],
        )
        .expect("the last one");
    fill(&mut client, "DELETE FROM lockapi.job WHERE name = 'gone'");
    let without = claim(&mut client, sql, (0, 0));
    assert!(
        without > base + 10 * SLACK,
        "{without} pages: the snapshot keeps nothing"
    );
    let with = claim(&mut client, sql, (last.get(0), last.get(1)));
    assert!(
        with <= base + SLACK,
        "{base} pages, {with} from the last place on"
    );
    drop(reader);
}

#[test]
fn claims_of_jobs_that_expire_update_the_row_in_place() {
    claims()
        .into_iter()
        .for_each(claims_of_expiring_jobs_update_in_place);
}

fn claims_of_expiring_jobs_update_in_place(sql: &str) {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    fill(
        &mut client,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, expires_at)
         SELECT now(), 20, 2, 'n', 'work', 'due', '1', now() + n * interval '1 hour' FROM generate_series(1, 10) AS n",
    );
    let script = format!(
        "BEGIN;
         PREPARE it AS {sql};
         EXECUTE it('{{}}', '{{}}', '{{}}', 'n', 'work', 60000000, '{{2}}', '{{0}}', 10, '{{0}}', 'w', 1, '{{}}', '{{}}', 1000, 1);
         DEALLOCATE it"
    );
    fill(&mut client, &script);
    let updates = client.query_one(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'lockapi.job'::regclass",
        &[],
    );
    let updates = updates.expect("the server counts");
    let of: (i64, i64) = (updates.get(0), updates.get(1));
    assert_eq!(of, (10, 10), "updates, and those in place");
}

/// How many pages the running jobs take.
fn running(client: &mut Client, queue: &str) -> i64 {
    pages(
        client,
        ListRunning::STATEMENT.sql,
        &format!("'n', {queue}, 1000"),
    )
}

#[test]
fn running_jobs_of_many_queues_are_found_at_the_front_of_each() {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    fill(
        &mut client,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, lease_until)
         SELECT now() - interval '1 hour' + n * interval '1 ms', 20, n % 4, 'n', 'q' || n / 4 % 50, 'due', '1',
                CASE WHEN n < 200 OR n / 4 % 50 = 7 AND n < 40000 THEN now() + interval '1 hour' END
           FROM generate_series(0, 99999) AS n",
    );
    let found = "SELECT count(*) FROM lockapi.running_jobs('n', NULL, 1000)";
    let found: i64 = client.query_one(found, &[]).expect("a count").get(0);
    // One of each priority of 49 queues, and of one queue all that are in the first 1000 of each.
    assert_eq!(found, 49 * 4 + 800);
    // All of one queue, and the first 50 of each priority of the others: a page holds a job of each.
    let (all, one) = (running(&mut client, "NULL"), running(&mut client, "'q7'"));
    assert!(
        all <= one + 50 * 4 * (50 + 10),
        "{all} pages, {one} of one queue"
    );
}

/// The pages of a list of 20 jobs of the queue `work`, from these times of each priority on.
fn jobs(client: &mut Client, state: &str, places: &str) -> i64 {
    let values = format!(
        "'n', 'work', '{state}', '', '{{0,1,2,3}}', '{places}', '{{0,0,0,0}}', 9223372036854775807, 50, 20, '', '', 0, 9223372036854775"
    );
    pages(client, ListJobs::STATEMENT.sql, &values)
}

#[test]
fn pages_of_jobs_read_what_they_examine() {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let start = "{0,0,0,0}";
    let states = ["", "ready", "running", "delayed", "failed", "completed"];
    let base = states.map(|state| jobs(&mut client, state, start));
    fill(
        &mut client,
        "INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload)
         SELECT now() + (n - 40000) * interval '1 s', 20, 2, 'n', 'work', 'job', '1'
           FROM generate_series(1, 50000) AS n;
         INSERT INTO lockapi.job_archive (id, status, run_at, created_at, attempt, max_attempts, priority,
                                          namespace, queue, name, payload)
         SELECT -n, CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'completed' END, now(), now(), 1, 20, 2, 'n', 'work', 'done', '1'
           FROM generate_series(1, 50000) AS n",
    );
    for (state, base) in states.into_iter().zip(base) {
        let read = jobs(&mut client, state, start);
        assert!(
            read <= base + SLACK,
            "{state:?}: {base} pages, {read} of many"
        );
        // From a place that has passed meanwhile.
        let read = jobs(&mut client, state, "{1,1,1,1}");
        assert!(
            read <= base + SLACK,
            "{state:?}: {base} pages, {read} from a place"
        );
    }
}

#[test]
fn sweeps_read_no_more_than_their_part() {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let sweeps = [
        (lease::Sweep::STATEMENT.sql, "'n', 'key 5', 0, 100"),
        (SweepMarks::STATEMENT.sql, "'n', 'key 5', 100"),
        (limit::Sweep::STATEMENT.sql, "'n', 'key 5', 100"),
        (SweepAnswers::STATEMENT.sql, "'n', 'key 5', 100"),
        (SweepNotes::STATEMENT.sql, "5, 100"),
        (
            ExpireJobs::STATEMENT.sql,
            "'n', 0, 0, 100, 8388608, '{}', '{}', 1000000",
        ),
    ];
    let fills = [
        "SELECT",
        "ANALYZE",
        // More than the statistics know, and nothing of it old.
        "INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at, renewed_at,
                                    expires_at)
         SELECT 'n', 'key ' || n, 0, n, n, '', '', now(), now(), now() FROM generate_series(1, 50000) AS n;
         INSERT INTO lockapi.fence_mark (namespace, key, fence)
         SELECT 'n', 'key ' || n, n FROM generate_series(1, 50000) AS n;
         INSERT INTO lockapi.rate_limit (namespace, key, at, tat)
         SELECT 'n', 'key ' || n, lockapi.clock(), lockapi.clock() FROM generate_series(1, 50000) AS n;
         INSERT INTO lockapi.answer
         SELECT 'n', 'key ' || n, n, '', '', now(), now() + interval '1 hour' FROM generate_series(1, 50000) AS n;
         INSERT INTO lockapi.lock_name (lock_key, namespace, name)
         SELECT n, 'n', 'name ' || n FROM generate_series(1, 50000) AS n;
         -- Jobs that were begun in time and came back, and jobs that have time.
         INSERT INTO lockapi.job (run_at, max_attempts, priority, namespace, queue, name, payload, attempt, expires_at)
         SELECT now(), 20, 2, 'n', 'q' || n % 7, 'job', '1', n % 2,
                now() + (n % 2 * -2 + 1) * n * interval '1 minute'
           FROM generate_series(1, 50000) AS n",
        "ANALYZE",
        "UPDATE pg_class SET reltuples = 0
          WHERE relname IN ('lease', 'fence_mark', 'rate_limit', 'answer', 'lock_name', 'job')",
        "UPDATE pg_class SET reltuples = 10000000, relpages = 1000000
          WHERE relname IN ('lease', 'fence_mark', 'rate_limit', 'answer', 'lock_name', 'job')",
    ];
    for change in fills {
        fill(&mut client, change);
        for (sql, values) in sweeps {
            // A row is looked at twice at most, and its page may hold no other.
            let pages = pages(&mut client, sql, values);
            assert!(pages < 800, "{pages} pages after {change}: {sql}");
        }
    }
}

/// How many rows a sweep deletes, and how many it looks at.
fn sweep(client: &mut Client, sql: &str, values: &str) -> (i64, i64) {
    let sql = format!("PREPARE it AS {sql}; EXECUTE it({values}); DEALLOCATE it");
    let rows = client.simple_query(&sql).expect("swept");
    let number = |row: &SimpleQueryRow, at| row.get(at).expect("a number").parse().expect("one");
    let row = rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((number(row, 0), number(row, 1))),
        _ => None,
    });
    row.expect("a row")
}

#[test]
fn sweeps_delete_what_is_old_and_nothing_else() {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let role = format!("plans_{:016x}", fastrand::u64(..));
    fill(
        &mut client,
        &format!(
            "INSERT INTO lockapi.lease (namespace, key, slot, fence, acquisition, owner, data, acquired_at,
                                        renewed_at, expires_at)
             SELECT 'n', 'key ' || n, n, n, n, '', '', now(), now(), now() - n * interval '13 hours'
               FROM generate_series(-3, 3) AS n;
             INSERT INTO lockapi.fence_mark (namespace, key, fence, checked_at)
             SELECT 'n', 'key ' || n, n, now() - n * interval '13 hours' FROM generate_series(0, 3) AS n;
             INSERT INTO lockapi.answer
             SELECT 'n', 'key ' || n, n, '', '', now(), now() - n * interval '13 hours' FROM generate_series(-3, 3) AS n;
             CREATE ROLE {role};
             GRANT USAGE ON SCHEMA lockapi TO {role};
             GRANT SELECT, UPDATE, DELETE ON lockapi.fence_mark TO {role}"
        ),
    );
    let leases = lease::Sweep::STATEMENT.sql;
    let part = sweep(&mut client, leases, "'', '', 0, 4");
    assert_eq!(part, (0, 4), "the first four");
    assert_eq!(sweep(&mut client, leases, "'', '', 0, 9"), (2, 7));
    assert_eq!(sweep(&mut client, leases, "'', '', 0, 9"), (0, 5));
    let answers = SweepAnswers::STATEMENT.sql;
    assert_eq!(sweep(&mut client, answers, "'', '', 4"), (1, 4));
    assert_eq!(sweep(&mut client, answers, "'', '', 9"), (3, 6));
    assert_eq!(sweep(&mut client, answers, "'', '', 9"), (0, 3));
    let marks = SweepMarks::STATEMENT.sql;
    let mut holder = Client::connect(&url, NoTls).expect("a connection");
    fill(&mut holder, "SELECT pg_advisory_lock(8)");
    fill(&mut client, &format!("SET ROLE {role}"));
    let unseen = sweep(&mut client, marks, "'', '', 9");
    assert_eq!(unseen, (0, 4), "how old the session is cannot be seen");
    fill(&mut client, "RESET ROLE");
    let younger = sweep(&mut client, marks, "'', '', 9");
    assert_eq!(younger, (2, 4), "the session is younger");
    assert_eq!(sweep(&mut client, marks, "'', '', 9"), (0, 2));
    fill(
        &mut client,
        &format!("DROP OWNED BY {role}; DROP ROLE {role}"),
    );
}

/// The inner sides of the nested loops of a plan, each by the tables in it.
fn inner_sides(plan: &serde_json::Value, found: &mut Vec<Vec<String>>) {
    let inputs = plan["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    if plan["Node Type"] == "Nested Loop" {
        let inner = inputs
            .iter()
            .filter(|one| one["Parent Relationship"] == "Inner");
        let mut tables = Vec::new();
        for one in inner {
            sources(one, &mut tables);
        }
        found.push(tables);
    }
    for one in inputs {
        inner_sides(one, found);
    }
}

/// The tables and subqueries that a part of a plan reads.
fn sources(plan: &serde_json::Value, found: &mut Vec<String>) {
    for kind in ["Relation Name", "CTE Name", "Function Name"] {
        found.extend(plan[kind].as_str().map(str::to_owned));
    }
    let inputs = plan["Plans"].as_array().into_iter().flatten();
    for one in inputs {
        sources(one, found);
    }
}

#[test]
fn views_of_locks_pair_nothing_one_by_one() {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let fills = [
        "SELECT",
        "ANALYZE",
        // More than the statistics know.
        "INSERT INTO lockapi.lock_note (backend, lock_key, pair, waits, fence, since)
         SELECT n % 3, n, false, n % 2 = 0, n, now() FROM generate_series(1, 20000) AS n",
        "INSERT INTO lockapi.lock_session (mark, backend, namespace, owner)
         SELECT n, n % 3, 'n', 'pid' FROM generate_series(1, 20000) AS n",
        "INSERT INTO lockapi.lock_name (lock_key, namespace, name)
         SELECT n, 'n', 'name ' || n FROM generate_series(1, 20000) AS n",
        "ANALYZE",
    ];
    for change in fills {
        fill(&mut client, change);
        for function in ["held_locks", "waits"] {
            let body = "SELECT prosrc, proconfig FROM pg_proc
                         WHERE proname = $1 AND pronamespace = 'lockapi'::regnamespace";
            let body = client.query_one(body, &[&function]).expect("a function");
            let settings: Vec<String> = body.get(1);
            let settings: String = settings.iter().fold(String::new(), |all, one| {
                let (name, value) = one.split_once('=').expect("a setting");
                all + &format!("SET LOCAL {name} = {value};")
            });
            let source: &str = body.get(0);
            let script = format!("BEGIN; {settings} EXPLAIN (FORMAT JSON) {source}; ROLLBACK");
            let plan = plan(&mut client, &script);
            let mut inner = Vec::new();
            inner_sides(&plan, &mut inner);
            assert_eq!(
                inner,
                [["lock_name"]],
                "{function} after {change}: {plan:#}"
            );
        }
    }
}
