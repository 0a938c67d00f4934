use super::*;

/// A push of a job with a key that one has at a time.
fn keyed(job: i64, key: &str, times: (Nanos, Nanos), answer: Answer) -> Call {
    let Op::Push { queue, .. } = push(job, Answer::Done).op else {
        unreachable!("it is a push");
    };
    let op = Op::Push {
        job,
        queue,
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
        claim(job, job, (times.0, times.1)),
        ack(job, job, (from, to), How::AckIn),
    ]
}

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
    // Which one is there first is not known.
    assert_eq!(of(second("u", (1, 3))), none);
    let refused = second("u", (3, 4)).map(|mut call| {
        if matches!(call.op, Op::Push { job: 2, .. }) {
            call.answer = Some((2, unknown()));
        }
        call
    });
    assert_eq!(of(refused), none);
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
    assert_eq!(told("u", (3, 4), 7), none, "whose that is nobody knows");
}

#[test]
fn what_existed_is_not_pushed_again() {
    let jobs = done(2, "u", (1, 2), (20, 21)).into_iter();
    let again = keyed(4, "u", (3, 4), Answer::Existing(102));
    let delivered = [again, claim(4, 4, (5, 6)), ack(4, 4, (7, 8), How::AckIn)];
    let promise = "what did not happen has no effect";
    assert_eq!(of(jobs.chain(delivered)), [promise]);
}
