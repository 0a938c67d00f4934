//! Values that are nearly known ones.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::{Just, any, prop_oneof};
use proptest::sample::{Index, select};
use proptest::strategy::Strategy;

#[derive(Clone, Debug)]
enum Edit<T> {
    Replace(Index, T),
    Insert(Index, T),
    Cut(Index, Index),
    Repeat(Index, Index),
    /// What another value has from there on follows.
    Splice(Index, Vec<T>, Index),
}

impl<T: Clone> Edit<T> {
    fn apply(self, value: &mut Vec<T>) {
        // Also the place after the last one.
        let place = |at: Index, of: usize| at.index(of + 1);
        let range = |one: Index, other: Index, of: usize| {
            let (one, other) = (place(one, of), place(other, of));
            one.min(other)..one.max(other)
        };
        match self {
            Self::Replace(at, item) if !value.is_empty() => *at.get_mut(value) = item,
            Self::Replace(_, item) => value.push(item),
            Self::Insert(at, item) => value.insert(place(at, value.len()), item),
            Self::Cut(one, other) => drop(value.drain(range(one, other, value.len()))),
            Self::Repeat(one, other) => {
                let range = range(one, other, value.len());
                let again = value[range.clone()].to_vec();
                value.splice(range.end..range.end, again);
            }
            Self::Splice(at, other, from) => {
                value.truncate(place(at, value.len()));
                value.extend_from_slice(&other[place(from, other.len())..]);
            }
        }
    }
}

/// Known values with up to three edits: an item is replaced or added, some are left out or repeated, or the end is that
/// of another value.
pub fn mutated<T: Clone + Debug + 'static>(
    known: Vec<Vec<T>>,
    item: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Vec<T>> {
    let at = any::<Index>;
    let edit = prop_oneof![
        (at(), item.clone()).prop_map(|(at, item)| Edit::Replace(at, item)),
        (at(), item).prop_map(|(at, item)| Edit::Insert(at, item)),
        (at(), at()).prop_map(|(one, other)| Edit::Cut(one, other)),
        (at(), at()).prop_map(|(one, other)| Edit::Repeat(one, other)),
        (at(), select(known.clone()), at())
            .prop_map(|(at, other, from)| Edit::Splice(at, other, from)),
    ];
    (select(known), vec(edit, 0..4)).prop_map(|(mut value, edits)| {
        for edit in edits {
            edit.apply(&mut value);
        }
        value
    })
}

/// Texts that are nearly known ones.
pub fn text_like(known: &[&str]) -> impl Strategy<Value = String> {
    let known: Vec<Vec<char>> = known.iter().map(|text| text.chars().collect()).collect();
    let letters: Vec<char> = known.concat();
    let letter = prop_oneof![4 => select(letters), 1 => any::<char>(), 1 => Just('\0')];
    mutated(known, letter).prop_map(String::from_iter)
}

/// Bytes that are nearly known ones.
pub fn bytes_like(known: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    mutated(known, any::<u8>())
}

#[cfg(test)]
mod tests {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    /// Each kind of edit makes values that the others do not.
    #[test]
    fn values_are_near_the_known_ones() {
        let known = vec![vec![1, 2, 3], vec![7, 8, 9]];
        let values = mutated(known.clone(), Just(0));
        let mut runner = TestRunner::deterministic();
        let seen: Vec<Vec<i32>> = (0..2000)
            .map(|_| values.new_tree(&mut runner).expect("a value").current())
            .collect();
        for wanted in [
            &[1, 2, 3][..],
            &[1, 0, 3],
            &[1, 0, 2, 3],
            &[1, 3],
            &[],
            &[1, 2, 2, 3],
            &[1, 2, 9],
        ] {
            assert!(seen.iter().any(|value| value == wanted), "{wanted:?}");
        }
    }

    #[test]
    fn edits_have_any_place() {
        let mut runner = TestRunner::deterministic();
        for values in [vec![vec![]], vec![vec![1], vec![]]] {
            let values = mutated(values, Just(0));
            for _ in 0..500 {
                values.new_tree(&mut runner).expect("a value").current();
            }
        }
    }
}
