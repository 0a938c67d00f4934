//! What is told to OpenTelemetry of a job, from its push to the end of each of its attempts.

use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockapi::Queue;
use lockapi::blocking;
use lockapi::memory::Database;
use lockapi::queue::{Claim, Job, MAX_HEADERS};
use lockapi::worker::{Context as Working, Failed, Worker};
use opentelemetry::global;
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

/// The exporter of the process, which all tests share.
fn exporter() -> &'static InMemorySpanExporter {
    static EXPORTER: OnceLock<InMemorySpanExporter> = OnceLock::new();
    EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
        global::set_tracer_provider(provider.build());
        global::set_text_map_propagator(TraceContextPropagator::new());
        global::set_meter_provider(meters().0.clone());
        exporter
    })
}

/// What metrics are recorded with, and where they go.
fn meters() -> &'static (SdkMeterProvider, InMemoryMetricExporter) {
    static METERS: OnceLock<(SdkMeterProvider, InMemoryMetricExporter)> = OnceLock::new();
    METERS.get_or_init(|| {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone());
        (provider.build(), exporter)
    })
}

/// The latest counts of a metric for a queue, with the types of errors.
fn measured(metric: &str, queue: &str) -> Vec<(String, u64)> {
    let (provider, exporter) = meters();
    provider.force_flush().unwrap();
    let last = exporter.get_finished_metrics().unwrap().pop().unwrap();
    let metrics = last.scope_metrics().flat_map(ScopeMetrics::metrics);
    let found = metrics.filter(|it| it.name() == metric);
    let mut counts = Vec::new();
    let mut add = |attributes: &mut dyn Iterator<Item = &KeyValue>, count| {
        let attributes: Vec<_> = attributes.collect();
        let value = |key: &str| {
            let found = attributes.iter().find(|it| it.key.as_str() == key);
            found.map_or_else(String::new, |it| it.value.to_string())
        };
        if value("messaging.destination.name") == queue {
            assert_eq!(value("messaging.system"), "lockapi");
            counts.push((value("error.type"), count));
        }
    };
    for metric in found {
        match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                for point in sum.data_points() {
                    add(&mut point.attributes(), point.value());
                }
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                for point in histogram.data_points() {
                    add(&mut point.attributes(), point.count());
                }
            }
            other => panic!("{other:?}"),
        }
    }
    counts.sort();
    counts
}

#[tokio::test]
async fn jobs_are_measured_by_the_conventions() {
    let queue = queue("measured").await;
    let jobs = [1_u8, 2, 3].map(|nth| Job::new("welcome", &nth).unwrap());
    queue.push_all(jobs.into()).await.unwrap();
    let worker = Worker::new(queue.clone()).handle("welcome", async |nth: u8, _: Working| {
        if nth == 2 {
            return Err(Failed::reject("no"));
        }
        Ok(())
    });
    worker.run_until_idle().await.unwrap();
    let none = String::new;
    for metric in [
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
    ] {
        assert_eq!(measured(metric, "measured"), [(none(), 3)], "{metric}");
    }
    assert_eq!(
        measured("messaging.process.duration", "measured"),
        [(none(), 2), ("rejected".to_owned(), 1)]
    );
}

fn attribute(span: &SpanData, key: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key.as_str() == key);
    found.map_or_else(String::new, |it| it.value.to_string())
}

/// The ended spans of the jobs of a queue, in their order.
fn processed(queue: &str) -> Vec<SpanData> {
    let mut spans = exporter().get_finished_spans().unwrap();
    spans.retain(|span| attribute(span, "messaging.destination.name") == queue);
    spans
}

async fn queue(name: &str) -> Arc<dyn Queue> {
    exporter();
    let backend = Database::new().connect().await.unwrap();
    backend.queue(name).unwrap()
}

/// A span of the program.
fn span() -> Context {
    let span = global::tracer("program").start("request");
    Context::new().with_span(span)
}

fn identity(context: &Context) -> SpanContext {
    context.span().span_context().clone()
}

fn traceparent(span: &SpanContext) -> String {
    format!(
        "00-{}-{}-{:02x}",
        span.trace_id(),
        span.span_id(),
        span.trace_flags().to_u8()
    )
}

