//! Pages that were left for what an answer or a refusal led to. Stored in their place, that would be shown to those who are
//! allowed; taken from there, the page itself would be shown to those who are not.

use super::key;
use super::plan::Plan;
use super::settings::{self, Conf};
use crate::protocol;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::config::servers::LocationId;
use yorozu_kernel::exchange::left::LeftPage;
use yorozu_kernel::exchange::{Exchange, Pass};

/// Whether what the request came to has the key of a page that it was to get and did not.
pub(super) fn is_left(exchange: &Exchange, conf: &Conf, plan: &Plan) -> bool {
    exchange.left_pages.iter().any(|left| match left {
        LeftPage::Asked { zone, key } => {
            Arc::ptr_eq(zone, &plan.zone) && key.page() == plan.key.page()
        }
        LeftPage::Refused { location, uri, args } => exchange.peek(|asked| {
            asked.set_uri(uri.clone());
            asked.args.clone_from(args);
            is_refused(asked, *location, conf, plan)
        }),
    })
}

/// Whether `asked`, which has the path and the arguments of a request that was refused in `location`, is for the page of
/// `plan`.
fn is_refused(asked: &mut Exchange, location: LocationId, conf: &Conf, plan: &Plan) -> bool {
    let config = Rc::clone(&asked.conf);
    let refused = config.location(location);
    let Some((protocol, own)) = protocol::of(refused).zip(settings::of(refused)) else {
        // It was refused before it came to the location that would have had the page. That may store it by the same
        // template as the one that makes this page; one that says nothing of the request is for this page alone.
        let is_fixed = conf.cache_key.as_ref().is_some_and(|key| key.as_literal().is_some());
        return !is_fixed && key::primary(asked, conf) == plan.key.page();
    };
    asked.location = location;
    asked.pass = Pass::default();
    if protocol.resolve(asked).is_err() {
        return true;
    }
    let Ok(zones) = key::zones(asked, own) else { return true };
    zones.iter().any(|zone| Arc::ptr_eq(zone, &plan.zone))
        && key::primary(asked, own) == plan.key.page()
}
