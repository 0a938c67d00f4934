//! An id, and its forms as text.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// Crockford's alphabet, in the order of ASCII.
const BASE32: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The number of digits of every id, so that texts sort as numbers do.
const DIGITS_32: usize = 13;
const DIGITS_62: usize = 11;

/// An id: a number that is not negative and fits `int8`.
///
/// As text it is decimal; [`base32`](Self::base32) and [`base62`](Self::base62) are shorter, and
/// sort byte by byte as the numbers do. Programs that store numbers as floating point, as
/// JavaScript does, need the text: beyond 2^53 they would change the number.
///
/// ```
/// use lockapi::id::Id;
///
/// let id = Id::try_from(723_688_567_603_204_099)?;
/// assert_eq!(id.to_string(), "723688567603204099");
/// assert_eq!("723688567603204099".parse::<Id>()?, id);
/// assert_eq!(id.base32(), "0M2REXC000403");
/// assert_eq!(Id::from_base32("om2rexcooo4o3")?, id);
/// assert_eq!(id.base62(), "0rSV53yOnOF");
/// assert_eq!(Id::from_base62(&id.base62())?, id);
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(i64);

impl Id {
    pub(crate) const fn of(bits: u64) -> Self {
        Self((bits & i64::MAX.cast_unsigned()).cast_signed())
    }

    /// Thirteen characters of [Crockford's base 32](https://www.crockford.com/base32.html).
    #[must_use]
    pub fn base32(self) -> String {
        written(self.0.unsigned_abs(), BASE32, DIGITS_32)
    }

    /// Reads [`base32`](Self::base32): in either case, `O` as 0, `I` and `L` as 1.
    ///
    /// # Errors
    /// `Invalid` for any other text.
    pub fn from_base32(text: &str) -> Result<Self> {
        let plain = |byte: u8| match byte.to_ascii_uppercase() {
            b'O' => b'0',
            b'I' | b'L' => b'1',
            other => other,
        };
        read(text, "base 32", BASE32, DIGITS_32, plain)
    }

    /// Eleven characters of `0-9A-Za-z`.
    #[must_use]
    pub fn base62(self) -> String {
        written(self.0.unsigned_abs(), BASE62, DIGITS_62)
    }

    /// Reads [`base62`](Self::base62).
    ///
    /// # Errors
    /// `Invalid` for any other text.
    pub fn from_base62(text: &str) -> Result<Self> {
        read(text, "base 62", BASE62, DIGITS_62, |byte| byte)
    }
}

fn written(mut number: u64, alphabet: &[u8], digits: usize) -> String {
    let base = alphabet.len() as u64;
    let mut text = vec![b'0'; digits];
    for digit in text.iter_mut().rev() {
        let place = usize::try_from(number % base).unwrap_or_default();
        *digit = alphabet[place];
        number /= base;
    }
    text.into_iter().map(char::from).collect()
}

fn read(
    text: &str,
    form: &str,
    alphabet: &[u8],
    digits: usize,
    plain: impl Fn(u8) -> u8,
) -> Result<Id> {
    let invalid = || {
        let message = format!(
            "not an id in {form}; allowed are exactly {digits} of its digits, for a number of at most 63 bits"
        );
        Error::new(ErrorKind::Invalid, "id", message)
    };
    if text.len() != digits {
        return Err(invalid());
    }
    let base = alphabet.len() as u64;
    let number = text.bytes().try_fold(0u64, |number, byte| {
        let byte = plain(byte);
        let place = alphabet.iter().position(|digit| *digit == byte)? as u64;
        number.checked_mul(base)?.checked_add(place)
    });
    let number = number.and_then(|number| i64::try_from(number).ok());
    number.map(Id).ok_or_else(invalid)
}

impl From<Id> for i64 {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl TryFrom<i64> for Id {
    type Error = Error;

    fn try_from(number: i64) -> Result<Self> {
        if number < 0 {
            let message = format!("{number} is not an id; allowed are 0 and more");
            return Err(Error::new(ErrorKind::Invalid, "id", message));
        }
        Ok(Self(number))
    }
}

/// In decimal.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", self.0)
    }
}

/// From decimal.
impl FromStr for Id {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.map(Self).ok_or_else(|| {
            let message =
                "not an id in decimal; allowed are digits only, for a number of at most 63 bits";
            Error::new(ErrorKind::Invalid, "id", message)
        })
    }
}

/// As a text in decimal: many readers would round a number beyond 2^53.
impl serde::Serialize for Id {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// From a text in decimal.
impl<'de> serde::Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn texts_are_read_back_and_sort_as_numbers(one in 0..=i64::MAX, other in 0..=i64::MAX) {
            let (one, other) = (Id(one), Id(other));
            prop_assert_eq!(Id::from_base32(&one.base32()).unwrap(), one);
            prop_assert_eq!(Id::from_base32(&one.base32().to_lowercase()).unwrap(), one);
            prop_assert_eq!(Id::from_base62(&one.base62()).unwrap(), one);
            prop_assert_eq!(one.to_string().parse::<Id>().unwrap(), one);
            prop_assert_eq!(one.base32().cmp(&other.base32()), one.cmp(&other));
            prop_assert_eq!(one.base62().cmp(&other.base62()), one.cmp(&other));
        }

        #[test]
        fn no_text_panics(text in ".{0,14}") {
            let forms = [text.parse::<Id>(), Id::from_base32(&text), Id::from_base62(&text)];
            for form in forms.into_iter().flatten() {
                prop_assert!(form.0 >= 0);
            }
        }
    }

    #[test]
    fn the_ends_are_read_back() {
        for id in [0, 1, (1 << 53) + 1, i64::MAX].map(Id) {
            assert_eq!(Id::from_base32(&id.base32()).unwrap(), id);
            assert_eq!(Id::from_base62(&id.base62()).unwrap(), id);
        }
        for text in ["", "-1", "+1", " 1", "9223372036854775808", "1e3"] {
            assert!(text.parse::<Id>().is_err(), "{text:?}");
        }
        // One more than the largest.
        assert!(Id::from_base32("8000000000000").is_err());
        assert!(Id::from_base62("zzzzzzzzzzz").is_err());
        assert!(Id::from_base62("0").is_err());
        assert!(Id::try_from(-1).is_err());
    }

    #[test]
    fn json_has_it_as_a_text() {
        let id = Id((1 << 53) + 1);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, "\"9007199254740993\"");
        assert_eq!(serde_json::from_str::<Id>(&json).unwrap(), id);
        assert!(serde_json::from_str::<Id>("9007199254740993").is_err());
        assert_eq!(serde_json::from_str::<Id>("\"\\u0037\"").unwrap(), Id(7));
    }
}
