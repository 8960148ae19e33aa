//! Which nodes have done a purge, for those that wait for them.

use super::bus::{Bus, Waiting};
use super::link::Link;
use super::members::{Node, listed};
use super::send::{bounded, connect};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Between two questions; chosen: nodes need some milliseconds.
const PAUSE: Duration = Duration::from_millis(3);
const TIMEOUT: Duration = Duration::from_millis(500);
/// In place of nodes that are not known.
pub(super) const UNKNOWN: &str = "?";

/// Answers those who wait, for ever.
pub(super) async fn wait_forever(bus: Arc<Bus>) {
    let mut link = None;
    loop {
        bus.to_wait.notified().await;
        let mut waiting = bus.take_waiting();
        while !waiting.is_empty() {
            let nodes = nodes(&bus, &mut link).await;
            let known = bus.members();
            waiting = waiting
                .into_iter()
                .filter_map(|one| judge(one, &bus.spec.node, &nodes, &known))
                .collect();
            waiting.extend(bus.take_waiting());
            if !waiting.is_empty() {
                sleep(PAUSE).await;
            }
        }
    }
}

/// Answers one who waits, if all nodes are there or the time is over.
fn judge(waiting: Waiting, own: &str, nodes: &[Node], known: &[String]) -> Option<Waiting> {
    let is_over = Instant::now() >= waiting.until;
    let late = late(&waiting, own, nodes, known);
    if !late.is_empty() && !is_over {
        return Some(waiting);
    }
    // Whoever asked may have stopped waiting.
    let _ = waiting.answer.send(late);
    None
}

/// Nodes that have not done it, as far as they are known: what Redis has of them may be lost, as may be which they are. Its
/// word is taken where it has what this node noted.
fn late(waiting: &Waiting, own: &str, nodes: &[Node], known: &[String]) -> Vec<String> {
    let places: HashMap<&str, _> = nodes.iter().map(|(name, id)| (name.as_str(), *id)).collect();
    let is_done = |name: &str| places.get(name).is_some_and(|id| *id >= waiting.id);
    let mut late: Vec<String> = nodes.iter().map(|(name, _)| name.clone()).collect();
    late.extend(known.iter().filter(|name| !places.contains_key(name.as_str())).cloned());
    late.retain(|name| name != own && !is_done(name));
    late.sort_unstable();
    late.extend((!is_done(own)).then(|| UNKNOWN.to_owned()));
    late
}

/// The nodes that Redis knows; none, not even this one, if it does not say.
async fn nodes(bus: &Bus, link: &mut Option<Link>) -> Vec<Node> {
    if link.is_none() {
        *link = connect(bus).await.ok();
    }
    let Some(open) = link else { return Vec::new() };
    let asked = bounded(TIMEOUT, listed(bus, open)).await;
    if asked.is_err() {
        *link = None;
    }
    asked.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::place::Id;
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn who_is_late_is_what_redis_says_and_whom_it_forgot() {
        let waiting = Waiting { id: Id(5, 0), until: Instant::now(), answer: oneshot::channel().0 };
        let late = |nodes: &[(&str, u64)], known: &[&str]| {
            let nodes: Vec<Node> =
                nodes.iter().map(|(name, id)| ((*name).to_owned(), Id(*id, 0))).collect();
            let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
            late(&waiting, "a", &nodes, &known).join(" ")
        };
        assert_eq!(late(&[("a", 5), ("b", 6)], &["a", "b"]), "");
        assert_eq!(late(&[("a", 5), ("c", 4), ("b", 4)], &["b"]), "b c");
        assert_eq!(late(&[("a", 5)], &["a", "c"]), "c", "Redis has forgotten it");
        assert_eq!(late(&[], &[]), "?", "and this node");
        assert_eq!(late(&[("a", 4), ("b", 5)], &["c"]), "c ?");
    }
}
