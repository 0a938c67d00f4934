//! The cases, a module for each subject matter, and the roles that other processes play.

use std::future::Future;
use std::pin::Pin;

use crate::child::Parent;
use crate::context::Context;
use crate::harness::Case;

mod admin;
mod before_push;
mod cancel;
mod clocks;
mod closing;
mod deadlocks;
mod deliveries;
mod election;
mod failover;
mod fences;
mod group_rates;
mod groups;
mod guards;
mod history;
mod holding;
mod idempotency;
mod ids;
mod ids_limits;
mod ids_processes;
mod interop;
mod job_edits;
mod job_matches;
mod keys;
mod lease;
mod lease_answers;
mod leased_mutex;
mod limit_keys;
mod limited_queue_bounds;
mod limited_queues;
mod limiter;
mod limiter_changes;
mod limiter_load;
mod limiter_outage;
mod limiter_permits;
mod limiter_reservations;
mod limiter_waits;
mod limiter_windows;
mod lookups;
mod mutex;
mod names;
mod open_transactions;
mod operator;
mod outage;
mod places;
mod processes;
mod queue;
mod queue_drains;
mod queue_expiry;
mod queue_headers;
mod queue_keys;
mod queue_limits;
mod queue_locked;
mod queue_names;
mod queue_outage;
mod queue_progress;
mod queue_rates;
mod queue_results;
mod queue_spy;
mod queue_sql;
mod rights;
mod rw_lock;
mod schedule;
mod schedule_rules;
mod schedule_runs;
mod schedule_times;
mod schema;
mod semaphore;
mod sets;
mod tables;
mod transactions;
mod turns;
mod unanswered;
mod unknown;
mod versioned;
mod views;
mod waits;
mod worker;
mod worker_batches;
mod worker_endings;
mod worker_fleet;
mod worker_layers;
mod worker_outage;
mod worker_shared;
mod worker_threads;
mod worker_transactions;

/// What another process does.
pub(crate) type Role = fn(Context, Vec<String>, Parent) -> Pin<Box<dyn Future<Output = ()>>>;

/// The roles by their names.
pub(crate) fn roles() -> impl Iterator<Item = &'static (&'static str, Role)> {
    [
        processes::ROLES,
        queue_outage::ROLES,
        ids_processes::ROLES,
        worker_outage::ROLES,
        schedule::ROLES,
        schema::ROLES,
        history::ROLES,
    ]
    .into_iter()
    .flatten()
}

const MODULES: &[&[Case]] = &[
    keys::CASES,
    schema::CASES,
    places::CASES,
    cancel::CASES,
    guards::CASES,
    outage::CASES,
    unanswered::CASES,
    unknown::CASES,
    mutex::CASES,
    names::CASES,
    rights::CASES,
    rw_lock::CASES,
    sets::CASES,
    deadlocks::CASES,
    fences::CASES,
    transactions::CASES,
    open_transactions::CASES,
    processes::CASES,
    lease::CASES,
    lease_answers::CASES,
    clocks::CASES,
    failover::CASES,
    closing::CASES,
    group_rates::CASES,
    groups::CASES,
    idempotency::CASES,
    limiter::CASES,
    limiter_changes::CASES,
    limiter_load::CASES,
    limiter_permits::CASES,
    limiter_reservations::CASES,
    limiter_waits::CASES,
    limiter_windows::CASES,
    limiter_outage::CASES,
    holding::CASES,
    semaphore::CASES,
    election::CASES,
    leased_mutex::CASES,
    queue::CASES,
    queue_sql::CASES,
    queue_drains::CASES,
    queue_expiry::CASES,
    queue_headers::CASES,
    deliveries::CASES,
    queue_keys::CASES,
    queue_limits::CASES,
    limited_queues::CASES,
    limit_keys::CASES,
    limited_queue_bounds::CASES,
    queue_rates::CASES,
    queue_locked::CASES,
    queue_names::CASES,
    queue_outage::CASES,
    queue_progress::CASES,
    queue_results::CASES,
    history::CASES,
    ids::CASES,
    ids_limits::CASES,
    ids_processes::CASES,
    versioned::CASES,
    worker::CASES,
    worker_endings::CASES,
    worker_fleet::CASES,
    worker_transactions::CASES,
    worker_threads::CASES,
    worker_batches::CASES,
    worker_layers::CASES,
    worker_shared::CASES,
    before_push::CASES,
    worker_outage::CASES,
    schedule::CASES,
    schedule_times::CASES,
    schedule_rules::CASES,
    schedule_runs::CASES,
    admin::CASES,
    lookups::CASES,
    waits::CASES,
    operator::CASES,
    job_edits::CASES,
    job_matches::CASES,
    views::CASES,
    tables::CASES,
    turns::CASES,
];

pub(crate) use interop::cases as interop;

/// All cases.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    MODULES.iter().copied().flatten()
}
