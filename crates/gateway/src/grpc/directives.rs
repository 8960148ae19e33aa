//! The directives of `grpc_pass` that are the module's own.

use crate::proxy::SetHeader;
use yorozu_kernel::config::directive::*;

settings! {
    written;
    /// A header of the request to the upstream; an empty value removes it.
    grpc_set_header: Vec<SetHeader> = none, TWO, HTTP_SERVER_LOCATION;
}
