//! What one block of the configuration wrote: a field per module.

use super::compiled::{Listen, ServerName};
use super::directive::Contexts;
use super::regex::Regex;
use super::{http_core, main_core};
use crate::connection::h2;
use crate::filters::compress::{brotli, gunzip, gzip, precompressed, zstd};
use crate::filters::{addition, charset, headers, slice, ssi, sub, userid};
use crate::handlers::{
    Handler, autoindex, dav, fastcgi, gateway, index, memcached, proxy, random_index,
};
use crate::logging::{access as access_log, error::ErrorLogs};
use crate::phases::{
    access, auth_basic, auth_request, browser, limit_conn, limit_req, mirror, realip, referer,
    rewrite, secure_link,
};
use crate::tls;
use bytes::Bytes;
use yorozu_conf::Position;

/// What a `location` line matches.
#[derive(Clone, Debug)]
pub enum LocationName {
    /// `= /path`
    Exact(Bytes),
    /// `/path`, or `^~ /path` when no regex shall be tried after it
    Prefix { path: Bytes, no_regex: bool },
    /// `~ …` and `~* …`
    Regex(Regex),
    /// `@name`
    Named(Bytes),
    /// `if` and `limit_except`
    Unnamed,
}

impl LocationName {
    /// The path or name, or a regex's source; empty for none.
    pub fn path(&self) -> Bytes {
        match self {
            Self::Exact(name) | Self::Named(name) | Self::Prefix { path: name, .. } => name.clone(),
            Self::Regex(regex) => Bytes::copy_from_slice(regex.source().as_bytes()),
            Self::Unnamed => Bytes::new(),
        }
    }
}

/// One block; only the parts that its context allows are ever filled.
#[derive(Clone)]
pub struct Block {
    pub context: Contexts,
    pub at: Option<Position>,

    pub main: main_core::Draft,
    pub error_log: Option<ErrorLogs>,
    pub http_core: http_core::Draft,
    pub access: access::Draft,
    pub auth_basic: auth_basic::Draft,
    pub auth_request: auth_request::Draft,
    pub limit_conn: limit_conn::Draft,
    pub limit_req: limit_req::Draft,
    pub referer: referer::Draft,
    pub secure_link: secure_link::Draft,
    pub autoindex: autoindex::Draft,
    pub fastcgi: fastcgi::Draft,
    pub gzip: gzip::Draft,
    pub brotli: brotli::Draft,
    pub zstd: zstd::Draft,
    pub gunzip: gunzip::Draft,
    pub precompressed: precompressed::Draft,
    pub charset: charset::Draft,
    pub dav: dav::Draft,
    pub slice: slice::Draft,
    pub userid: userid::Draft,
    pub random_index: random_index::Draft,
    pub browser: browser::Draft,
    pub mirror: mirror::Draft,
    pub ssi: ssi::Draft,
    pub addition: addition::Draft,
    pub sub: sub::Draft,
    pub headers: headers::Draft,
    pub index: index::Draft,
    pub memcached: memcached::Draft,
    pub memcached_gateway: gateway::Draft,
    pub proxy: proxy::Draft,
    pub proxy_ssl: proxy::tls::Draft,
    pub log: access_log::Draft,
    pub rewrite: rewrite::Draft,
    pub realip: realip::Draft,
    pub tls: tls::directives::Draft,
    pub http2: h2::Draft,

    /// What makes the response; not inherited by nested locations.
    pub handler: Option<Handler>,
    pub name: LocationName,
    /// `limit_except`: the methods it does not concern, and its block.
    pub limit_except: Option<Box<(Vec<Bytes>, Block)>>,
    pub locations: Vec<Block>,

    pub server_names: Vec<ServerName>,
    pub listens: Vec<Listen>,
    pub servers: Vec<Block>,
}

