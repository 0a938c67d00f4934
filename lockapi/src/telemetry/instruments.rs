//! Metrics of queues by OpenTelemetry's conventions for messaging.

use std::sync::LazyLock;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::global;
use opentelemetry::metrics::{Counter, Histogram};

use super::traces::SCOPE;
use crate::engine::catch_panic;

struct Instruments {
    sent: Counter<u64>,
    consumed: Counter<u64>,
    process: Histogram<f64>,
}

/// Of the provider that the program has set by the first use.
static INSTRUMENTS: LazyLock<Instruments> = LazyLock::new(|| {
    let meter = global::meter_with_scope(SCOPE.clone());
    Instruments {
        sent: meter
            .u64_counter("messaging.client.sent.messages")
            .with_unit("{message}")
            .with_description("Jobs that were to be pushed.")
            .build(),
        consumed: meter
            .u64_counter("messaging.client.consumed.messages")
            .with_unit("{message}")
            .with_description("Jobs that were claimed.")
            .build(),
        process: meter
            .f64_histogram("messaging.process.duration")
            .with_unit("s")
            .with_description("How long a handler ran.")
            .with_boundaries(vec![
                0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
            ])
            .build(),
    }
});

fn of(queue: &str, operation: &'static str) -> Vec<KeyValue> {
    vec![
        KeyValue::new("messaging.system", "lockapi"),
        KeyValue::new("messaging.destination.name", queue.to_owned()),
        KeyValue::new("messaging.operation.name", operation),
    ]
}

pub(super) fn sent(queue: &str) {
    catch_panic(|| INSTRUMENTS.sent.add(1, &of(queue, "push")));
}

pub(super) fn consumed(queue: &str, jobs: usize) {
    catch_panic(|| INSTRUMENTS.consumed.add(jobs as u64, &of(queue, "claim")));
}

/// `error` is what a handler that did not succeed ended as.
pub(super) fn processed(queue: &str, error: Option<&'static str>, took: Duration) {
    let mut attributes = of(queue, "process");
    attributes.extend(error.map(|error| KeyValue::new("error.type", error)));
    catch_panic(|| INSTRUMENTS.process.record(took.as_secs_f64(), &attributes));
}
