//! Listing the jobs of a queue.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use lockapi::Backend;
use lockapi::admin::{JobFilter, JobPlace, JobState};

use super::entries::Page;
use crate::arguments::Global;
use crate::failure::Result;

/// List jobs that wait or run, in the order in which they are claimed, or those that ended, the latest first
#[derive(Debug, Args)]
pub(crate) struct Jobs {
    /// The queue
    queue: String,
    #[command(flatten)]
    those: Matching,
    /// After a page, whose end it told
    #[arg(long, value_name = "PLACE")]
    after: Option<JobPlace>,
    /// At most so many, up to 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: usize,
}

/// Which jobs of a queue.
#[derive(Debug, Args)]
pub(super) struct Matching {
    /// Of this name only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// In this state only
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Of this group only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// With this tag only
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    tag: Option<String>,
}

impl Matching {
    pub(super) fn filter(self, queue: &str) -> JobFilter {
        let mut filter = JobFilter::queue(queue);
        if let Some(name) = self.name {
            filter = filter.name(name);
        }
        if let Some(state) = self.state {
            filter = filter.state(state.into());
        }
        if let Some(group) = self.group {
            filter = filter.group(group);
        }
        if let Some(tag) = self.tag {
            filter = filter.tag(tag);
        }
        filter
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum State {
    /// Due, and waiting for a worker
    Ready,
    /// On a worker
    Running,
    /// Not due yet
    Delayed,
    /// Completed, where the queue keeps them
    Completed,
    /// Dead letters
    Failed,
    /// Cancelled
    Cancelled,
}

impl From<State> for JobState {
    fn from(state: State) -> Self {
        match state {
            State::Ready => Self::Ready,
            State::Running => Self::Running,
            State::Delayed => Self::Delayed,
            State::Completed => Self::Completed,
            State::Failed => Self::Failed,
            State::Cancelled => Self::Cancelled,
        }
    }
}

impl Jobs {
    pub(super) async fn run(self, global: &Global, backend: &dyn Backend) -> Result<()> {
        let mut filter = self.those.filter(&self.queue).limit(self.limit);
        if let Some(place) = self.after {
            filter = filter.after(place);
        }
        let page = backend.inspector().jobs(&filter).await?;
        if page.jobs.is_empty() && page.next.is_none() {
            super::look::look_first(backend, &self.queue).await;
        }
        let page = Page::new(page, backend.namespace(), &self.queue);
        if global.json {
            return global.output().value(&page, |_| String::new());
        }
        global.output().entries(&page.jobs)?;
        page.tell_next();
        Ok(())
    }
}
