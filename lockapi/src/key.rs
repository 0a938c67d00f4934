//! Keys: the names of locks, leases and limits.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};

/// The longest name or namespace, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 255;

/// Identifies a lock, a lease or a limit: a name, a 64-bit number, or a pair of 32-bit numbers.
///
/// A name belongs to the namespace of its backend and is compared byte by byte: case, trailing spaces
/// and Unicode composition all matter. Numbers are the database's own advisory lock keys, so they are
/// the same in every namespace and in `SELECT pg_advisory_lock(42)`.
///
/// Any value converts into a `Key`; its limits (1 to 255 bytes, no NUL) are checked when a
/// primitive is opened on it, before anything is sent.
///
/// ```
/// use lockapi::Key;
///
/// assert_eq!(Key::from("reports/daily").to_string(), "reports/daily");
/// assert_eq!(Key::from(42).to_string(), "#42");
/// assert_eq!(Key::from((7, 42)).to_string(), "#7,42");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Form);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Form {
    Name(Arc<str>),
    Number(i64),
    Pair(i32, i32),
}

impl Key {
    /// Checks the key's limits.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that is empty, longer than [`MAX_NAME_BYTES`], or holds
    /// a NUL, which PostgreSQL cannot store.
    pub fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Form::Name(name) => check_name("key", name, 1),
            Form::Number(_) | Form::Pair(..) => Ok(()),
        }
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(self.0, Form::Name(_))
    }

    /// The advisory lock that stands for this key in `namespace`.
    #[must_use]
    pub fn lock_id(&self, namespace: &str) -> LockId {
        match &self.0 {
            Form::Name(name) => LockId {
                key: advisory_key(namespace, name),
                pair: false,
            },
            Form::Number(number) => LockId {
                key: *number,
                pair: false,
            },
            Form::Pair(class, object) => LockId {
                key: (i64::from(*class) << 32) | i64::from(object.cast_unsigned()),
                pair: true,
            },
        }
    }
}

/// Renders the form that tables store: a name as it is (a leading `#` doubled), a number as `#n`,
/// a pair as `#a,b`. Distinct keys render differently.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Name(name) if name.starts_with('#') => write!(f, "#{name}"),
            Form::Name(name) => f.write_str(name),
            Form::Number(_) | Form::Pair(..) => self.lock_id("").fmt(f),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.to_string())
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self(Form::Name(name.into()))
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self(Form::Name(name.into()))
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self(Form::Number(number))
    }
}

impl From<(i32, i32)> for Key {
    fn from((class, object): (i32, i32)) -> Self {
        Self(Form::Pair(class, object))
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

/// An advisory lock as PostgreSQL knows it: 64 bits in one of two key spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId {
    /// The number; of a pair, the class is the upper half and the object the lower.
    pub key: i64,
    /// Whether the number is in the space of `(int4, int4)` keys.
    pub pair: bool,
}

/// Renders `#n`, or `#class,object`.
impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pair {
            // The lower half, with its sign.
            write!(f, "#{},{}", self.key >> 32, self.key << 32 >> 32)
        } else {
            write!(f, "#{}", self.key)
        }
    }
}

/// Computes the 64-bit advisory lock key of a name: the first eight bytes, big-endian, of
/// SHA-256 over the namespace, a NUL and the name.
///
/// The SQL function `lockapi.advisory_key(namespace, name)` returns the same number, so that other
/// programs can use the same locks.
///
/// ```
/// assert_eq!(lockapi::advisory_key("default", "reports/daily"), 1183201443085884168);
/// ```
#[must_use]
pub fn advisory_key(namespace: &str, name: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(namespace);
    hash.update([0]);
    hash.update(name);
    let digest = hash.finalize();
    digest
        .iter()
        .take(8)
        .fold(0, |key, byte| (key << 8) | i64::from(*byte))
}

/// The advisory lock of something that is no key: of a name that is longer than keys are.
pub(crate) fn internal_key(namespace: &str, what: &str) -> i64 {
    let apart = "#".repeat(MAX_NAME_BYTES + 1);
    advisory_key(namespace, &format!("{apart}{what}"))
}

pub(crate) fn check_name(what: &str, name: &str, least: usize) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, "check", message));
    if name.len() < least {
        return invalid(format!(
            "the {what} is empty; allowed are {least} to {MAX_NAME_BYTES} bytes"
        ));
    }
    if name.len() > MAX_NAME_BYTES {
        return invalid(format!(
            "the {what} has {} bytes; allowed are {least} to {MAX_NAME_BYTES} bytes",
            name.len()
        ));
    }
    if let Some(position) = name.find('\0') {
        return invalid(format!(
            "the {what} has a NUL at byte {position}, which PostgreSQL cannot store in text"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_never_render_alike() {
        let keys = [
            Key::from("5"),
            Key::from("#5"),
            Key::from("##5"),
            Key::from(5),
            Key::from("#5,6"),
            Key::from((5, 6)),
        ];
        for (i, a) in keys.iter().enumerate() {
            for b in &keys[i + 1..] {
                assert_ne!(a.to_string(), b.to_string());
            }
        }
    }

    #[test]
    fn a_pair_keeps_both_halves() {
        let id = Key::from((-1, -3)).lock_id("");
        let object = id.key & i64::from(u32::MAX);
        assert_eq!((id.key >> 32, object, id.pair), (-1, (1 << 32) - 3, true));
    }
}
