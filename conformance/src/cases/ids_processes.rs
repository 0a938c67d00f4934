//! Generators of ids in other processes, which are killed and stopped.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use lockapi::id::{Id, IdOptions, Layout};

use super::Role;
use super::ids::{generator, worker};
use crate::child::Parent;
use crate::context::{Context, MINUTE};
use crate::harness::register;
use crate::patience::soon;

register! { "ids":
    I01 ids_of_processes_are_unique [Processes];
    I05 stopped_owner_makes_no_id_of_its_successor [Processes];
    I07 killed_and_restarted_with_a_clock_behind [Processes];
}

pub(super) const ROLES: &[(&str, Role)] = &[("ids", |cx, arguments, parent| {
    Box::pin(make(cx, arguments, parent))
})];

/// Makes so many ids whenever it is told, and writes them to a file.
async fn make(cx: Context, arguments: Vec<String>, mut parent: Parent) {
    let mut file = BufWriter::new(File::create(&arguments[0]).unwrap());
    let reserve = Duration::from_millis(arguments[1].parse().unwrap());
    let ids = generator(&cx, IdOptions::default().reserve(reserve)).await;
    loop {
        let count: u64 = parent.line().await.parse().unwrap();
        let half = count / 2;
        let mut made = Vec::new();
        while (made.len() as u64) < half {
            made.extend(
                ids.batch((half - made.len() as u64).min(100))
                    .await
                    .unwrap(),
            );
        }
        while (made.len() as u64) < count {
            made.push(ids.next().await.unwrap());
        }
        for id in made {
            file.write_all(&i64::from(id).to_le_bytes()).unwrap();
        }
        file.flush().unwrap();
        parent.say("made");
    }
}

/// A file for what a process makes.
struct Made(PathBuf);

impl Made {
    fn new() -> Self {
        let name = format!("lockapi-ids-{:016x}", fastrand::u64(..));
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// What it made so far, in its order.
    fn ids(&self) -> Vec<i64> {
        let bytes = fs::read(&self.0).unwrap();
        let (ids, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty());
        ids.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The case may have failed before there was one.
        let _gone = fs::remove_file(&self.0);
    }
}

async fn ids_of_processes_are_unique(cx: Context) {
    let files: Vec<_> = (0..8).map(|_| Made::new()).collect();
    let mut children: Vec<_> = files
        .iter()
        .map(|file| cx.child("ids", &[file.path(), "3000"]))
        .collect();
    let ids = generator(&cx, IdOptions::default()).await;
    let mut all = Vec::new();
    for _ in 0..2 {
        for child in &mut children {
            child.tell("10000");
        }
        for _ in 0..100 {
            all.extend(ids.batch(100).await.unwrap().map(i64::from));
        }
        for child in &mut children {
            assert_eq!(child.line().await, "made");
        }
    }
    for file in &files {
        let made = file.ids();
        assert!(made.is_sorted_by(|one, next| one < next));
        all.extend(made);
    }
    assert_eq!(all.len(), 180_000);
    all.sort_unstable();
    assert!(all.is_sorted_by(|one, next| one < next), "an id twice");
}

async fn stopped_owner_makes_no_id_of_its_successor(cx: Context) {
    let file = Made::new();
    let mut owner = cx.child("ids", &[file.path(), "100"]);
    owner.tell("1000");
    assert_eq!(owner.line().await, "made");
    owner.pause();
    cx.set_clock_ahead(MINUTE).await;
    let successor = generator(&cx, IdOptions::default()).await;
    let mut all: Vec<i64> = Vec::new();
    all.extend(successor.batch(1000).await.unwrap().map(i64::from));
    assert_eq!(
        worker(Id::try_from(all[0]).unwrap()),
        0,
        "it was taken over"
    );
    owner.resume();
    // It is past the floor that it has stored, and has to see that the number is another's.
    let going_on = async {
        loop {
            owner.tell("1000");
            all.extend(successor.batch(1000).await.unwrap().map(i64::from));
            assert_eq!(owner.line().await, "made");
            let made = file.ids();
            if worker(Id::try_from(made[made.len() - 1]).unwrap()) == 1 {
                return made;
            }
        }
    };
    let made = soon("it goes on with another number", going_on).await;
    assert!(made.is_sorted_by(|one, next| one < next));
    all.extend(made);
    all.sort_unstable();
    assert!(all.is_sorted_by(|one, next| one < next), "an id twice");
}

async fn killed_and_restarted_with_a_clock_behind(cx: Context) {
    let mut all = Vec::new();
    let mut firsts = Vec::new();
    for _ in 0..2 {
        let file = Made::new();
        let mut child = cx.child("ids", &[file.path(), "60000"]);
        child.tell("10000");
        assert_eq!(child.line().await, "made");
        child.kill();
        let made = file.ids();
        assert_eq!(worker(Id::try_from(made[0]).unwrap()), 0);
        firsts.push(
            Layout::default()
                .decode(Id::try_from(made[0]).unwrap())
                .time,
        );
        all.extend(made);
        // The claim has ended, and yet the clock shows a time from before it.
        cx.set_clock_back(Duration::from_secs(1)).await;
        cx.set_clock_ahead(MINUTE * 10).await;
    }
    assert!(all.is_sorted_by(|one, next| one < next));
    let since = firsts[1].duration_since(firsts[0]).unwrap();
    assert!(since > MINUTE / 2, "behind what was reserved");
}
