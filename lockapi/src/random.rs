//! Random numbers of the operating system.
//!
//! Every number that decides who holds something, or whose something is, comes from here. Those of
//! `fastrand` are for pauses and turns: two processes may draw the same, because its state is copied by
//! a fork and by a snapshot of a virtual machine.

use crate::error::{Error, ErrorKind, Result};

/// Any number.
pub(crate) fn number() -> Result<i64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = format!("the operating system has no random number: {error}");
        Error::new(ErrorKind::Unavailable, "random", message)
    })?;
    Ok(i64::from_ne_bytes(bytes))
}

/// A number above zero.
pub(crate) fn positive() -> Result<i64> {
    Ok((number()? & i64::MAX).max(1))
}

/// Any number, as 16 hexadecimal digits.
pub(crate) fn text() -> Result<String> {
    Ok(format!("{:016x}", number()?))
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
}
