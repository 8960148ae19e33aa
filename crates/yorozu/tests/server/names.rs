//! Names that are looked up while the server runs: `resolver`, `server … resolve`, `service=`, with name servers that
//! say what the test wants.

use crate::shared::{get, log, until, yorozu};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use yorozu_testkit::server::{Folder, Kind, Server, free_port};

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// What a client of DNS asks.
struct Question {
    id: u16,
    name: String,
    rtype: u16,
    is_tcp: bool,
    /// As it came.
    section: Vec<u8>,
}

impl Question {
    fn read(message: &[u8], is_tcp: bool) -> Self {
        let mut labels = Vec::new();
        let mut at = 12;
        while message[at] > 0 {
            let end = at + 1 + usize::from(message[at]);
            labels.push(String::from_utf8_lossy(&message[at + 1..end]).to_ascii_lowercase());
            at = end;
        }
        let rtype = u16::from_be_bytes([message[at + 1], message[at + 2]]);
        let id = u16::from_be_bytes([message[0], message[1]]);
        Self { id, name: labels.join("."), rtype, is_tcp, section: message[12..at + 5].to_vec() }
    }

    /// An answer of that code with these records.
    fn answer(&self, code: u8, records: &[Vec<u8>]) -> Vec<u8> {
        let count = u16::try_from(records.len()).unwrap().to_be_bytes();
        let head = [&self.id.to_be_bytes()[..], &[0x81, 0x80 | code, 0, 1], &count, &[0; 4]];
        [&head.concat(), &self.section, &records.concat()[..]].concat()
    }

    /// The addresses among these that are asked for, of the name that is asked for.
    fn addresses(&self, addresses: &[&str]) -> Vec<u8> {
        let parsed = addresses.iter().map(|text| text.parse().unwrap());
        let wanted = parsed.filter(|ip: &IpAddr| ip.is_ipv4() == (self.rtype == A));
        let records: Vec<_> = wanted.map(|ip| address(&self.name, ip, 60)).collect();
        self.answer(0, &records)
    }
}

fn encoded(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out
}

fn record(name: &str, rtype: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    let kind = rtype.to_be_bytes();
    [&encoded(name)[..], &kind, &[0, 1], &ttl.to_be_bytes(), &length, data].concat()
}

fn address(name: &str, ip: IpAddr, ttl: u32) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => record(name, A, ttl, &ip.octets()),
        IpAddr::V6(ip) => record(name, AAAA, ttl, &ip.octets()),
    }
}

fn alias(name: &str, to: &str) -> Vec<u8> {
    record(name, CNAME, 60, &encoded(to))
}

fn service(name: &str, ttl: u32, priority: u16, weight: u16, port: u16, target: &str) -> Vec<u8> {
    let numbers = [priority, weight, port].map(u16::to_be_bytes).concat();
    record(name, SRV, ttl, &[&numbers[..], &encoded(target)].concat())
}

/// A name server; for each question the datagrams that come back, or over TCP the messages.
fn name_server(script: impl Fn(&Question) -> Vec<Vec<u8>> + Send + Sync + 'static) -> SocketAddr {
    // A port that is free for both.
    let (listener, socket) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()) {
            break (listener, socket);
        }
    };
    let address = socket.local_addr().unwrap();
    let script = Arc::new(script);
    let over_tcp = Arc::clone(&script);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            for datagram in script(&Question::read(&buffer[..length], false)) {
                let _ = socket.send_to(&datagram, client);
            }
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let script = Arc::clone(&over_tcp);
            thread::spawn(move || answer_over_tcp(stream, &*script));
        }
    });
    address
}

fn answer_over_tcp(mut stream: TcpStream, script: &dyn Fn(&Question) -> Vec<Vec<u8>>) {
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut message).unwrap();
        for answer in script(&Question::read(&message, true)) {
            let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
            let _ = stream.write_all(&[&length, &answer[..]].concat());
        }
    }
}

/// A server of HTTP that says where it was asked.
fn origin(address: SocketAddr) -> Option<()> {
    let listener = TcpListener::bind(address).ok()?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer);
            let text = address.to_string();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
            let _ = stream.write_all(format!("{head}{text}").as_bytes());
        }
    });
    Some(())
}

