//! The thread that speaks with Redis, and what it is told at each configuration.

use super::Nodes;
use super::bus::Bus;
use super::read::read_forever;
use super::send::send_forever;
use super::tier::Tier;
use super::wait::wait_forever;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};
use yorozu_cache::Beyond;
use yorozu_kernel::base::tasks;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{Level, os_error};

/// How long a bus that another one replaces may go on sending; chosen.
const REST: Duration = Duration::from_secs(5);

/// What the thread looks after.
#[derive(Clone, Debug, Default)]
struct Plan {
    bus: Option<Arc<Bus>>,
    tiers: Vec<Arc<Tier>>,
}

/// The thread, as the main thread holds it.
#[derive(Debug)]
pub struct Keeper {
    plan: watch::Sender<Plan>,
    has_thread: bool,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { plan: watch::Sender::new(Plan::default()), has_thread: false }
    }
}

impl Keeper {
    /// Takes over the bus of a configuration, before it is served: what the other nodes purged meanwhile is done when this
    /// returns, or everything is purged. Blocks, for `start_timeout` at most.
    pub fn watch(&mut self, config: &Config) {
        let nodes = config.shared.of::<Nodes>();
        let (bus, tiers) = (nodes.bus.clone(), nodes.tiers().to_vec());
        let old = self.plan.borrow().bus.clone();
        let is_same = match (&bus, &old) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        if let Some(bus) = &bus {
            bus.shares.store(!tiers.is_empty(), Ordering::Relaxed);
            bus.watch(config);
        }
        for (name, zone) in &config.zones {
            let tier = tiers.iter().find(|tier| tier.zone == *name);
            zone.set_beyond(tier.map(|tier| Arc::clone(tier) as Arc<dyn Beyond>));
        }
        if let (Some(new), Some(old), false) = (&bus, &old, is_same) {
            old.hand_over(new);
        }
        self.plan.send_replace(Plan { bus: bus.clone(), tiers });
        if is_same {
            return;
        }
        let Some(bus) = bus else { return };
        if !self.has_thread {
            let plan = self.plan.subscribe();
            let started = tasks::of_process("purge bus", move || run(plan.clone()));
            self.has_thread = started.is_ok();
            if let Err(problem) = started {
                bus.log(Level::Alert, &format!("cannot start its thread ({})", os_error(&problem)));
            }
        }
        if !bus.wait_for_start() {
            let text =
                "what the other nodes purged is not known: everything stored is purged softly";
            bus.log(Level::Warn, text);
            bus.purge_all();
        }
    }
}

fn run(plan: watch::Receiver<Plan>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("what a thread needs to wait was there for all others");
    runtime.block_on(LocalSet::new().run_until(tend(plan)));
}

/// A bus and its tasks.
struct Tended {
    bus: Arc<Bus>,
    sender: JoinHandle<()>,
    others: [JoinHandle<()>; 2],
}

impl Tended {
    fn start(bus: &Arc<Bus>) -> Self {
        let sender = start("purge bus's sender", bus, send_forever);
        let reader = start("purge bus's reader", bus, read_forever);
        let others = [reader, start("purge bus's wait", bus, wait_forever)];
        Self { bus: Arc::clone(bus), sender, others }
    }

    /// Ends once nothing waits that could be sent.
    async fn end(self) {
        self.others.iter().for_each(JoinHandle::abort);
        let began = Instant::now();
        while self.bus.has_queue() && began.elapsed() < REST {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.sender.abort();
    }
}

fn start<F: Future<Output = ()> + 'static>(
    what: &'static str,
    bus: &Arc<Bus>,
    work: fn(Arc<Bus>) -> F,
) -> JoinHandle<()> {
    let bus = Rc::new(Arc::clone(bus));
    tasks::of_worker(what, move || work(Arc::clone(&bus)))
}

/// Has the tasks of the bus and the tiers of the present configuration.
async fn tend(mut plan: watch::Receiver<Plan>) {
    let mut tended: Option<Tended> = None;
    let mut served: Vec<(Arc<Tier>, JoinHandle<()>)> = Vec::new();
    loop {
        let Plan { bus, tiers } = plan.borrow_and_update().clone();
        let is_same = |tended: &Tended| bus.as_ref().is_some_and(|it| Arc::ptr_eq(it, &tended.bus));
        if !tended.as_ref().is_some_and(is_same) {
            if let Some(tended) = tended.take() {
                drop(tasks::of_request(tended.end()));
            }
            tended = bus.as_ref().map(Tended::start);
        }
        served.retain(|(tier, task)| {
            let stays = tiers.iter().any(|it| Arc::ptr_eq(it, tier));
            if !stays {
                task.abort();
            }
            stays
        });
        for tier in &tiers {
            if !served.iter().any(|(it, _)| Arc::ptr_eq(it, tier)) {
                let of_task = Arc::clone(tier);
                let task = tasks::of_worker("shared tier", move || Arc::clone(&of_task).serve());
                served.push((Arc::clone(tier), task));
            }
        }
        if plan.changed().await.is_err() {
            return;
        }
    }
}
