//! What is done to a queue on both sides.

use proptest::prelude::*;

/// Which jobs are changed.
#[derive(Clone, Copy, Debug)]
pub enum EditIf {
    /// Those that wait.
    Waits,
    /// Those that have not all that already.
    Differs,
    /// One that is as it was read, with its payload or without.
    IsAsSeen(bool),
    /// One that is not as it was read: its time, priority, maximum, attempts, or payload.
    IsOther(u8),
}

/// One statement; jobs, deliveries and keys are small numbers, the latest first.
#[derive(Clone, Debug)]
pub enum Action {
    /// Pushes jobs: priority, delay and attempts.
    Push(Vec<(u8, u8, u8)>),
    /// Pushes a job with a key: which one, whether it is unique and how, priority and delay.
    Keyed(Vec<(u8, Option<u8>, u8, u8)>),
    /// Something with groups.
    OfGroups(GroupAction),
    /// Completes deliveries and claims so many jobs, the low priorities first or last, of some names,
    /// and with few bytes.
    CompleteAndClaim(Vec<u8>, (u8, u8, bool, bool, bool)),
    /// Looks for jobs that can be claimed.
    SearchBelowFloors(bool),
    /// Settles deliveries: which, how, and for how long.
    Settle(Vec<(u8, u8, u8)>),
    /// Completes deliveries, into the archive or not.
    Acks(Vec<(u8, bool)>),
    /// Asks where deliveries stand.
    Stand(Vec<u8>),
    /// Takes so many jobs.
    Take(u8),
    /// Cancels jobs.
    Cancel(Vec<u8>),
    /// Deletes so many that wait.
    Purge(u8),
    /// Puts so many dead letters back.
    Redrive(u8),
    /// Deletes so many dead letters.
    Discard(u8),
    /// Puts jobs back if they are dead letters, or deletes them.
    DeadLetters(Vec<u8>, bool),
    /// Pauses for so many units, or with 0 until it is resumed; or resumes.
    Pause(Option<u8>),
    /// Pauses jobs of a name as well: which, and as for a queue.
    PauseName(bool, Option<u8>),
    /// Limits how many run, and gives so many permits, one in a unit; or takes the limit away.
    Limit(Option<u8>, Option<u8>),
    /// Counts at most so many.
    Count(u8),
    /// Lists which jobs run, of the queue or of the namespace.
    Running(bool),
    /// Cancels a job as an operator: which, and whether also if it runs.
    CancelOne(u8, bool),
    /// Changes a job: which, when it is due (0 for now), its priority, its attempts, and its payload.
    Edit(u8, (Option<u8>, Option<u8>, Option<u8>, bool), EditIf),
    /// Lists jobs in a state, with a label or with any: how many are examined for a page, and how many are on it.
    List(u8, Label, u8, u8),
    /// Reads a job, with its payload or without.
    Read(u8, bool),
    /// Lists the queues.
    Queues,
    /// Reports the progress of deliveries: which, and how much is done.
    Report(Vec<(u8, u8)>),
    /// Completes deliveries with a result: which, into the archive or not, and for how many units the result is kept.
    Results(Vec<(u8, bool, u8)>),
    /// Looks up the results of jobs, in their queue or in another.
    ReadResults(Vec<u8>, bool),
    /// Deletes what has been kept for long enough.
    Sweep,
    /// Moves expired jobs to the dead letters, so many in a statement, of few bytes or of many, and keeps those
    /// of the queue for a time of their own or not.
    Expire(u8, bool, bool),
    /// Lets time go by.
    Elapse(u8),
    /// What follows is done to this queue.
    Turn(u8),
}

/// What the jobs of a list have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// Nothing.
    Any,
    /// Their name.
    Name,
    /// Their group.
    Group,
    /// One of their tags.
    Tag,
}

/// What is done with groups.
#[derive(Clone, Debug)]
pub enum GroupAction {
    /// Pushes jobs: the group and the key they are limited by besides, priority, delay and attempts.
    Push(Vec<((u8, u8), u8, u8, u8)>),
    /// Admits jobs of so many groups.
    Admit(u8),
    /// Sets the limit of all groups, whether they are ordered, and how many jobs each has at once of a slow rate.
    Set(u8, bool, Option<u8>),
    /// Sets the limit and the rate of a group, or takes them away.
    Limit(u8, Option<(Option<u8>, Option<u8>)>),
}

/// A burst of a rate so slow that no permit comes back while it is compared.
fn rate() -> impl Strategy<Value = Option<u8>> {
    prop::option::weighted(0.3, 1..4u8)
}

/// The group whose name is the key of a job; the first is none.
pub(super) fn key() -> impl Strategy<Value = u8> {
    prop_oneof![2 => Just(0), 1 => 1..4u8]
}

