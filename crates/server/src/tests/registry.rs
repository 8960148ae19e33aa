//! The list of modules beside what is said of others.

use crate::modules::MODULES;
use yorozu_kernel::config::directive::{Action, Directive};
use yorozu_kernel::config::unsupported;

#[test]
fn what_is_missing_is_not_registered() {
    for (module, names) in unsupported::all() {
        for name in names {
            assert!(MODULES.rows(name).is_empty(), "{module}: {name} is there after all");
        }
    }
    for (name, _) in MODULES.names() {
        // One that is refused says what to use in its place.
        let is_refused = |row: &Directive| matches!(row.action, Action::Refused(_));
        let is_there = !MODULES.rows(name).iter().all(is_refused);
        assert!(!is_there || unsupported::refusal(name).is_none(), "{name}");
    }
}
