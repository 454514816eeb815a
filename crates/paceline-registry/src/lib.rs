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

/// Makes a type with the fields `name` and `about` an [`Entry`], with the program's own ones in a static slice.
#[macro_export]
macro_rules! entries {
    ($kind:ty, $builtin:expr) => {
        impl $crate::Entry for $kind {
            fn builtin() -> &'static [Self] {
                $builtin
            }

            fn name(&self) -> &'static str {
                self.name
            }

            fn about(&self) -> &'static str {
                self.about
            }
        }
    };
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

    /// Every name with its line for help texts, in order.
    pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.iter().map(|entry| (entry.name(), entry.about()))
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
    struct Fruit {
        name: &'static str,
        about: &'static str,
    }

    const fn fruit(name: &'static str) -> Fruit {
        Fruit { name, about: "grows on trees" }
    }

    static FRUITS: [Fruit; 2] = [fruit("apple"), fruit("pear")];
    static PLUM: Fruit = fruit("plum");

    crate::entries!(Fruit, &FRUITS);

    #[test]
    fn entries_are_found_by_name_and_one_that_is_passed_in_is_like_any_other() {
        let registry = Registry::default();
        assert_eq!(registry.find("pear"), Some(&FRUITS[1]));
        assert_eq!(registry.find("plum"), None);
        let more = registry.clone().with(&PLUM).with(&FRUITS[0]);
        assert_eq!(more.names(), ["pear", "plum", "apple"]);
        assert_eq!(registry.names(), ["apple", "pear"]);
    }
}