fn of_groups() -> impl Strategy<Value = GroupAction> {
    let jobs = prop::collection::vec(((0..4u8, key()), 0..4u8, 0..3u8, 1..3u8), 1..5usize);
    prop_oneof![
        3 => jobs.prop_map(GroupAction::Push),
        4 => (1..5u8).prop_map(GroupAction::Admit),
        1 => (1..4u8, any::<bool>(), rate()).prop_map(|(most, ordered, rate)| GroupAction::Set(most, ordered, rate)),
        1 => (0..4u8, prop::option::of((prop::option::of(0..3u8), rate())))
            .prop_map(|(group, limit)| GroupAction::Limit(group, limit)),
    ]
}

fn edit() -> impl Strategy<Value = (Option<u8>, Option<u8>, Option<u8>, bool)> {
    (
        prop::option::weighted(0.6, 0..3u8),
        prop::option::weighted(0.4, 0..4u8),
        prop::option::weighted(0.3, 1..4u8),
        prop::bool::weighted(0.3),
    )
}

fn edit_if() -> impl Strategy<Value = EditIf> {
    prop_oneof![
        3 => Just(EditIf::Waits),
        1 => Just(EditIf::Differs),
        1 => any::<bool>().prop_map(EditIf::IsAsSeen),
        1 => (0..5u8).prop_map(EditIf::IsOther),
    ]
}

fn label() -> impl Strategy<Value = Label> {
    prop_oneof![
        4 => Just(Label::Any),
        2 => Just(Label::Name),
        1 => Just(Label::Group),
        1 => Just(Label::Tag),
    ]
}

/// Random actions.
pub fn actions() -> impl Strategy<Value = Vec<Action>> {
    let few = 1..5usize;
    let action = prop_oneof![
        4 => prop::collection::vec((0..4u8, 0..3u8, 1..3u8), few.clone()).prop_map(Action::Push),
        3 => prop::collection::vec(
            (0..3u8, prop::option::of(0..3u8), 0..4u8, 0..3u8),
            few.clone()
        )
        .prop_map(Action::Keyed),
        9 => of_groups().prop_map(Action::OfGroups),
        6 => (
            prop::collection::vec(0..6u8, 0..4),
            (1..5u8, 1..4u8, any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2))
        )
            .prop_map(|(acks, claim)| Action::CompleteAndClaim(acks, claim)),
        1 => any::<bool>().prop_map(Action::SearchBelowFloors),
        4 => prop::collection::vec((0..6u8, 0..8u8, 1..4u8), few.clone()).prop_map(Action::Settle),
        2 => prop::collection::vec((0..6u8, any::<bool>()), few.clone()).prop_map(Action::Acks),
        1 => prop::collection::vec(0..8u8, few.clone()).prop_map(Action::Stand),
        1 => (1..4u8).prop_map(Action::Take),
        1 => prop::collection::vec(0..8u8, few).prop_map(Action::Cancel),
        1 => (1..4u8).prop_map(Action::Purge),
        1 => (1..4u8).prop_map(Action::Redrive),
        1 => (1..4u8).prop_map(Action::Discard),
        1 => (prop::collection::vec(0..8u8, 1..5usize), any::<bool>())
            .prop_map(|(backs, again)| Action::DeadLetters(backs, again)),
        1 => prop::option::weighted(0.4, 0..3u8).prop_map(Action::Pause),
        1 => (any::<bool>(), prop::option::weighted(0.5, 0..3u8))
            .prop_map(|(odd, units)| Action::PauseName(odd, units)),
        2 => (prop::option::weighted(0.6, 1..4u8), prop::option::weighted(0.4, 1..4u8))
            .prop_map(|(running, burst)| Action::Limit(running, burst)),
        2 => (1..6u8).prop_map(Action::Count),
        2 => any::<bool>().prop_map(Action::Running),
        1 => (0..8u8, any::<bool>()).prop_map(|(back, running)| Action::CancelOne(back, running)),
        4 => (0..8u8, edit(), edit_if()).prop_map(|(back, edit, when)| Action::Edit(back, edit, when)),
        4 => (0..7u8, label(), 1..6u8, 1..4u8)
            .prop_map(|(state, label, examined, most)| Action::List(state, label, examined, most)),
        2 => (0..8u8, any::<bool>()).prop_map(|(back, payload)| Action::Read(back, payload)),
        1 => Just(Action::Queues),
        4 => prop::collection::vec((0..6u8, any::<u8>()), 1..5usize).prop_map(Action::Report),
        3 => prop::collection::vec((0..6u8, any::<bool>(), 1..4u8), 1..5usize).prop_map(Action::Results),
        3 => (prop::collection::vec(0..8u8, 1..5usize), prop::bool::weighted(0.1))
            .prop_map(|(backs, elsewhere)| Action::ReadResults(backs, elsewhere)),
        1 => Just(Action::Sweep),
        1 => (1..4u8, prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(most, small, own)| Action::Expire(most, small, own)),
        4 => (1..3u8).prop_map(Action::Elapse),
        6 => (0..3u8).prop_map(Action::Turn),
    ];
    prop::collection::vec(action, 1..40)
}
