//! `auth_request`: another location decides by its status whether a request may pass.

use bytes::Bytes;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::target;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::VariableNames;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Permission;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::Variable;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_auth_request", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `auth_request uri | off`
#[derive(Clone, Debug, Default)]
pub struct Asked(Option<Bytes>);

impl Setting for Asked {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(match args.word(0) {
            b"off" => None,
            _ => Some(args.words[0].clone()),
        }))
    }
}

/// `auth_request_set $variable value`
#[derive(Clone, Debug)]
pub struct Assignment {
    target: Variable,
    value: Template,
}

impl Setting for Assignment {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let target = target(&args.words[0], args.env, VariableNames::define)?;
        Ok(Self { target, value: Template::compile(args.word(1), args.env)? })
    }
}

settings! {
    /// URI of a subrequest that decides whether a request may pass: 2xx allows it, 401 and 403 deny it.
    auth_request: Asked = "off", ONE, HTTP_SERVER_LOCATION;
    /// Sets a variable after the auth_request subrequest, from its response.
    auth_request_set: Vec<Assignment> = none, TWO, HTTP_SERVER_LOCATION;
}

impl Conf {
    /// Whether requests need permission.
    pub fn is_on(&self) -> bool {
        self.auth_request.0.is_some()
    }
}

/// Whether the location that is asked lets the client in.
///
/// # Source
/// nginx, `ngx_http_auth_request_module`.
pub async fn check(exchange: &mut Exchange) -> Permission {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    let Some(uri) = &conf.auth_request.0 else { return Permission::NoOpinion };
    let Some(mut asked) = exchange.subrequest(uri) else { return Permission::Refuse(500) };
    let whole = config.engine.whole;
    let status = match whole(&mut asked).await {
        Ok(response) => {
            if response.status == 401 {
                challenge(exchange, &mut asked, &response);
            }
            response.status
        }
        Err(status) => status,
    };
    for assignment in &conf.auth_request_set {
        exchange.said_of_client.push(assignment.target.clone());
        let value = assignment.value.value(&mut asked);
        match &assignment.target {
            Variable::Slot(slot) => asked.variables.set(*slot, Some(value)),
            // Of the request itself: the one that asked has its own.
            other => other.assign(exchange, value),
        }
    }
    exchange.doubt.take_over(&asked.doubt);
    // Variables are of both, as nginx has it.
    exchange.variables = std::mem::take(&mut asked.variables);
    match status {
        200..=299 => Permission::Allow,
        401 | 403 => Permission::Refuse(status),
        other => {
            let text = format!("auth request unexpected status: {other}");
            error::request(exchange, Level::Error, &text);
            Permission::Refuse(500)
        }
    }
}

/// Takes over the challenges of the location that was asked; as nginx those of its upstream, hidden or not, if it has
/// none of its own.
fn challenge(exchange: &mut Exchange, asked: &mut Exchange, response: &Response) {
    if !asked.challenges.is_empty() {
        exchange.challenges.append(&mut asked.challenges);
        return;
    }
    let known = exchange.challenges.len();
    for fields in [&response.fields[..], &asked.upstream_fields[..]] {
        if exchange.challenges.len() == known {
            exchange.keep_challenges(401, fields);
        }
    }
}
