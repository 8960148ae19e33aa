//! `add_before_body`, `add_after_body`: the content of other locations around the content.

use super::compress::gzip::MimeTypes;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::stream::{self, Stream, Torn};

/// The module.
pub const MODULE: Module =
    Module::new("http_addition", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

settings! {
    /// The path whose content is prepended; empty for none.
    add_before_body: Option<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
    /// The path whose content is appended; empty for none.
    add_after_body: Option<Bytes> = none, ONE, HTTP_SERVER_LOCATION;
    /// Content types, besides `text/html`, to which it is added.
    addition_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

impl Conf {
    /// Whether there is anything to add.
    fn is_any(&self) -> bool {
        self.add_before_body.is_some() || self.add_after_body.is_some()
    }
}

/// Where it has something to do.
pub const FILTER: Filter = Filter::when(|location| location.of::<Conf>().is_any(), filter);

/// Adds the content of other locations.
///
/// # Source
/// nginx, `ngx_http_addition_filter_module`.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    let path = |path: &Option<Bytes>| path.clone().filter(|path| !path.is_empty());
    let (before, after) = (path(&conf.add_before_body), path(&conf.add_after_body));
    if response.status != 200
        || exchange.is_subrequest()
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

/// The content that another path has, for the sake of `exchange`.
async fn subrequest(exchange: &Exchange, path: &[u8]) -> Result<Stream, Torn> {
    let mut asked = Box::new(exchange.subrequest(path).ok_or(Torn)?);
    asked.charset.clone_from(&exchange.charset);
    let content = asked.conf.engine.content;
    Ok(content(&mut asked).await.1)
}
