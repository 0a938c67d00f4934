//! What is told to `tracing` and `metrics`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockapi::blocking::Backend;
use lockapi::engine::{ManualClock, Options};
use lockapi::lease::Terms;
use lockapi::memory::Database;
use lockapi::queue::{Claim, Job};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};

type Values = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

/// Keeps every value by its name and labels.
#[derive(Clone, Default)]
struct Kept(Values);

struct One(String, Values);

impl One {
    fn keep(&self, value: f64) {
        let mut values = self.1.lock().unwrap();
        values.entry(self.0.clone()).or_default().push(value);
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.keep(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, value: u64) {
        CounterFn::increment(self, value);
    }
}

impl GaugeFn for One {
    fn increment(&self, value: f64) {
        self.keep(value);
    }

    fn decrement(&self, value: f64) {
        self.keep(-value);
    }

    fn set(&self, value: f64) {
        self.keep(value);
    }
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.keep(value);
    }
}

impl Kept {
    fn one(&self, key: &Key) -> Arc<One> {
        let labels = key.labels();
        let labels: Vec<_> = labels.map(|label| label.value().to_owned()).collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        Arc::new(One(name, Arc::clone(&self.0)))
    }

    fn values(&self, name: &str) -> Vec<f64> {
        self.0
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .unwrap_or_default()
    }

    fn total(&self, name: &str) -> f64 {
        self.values(name).iter().sum()
    }

    /// Whether a counter has come to a whole number.
    fn counts(&self, name: &str, number: f64) -> bool {
        (self.total(name) - number).abs() < 0.5
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}

/// Keeps the text of warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _written = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "lockapi" && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Warnings {
    fn have(&self, what: &str, key: &str) -> bool {
        let warnings = self.0.lock().unwrap();
        warnings
            .iter()
            .any(|text| text.contains(what) && text.contains(key))
    }
}

fn eventually(what: &str, check: impl Fn() -> bool) {
    for _ in 0..1500 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never happened: {what}");
}

/// One test: the recorder and the subscriber are the process's.
#[test]
fn everything_is_told() {
    let kept = Kept::default();
    assert!(metrics::set_global_recorder(kept.clone()).is_ok());
    let warnings = Warnings::default();
    tracing::subscriber::set_global_default(warnings.clone()).unwrap();

    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let options = Options::default()
        .warn_waited(Duration::from_secs(5))
        .warn_held(Duration::from_secs(10));
    let backend = Backend::connect(database.connect_with(options)).unwrap();

    // Held for 4 s and waited for just as long: nobody is warned.
    let mutex = backend.mutex("brief").unwrap();
    let guard = mutex.lock().unwrap();
    assert!(mutex.try_lock().unwrap().is_none());
    clock.advance(Duration::from_secs(4));
    guard.unlock().unwrap();
    assert_eq!(kept.values("lockapi_hold_seconds mutex"), [4.0]);
    assert_eq!(kept.values("lockapi_wait_seconds mutex"), [0.0]);
    assert!(kept.total("lockapi_contended_total mutex") >= 1.0);
    assert!(!warnings.have("long", "brief"));

    // Held for 20 s, waited for likewise.
    let mutex = backend.mutex("long").unwrap();
    let guard = mutex.lock().unwrap();
    let contended = kept.total("lockapi_contended_total mutex");
    let waiter = mutex.clone();
    let waiting = std::thread::spawn(move || waiter.lock().unwrap().unlock().unwrap());
    eventually("it waits", || {
        kept.total("lockapi_contended_total mutex") > contended
    });
    clock.advance(Duration::from_secs(20));
    guard.unlock().unwrap();
    waiting.join().unwrap();
    assert!(kept.values("lockapi_wait_seconds mutex").contains(&20.0));
    assert!(warnings.have("held long", "long") && warnings.have("waited long", "long"));

    let terms = Terms::new(Duration::from_mins(1)).renewed_by_hand();
    let lease = backend.lease("job", terms).unwrap();
    let guard = lease.acquire().unwrap();
    assert!(lease.try_acquire().unwrap().is_none());
    guard.renew().unwrap();
    clock.advance(Duration::from_secs(61));
    guard.lost();
    drop(guard);
    assert!(kept.counts("lockapi_renewals_total done", 1.0));
    assert!(kept.counts("lockapi_contended_total lease", 1.0));
    assert!(kept.counts("lockapi_lost_total lease", 1.0));
    assert_eq!(kept.values("lockapi_hold_seconds lease"), [61.0]);
    assert!(warnings.have("lost", "lease"));

    let guard = backend.mutex("gone").unwrap().lock().unwrap();
    database.sever();
    clock.advance(Duration::from_secs(2));
    guard.lost();
    eventually("the loss is counted", || {
        kept.total("lockapi_lost_total mutex") >= 1.0
    });

    let queue = backend.queue("work").unwrap();
    let jobs = (0..3).map(|n| Job::new("send", &n).unwrap()).collect();
    queue.push_all(jobs).unwrap();
    let claimed = queue.claim(&Claim::new(2)).unwrap();
    queue.statistics().unwrap();
    assert!(kept.counts("lockapi_claimed_total work", 2.0));
    assert_eq!(kept.values("lockapi_queue_jobs work ready"), [1.0]);
    assert_eq!(kept.values("lockapi_queue_jobs work running"), [2.0]);
    assert!(!kept.values("lockapi_batch_size queue.push").is_empty());
    assert!(!kept.values("lockapi_batch_size mutex.step").is_empty());
    drop(claimed);
}
