//! The state that the handles of a backend share, and how it is closed.

use std::sync::Arc;

use super::BackendOptions;
use super::admin::{Names, NoteRecorder};
use super::batcher::{self, Batcher};
use super::connection::Connections;
use super::contention::Contended;
use super::ids::Generators;
use super::leases::Leases;
use super::limits::Limits;
use super::locks::{Limits as LockLimits, Locks, worker};
use super::notifier::Notifier;
use super::queues::Queues;
use super::sweeps::Sweeps;
use crate::driver::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::telemetry::{Kind, Subject, Warn};
use crate::wait::unless;

/// Everything that the handles of a backend share; when the last is dropped its tasks end.
pub(super) struct Core {
    pub(super) name: &'static str,
    pub(super) namespace: Arc<str>,
    pub(super) warn: Warn,
    pub(super) connections: Arc<Connections>,
    pub(super) batcher: Arc<Batcher>,
    pub(super) leases: Arc<Leases>,
    /// Renewals of leases and heartbeats of deliveries, and nothing else.
    pub(super) renewals: Arc<Batcher>,
    pub(super) jobs: Arc<Batcher>,
    pub(super) sweeps: Arc<Sweeps>,
    pub(super) queues: Arc<Queues>,
    pub(super) limits: Arc<Limits>,
    pub(super) locks: Arc<Locks>,
    pub(super) names: Arc<Names>,
    pub(super) generators: Generators,
    pub(super) contended: Arc<Contended>,
    pub(super) notifier: Notifier,
}

impl Core {
    pub(super) fn new(
        name: &'static str,
        options: BackendOptions,
        connections: Arc<Connections>,
    ) -> Result<Arc<Self>> {
        let timer = connections.timer.clone();
        let batcher = Batcher::new(Arc::clone(&connections));
        let renewals = Batcher::hurried(Arc::clone(&connections));
        let sweeps = Sweeps::new(&connections);
        let leases = Leases::new(
            Arc::clone(&batcher),
            Arc::clone(&renewals),
            Arc::clone(&sweeps),
            timer.clone(),
        );
        let jobs = Batcher::new(Arc::clone(&connections));
        let namespace: Arc<str> = options.namespace.into();
        let queues = Queues::new(
            Arc::clone(&jobs),
            Arc::clone(&renewals),
            sweeps.batcher(),
            timer,
            options.history.then(|| Arc::clone(&namespace)),
        );
        let names = Arc::<Names>::default();
        let observe = options.notes.then(|| {
            let recorder = NoteRecorder::new(
                Arc::clone(&jobs),
                Arc::clone(&sweeps),
                Arc::clone(&names),
                Arc::clone(&namespace),
            )?;
            Ok(Box::new(move |observed| recorder.record(observed)) as Box<_>)
        });
        let limits = LockLimits {
            waiters: options.waiters,
            max_locks: options.max_locks,
            heartbeat: options.heartbeat,
            observed: options.notes,
            seed: crate::random::number()?.cast_unsigned(),
        };
        let locks = Locks::new(connections.timer.clone(), limits, observe.transpose()?);
        let (weak, spawning) = (Arc::downgrade(&locks), Arc::clone(&connections));
        locks.start_with(move |session| {
            let Some(locks) = weak.upgrade() else {
                return;
            };
            let name = if session == 0 {
                "lockapi-locks"
            } else {
                "lockapi-waiter"
            };
            let worker = worker::run(locks, Arc::clone(&spawning), session);
            spawning.spawn(name, worker);
        });
        let notifier = Notifier::new(Arc::clone(&connections));
        let limits = Limits::new(Arc::clone(&namespace), &connections, Arc::clone(&sweeps));
        Ok(Arc::new(Self {
            name,
            namespace,
            warn: options.warn,
            connections,
            batcher,
            leases,
            renewals,
            jobs,
            sweeps,
            queues,
            limits,
            locks,
            names,
            generators: Generators::default(),
            contended: Arc::default(),
            notifier,
        }))
    }

    /// What is told of something that belongs to a key.
    pub(super) fn subject<'a>(&'a self, kind: Kind, key: &'a Key) -> Subject<'a> {
        Subject {
            kind,
            namespace: &self.namespace,
            key,
            warn: self.warn,
            timer: &self.connections.timer,
        }
    }

    pub(super) fn check_lock(&self, key: &Key, operation: &'static str) -> Result<()> {
        key.check()
            .map_err(|error| error.during(operation).on(key))?;
        if self.connections.mode != Mode::Direct {
            let message = "the server is reached through a transaction-pooling proxy, where a session lock would belong to a session that other clients share; use a lease, or connect to the server directly";
            return Err(Error::new(ErrorKind::Unsupported, operation, message).on(key));
        }
        Ok(())
    }

    /// Lets all tasks end once they have done what is queued.
    pub(super) fn close(&self) {
        self.locks.close();
        self.notifier.close();
        self.batcher.close();
        self.renewals.close();
        self.jobs.close();
        self.sweeps.close();
        self.limits.close();
    }

    /// Gives back all that is held, and ends.
    pub(super) async fn give_back_and_close(&self) -> Result<()> {
        // Afterwards they would be refused.
        self.queues.flush();
        self.generators.close();
        self.limits.give_back_blocks();
        self.connections.tasks.begin_close();
        let held = self.leases.release_all().into_iter();
        let held = held.chain(self.queues.release_all()).collect::<Vec<_>>();
        // Before anything is waited for: who leaves has closed it all the same.
        self.locks.close_all();
        self.close();
        let mut failed = Vec::new();
        let mut total = 0_usize;
        for answer in held {
            total += 1;
            match answer.await {
                Ok(Ok(())) => {}
                // It had ended before.
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => {}
                Ok(Err(error)) => failed.push(error),
                Err(_) => failed.push(batcher::ended("close")),
            }
        }
        let timer = &self.connections.timer;
        let over = unless(
            timer.sleep(self.connections.timeout * 2),
            self.connections.tasks.ended(),
        )
        .await;
        self.connections.tasks.close();
        let count = failed.len();
        if let Some(error) = failed.into_iter().next() {
            let message = format!(
                "{count} of {total} guards and deliveries could not be released, and will end by themselves; the first error: {error}"
            );
            let sqlstate = error.sqlstate().map(str::to_owned);
            let failed = Error::new(error.kind(), "close", message);
            return Err(failed.caused(sqlstate, Arc::new(error)));
        }
        over.ok_or_else(|| {
            let message = "the server did not answer; queued requests may not have been executed";
            Error::new(ErrorKind::Indeterminate, "close", message)
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.close();
    }
}
