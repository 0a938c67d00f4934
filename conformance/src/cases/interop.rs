//! The cases in which two backends meet, for pairs of different ones.

use crate::harness::Case;

/// What one holds the other sees, waits for, takes over and cannot release; tokens have one order.
const MEETINGS: &[(&str, &str)] = &[
    ("X01", "second_holder_waits"),
    ("X01", "try_lock_on_a_held_key_is_none_at_once"),
    ("X01", "unprotected_counter_is_exact"),
    ("X01", "hand_over_lets_another_process_in"),
    ("X01", "killed_holder_is_replaced"),
    ("X01", "killed_waiter_does_not_keep_its_place"),
    ("X01", "stale_unlock_does_not_free_the_successor"),
    ("X01", "transaction_and_guard_exclude_each_other"),
    ("X01", "old_fence_is_rejected_by_check_in"),
    ("X01", "check_in_of_a_later_holder_waits_for_an_earlier_one"),
    ("X01", "live_one_is_not_given_away_and_an_expired_one_is"),
    ("X01", "renewal_after_takeover_is_lost"),
    (
        "X01",
        "release_by_the_old_holder_does_not_touch_the_new_one",
    ),
    ("X01", "owner_and_data_are_readable"),
    ("X01", "waiter_is_granted_after_release"),
    ("X01", "killed_holder_is_replaced_after_its_ttl"),
    ("X01", "stopped_holder_cannot_write"),
    ("X01", "check_in_keeps_the_lease_until_the_transaction_ends"),
    ("X01", "namespaces_never_meet"),
    ("X03", "jobs_pushed_here_are_claimed_there"),
    ("X03", "claim_waits_for_a_push_of_another_process"),
    ("X03", "many_workers_lose_and_invent_nothing"),
    ("X03", "job_is_delivered_again_when_its_lease_has_ended"),
    ("X03", "unique_key_keeps_one_job_of_many_pushes"),
    ("X03", "killed_workers_lose_no_job"),
    ("X01", "unique_over_generators_and_backends"),
    ("X01", "ids_of_processes_are_unique"),
    ("X01", "stopped_owner_makes_no_id_of_its_successor"),
    ("X01", "blocks_are_dense_and_unique"),
    ("X01", "twelve_writers_take_no_more_than_the_burst"),
    ("X01", "no_window_holds_more_than_burst_and_rate"),
    ("X01", "blocks_never_admit_more"),
    ("X02", "increase_over_holders_and_backends"),
    ("X02", "increase_over_hand_overs"),
    ("X02", "fences_increase_over_processes"),
];

/// The cases, each with the promise that it shows for a pair.
///
/// # Panics
/// When a case that is named here is not there.
pub(crate) fn cases() -> impl Iterator<Item = (&'static str, &'static Case)> {
    MEETINGS.iter().flat_map(|(id, name)| {
        let mut found = super::all()
            .filter(move |case| case.name == *name)
            .peekable();
        assert!(found.peek().is_some(), "there is no case {name}");
        found.map(move |case| (*id, case))
    })
}
