//! Random numbers of the operating system.
//!
//! Every number that decides who holds something, or whose something is, comes from here. Those of
//! `fastrand` are for pauses and turns: two processes may draw the same, because its state is copied by
//! a fork and by a snapshot of a virtual machine.

use std::sync::OnceLock;

use crate::error::{Error, ErrorKind, Result};

/// Any number.
pub(crate) fn number() -> Result<i64> {
    let mut bytes = [0; 8];
    fill(&mut bytes).map_err(|error| {
        let message = format!("the operating system returned no random number: {error}");
        Error::new(ErrorKind::Unavailable, "random", message)
    })?;
    Ok(i64::from_ne_bytes(bytes))
}

#[cfg(test)]
thread_local! {
    /// Whether this thread gets no numbers.
    pub(crate) static EXHAUSTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(feature = "suite")]
thread_local! {
    /// Where this thread gets its numbers instead, while it runs a simulation.
    static SEEDED: std::cell::RefCell<Option<fastrand::Rng>> = const { std::cell::RefCell::new(None) };
}

/// From now on this thread gets the numbers that follow from the seed, also those of `fastrand`; without
/// one, those of the operating system again.
#[cfg(feature = "suite")]
pub fn seed(seed: Option<u64>) {
    // Drawn once for the process, whichever simulation comes first.
    process_name();
    SEEDED.set(seed.map(fastrand::Rng::with_seed));
    match seed {
        Some(seed) => fastrand::seed(seed),
        None => fastrand::seed(getrandom::u64().unwrap_or_default()),
    }
}

fn fill(bytes: &mut [u8]) -> std::result::Result<(), getrandom::Error> {
    #[cfg(test)]
    if EXHAUSTED.get() {
        return Err(getrandom::Error::UNSUPPORTED);
    }
    #[cfg(feature = "suite")]
    if SEEDED
        .with_borrow_mut(|random| random.as_mut().map(|it| it.fill(bytes)))
        .is_some()
    {
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// A number above zero.
pub(crate) fn positive() -> Result<i64> {
    Ok((number()? & i64::MAX).max(1))
}

/// Any number, as 16 hexadecimal digits.
pub(crate) fn text() -> Result<String> {
    Ok(format!("{:016x}", number()?))
}

/// The name of this process for readers: that of the host, and a random part, because the number of a
/// process is 1 in every container.
pub(crate) fn process_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let part = number().unwrap_or_else(|_| i64::from(std::process::id()));
        format!("{}-{:08x}", host(), part & 0xffff_ffff)
    })
}

/// The first part of the name of the host, as the system knows it or the environment tells it.
fn host() -> String {
    let sanitized = |name: String| {
        let name: String = name
            .chars()
            .take_while(|letter| !matches!(letter, '.' | '\n'))
            .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'))
            .take(64)
            .collect();
        (!name.is_empty()).then_some(name)
    };
    let system = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let environment = ["HOSTNAME", "COMPUTERNAME"].map(std::env::var);
    let mut names = [system.ok()]
        .into_iter()
        .chain(environment.map(std::result::Result::ok));
    names
        .find_map(|name| name.and_then(sanitized))
        .unwrap_or_else(|| "host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ() {
        let drawn: std::collections::HashSet<_> = (0..1000).map(|_| number().unwrap()).collect();
        assert_eq!(drawn.len(), 1000);
        assert!((0..1000).all(|_| positive().unwrap() > 0));
        assert_eq!(text().unwrap().len(), 16);
    }

    #[test]
    fn processes_are_named_for_their_host() {
        let (host, part) = process_name().rsplit_once('-').unwrap();
        assert!(!host.is_empty() && !host.contains("pid"), "{host}");
        assert_eq!(part.len(), 8);
        assert_eq!(process_name(), process_name());
    }
}
