//! A subscriber that keeps spans and events.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// What became of a span.
#[derive(Clone, Default)]
pub(super) struct SpanSeen {
    pub(super) text: String,
    pub(super) parent: Option<u64>,
    pub(super) follows: Vec<u64>,
    entered: usize,
    handles: usize,
    metadata: Option<&'static Metadata<'static>>,
}

/// Keeps spans, and events together with the names of the spans that they were told in.
#[derive(Clone, Default)]
pub(super) struct Told(pub(super) Arc<Mutex<Seen>>);

#[derive(Default)]
pub(super) struct Seen {
    pub(super) spans: Vec<SpanSeen>,
    pub(super) events: Vec<String>,
}

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _written = write!(self.0, "{field}={value:?} ");
    }
}

fn here() -> Option<u64> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

impl Subscriber for Told {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["lockapi", "program"].contains(&metadata.target())
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let mut text = Text(format!("{} {} ", metadata.name(), metadata.level()));
        attributes.record(&mut text);
        let contextual = attributes.is_contextual().then(here).flatten();
        let mut seen = self.0.lock().unwrap();
        seen.spans.push(SpanSeen {
            text: text.0,
            parent: attributes.parent().map(Id::into_u64).or(contextual),
            handles: 1,
            metadata: Some(metadata),
            ..SpanSeen::default()
        });
        Id::from_u64(seen.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut text = Text(String::new());
        values.record(&mut text);
        self.change(span, |seen| seen.text.push_str(&text.0));
    }

    fn record_follows_from(&self, span: &Id, before: &Id) {
        self.change(span, |seen| seen.follows.push(before.into_u64()));
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        let mut seen = self.0.lock().unwrap();
        if let Some(span) = here() {
            let (name, _) = seen.span(span).text.split_once(' ').unwrap();
            text.0 = format!("{name}: {}", text.0);
        }
        seen.events.push(text.0);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
        self.change(span, |seen| seen.entered += 1);
    }

    fn exit(&self, span: &Id) {
        let left = ENTERED.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(span.into_u64()), "spans are left in order");
        self.change(span, |seen| seen.entered -= 1);
    }

    fn current_span(&self) -> Current {
        let seen = self.0.lock().unwrap();
        let current = here().and_then(|id| Some((id, seen.span(id).metadata?)));
        current.map_or_else(Current::none, |(id, metadata)| {
            Current::new(Id::from_u64(id), metadata)
        })
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.change(span, |seen| seen.handles += 1);
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        self.change(&span, |seen| seen.handles -= 1);
        self.0.lock().unwrap().span(span.into_u64()).handles == 0
    }
}

impl Seen {
    fn span(&self, id: u64) -> &SpanSeen {
        &self.spans[usize::try_from(id).unwrap() - 1]
    }
}

impl Told {
    fn change(&self, span: &Id, change: impl FnOnce(&mut SpanSeen)) {
        let at = usize::try_from(span.into_u64()).unwrap() - 1;
        // A subscriber must not panic while the test does.
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut seen.spans[at]);
    }

    /// Whether there was an event with all of these parts.
    pub(super) fn has(&self, parts: &[&str]) -> bool {
        self.events(parts) > 0
    }

    /// How many events have all of these parts.
    pub(super) fn events(&self, parts: &[&str]) -> usize {
        let seen = self.0.lock().unwrap();
        let has = |text: &&String| parts.iter().all(|part| text.contains(part));
        seen.events.iter().filter(has).count()
    }

    /// The spans with all of these parts; each of them is over.
    pub(super) fn spans(&self, parts: &[&str]) -> Vec<SpanSeen> {
        let seen = self.0.lock().unwrap();
        let spans = seen.spans.iter();
        let has = |span: &&SpanSeen| parts.iter().all(|part| span.text.contains(part));
        let spans: Vec<_> = spans.filter(has).cloned().collect();
        for span in &spans {
            assert_eq!((span.handles, span.entered), (0, 0), "{}", span.text);
        }
        spans
    }
}
