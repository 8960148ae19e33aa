//! What a location's content comes from.

use super::Exchange;
use super::engine::Later;
use super::outcome::Outcome;
use super::response::Response;
use crate::config::shared::Collected;
use crate::config::value_error::ValueError;
use crate::exchange::conf::LocationConf;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Makes responses.
pub trait Handler: Any + Debug + Send + Sync {
    /// The response, as far as it needs no waiting; [`Outcome::Wait`] asks for [`Handler::run`].
    fn respond(&self, exchange: &mut Exchange) -> Outcome;

    /// The part of the work that waits.
    ///
    /// # Cancel safety
    /// What was begun for the request is given back.
    fn run(self: Arc<Self>, _exchange: &mut Exchange) -> Later<'_, Outcome> {
        unreachable!("this handler never waits")
    }

    /// Looks at what the modules have once, when the whole configuration is read.
    ///
    /// # Errors
    /// What is not there.
    fn check(&self, _shared: &Collected) -> Result<(), ValueError> {
        Ok(())
    }

    /// Whether the content is another server's: then a path without the slash of its location is redirected.
    fn is_gateway(&self) -> bool {
        false
    }

    /// Whether no other handler may be written beside it; of others the last one counts, as in nginx.
    fn is_alone(&self) -> bool {
        false
    }

    /// Whether who asks is looking at the server itself: such requests are in no figure.
    fn is_for_viewers(&self) -> bool {
        false
    }

    /// Whether it bounds request bodies itself, whatever `client_max_body_size` says.
    fn bounds_bodies(&self) -> bool {
        false
    }
}

impl dyn Handler {
    /// The handler, if it is one of this type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}

/// Shapes a response on its way to the connection.
pub type Shape = fn(&mut Exchange, &mut Response);

/// A filter: what it does, and where it has something to do.
#[derive(Clone, Copy)]
pub struct Filter {
    pub shape: Shape,
    pub is_on: fn(&LocationConf) -> bool,
}

impl Filter {
    /// One that looks at every response.
    pub const fn always(shape: Shape) -> Self {
        Self { shape, is_on: |_| true }
    }

    /// One that has nothing to do where its module is off.
    pub const fn when(is_on: fn(&LocationConf) -> bool, shape: Shape) -> Self {
        Self { shape, is_on }
    }
}

/// Which parts of a list have something to do in a location, by their numbers below 32 in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound(u32);

impl Bound {
    #[inline]
    #[must_use]
    pub fn has(self, part: u8) -> bool {
        self.0 & (1 << part) != 0
    }
}

impl FromIterator<u8> for Bound {
    fn from_iter<I: IntoIterator<Item = u8>>(parts: I) -> Self {
        Self(parts.into_iter().fold(0, |all, part| all | 1 << part))
    }
}

/// In the order of the list.
impl Iterator for Bound {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (first < 32).then_some(first as usize)
    }
}
