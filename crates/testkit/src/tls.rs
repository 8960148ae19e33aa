//! TLS for the client and the origin, and the certificates of the tests.

use rustls::RootCertStore;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, SignatureScheme,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

/// The folder of the certificates; made once per process, by `openssl`.
///
/// `ca.pem` signed `server` (for localhost, a and 127.0.0.1), `client`, `revoked` (its number is in
/// `crl.pem`) and `middle`, which signed `deep`; `deep.pem` brings `middle` along. `other` signed
/// itself. Each has its `.pem` and its `.key`; `locked.key` is the server's, with the password in
/// `password`; `wrong` holds another.
pub fn certificates() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let name = format!("yorozu-certificates.{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let done = Command::new("sh")
            .args(["-e", "-c", include_str!("certificates.sh")])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        folder
    });
    &FOLDER
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

/// What a client of the tests says in its handshake; empty for what it says otherwise.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hello {
    /// Protocols, as ALPN has them.
    pub alpn: Vec<u8>,
    /// The server's name, `localhost` otherwise.
    pub name: String,
    /// `1.2` or `1.3`.
    pub version: String,
    /// The client's certificate.
    pub certificate: String,
    /// The one group for the exchange of keys, as rustls calls it.
    pub curve: String,
    /// Ciphers in the client's order, as rustls calls them.
    pub ciphers: Vec<String>,
    /// `id` or `ticket`: takes up sessions so, and no others.
    pub resume: String,
}

/// A client's settings; connections made with the same ones may take up each other's sessions.
///
/// It trusts whomever it meets: what certificates are worth is tested elsewhere.
pub fn settings(hello: &Hello) -> Arc<ClientConfig> {
    let mut provider = CryptoProvider::clone(&provider());
    if !hello.curve.is_empty() {
        provider.kx_groups.retain(|group| format!("{:?}", group.name()) == hello.curve);
    }
    if !hello.ciphers.is_empty() {
        let all = std::mem::take(&mut provider.cipher_suites);
        let named = |name: &String| all.iter().find(|s| format!("{:?}", s.suite()) == *name);
        provider.cipher_suites = hello.ciphers.iter().filter_map(named).copied().collect();
    }
    let versions: &[_] = match &hello.version[..] {
        "1.2" => &[&rustls::version::TLS12],
        "1.3" => &[&rustls::version::TLS13],
        _ => rustls::DEFAULT_VERSIONS,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone));
    let mut config = if hello.certificate.is_empty() {
        builder.with_no_client_auth()
    } else {
        let (chain, key) = pair(&hello.certificate);
        builder.with_client_auth_cert(chain, key).unwrap()
    };
    config.resumption = match &hello.resume[..] {
        "id" => Resumption::default().tls12_resumption(Tls12Resumption::SessionIdOnly),
        "ticket" => Resumption::default(),
        _ => Resumption::disabled(),
    };
    config.alpn_protocols = vec![hello.alpn.clone()];
    Arc::new(config)
}

/// A connection with settings.
pub fn client(settings: &Arc<ClientConfig>, hello: &Hello) -> ClientConnection {
    let name = if hello.name.is_empty() { "localhost" } else { &hello.name };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(Arc::clone(settings), name).unwrap()
}

/// A certificate of the folder with those it brings along, and its key.
fn pair(name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let key = PrivateKeyDer::from_pem_file(certificates().join(format!("{name}.key")));
    (chain(name), key.unwrap())
}

fn chain(name: &str) -> Vec<CertificateDer<'static>> {
    let file = certificates().join(format!("{name}.pem"));
    CertificateDer::pem_file_iter(file).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Whether it is the certificate of that name.
pub fn is_certificate(found: Option<&[CertificateDer<'_>]>, name: &str) -> bool {
    found.and_then(<[_]>::first) == chain(name).first()
}

/// A server with a certificate of the folder, that asks clients for one of the authority's.
pub fn server(name: &str) -> Arc<ServerConfig> {
    let (certificates, key) = pair(name);
    let mut roots = RootCertStore::empty();
    roots.add(chain("ca").remove(0)).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(certificates, key)
        .unwrap();
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    Arc::new(config)
}

/// The same for servers of HTTP/2.
pub fn server_of_h2(name: &str) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(&server(name));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
