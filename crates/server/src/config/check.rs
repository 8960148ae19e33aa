//! What several directives of one block must be to each other.

use super::compiled::LocationConf;
use super::directive::ValueError;
use super::env::Env;
use crate::filters::charset;
use crate::handlers::{Handler, gateway};
use crate::phases::{limit_conn, limit_req};

/// Checks that concern several directives of one location.
///
/// # Errors
/// What does not fit together.
pub(super) fn location(conf: &LocationConf, env: &Env) -> Result<(), ValueError> {
    charset::check(&conf.charset, env)?;
    limit_req::check(&conf.limit_req, env)?;
    limit_conn::check(&conf.limit_conn, env)?;
    let is_gateway = matches!(conf.handler, Handler::Gateway(_));
    for (prefix, gateway) in conf.gateways() {
        let is_used = is_gateway && std::ptr::eq(gateway, conf.gateway());
        check_gateway(prefix, gateway, is_used, env)?;
    }
    Ok(())
}

fn check_gateway(
    prefix: &str,
    conf: &gateway::Conf,
    is_used: bool,
    env: &Env,
) -> Result<(), ValueError> {
    if let Some(zone) = conf.cache.zone() {
        // A name with variables is looked up with each request.
        if let Some(zone) = zone.as_literal() {
            let zone = String::from_utf8_lossy(&zone).into_owned();
            if !env.zones.borrow().contains_key(&zone) {
                return Err(ValueError(format!("\"{prefix}_cache\" zone \"{zone}\" is unknown")));
            }
        }
        if is_used && conf.cache_key.is_none() && prefix != "proxy" {
            env.warn(format!("no \"{prefix}_cache_key\" for \"{prefix}_cache\""));
        }
    }
    if let Some(zone) = conf.cache_purge.zone() {
        if !env.zones.borrow().contains_key(zone) {
            return Err(ValueError(format!("\"{prefix}_cache_purge\" zone \"{zone}\" is unknown")));
        }
    }
    let (busy, buffer) = (conf.busy_buffers_size, conf.buffer_size.0);
    if busy.is_some_and(|busy| busy.0 < buffer.max(conf.buffers.size)) {
        return Err(ValueError(format!(
            "\"{prefix}_busy_buffers_size\" must be equal to or greater than the maximum of the value of \"{prefix}_buffer_size\" and one of the \"{prefix}_buffers\""
        )));
    }
    Ok(())
}
