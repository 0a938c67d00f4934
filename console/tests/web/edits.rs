//! Changing a job that waits.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::StatusCode;
use lockapi::Backend;
use lockapi::admin::{Filter, JobDetails, JobEdit, JobState, MAX_PAYLOAD_CHARS};
use lockapi::engine::ManualClock;
use lockapi::memory::Database;
use lockapi::queue::{Claim, Job, Priority};
use lockapi_console::web::WebOptions;

use crate::visitor::{Answer, Browser, MINUTE, backend};

struct Waiting {
    backend: Arc<dyn Backend>,
    id: i64,
}

impl Waiting {
    async fn new() -> Self {
        let backend = backend().await;
        let job = Job::new("send", &"to ada").unwrap().delay(MINUTE);
        let queue = backend.queue("mails").unwrap();
        let id = queue.push(job).await.unwrap().id;
        Self { backend, id }
    }

    fn browser(&self, payloads: bool) -> Browser {
        let options = WebOptions::new().actions(true).payloads(payloads);
        Browser::of(&self.backend, options)
    }

    async fn now(&self) -> JobDetails {
        let read = self.backend.inspector().job(self.id, true).await;
        read.unwrap().unwrap()
    }

    async fn acts(&self) -> Vec<String> {
        let audit = self.backend.inspector().audit(&Filter::new()).await;
        let entries = audit.unwrap().into_iter().rev();
        entries
            .map(|entry| format!("{} {}: {}", entry.action, entry.target, entry.reason))
            .collect()
    }

    fn address(&self) -> String {
        format!("/edit?name=mails&id={}", self.id)
    }

    /// Fills in the form: the fields that it has, but for `fields`.
    async fn edit(&self, browser: &mut Browser, fields: &[(&str, &str)]) -> Answer {
        let asked = browser.get(&self.address()).await;
        assert_eq!(asked.status, StatusCode::OK, "{}", asked.body);
        browser.submit(&asked, fields).await
    }
}

#[tokio::test]
async fn a_job_that_waits_is_changed_with_a_reason() {
    let waiting = Waiting::new().await;
    let mut browser = waiting.browser(true);
    let page = browser.get(&format!("/job?id={}", waiting.id)).await;
    let link = format!("/edit?name=mails&amp;id={}", waiting.id);
    assert!(page.body.contains(&link), "{}", page.body);
    let form = browser.get(&waiting.address()).await.body;
    for field in [
        "<label for=\"priority\">",
        "<label for=\"payload\">",
        "<label for=\"reason\">",
        "<legend>",
        "&quot;to ada&quot;</textarea>",
    ] {
        assert!(form.contains(field), "no {field}: {form}");
    }
    let at = [
        ("due", "at"),
        ("at", "2100-03-01T00:00:00Z"),
        ("payload", "\"to ada\""),
        ("reason", "not by day"),
    ];
    let done = waiting.edit(&mut browser, &at).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert_eq!(waiting.now().await.job.state, JobState::Delayed);
    let all = [
        ("due", "now"),
        ("priority", "urgent"),
        ("attempts", "3"),
        ("payload", "{\r\n  \"to\": \"bob\"\r\n}"),
        ("reason", "the customer waits"),
    ];
    let done = waiting.edit(&mut browser, &all).await;
    assert!(done.body.contains("is changed"), "{}", done.body);
    let now = waiting.now().await;
    assert_eq!(now.job.state, JobState::Ready);
    assert_eq!(now.job.priority, Priority::Urgent);
    assert_eq!(now.job.max_attempts, 3);
    let payload = now.payload.unwrap();
    assert!(
        payload.contains("bob") && !payload.contains('\r'),
        "{payload}"
    );
    let acts = waiting.acts().await;
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert!(
        acts[0].contains("due at 2100-03-01") && !acts[0].contains("payload"),
        "{acts:?}"
    );
    assert!(acts[1].contains("due now, priority urgent, 3 attempts, a payload of"));
    assert!(acts[1].ends_with("the customer waits (on this machine)"));
}

