//! What every statement reads, whatever the statistics of the tables say.

mod scenarios;

use lockapi::suite::driver::Operation;
use lockapi::suite::engine::SessionSettings;
use postgres::{Client, NoTls};
use scenarios::{OTHERS, OURS, scenarios};

use crate::plans::{database, fill, plan};

/// What a statement may read in one step of its plan: the way through an index to each of a handful of rows.
const MOST: i64 = 150;

/// Statements that read a table from one end to the other.
const SCANS: &[(&str, &str)] = &[
    ("admin.sweep", "runs seldom"),
    ("admin.audit", "a person reads it"),
    (
        "examine.work",
        "a person has the database examined; it looks at a part of each queue",
    ),
    (
        "examine.limits",
        "a person has the database examined; it looks at the first keys",
    ),
    (
        "examine.acquired",
        "a person has leases watched; it looks at the first ones",
    ),
];

/// Statements that call a function which has plans of its own: it makes them again when the server is made to believe
/// something else, and reads what catalogs say.
const PLANS_AGAIN: &[&str] = &["queue.admit"];

/// Statements that compare all with all, in a batch that is small.
const SMALL: &[(&str, &str)] = &[
    ("id.claim", "a program has few generators"),
    ("id.renew", "a program has few generators"),
    ("id.release", "a program has few generators"),
    ("lease.check", "the slots of one lease"),
    ("mutex.sweep_marks", "one bound for all rows"),
    (
        "queue.complete_and_claim",
        "completions, with what one claim looks at",
    ),
    (
        "queue.complete_and_claim_unlimited",
        "completions, with what one claim looks at",
    ),
    (
        "queue.search_below_floors",
        "the names that a worker has handlers for",
    ),
    ("queue.redrive", "jobs that a person named"),
    ("queue.discard", "jobs that a person named"),
    ("schedule.fire", "tasks of one scheduler"),
    ("schedule.release", "tasks of one scheduler"),
    ("schedule.run_now", "one task"),
];

/// What the server believes of the size of tables: so many rows, or nothing yet.
const SIZES: [i64; 4] = [0, -1, 1, 10_000_000];

fn believe(client: &mut Client, rows: i64) {
    let pages = "pg_relation_size(oid) / current_setting('block_size')::int";
    let pages = if rows < 0 { "0" } else { pages };
    fill(
        client,
        &format!(
            "UPDATE pg_class SET reltuples = {rows}, relpages = {pages}
              WHERE relnamespace = 'lockapi'::regnamespace AND relkind IN ('r', 'i')"
        ),
    );
}

/// The most pages that one step of the plan reads, with what is below it.
fn most(plan: &serde_json::Value) -> i64 {
    let of = |kind: &str| plan[kind].as_i64().expect("it tells pages");
    let here = of("Shared Hit Blocks") + of("Shared Read Blocks");
    let below = plan["Plans"].as_array().into_iter().flatten();
    below.map(most).fold(here, i64::max)
}

/// A step that compares each row with each element of a batch, which has up to 2048: the planner takes
/// every array for ten elements.
fn product(plan: &serde_json::Value) -> Option<String> {
    let of = |kind: &str| plan[kind].as_str().unwrap_or_default();
    let filters = [of("Filter"), of("Join Filter")];
    let each = filters.iter().find(|filter| {
        let mut parts = filter.split(" = ANY (").skip(1);
        // The array is a parameter, or what a part of the statement answered.
        parts.any(|array| array.starts_with('$'))
    });
    let loops = of("Node Type") == "Nested Loop" && !of("Join Filter").is_empty();
    let here = each.map(|filter| (*filter).to_owned());
    let here = here.or_else(|| loops.then(|| of("Join Filter").to_owned()));
    let mut below = plan["Plans"].as_array().into_iter().flatten();
    here.or_else(|| below.find_map(product))
}

