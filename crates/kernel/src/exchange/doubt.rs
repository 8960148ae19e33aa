//! What decides a request's answer and could not be found out: then there is no answer but a refusal.
//!
//! Values are asked for in many places that cannot refuse a request themselves (a `map` in a cache key, a variable in
//! `root`). They leave a doubt on the exchange. It is looked at before a request goes to another server, before the cache
//! is asked, before a page is stored, and before a response is sent.

use super::Exchange;
use crate::config::regex::{Regex, Undecided};
use crate::logging::error::{self, Level};
use std::cell::Cell;

/// Whether something of a request could not be found out.
#[derive(Clone, Debug, Default)]
pub struct Doubt {
    /// Since the last refusal.
    is_open: Cell<bool>,
    was_refused: Cell<bool>,
}

impl Doubt {
    /// Whether the request is still to be refused.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Whether there ever was one, also if the answer is the page of the refusal by now.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.is_open.get() || self.was_refused.get()
    }

    /// What was found out for another exchange is used for this one.
    pub fn take_over(&self, other: &Self) {
        self.is_open.set(self.is_open() || other.is_open());
    }
}

impl Exchange {
    /// Leaves a doubt, for the reason that goes to the log.
    #[cold]
    pub fn leave_doubt(&self, why: &str) {
        error::request(self, Level::Alert, why);
        self.doubt.is_open.set(true);
    }

    /// Leaves the doubt of a search that came to no end.
    #[cold]
    pub fn leave_undecided(&self, regex: &Regex, subject: &[u8], why: Undecided) {
        let subject = error::verbatim(subject);
        let (code, source) = (why.code, regex.source());
        self.leave_doubt(&format!(
            "pcre2_match() failed: {code} on \"{subject}\" using \"{source}\""
        ));
    }

    /// Whether the request is to be refused now. After the second time not even an `error_page` is looked for: the doubt
    /// would be the same there.
    pub fn takes_doubt(&mut self) -> bool {
        if !self.doubt.is_open.replace(false) {
            return false;
        }
        self.redirects.is_cycle |= self.doubt.was_refused.replace(true);
        true
    }

    /// Looks at something by a shadow. What is in doubt there is so here.
    pub fn peek<T>(&self, look: impl FnOnce(&mut Self) -> T) -> T {
        let mut shadow = self.shadow();
        let found = look(&mut shadow);
        self.doubt.take_over(&shadow.doubt);
        found
    }
}
