//! Which nodes have done a purge, for those that wait for them.

use super::bus::{Bus, Waiting};
use super::link::Link;
use super::place::Id;
use super::read::places_key;
use super::send::{bounded, connect};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use yorozu_kernel::base::turn;
use yorozu_wire::redis::Reply;

/// Between two questions; chosen: nodes need some milliseconds.
const PAUSE: Duration = Duration::from_millis(3);
const TIMEOUT: Duration = Duration::from_millis(500);
/// A node that said nothing for so long is one no more; chosen.
const FORGOTTEN: i64 = 24 * 60 * 60;

/// A node, and its place.
type Node = (String, Id);

/// Answers those who wait, for ever.
pub(super) async fn wait_forever(bus: Arc<Bus>) {
    let mut link = None;
    loop {
        bus.to_wait.notified().await;
        let mut waiting = bus.take_waiting();
        while !waiting.is_empty() {
            let nodes = nodes(&bus, &mut link).await;
            waiting = waiting.into_iter().filter_map(|one| judge(one, nodes.as_deref())).collect();
            waiting.extend(bus.take_waiting());
            if !waiting.is_empty() {
                sleep(PAUSE).await;
            }
        }
    }
}

/// Answers one who waits, if all nodes are there or the time is over.
fn judge(waiting: Waiting, nodes: Option<&[Node]>) -> Option<Waiting> {
    let is_over = Instant::now() >= waiting.until;
    let late: Vec<String> = match nodes {
        Some(nodes) => {
            let late = nodes.iter().filter(|(_, id)| *id < waiting.id);
            late.map(|(name, _)| name.clone()).collect()
        }
        // Which they are is not known.
        None => vec!["?".to_owned()],
    };
    if !late.is_empty() && !is_over {
        return Some(waiting);
    }
    // Whoever asked may have stopped waiting.
    let _ = waiting.answer.send(late);
    None
}

/// The other nodes; `None` if Redis does not say.
async fn nodes(bus: &Bus, link: &mut Option<Link>) -> Option<Vec<Node>> {
    if link.is_none() {
        *link = connect(bus).await.ok();
    }
    let asked = bounded(TIMEOUT, ask(bus, link.as_mut()?)).await;
    if asked.is_err() {
        *link = None;
    }
    asked.ok()
}

async fn ask(bus: &Bus, link: &mut Link) -> Result<Vec<Node>, String> {
    let key = places_key(&bus.spec.stream);
    let reply = link.ask(&[b"HGETALL", key.as_bytes()]).await?;
    let pairs = reply.list().ok_or("unexpected answer")?.chunks_exact(2);
    let (mut nodes, mut forgotten) = (Vec::new(), Vec::new());
    for pair in pairs {
        let text =
            |at: usize| pair[at].text().map(|text| String::from_utf8_lossy(text).into_owned());
        let (Some(name), Some(value)) = (text(0), text(1)) else { continue };
        let (id, seen) = value.split_once(' ').unwrap_or((&value, ""));
        let is_gone = seen.parse().is_ok_and(|seen: i64| seen < turn::unix_seconds() - FORGOTTEN);
        match Id::parse(id.as_bytes()) {
            _ if is_gone => forgotten.push(name),
            Some(id) if name != bus.spec.node => nodes.push((name, id)),
            _ => {}
        }
    }
    for name in forgotten {
        let words: [&[u8]; 3] = [b"HDEL", key.as_bytes(), name.as_bytes()];
        if let Reply::Error(line) = link.ask(&words).await? {
            return Err(line);
        }
    }
    Ok(nodes)
}
