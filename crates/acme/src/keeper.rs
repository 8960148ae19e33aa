//! The thread that tends the certificates of the server process, and what it is told at each configuration.

use crate::certificate::{Certificate, Duty, Shown};
use crate::challenges::Challenges;
use crate::config::Acme;
use crate::state;
use crate::tend::{Office, take_up, tend};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};
use yorozu_kernel::base::tasks;
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{Level, os_error};

/// What the thread looks after.
#[derive(Clone, Debug, Default)]
struct Plan {
    certificates: Vec<Arc<Certificate>>,
    challenges: Arc<Challenges>,
}

/// The thread, as the main thread holds it.
#[derive(Debug)]
pub struct Keeper {
    plan: watch::Sender<Arc<Plan>>,
    has_thread: bool,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { plan: watch::Sender::new(Arc::default()), has_thread: false }
    }
}

impl Keeper {
    /// Takes over the certificates of a configuration, before it is served: each shows something then.
    pub fn watch(&mut self, config: &Config) {
        let acme = config.shared.of::<Acme>();
        let found = acme.certificates();
        for (server, certificate) in &found {
            let Some(issuer) = acme.issuers.get(&certificate.order.issuer) else { continue };
            let place = config.location(config.server(ServerId(*server)).conf);
            let core = place.http_core();
            let resolver = core.resolver.clone().map(|resolver| (resolver, core.resolver_timeout));
            let log = config.error_log.clone();
            certificate.set_duty(Duty { issuer: Arc::clone(issuer), log, resolver });
            if certificate.shown().is_none() {
                begin(certificate);
            }
        }
        let certificates: Vec<_> = found.into_iter().map(|(_, certificate)| certificate).collect();
        let is_needed = !certificates.is_empty();
        let challenges = Arc::clone(acme.challenges());
        self.plan.send_replace(Arc::new(Plan { certificates, challenges }));
        if is_needed && !self.has_thread {
            let plan = self.plan.subscribe();
            let started = tasks::of_process("ACME", move || run(plan.clone()));
            self.has_thread = started.is_ok();
            if let Err(problem) = started {
                let text = format!("cannot start the ACME thread ({})", os_error(&problem));
                config.error_log.process(Level::Alert, &text);
            }
        }
    }

    /// Lets go of all: another process goes on, or none.
    pub fn stop(&self) {
        self.plan.send_replace(Arc::default());
    }
}

/// Shows what there is: from the disk, or of another order, or one that the server signs itself.
fn begin(certificate: &Certificate) {
    if take_up(certificate) {
        return;
    }
    let order = &certificate.order;
    if let Some(similar) = order.folder.as_deref().and_then(|path| state::find_similar(path, order))
    {
        certificate.show(similar);
        certificate.log(
            Level::Warn,
            "no certificate yet: one of an earlier order, which has some of the names, is used",
        );
        return;
    }
    match Shown::self_signed(&order.identifiers) {
        Ok(shown) => {
            certificate.show(shown);
            certificate.log(Level::Warn, "no certificate yet: a self-signed one is used");
        }
        Err(problem) => {
            certificate.log(
                Level::Alert,
                &format!("no certificate yet, and none can be made ({problem})"),
            );
        }
    }
}

fn run(plan: watch::Receiver<Arc<Plan>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("what a thread needs to wait was there for all others");
    runtime.block_on(LocalSet::new().run_until(tend_all(plan)));
}

/// Has a task for each certificate as long as it is wanted.
async fn tend_all(mut plan: watch::Receiver<Arc<Plan>>) {
    let mut tasks_of: HashMap<*const Certificate, (Arc<Certificate>, JoinHandle<()>)> =
        HashMap::new();
    let mut office = None;
    loop {
        let wanted = Arc::clone(&plan.borrow_and_update());
        let is_wanted =
            |it: &Arc<Certificate>| wanted.certificates.iter().any(|w| Arc::ptr_eq(it, w));
        tasks_of.retain(|_, (certificate, task)| {
            let stays = is_wanted(certificate);
            if !stays {
                task.abort();
            }
            stays
        });
        let office =
            office.get_or_insert_with(|| Rc::new(Office::new(Arc::clone(&wanted.challenges))));
        for certificate in &wanted.certificates {
            tasks_of.entry(Arc::as_ptr(certificate)).or_insert_with(|| {
                let (office, tended) = (Rc::clone(office), Arc::clone(certificate));
                let make = move || tend(Arc::clone(&tended), Rc::clone(&office));
                (Arc::clone(certificate), tasks::of_worker("ACME task", make))
            });
        }
        if plan.changed().await.is_err() {
            return;
        }
    }
}