/// A scenario with what the rows of a namespace have for its values.
fn values(client: &mut Client, namespace: &str, values: &str) -> String {
    let mut one = |sql: &str| -> String {
        let row = client.query_one(sql, &[&namespace]);
        row.expect("our rows").get(0)
    };
    let running = "FROM lockapi.job WHERE namespace = $1 AND queue = 'work' AND token IS NOT NULL";
    let found = [
        (
            "{ids}",
            one(&format!("SELECT array_agg(id ORDER BY id)::text {running}")),
        ),
        (
            "{tokens}",
            one(&format!(
                "SELECT array_agg(token ORDER BY id)::text {running}"
            )),
        ),
        ("{id}", one(&format!("SELECT min(id)::text {running}"))),
        (
            "{dead}",
            one("SELECT array_agg(id)::text FROM lockapi.job_archive
                  WHERE namespace = $1 AND queue = 'work' AND status = 'failed'"),
        ),
        (
            "{due}",
            one(
                "SELECT (extract(epoch FROM min(next_at)) * 1000000)::int8::text FROM lockapi.task
                  WHERE namespace = $1 AND scheduler = 'work'",
            ),
        ),
        (
            "{reserved}",
            one(
                "SELECT array_agg(id ORDER BY key)::text FROM lockapi.rate_reservation
                  WHERE namespace = $1 AND key IN ('k1', 'k2') AND id % 100000 <= 2",
            ),
        ),
        ("{ns}", namespace.to_owned()),
    ];
    found.iter().fold(values.to_owned(), |text, (name, value)| {
        text.replace(name, value)
    })
}

#[test]
fn every_statement_that_names_a_table_is_looked_at() {
    let looked_at: Vec<_> = scenarios().iter().map(|one| one.statement.name).collect();
    let unseen: Vec<_> = crate::statements::statements()
        .iter()
        .filter(|one| {
            ["FROM", "JOIN", "INTO", "UPDATE"]
                .iter()
                .any(|word| one.sql.contains(&format!("{word} lockapi.")))
        })
        .map(|one| one.name)
        .filter(|name| !looked_at.contains(name))
        .filter(|name| SCANS.iter().all(|(scan, _)| scan != name))
        // Functions, which plan for themselves and have a test of their own, and what only adds a row.
        .filter(|name| !["admin.locks", "admin.waits"].contains(name))
        .filter(|name| !["admin.terminate", "admin.unblock", "admin.record"].contains(name))
        .collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}

#[test]
fn no_statistics_lead_a_statement_through_a_table() {
    let (url, _runtime) = database();
    let mut client = Client::connect(&url, NoTls).expect("a connection");
    let ours = |namespace: &str| OURS.replace("{ns}", namespace);
    // The numbers of our jobs are the first in one namespace and the last in the other.
    let script = format!("{} {OTHERS} ANALYZE; {}", ours("a"), ours("z"));
    fill(&mut client, &script);
    let open = |url: &str, settled: bool| {
        let mut session = Client::connect(url, NoTls).expect("a connection");
        if settled {
            let settle = SessionSettings::STATEMENT.sql;
            let settled = session.query(
                settle,
                &[&false, &"0", &"0", &"plans", &" lockapi", &55_i64],
            );
            settled.expect("settled");
        }
        session
    };
    let mut sessions = [
        (
            "of the engine",
            open(&url, true),
            "force_generic_plan",
            false,
        ),
        ("of the user", open(&url, false), "force_custom_plan", true),
        ("of the user", open(&url, false), "force_generic_plan", true),
    ];
    let mut walks = Vec::new();
    for columns in ["of others", "none"] {
        if columns == "none" {
            fill(
                &mut client,
                "DELETE FROM pg_statistic WHERE starelid IN
                     (SELECT oid FROM pg_class WHERE relnamespace = 'lockapi'::regnamespace)",
            );
        }
        for rows in SIZES {
            for one in scenarios() {
                for namespace in ["a", "z"] {
                    // A vacuum of the server's own may have corrected it.
                    believe(&mut client, rows);
                    let values = values(&mut client, namespace, one.values);
                    for (whose, session, mode, pooled) in &mut sessions {
                        if *pooled && !one.pooled {
                            continue;
                        }
                        let script = format!(
                            "BEGIN;
                             SET LOCAL plan_cache_mode = {mode};
                             PREPARE it AS {};
                             EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON, TIMING OFF) EXECUTE it({values});
                             DEALLOCATE it;
                             ROLLBACK",
                            one.statement.sql
                        );
                        let explained = plan(session, &script);
                        let small = SMALL.iter().any(|(name, _)| *name == one.statement.name);
                        if !*pooled
                            && !small
                            && let Some(step) = product(&explained)
                        {
                            walks.push(format!(
                                "{} compares all with all: {step}, reltuples {rows}, column statistics {columns}",
                                one.statement.name
                            ));
                        }
                        let mut pages = most(&explained);
                        // The first time it may have read what catalogs say of tables and functions, too, or what
                        // was rolled back while the server's own ANALYZE held a snapshot, and what that had just
                        // corrected. On a busy machine that lasts. A plan that walks does so each time.
                        for _ in 0..5 {
                            if pages <= MOST {
                                break;
                            }
                            fill(&mut client, "VACUUM");
                            believe(&mut client, rows);
                            pages = most(&plan(session, &script));
                            if PLANS_AGAIN.contains(&one.statement.name) {
                                pages = most(&plan(session, &script));
                            }
                        }
                        if pages > MOST {
                            walks.push(format!(
                                "{} reads {pages} pages on a connection {whose} with {mode}, reltuples {rows}, \
                                 column statistics {columns}, namespace {namespace}",
                                one.statement.name
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(walks.is_empty(), "{}", walks.join("\n"));
}
