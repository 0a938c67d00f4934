//! The async and the blocking face have the same methods, and what both share can be awaited and
//! waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{ImplItem, Item, ItemImpl, Signature, TraitItem, Type, TypeParamBound, Visibility};

/// Methods of one face, with the reason.
const ONE_FACE: &[(&str, &str)] = &[
    ("Backend::inner", LEADS),
    ("Backend::open_election", CALLED_BY_ANOTHER),
    ("Backend::open_answers", CALLED_BY_ANOTHER),
    ("Backend::open_id_gen", CALLED_BY_ANOTHER),
    ("Backend::open_lease", CALLED_BY_ANOTHER),
    ("Backend::open_leased_mutex", CALLED_BY_ANOTHER),
    ("Backend::open_mutex", CALLED_BY_ANOTHER),
    ("Backend::open_queue", CALLED_BY_ANOTHER),
    ("Backend::open_rate_limiter", CALLED_BY_ANOTHER),
    ("Backend::open_rw_lock", CALLED_BY_ANOTHER),
    ("Backend::open_scheduler", CALLED_BY_ANOTHER),
    ("Backend::open_semaphore", CALLED_BY_ANOTHER),
    ("Mutex::now", CALLED_BY_ANOTHER),
    ("Mutex::sleep", CALLED_BY_ANOTHER),
    (
        "Permits::take_of_block",
        "the layer for tower services calls it",
    ),
    ("Queue::attempted", CALLED_BY_ANOTHER),
    ("Queue::inner", LEADS),
    ("Queue::missed", CALLED_BY_ANOTHER),
    ("Queue::set_name_paused", CALLED_BY_ANOTHER),
    ("Queue::set_paused", CALLED_BY_ANOTHER),
    ("Queue::used", CALLED_BY_ANOTHER),
    ("Scheduler::set_enabled", CALLED_BY_ANOTHER),
    ("Worker::spawn_with", "handlers that block have threads"),
];
const CALLED_BY_ANOTHER: &str = "a backend implements it; programs call the method that calls it";
const LEADS: &str = "leads from the blocking face to the async one";

/// Async methods of types that both faces share and that have no `…_blocking` beside them, with the
/// reason.
const NO_TWIN: &[(&str, &str)] = &[
    (
        "LockOwner::lock",
        "blocking callers say `mutex.on(&owner).lock()`, which async ones may say as well",
    ),
    ("Answers::recall", CALLED_BY_IDEMPOTENCY),
    ("Answers::record", CALLED_BY_IDEMPOTENCY),
    ("Answers::sleep", CALLED_BY_IDEMPOTENCY),
    ("Answers::sweep", CALLED_BY_IDEMPOTENCY),
    ("functions::applied", FOR_OPERATORS),
    ("functions::clock", FOR_OPERATORS),
    ("functions::examine", FOR_OPERATORS),
    ("functions::reach", FOR_OPERATORS),
    ("functions::watch_leases", FOR_OPERATORS),
    ("functions::with_lock_timeout_in", OF_DRIVERS),
    ("functions::with_priority_in", OF_DRIVERS),
];
const CALLED_BY_IDEMPOTENCY: &str = "a backend implements it; programs call `Idempotency`";
const OF_DRIVERS: &str = "the crates of blocking drivers have it, with closures of theirs";
const FOR_OPERATORS: &str = "the operator's command is async";

/// The public methods of a face, by type.
#[derive(Default)]
struct Methods {
    of: BTreeMap<String, BTreeSet<String>>,
    /// Those of them that are async.
    awaited: BTreeMap<String, BTreeSet<String>>,
    /// Types that dereference to one that has the rest of their methods.
    dereferenced: BTreeSet<String>,
}

