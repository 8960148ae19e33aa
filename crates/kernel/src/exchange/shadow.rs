//! Requests of a request's own: subrequests, work in the background, shadows that only look.

use super::request_body::RequestBody;
use super::subrequests::TooMany;
use super::{Exchange, Pass, Role};
use crate::config::regex::Captures;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::rc::Rc;

/// Exchanges like this one without its client, for work that outlives it or goes beside it.
impl Exchange {
    /// A subrequest of this request for another location; `None`, and logged, if there were too many.
    pub fn subrequest(&self, uri: &[u8]) -> Option<Self> {
        let refuse = |why| {
            let text = match why {
                TooMany::Deep => "subrequests cycle",
                TooMany::Made => "too many subrequests",
                TooMany::Reported => return,
            };
            let uri = error::verbatim(uri);
            error::request(self, Level::Error, &format!("{text} while processing \"{uri}\""));
        };
        let subrequests = self.subrequests.next().map_err(refuse).ok()?;
        let mut asked = self.request_of_its_own();
        asked.subrequests = subrequests;
        asked.role = Role::Subrequest;
        asked.request_id = (*self.id()).into();
        let method = || Bytes::copy_from_slice(self.request.method_text());
        asked.method_of_client = Some(self.method_of_client.clone().unwrap_or_else(method));
        asked.request.become_get();
        asked.captures = Captures::default();
        asked.redirect_internally(uri.to_vec(), Some(Vec::new()));
        Some(asked)
    }

    /// The same request once more, for work of the server's own: without content, which is the client's.
    pub fn request_of_its_own(&self) -> Self {
        let mut asked = self.shadow();
        asked.request.drop_content();
        asked
    }

    /// Forgets what variables came to that are computed of others (`map` and the like).
    pub fn forget_computed(&mut self) {
        let conf = Rc::clone(&self.conf);
        for (slot, computed) in (0..).zip(&conf.computed) {
            if computed.is_some() {
                self.variables.set(slot, None);
            }
        }
    }

    /// The same request, to look at.
    pub fn shadow(&self) -> Self {
        let mut shadow = Self::of_server(
            Rc::clone(&self.conf),
            self.server,
            Rc::clone(&self.client),
            self.request.clone(),
            RequestBody::none(),
        );
        shadow.role = self.role;
        shadow.remote = Rc::clone(&self.remote);
        shadow.method_of_client.clone_from(&self.method_of_client);
        shadow.subrequests = self.subrequests.clone();
        shadow.location = self.location;
        shadow.said_of_client.clone_from(&self.said_of_client);
        shadow.uri.clone_from(&self.uri);
        shadow.part.clone_from(&self.part);
        shadow.is_uri_as_sent = self.is_uri_as_sent;
        shadow.is_uri_in_location = self.is_uri_in_location;
        shadow.is_internal = self.is_internal;
        shadow.redirects.is_led = self.redirects.is_led;
        shadow.doubt = self.doubt.clone();
        shadow.pass = Pass::for_shadow(&self.pass);
        shadow.args.clone_from(&self.args);
        shadow.captures = self.captures.clone();
        shadow.variables = self.variables.clone();
        // A part of the page of a refusal is for whom was refused, too.
        shadow.left_pages.clone_from(&self.left_pages);
        shadow
    }
}
