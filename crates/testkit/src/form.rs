//! The ways a client can speak to the server under test: every case is run in each.

use crate::server::Claim;

/// A way to speak to the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Form {
    /// How a failure names it.
    pub name: &'static str,
    /// Whether it is over HTTP/2.
    pub is_h2: bool,
    /// Whether it is over TLS.
    pub is_tls: bool,
    /// Whether requests share a connection as long as the server keeps it.
    pub keeps: bool,
}

/// The forms, in the order they are run: first as a stranger, then as a client that stays.
pub const FORMS: [Form; 5] = [
    Form { name: "http/1.1", is_h2: false, is_tls: false, keeps: false },
    Form { name: "https/1.1", is_h2: false, is_tls: true, keeps: false },
    Form { name: "https/2", is_h2: true, is_tls: true, keeps: false },
    Form { name: "http/1.1 on a kept connection", is_h2: false, is_tls: false, keeps: true },
    Form { name: "http/2 on a kept connection", is_h2: true, is_tls: false, keeps: true },
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
            "h1" => !self.is_h2,
            "h2" => self.is_h2,
            "new" => !self.keeps,
            _ => panic!("no form is called \"{word}\""),
        }
    }

    /// The form of what HTTP/2 cannot say.
    #[must_use]
    pub fn as_h1(self) -> Self {
        Self { is_h2: false, keeps: false, ..self }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// As `$server_protocol` has it.
    pub fn protocol(&self) -> &'static str {
        if self.is_h2 { "HTTP/2.0" } else { "HTTP/1.1" }
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
        match (form.is_tls, form.is_h2) {
            (true, _) => self.tls.port,
            (false, false) => self.plain.port,
            (false, true) => self.h2c.port,
        }
    }

    /// The text with every `listen 127.0.0.1:$port …;` made three.
    pub fn listen(&self, text: &str) -> String {
        const WORDS: &str = "listen 127.0.0.1:$port";
        let mut out = String::new();
        let mut parts = text.split(WORDS);
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (more, rest) = part.split_once(';').expect("a listen directive has an end");
            out.push_str(&format!(
                "listen 127.0.0.1:{}{more}; listen 127.0.0.1:{}{more} ssl http2; \
                 listen 127.0.0.1:{}{more} http2;{rest}",
                self.plain.port, self.tls.port, self.h2c.port
            ));
        }
        out.replace("$port", &self.plain.port.to_string())
    }
}
