//! Traces through a queue, for OpenTelemetry.

use std::sync::LazyLock;

use opentelemetry::global::{self, get_text_map_propagator};
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{
    FutureExt, Link, SpanBuilder, SpanKind, Status, TraceContextExt, WithContext,
};
use opentelemetry::{Context, ContextGuard, InstrumentationScope, KeyValue};

use crate::engine::catch_panic;
use crate::queue::{Delivery, Headers};

pub(super) static SCOPE: LazyLock<InstrumentationScope> = LazyLock::new(|| {
    InstrumentationScope::builder("lockapi")
        .with_version(env!("CARGO_PKG_VERSION"))
        .build()
});

/// Adds the context of the caller to the headers of a job that it pushes, in the words of the propagator
/// of the program, unless the job has one of its own. What does not fit is left out: a push does not fail
/// because it is traced.
pub(super) fn inject(headers: &mut Headers) {
    let mut context = Writer(Vec::new());
    // Its panic must not be one of the push.
    catch_panic(|| {
        get_text_map_propagator(|propagator| {
            if !propagator
                .fields()
                .any(|field| headers.get(field).is_some())
            {
                propagator.inject(&mut context);
            }
        });
    });
    // What others build on comes first.
    context.0.sort_by_key(|(name, _)| name != TRACEPARENT);
    for (name, value) in context.0 {
        let alone = name == TRACESTATE && headers.get(TRACEPARENT).is_none();
        if alone || headers.get(&name).is_some() {
            continue;
        }
        headers.insert(&*name, value);
        if headers.check().is_err() {
            headers.remove(&name);
        }
    }
}

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

struct Writer(Vec<(String, String)>);

impl Injector for Writer {
    fn set(&mut self, key: &str, value: String) {
        // An empty tracestate says nothing.
        if !value.is_empty() {
            self.0.push((key.to_ascii_lowercase(), value));
        }
    }
}

struct Reader<'a>(&'a Headers);

impl Extractor for Reader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name).collect()
    }
}

/// The context in which a handler runs: that of its span.
#[derive(Clone)]
pub(super) struct Processing(Context);

impl Processing {
    /// Starts the span of an attempt. One that is the first goes on with the trace of whoever pushed the job; each further
    /// one, which may be days later, is a trace of its own, with a link to it.
    pub(super) fn of(job: &Delivery) -> Self {
        let mut started = None;
        // A panic of the propagator, or of the provider of tracers, must not be one of the worker.
        catch_panic(|| started = Some(Self::started(job)));
        started.unwrap_or_else(|| Self(Context::new()))
    }

    fn started(job: &Delivery) -> Self {
        let pushed = get_text_map_propagator(|propagator| {
            propagator.extract_with_context(&Context::new(), &Reader(job.headers()))
        });
        let creation = pushed.span().span_context().clone();
        let (parent, links) = if job.attempt() > 1 && creation.is_valid() {
            (Context::new(), vec![Link::with_context(creation)])
        } else {
            (pushed.clone(), Vec::new())
        };
        let queue = job.queue();
        let builder = SpanBuilder::from_name(format!("process {}", queue.name()))
            .with_kind(SpanKind::Consumer)
            .with_attributes([
                KeyValue::new("messaging.system", "lockapi"),
                KeyValue::new("messaging.destination.name", queue.name().to_owned()),
                KeyValue::new("messaging.operation.type", "process"),
                KeyValue::new("messaging.operation.name", "process"),
                KeyValue::new("messaging.message.id", job.id().to_string()),
                KeyValue::new("lockapi.namespace", queue.namespace().to_owned()),
                KeyValue::new("lockapi.job.name", job.name().to_owned()),
                KeyValue::new("lockapi.job.attempt", i64::from(job.attempt())),
            ])
            .with_links(links);
        let tracer = global::tracer_with_scope(SCOPE.clone());
        let span = builder.start_with_context(&tracer, &parent);
        // With what else came along, such as baggage.
        Self(pushed.with_span(span))
    }

    pub(super) fn current() -> Self {
        Self(Context::current())
    }

    pub(super) fn attach(&self) -> ContextGuard {
        self.0.clone().attach()
    }

    pub(super) fn around<F>(&self, work: F) -> WithContext<F> {
        work.with_context(self.0.clone())
    }

    /// Ends the span; answers the type of the error, if it was one.
    pub(super) fn ended(&self, outcome: &'static str) -> Option<&'static str> {
        let error = Some(outcome).filter(|it| matches!(*it, "failed" | "rejected" | "lost"));
        // Processors of spans run here.
        catch_panic(|| {
            let span = self.0.span();
            span.set_attribute(KeyValue::new("lockapi.job.outcome", outcome));
            if let Some(error) = error {
                span.set_attribute(KeyValue::new("error.type", error));
                // Errors of handlers may hold data.
                span.set_status(Status::error(""));
            }
            span.end();
        });
        error
    }
}
