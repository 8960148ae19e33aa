//! The names that orders are at: with tls-alpn-01 an issuer asks by name alone, so that one order at a time may have a name.

use crate::identifier::Identifier;
use std::cell::RefCell;
use std::collections::HashSet;
use tokio::sync::Notify;

/// The names of a thread's orders.
#[derive(Debug, Default)]
pub(crate) struct Names {
    taken: RefCell<HashSet<Identifier>>,
    given_back: Notify,
}

/// Names that are one order's as long as this lives.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    names: &'a Names,
    own: Vec<Identifier>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut taken = self.names.taken.borrow_mut();
        self.own.iter().for_each(|name| _ = taken.remove(name));
        self.names.given_back.notify_waiters();
    }
}

impl Names {
    /// Takes all of them together, so that no two wait for each other.
    ///
    /// # Cancel safety
    /// None is taken.
    pub(crate) async fn take(&self, wanted: &[Identifier]) -> Taken<'_> {
        loop {
            let given_back = self.given_back.notified();
            if let Some(taken) = self.try_take(wanted) {
                return taken;
            }
            given_back.await;
        }
    }

    fn try_take(&self, wanted: &[Identifier]) -> Option<Taken<'_>> {
        let mut taken = self.taken.borrow_mut();
        if wanted.iter().any(|name| taken.contains(name)) {
            return None;
        }
        taken.extend(wanted.iter().cloned());
        Some(Taken { names: self, own: wanted.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<Identifier> {
        names.iter().map(|name| Identifier::Dns((*name).to_owned())).collect()
    }

    #[tokio::test]
    async fn a_name_is_at_one_order_at_a_time() {
        let names = Names::default();
        let first = names.take(&named(&["a", "b"])).await;
        let other = names.take(&named(&["c"])).await;
        assert!(names.try_take(&named(&["b", "d"])).is_none());
        // What could not be had as a whole is not had in part.
        drop(names.try_take(&named(&["d"])).unwrap());
        let wanted = named(&["b", "a"]);
        let ((), _second) = tokio::join!(async { drop(first) }, names.take(&wanted));
        assert!(names.try_take(&named(&["a"])).is_none());
        drop(other);
        assert!(names.try_take(&named(&["c"])).is_some());
    }
}
