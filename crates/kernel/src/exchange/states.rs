//! What modules keep with a request or with one pass through the phases: one value of each type, made when it is needed.

use std::any::Any;
use std::cell::{RefCell, RefMut};

/// The values. Few requests have any, and hardly one has more than two: they are looked through.
#[derive(Default)]
pub struct States {
    /// Has its place here: most have this one alone, if any.
    first: Option<State>,
    /// None without a first.
    more: Vec<State>,
}

struct State {
    value: Box<dyn Any>,
    /// How a shadow of the request gets it, if it does.
    copy: Option<CopyState>,
}

type CopyState = fn(&dyn Any) -> Box<dyn Any>;

impl States {
    #[inline]
    pub fn of<T: Any>(&self) -> Option<&T> {
        let first = self.first.as_ref()?;
        let mut all = std::iter::once(first).chain(&self.more);
        all.find_map(|state| state.value.downcast_ref())
    }

    #[inline]
    pub fn of_mut<T: Any>(&mut self) -> Option<&mut T> {
        let first = self.first.as_mut()?;
        let mut all = std::iter::once(first).chain(&mut self.more);
        all.find_map(|state| state.value.downcast_mut())
    }

    /// Puts a value in the place of the one before.
    pub fn put<T: Any>(&mut self, value: T) -> &mut T {
        self.replace(State { value: Box::new(value), copy: None })
    }

    /// The same with a value that a shadow of the request has, too.
    pub fn put_for_shadows<T: Any + Clone>(&mut self, value: T) -> &mut T {
        let copy = |value: &dyn Any| -> Box<dyn Any> {
            Box::new(value.downcast_ref::<T>().expect("it is of this type").clone())
        };
        self.replace(State { value: Box::new(value), copy: Some(copy) })
    }

    fn replace<T: Any>(&mut self, state: State) -> &mut T {
        drop(self.take::<T>());
        let place = match self.first {
            None => self.first.insert(state),
            Some(_) => {
                self.more.push(state);
                self.more.last_mut().expect("just pushed")
            }
        };
        place.value.downcast_mut().expect("just put there")
    }

    pub fn take<T: Any>(&mut self) -> Option<T> {
        let is_wanted = |state: &mut State| state.value.is::<T>();
        let state = match self.first.take_if(is_wanted) {
            Some(first) => {
                self.first = self.more.pop();
                first
            }
            None => {
                let at = self.more.iter().position(|state| state.value.is::<T>())?;
                self.more.swap_remove(at)
            }
        };
        state.value.downcast().ok().map(|value| *value)
    }

    /// What a shadow of the request has of them.
    #[must_use]
    pub fn for_shadow(&self) -> Self {
        let copy = |state: &State| {
            let copy = state.copy?;
            Some(State { value: copy(&*state.value), copy: Some(copy) })
        };
        let mut copies = self.iter().filter_map(copy);
        Self { first: copies.next(), more: copies.collect() }
    }

    fn iter(&self) -> impl Iterator<Item = &State> {
        self.first.iter().chain(&self.more)
    }
}

/// The values of a request, which variables may keep too.
#[derive(Default)]
pub struct SharedStates(RefCell<States>);

impl SharedStates {
    /// The value; the type's own beginning, if there is none yet.
    ///
    /// # Panics
    /// One of the request's values is in use.
    pub fn of<T: Any + Default>(&self) -> RefMut<'_, T> {
        RefMut::map(self.0.borrow_mut(), |states| {
            if states.of::<T>().is_none() {
                states.put(T::default());
            }
            states.of_mut().expect("just put there")
        })
    }

    /// Puts a value in the place of the one before.
    pub fn put<T: Any>(&mut self, state: T) {
        self.0.get_mut().put(state);
    }

    /// What a variable shows of a value, if there is one.
    pub fn show<T: Any, R>(&self, show: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.borrow().of().map(show)
    }
}
