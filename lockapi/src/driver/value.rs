//! The few types that are exchanged with a driver.

use crate::error::Failure;

/// The type of a parameter or a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `bool`
    Bool,
    /// `int8`
    Int,
    /// `text`
    Text,
    /// `bytea`
    Bytes,
    /// `bool[]`, without NULL elements
    Bools,
    /// `int8[]`, without NULL elements
    Ints,
    /// `text[]`, without NULL elements
    Texts,
}

impl Type {
    /// The object identifier of the PostgreSQL type, which every driver can tell of a column.
    #[must_use]
    pub const fn oid(self) -> u32 {
        match self {
            Self::Bool => 16,
            Self::Int => 20,
            Self::Text => 25,
            Self::Bytes => 17,
            Self::Bools => 1000,
            Self::Ints => 1016,
            Self::Texts => 1009,
        }
    }
}

/// A parameter, or a column of a row.
///
/// Times cross as `Int` microseconds: durations go in, durations and Unix epochs come out.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL NULL, of a parameter that is declared with the given type.
    Null(Type),
    /// A `bool`.
    Bool(bool),
    /// An `int8`.
    Int(i64),
    /// A `text`.
    Text(String),
    /// A `bytea`.
    Bytes(Vec<u8>),
    /// A `bool[]`.
    Bools(Vec<bool>),
    /// An `int8[]`.
    Ints(Vec<i64>),
    /// A `text[]`.
    Texts(Vec<String>),
}

impl Value {
    /// The one element of an array that has one; any other value as it is.
    pub(crate) fn scalar(self) -> Self {
        fn only<T>(values: Vec<T>) -> Result<T, Vec<T>> {
            <[T; 1]>::try_from(values).map(|[value]| value)
        }
        match self {
            Self::Bools(values) => only(values).map_or_else(Self::Bools, Self::Bool),
            Self::Ints(values) => only(values).map_or_else(Self::Ints, Self::Int),
            Self::Texts(values) => only(values).map_or_else(Self::Texts, Self::Text),
            other => other,
        }
    }

    /// The type of the value.
    #[must_use]
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null(of) => *of,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Text(_) => Type::Text,
            Self::Bytes(_) => Type::Bytes,
            Self::Bools(_) => Type::Bools,
            Self::Ints(_) => Type::Ints,
            Self::Texts(_) => Type::Texts,
        }
    }
}

/// The rows that a statement answers.
pub type Rows = Vec<Row>;

/// One row; its columns are taken out by position, each with its type checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// Takes column `at`, an `int8` that is not NULL.
    pub fn int(&mut self, at: usize) -> Result<i64, Failure> {
        self.maybe_int(at)?.ok_or_else(|| mismatch(at, "int8"))
    }

    /// Takes column `at`, an `int8`.
    pub fn maybe_int(&mut self, at: usize) -> Result<Option<i64>, Failure> {
        match self.take(at) {
            Some(Value::Int(value)) => Ok(Some(value)),
            Some(Value::Null(_)) => Ok(None),
            _ => Err(mismatch(at, "int8")),
        }
    }

    /// Takes column `at`, a `bool` that is not NULL.
    pub fn bool(&mut self, at: usize) -> Result<bool, Failure> {
        match self.take(at) {
            Some(Value::Bool(value)) => Ok(value),
            _ => Err(mismatch(at, "bool")),
        }
    }

    /// Takes column `at`, a `bool`.
    pub fn maybe_bool(&mut self, at: usize) -> Result<Option<bool>, Failure> {
        match self.take(at) {
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(Value::Null(_)) => Ok(None),
            _ => Err(mismatch(at, "bool")),
        }
    }

    /// Takes column `at`, a `text` that is not NULL.
    pub fn text(&mut self, at: usize) -> Result<String, Failure> {
        match self.take(at) {
            Some(Value::Text(value)) => Ok(value),
            _ => Err(mismatch(at, "text")),
        }
    }

    /// Takes column `at`, a `bytea` that is not NULL.
    pub fn bytes(&mut self, at: usize) -> Result<Vec<u8>, Failure> {
        match self.take(at) {
            Some(Value::Bytes(value)) => Ok(value),
            _ => Err(mismatch(at, "bytea")),
        }
    }

    /// Takes column `at`, a `bool[]`; NULL is read as an empty array.
    pub fn bools(&mut self, at: usize) -> Result<Vec<bool>, Failure> {
        match self.take(at) {
            Some(Value::Bools(values)) => Ok(values),
            Some(Value::Null(_)) => Ok(Vec::new()),
            _ => Err(mismatch(at, "bool[]")),
        }
    }

    /// Takes column `at`, an `int8[]`; NULL is read as an empty array.
    pub fn ints(&mut self, at: usize) -> Result<Vec<i64>, Failure> {
        match self.take(at) {
            Some(Value::Ints(values)) => Ok(values),
            Some(Value::Null(_)) => Ok(Vec::new()),
            _ => Err(mismatch(at, "int8[]")),
        }
    }

    /// Takes column `at`, a `text`.
    pub fn maybe_text(&mut self, at: usize) -> Result<Option<String>, Failure> {
        match self.take(at) {
            Some(Value::Text(value)) => Ok(Some(value)),
            Some(Value::Null(_)) => Ok(None),
            _ => Err(mismatch(at, "text")),
        }
    }

    /// Takes column `at`, a `text[]`; NULL is read as an empty array.
    pub fn texts(&mut self, at: usize) -> Result<Vec<String>, Failure> {
        match self.take(at) {
            Some(Value::Texts(values)) => Ok(values),
            Some(Value::Null(_)) => Ok(Vec::new()),
            _ => Err(mismatch(at, "text[]")),
        }
    }

    fn take(&mut self, at: usize) -> Option<Value> {
        let value = self.0.get_mut(at)?;
        let null = Value::Null(value.type_of());
        Some(std::mem::replace(value, null))
    }
}

fn mismatch(at: usize, wanted: &str) -> Failure {
    Failure::corrupt(format!(
        "column {at} of the answer is not of the expected type {wanted}"
    ))
}
