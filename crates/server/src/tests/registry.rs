//! The list of modules beside what is said of others.

use crate::modules::MODULES;
use yorozu_kernel::config::unsupported;

#[test]
fn what_is_missing_is_not_registered() {
    for (module, names) in unsupported::all() {
        for name in *names {
            assert!(MODULES.rows(name).is_empty(), "{module}: {name} is there after all");
        }
    }
    for (name, _) in MODULES.names() {
        assert_eq!(unsupported::module_of_others(name), None, "{name}");
    }
}
