//! The nodes that this one has heard of. Redis may forget them; then a node that is down is not counted as one that has
//! purged.
//!
//! In Redis each node notes its place in a hash. What was heard of is noted beside the pages of each zone as well, for the
//! next process, in the file `yorozu.bus.nodes`:
//!
//! ```text
//! node NAME SECONDS            when it was there last
//! ```

use super::bus::Bus;
use super::link::Link;
use super::message::is_name;
use super::place::Id;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use yorozu_kernel::base::turn;
use yorozu_wire::redis::Reply;

/// Its name.
pub(super) const NAME: &str = "yorozu.bus.nodes";
/// A node that said nothing for so long is one no more; as documented.
const FORGOTTEN: i64 = 24 * 60 * 60;
/// So much later must a node have been heard of to be noted again; chosen.
const NOTED: i64 = 60 * 60;
/// Nodes that are remembered; chosen: above any site's, as anyone may write into the hash.
const MEMBERS_MAX: usize = 4096;

/// When a node was there last, and when that is by the file.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    last: i64,
    noted: i64,
}

/// Nodes, and when they were there last: seconds by this node's clock.
#[derive(Debug, Default)]
pub(super) struct Members {
    nodes: BTreeMap<String, Seen>,
    is_to_note: bool,
}

impl Members {
    /// A node was there at this time.
    pub(super) fn heard(&mut self, node: &str, at: i64, now: i64) {
        // By another clock, which may be ahead.
        let at = at.min(now);
        let is_full = self.nodes.len() >= MEMBERS_MAX && !self.nodes.contains_key(node);
        if is_gone(at, now) || is_full || !is_name(node) {
            return;
        }
        let seen = self.nodes.entry(node.to_owned()).or_default();
        seen.last = seen.last.max(at);
        self.is_to_note |= seen.last - seen.noted >= NOTED;
    }

    /// Those that count as nodes.
    pub(super) fn present(&mut self, now: i64) -> Vec<String> {
        self.nodes.retain(|_, seen| !is_gone(seen.last, now));
        self.nodes.keys().cloned().collect()
    }

    /// Whether the file says less.
    pub(super) fn is_to_note(&self) -> bool {
        self.is_to_note
    }

    /// What the file shall say; `None` if it does.
    pub(super) fn noted(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.is_to_note) {
            return None;
        }
        let mut text = String::new();
        for (node, seen) in &mut self.nodes {
            seen.noted = seen.last;
            let _ = writeln!(text, "node {node} {}", seen.last);
        }
        Some(text)
    }

    /// Takes what [`Members::noted`] wrote, as far as it is whole.
    pub(super) fn read(&mut self, bytes: &[u8], now: i64) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(line).ok().and_then(|line| line.strip_suffix('\n'));
            let words = line.and_then(|line| line.strip_prefix("node ")?.split_once(' '));
            let Some((node, seconds)) = words else { continue };
            if let Ok(seconds) = seconds.parse() {
                self.heard(node, seconds, now);
            }
        }
    }
}

fn is_gone(last: i64, now: i64) -> bool {
    last < now.saturating_sub(FORGOTTEN)
}

/// The key where nodes note their places; in a cluster it is where the stream is.
pub(super) fn places_key(stream: &str) -> String {
    format!("{{{stream}}}:nodes")
}

/// How a node notes its place, and when that was.
pub(super) fn sign(id: Id) -> String {
    format!("{id} {}", turn::unix_seconds())
}

/// A node, and its place.
pub(super) type Node = (String, Id);

/// The nodes that Redis knows, this one among them, which are remembered from here on; `None` if it does not say. Those that are
/// gone are removed there.
///
/// # Errors
/// The connection is of no use any more.
pub(super) async fn listed(bus: &Bus, link: &mut Link) -> Result<Option<Vec<Node>>, String> {
    let key = places_key(&bus.spec.stream);
    let reply = link.ask(&[b"HGETALL", key.as_bytes()]).await?;
    let Some(items) = reply.list() else { return Ok(None) };
    let now = turn::unix_seconds();
    let (mut nodes, mut gone) = (Vec::new(), Vec::new());
    for pair in items.chunks_exact(2) {
        let text = |item: &Reply| item.text().map(|it| String::from_utf8_lossy(it).into_owned());
        let (Some(name), Some(value)) = (text(&pair[0]), text(&pair[1])) else { continue };
        let (id, seen) = value.split_once(' ').unwrap_or((&value, ""));
        let seen = seen.parse().unwrap_or(now);
        match Id::parse(id.as_bytes()) {
            _ if is_gone(seen, now) => gone.push(name),
            Some(id) => {
                bus.heard(&name, seen);
                nodes.push((name, id));
            }
            None => {}
        }
    }
    for name in gone {
        // Without the right to it they stay there.
        link.ask(&[b"HDEL", key.as_bytes(), name.as_bytes()]).await?;
    }
    Ok(Some(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    #[test]
    fn a_node_is_one_for_a_day() {
        let mut members = Members::default();
        members.heard("a", NOW, NOW);
        members.heard("a", NOW - 9, NOW);
        members.heard("b", NOW + 900_000, NOW);
        members.heard("c", NOW - FORGOTTEN - 1, NOW);
        members.heard("no name", NOW, NOW);
        assert_eq!(members.present(NOW + FORGOTTEN), ["a", "b"]);
        assert!(members.present(NOW + FORGOTTEN + 1).is_empty(), "also one whose clock is ahead");
    }

    #[test]
    fn what_is_noted_is_read_back_and_not_written_at_each_sign() {
        let mut members = Members::default();
        assert_eq!(members.noted(), None);
        members.heard("a", NOW, NOW);
        members.heard("b", NOW - 5, NOW);
        assert!(members.is_to_note());
        let text = members.noted().unwrap();
        for seconds in 0..NOTED {
            members.heard("a", NOW + seconds, NOW + seconds);
        }
        assert!(!members.is_to_note());
        members.heard("a", NOW + NOTED, NOW + NOTED);
        assert!(members.is_to_note());
        let mut next = Members::default();
        next.read(text.as_bytes(), NOW);
        assert_eq!(next.present(NOW), ["a", "b"]);
        let mut torn = Members::default();
        torn.read(&text.as_bytes()[..text.len() - 3], NOW);
        assert_eq!(torn.present(NOW), ["a"]);
    }

    #[test]
    fn names_are_bounded() {
        let mut members = Members::default();
        (0..MEMBERS_MAX + 9).for_each(|number| members.heard(&format!("n{number}"), NOW, NOW));
        assert_eq!(members.present(NOW).len(), MEMBERS_MAX);
    }
}
