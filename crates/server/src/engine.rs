//! The functions by which a request goes through the server ([`Engine`]).

use crate::filters;
use crate::modules::MODULES;
use crate::{control, handlers, phases};
use yorozu_gateway::cache::counters;
use yorozu_kernel::base::report::Report;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::engine::Engine;
use yorozu_kernel::live;
use yorozu_modules::filters::headers;
use yorozu_modules::phases::htaccess;
use yorozu_modules::{access_log, metrics};

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
    report: |config| {
        let mut report = Report::default();
        let reporters = MODULES.all.iter().filter_map(|module| module.report);
        reporters.for_each(|add| add(config, &mut report));
        report
    },
    sections: || MODULES.all.iter().flat_map(|module| module.sections).collect(),
    log: |exchange| {
        if live::is_counted(&exchange.conf) {
            count(exchange);
        }
        access_log::log(exchange);
    },
    take_real_ip: phases::take_real_ip,
    before_upstream: phases::before_upstream,
    is_forbidden: htaccess::refuses,
    variable: |name| MODULES.variable(name),
    purge_by_answer: |exchange, fields| {
        Box::pin(async move { control::by_answer(exchange, &fields).await })
    },
};

/// Counts a request that is over, and tells viewers of it.
fn count(exchange: &mut Exchange) {
    if exchange.conf.location(exchange.location).handler.is_for_viewers() {
        return;
    }
    metrics::count(exchange);
    counters::count(exchange);
    live::count(exchange);
    if live::is_watched() {
        live::tell(exchange);
    }
}
