//! `add_before_body`, `add_after_body`: the content of other locations around the content.

use super::compress::gzip::MimeTypes;
use super::subrequest;
use crate::config::directive::*;
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::exchange::response::{Body, Response};
use crate::handlers::gateway::stream;
use bytes::Bytes;
use std::rc::Rc;

settings! {
    in addition;
    /// The path whose content goes before the content; empty for none.
    add_before_body: Option<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
    /// The path whose content goes behind the content; empty for none.
    add_after_body: Option<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
    /// Types of content, besides `text/html`, to which it is added.
    addition_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

/// Adds the content of other locations.
///
/// # Source
/// nginx, `ngx_http_addition_filter_module`.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = &config.location(exchange.location).addition;
    if conf.add_before_body.is_none() && conf.add_after_body.is_none() {
        return;
    }
    let path = |path: &Option<Bytes>| path.clone().filter(|path| !path.is_empty());
    let (before, after) = (path(&conf.add_before_body), path(&conf.add_after_body));
    if response.status != 200
        || exchange.is_subrequest
        || (before.is_none() && after.is_none())
        || !conf.addition_types.has(&response.content_type)
    {
        return;
    }
    response.weaken_validators(true);
    response.remove(b"accept-ranges");
    if exchange.request.method == Method::Head {
        response.forget_length();
        return;
    }
    let mut content = response.take_stream();
    exchange.subrequests.share();
    let asked = exchange.shadow();
    let made = stream::made_by(exchange.body.client_closed(), |sink| async move {
        if let Some(path) = before {
            sink.append(&mut subrequest(&asked, &path).await?).await?;
        }
        sink.put_all(&mut content).await?;
        if let Some(path) = after {
            sink.append(&mut subrequest(&asked, &path).await?).await?;
        }
        Ok(())
    });
    response.body = Body::Stream(Box::new(made));
}
