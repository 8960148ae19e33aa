//! Content of other servers: what is asked of them, what is stored of their answers.
//!
//! | part | what it is |
//! | --- | --- |
//! | [`cache`] | what may be stored and answered from the store, under which key, for how long |
//! | [`protocol`] | what a protocol is: its calls, the codec of its answers, the family of its directives |
//! | [`fastcgi`], [`uwsgi`], [`scgi`], [`proxy`], [`grpc`], [`memcached`] | the protocols |
//! | [`cgi`] | what the first three have in common |
//! | [`h2`] | HTTP/2, as the next two may speak it |
//! | [`upstream`] | groups of servers |
//! | [`nodes`] | other machines that have the same pages |
//! | [`pass`] | a request on its way to an upstream, and the answer on its way back |

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

pub mod cache;
pub mod cgi;
pub mod fastcgi;
pub mod grpc;
pub mod h2;
pub mod memcached;
pub mod nodes;
pub mod pass;
pub mod protocol;
pub mod proxy;
pub mod scgi;
pub mod upstream;
pub mod uwsgi;
