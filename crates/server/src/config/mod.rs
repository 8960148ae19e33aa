//! From text to settings, and what is wrong with them as a whole.

mod cycles;
mod dropped_args;
mod findings;
mod issued;
mod key_parts;
pub mod load;
pub mod manual;
pub mod reads;
mod scope;
mod scripts;
mod shared_sockets;
mod visitors;

use std::sync::Arc;
use yorozu_conf::Tree;
use yorozu_kernel::exchange::conf::Config;

/// What is probably not meant in a configuration, by its text and by what it does: `-t` and the log say it.
pub fn findings_of(tree: &Tree, config: &Arc<Config>) -> impl Iterator<Item = scope::Finding> {
    let of_text = findings::of(tree).into_iter();
    of_text
        .chain(visitors::of(tree, config))
        .chain(scripts::sent(tree, config))
        .chain(key_parts::of(tree, config))
}

#[cfg(test)]
mod tests;
