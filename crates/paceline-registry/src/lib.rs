//! Tables of named things that can be chosen: the program's own, and more that a caller passes in.
//!
//! # Deliberately absent
//! What is in a table: each family has its own file of entries.

#![forbid(unsafe_code)]

use std::fmt;

/// Something that users can name.
pub trait Entry: Sized + 'static {
    /// The entries of the program itself.
    fn builtin() -> &'static [Self];
    /// The name on the command line, in plans and in study files.
    fn name(&self) -> &'static str;
    /// One line for help texts and tables.
    fn about(&self) -> &'static str;
}

/// The entries of one family. [`Default`] has those of the program.
pub struct Registry<T: 'static>(Vec<&'static T>);

impl<T: Entry> Default for Registry<T> {
    fn default() -> Self {
        Self(T::builtin().iter().collect())
    }
}

impl<T> Clone for Registry<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Entry> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl<T: Entry> Registry<T> {
    /// One entry more. It replaces one of the same name.
    pub fn with(mut self, entry: &'static T) -> Self {
        self.0.retain(|known| known.name() != entry.name());
        self.0.push(entry);
        self
    }

    /// The entry of that name.
    pub fn find(&self, name: &str) -> Option<&'static T> {
        self.iter().find(|entry| entry.name() == name)
    }

    /// Every entry, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> + '_ {
        self.0.iter().copied()
    }

    /// Every name, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.iter().map(Entry::name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Fruit(&'static str);

    impl Entry for Fruit {
        fn builtin() -> &'static [Self] {
            &[Fruit("apple"), Fruit("pear")]
        }

        fn name(&self) -> &'static str {
            self.0
        }

        fn about(&self) -> &'static str {
            "grows on trees"
        }
    }

    #[test]
    fn entries_are_found_by_name_and_one_that_is_passed_in_is_like_any_other() {
        let registry = Registry::default();
        assert_eq!(registry.find("pear"), Some(&Fruit("pear")));
        assert_eq!(registry.find("plum"), None);
        let more = registry.clone().with(&Fruit("plum")).with(&Fruit("apple"));
        assert_eq!(more.names(), ["pear", "plum", "apple"]);
        assert_eq!(registry.names(), ["apple", "pear"]);
    }
}
