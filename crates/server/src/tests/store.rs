//! Rights of stored files.

use crate::testing;
use yorozu_gateway::{pass, proxy};
use yorozu_kernel::exchange::conf::Config;

#[test]
fn rights_are_read_as_nginx_reads_them() {
    let access = |words: &str| {
        let config = testing::try_config(&format!("http {{ proxy_store_access {words}; }}"));
        let conf = |config: Config| pass::conf(&config.locations[0], &proxy::FAMILY).store_access.0;
        config.map(conf)
    };
    for (words, mode) in [
        ("user:rw", 0o600),
        ("user:r", 0o400),
        ("group:rw", 0o660),
        ("group:rw all:r", 0o664),
        ("all:r", 0o604),
        ("user:rw group:r all:rw", 0o646),
    ] {
        assert_eq!(access(words), Ok(mode), "{words}");
    }
    for words in ["user:x", "others:r", "rw", "user:"] {
        assert!(access(words).unwrap_err().contains("invalid"), "{words}");
    }
}
