//! Traces through queues, with propagators of the program that write what they do not list, and that panic.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockapi::Queue;
use lockapi::memory::Database;
use lockapi::queue::{Claim, Job, MAX_HEADERS};
use lockapi::worker::{Context as Working, Worker};
use opentelemetry::baggage::BaggageExt;
use opentelemetry::propagation::{
    Extractor, Injector, TextMapCompositePropagator, TextMapPropagator,
    text_map_propagator::FieldIter,
};
use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

/// Of a program: it writes the tenant of the caller, and lists a field of its own only. It slices what it reads, as
/// many do.
#[derive(Debug)]
struct OfProgram(Vec<String>);

impl TextMapPropagator for OfProgram {
    fn inject_context(&self, context: &Context, injector: &mut dyn Injector) {
        if let Some(tenant) = context.baggage().get("tenant") {
            injector.set("x-tenant", tenant.to_string());
        }
    }

    fn extract_with_context(&self, context: &Context, extractor: &dyn Extractor) -> Context {
        if let Some(id) = extractor.get("x-request-id") {
            assert!(
                id.is_char_boundary(4),
                "byte index 4 is not a char boundary"
            );
        }
        context.clone()
    }

    fn fields(&self) -> FieldIter<'_> {
        FieldIter::new(&self.0)
    }
}

fn exporter() -> &'static InMemorySpanExporter {
    static EXPORTER: OnceLock<InMemorySpanExporter> = OnceLock::new();
    EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
        global::set_tracer_provider(provider.build());
        global::set_text_map_propagator(TextMapCompositePropagator::new(vec![
            Box::new(TraceContextPropagator::new()),
            Box::new(BaggagePropagator::new()),
            Box::new(OfProgram(vec!["x-request-id".to_owned()])),
        ]));
        exporter
    })
}

fn processed(queue: &str) -> Vec<SpanData> {
    let mut spans = exporter().get_finished_spans().unwrap();
    spans.retain(|span| span.name == format!("process {queue}"));
    spans
}

async fn queue(name: &str) -> Arc<dyn Queue> {
    exporter();
    Database::new()
        .connect()
        .await
        .unwrap()
        .queue(name)
        .unwrap()
}

fn span() -> Context {
    Context::new().with_span(global::tracer("program").start("request"))
}

fn job() -> Job {
    Job::new("welcome", &1).unwrap()
}

async fn headers(queue: &Arc<dyn Queue>, job: Job, context: Context) -> Vec<(String, String)> {
    queue.push(job).with_context(context).await.unwrap();
    let delivery = queue.claim(&Claim::new(1)).await.unwrap().remove(0);
    let headers = delivery.headers().clone();
    delivery.ack().await.unwrap();
    let headers = headers
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    headers.collect()
}

fn names(headers: &[(String, String)]) -> Vec<&str> {
    headers.iter().map(|(name, _)| &**name).collect()
}

#[tokio::test]
async fn a_header_of_the_program_is_not_replaced() {
    let queue = queue("kept").await;
    let context = Context::new().with_baggage([KeyValue::new("tenant", "9")]);
    let sent = headers(&queue, job().header("x-tenant", "7"), context).await;
    assert!(
        sent.contains(&("x-tenant".to_owned(), "7".to_owned())),
        "{sent:?}"
    );
    // It has no room: that of the program is taken away.
    let context = Context::new().with_baggage([KeyValue::new("tenant", "9".repeat(1100))]);
    let sent = headers(&queue, job().header("x-tenant", "7"), context).await;
    assert!(names(&sent).contains(&"x-tenant"), "{:?}", names(&sent));
}

/// With room for one header, the trace counts more than baggage.
#[tokio::test]
async fn baggage_does_not_displace_the_trace() {
    let queue = queue("room").await;
    let full = (1..MAX_HEADERS).fold(job(), |job, nth| job.header(format!("h{nth}"), ""));
    let context = span().with_baggage([KeyValue::new("a", "b")]);
    let sent = headers(&queue, full, context).await;
    assert!(names(&sent).contains(&"traceparent"), "{:?}", names(&sent));
}