/// What name servers say in the tests of names: the first label tells.
fn say(question: &Question) -> Vec<Vec<u8>> {
    let name = &question.name[..];
    let label = name.split('.').next().unwrap();
    let whole = |records: &[Vec<u8>]| vec![question.answer(0, records)];
    let usual = question.addresses(&["127.0.0.1"]);
    let local: IpAddr = [127, 0, 0, 1].into();
    match label {
        "format" => vec![question.answer(1, &[])],
        "fails" => vec![question.answer(2, &[])],
        "nowhere" => vec![question.answer(3, &[])],
        "unknown" => vec![question.answer(4, &[])],
        "refused" => vec![question.answer(5, &[])],
        "empty" => whole(&[]),
        "two" => vec![question.addresses(&["127.0.0.1", "127.0.0.2"])],
        "six" => vec![question.addresses(&["::1"])],
        "alias" => whole(&[alias(name, "there.test")]),
        "alias-of-nowhere" => whole(&[alias(name, "nowhere.test")]),
        "itself" => whole(&[alias(name, name)]),
        "circle" => whole(&[alias(name, "circle-2.test")]),
        "circle-2" => whole(&[alias(name, "circle.test")]),
        "chain" => {
            let link = |at: u32| format!("link-{at}.test");
            let mut records = vec![alias(name, &link(0))];
            records.extend((0..30).map(|at| alias(&link(at), &link(at + 1))));
            records.extend((question.rtype == A).then(|| address(&link(30), local, 60)));
            whole(&records)
        }
        "other-number" => {
            let mut other = question.addresses(&["127.0.0.9"]);
            other[1] ^= 1;
            vec![other, usual]
        }
        "other-name" => {
            let mut other = question.addresses(&["127.0.0.9"]);
            other[13] = b'O';
            other[14] = b'O';
            vec![other, usual]
        }
        "other-case" => {
            let mut upper = usual;
            upper[13..15].make_ascii_uppercase();
            vec![upper]
        }
        "long" if !question.is_tcp => {
            let mut cut = question.answer(0, &[]);
            cut[2] |= 2;
            vec![cut]
        }
        "no-six" if question.rtype == AAAA => vec![question.answer(2, &[])],
        "no-four" => match question.rtype {
            A => vec![question.answer(3, &[])],
            _ => vec![question.addresses(&["::1"])],
        },
        "of-another" => whole(&[address("another.test", local, 60)]),
        _ => vec![usual],
    }
}

/// Both servers with a location `/NAME`, and one each that asks for one family, or another name server first.
fn asking(kind: &Kind, folder: &Folder, port: u16) -> Server {
    let (usual, refuses) =
        (name_server(say), name_server(|question| vec![question.answer(5, &[])]));
    // Nothing listens there.
    let dead = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut http = "resolver_timeout 2s; server { listen 127.0.0.1:$port; ".to_owned();
    let mut locations = vec![
        ("", format!("{usual}")),
        ("four/", format!("{usual} ipv6=off")),
        ("dead/", format!("{dead} {usual}")),
    ];
    if *kind != Kind::Nginx {
        // As newer versions have it.
        locations.push(("six/", format!("{usual} ipv4=off")));
        locations.push(("refuses/", format!("{refuses} {usual} ipv6=off")));
    }
    for (path, resolver) in locations {
        http += &format!(
            "location ~ ^/{path}(?<name>[^/]+)$ {{ resolver {resolver}; proxy_pass http://$name:{port}; }} "
        );
    }
    Server::start(kind, folder.path(), &(http + "}"))
}

/// What was last logged of a name that was not found.
fn said(log: &str) -> Option<&str> {
    let line = log.lines().rfind(|line| line.contains(" could not be resolved ("))?;
    line.split_once(" could not be resolved (")?.1.split(')').next()
}

#[test]
fn what_a_name_server_says_is_what_is_logged() {
    let port = free_port();
    origin(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let has_six = origin(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).is_some();
    let six = if has_six { 200 } else { 502 };
    let nowhere = (502, "3: Host not found");
    let found = (200, "");
    let both = [
        ("/nowhere.test", nowhere),
        ("/fails.test", (502, "2: Server failure")),
        ("/unknown.test", (502, "4: Unimplemented")),
        ("/refused.test", (502, "5: Operation refused")),
        ("/empty.test", nowhere),
        ("/there.test", found),
        ("/THERE.test.", found),
        ("/alias.test", found),
        ("/alias-of-nowhere.test", nowhere),
        ("/itself.test", nowhere),
        ("/circle.test", nowhere),
        ("/chain.test", found),
        ("/other-number.test", found),
        ("/other-name.test", found),
        ("/other-case.test", found),
        ("/six.test", (six, "")),
        ("/two-dots..test", nowhere),
        ("/four/six.test", nowhere),
        ("/four/there.test", found),
        ("/four/no-six.test", found),
        ("/four/long.test", found),
        ("/long.test", found),
        ("/dead/there.test", found),
    ];
    let own = [
        // nginx waits in vain.
        ("/format.test", (502, "1: Format error")),
        // The addresses of one family are enough.
        ("/no-six.test", found),
        ("/no-four.test", (six, "")),
        // nginx takes an address for that of the name, whosever it is.
        ("/of-another.test", nowhere),
        // nginx takes the first server's word.
        ("/refuses/there.test", found),
        ("/refuses/fails.test", (502, "2: Server failure")),
        ("/six/there.test", nowhere),
        ("/six/six.test", (six, "")),
    ];
    for kind in [Some(yorozu()), Kind::oracle()].into_iter().flatten() {
        let folder = Folder::new();
        let server = asking(&kind, &folder, port);
        let of_kind: &[_] = if kind == Kind::Nginx { &[] } else { &own };
        for (path, (status, words)) in both.iter().chain(of_kind) {
            let before = log(&folder).len();
            assert_eq!(get(server.port, path).unwrap().status, *status, "{kind:?} {path}");
            if !words.is_empty() {
                until("the line in the log", || said(&log(&folder)[before..]).is_some());
            }
            assert_eq!(
                said(&log(&folder)[before..]).unwrap_or_default(),
                *words,
                "{kind:?} {path}"
            );
        }
    }
}

/// How often each origin answers.
fn answers(server: &Server, path: &str, count: usize) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for _ in 0..count {
        let answer = get(server.port, path).unwrap();
        let text = match answer.status {
            200 => String::from_utf8(answer.body).unwrap(),
            status => status.to_string(),
        };
        *found.entry(text).or_default() += 1;
    }
    found
}

