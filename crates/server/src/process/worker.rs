//! One worker thread: an event loop, its listening sockets, its connections.

use crate::cron;
use crate::live::history;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, LocalSet};
use yorozu_connection::listen::Listener;
use yorozu_connection::socket::Socket;
use yorozu_connection::tls::stapling;
use yorozu_connection::tls::stream::Tls;
use yorozu_connection::transport::Transport;
use yorozu_connection::{Connected, ConnectionHandle, Spare, Stage, h3, quic};
use yorozu_gateway::pass::ready;
use yorozu_gateway::upstream;
use yorozu_kernel::base::beat::Beat;
use yorozu_kernel::base::counters::{self, Counted, Happened, Present};
use yorozu_kernel::base::room::Full;
use yorozu_kernel::base::tasks::{self, Panicked, guarded};
use yorozu_kernel::base::{batch, faults, limits, memory, turn};
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::exchange::conf::{Config, WorkerConf};
use yorozu_kernel::exchange::engine::{Host, Later};
use yorozu_kernel::exchange::{Client, Remote};
use yorozu_kernel::logging::error::{self, Level, os_error};
use yorozu_modules::access_log;

/// What the main thread tells a worker.
#[derive(Debug)]
pub enum Command {
    /// Use another configuration, with these sockets added.
    Reload { config: Arc<Reconfigured>, added: Vec<(ListenAddress, Listener)> },
    /// Write the logs that wait; they are about to be opened again.
    Flush,
    /// Finish what is under way, then end.
    Quit,
    /// End now.
    Stop,
}

/// Another configuration on its way to the workers. The log says "reconfigured" when the last of them has it: no request
/// that comes after that line is answered by the old one.
#[derive(Debug)]
pub struct Reconfigured(pub Arc<Config>);

impl Drop for Reconfigured {
    fn drop(&mut self) {
        error::process(&self.0, Level::Notice, "reconfigured");
    }
}

/// A worker as its connections see it.
#[derive(Debug)]
pub struct Worker {
    conf: RefCell<Rc<WorkerConf>>,
    switch: Arc<quic::Switch>,
    is_stopping: Cell<bool>,
    connections: RefCell<HashMap<u64, Rc<dyn Connected>>>,
    /// When the log was told last that there is no room.
    said_full: Cell<Option<Instant>>,
    /// Told when a connection ends.
    ended: Notify,
    /// Told when the worker stops or has another configuration.
    changed: Notify,
}

/// Serial numbers of connections, over all workers.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

impl Host for Worker {
    fn conf(&self) -> Rc<WorkerConf> {
        Rc::clone(&self.conf.borrow())
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    fn changed(self: Rc<Self>) -> Later<'static, ()> {
        Box::pin(async move {
            if !self.is_stopping() {
                self.changed.notified().await;
            }
        })
    }
}

impl Worker {
    /// Ends idle connections: what they sent already is still answered.
    fn close_idle(&self) {
        let is_quiet = |c: &&Rc<dyn Connected>| c.is_idle() && !c.ends_itself();
        for connection in self.connections.borrow().values().filter(is_quiet) {
            connection.end_idle();
        }
    }

    /// As nginx: ends idle connections of sockets that are gone, as nothing could answer what they send next.
    fn close_idle_of(&self, gone: &[ListenAddress]) {
        if gone.is_empty() {
            return;
        }
        let is_quiet = |c: &&Rc<dyn Connected>| c.is_idle() && !c.ends_itself();
        let connections = self.connections.borrow();
        let quiet = connections.values().filter(is_quiet);
        quiet.filter(|c| gone.iter().any(|address| c.is_of(address))).for_each(|c| c.end_idle());
    }

    /// As nginx: what is connected when the configuration is read again may stay so for
    /// `worker_shutdown_timeout`, where it is set. Without, for as long as it likes.
    fn end_old_connections(&self) {
        let Some(timeout) = self.conf.borrow().main().worker_shutdown_timeout else { return };
        let old: Vec<_> = self.connections.borrow().values().map(Rc::downgrade).collect();
        tasks::of_request(async move {
            tokio::time::sleep(timeout).await;
            for connection in old.iter().filter_map(Weak::upgrade) {
                connection.cut();
            }
        });
    }

