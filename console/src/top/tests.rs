//! The screen without a terminal, on the database in memory.

use std::sync::Arc;
use std::time::Duration;

use lockapi::Backend;
use lockapi::admin::Filter;
use lockapi::lease::LeaseOptions;
use lockapi::memory::Database;
use lockapi::queue::{Claim, Job};
use lockapi::schedule::Task;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::draw;
use super::state::{Effect, Mode, State};
use super::view::View;
use crate::action::Action;
use crate::watch::Watch;

const MINUTE: Duration = Duration::from_mins(1);

struct Screen {
    state: State,
    watch: Watch,
    backend: Arc<dyn Backend>,
    held: Vec<Box<dyn std::any::Any>>,
}

impl Screen {
    async fn new() -> Self {
        let backend = Database::new().connect().await.unwrap();
        for (queue, jobs) in [("mails", 7), ("images", 2), ("\x1b[31mreports", 1)] {
            let queue = backend.queue(queue).unwrap();
            for n in 0..jobs {
                queue.push(Job::new("work", &n).unwrap()).await.unwrap();
            }
        }
        let claim = Claim::new(1).worker("node-7").lease(MINUTE);
        let claimed = backend.queue("mails").unwrap().claim(&claim).await.unwrap();
        let options = LeaseOptions::new(MINUTE).owner("node-9");
        let lease = backend
            .lease("nightly", options)
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let task = Task::every("vacuum", MINUTE, Job::new("vacuum", &1).unwrap());
        backend
            .scheduler("upkeep")
            .unwrap()
            .set(task)
            .await
            .unwrap();
        let mut screen = Self {
            state: State::new("default", false),
            watch: Watch::new(Arc::clone(&backend), true),
            backend,
            held: vec![Box::new(claimed), Box::new(lease)],
        };
        screen.look().await;
        screen
    }

    async fn look(&mut self) {
        self.watch.forget_all().await;
        self.state.see(self.watch.look().await);
    }

    fn press(&mut self, keys: &str) -> Effect {
        let mut effect = Effect::None;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '↓' => KeyCode::Down,
                letter => KeyCode::Char(letter),
            };
            effect = self.state.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
        effect
    }

    fn drawn(&mut self, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &mut self.state)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(row).collect()
    }
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[tokio::test]
async fn every_view_is_drawn_at_every_size() {
    let mut screen = Screen::new().await;
    for (width, height) in [(80, 24), (200, 60), (20, 6), (1, 1)] {
        for (key, word) in "12345678"
            .chars()
            .zip(["mails", "", "", "nightly", "node-7", "vacuum", "", ""])
        {
            screen.press(&key.to_string());
            for over in ["", "?", "\n", "a"] {
                screen.press(over);
                let drawn = screen.drawn(width, height);
                let bare = over.is_empty() && width >= 80;
                assert!(
                    !bare || has(&drawn, word),
                    "{width}x{height} {key}: {drawn:#?}"
                );
                screen.press("\x1b");
            }
        }
    }
}

#[tokio::test]
async fn queues_fit_a_small_terminal() {
    let mut screen = Screen::new().await;
    let drawn = screen.drawn(80, 24);
    assert!(drawn[0].starts_with("lockapi  default"), "{drawn:#?}");
    assert!(
        drawn[1].contains("1 Queues") && drawn[1].contains("8 Ids"),
        "{drawn:#?}"
    );
    for column in [
        "Queue", "Ready", "Lately", "Growth", "Running", "Delayed", "Dead", "Oldest",
    ] {
        assert!(drawn[2].contains(column), "{column}: {drawn:#?}");
    }
    assert!(has(&drawn, "mails") && has(&drawn, "images"));
    assert!(
        has(&drawn, "\\u{1b}[31mreports"),
        "what is no text is shown: {drawn:#?}"
    );
    assert!(drawn[23].contains("q quit"), "{drawn:#?}");
}

