//! The course of a drill: promotion by promotion, and the audit in the end.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

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
/// How long the last pushes may take, and for how long no job may be done while some are there.
const DRAIN: Duration = Duration::from_mins(2);
const LEFT: &str = include_str!("left.sql");
/// How long it may take to count what is left, while there may be no primary.
const ANSWER: Duration = Duration::from_secs(30);

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

/// How a drill went, beside what its processes told.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) promotions: Vec<Promotion>,
    /// How many jobs were there in the end, if it came to that.
    pub(crate) left: Option<i64>,
    /// The processes that have ended.
    pub(crate) fallen: Vec<String>,
}

/// Answers the audit, also of a drill that did not come to its end.
pub(crate) async fn conduct(
    settings: &Settings,
    cluster: &mut Cluster,
    view: &View,
) -> Result<(Audit, Result<()>)> {
    let timeline = cluster.whole().await?.timeline;
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
    let mut course = Course::default();
    let driven = drive(
        settings,
        (cluster, timeline),
        (&mut crew, &mut course),
        view,
    )
    .await;
    course.fallen = crew.fallen()?;
    for fallen in &course.fallen {
        view.event(fallen);
    }
    let history = crew.end().await?;
    let audit = Audit::of(settings, &history, course, &watch.reigns());
    Ok((audit, driven))
}

async fn drive(
    settings: &Settings,
    (cluster, mut timeline): (&mut Cluster, u32),
    (crew, course): (&mut Crew, &mut Course),
    view: &View,
) -> Result<()> {
    View::heading();
    let mut draw = fastrand::Rng::with_seed(settings.seed);
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
        let promotion = promote(fault, cluster, primary, crew, view).await?;
        view.promotion(&promotion);
        timeline = promotion.timeline;
        course.promotions.push(promotion);
        if !crew.fallen()?.is_empty() {
            return Ok(());
        }
    }
    course.left = Some(finish(cluster, crew, view).await?);
    Ok(())
}

async fn promote(
    fault: Fault,
    cluster: &mut Cluster,
    primary: Primary,
    crew: &Crew,
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
async fn finish(cluster: &Cluster, crew: &mut Crew, view: &View) -> Result<i64> {
    crew.order(Order::Hurry);
    let begun = Instant::now();
    let everybody = crew.size();
    while crew.history().all_pushed < everybody
        && begun.elapsed() < DRAIN
        && crew.fallen()?.is_empty()
    {
        sleep(LOOK).await;
    }
    crew.order(Order::Finish);
    view.event("no more is pushed; the last jobs are being done");
    // The cluster may still promote by itself.
    let mut client = None;
    let (mut least, mut since) = (i64::MAX, Instant::now());
    loop {
        sleep(LOOK * 10).await;
        let left = if let Ok(Ok(left)) = timeout(ANSWER, count(cluster, &mut client)).await {
            left
        } else {
            client = None;
            least
        };
        if left < least {
            (least, since) = (left, Instant::now());
        }
        if left == 0 || since.elapsed() > DRAIN || !crew.fallen()?.is_empty() {
            // The processes may still be telling what they did.
            sleep(Duration::from_secs(2)).await;
            if least == i64::MAX {
                return Err("what is left cannot be counted".into());
            }
            return Ok(least);
        }
    }
}

/// How many jobs there are, or have failed for good.
async fn count(cluster: &Cluster, client: &mut Option<Client>) -> Result<i64> {
    if client.is_none() {
        *client = Some(cluster.session(cluster.promoted(0, ANSWER).await?).await?);
    }
    let client = client.as_ref().ok_or("no session")?;
    Ok(client.query_one(LEFT, &[&QUEUE]).await?.try_get(0)?)
}
