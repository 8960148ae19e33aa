//! Names to addresses, asked of the name servers that `resolver` lists.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, NameServerConfigGroup, ResolveHosts, ResolverConfig,
};
use hickory_resolver::name_server::TokioConnectionProvider;
use hickory_resolver::proto::xfer::Protocol;
use hickory_resolver::{ResolveError, Resolver as Client};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What `resolver` says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Resolver {
    /// The name servers.
    pub servers: Vec<SocketAddr>,
    /// How long an answer holds, whatever it says itself.
    pub valid: Option<Duration>,
    /// Are IPv4 addresses asked for?
    pub ipv4: bool,
    /// Are IPv6 addresses asked for?
    pub ipv6: bool,
}

/// The addresses of a name.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// When to ask again.
    pub valid_until: Instant,
}

/// Why a name has no address; displayed with nginx's number and words.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResolveFault {
    /// No such name, or no address of the family asked for.
    #[error("3: Host not found")]
    NotFound,
    /// No name server answered.
    #[error("110: Operation timed out")]
    TimedOut,
    /// A name server could not answer.
    #[error("2: Server failure")]
    Failed,
}

/// Answers each worker remembers, in names; chosen.
const CACHED_NAMES_MAX: usize = 1024;

thread_local! {
    /// Clients of this worker: their sockets belong to its event loop.
    static CLIENTS: RefCell<Vec<(Resolver, Rc<TokioResolver>)>> = const { RefCell::new(Vec::new()) };
}

impl Resolver {
    /// Looks a name up, within `timeout`.
    ///
    /// # Errors
    /// [`ResolveFault`]
    ///
    /// # Cancel safety
    /// The question is dropped.
    pub async fn addresses(&self, host: &str, timeout: Duration) -> Result<Resolved, ResolveFault> {
        // A full name: the machine's search list is not for servers.
        let name = format!("{}.", host.trim_end_matches('.'));
        let client = self.client();
        let lookup = client.lookup_ip(name);
        let found = tokio::time::timeout(timeout, lookup)
            .await
            .map_err(|_| ResolveFault::TimedOut)?
            .map_err(|problem| fault(&problem))?;
        let addresses: Vec<IpAddr> = found.iter().collect();
        if addresses.is_empty() {
            return Err(ResolveFault::NotFound);
        }
        Ok(Resolved { addresses, valid_until: found.valid_until() })
    }

    fn client(&self) -> Rc<TokioResolver> {
        CLIENTS.with_borrow_mut(|clients| {
            if let Some((_, client)) = clients.iter().find(|(options, _)| options == self) {
                return Rc::clone(client);
            }
            let client = Rc::new(self.new_client());
            clients.push((self.clone(), Rc::clone(&client)));
            client
        })
    }

    fn new_client(&self) -> TokioResolver {
        let mut servers = NameServerConfigGroup::new();
        for address in &self.servers {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                let mut server = NameServerConfig::new(*address, protocol);
                server.trust_negative_responses = true;
                servers.push(server);
            }
        }
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder = Client::builder_with_config(config, TokioConnectionProvider::default());
        let options = builder.options_mut();
        options.ip_strategy = match (self.ipv4, self.ipv6) {
            (true, false) => LookupIpStrategy::Ipv4Only,
            (false, true) => LookupIpStrategy::Ipv6Only,
            _ => LookupIpStrategy::Ipv4AndIpv6,
        };
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = CACHED_NAMES_MAX;
        // As nginx asks again: every 5 seconds, while `resolver_timeout` lasts.
        options.timeout = Duration::from_secs(5);
        options.attempts = 5;
        if self.valid.is_some() {
            options.positive_min_ttl = self.valid;
            options.positive_max_ttl = self.valid;
        }
        builder.build()
    }
}

fn fault(problem: &ResolveError) -> ResolveFault {
    if problem.is_nx_domain() || problem.is_no_records_found() {
        return ResolveFault::NotFound;
    }
    let text = problem.to_string();
    if text.contains("timed out") { ResolveFault::TimedOut } else { ResolveFault::Failed }
}
