use super::*;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

fn due(next: i64, now: i64, misfire: i64, misfire_most: i64) -> Due {
    Due {
        name: "task".to_owned(),
        version: 1,
        next,
        now,
        recurrence: Recurrence::Every(HOUR),
        misfire,
        misfire_most,
    }
}

fn fired(recurrence: &Recurrence, due: &Due) -> (Vec<i64>, Vec<i64>, Option<i64>) {
    let firing = recurrence.fire(due).unwrap();
    let times = firing.runs.iter().map(|run| run.at).collect();
    let missed = firing.runs.iter().map(|run| run.missed).collect();
    (times, missed, firing.next)
}

#[test]
fn intervals_keep_their_grid() {
    let every = Recurrence::Every(HOUR);
    let from = 1_000_000 * HOUR + 17;
    assert_eq!(every.next(from, from).unwrap(), Some(from + HOUR));
    assert_eq!(
        every.next(from, from + HOUR - 1).unwrap(),
        Some(from + HOUR)
    );
    assert_eq!(
        every.next(from, from + HOUR).unwrap(),
        Some(from + 2 * HOUR)
    );
    assert_eq!(every.next(i64::MAX - 1, i64::MAX).unwrap(), None);
}

#[test]
fn missed_times_are_counted_and_bounded() {
    let every = Recurrence::Every(HOUR);
    let from = 500_000 * HOUR;
    let now = from + 4 * HOUR + 1;
    let last = from + 4 * HOUR;
    let next = Some(last + HOUR);
    assert_eq!(
        fired(&every, &due(from, now, 1, 0)),
        (vec![last], vec![4], next)
    );
    let two = (vec![last - HOUR, last], vec![3, 0], next);
    assert_eq!(fired(&every, &due(from, now, 2, 2)), two);
    let long = from + 100_000 * HOUR;
    let (times, missed, next) = fired(&every, &due(from, long, 1, 0));
    assert_eq!((times, missed), (vec![long], vec![100]));
    assert_eq!(next, Some(long + HOUR));
    let late = every.fire(&due(from, now, 0, 0)).unwrap();
    assert!(late.runs[0].skipped);
    let in_time = every.fire(&due(from, now, 0, 1)).unwrap();
    assert!(!in_time.runs[0].skipped);
}

#[test]
fn look_back_over_dense_times_is_bounded() {
    // Every second of the first month, and one time in the middle of the year.
    let (dense, alone) = (31 * DAY, 180 * DAY);
    let after = |after: i64| {
        let second = after.div_euclid(SECOND) * SECOND + SECOND;
        let times = [second.max(0), alone];
        times
            .into_iter()
            .find(|at| *at > after && (*at < dense || *at == alone))
    };
    for (now, most) in [
        (330 * DAY, 101),
        (200 * DAY, 101),
        (dense + 1, 101),
        (330 * DAY, 1),
    ] {
        let mut computed = 0;
        let latest = latest_times(0, now, most, |at| {
            computed += 1;
            Ok(after(at))
        });
        let latest: Vec<_> = latest.unwrap().into();
        let mut wanted: Vec<_> = (0..most)
            .map(|n| dense - SECOND * i64::try_from(n + 1).unwrap())
            .collect();
        if now > alone {
            wanted.insert(0, alone);
            wanted.pop();
        }
        wanted.reverse();
        assert_eq!(latest, wanted, "{most} until {now}");
        assert!(computed < 150 * most, "{computed} for {most} until {now}");
    }
}

#[cfg(feature = "cron")]
mod cron {
    use std::time::Instant;

    use chrono::DateTime;

    use super::*;

