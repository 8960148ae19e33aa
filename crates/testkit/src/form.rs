//! The ways a client can speak to the server under test: every case is run in each.

use crate::server::{Claim, quic_port};

/// A version of HTTP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.1
    H1,
    /// HTTP/2
    H2,
    /// HTTP/3
    H3,
}

/// A way to speak to the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Form {
    /// How a failure names it.
    pub name: &'static str,
    /// What is spoken.
    pub version: Version,
    /// Whether it is over TLS.
    pub is_tls: bool,
    /// Whether requests share a connection as long as the server keeps it.
    pub keeps: bool,
}

/// The forms, in the order they are run: first as a stranger, then as a client that stays. Over HTTP/3 as the latter alone:
/// its handshakes take longer than most cases.
pub const FORMS: [Form; 6] = [
    Form { name: "http/1.1", version: Version::H1, is_tls: false, keeps: false },
    Form { name: "https/1.1", version: Version::H1, is_tls: true, keeps: false },
    Form { name: "https/2", version: Version::H2, is_tls: true, keeps: false },
    Form {
        name: "http/1.1 on a kept connection",
        version: Version::H1,
        is_tls: false,
        keeps: true,
    },
    Form { name: "http/2 on a kept connection", version: Version::H2, is_tls: false, keeps: true },
    Form { name: "https/3 on a kept connection", version: Version::H3, is_tls: true, keeps: true },
];

impl Form {
    /// Whether the word of an `only` line names it.
    ///
    /// # Panics
    /// The word names no forms.
    pub fn is_named(&self, word: &str) -> bool {
        match word {
            "plain" => !self.is_tls,
            "tls" => self.is_tls,
            "h1" => self.version == Version::H1,
            "h2" => self.version == Version::H2,
            "h3" => self.version == Version::H3,
            "streams" => self.version != Version::H1,
            "new" => !self.keeps,
            _ => panic!("no form is called \"{word}\""),
        }
    }

    /// The form of what HTTP/2 and HTTP/3 cannot say.
    #[must_use]
    pub fn as_h1(self) -> Self {
        Self { version: Version::H1, keeps: false, ..self }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// As `$server_protocol` has it.
    pub fn protocol(&self) -> &'static str {
        match self.version {
            Version::H1 => "HTTP/1.1",
            Version::H2 => "HTTP/2.0",
            Version::H3 => "HTTP/3.0",
        }
    }
}

/// Where a server under test listens.
#[derive(Debug, Default)]
pub struct Ports {
    /// HTTP/1.1.
    plain: Claim,
    /// TLS, with HTTP/1.1 or HTTP/2 as the client asks.
    tls: Claim,
    /// HTTP/2 without TLS: on a separate port, nginx knows no other way before 1.25.1.
    h2c: Claim,
}

impl Ports {
    /// All of them.
    pub fn all(&self) -> [u16; 3] {
        [self.plain.port, self.tls.port, self.h2c.port]
    }

    /// The port for a form.
    pub fn of(&self, form: &Form) -> u16 {
        match (form.is_tls, form.version) {
            (_, Version::H3) => self.quic(),
            (true, _) => self.tls.port,
            (false, Version::H1) => self.plain.port,
            (false, Version::H2) => self.h2c.port,
        }
    }

    /// The port for QUIC: that of TLS is claimed by a UDP socket of its own.
    fn quic(&self) -> u16 {
        quic_port(self.tls.port)
    }

    /// The text with every `listen 127.0.0.1:$port …;` made three, or four for a server with QUIC.
    pub fn listen(&self, text: &str, has_quic: bool) -> String {
        const WORDS: &str = "listen 127.0.0.1:$port";
        let mut out = String::new();
        let mut parts = text.split(WORDS);
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (more, rest) = part.split_once(';').expect("a listen directive has an end");
            if has_quic {
                out.push_str(&format!("listen 127.0.0.1:{}{more} quic; ", self.quic()));
            }
            out.push_str(&format!(
                "listen 127.0.0.1:{}{more}; listen 127.0.0.1:{}{more} ssl http2; \
                 listen 127.0.0.1:{}{more} http2;{rest}",
                self.plain.port, self.tls.port, self.h2c.port
            ));
        }
        out.replace("$port", &self.plain.port.to_string())
    }
}