#[tokio::test]
async fn tracestate_does_not_come_without_its_parent() {
    let queue = queue("partial").await;
    let text = "v".repeat(1000);
    let full = (0..8).fold(job(), |job, nth| {
        job.header(format!("h{nth}"), text.clone())
    });
    let full = full.header("h8", "v".repeat(8192 - 8 * 1002 - 2 - 40));
    let remote = opentelemetry::trace::SpanContext::new(
        opentelemetry::trace::TraceId::from(1_u128),
        opentelemetry::trace::SpanId::from(1_u64),
        opentelemetry::trace::TraceFlags::SAMPLED,
        true,
        opentelemetry::trace::TraceState::from_key_value([("a", "b")]).unwrap(),
    );
    let sent = headers(
        &queue,
        full,
        Context::new().with_remote_span_context(remote),
    )
    .await;
    let names = names(&sent);
    assert!(
        names.contains(&"traceparent") || !names.contains(&"tracestate"),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_job_whose_headers_break_the_propagator_does_not_end_the_worker() {
    let queue = queue("hostile").await;
    let done = Arc::new(Mutex::new(0));
    let handled = Arc::clone(&done);
    let worker = || {
        let handled = Arc::clone(&handled);
        Worker::new(queue.clone()).handle("welcome", move |_: u8, _: Working| {
            *handled.lock().unwrap() += 1;
            async { Ok(()) }
        })
    };
    queue
        .push(job().header("x-request-id", "abc\u{e9}"))
        .await
        .unwrap();
    queue.push(job()).await.unwrap();
    worker().run_until_idle().await.unwrap();
    assert_eq!(*done.lock().unwrap(), 2, "jobs that were handled");
}

#[tokio::test]
async fn malformed_traceparents_are_traces_of_their_own() {
    let queue = queue("malformed").await;
    let worker = Worker::new(queue.clone()).handle("welcome", async |_: u8, _: Working| Ok(()));
    let sent = [
        "",
        "-",
        "00",
        "00-0-0-00",
        "00-00000000000000000000000000000000-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz",
        "00-\u{e9}af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "\u{1F980}\u{1F980}\u{1F980}",
    ];
    for traceparent in sent {
        let job = job().header("traceparent", traceparent);
        queue
            .push(job.header("tracestate", "=,=,\u{e9}=\""))
            .await
            .unwrap();
    }
    worker.run_until_idle().await.unwrap();
    assert_eq!(processed("malformed").len(), sent.len());
}

/// The job that one worker hands over while it runs in a trace of its own.
#[tokio::test]
async fn contexts_stay_with_their_handlers() {
    let queue = queue("leak").await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handled = Arc::clone(&seen);
    let worker = Worker::new(queue.clone()).handle("welcome", move |nth: u64, _: Working| {
        let before = Context::current().span().span_context().trace_id();
        let handled = Arc::clone(&handled);
        async move {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..3))).await;
                let now = Context::current().span().span_context().trace_id();
                handled.lock().unwrap().push((nth, before == now, now));
            }
            assert!(!nth.is_multiple_of(3), "some panic");
            Ok(())
        }
    });
    let mut pushed = Vec::new();
    for nth in 0..16_u64 {
        let request = span();
        pushed.push(request.span().span_context().trace_id());
        let job = Job::new("welcome", &nth).unwrap().max_attempts(1);
        queue.push(job).with_context(request).await.unwrap();
    }
    let around = span();
    worker.run_until_idle().with_context(around).await.unwrap();
    for (nth, same, trace) in seen.lock().unwrap().iter() {
        assert!(
            *same && *trace == pushed[usize::try_from(*nth).unwrap()],
            "{nth}"
        );
    }
    assert!(!Context::current().span().span_context().is_valid());
}
