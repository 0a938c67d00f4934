//! When tasks are due next, as a picture, and how a queue was lately.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use crate::output::{plain, spoken};
use crate::watch::{Sample, TaskLine};

/// The most tasks of a picture.
const MOST: usize = 24;
/// Times that are closer than this are a line.
const CLOSE: u64 = 9;
/// How far a picture looks ahead: as far as it has to.
const SPANS: [u64; 5] = [600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600];
const LEFT: u64 = 190;
const WIDTH: u64 = 560;
const LINE: usize = 24;

/// The times within a span at which a task is due, as far as they are known without its expression.
fn times(line: &TaskLine, now: SystemTime, span: Duration) -> Vec<Duration> {
    let Some(next) = line.task.next_at else {
        return Vec::new();
    };
    let first = next.duration_since(now).unwrap_or_default();
    let every = line.task.every.filter(|every| !every.is_zero());
    let mut times = vec![first];
    if is_often(line, span) {
        return times;
    }
    while let Some(every) = every
        && let Some(last) = times.last().filter(|last| **last < span)
    {
        times.push(*last + every);
    }
    times.retain(|time| *time <= span);
    times
}

/// Whether its times are too close to be told apart.
fn is_often(line: &TaskLine, span: Duration) -> bool {
    let every = line.task.every;
    every.is_some_and(|every| every * u32::try_from(WIDTH / CLOSE).unwrap_or(u32::MAX) < span)
}

/// The next times of tasks; nothing without tasks.
pub(super) fn timeline(lines: &[TaskLine], now: SystemTime) -> Markup {
    let shown: Vec<_> = lines
        .iter()
        .filter(|line| line.task.enabled && line.task.next_at.is_some())
        .take(MOST)
        .collect();
    if shown.is_empty() {
        return html! {};
    }
    let furthest = shown.iter().filter_map(|line| line.task.next_at).max();
    let furthest = furthest.and_then(|at| at.duration_since(now).ok());
    let furthest = furthest.unwrap_or_default();
    let spans = SPANS.map(Duration::from_secs);
    let span = spans.into_iter().find(|span| *span >= furthest);
    let span = span.unwrap_or(spans[spans.len() - 1]);
    let place = |time: Duration| {
        #[allow(clippy::cast_possible_truncation, reason = "a place in the picture")]
        let part = (time.as_millis() * u128::from(WIDTH) / span.as_millis().max(1)) as u64;
        LEFT + part
    };
    let height = (shown.len() + 1) * LINE + 8;
    html! {
        figure .scroll tabindex="0" role="region" aria-label="When tasks are due" {
            svg .timeline role="img" aria-label="When tasks are due next; the table lists them." viewBox={ "0 0 " (LEFT + WIDTH + 40) " " (height) } width=(LEFT + WIDTH + 40) height=(height) {
                @for part in 0..=4_u32 {
                    @let x = place(span * part / 4);
                    line .grid x1=(x) y1=(LINE) x2=(x) y2=(height) {}
                    text .detail x=(x) y="16" text-anchor="middle" { (if part == 0 { "now".to_owned() } else { spoken(span * part / 4) }) }
                }
                @for (row, line) in shown.iter().enumerate() {
                    @let y = (row + 1) * LINE + LINE / 2;
                    text x="0" y=(y + 4) { (name(line)) }
                    @if is_often(line, span) {
                        @let first = line.task.next_at.and_then(|at| at.duration_since(now).ok()).unwrap_or_default();
                        line .often x1=(place(first)) y1=(y) x2=(LEFT + WIDTH) y2=(y) {}
                    }
                    @for time in times(line, now, span) { circle .due cx=(place(time)) cy=(y) r="5" {} }
                }
            }
            figcaption { "Of cron expressions the next time, of intervals those that follow as well." }
        }
    }
}

fn name(line: &TaskLine) -> String {
    let name = plain(&line.task.name);
    if name.chars().count() <= 26 {
        return name;
    }
    name.chars().take(25).chain(['…']).collect()
}

/// How many jobs were due and waited, over the last minutes.
pub(super) fn sparkline(history: &[Sample]) -> Markup {
    let most = history.iter().map(|sample| sample.ready).max();
    let (Some(most), true) = (most, history.len() > 1) else {
        return html! { span .none { "–" } };
    };
    let last = history.len() - 1;
    let point = |(n, sample): (usize, &Sample)| {
        let y = 26 - sample.ready * 24 / most.max(1);
        format!("{},{y}", n * 118 / last + 1)
    };
    let points: Vec<String> = history.iter().enumerate().map(point).collect();
    let words = format!("at most {most}, now {}", history[last].ready);
    html! {
        svg .spark role="img" aria-label=(words) viewBox="0 0 120 28" width="120" height="28" {
            polyline points=(points.join(" ")) {}
        }
    }
}
