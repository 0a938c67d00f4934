//! The course of a drill: promotion by promotion, and the audit in the end.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::Result;
use crate::args::Settings;
use crate::audit::Audit;
use crate::clock;
use crate::cluster::{Cluster, Primary};
use crate::crew::Crew;
use crate::fault::Fault;
use crate::history::Primitive;
use crate::programs::{Library, QUEUE};
use crate::record::Order;
use crate::reigns::Watch;
use crate::view::View;

const WITHOUT_EPOCHS: &str = include_str!("without_epochs.sql");

/// How long the processes have, after a promotion, until each of their calls is answered.
const RECOVERY: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(50);
/// How long the last jobs may take.
const DRAIN: Duration = Duration::from_mins(2);

/// A promotion, as it went.
#[derive(Clone, Debug)]
pub(crate) struct Promotion {
    pub(crate) fault: Fault,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) timeline: u32,
    /// From the fault to the answer of a write.
    pub(crate) took: u64,
    /// When the new primary answered a write.
    pub(crate) at: u64,
    /// From then to the first answer of each kind.
    pub(crate) first: [Option<u64>; Primitive::ALL.len()],
    /// How many kinds of calls were not answered in time.
    pub(crate) unanswered: usize,
    /// Whether all jobs had been pushed before.
    pub(crate) idle: bool,
}

pub(crate) async fn conduct(
    settings: &Settings,
    cluster: &mut Cluster,
    view: &View,
) -> Result<Audit> {
    let mut timeline = cluster.whole().await?.timeline;
    let backend = Library::Sqlx.connect(&cluster.url()).await?;
    backend.migrate().await?;
    backend.close().await?;
    if settings.control {
        let primary = cluster.whole().await?;
        cluster
            .session(primary)
            .await?
            .batch_execute(WITHOUT_EPOCHS)
            .await?;
        view.event("control: servers that take over begin no epoch; the audit has to fail");
    }
    view.event("three servers and their tables are there");
    let watch = Watch::start(cluster.sessions());
    let mut crew = Crew::start(settings, cluster).await?;
    view.event(&format!("{} processes work on them", settings.processes));
    sleep(Duration::from_secs(2)).await;
    View::heading();
    let mut draw = fastrand::Rng::with_seed(settings.seed);
    let mut promotions = Vec::new();
    let mut kinds = Vec::new();
    for _ in 0..settings.promotions {
        if kinds.is_empty() {
            kinds.clone_from(&settings.kinds);
            draw.shuffle(&mut kinds);
        }
        let fault = kinds.pop().ok_or("no kind of promotion")?;
        let primary = cluster.whole().await?;
        if primary.timeline != timeline {
            let name = &cluster.node(primary.node).name;
            let now = primary.timeline;
            view.event(&format!("unplanned, {name} was promoted: timeline {now}"));
        }
        sleep(Duration::from_millis(draw.u64(200..1500))).await;
        let promotion = promote(fault, cluster, primary, &mut crew, view).await?;
        view.promotion(&promotion);
        timeline = promotion.timeline;
        promotions.push(promotion);
        crew.check()?;
    }
    let primary = cluster.whole().await?;
    let left = finish(cluster, primary, &mut crew, view).await?;
    let history = crew.end().await?;
    Ok(Audit::of(
        settings,
        &history,
        promotions,
        &watch.reigns(),
        left,
    ))
}

async fn promote(
    fault: Fault,
    cluster: &mut Cluster,
    primary: Primary,
    crew: &mut Crew,
    view: &View,
) -> Result<Promotion> {
    let from = cluster.node(primary.node).name.clone();
    view.event(&fault.story(&from));
    let begun = clock::now();
    let next = fault.inflict(cluster, primary).await?;
    let mut first = [None; Primitive::ALL.len()];
    let waiting = Instant::now();
    let mut unanswered = first.len();
    let mut idle = false;
    while unanswered > 0 && waiting.elapsed() < RECOVERY {
        sleep(LOOK).await;
        let history = crew.history();
        first = Primitive::ALL.map(|primitive| {
            let at = history.first_after(primitive, next.since)?;
            Some(at - next.since)
        });
        idle = history.all_pushed == crew.size();
        let missing = Primitive::ALL.into_iter().zip(first);
        unanswered = missing
            .filter(|(primitive, at)| at.is_none() && !(idle && primitive.is_of_jobs()))
            .count();
    }
    crew.check()?;
    Ok(Promotion {
        fault,
        from,
        to: cluster.node(next.node).name.clone(),
        timeline: next.timeline,
        took: next.since - begun,
        at: next.since,
        first,
        unanswered,
        idle,
    })
}

/// Lets the processes push and do what is left; answers how many jobs are still there.
async fn finish(cluster: &Cluster, primary: Primary, crew: &mut Crew, view: &View) -> Result<i64> {
    crew.order(Order::Hurry);
    let begun = Instant::now();
    let everybody = crew.size();
    while crew.history().all_pushed < everybody && begun.elapsed() < DRAIN {
        sleep(LOOK).await;
    }
    crew.order(Order::Finish);
    view.event("all jobs are pushed; the last are being done");
    let client = cluster.session(primary).await?;
    let left = "SELECT count(*) FROM lockapi.job WHERE queue = $1";
    loop {
        sleep(LOOK * 10).await;
        crew.check()?;
        let left: i64 = client.query_one(left, &[&QUEUE]).await?.try_get(0)?;
        if left == 0 || begun.elapsed() > DRAIN {
            // The processes may still be telling what they did.
            sleep(Duration::from_secs(2)).await;
            return Ok(left);
        }
    }
}
