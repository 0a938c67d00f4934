//! Each primitive at 1 to 1,000 callers, against what a program would write itself, in one run.
//!
//! Every caller asks, waits for the answer and asks again. Prints a table and writes a line for each figure
//! to `target/bench/figures.jsonl`, and draws a picture of each primitive beside it.
//! `-- limit,lease --callers 1,8` measures less; `--spin` measures beside programs of the lowest priority that keep
//! the cores awake.

#[path = "../common/chart.rs"]
mod chart;
#[path = "../common/mod.rs"]
mod common;
mod scenarios;
mod spinner;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chart::Line;
use common::{Better, Report, Server, connect, plain, runtime};
use scenarios::{Scenario, Work};
use sqlx::Executor;
use sqlx::postgres::PgPoolOptions;

/// How many ask at the same time.
const CALLERS: &[usize] = &[1, 2, 4, 8, 16, 64, 256, 1000];
/// How long each figure is measured.
const TIME: Duration = Duration::from_secs(1);

/// What was measured of one way.
struct Measured {
    rate: f64,
    /// Microseconds.
    median: f64,
    p99: f64,
}

async fn measure(callers: usize, work: &Work) -> Measured {
    // What is done only once has been done then.
    for caller in 0..callers {
        work(caller, 0).await;
    }
    let start = Instant::now();
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let work = Arc::clone(work);
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut round = 1;
                while start.elapsed() < TIME {
                    let began = Instant::now();
                    work(caller, round).await;
                    took.push(began.elapsed());
                    round += 1;
                }
                took
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in running {
        all.extend(task.await.expect("a caller"));
    }
    let elapsed = start.elapsed();
    all.sort_unstable();
    let micros = |at: usize| all[at.min(all.len() - 1)].as_secs_f64() * 1e6;
    Measured {
        rate: f64::from(u32::try_from(all.len()).expect("fewer than four billion"))
            / elapsed.as_secs_f64(),
        median: micros(all.len() / 2),
        p99: micros(all.len() * 99 / 100),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|one| one != "--bench");
    let (mut only, mut callers) = (Vec::new(), CALLERS.to_vec());
    let mut spinners = None;
    while let Some(argument) = arguments.next() {
        if argument == "--callers" {
            let list = arguments.next().unwrap_or_default();
            let numbers = list.split(',').map(|one| one.parse().expect("a number"));
            callers = numbers.collect();
        } else if argument == spinner::SPIN {
            spinner::spin();
        } else if argument == "--spin" {
            spinners = Some(spinner::start());
        } else {
            only.extend(argument.split(',').map(str::to_owned));
        }
    }
    let mut report = Report::open("callers");
    report.of(if spinners.is_some() {
        "sqlx beside spinners"
    } else {
        "sqlx"
    });
    // On a worker, as the tasks of a service are.
    let report = runtime().block_on(async {
        tokio::spawn(all(report, only, callers))
            .await
            .expect("the figures")
    });
    drop(spinners);
    report.print();
}

async fn all(mut report: Report, only: Vec<String>, callers: Vec<usize>) -> Report {
    let server = Server::start();
    let url = server.url();
    let backend = connect(url).await;
    let pool = PgPoolOptions::new()
        .min_connections(16)
        .test_before_acquire(false)
        .max_connections(16)
        .acquire_timeout(Duration::from_mins(1))
        .connect(url)
        .await
        .expect("a pool");
    for tables in [plain::LEASES, plain::WINDOWS, plain::JOBS] {
        pool.execute(tables).await.expect("tables");
    }
    for scenario in scenarios::all(&backend, &pool) {
        let wanted = only.is_empty() || only.iter().any(|one| scenario.name.starts_with(one));
        if wanted {
            let others = scenario.others.iter().map(|(_, work)| work);
            for work in [&scenario.ours].into_iter().chain(others) {
                for round in 0..scenario.before {
                    work(0, round).await;
                }
            }
            let mut lines = lines(&scenario);
            for callers in &callers {
                compare(&mut report, &scenario, *callers, &mut lines).await;
            }
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench");
            let path = Path::new(folder).join(format!("{}.svg", scenario.name));
            chart::draw(&path, scenario.name, &lines);
        }
    }
    report
}

/// Ours, and the others.
fn lines(scenario: &Scenario) -> Vec<Line> {
    let others = scenario.others.iter().map(|(name, _)| *name);
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: Vec::new(),
    };
    ["lockapi"].into_iter().chain(others).map(line).collect()
}

async fn compare(report: &mut Report, scenario: &Scenario, callers: usize, lines: &mut [Line]) {
    let x = f64::from(u32::try_from(callers).expect("fewer than four billion"));
    let name = |what: &str| format!("{}.{what}.{callers}", scenario.name);
    let ours = measure(callers, &scenario.ours).await;
    lines[0].points.push((x, ours.rate, ours.p99));
    for ((other, work), line) in scenario.others.iter().zip(&mut lines[1..]) {
        if std::env::var_os("ONLY_OURS").is_some() {
            eprintln!(
                "{} {:.0} {:.1} {:.1}",
                scenario.name, ours.rate, ours.median, ours.p99
            );
            continue;
        }
        let other_is = *other;
        let other = measure(callers, work).await;
        line.points.push((x, other.rate, other.p99));
        let rates = (ours.rate, other.rate);
        report.add(
            &name("rate"),
            "/s",
            rates.0,
            rates.1,
            other_is,
            Better::Higher,
        );
        let medians = (ours.median, other.median);
        report.add(
            &name("p50"),
            "us",
            medians.0,
            medians.1,
            other_is,
            Better::Lower,
        );
        report.add(
            &name("p99"),
            "us",
            ours.p99,
            other.p99,
            other_is,
            Better::Lower,
        );
    }
}
