//! Where values of many types lie side by side, one of each: settings of a location, what modules have once.
//!
//! Each type has a [`Place`]: a number that is drawn once, by which its value is found without a name.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where values of one type lie in tables that hold one value of each of many types.
#[derive(Debug)]
pub struct Place(AtomicUsize);

/// The next number; 0 stands for none.
static NEXT: AtomicUsize = AtomicUsize::new(1);

impl Place {
    #[expect(clippy::new_without_default, reason = "a place is a static")]
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    #[inline]
    pub fn number(&self) -> usize {
        match self.0.load(Ordering::Relaxed) {
            0 => self.draw(),
            number => number,
        }
    }

    #[cold]
    fn draw(&self) -> usize {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        match self.0.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => number,
            Err(earlier) => earlier,
        }
    }
}

/// Settings that a location has once.
pub trait ModuleConf: Any + Send + Sync {
    fn place() -> &'static Place;
}

/// Compiled settings of some type.
pub type AnyConf = Arc<dyn Any + Send + Sync>;

/// Values by the number of their place; most places may be empty.
#[derive(Clone)]
pub struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Table<T> {
    pub fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number)?.as_ref()
    }

    /// What is at a place, to be filled or changed.
    pub fn slot(&mut self, number: usize) -> &mut Option<T> {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        &mut self.0[number]
    }

    /// What there is, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }
}

impl<T> IntoIterator for Table<T> {
    type Item = (usize, T);
    type IntoIter = std::vec::IntoIter<(usize, T)>;

    fn into_iter(self) -> Self::IntoIter {
        let all = self.0.into_iter().enumerate();
        all.filter_map(|(number, value)| Some((number, value?))).collect::<Vec<_>>().into_iter()
    }
}

impl<T> FromIterator<(usize, T)> for Table<T> {
    fn from_iter<I: IntoIterator<Item = (usize, T)>>(all: I) -> Self {
        let mut table = Self::default();
        for (number, value) in all {
            *table.slot(number) = Some(value);
        }
        table
    }
}

/// How many places lie side by side: what a location asks for of one is at hand for the others.
const CHUNK: usize = 8;

/// Settings whose places follow each other.
type Chunk = [Option<AnyConf>; CHUNK];

/// The settings of one location, by place.
///
/// Locations share what is the same in them, so that with thousands of servers those that a request needs were needed by
/// the request before.
#[derive(Clone, Default)]
pub struct Compiled(Vec<Arc<Chunk>>);

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Compiled {
    pub fn put(&mut self, place: &Place, conf: AnyConf) {
        let number = place.number();
        if self.0.len() <= number / CHUNK {
            self.0.resize_with(number / CHUNK + 1, Arc::default);
        }
        Arc::make_mut(&mut self.0[number / CHUNK])[number % CHUNK] = Some(conf);
    }

    #[inline]
    fn get(&self, place: &Place) -> Option<&AnyConf> {
        let number = place.number();
        self.0.get(number / CHUNK)?[number % CHUNK].as_ref()
    }

    /// The settings at a place.
    ///
    /// # Panics
    /// The module is not in the list of modules, or the place is another type's.
    pub fn at<C: Any>(&self, place: &Place) -> &C {
        let conf = self.get(place).map(|conf| &**conf);
        conf.and_then(<dyn Any + Send + Sync>::downcast_ref)
            .expect("every module has settings in every location")
    }

    /// A share of the settings at a place.
    ///
    /// # Panics
    /// As [`Compiled::at`].
    pub fn share<C: Any + Send + Sync>(&self, place: &Place) -> Arc<C> {
        let conf = self.get(place).map(Arc::clone);
        conf.and_then(|conf| conf.downcast().ok())
            .expect("every module has settings in every location")
    }
}

/// The chunks there are, so that locations share those that are the same.
#[derive(Default)]
pub struct Chunks(HashMap<[usize; CHUNK], Arc<Chunk>>);

impl Chunks {
    /// The settings of a location.
    pub fn share(&mut self, all: &Table<AnyConf>) -> Compiled {
        Compiled(all.0.chunks(CHUNK).map(|some| self.chunk(some)).collect())
    }

    fn chunk(&mut self, some: &[Option<AnyConf>]) -> Arc<Chunk> {
        let at = |number: usize| some.get(number).and_then(Option::as_ref);
        // The address of settings is theirs alone: the chunk keeps them.
        let key =
            std::array::from_fn(|number| at(number).map_or(0, |conf| Arc::as_ptr(conf).addr()));
        let chunk = || Arc::new(std::array::from_fn(|number| at(number).map(Arc::clone)));
        Arc::clone(self.0.entry(key).or_insert_with(chunk))
    }
}

/// The body of `fn place`: one place for the type it belongs to.
#[macro_export]
macro_rules! place {
    () => {{
        static PLACE: $crate::config::place::Place = $crate::config::place::Place::new();
        &PLACE
    }};
}

pub use place;