#[tokio::test]
async fn first_attempt_goes_on_with_the_trace_and_later_ones_are_linked() {
    let queue = queue("attempts").await;
    let request = span();
    let job = Job::new("welcome", &1).unwrap().max_attempts(3);
    let pushed = queue.push(job).with_context(request.clone()).await.unwrap();
    let request = identity(&request);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handled = Arc::clone(&seen);
    let worker = Worker::new(queue.clone()).handle("welcome", move |_: u8, job: Working| {
        let handled = Arc::clone(&handled);
        async move {
            tokio::task::yield_now().await;
            handled.lock().unwrap().push(identity(&Context::current()));
            assert!(job.header("traceparent").is_some());
            match job.attempt() {
                1 => Err(Failed::retry_after("a secret", Duration::ZERO)),
                2 => Err(Failed::reject("a secret")),
                _ => Ok(()),
            }
        }
    });
    worker.run_until_idle().await.unwrap();
    let letter = queue.dead_letters(0, 1).await.unwrap().remove(0);
    assert_eq!(
        letter.headers.get("traceparent"),
        Some(&*traceparent(&request))
    );
    assert!(
        !identity(&Context::current()).is_valid(),
        "nothing stays attached"
    );

    let spans = processed("attempts");
    let [first, second] = spans.as_slice() else {
        panic!("{spans:?}");
    };
    assert_eq!(first.span_context.trace_id(), request.trace_id());
    assert_eq!(first.parent_span_id, request.span_id());
    assert!(first.parent_span_is_remote && first.links.is_empty());
    assert_ne!(second.span_context.trace_id(), request.trace_id());
    assert_eq!(second.parent_span_id, SpanId::INVALID);
    let links: Vec<_> = second
        .links
        .iter()
        .map(|it| it.span_context.clone())
        .collect();
    assert_eq!(links.len(), 1);
    assert_eq!(links[0].trace_id(), request.trace_id());
    assert_eq!(links[0].span_id(), request.span_id());
    let ran_in: Vec<_> = spans.iter().map(|it| it.span_context.clone()).collect();
    assert_eq!(*seen.lock().unwrap(), ran_in);
    for (span, attempt, outcome) in [(first, "1", "failed"), (second, "2", "rejected")] {
        assert_eq!(
            (&*span.name, span.span_kind.clone()),
            ("process attempts", SpanKind::Consumer)
        );
        for (key, value) in [
            ("messaging.system", "lockapi"),
            ("messaging.operation.type", "process"),
            ("messaging.operation.name", "process"),
            ("messaging.message.id", &*pushed.id.to_string()),
            ("lockapi.namespace", queue.namespace()),
            ("lockapi.job.name", "welcome"),
            ("lockapi.job.attempt", attempt),
            ("lockapi.job.outcome", outcome),
            ("error.type", outcome),
        ] {
            assert_eq!(attribute(span, key), value, "{key}");
        }
        assert_eq!(span.status, Status::error(""));
        assert!(!format!("{span:?}").contains("secret"));
        assert_eq!(span.instrumentation_scope.name(), "lockapi");
    }
}

#[tokio::test]
async fn what_a_handler_pushes_is_in_its_trace() {
    let queue = queue("chain").await;
    let next = queue.clone();
    let worker = Worker::new(queue.clone()).handle("step", move |left: u8, _: Working| {
        let next = next.clone();
        async move {
            if left > 0 {
                next.push(Job::new("step", &(left - 1))?).await?;
            }
            Ok(())
        }
    });
    queue.push(Job::new("step", &2).unwrap()).await.unwrap();
    worker.run_until_idle().await.unwrap();
    let spans = processed("chain");
    assert_eq!(spans.len(), 3);
    assert_eq!(spans[0].parent_span_id, SpanId::INVALID);
    for pair in spans.windows(2) {
        assert_eq!(
            pair[1].span_context.trace_id(),
            pair[0].span_context.trace_id()
        );
        assert_eq!(pair[1].parent_span_id, pair[0].span_context.span_id());
        assert_eq!(attribute(&pair[0], "lockapi.job.outcome"), "done");
        assert_eq!(pair[0].status, Status::Unset);
    }
}

#[tokio::test]
async fn push_writes_no_more_than_it_may() {
    let queue = queue("written").await;
    let headers = async |job: Job, context: Context| {
        queue.push(job).with_context(context).await.unwrap();
        let delivery = queue.claim(&Claim::new(1)).await.unwrap().remove(0);
        let headers = delivery.headers().clone();
        delivery.ack().await.unwrap();
        headers
    };
    let job = || Job::new("welcome", &1).unwrap();
    assert!(headers(job(), Context::new()).await.is_empty(), "no span");
    let request = span();
    let written = traceparent(&identity(&request));
    let of_program = headers(job().header("x-tenant", "7"), request.clone()).await;
    assert_eq!(of_program.get("traceparent"), Some(&*written));
    assert_eq!(of_program.get("x-tenant"), Some("7"));
    assert_eq!(of_program.len(), 2, "no empty tracestate");
    let state = TraceState::from_str("vendor=1").unwrap();
    let remote = identity(&request);
    let (trace, span) = (remote.trace_id(), remote.span_id());
    let remote = SpanContext::new(trace, span, remote.trace_flags(), true, state);
    let remote = Context::new().with_remote_span_context(remote);
    let with_state = headers(job(), remote).await;
    assert_eq!(with_state.get("tracestate"), Some("vendor=1"));
    assert_eq!(with_state.get("traceparent"), Some(&*written));
    let own = headers(job().header("traceparent", "own"), request.clone()).await;
    assert_eq!(own.iter().collect::<Vec<_>>(), [("traceparent", "own")]);
    let full = (0..MAX_HEADERS).fold(job(), |job, nth| job.header(nth.to_string(), ""));
    let full = headers(full, request).await;
    assert_eq!((full.len(), full.get("traceparent")), (MAX_HEADERS, None));
}

#[test]
fn blocking_handlers_run_in_their_span() {
    exporter();
    let backend = blocking::Backend::connect(Database::new().connect()).unwrap();
    let queue = backend.queue("threads").unwrap();
    let request = span();
    {
        let _attached = request.clone().attach();
        queue.push(Job::new("welcome", &1).unwrap()).unwrap();
    }
    let seen = Arc::new(Mutex::new(None));
    let handled = Arc::clone(&seen);
    let worker = blocking::Worker::new(&queue).handle("welcome", move |_: u8, _| {
        *handled.lock().unwrap() = Some(identity(&Context::current()));
        Ok(())
    });
    worker.run_until_idle().unwrap();
    let span = processed("threads").remove(0);
    assert_eq!(span.parent_span_id, identity(&request).span_id());
    assert_eq!(seen.lock().unwrap().take(), Some(span.span_context));
}
