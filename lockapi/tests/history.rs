//! When a program writes what it has counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockapi::engine::ManualClock;
use lockapi::memory::Database;
use lockapi::queue::{Claim, HistoryStep, Job};
use lockapi::{Backend, BackendOptions, Queue};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

struct Scene {
    clock: ManualClock,
    database: Database,
    reader: Arc<dyn Backend>,
    queue: Arc<dyn Queue>,
    _backend: Arc<dyn Backend>,
}

impl Scene {
    async fn new() -> Self {
        let clock = ManualClock::default();
        let database = Database::with_clock(&clock);
        let reader: Arc<dyn Backend> = database.connect().await.unwrap();
        let options = BackendOptions::default();
        let backend: Arc<dyn Backend> = database.connect_with(options).await.unwrap();
        let queue = backend.queue("work").unwrap();
        Self {
            clock,
            database,
            reader,
            queue,
            _backend: backend,
        }
    }

    async fn complete(&self) {
        self.queue
            .push(Job::new("send", &1).unwrap())
            .await
            .unwrap();
        let mut claimed = self.queue.claim(&Claim::new(1)).await.unwrap();
        claimed.remove(0).ack().await.unwrap();
    }

    async fn counted(&self) -> u64 {
        let inspector = self.reader.inspector();
        let points = inspector.history("work", None, HistoryStep::Minute).await;
        points.unwrap().iter().map(|point| point.completed).sum()
    }

    /// Lets time pass until so many are counted; answers how long that took.
    async fn passes_until(&self, counted: u64) -> Duration {
        let (start, mut passed) = (Instant::now(), Duration::ZERO);
        while self.counted().await != counted {
            assert!(passed < MINUTE * 10, "{} are counted", self.counted().await);
            assert!(start.elapsed() < MINUTE, "it takes too long");
            self.clock.advance(SECOND);
            passed += SECOND;
        }
        passed
    }
}

#[tokio::test]
async fn it_is_written_within_a_minute_and_once_in_one() {
    let scene = Scene::new().await;
    scene.complete().await;
    assert_eq!(scene.counted().await, 0);
    let first = scene.passes_until(1).await;
    assert!(
        first + SECOND >= MINUTE / 2 && first <= MINUTE + SECOND,
        "{first:?}"
    );
    for n in 2..5 {
        scene.complete().await;
        let next = scene.passes_until(n).await;
        assert!(
            next + SECOND * 2 >= MINUTE && next <= MINUTE + SECOND * 2,
            "{next:?}"
        );
    }
    // After a quiet time it is as at first.
    scene.clock.advance(MINUTE * 10);
    scene.complete().await;
    let again = scene.passes_until(5).await;
    assert!(
        again + SECOND >= MINUTE / 2 && again <= MINUTE + SECOND,
        "{again:?}"
    );
}

#[tokio::test]
async fn programs_that_start_together_do_not_write_together() {
    let mut times = Vec::new();
    for _ in 0..8 {
        let scene = Scene::new().await;
        scene.complete().await;
        times.push(scene.passes_until(1).await);
    }
    let (first, last) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!(*last >= *first + SECOND * 3, "{times:?}");
}

#[tokio::test]
async fn what_cannot_be_written_is_written_later_and_given_up_after_minutes() {
    let scene = Scene::new().await;
    scene.complete().await;
    scene.database.set_reachable(false);
    for _ in 0..75 {
        scene.clock.advance(SECOND);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    scene.database.set_reachable(true);
    let later = scene.passes_until(1).await;
    assert!(later <= MINUTE, "{later:?}");
    scene.complete().await;
    scene.database.set_reachable(false);
    for _ in 0..400 {
        scene.clock.advance(SECOND);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    scene.database.set_reachable(true);
    for _ in 0..60 {
        scene.clock.advance(SECOND);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    scene.complete().await;
    // The second is lost.
    let counted = scene.passes_until(2).await;
    assert!(counted <= MINUTE * 3, "{counted:?}");
}