    /// Waits for room for one more connection of a socket that has `own`; makes some by ending one that is spare.
    async fn wait_for_room(&self, own: &Cell<usize>) {
        let mut full = None;
        loop {
            let max = self.conf.borrow().main().worker_connections;
            let count = self.connections.borrow().len();
            let has_room = usize::try_from(max).map_or(true, |max| count < max);
            if has_room || own.get() < limits::CONNECTIONS_RESERVED {
                return;
            }
            self.note_full(max);
            match self.spare() {
                Some((Spare::Idle, connection)) => connection.end_idle(),
                Some((_, connection)) => connection.cut(),
                None => _ = full.get_or_insert_with(Full::new),
            }
            // Another one may be spare by then.
            let _ = tokio::time::timeout(limits::ROOM_INTERVAL, self.ended.notified()).await;
        }
    }

    /// A connection that is missed little: an idle one, else the oldest of some that are spare.
    fn spare(&self) -> Option<(Spare, Rc<dyn Connected>)> {
        let connections = self.connections.borrow();
        let mut best: Option<(Spare, u64, &Rc<dyn Connected>)> = None;
        let spare = connections.iter().filter_map(|(number, c)| Some((c.spare()?, *number, c)));
        for (why, number, connection) in spare.take(limits::SPARE_LOOKED_AT) {
            if best.is_none_or(|(before, oldest, _)| (why, number) < (before, oldest)) {
                best = Some((why, number, connection));
            }
            if why == Spare::Idle {
                break;
            }
        }
        best.map(|(why, _, connection)| (why, Rc::clone(connection)))
    }

    /// Says, now and then, that connections have run out, and what holds them.
    fn note_full(&self, max: u64) {
        let now = Instant::now();
        if self.said_full.get().is_some_and(|said| now < said + limits::FULL_INTERVAL) {
            return;
        }
        self.said_full.set(Some(now));
        let connections = self.connections.borrow();
        let of = |why| connections.values().filter(|c| c.spare() == why).count();
        let (idle, silent, slow) =
            (of(Some(Spare::Idle)), of(Some(Spare::Silent)), of(Some(Spare::Slow)));
        let text = format!(
            "{max} worker_connections are not enough: {idle} are idle, {silent} have sent nothing, {slow} are slow to begin, {} are \
             answered or beginning; those that are idle, silent or slow end for others",
            of(None)
        );
        error::process(&self.conf(), Level::Warn, &text);
    }
}

/// Runs a worker until it is told to end; its turns are noted in `beat`, and `switch` brings it what others received for it.
///
/// # Errors
/// Why it ended before.
pub fn run(
    config: Arc<Config>,
    switch: Arc<quic::Switch>,
    beat: Arc<Beat>,
    listeners: Vec<(ListenAddress, Listener)>,
    commands: mpsc::UnboundedReceiver<Command>,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .event_interval(limits::EVENT_INTERVAL)
        .max_io_events_per_tick(limits::EVENTS_PER_TURN)
        .max_blocking_threads(limits::BLOCKING_THREADS_MAX)
        .build()
        .map_err(|problem| os_error(&problem))?;
    turn::note_in(beat);
    let local = LocalSet::new();
    let worker = Rc::new(Worker {
        conf: RefCell::new(Rc::new(WorkerConf::new(config, access_log::flush_all))),
        switch,
        is_stopping: Cell::new(false),
        connections: RefCell::default(),
        said_full: Cell::default(),
        ended: Notify::new(),
        changed: Notify::new(),
    });
    // A task like the others: what is polled beside them is polled each time that one of them is.
    let end = Rc::new(End::default());
    let its_end = Rc::clone(&end);
    let serving = async move {
        // What the worker holds is given back outside of the panic.
        its_end.come(guarded(serve(worker, listeners, commands)).await);
    };
    let running = local.run_until(async {
        tasks::of_request(serving);
        poll_fn(|context| end.poll(context)).await
    });
    // After each round: a client that has its answer finds it in the log soon.
    let served = runtime.block_on(guarded(turn::run(running, access_log::flush)));
    let served = served.and_then(|served| served);
    drop(local);
    access_log::flush_all();
    // What still runs on blocking threads are cache files; their temporary names are cleaned up.
    runtime.shutdown_timeout(Duration::from_millis(500));
    match served {
        Ok(served) => served.map_err(|problem| os_error(&problem)),
        Err(panicked) => Err(panicked.to_string()),
    }
}