    fn micros(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text)
            .unwrap()
            .timestamp_micros()
    }

    fn berlin(expression: &str) -> Recurrence {
        Recurrence::Cron {
            expression: expression.to_owned(),
            zone: "Europe/Berlin".to_owned(),
        }
    }

    /// The due times after one, in UTC.
    fn after(recurrence: &Recurrence, from: &str, count: usize) -> Vec<String> {
        let mut at = micros(from);
        let mut times = Vec::new();
        for _ in 0..count {
            at = recurrence.next(at, at).unwrap().unwrap();
            let time = DateTime::from_timestamp_micros(at).unwrap();
            times.push(time.to_string()[8..16].replace(' ', "T"));
        }
        times
    }

    #[test]
    fn fixed_time_that_does_not_exist_is_due_after_the_gap() {
        // On 29 March 2026 the clock goes from 02:00 to 03:00, which is 01:00 UTC.
        let times = after(&berlin("30 2 * * *"), "2026-03-27T12:00:00Z", 3);
        assert_eq!(times, ["28T01:30", "29T01:00", "30T00:30"]);
    }

    #[test]
    fn wildcards_in_the_gap_are_not_due() {
        let times = after(&berlin("*/30 * * * *"), "2026-03-29T00:15:00Z", 3);
        assert_eq!(times, ["29T00:30", "29T01:00", "29T01:30"]);
        let times = after(&berlin("*/30 2 * * *"), "2026-03-28T01:15:00Z", 2);
        assert_eq!(times[0], "28T01:30");
        assert_eq!(times[1], "30T00:00", "there is no 2 o'clock on the 29th");
    }

    #[test]
    fn fixed_time_that_is_repeated_is_due_once() {
        // On 25 October 2026 the clock goes from 03:00 to 02:00, which is 01:00 UTC.
        let times = after(&berlin("30 2 * * *"), "2026-10-23T12:00:00Z", 3);
        assert_eq!(times, ["24T00:30", "25T00:30", "26T01:30"]);
    }

    #[test]
    fn wildcards_in_the_repeated_hour_are_due_each_time() {
        let times = after(&berlin("*/30 * * * *"), "2026-10-24T23:45:00Z", 5);
        assert_eq!(
            times,
            ["25T00:00", "25T00:30", "25T01:00", "25T01:30", "25T02:00"]
        );
    }

    #[test]
    fn fractions_of_a_second_do_not_matter() {
        let every = berlin("* * * * *");
        let minute = micros("2026-01-01T00:01:00Z");
        assert_eq!(every.next(0, minute - 1).unwrap(), Some(minute));
        let next = Some(minute + 60 * SECOND);
        assert_eq!(every.next(0, minute).unwrap(), next);
        assert_eq!(every.next(0, minute + 1).unwrap(), next);
    }

    #[test]
    fn seconds_are_optional() {
        let times = berlin("*/20 * * * * *");
        let minute = micros("2026-01-01T00:00:00Z");
        assert_eq!(times.next(0, minute).unwrap(), Some(minute + 20 * SECOND));
    }

    #[test]
    fn long_outages_are_looked_over_quickly() {
        let from = micros("2020-01-01T00:00:00Z");
        for (expression, missed, back) in [
            ("* * * * * *", 100, 0),
            ("0 3 * * *", 100, DAY),
            ("0 3 1 1 *", 6, 366 * DAY),
        ] {
            let recurrence = berlin(expression);
            let first = recurrence.next(from, from).unwrap().unwrap();
            let now = first + 6 * 366 * DAY;
            let started = Instant::now();
            let (times, found, next) = fired(&recurrence, &due(first, now, 1, 0));
            assert!(started.elapsed().as_secs() < 20, "{expression}");
            assert_eq!((times.len(), found), (1, vec![missed]), "{expression}");
            assert!(now - times[0] <= back, "{expression}");
            assert!(next.unwrap() > now);
        }
    }

    #[test]
    fn many_tasks_are_planned_quickly_after_a_long_outage() {
        let from = micros("2026-01-01T00:00:00Z");
        let recurrence = berlin("*/5 * * * *");
        let first = recurrence.next(from, from).unwrap().unwrap();
        let now = first + 7 * DAY;
        let started = Instant::now();
        for _ in 0..200 {
            let (times, found, next) = fired(&recurrence, &due(first, now, 1, 0));
            assert_eq!((times, found), (vec![now], vec![100]));
            assert_eq!(next, Some(now + 300 * SECOND));
        }
        let took = started.elapsed();
        assert!(took.as_secs() < 15, "{took:?}");
    }

    #[test]
    fn expression_that_is_never_due_ends() {
        let never = berlin("0 0 30 2 *");
        never.check().unwrap();
        assert_eq!(never.next(0, micros("2026-01-01T00:00:00Z")).unwrap(), None);
    }
}
