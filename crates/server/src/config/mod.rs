//! From text to settings, and what is wrong with them as a whole.

mod applications;
mod compile;
mod cycles;
mod findings;
mod given;
mod issued;
mod key_parts;
pub mod load;
pub mod manual;
mod omitted;
mod path_info;
pub mod reads;
mod scope;
mod scripts;
mod shared_sockets;
mod visitors;

use std::sync::Arc;
use yorozu_conf::Tree;
use yorozu_kernel::exchange::conf::Config;

/// What is probably not meant in a configuration, by its text and by what it does: `-t` and the log say it.
pub fn findings_of(tree: &Tree, config: &Arc<Config>) -> Vec<scope::Finding> {
    let mut found = findings::of(tree);
    for finding in visitors::of(tree, config)
        .into_iter()
        .chain(scripts::sent(tree, config))
        .chain(key_parts::of(tree, config))
    {
        if !found.contains(&finding) {
            found.push(finding);
        }
    }
    found
}

#[cfg(test)]
mod tests;
