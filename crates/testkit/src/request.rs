//! A request apart from the protocol that carries it.

/// What a client asks.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`
    pub method: String,
    /// `/path?query`
    pub target: String,
    /// Field lines in order.
    pub fields: Vec<(String, String)>,
    /// The content, if there is some.
    pub body: Option<Vec<u8>>,
}

impl Request {
    /// As HTTP/1.1 has it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.fields {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        out.push_str("\r\n");
        let mut out = out.into_bytes();
        out.extend_from_slice(self.body.as_deref().unwrap_or_default());
        out
    }

    /// Reads back what [`Request::bytes`] writes; `None` for anything else, also a second request
    /// behind it: such bytes are meant for HTTP/1.1 alone.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        if words.next() != Some("HTTP/1.1") || words.next().is_some() {
            return None;
        }
        let fields: Option<Vec<_>> = lines
            .map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_owned(), value.to_owned()))
            })
            .collect();
        let body = (!body.is_empty()).then(|| body.as_bytes().to_vec());
        let request = Self { method, target, fields: fields?, body };
        (request.bytes() == bytes && request.is_framed()).then_some(request)
    }

    /// Whether the content is as long as the one field that says so, or there is neither.
    fn is_framed(&self) -> bool {
        let said: Vec<_> = self
            .fields
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map(|(_, value)| value.as_str())
            .collect();
        let has = self.body.as_ref().map_or(0, Vec::len);
        match said[..] {
            [] => has == 0,
            [length] => length == has.to_string(),
            _ => false,
        }
    }
}