#[test]
fn all_addresses_of_a_name_get_requests() {
    let port = free_port();
    let places = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|ip| SocketAddr::from((ip, port)));
    places.iter().for_each(|place| origin(*place).unwrap());
    for kind in [Some(yorozu()), Kind::oracle()].into_iter().flatten() {
        let folder = Folder::new();
        let server = asking(&kind, &folder, port);
        let found = answers(&server, "/four/two.test", 60);
        // By chance with nginx: fewer of one than these happen once in some thousand millions.
        assert!(places.iter().all(|place| found[&place.to_string()] >= 5), "{kind:?} {found:?}");
    }
}

#[test]
fn the_records_of_a_service_are_its_servers() {
    let ports: [u16; 4] = std::array::from_fn(|_| free_port());
    let places = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    // Nothing listens at the last one.
    places[..3].iter().for_each(|place| origin(*place).unwrap());
    let [first, second, backup, dead] = ports;
    let name = "_web._tcp.backend.test";
    // Priority, weight and port; or the code of a failure.
    let said = Arc::new(Mutex::new(Ok(vec![(10, 3, first), (10, 1, second), (20, 1, backup)])));
    let script = Arc::clone(&said);
    let resolver = name_server(move |question| {
        let answer = match (&question.name[..], &*script.lock().unwrap()) {
            ("_web._tcp.backend.test", Err(code)) => question.answer(*code, &[]),
            ("_web._tcp.backend.test", Ok(places)) if question.rtype == SRV => {
                let record = |(priority, weight, port): &(u16, u16, u16)| {
                    service(name, 1, *priority, *weight, *port, &format!("port-{port}.test"))
                };
                let records: Vec<_> = places.iter().map(record).collect();
                question.answer(0, &records)
            }
            (other, _) if other.starts_with("port-") => question.addresses(&["127.0.0.1"]),
            _ => question.answer(3, &[]),
        };
        vec![answer]
    });
    let folder = Folder::new();
    let http = format!(
        "resolver {resolver}; upstream group {{ zone group 64k; keepalive 0; server backend.test service=web resolve; }}
        upstream whole {{ zone whole 64k; keepalive 0; server backend.test service=_web._tcp resolve weight=2; }}
        server {{ listen 127.0.0.1:$port; proxy_next_upstream_tries 5;
            location / {{ proxy_pass http://group; }} location /whole {{ proxy_pass http://whole; }} }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    let text = |port: u16| SocketAddr::from(([127, 0, 0, 1], port)).to_string();
    let only = |port: u16, count| BTreeMap::from([(text(port), count)]);
    for path in ["/", "/whole"] {
        until("the first answer", || get(server.port, path).unwrap().status == 200);
    }
    assert_eq!(answers(&server, "/", 16), BTreeMap::from([(text(first), 12), (text(second), 4)]));
    let halves = BTreeMap::from([(text(first), 8), (text(second), 8)]);
    assert_eq!(answers(&server, "/whole", 16), halves);

    *said.lock().unwrap() = Ok(vec![(5, 1, dead), (7, 1, backup)]);
    until("the backup", || answers(&server, "/", 4) == only(backup, 4));
    // What is known is better than nothing.
    *said.lock().unwrap() = Err(2);
    until("a failure", || {
        let said = "service web of backend.test could not be resolved (2: Server failure)";
        log(&folder).contains(said)
    });
    assert_eq!(answers(&server, "/", 4), only(backup, 4));
    *said.lock().unwrap() = Err(3);
    until("the end of all", || get(server.port, "/").unwrap().status == 502);
    let lines = log(&folder);
    assert!(
        lines.contains("service web of backend.test could not be resolved (3: Host not found)")
    );
    assert!(lines.contains("no live upstreams while connecting to upstream"), "{lines}");
    *said.lock().unwrap() = Ok(vec![(0, 0, second)]);
    until("another one", || answers(&server, "/", 4) == only(second, 4));
}
