use super::*;

/// A push of a job with a key that one has at a time; of another queue if it has the name of that before it.
fn keyed(job: i64, key: &str, times: (Nanos, Nanos), answer: Answer) -> Call {
    let (queue, key) = key.split_once('/').unwrap_or(("jobs", key));
    let op = Op::Push {
        job,
        queue: queue.to_owned(),
        group: None,
        delay: 0,
        with: None,
        inside: false,
        unique: Some(key.to_owned()),
        attempts: 3,
    };
    call(0, op, times, answer)
}

/// A job that is done under a token, from a time to a time, when it is pushed so.
fn done(job: i64, key: &str, times: (Nanos, Nanos), (from, to): (Nanos, Nanos)) -> [Call; 3] {
    [
        keyed(job, key, times, Answer::Number(job + 100)),
        claim(job, job, (from - 1, from)),
        ack(job, job, (from, to), How::AckIn),
    ]
}

/// What is broken, with the effects of two jobs.
fn of(calls: impl IntoIterator<Item = Call>) -> Vec<&'static str> {
    let mut history = history(calls);
    history.tables.effects = vec![(2, 2, true), (4, 4, true)];
    broken(&history)
}

#[test]
fn a_key_has_one_job_at_a_time() {
    let [none, two] = [vec![], vec!["a key has one job"]];
    let first = || done(2, "u", (1, 2), (5, 7));
    let second = |key, times| first().into_iter().chain(done(4, key, times, (20, 21)));
    assert_eq!(of(second("u", (8, 9))), none);
    // It may have ended at once, and the other may have begun at the end.
    assert_eq!(of(second("u", (3, 6))), none);
    assert_eq!(of(second("u", (3, 4))), two);
    assert_eq!(of(second("v", (3, 4))), none);
    assert_eq!(of(second("tasks/u", (3, 4))), none, "of another queue");
    // Which one is there first is not known.
    assert_eq!(of(second("u", (1, 3))), none);
}

#[test]
fn a_push_without_an_answer_was_made_if_its_job_is_delivered() {
    let [none, two] = [vec![], vec!["a key has one job"]];
    // The first is claimed from 9 to 10, and done from 10 on.
    let pushed = |times| {
        let mut first = done(2, "u", (1, 2), (10, 11));
        first[0].answer = Some((2 * SECOND, unknown()));
        let second = done(4, "u", times, (20, 21)).into_iter();
        of(first.into_iter().chain(second))
    };
    assert_eq!(pushed((3, 4)), none, "it may have come later");
    assert_eq!(pushed((12, 13)), none);
    let mut first = done(2, "u", (1, 2), (15, 16)).to_vec();
    first[0].answer = Some((2 * SECOND, unknown()));
    first.push(claim(2, 1, (4, 5)));
    let second = done(4, "u", (6, 7), (20, 21));
    assert_eq!(of(first.into_iter().chain(second)), two);
}

#[test]
fn what_is_delivered_again_had_not_ended() {
    let first = done(2, "u", (1, 2), (15, 16));
    let mut early = ack(2, 1, (5, 6), How::Ack);
    early.answer = Some((6 * SECOND, unknown()));
    let second = done(4, "u", (8, 9), (20, 21));
    let calls = first.into_iter().chain([claim(2, 1, (3, 4)), early]);
    assert_eq!(of(calls.chain(second)), ["a key has one job"]);
}

#[test]
fn a_key_tells_of_the_job_that_has_it() {
    let [none, other] = [vec![], vec!["a key tells of the job that has it"]];
    let told = |key, times, id| {
        let jobs = done(2, "u", (1, 2), (5, 7)).into_iter();
        let jobs = jobs.chain(done(4, "v", (1, 2), (20, 21)));
        of(jobs.chain([keyed(6, key, times, Answer::Existing(id))]))
    };
    assert_eq!(told("u", (3, 4), 102), none);
    assert_eq!(told("u", (6, 9), 102), none);
    assert_eq!(told("u", (8, 9), 102), other);
    assert_eq!(told("u", (3, 4), 104), other);
    assert_eq!(told("tasks/u", (3, 4), 102), other);
    assert_eq!(told("u", (3, 4), 7), none, "whose that is nobody knows");
}

#[test]
fn what_existed_is_not_pushed_again() {
    let jobs = done(2, "u", (1, 2), (20, 21)).into_iter();
    let again = keyed(4, "u", (3, 4), Answer::Existing(102));
    let delivered = [again, claim(4, 4, (5, 6)), ack(4, 4, (7, 8), How::AckIn)];
    let promises = ["what did not happen has no effect", "a key has one job"];
    assert_eq!(of(jobs.chain(delivered)), promises);
}
