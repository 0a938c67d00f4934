//! One round: a server, programs, faults, the calm after them, and the check of the history.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockapi_conformance::cluster::Cluster;
use tempfile::TempDir;

use crate::Result;
use crate::args::{Control, Settings};
use crate::audit;
use crate::conductor::Conductor;
use crate::crew::Crew;
use crate::disk;
use crate::history::{History, Tables, Violation};
use crate::log::{Nanos, SECOND, now};
use crate::plan::{Fault, Plan, fit};
use crate::pooler::Pooler;
use crate::programs::Phase;
use crate::report::{self, Outcome, Verdict};
use crate::screen::Screen;
use crate::server::Server;
use crate::wire::Wire;

/// After the last fault: for recovery, then without any failure.
const RECOVERY: Duration = Duration::from_secs(12);
const CALM: Duration = Duration::from_secs(6);
/// So many times as long, as long as the machine is too busy.
const CALMS: usize = 3;
/// How often the server is asked something in the calm, and how long it may take on a machine that has time.
const PROBE: Duration = Duration::from_millis(100);
const BUSY: Duration = Duration::from_millis(300);
/// Within these times the queues drain, and programs end. Programs that replaced others have pushed more.
const DRAIN: Duration = Duration::from_mins(1);
const DRAIN_A_JOB: Duration = Duration::from_millis(100);
const END: Duration = Duration::from_secs(40);
/// Within this time a program is granted everything while the others rest.
const TURN: Duration = Duration::from_secs(20);
/// On a machine that is busy all of them are so many times as long.
const SLOWER: u32 = 3;

pub(crate) fn run(settings: &Settings, seed: u64, screen: &Screen) -> Result<Verdict> {
    let end = RECOVERY + CALM + Duration::from_secs(2);
    let time = settings.time.saturating_sub(end);
    let (mut faults, mut missing, wire) = possible(settings, seed);
    for fault in fit(&mut faults, seed, time) {
        missing.push((
            fault,
            "this seed leaves it out, there is no time".to_owned(),
        ));
    }
    if faults.is_empty() && settings.control != Some(Control::Quiet) {
        let reasons = missing.iter();
        let reasons: Vec<_> = reasons
            .map(|(fault, reason)| format!("{}: {reason}", fault.name()))
            .collect();
        let reasons = reasons.join("; ");
        let message =
            format!("no fault can be applied ({reasons}); without faults is `--control quiet`");
        return Err(message.into());
    }
    screen.line(&format!(
        "Seed {seed}: {} programs and two with plain SQL, {} kinds of faults, {} s{}",
        settings.programs,
        faults.len(),
        settings.time.as_secs(),
        settings
            .control
            .map(|control| format!(", control {}", control.name()))
            .unwrap_or_default()
    ));
    let dir = tempfile::Builder::new().prefix("torture-").tempdir()?;
    let server = Server::start(
        settings.programs,
        faults.contains(&Fault::Clock),
        faults.contains(&Fault::FullDisk),
    )?;
    let pooler = if settings.programs > 6 {
        Some(Pooler::start(server.port())?)
    } else {
        None
    };
    let ports = (server.port(), pooler.as_ref().map(Pooler::port));
    let crew = Crew::new(
        settings.programs,
        ports,
        wire,
        dir.path().to_owned(),
        settings.control,
    )?;
    let plan = Plan::new(seed, &faults);
    let conductor = Conductor::new(&server, &crew, pooler, screen, plan);
    thread::sleep(Duration::from_secs(2));
    let mut violations = Vec::new();
    let ran = conductor.disturb(time);
    let applied = conductor.applied();
    // Without faults all of the time is calm.
    let calm = if faults.is_empty() {
        RECOVERY + CALM + time
    } else {
        RECOVERY + CALM
    };
    let history = match ran.and_then(|()| finish(&conductor, screen, calm, &mut violations)) {
        Ok(history) => history,
        // What was seen before, and the logs, tell why.
        Err(error) => {
            report::broken(screen, &violations);
            keep(&server, dir, screen);
            return Err(format!("seed {seed}: {error}").into());
        }
    };
    let mut history = History { applied, ..history };
    let is_quiet = settings.control == Some(Control::Quiet);
    if is_quiet {
        // Nothing can fail, so that nothing may.
        history.calm.1 = 0;
    }
    violations.extend(history.violations());
    let told = (&*faults, &*missing);
    let verdict = report::print(screen, &history, &violations, told, settings.control);
    let is_failed = matches!(verdict.outcome, Outcome::Failed | Outcome::NotFound);
    if settings.keep || is_failed {
        keep(&server, dir, screen);
    }
    if is_failed {
        screen.line(&format!(
            "Again: make torture ARGS='{}'",
            settings.again(seed)
        ));
    }
    Ok(verdict)
}

/// Keeps the logs.
fn keep(server: &Server, dir: TempDir, screen: &Screen) {
    let copied = server
        .log()
        .and_then(|log| Ok(std::fs::copy(log, dir.path().join("server.log"))?));
    if let Err(error) = copied {
        screen.line(&format!("The log of the server is not kept: {error}"));
    }
    screen.line(&format!("The logs are in {}", dir.keep().display()));
}