#[tokio::test]
async fn rows_are_filtered_and_sorted_and_stay_selected() {
    let mut screen = Screen::new().await;
    let order = |screen: &Screen| -> Vec<String> {
        let lines = screen.state.lines().unwrap();
        lines.iter().map(|line| line.cells[0].clone()).collect()
    };
    screen.press("ss");
    assert_eq!(order(&screen)[0], "mails", "the largest first");
    screen.press("r");
    assert_eq!(order(&screen).last().map(String::as_str), Some("mails"));
    screen.press("/IMA\n");
    assert_eq!(order(&screen), ["images"]);
    screen.press("\x1b");
    assert_eq!(order(&screen).len(), 3);

    screen.press("rr");
    let at = |screen: &Screen| {
        let lines = screen.state.lines().unwrap();
        let at = screen.state.selected(&lines).unwrap();
        lines[at].cells[0].clone()
    };
    screen.press("kkkkkkjj");
    let selected = at(&screen);
    for n in 0..9 {
        let job = Job::new("work", &n).unwrap();
        screen
            .backend
            .queue("images")
            .unwrap()
            .push(job)
            .await
            .unwrap();
    }
    screen.look().await;
    assert_eq!(at(&screen), selected, "wherever it is now");
}

#[tokio::test]
async fn acting_takes_a_reason_and_a_clear_answer() {
    let mut screen = Screen::new().await;
    screen.press("/mails\n");
    screen.press("a");
    assert!(matches!(screen.state.mode, Mode::Menu(_)));
    screen.press("1");
    // Without a reason it does not go on.
    assert_eq!(screen.press("\n"), Effect::None);
    assert!(matches!(screen.state.mode, Mode::Reason(..)));
    screen.press("it is stuck");
    let drawn = screen.drawn(80, 24);
    assert!(
        has(&drawn, "Pause the queue mails") && has(&drawn, "it is stuck"),
        "{drawn:#?}"
    );
    assert_eq!(screen.press("\n"), Effect::None);
    // Neither Enter nor any other key is a yes.
    assert_eq!(screen.press("\n"), Effect::None);
    assert_eq!(screen.press("x"), Effect::None);
    assert!(matches!(screen.state.mode, Mode::Confirm(..)));
    let Effect::Perform(action, reason) = screen.press("y") else {
        panic!("it is meant");
    };
    assert_eq!(action, Action::Pause("mails".to_owned(), None));
    let done = action.perform(&*screen.backend, &reason, "in top").await;
    screen.state.tell(done);
    screen.look().await;
    let drawn = screen.drawn(80, 24);
    assert!(
        has(&drawn, "mails is paused") && has(&drawn, "mails (paused)"),
        "{drawn:#?}"
    );
    let audit = screen
        .backend
        .inspector()
        .audit(&Filter::new())
        .await
        .unwrap();
    assert_eq!(
        (&*audit[0].action, &*audit[0].reason),
        ("pause queue", "it is stuck (in top)")
    );

    screen.press("a1why\n");
    assert_eq!(screen.press("n"), Effect::None);
    assert_eq!(screen.state.mode, Mode::Table);
    let mut reader = State::new("default", true);
    reader.see(screen.watch.look().await);
    reader.press(KeyEvent::new(KeyCode::Char('a'), KeyModifiers::NONE));
    assert_eq!(reader.mode, Mode::Table);
    assert!(!screen.held.is_empty());
}

#[tokio::test]
async fn keys_lead_everywhere_and_out() {
    let mut screen = Screen::new().await;
    assert_eq!(screen.state.view, View::Queues);
    screen.press("4");
    assert_eq!(screen.state.view, View::Leases);
    screen.press("\n");
    assert!(has(&screen.drawn(80, 24), "node-9"));
    screen.press("x");
    assert_eq!(screen.state.mode, Mode::Table);
    screen.state.see(Err(lockapi::Error::new(
        lockapi::ErrorKind::Unavailable,
        "look",
        "the server is away",
    )));
    let drawn = screen.drawn(120, 24);
    assert!(
        has(&drawn, "the server is away") && has(&drawn, "nightly"),
        "what was read stays"
    );
    assert_eq!(screen.press("q"), Effect::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    screen.press("/");
    assert_eq!(screen.state.press(interrupt), Effect::Quit);
}