/// What serving came to; looking whether it has ended costs next to nothing.
#[derive(Default)]
struct End {
    served: Cell<Option<Result<io::Result<()>, Panicked>>>,
    waker: RefCell<Option<Waker>>,
}

impl End {
    fn come(&self, served: Result<io::Result<()>, Panicked>) {
        self.served.set(Some(served));
        self.waker.take().iter().for_each(Waker::wake_by_ref);
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<io::Result<()>, Panicked>> {
        if let Some(served) = self.served.take() {
            return Poll::Ready(served);
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

/// The tasks that take connections, one for each socket.
type Accepting = Vec<(ListenAddress, JoinHandle<()>)>;

async fn serve(
    worker: Rc<Worker>,
    listeners: Vec<(ListenAddress, Listener)>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> io::Result<()> {
    let mut accepting: Accepting = Vec::new();
    tasks::of_worker("a worker's pulse", pulse);
    tasks::of_worker("the writing of answers", batch::run);
    start_upstreams(&worker.conf());
    start_accepting(&worker, &mut accepting, listeners)?;
    loop {
        match commands.recv().await {
            Some(Command::Reload { config: told, added }) => {
                let config = Arc::clone(&told.0);
                accepting.retain(|(address, task)| {
                    let stays = config.sockets.iter().any(|socket| socket.address == *address);
                    if !stays {
                        task.abort();
                    }
                    stays
                });
                worker.end_old_connections();
                let old = worker.conf();
                let stays = |old: &ListenAddress| config.sockets.iter().any(|s| s.address == *old);
                let old = old.sockets.iter().map(|socket| &socket.address);
                let gone: Vec<_> = old.filter(|address| !stays(address)).cloned().collect();
                worker.conf().tasks.end();
                *worker.conf.borrow_mut() = Rc::new(WorkerConf::new(config, access_log::flush_all));
                worker.changed.notify_waiters();
                worker.close_idle_of(&gone);
                start_upstreams(&worker.conf());
                start_accepting(&worker, &mut accepting, added)?;
            }
            Some(Command::Flush) => access_log::flush_all(),
            Some(Command::Quit) => break,
            Some(Command::Stop) | None => return Ok(()),
        }
    }
    for (_, task) in &accepting {
        task.abort();
    }
    // The listening sockets close with their tasks, after those have run once more.
    accepting.clear();
    tokio::task::yield_now().await;
    drain(&worker, &mut commands).await;
    Ok(())
}

/// Keeps a timer set that is due before those of connections are. The timer wheel wakes its thread
/// for each one that is due first: with none other, that would be every new connection's. And has the allocator give back
/// to the system what was freed.
async fn pulse() {
    loop {
        faults::point("pulse");
        tokio::time::sleep(limits::PULSE).await;
        memory::give_back();
    }
}

/// Starts what keeps upstreams known and connected, and what the server asks by itself, until their configuration is replaced.
fn start_upstreams(conf: &Rc<WorkerConf>) {
    stapling::start(conf);
    upstream::resolve::start(conf);
    cron::start(conf);
    history::start(conf);
    ready::start(conf);
}

/// Waits for the connections to end, `worker_shutdown_timeout` at most.
async fn drain(worker: &Worker, commands: &mut mpsc::UnboundedReceiver<Command>) {
    worker.is_stopping.set(true);
    // Another process, or the next workers of this one, do that from here on.
    worker.conf().tasks.end();
    worker.changed.notify_waiters();
    worker.close_idle();
    let timeout = worker.conf().main().worker_shutdown_timeout;
    let all_ended = || async {
        while !worker.connections.borrow().is_empty() {
            worker.ended.notified().await;
        }
    };
    let time_is_up = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = all_ended() => return,
        () = stopped(commands) => return,
        () = time_is_up => {}
    }
    // Their requests end as those of clients that went away, and are logged.
    for connection in worker.connections.borrow().values() {
        connection.cut();
    }
    let _ = tokio::time::timeout(limits::ENDING, all_ended()).await;
}

async fn stopped(commands: &mut mpsc::UnboundedReceiver<Command>) {
    while let Some(command) = commands.recv().await {
        if matches!(command, Command::Stop) {
            return;
        }
    }
}

fn start_accepting(
    worker: &Rc<Worker>,
    accepting: &mut Accepting,
    listeners: Vec<(ListenAddress, Listener)>,
) -> io::Result<()> {
    let mut of_quic: Vec<(ListenAddress, Vec<UdpSocket>)> = Vec::new();
    for (address, listener) in listeners {
        let place = Place { worker: Rc::clone(worker), address, count: Rc::default() };
        let key = place.address.clone();
        const WHAT: &str = "the taking of connections";
        let task = match listener {
            Listener::Tcp(listener) => {
                let listener = Rc::new(TcpListener::from_std(listener)?);
                tasks::of_worker(WHAT, move || accept_tcp(place.clone(), Rc::clone(&listener)))
            }
            Listener::Udp(socket) => {
                match of_quic.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, sockets)) => sockets.push(socket),
                    None => of_quic.push((key, vec![socket])),
                }
                continue;
            }
            Listener::Unix(listener) => {
                let listener = Rc::new(UnixListener::from_std(listener)?);
                tasks::of_worker(WHAT, move || accept_unix(place.clone(), Rc::clone(&listener)))
            }
        };
        accepting.push((key, task));
    }
    for (address, sockets) in of_quic {
        let ListenAddress::Udp(at) = address else { continue };
        let place =
            Place { worker: Rc::clone(worker), address: address.clone(), count: Rc::default() };
        let sockets = Rc::new(sockets);
        let take = move || take_quic(place.clone(), at, Rc::clone(&sockets));
        accepting.push((address, tasks::of_worker("the taking of QUIC connections", take)));
    }
    Ok(())
}

/// A socket of a worker.
#[derive(Clone)]
struct Place {
    worker: Rc<Worker>,
    address: ListenAddress,
    /// Its connections.
    count: Rc<Cell<usize>>,
}

impl Place {
    /// Enters a connection; until it is dropped, the connection counts.
    fn enter(&self, number: u64, handle: Rc<dyn Connected>, io: Option<Rc<Transport>>) -> Guard {
        self.worker.connections.borrow_mut().insert(number, handle);
        self.count.set(self.count.get() + 1);
        Guard { place: self.clone(), number, io, _active: Counted::of(Present::Active) }
    }
}

/// Takes connections over QUIC at an address.
async fn take_quic(place: Place, address: SocketAddr, sockets: Rc<Vec<UdpSocket>>) {
    let worker = &place.worker;
    loop {
        let opened = quic::Endpoint::open(address, &sockets, &worker.switch, &worker.conf());
        match opened {
            Ok(endpoint) => {
                while let Some(incoming) = endpoint.next(|| worker.conf()).await {
                    worker.wait_for_room(&place.count).await;
                    begin_quic(&place, address, &endpoint, incoming);
                }
                let text = format!("QUIC at {address} ended, starting it again");
                error::process(&worker.conf(), Level::Alert, &text);
            }
            Err(problem) => {
                let text = format!("QUIC at {address} failed ({})", os_error(&problem));
                error::process(&worker.conf(), Level::Alert, &text);
            }
        }
        tokio::time::sleep(limits::RESTART_INTERVAL).await;
    }
}

fn begin_quic(
    place: &Place,
    address: SocketAddr,
    endpoint: &quic::Endpoint,
    incoming: quic::Incoming,
) {
    faults::point("accept");
    let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    counters::count(Happened::Accepted);
    // A wildcard socket does not say which address was asked for.
    let local = incoming.local_ip().map_or(address, |ip| (ip, address.port()).into());
    let client = Rc::new(client(
        number,
        ListenAddress::Udp(address),
        Some(incoming.remote_address()),
        Some(local),
    ));
    let conf = place.worker.conf();
    let Some(opening) = endpoint.begin(incoming, &client, &conf) else { return };
    let handle: Rc<h3::Handle> = Rc::default();
    let guard = place.enter(number, Rc::clone(&handle) as Rc<dyn Connected>, None);
    let host = Rc::clone(&place.worker) as Rc<dyn Host>;
    start_serving(guard, Box::pin(h3::serve(handle, client, host, opening)));
}

fn client(
    number: u64,
    address: ListenAddress,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
) -> Client {
    Client::new(number, address, Rc::new(Remote::of(peer)), local, Instant::now())
}

async fn accept_tcp(place: Place, listener: Rc<TcpListener>) {
    loop {
        place.worker.wait_for_room(&place.count).await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                // A wildcard socket does not say which address was asked for.
                let local = match &place.address {
                    ListenAddress::Tcp(local) if !local.ip().is_unspecified() => Some(*local),
                    _ => stream.local_addr().ok(),
                };
                begin(&place, Socket::Tcp(stream), Some(peer), local);
            }
            Err(problem) => refused(&place.worker, &problem).await,
        }
    }
}

