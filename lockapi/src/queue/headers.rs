//! Headers of a job.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::key::check_name;

/// The most headers of a job.
pub const MAX_HEADERS: usize = 32;
/// The most bytes of the name of a header.
pub const MAX_HEADER_NAME: usize = 64;
/// The most bytes of the value of a header.
pub const MAX_HEADER_VALUE: usize = 1024;
/// The most bytes of the names and values of all headers of a job.
pub const MAX_HEADER_BYTES: usize = 8192;

/// The most bytes of a [tag](super::Job::tag).
pub const MAX_TAG: usize = 64;
/// The header that has the tags of a job, separated by commas.
pub(crate) const TAGS: &str = "tags";
/// The header that has the key by which a job is [limited](super::Job::limit_by) besides its group.
const LIMIT_BY: &str = "limit-by";

/// The headers of a job: texts by name, such as the context of a trace.
///
/// The names are in lower case, and are found in any case.
///
/// ```
/// use lockapi::queue::Job;
///
/// let job = Job::new("welcome", "ada@example.com")?.header("X-Tenant", "7");
/// assert_eq!(job.headers().get("x-tenant"), Some("7"));
/// # Ok::<(), lockapi::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        // They are stored in lower case.
        let value = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            self.0.get(&name.to_ascii_lowercase())
        } else {
            self.0.get(name)
        };
        value.map(String::as_str)
    }

    /// Sets a header, and returns the value that it had.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Option<String> {
        let mut name = name.into();
        name.make_ascii_lowercase();
        self.0.insert(name, value.into())
    }

    /// The [tags](super::Job::tag) of the job: what the header `tags` has between its commas.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.get(TAGS).into_iter().flat_map(Self::tags_of)
    }

    /// The tags in the value of their header.
    pub(crate) fn tags_of(value: &str) -> impl Iterator<Item = &str> {
        value.split(',').filter(|tag| !tag.is_empty())
    }

    /// Adds a tag, unless it is there.
    pub(crate) fn tag(&mut self, tag: &str) {
        if self.tags().any(|it| it == tag) {
            return;
        }
        let tags = self.get(TAGS).filter(|tags| !tags.is_empty());
        let tags = tags.map_or_else(|| tag.to_owned(), |tags| format!("{tags},{tag}"));
        self.insert(TAGS, tags);
    }

    /// The key by which the job is [limited](super::Job::limit_by) besides its group: the header `limit-by`.
    #[must_use]
    pub fn limit_key(&self) -> Option<&str> {
        self.get(LIMIT_BY)
    }

    pub(crate) fn limit_by(&mut self, key: String) {
        self.insert(LIMIT_BY, key);
    }

    /// Those that a job gets whose place, and so whose key, stays as it is.
    pub(crate) fn with_limit_key_of(&self, other: &Self) -> Self {
        let mut headers = self.clone();
        headers.0.remove(LIMIT_BY);
        if let Some(key) = other.limit_key() {
            headers.limit_by(key.to_owned());
        }
        headers
    }

    #[cfg(feature = "opentelemetry")]
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The names and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the names and values.
    pub(crate) fn bytes(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// The headers as the parameter of a statement: a JSON object; an empty text means none.
    pub(crate) fn written(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        serde_json::to_string(&self.0).expect("an object of texts")
    }

    /// As the column of a model's row has them.
    pub(crate) fn column(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.written())
    }

    /// Reads the column; NULL means none. Whatever else somebody wrote there by hand is left out: it must not keep a queue
    /// from being served.
    pub(crate) fn read(column: Option<&str>) -> Self {
        let object = column.map(serde_json::from_str::<BTreeMap<String, serde_json::Value>>);
        let members = object.and_then(Result::ok).unwrap_or_default().into_iter();
        let texts = members.filter_map(|(name, value)| match value {
            serde_json::Value::String(text) => Some((name.to_ascii_lowercase(), text)),
            _ => None,
        });
        Self(texts.collect())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, "check", message));
        if self.len() > MAX_HEADERS {
            return invalid(format!(
                "{} headers; allowed are at most {MAX_HEADERS}",
                self.len()
            ));
        }
        for (name, value) in self.iter() {
            if !(1..=MAX_HEADER_NAME).contains(&name.len()) {
                return invalid(format!(
                    "the name of a header has {} bytes; allowed are 1 to {MAX_HEADER_NAME} bytes of visible ASCII",
                    name.len()
                ));
            }
            if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
                return invalid(format!(
                    "the name of a header is {name:?}; allowed are 1 to {MAX_HEADER_NAME} bytes of visible ASCII"
                ));
            }
            if value.len() > MAX_HEADER_VALUE {
                return invalid(format!(
                    "the value of the header {name:?} has {} bytes; allowed are at most {MAX_HEADER_VALUE} bytes",
                    value.len()
                ));
            }
            if let Some(position) = value.find('\0') {
                return invalid(format!(
                    "the value of the header {name:?} has a NUL at byte {position}, which PostgreSQL cannot store; \
                     allowed are all other characters"
                ));
            }
        }
        if let Some(key) = self.limit_key() {
            check_name("key of the limit", key, 1)?;
        }
        if self.bytes() > MAX_HEADER_BYTES {
            return invalid(format!(
                "the headers have {} bytes of names and values; allowed are at most {MAX_HEADER_BYTES}",
                self.bytes()
            ));
        }
        Ok(())
    }
}

pub(crate) fn check_tag(tag: &str) -> Result<()> {
    if (1..=MAX_TAG).contains(&tag.len()) && !tag.contains([',', '\0']) {
        return Ok(());
    }
    let shown: String = tag.chars().take(100).collect();
    let message = format!(
        "the tag {shown:?}; allowed are 1 to {MAX_TAG} bytes without a comma and without NUL"
    );
    Err(Error::new(ErrorKind::Invalid, "check", message))
}

/// The names alone.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        let mut headers = Headers::default();
        assert_eq!(headers.insert("TraceParent", "1"), None);
        assert_eq!(headers.insert("traceparent", "2"), Some("1".to_owned()));
        assert_eq!(headers.get("TRACEPARENT"), Some("2"));
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("traceparent", "2")]);
    }

    #[test]
    fn tags_are_a_header() {
        let mut headers = Headers::default();
        assert_eq!(headers.tags().count(), 0);
        for tag in ["billing", "eu", "billing"] {
            headers.tag(tag);
        }
        assert_eq!(headers.get("Tags"), Some("billing,eu"));
        assert_eq!(headers.tags().collect::<Vec<_>>(), ["billing", "eu"]);
        headers.insert("tags", ",a,,b ,");
        assert_eq!(headers.tags().collect::<Vec<_>>(), ["a", "b "]);
        for (tag, allowed) in [
            ("a", true),
            ("ä b", true),
            (&"x".repeat(64), true),
            ("", false),
            ("a,b", false),
            ("a\0", false),
            (&"x".repeat(65), false),
        ] {
            assert_eq!(check_tag(tag).is_ok(), allowed, "{tag:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut headers = Headers::default();
        assert_eq!(headers.written(), "");
        assert_eq!(Headers::read(headers.column().as_deref()), headers);
        headers.insert("a", "\"quoted\" \u{1}\n ä");
        headers.insert("b", "");
        assert_eq!(Headers::read(headers.column().as_deref()), headers);
        for wrong in ["", "[]", r#"{"a": 1}"#, "null"] {
            assert!(Headers::read(Some(wrong)).is_empty(), "{wrong}");
        }
    }
}