/// The faults that can be applied, those that cannot with the reason, and the network of a program, drawn, that has
/// one of its own.
#[expect(clippy::type_complexity, reason = "it is taken apart at once")]
fn possible(
    settings: &Settings,
    seed: u64,
) -> (Vec<Fault>, Vec<(Fault, String)>, Option<(usize, Wire)>) {
    let wire = if settings.faults.contains(&Fault::Unplug) {
        Wire::lay()
    } else {
        Err("it was not asked for".into())
    };
    let pooled = settings.programs > 6;
    let mut missing = Vec::new();
    let asked_for = settings.faults.len() == 1;
    let mut faults = settings.faults.clone();
    faults.retain(|fault| {
        let reason = match fault {
            // Leases and jobs are checked more strictly where it is not set.
            Fault::Clock if seed % 2 == 1 && !asked_for => "every second seed has it".to_owned(),
            Fault::Clock if !Cluster::may_have_clock() => "it needs libfaketime".to_owned(),
            Fault::PausePooler | Fault::RestartPooler if !pooled => {
                "fewer than 7 programs, none behind a pooler".to_owned()
            }
            Fault::FullDisk => match disk::missing() {
                Some(reason) => reason.to_owned(),
                None => return true,
            },
            Fault::Unplug => match &wire {
                Err(reason) => reason.to_string(),
                Ok(_) => return true,
            },
            _ => return true,
        };
        missing.push((*fault, reason));
        false
    });
    // The last digits are those that draw the clock.
    let place = usize::try_from(seed / 2).unwrap_or(0) % settings.programs;
    (faults, missing, wire.ok().map(|wire| (place, wire)))
}

/// Without faults: everybody is served, the queues drain, all end, and nothing is left.
fn finish(
    conductor: &Conductor<'_>,
    screen: &Screen,
    time: Duration,
    violations: &mut Vec<Violation>,
) -> Result<History> {
    let (server, crew) = (conductor.server, conductor.crew);
    let mut client = server.patient_client(Duration::from_mins(1))?;
    let mut applied = conductor.applied().into_iter();
    if applied.any(|fault| fault.fault == Fault::Settings) {
        Server::calm(&mut client)?;
        // Which of them programs use for their own statements is not known.
        conductor.renew_pooled_sessions()?;
    }
    let calm = now();
    screen.event("calm");
    let (mut judged, mut is_quick) = (calm, false);
    // Another one, where the machine was too busy to judge the first.
    for _ in 0..CALMS {
        judged = now();
        let from = Instant::now();
        let mut slowest = Duration::ZERO;
        while from.elapsed() < time {
            crew.look()?;
            let asked = Instant::now();
            thread::sleep(PROBE);
            if let Err(error) = client.simple_query("SELECT") {
                violations.push(Violation {
                    promise: "the server serves in the calm",
                    what: format!("{error}\n    {}", server.last_words()?),
                });
                client = server.patient_client(Duration::from_mins(1))?;
            }
            slowest = slowest.max(asked.elapsed().saturating_sub(PROBE));
        }
        is_quick = slowest < BUSY;
        if is_quick {
            break;
        }
        let text = "the machine is too busy to tell failures in the calm from its own";
        screen.event(&format!(
            "{text}: {:.1} s for nothing",
            slowest.as_secs_f64()
        ));
    }
    let patience = |time: Duration| if is_quick { time } else { time * SLOWER };
    crew.tell(Phase::Drain);
    violations.extend(audit::disable_tasks(server)?);
    let from = Instant::now();
    let jobs = u32::try_from(audit::jobs(&mut client)?)?;
    let left = audit::drained(&mut client, patience(DRAIN + DRAIN_A_JOB * jobs))?;
    screen.event(&format!(
        "queues {} in {:.1} s",
        if left.is_none() {
            "drained"
        } else {
            "did not drain"
        },
        from.elapsed().as_secs_f64()
    ));
    violations.extend(left);
    let end = now();
    let from = Instant::now();
    let turns = crew.turns(patience(TURN))?;
    screen.event(&format!(
        "{} programs had a turn in {:.1} s",
        turns.len(),
        from.elapsed().as_secs_f64()
    ));
    crew.tell(Phase::End);
    let from = Instant::now();
    crew.end(patience(END))?;
    screen.event(&format!(
        "programs ended in {:.1} s",
        from.elapsed().as_secs_f64()
    ));
    for fallen in crew.fallen() {
        violations.push(Violation {
            promise: "no program fails",
            what: fallen,
        });
    }
    // Its sessions are those of no program.
    conductor.close_pooler()?;
    violations.extend(audit::left(&mut client, patience(audit::LEFT))?);
    violations.extend(audit::all_can_be_had(server, is_quick));
    violations.extend(audit::listed(server, &mut client)?);
    let tables = Tables::read(&mut client)?;
    violations.extend(audit::put_back(server)?);
    let recovery = u64::try_from(RECOVERY.as_nanos()).unwrap_or(12 * SECOND);
    Ok(History {
        tables,
        calm: (calm, judged + recovery),
        is_quick,
        end,
        wall: wall()?,
        turns,
        ..History::read(crew.incarnations())?
    })
}

/// By how much the time since 1970 is ahead of the clock of the logs.
fn wall() -> Result<Nanos> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(since.as_nanos())?.saturating_sub(now()))
}