impl Block {
    pub fn new(context: Contexts, at: Option<Position>) -> Self {
        Self {
            context,
            at,
            main: main_core::Draft::default(),
            error_log: None,
            http_core: http_core::Draft::default(),
            access: access::Draft::default(),
            auth_basic: auth_basic::Draft::default(),
            auth_request: auth_request::Draft::default(),
            limit_conn: limit_conn::Draft::default(),
            limit_req: limit_req::Draft::default(),
            referer: referer::Draft::default(),
            secure_link: secure_link::Draft::default(),
            autoindex: autoindex::Draft::default(),
            fastcgi: fastcgi::Draft::default(),
            gzip: gzip::Draft::default(),
            brotli: brotli::Draft::default(),
            zstd: zstd::Draft::default(),
            gunzip: gunzip::Draft::default(),
            precompressed: precompressed::Draft::default(),
            charset: charset::Draft::default(),
            dav: dav::Draft::default(),
            slice: slice::Draft::default(),
            userid: userid::Draft::default(),
            random_index: random_index::Draft::default(),
            browser: browser::Draft::default(),
            mirror: mirror::Draft::default(),
            ssi: ssi::Draft::default(),
            addition: addition::Draft::default(),
            sub: sub::Draft::default(),
            headers: headers::Draft::default(),
            index: index::Draft::default(),
            memcached: memcached::Draft::default(),
            memcached_gateway: gateway::Draft::default(),
            proxy: proxy::Draft::default(),
            proxy_ssl: proxy::tls::Draft::default(),
            log: access_log::Draft::default(),
            rewrite: rewrite::Draft::default(),
            realip: realip::Draft::default(),
            tls: tls::directives::Draft::default(),
            http2: h2::Draft::default(),
            handler: None,
            name: LocationName::Unnamed,
            limit_except: None,
            locations: Vec::new(),
            server_names: Vec::new(),
            listens: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// Takes over from the enclosing block what this one does not say.
    pub fn inherit(&mut self, outer: &Self) {
        if self.error_log.is_none() {
            self.error_log.clone_from(&outer.error_log);
        }
        self.http_core.inherit(&outer.http_core);
        self.access.inherit(&outer.access);
        self.auth_basic.inherit(&outer.auth_basic);
        self.auth_request.inherit(&outer.auth_request);
        self.limit_conn.inherit(&outer.limit_conn);
        self.limit_req.inherit(&outer.limit_req);
        self.referer.inherit(&outer.referer);
        secure_link::inherit(&mut self.secure_link, &outer.secure_link);
        self.autoindex.inherit(&outer.autoindex);
        self.fastcgi.inherit(&outer.fastcgi);
        self.gzip.inherit(&outer.gzip);
        self.brotli.inherit(&outer.brotli);
        self.zstd.inherit(&outer.zstd);
        self.gunzip.inherit(&outer.gunzip);
        self.precompressed.inherit(&outer.precompressed);
        self.charset.inherit(&outer.charset);
        self.dav.inherit(&outer.dav);
        self.slice.inherit(&outer.slice);
        self.userid.inherit(&outer.userid);
        self.random_index.inherit(&outer.random_index);
        self.browser.inherit(&outer.browser);
        self.mirror.inherit(&outer.mirror);
        self.ssi.inherit(&outer.ssi);
        self.addition.inherit(&outer.addition);
        self.sub.inherit(&outer.sub);
        headers::inherit(&mut self.headers, &outer.headers);
        self.index.inherit(&outer.index);
        self.memcached.inherit(&outer.memcached);
        self.memcached_gateway.inherit(&outer.memcached_gateway);
        self.proxy.inherit(&outer.proxy);
        self.proxy_ssl.inherit(&outer.proxy_ssl);
        self.log.inherit(&outer.log);
        self.rewrite.inherit(&outer.rewrite);
        self.realip.inherit(&outer.realip);
        self.tls.inherit(&outer.tls);
        self.http2.inherit(&outer.http2);
    }
}
