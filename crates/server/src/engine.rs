//! The functions by which a request goes through the server ([`Engine`]).

use crate::filters;
use crate::modules::MODULES;
use crate::{control, handlers};
use yorozu_kernel::exchange::engine::Engine;
use yorozu_modules::access_log;
use yorozu_modules::filters::headers;
use yorozu_modules::phases::realip;

/// The one way there is.
pub(crate) static ENGINE: Engine = Engine {
    start: handlers::start,
    resume: handlers::resume,
    run: handlers::run,
    files: handlers::files,
    whole: |exchange| Box::pin(handlers::whole(exchange)),
    content_again: |exchange| Box::pin(handlers::content_again(exchange)),
    content: |exchange| Box::pin(filters::content(exchange)),
    filter: filters::apply,
    add_trailers: headers::add_trailers,
    log: access_log::log,
    is_from_trusted_proxy: realip::is_trusted,
    variable: |name| MODULES.variable(name),
    purge_by_answer: |exchange, fields| {
        Box::pin(async move { control::by_answer(exchange, &fields).await })
    },
};
