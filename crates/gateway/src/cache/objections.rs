//! What a request itself says against storing the answer to it.

use super::sent::Credentials;
use super::settings::Conf;
use super::unkeyed::{self, Unkeyed};
use crate::protocol::codec::Head;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::NotStored;

/// What stands against storing the answer to a request.
#[derive(Clone, Debug, Default)]
pub struct Objections {
    /// No answer can lift it.
    never: Option<NotStored>,
    /// Unless the answer says that it is for all.
    pub credentials: Credentials,
    /// Unless the answer varies by it.
    pub(super) unkeyed: Vec<Unkeyed>,
}

impl Objections {
    pub(super) const NONE: Self = Self {
        never: None,
        credentials: Credentials { are_there: false, are_unkeyed: false },
        unkeyed: Vec::new(),
    };

    pub(super) fn of(exchange: &mut Exchange, conf: &Conf, not_stored: Option<NotStored>) -> Self {
        let credentials = Credentials::of(exchange, conf);
        let request = &exchange.request;
        let mut never = not_stored;
        if request.method.is_get_or_head() && request.has_content() {
            // Applications read it, and nothing of it is in the key.
            never = never.or(Some(NotStored::Body));
        }
        Self { never, credentials, unkeyed: unkeyed::unkeyed(exchange, conf) }
    }

    /// Whether the page with this stored `Vary`, if one is stored, may be made by this request.
    pub fn admit(&self, vary: &[u8]) -> bool {
        self.never.is_none()
            && !self.credentials.are_unkeyed
            && self.unkeyed.iter().all(|found| found.is_varied_by(vary))
    }

    /// Checks that the answer lifts them.
    ///
    /// # Errors
    /// The reason.
    pub fn judge(&self, conf: &Conf, head: &Head) -> Result<(), NotStored> {
        if let Some(why) = self.never {
            return Err(why);
        }
        match self.unkeyed.iter().all(|found| found.is_distinguished_by(conf, head)) {
            true => Ok(()),
            false => Err(NotStored::Unkeyed),
        }
    }
}
