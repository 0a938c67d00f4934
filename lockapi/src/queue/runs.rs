//! Jobs that are runs of recurring tasks, on the model.

use super::model::{Jobs, LiveJob, Status};
use super::{Name, NewJob};

/// What has become of a run's job.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunState {
    pub(crate) status: &'static str,
    pub(crate) node: Option<String>,
    pub(crate) started_at: Option<i64>,
    pub(crate) completed_at: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) token: Option<i64>,
    pub(crate) attempt: i64,
}

impl RunState {
    fn of(live: &LiveJob, status: &'static str, completed_at: Option<i64>) -> Self {
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            status,
            node: text(&live.worker),
            started_at: live.started_at,
            completed_at,
            error: text(&live.error),
            token: live.running.map(|running| running.token),
            attempt: live.attempt,
        }
    }
}

impl Jobs {
    /// Pushes a run of a task that was due at `due`, with a unique key if it has one.
    #[allow(clippy::too_many_arguments, reason = "they are columns")]
    pub(crate) fn push_run(
        &mut self,
        now: i64,
        due: i64,
        queue: &Name,
        task: &str,
        job: &NewJob,
        unique_key: &str,
    ) -> i64 {
        let id = self.push(now, &queue.namespace, &queue.queue, job, unique_key);
        if let Some(live) = self.live.get_mut(&id) {
            task.clone_into(&mut live.task);
            live.created_at = due;
        }
        id
    }

    /// Deliveries of runs of a queue: the job, its task, and when the delivery began.
    pub(crate) fn delivered_runs<'a>(
        &'a self,
        queue: &'a Name,
    ) -> impl Iterator<Item = (i64, &'a str, i64)> {
        let live = self.live.iter();
        live.filter(|(_, live)| live.queue == *queue && live.running.is_some())
            .filter(|(_, live)| !live.task.is_empty())
            .filter_map(|(id, live)| Some((*id, &*live.task, live.started_at?)))
    }

    /// Ends a job as a dead letter.
    pub(crate) fn fail(&mut self, id: i64, now: i64, error: &str) {
        self.end(id, Status::Failed, now, error, super::FOR_EVER);
    }

    pub(crate) fn is_live(&self, id: i64) -> bool {
        self.live.contains_key(&id)
    }

    pub(crate) fn forget(&mut self, id: i64) {
        self.ended.remove(&id);
    }

    pub(crate) fn run_state(&self, id: i64, now: i64) -> RunState {
        if let Some(live) = self.live.get(&id) {
            let status = if live.is_held(now) {
                "running"
            } else {
                "pending"
            };
            return RunState::of(live, status, None);
        }
        let Some(ended) = self.ended.get(&id) else {
            return RunState {
                status: "deleted",
                ..RunState::default()
            };
        };
        let status = match ended.status {
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        };
        RunState::of(&ended.job, status, Some(ended.at))
    }
}