impl Methods {
    fn add_sources(&mut self, dir: &Path, leave_out: &[&str]) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            if leave_out.contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                self.add_sources(&path, leave_out);
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).expect("a text");
                let file = syn::parse_file(&text).expect("Rust");
                file.items.into_iter().for_each(|item| self.add(item));
            }
        }
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Trait(item) => {
                let name = item.ident.to_string();
                let public = matches!(item.vis, Visibility::Public(_));
                for item in &item.items {
                    if let TraitItem::Fn(method) = item {
                        self.add_method(&name, &method.sig, public);
                    }
                }
            }
            Item::Fn(function)
                if matches!(function.vis, Visibility::Public(_))
                    && function.sig.asyncness.is_some() =>
            {
                self.add_method("functions", &function.sig, true);
            }
            Item::Impl(item) => self.add_impl(&item),
            _ => {}
        }
    }

    fn add_impl(&mut self, item: &ItemImpl) {
        let Some(name) = name_of(&item.self_ty) else {
            return;
        };
        if let Some((path, _)) = &item.trait_ {
            if path.is_ident("Deref") {
                self.dereferenced.insert(name);
            }
            return;
        }
        self.of.entry(name.clone()).or_default();
        for item in &item.items {
            if let ImplItem::Fn(method) = item {
                let public = matches!(method.vis, Visibility::Public(_));
                if public && method.sig.receiver().is_some() {
                    self.add_method(&name, &method.sig, public);
                }
            }
        }
    }

    fn add_method(&mut self, of: &str, method: &Signature, public: bool) {
        let name = method.ident.to_string();
        if public && method.asyncness.is_some() {
            let awaited = self.awaited.entry(of.to_owned()).or_default();
            awaited.insert(name.clone());
        }
        self.of.entry(of.to_owned()).or_default().insert(name);
    }
}

/// Both faces, as the sources have them.
fn faces() -> [Methods; 2] {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lockapi/src");
    let (mut of_async, mut of_blocking) = (Methods::default(), Methods::default());
    let others = ["blocking", "engine", "memory", "driver", "tests.rs"];
    of_async.add_sources(&sources, &others);
    of_blocking.add_sources(&sources.join("blocking"), &["worker"]);
    [of_async, of_blocking]
}

/// What a type of an `impl` is called: `Queue` of `dyn Queue + '_` and of `Queue`.
fn name_of(of: &Type) -> Option<String> {
    let path = match of {
        Type::Path(of) => &of.path,
        Type::TraitObject(of) => of.bounds.iter().find_map(|bound| match bound {
            TypeParamBound::Trait(bound) => Some(&bound.path),
            _ => None,
        })?,
        _ => return None,
    };
    Some(path.segments.last()?.ident.to_string())
}

#[test]
fn have_the_same_methods() {
    let [of_async, of_blocking] = faces();
    let mut compared = 0;
    let mut differences = BTreeSet::new();
    for (name, blocking) in &of_blocking.of {
        let Some(of_async) = of_async.of.get(name) else {
            continue;
        };
        compared += 1;
        let has_more = of_blocking.dereferenced.contains(name);
        let missing = of_async.difference(blocking).filter(|_| !has_more);
        let methods = missing.chain(blocking.difference(of_async));
        differences.extend(methods.map(|method| format!("{name}::{method}")));
    }
    assert!(compared > 15, "{compared}");
    let known = ONE_FACE.iter().map(|(method, _)| (*method).to_owned());
    assert_eq!(differences, known.collect());
}

/// A type that only the async face has is shared by both: what is awaited on it, blocking callers have
/// to be able to wait for.
#[test]
fn what_both_share_can_be_waited_for() {
    let [of_async, of_blocking] = faces();
    let mut twins = 0;
    let mut missing = BTreeSet::new();
    for (name, awaited) in &of_async.awaited {
        if of_blocking.of.contains_key(name) {
            continue;
        }
        for method in awaited {
            if of_async.of[name].contains(&format!("{method}_blocking")) {
                twins += 1;
            } else {
                missing.insert(format!("{name}::{method}"));
            }
        }
    }
    assert!(twins > 3, "{twins}");
    let known = NO_TWIN.iter().map(|(method, _)| (*method).to_owned());
    assert_eq!(missing, known.collect());
}

/// What only the blocking face has would be missing for async callers.
#[test]
fn no_type_is_on_the_blocking_face_alone() {
    let [of_async, of_blocking] = faces();
    let public = |(_, methods): &(_, &BTreeSet<String>)| !methods.is_empty();
    let alone = of_blocking.of.iter().filter(public).map(|(name, _)| name);
    let alone: Vec<_> = alone
        .filter(|name| !of_async.of.contains_key(*name))
        .collect();
    assert!(alone.is_empty(), "{alone:?}");
}