#[tokio::test]
async fn what_is_wrong_with_an_edit_is_told_and_nothing_is_done() {
    let waiting = Waiting::new().await;
    let mut browser = waiting.browser(true);
    for (field, told) in [
        (("reason", " "), "no reason is given"),
        (("due", "soon"), "allowed are keep, now and at"),
        (("at", "tomorrow"), "2030-01-01T03:00:00Z"),
        (("priority", "most"), "urgent, high, normal and low"),
        (("attempts", "0"), "1 to 1,000,000"),
        (("attempts", "many"), "1 to 1,000,000"),
        (("payload", "{"), "not JSON"),
    ] {
        let due = if field.0 == "at" { "at" } else { "now" };
        let mut fields = vec![("reason", "why"), ("due", due)];
        fields.retain(|(name, _)| *name != field.0);
        fields.push(field);
        let answer = waiting.edit(&mut browser, &fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field:?}");
        assert!(answer.body.contains(told), "{field:?}: {}", answer.body);
        let kept = field.0 == "reason" || answer.body.contains("value=\"why\"");
        assert!(kept, "what was written is kept: {}", answer.body);
    }
    let nothing = [("due", "keep"), ("reason", "why")];
    let answer = waiting.edit(&mut browser, &nothing).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.body.contains("changes nothing"), "{}", answer.body);
    for wrong in [
        "name=other&id=1",
        "name=mails&id=x",
        "name=mails&id=99999",
        "",
    ] {
        let answer = browser.get(&format!("/edit?{wrong}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    assert_eq!(waiting.now().await.job.state, JobState::Delayed);
    assert!(waiting.acts().await.is_empty());
}

/// Ends of lines are all the same to browsers: a payload that nobody has touched is not replaced.
#[tokio::test]
async fn a_payload_with_odd_ends_of_lines_stays_as_it_is() {
    let waiting = Waiting::new().await;
    let queue = waiting.backend.queue("mails").unwrap();
    let odd = "{\r\"to\":\r\n\"ada\",\n\"cc\": 1}";
    let job = Job::json("send", odd).unwrap().delay(MINUTE);
    let id = queue.push(job).await.unwrap().id;
    let waiting = Waiting { id, ..waiting };
    let mut browser = waiting.browser(true);
    let fields = [("priority", "high"), ("payload", odd), ("reason", "why")];
    let done = waiting.edit(&mut browser, &fields).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert_eq!(waiting.now().await.payload.as_deref(), Some(odd));
    let acts = waiting.acts().await;
    assert!(!acts[0].contains("payload"), "{acts:?}");
}

#[tokio::test]
async fn how_large_a_payload_may_be_is_told() {
    let waiting = Waiting::new().await;
    let mut browser = waiting.browser(true);
    let of = |letter: &str, letters: usize| format!("\"{}\"", letter.repeat(letters - 2));
    let mut edit = async |payload: &str| {
        let fields = [("payload", payload), ("reason", "why")];
        waiting.edit(&mut browser, &fields).await
    };
    let told = edit(&of("x", MAX_PAYLOAD_CHARS)).await;
    assert_eq!(told.status, StatusCode::BAD_REQUEST);
    let words = "a payload of 65536 characters; allowed here are 65535";
    assert!(told.body.contains(words), "{}", told.body);
    assert!(told.body.contains("lockapi queue edit"));
    let told = edit(&of("x", 20 * MAX_PAYLOAD_CHARS)).await;
    assert_eq!(told.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(told.body.contains("65,535 characters"), "{}", told.body);
    assert!(waiting.acts().await.is_empty());
    // Each letter takes twelve in a form.
    let largest = of("\u{1f600}", MAX_PAYLOAD_CHARS - 1);
    let done = edit(&largest).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    assert_eq!(waiting.now().await.payload, Some(largest));
}

#[tokio::test]
async fn who_may_only_look_and_forms_of_others_change_no_job() {
    let waiting = Waiting::new().await;
    let mut reader = Browser::of(&waiting.backend, WebOptions::new().payloads(true));
    let page = reader.get(&format!("/job?id={}", waiting.id)).await;
    assert!(!page.body.contains("/edit?"), "{}", page.body);
    let asked = reader.get(&waiting.address()).await;
    assert_eq!(asked.status, StatusCode::FORBIDDEN);
    let form = reader.form_of_nothing().await;
    let fields = [("form", &*form), ("due", "now"), ("reason", "why")];
    let mut browser = waiting.browser(true);
    browser.get("/queues").await;
    for refused in [
        reader.post(&waiting.address(), &fields).await,
        browser.post(&waiting.address(), &fields).await,
        browser
            .post_with(
                &waiting.address(),
                &fields,
                &[("origin", "https://evil.example")],
            )
            .await,
    ] {
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
    }
    assert_eq!(waiting.now().await.job.state, JobState::Delayed);
    assert!(waiting.acts().await.is_empty());
}

#[tokio::test]
async fn a_payload_that_is_masked_cannot_be_changed() {
    let waiting = Waiting::new().await;
    let mut browser = waiting.browser(false);
    let form = browser.get(&waiting.address()).await.body;
    assert!(
        !form.contains("<textarea") && !form.contains("to ada"),
        "{form}"
    );
    assert!(form.contains("cannot be changed here"), "{form}");
    let fields = [("due", "now"), ("payload", "7"), ("reason", "why")];
    let refused = waiting.edit(&mut browser, &fields).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
    assert_eq!(waiting.now().await.job.state, JobState::Delayed);
    assert!(waiting.acts().await.is_empty());
    let rest = [("priority", "high"), ("reason", "why")];
    let done = waiting.edit(&mut browser, &rest).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.body);
    let now = waiting.now().await;
    assert_eq!(now.job.priority, Priority::High);
    assert_eq!(now.payload.as_deref(), Some("\"to ada\""));
}

#[tokio::test]
async fn a_job_that_was_changed_meanwhile_is_shown_as_it_is_now() {
    for other in [
        JobEdit::new().payload("\"to eve\""),
        JobEdit::new().priority(Priority::Low),
        JobEdit::new().max_attempts(3),
        JobEdit::new().at(SystemTime::now() + 60 * MINUTE),
    ] {
        let waiting = Waiting::new().await;
        let mut browser = waiting.browser(true);
        let asked = browser.get(&waiting.address()).await;
        let form = asked.field("form");
        let operator = waiting.backend.operator();
        let edited = operator.edit_job("mails", waiting.id, other.clone(), "by another");
        assert!(edited.await.unwrap());
        let since = waiting.now().await;
        let mut send = async |seen: &str, payload: &str| {
            let fields = [
                ("form", &*form),
                ("seen", seen),
                ("priority", "high"),
                ("payload", payload),
                ("reason", "why"),
            ];
            browser.post(&waiting.address(), &fields).await
        };
        for payload in ["\"to bob\"", "\"to ada\""] {
            let late = send(&asked.field("seen"), payload).await;
            assert_eq!(late.status, StatusCode::CONFLICT, "{other:?}");
            assert!(late.body.contains("somebody else"), "{}", late.body);
            assert_eq!(waiting.now().await, since, "{other:?}");
            let is = since.payload.as_ref().unwrap().replace('"', "&quot;");
            let area = format!("{is}</textarea>");
            assert!(late.body.contains(&area), "{area}: {}", late.body);
            // What was written is not lost, and has the choices.
            assert!(late.body.contains("value=\"why\""), "{}", late.body);
        }
        assert_eq!(waiting.acts().await.len(), 1, "{other:?}");
        let late = send(&asked.field("seen"), "\"to bob\"").await;
        assert!(
            late.body.contains("The payload that you wrote"),
            "{}",
            late.body
        );
        let done = send(&late.field("seen"), "\"to bob\"").await;
        assert_eq!(done.status, StatusCode::OK, "{}", done.body);
        assert_eq!(waiting.now().await.payload.as_deref(), Some("\"to bob\""));
    }
}

/// By several pages that look at the same time: what one has changed no other replaces.
#[tokio::test]
async fn of_edits_at_once_one_applies() {
    let waiting = Waiting::new().await;
    let mut browsers: Vec<Browser> = (0..8).map(|_| waiting.browser(true)).collect();
    // All have the form before the first sends it.
    let mut forms = Vec::new();
    for browser in &mut browsers {
        forms.push(browser.get(&waiting.address()).await);
    }
    let edits = browsers.iter_mut().zip(&forms).enumerate();
    let edits = edits.map(async |(n, (browser, form))| {
        let payload = n.to_string();
        let fields = [("due", "keep"), ("payload", &*payload), ("reason", "why")];
        browser.submit(form, &fields).await.status
    });
    let statuses = futures_util::future::join_all(edits).await;
    let are = |status| statuses.iter().filter(|it| **it == status).count();
    let told = (are(StatusCode::OK), are(StatusCode::CONFLICT));
    assert_eq!(told, (1, 7), "{statuses:?}");
    assert_eq!(waiting.acts().await.len(), 1);
}

/// Until another takes the job: nobody has changed it, however often somebody tries.
#[tokio::test]
async fn a_job_whose_worker_has_stopped_was_not_changed_by_others() {
    let clock = ManualClock::default();
    let database = Database::with_clock(&clock);
    let backend = database.connect().await.unwrap();
    // Each worker takes the job, and is cut off for good.
    let stop = async || {
        let link = database.link();
        let worker = link.connect().await.unwrap();
        let queue = worker.queue("mails").unwrap();
        let claimed = queue.claim(&Claim::new(1).lease(MINUTE)).await.unwrap();
        assert_eq!(claimed.len(), 1);
        link.set_reachable(false);
        clock.advance(2 * MINUTE);
        (worker, claimed)
    };
    let queue = backend.queue("mails").unwrap();
    let job = Job::new("send", &"to ada").unwrap();
    let id = queue.push(job).await.unwrap().id;
    let waiting = Waiting { backend, id };
    let _first = stop().await;
    assert_eq!(waiting.now().await.job.state, JobState::Ready);
    let mut browser = waiting.browser(true);
    for _ in 0..2 {
        let fields = [("priority", "high"), ("reason", "why")];
        let told = waiting.edit(&mut browser, &fields).await;
        assert_eq!(told.status, StatusCode::BAD_REQUEST);
        let is_told = told.body.contains("its worker has stopped");
        assert!(
            is_told && !told.body.contains("somebody else"),
            "{}",
            told.body
        );
    }
    let told = browser
        .act("run-job", "mails", &id.to_string(), "they wait")
        .await;
    assert_eq!(told.status, StatusCode::CONFLICT);
    assert!(
        told.body.contains("its worker has stopped"),
        "{}",
        told.body
    );
    assert!(waiting.acts().await.is_empty());
    // One that was changed as well is told as such.
    let asked = browser.get(&waiting.address()).await;
    let _second = stop().await;
    let late = [("priority", "high"), ("reason", "why")];
    let late = browser.submit(&asked, &late).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert!(late.body.contains("somebody else"), "{}", late.body);
}

#[tokio::test]
async fn a_job_that_runs_stays_as_it_is() {
    let waiting = Waiting::new().await;
    let mut browser = waiting.browser(true);
    let operator = waiting.backend.operator();
    operator
        .edit_job("mails", waiting.id, JobEdit::new().now(), "now")
        .await
        .unwrap();
    let queue = waiting.backend.queue("mails").unwrap();
    let claimed = queue.claim(&Claim::new(1).lease(MINUTE)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    let form = browser.get(&waiting.address()).await.body;
    assert!(form.contains("only a job that waits"), "{form}");
    let fields = [("priority", "high"), ("reason", "why")];
    let late = waiting.edit(&mut browser, &fields).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert!(
        late.body.contains("running: it does not wait any more"),
        "{}",
        late.body
    );
    assert_eq!(waiting.now().await.job.priority, Priority::Normal);
    assert_eq!(waiting.acts().await.len(), 1);
}

#[tokio::test]
async fn a_job_that_went_after_its_form_was_shown_is_told() {
    let waiting = Waiting::new().await;
    let mut browser = waiting.browser(true);
    let queue = waiting.backend.queue("mails").unwrap();
    let form = browser.get(&waiting.address()).await;
    let fields = [("priority", "high"), ("reason", "why")];
    let operator = waiting.backend.operator();
    let now = JobEdit::new().now();
    assert!(
        operator
            .edit_job("mails", waiting.id, now, "now")
            .await
            .unwrap()
    );
    let claimed = queue.claim(&Claim::new(1).lease(MINUTE)).await.unwrap();
    // Its attempt is another one, too.
    let runs = browser.submit(&form, &fields).await;
    assert_eq!(runs.status, StatusCode::CONFLICT);
    assert!(
        runs.body.contains("does not wait any more"),
        "{}",
        runs.body
    );
    for delivery in claimed {
        delivery.ack().await.unwrap();
    }
    let gone = browser.submit(&form, &fields).await;
    assert_eq!(gone.status, StatusCode::CONFLICT);
    assert!(gone.body.contains("there is no job"), "{}", gone.body);
    assert_eq!(waiting.acts().await.len(), 1);
}