async fn accept_unix(place: Place, listener: Rc<UnixListener>) {
    loop {
        place.worker.wait_for_room(&place.count).await;
        match listener.accept().await {
            Ok((stream, _)) => {
                begin(&place, Socket::Unix(stream), None, None);
            }
            Err(problem) => refused(&place.worker, &problem).await,
        }
    }
}

async fn refused(worker: &Worker, problem: &io::Error) {
    use nix::errno::Errno;
    let is_exhausted = matches!(
        problem.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)
    );
    if is_exhausted {
        let text = format!("accept4() failed ({})", os_error(problem));
        error::process(&worker.conf(), Level::Crit, &text);
        tokio::time::sleep(limits::ACCEPT_PAUSE).await;
    }
    // Anything else concerns one client that went away again.
}

fn begin(place: &Place, socket: Socket, peer: Option<SocketAddr>, local: Option<SocketAddr>) {
    let Place { worker, address, .. } = place;
    faults::point("accept");
    let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    counters::count(Happened::Accepted);
    let conf = worker.conf();
    let is_tls = conf.sockets.iter().any(|socket| socket.is_tls && socket.address == *address);
    let transport = match is_tls {
        true => Transport::Tls(Box::new(Tls::new(socket))),
        false => Transport::Plain(socket),
    };
    let client = Rc::new(client(number, address.clone(), peer, local));
    let handle = Rc::new(ConnectionHandle {
        io: Rc::new(transport),
        client: Rc::clone(&client),
        stage: Cell::new(Stage::Beginning),
        ends_itself: Cell::new(false),
    });
    let io = Some(Rc::clone(&handle.io));
    let guard = place.enter(number, Rc::clone(&handle) as Rc<dyn Connected>, io);
    // Boxed: a task is moved several times before it runs.
    let host = Rc::clone(worker) as Rc<dyn Host>;
    start_serving(guard, Box::pin(yorozu_connection::serve(handle, client, host)));
}

/// Starts the task of a connection.
fn start_serving(guard: Guard, mut work: Later<'static, ()>) {
    let (worker, number) = (Rc::clone(&guard.place.worker), guard.number);
    let work = std::future::poll_fn(move |context| {
        turn::works_on(number);
        faults::stand("connection");
        work.as_mut().poll(context)
    });
    tasks::of_request(async move {
        let _guard = guard;
        if guarded(work).await.is_err() {
            error::process(&worker.conf(), Level::Alert, "a connection ended by a panic");
        }
    });
}

/// Takes a connection out of the worker's table when it ends, however it ends.
struct Guard {
    place: Place,
    number: u64,
    /// `None` over UDP.
    io: Option<Rc<Transport>>,
    _active: Counted,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Place { worker, count, .. } = &self.place;
        worker.connections.borrow_mut().remove(&self.number);
        count.set(count.get() - 1);
        worker.ended.notify_waiters();
        if let Some(io) = self.io.take() {
            turn::keep_for_round(io as Rc<dyn Any>);
        }
    }
}
