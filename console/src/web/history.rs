//! What became of the attempts at jobs of a queue, as pictures of the last hour and the last week.

use std::time::{Duration, SystemTime};

use lockapi::queue::{HistoryPoint, HistoryStep};
use maud::{Markup, html};

use super::Shared;
use crate::output::{spoken_or_unknown, time};

const HEIGHT: u64 = 56;
const WIDTH: u64 = 336;

/// A bar, in the units of the picture.
struct Bar {
    x: u64,
    width: u64,
    completed: u64,
    failed: u64,
    words: String,
}

/// The pictures of both; nothing where no attempt ended, or the history cannot be read.
pub(super) async fn of(shared: &Shared, queue: &str, kind: &str, now: SystemTime) -> Markup {
    let inspector = shared.watch.inspector();
    let kind = (!kind.is_empty()).then_some(kind);
    let mut pictures = Vec::new();
    for (step, of) in [
        (HistoryStep::Minute, "last hour"),
        (HistoryStep::Hour, "last week"),
    ] {
        // A schema from before there was one, or a role without the right: the rest of the screen is as useful.
        let points = inspector.history(queue, kind, step).await;
        let points = points.unwrap_or_default();
        if !points.is_empty() {
            pictures.push(picture(&points, step, of, now));
        }
    }
    html! {
        @if !pictures.is_empty() {
            div .histories { @for picture in pictures { (picture) } }
        }
    }
}

fn bars(points: &[HistoryPoint], step: HistoryStep, now: SystemTime) -> Vec<Bar> {
    let steps = u64::try_from(step.points()).unwrap_or(1);
    let wide = (WIDTH / steps).max(1);
    let most = points.iter().map(HistoryPoint::attempts).max();
    let most = most.unwrap_or_default().max(1);
    // Something is a pixel at least.
    let part = |count: u64| match count {
        0 => 0,
        count => (count.saturating_mul(HEIGHT) / most).clamp(1, HEIGHT),
    };
    let bar = |point: &HistoryPoint| {
        let age = now.duration_since(point.at).unwrap_or_default();
        let back = age.as_secs() / step.duration().as_secs();
        let place = (steps - 1).checked_sub(back)?;
        let failed = part(point.failed);
        Some(Bar {
            x: place * wide,
            width: wide.saturating_sub(1).max(1),
            completed: part(point.completed).min(HEIGHT - failed),
            failed,
            words: words(point),
        })
    };
    points.iter().filter_map(bar).collect()
}

fn words(point: &HistoryPoint) -> String {
    format!(
        "{}: {} completed, {} failed, {} dead; 95 % waited up to {} and ran up to {}",
        time(point.at),
        point.completed,
        point.failed,
        point.dead,
        spoken_or_unknown(point.wait_quantile(0.95)),
        spoken_or_unknown(point.run_quantile(0.95)),
    )
}

fn picture(points: &[HistoryPoint], step: HistoryStep, of: &str, now: SystemTime) -> Markup {
    let sum = |count: fn(&HistoryPoint) -> u64| {
        let counts = points.iter().map(count);
        counts.fold(0, u64::saturating_add)
    };
    let (completed, failed) = (sum(|it| it.completed), sum(|it| it.failed));
    let dead = sum(|it| it.dead);
    let told = format!("{of}: {completed} completed, {failed} failed, {dead} dead");
    let slowest = points.iter().filter_map(|it| it.wait_quantile(0.95)).max();
    html! {
        figure .history {
            svg role="img" aria-label=(told) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) {
                @for bar in bars(points, step, now) {
                    g {
                        title { (bar.words) }
                        rect .good x=(bar.x) y=(HEIGHT - bar.completed - bar.failed) width=(bar.width) height=(bar.completed) {}
                        rect .bad x=(bar.x) y=(HEIGHT - bar.failed) width=(bar.width) height=(bar.failed) {}
                    }
                }
            }
            figcaption { (told) @if let Some(slowest) = slowest.filter(|it| *it > Duration::ZERO) {
                "; of no " (if step == HistoryStep::Minute { "minute" } else { "hour" }) " did 95 % wait longer than " (spoken_or_unknown(Some(slowest)))
            } }
        }
    }
}
