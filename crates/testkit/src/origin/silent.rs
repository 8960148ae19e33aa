//! Peers that take no requests.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A port where connections are taken and nothing is read.
pub(crate) fn deaf() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::mem::forget(listener);
    port
}

/// A port where no more connections are taken: its queue is full.
pub(crate) fn full() -> u16 {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    while let Ok(one) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        std::mem::forget(one);
    }
    address.port()
}
