//! A recorder that keeps all values of metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Recorder,
    SharedString, Unit,
};

type Values = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

/// Keeps every value by its name and labels, and which names were described.
#[derive(Clone, Default)]
pub(super) struct Kept(Values, Arc<Mutex<BTreeSet<String>>>);

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

    pub(super) fn values(&self, name: &str) -> Vec<f64> {
        self.0
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        let values = self.0.lock().unwrap();
        let names = values.keys().filter_map(|name| name.split(' ').next());
        names.map(ToOwned::to_owned).collect()
    }

    pub(super) fn is_described(&self, name: &str) -> bool {
        self.1.lock().unwrap().contains(name)
    }

    pub(super) fn total(&self, name: &str) -> f64 {
        self.values(name).iter().sum()
    }

    /// Whether a counter has come to a whole number.
    pub(super) fn counts(&self, name: &str, number: f64) -> bool {
        (self.total(name) - number).abs() < 0.5
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(unit.is_some() && text.ends_with('.'));
        self.1.lock().unwrap().insert(name.as_str().to_owned());
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe_counter(name, unit, text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe_counter(name, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }

    fn register_histogram(&self, key: &Key, _: &metrics::Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
    }
}
