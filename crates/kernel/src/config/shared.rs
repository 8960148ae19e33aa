//! What a module has once for a whole configuration: zones, tables, groups.
//!
//! It is collected while the configuration is loaded, and looked at while requests are served. What survives is handed
//! from one configuration to the next.

use super::place::{Place, Table};
use std::any::Any;
use std::cell::{RefCell, RefMut};
use std::sync::Arc;

/// Something that a module has once for a configuration.
pub trait Shared: Any + Default + Send + Sync {
    /// Whether it is only for the load, and gone with it.
    const IS_FOR_LOADING: bool = false;
    /// Whether the next configuration begins with it.
    const SURVIVES: bool = false;

    fn place() -> &'static Place;

    /// A load begins: what is taken over from the configuration before.
    fn follow(&mut self, _earlier: &Self) {}

    /// The configuration is read: what is taken over for what it names.
    fn finish(&mut self, _earlier: &Self) {}
}

/// A [`Shared`] of some type.
trait AnyShared: Any + Send + Sync {
    fn is_for_loading(&self) -> bool;
    fn survives(&self) -> bool;
    fn follow_any(&mut self, earlier: &dyn Any);
    fn finish_any(&mut self, earlier: &dyn Any);
}

impl<T: Shared> AnyShared for T {
    fn is_for_loading(&self) -> bool {
        T::IS_FOR_LOADING
    }

    fn survives(&self) -> bool {
        T::SURVIVES
    }

    fn follow_any(&mut self, earlier: &dyn Any) {
        self.follow(earlier.downcast_ref().expect(ONE_TYPE));
    }

    fn finish_any(&mut self, earlier: &dyn Any) {
        self.finish(earlier.downcast_ref().expect(ONE_TYPE));
    }
}

const ONE_TYPE: &str = "a place holds one type";

/// A type to be collected, for the list of modules.
#[derive(Clone, Copy)]
pub struct SharedType {
    place: fn() -> &'static Place,
    new: fn() -> Box<dyn AnyShared>,
}

impl SharedType {
    pub const fn of<T: Shared>() -> Self {
        Self { place: T::place, new: || Box::new(T::default()) }
    }
}

/// What a load has collected so far.
pub struct Collected(Table<RefCell<Box<dyn AnyShared>>>);

impl Collected {
    /// Begins with nothing but what survives of the configuration before.
    pub fn begin(types: impl Iterator<Item = SharedType>, earlier: &SharedSet) -> Self {
        let begin = |kind: SharedType| {
            let number = (kind.place)().number();
            let mut shared = (kind.new)();
            if let Some(earlier) = earlier.any(number) {
                shared.follow_any(earlier);
            }
            (number, RefCell::new(shared))
        };
        Self(types.map(begin).collect())
    }

    /// # Panics
    /// No module in the list of modules has it, or it is borrowed.
    pub fn of<T: Shared>(&self) -> RefMut<'_, T> {
        let cell = self.0.get(T::place().number()).expect(LISTED);
        RefMut::map(cell.borrow_mut(), |shared| {
            let shared: &mut dyn Any = &mut **shared;
            shared.downcast_mut().expect(ONE_TYPE)
        })
    }

    /// What the configuration is served with.
    pub fn finish(self, earlier: &SharedSet) -> SharedSet {
        let finish = |(number, cell): (usize, RefCell<Box<dyn AnyShared>>)| {
            let mut shared = cell.into_inner();
            if shared.is_for_loading() {
                return None;
            }
            if let Some(earlier) = earlier.any(number) {
                shared.finish_any(earlier);
            }
            Some((number, Arc::from(shared)))
        };
        SharedSet(self.0.into_iter().filter_map(finish).collect())
    }
}

const LISTED: &str = "its module is in the list of modules";

/// What the modules of a configuration share.
#[derive(Clone, Default)]
pub struct SharedSet(Table<Arc<dyn AnyShared>>);

impl SharedSet {
    fn any(&self, number: usize) -> Option<&dyn Any> {
        let shared: &dyn AnyShared = &**self.0.get(number)?;
        Some(shared)
    }

    /// # Panics
    /// No module in the list of modules has it.
    pub fn of<T: Shared>(&self) -> &T {
        self.any(T::place().number()).expect(LISTED).downcast_ref().expect(ONE_TYPE)
    }

    /// What the next configuration begins with.
    #[must_use]
    pub fn survivors(&self) -> Self {
        let survivors = self.0.iter().filter(|(_, shared)| shared.survives());
        Self(survivors.map(|(number, shared)| (number, Arc::clone(shared))).collect())
    }
}

impl std::fmt::Debug for SharedSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedSet").finish_non_exhaustive()
    }
}
