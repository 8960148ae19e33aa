"""HTTP/3 with clients of others: ngtcp2's (Debian's gtlsclient), aioquic with ls-qpack, Chromium."""
import asyncio, base64, contextlib, hashlib, http.client, os, random, re, signal, socket, socketserver, subprocess
import threading, time, urllib.request
import pytest
from attacks import h2wire, h3wire
from attacks.h2wire import request
from browser import Browser
from openssl import certificate
from peers import SECONDS, YOROZU, Folder, Server, equal, in_group, until

PAGE = bytes(range(256)) * 8192
INVALID_TOKEN = 0xb


def served(folder, inside='', outside=''):
    """A server of files over HTTP/3, and over HTTP/1 with the same port's number."""
    www = folder / 'www'
    www.mkdir(exist_ok=True)
    (www / 'page').write_bytes(PAGE)
    (www / 'small').write_text('small')
    return Server(folder, f'''keepalive_timeout 20s; {outside}
        server {{ listen 127.0.0.1:$port; {h3wire.listen(folder)} server_name a.test; root {www}; client_max_body_size 8m; {inside}
          location = /echo {{ proxy_pass http://127.0.0.1:$port/echoed; proxy_http_version 1.1;
            proxy_set_header Connection ""; }}
          location = /echoed {{ client_body_in_file_only clean; return 200 "$request_method $content_length"; }}
          location = /fields {{ return 200 "$http_user_agent|$http_x_one|$http_x_two|$http_cookie|$args"; }}
          location = /said {{ return 200 "$server_protocol $http3 $scheme $ssl_protocol $ssl_server_name $https"; }} }}''')


def ngtcp2(port, folder, *options, targets=('/page',)):
    """What was downloaded, and what the client says."""
    place = folder / 'got'
    place.mkdir(exist_ok=True)
    urls = [f'https://a.test:{port}{target}' for target in targets]
    done = subprocess.run(['gtlsclient', '--no-quic-dump', '--no-http-dump', '--exit-on-all-streams-close',
                           f'--download={place}',
                           *map(str, options), '127.0.0.1', str(port), *urls],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    found = {path.name: path.read_bytes() for path in place.iterdir()}
    for path in place.iterdir():
        path.unlink()
    return found, done.stderr + done.stdout


def test_ngtcp2_gets_files():
    with Folder() as folder, served(folder) as server:
        found, said = ngtcp2(server.port, folder, targets=('/page', '/small', '/said'))
        equal(found.get('page') == PAGE, True, said[-2000:])
        equal(found.get('small'), b'small')
        equal(found.get('said'), b'HTTP/3.0 h3 https TLSv1.3 localhost on')


def test_ngtcp2_sends_a_body():
    with Folder() as folder, served(folder) as server:
        (folder / 'body').write_bytes(PAGE)
        found, said = ngtcp2(server.port, folder, '-d', folder / 'body', '-m', 'POST', targets=('/echo',))
        equal(found.get('echo'), f'POST {len(PAGE)}'.encode(), said[-2000:])


def test_ngtcp2_on_a_bad_network():
    """A tenth of the datagrams is lost in each direction."""
    with Folder() as folder, served(folder) as server:
        found, said = ngtcp2(server.port, folder, '-q', '--tx-loss=0.1', '--rx-loss=0.1', '--handshake-timeout=30s', targets=('/page', '/small'))
        equal((found.get('page') == PAGE, found.get('small')), (True, b'small'), said[-2000:])


def test_ngtcp2_with_small_windows_and_ciphers():
    with Folder() as folder, served(folder) as server:
        for options in (['--max-data=20000', '--max-stream-data-bidi-local=5000'], ['--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305'],
                        ['--groups=-GROUP-ALL:+GROUP-SECP256R1'], ['--cc=bbr'], ['--max-udp-payload-size=1200', '--no-pmtud'], ['--scid=']):
            found, said = ngtcp2(server.port, folder, *options)
            equal(found.get('page') == PAGE, True, f'{options} {said[-2000:]}')


def test_ngtcp2_moves():
    """To another address, in the middle of a download."""
    with Folder() as folder, served(folder, 'location = /slow { alias $dir/../www/page; limit_rate 1m; }') as server:
        found, said = ngtcp2(server.port, folder, '--change-local-addr=300ms', targets=('/slow',))
        equal(found.get('slow') == PAGE, True, said[-2000:])


def test_ngtcp2_comes_again_at_once():
    """The second request is in the first datagrams. Debian's client has no token that proves its address: the request waits."""
    with Folder() as folder:
        early = 'location = /early { return 200 "[$ssl_early_data] $ssl_session_reused"; }'
        for setting in ('on', 'off'):
            with served(folder, f'{early} ssl_early_data {setting};') as server:
                session = [f'--session-file={folder}/session-{setting}', f'--tp-file={folder}/parameters-{setting}']
                for wanted in (b'[] .', b'[] r'):
                    found, said = ngtcp2(server.port, folder, *session, targets=('/early',))
                    equal(found.get('early'), wanted, said[-2000:])


def test_early_requests_are_for_clients_that_hear_the_answer():
    """One that is not where it says could pass a rule by address; one that has a token is answered at once."""
    needs_aioquic()

    async def main(port):
        async with await h3wire.Connection.to(port) as connection:
            equal(await connection.content(connection.ask(h3wire.get('/small'))), b'small')
            await connection.until(lambda: connection.tickets)
            ticket, token = connection.tickets[0], connection.tokens[0]
        answers = []
        while b'1' not in answers:
            # On a busy machine the handshake's end may be there before the server looks at the request.
            assert len(answers) < 50, answers
            quick = h3wire.Connection.prepared(session_ticket=ticket, token=token)
            await quick.connect(port)
            answers.append(await quick.content(quick.ask(h3wire.get('/quick'))))
            await quick.until(lambda: quick.tickets and quick.tokens)
            ticket, token = quick.tickets[0], quick.tokens[0]
            quick.leave()
        assert ticket.max_early_data_size, 'no early data is offered'
        deaf = h3wire.Connection.prepared(session_ticket=ticket)
        deaf.quic.connect(('127.0.0.1', port), now=asyncio.get_running_loop().time())
        deaf.quic.send_stream_data(0, h3wire.headers(request('/small?early')), end_stream=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sent = [sending.sendto(data, ('127.0.0.1', port)) for data, _ in deaf.quic.datagrams_to_send(asyncio.get_running_loop().time())]
            assert sent
            # Datagrams are read one after the other.
            async with await h3wire.Connection.to(port) as connection:
                equal(await connection.content(connection.ask(h3wire.get('/small?after'))), b'small')
    with Folder() as folder, served(folder, '''access_log $dir/logs/all.log combined; ssl_early_data on;
            location = /quick { return 200 $ssl_early_data; }''') as server:
        asyncio.run(main(server.port))
        until('the last line', lambda: '/small?after' in (server.folder / 'logs/all.log').read_text())
        assert 'early' not in (server.folder / 'logs/all.log').read_text()


def test_handshakes_are_counted():
    """As those over TCP are: in full, resumed, and with early data."""
    for setting in ('on', 'off'):
        with Folder() as folder, served(folder, f'location = /metrics {{ prometheus all; }} ssl_early_data {setting};') as server:
            session = [f'--session-file={folder}/session', f'--tp-file={folder}/parameters']
            for _ in range(2):
                found, said = ngtcp2(server.port, folder, *session, targets=('/small',))
                equal(found.get('small'), b'small', said[-2000:])
            equal(handshakes(server), {'full': 1, 'resumed': 1, 'failed': 0, 'timeout': 0}, setting)
            ngtcp2(server.port, folder, '--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-CCM', targets=('/small',))
            until('the one that failed', lambda: handshakes(server)['failed'] == 1)


def handshakes(server):
    with urllib.request.urlopen(f'http://127.0.0.1:{server.port}/metrics') as answer:
        found = re.findall(r'^yorozu_tls_handshakes_total{outcome="(\w+)"} (\d+)$', answer.read().decode(), re.M)
    return {outcome: int(count) for outcome, count in found}


def test_clients_prove_their_addresses():
    """By Retry."""
    with Folder() as folder, served(folder, 'quic_retry on;') as server:
        found, said = ngtcp2(server.port, folder, targets=('/small',))
        equal((found.get('small'), 'type=Retry' in said), (b'small', True), said[-3000:])


def needs_aioquic():
    if h3wire.LACKS:
        pytest.skip(h3wire.LACKS)


def test_a_token_proves_an_address_once():
    needs_aioquic()
    with Folder() as folder, served(folder, 'quic_retry on;') as server:
        async def retries(token):
            async with await h3wire.Connection.to(server.port, token=token) as connection:
                equal(await connection.content(connection.ask(h3wire.get('/small'))), b'small')
                return connection.quic._retry_count, connection.tokens

        async def main():
            count, tokens = await retries(b'')
            equal((count, bool(tokens)), (1, True), 'the first time')
            equal((await retries(tokens[0]))[0], 0, 'with a token')
            equal((await retries(tokens[0]))[0], 1, 'with a token that was used')
            equal((await retries(tokens[0][:-1] + b'x'))[0], 1, 'with a token that is no one\'s')
        asyncio.run(main())


def test_a_spoilt_token_of_retry_is_refused():
    """At once: a client that was given one takes no second one (RFC 9000, section 8.1.2)."""
    needs_aioquic()
    with Folder() as folder, served(folder, 'quic_retry on;') as server:
        async def main():
            async with await h3wire.Connection.to(server.port) as connection:
                token = connection.quic._peer_token
            equal(bool(token), True)
            for spoilt in (token, token[:20] + bytes([token[20] ^ 1]) + token[21:], token[:-1] + bytes([token[-1] ^ 1])):
                # The first one is of another port.
                connection = h3wire.Connection.prepared(token=spoilt)
                await connection.connect(server.port)
                await connection.until(lambda: connection.closed, SECONDS)
                equal((connection.code, connection.quic._retry_count), (INVALID_TOKEN, 0), spoilt)
                connection.leave()
        asyncio.run(main())


def test_a_client_is_where_it_proved_to_be():
    """One that moves is at its new address when it has shown that it receives there, and not because it says so."""
    needs_aioquic()
    inside = 'location = /where { return 200 "$remote_addr $realip_remote_addr $connection_requests"; }'
    with Folder() as folder, served(folder, inside) as server:
        async def main():
            async with await h3wire.Connection.to(server.port) as connection:
                async def where():
                    return (await connection.content(connection.ask(h3wire.get('/where')))).decode()
                equal(await where(), '127.0.0.1 127.0.0.1 1')
                home = connection.transport
                # It sends from there, and hears what is said here alone.
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
                    far.bind(('127.0.0.20', 0))
                    send, home.sendto = home.sendto, lambda data: far.sendto(data, ('127.0.0.1', server.port))
                    connection.ask(h3wire.get('/where'))
                    stream = connection.ask(h3wire.get('/where'))
                    home.sendto = send
                    # The library gives the address up, and says the rest where the client was.
                    equal((await connection.content(stream)).decode(), '127.0.0.1 127.0.0.1 3')
                equal(await where(), '127.0.0.1 127.0.0.1 4')
                await asyncio.get_running_loop().create_datagram_endpoint(
                    lambda: connection, local_addr=('127.0.0.20', 0), remote_addr=('127.0.0.1', server.port))
                seen = []
                while '127.0.0.20' not in (seen or [''])[-1]:
                    seen.append(await where())
                    assert len(seen) < 900, seen[-1]
                equal(seen[-1], f'127.0.0.20 127.0.0.20 {4 + len(seen)}')
                home.close()
        asyncio.run(main())


def test_a_reload_keeps_connections():
    with Folder() as folder, served(folder, 'location = /slow { alias $dir/../www/page; limit_rate 1m; }') as server:
        with subprocess.Popen(['gtlsclient', '-q', '--exit-on-all-streams-close', f'--download={folder}', '127.0.0.1', str(server.port),
                               f'https://a.test:{server.port}/slow'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            until('the first bytes', lambda: (folder / 'slow').exists() and (folder / 'slow').stat().st_size)
            for _ in range(3):
                server.process.send_signal(1)
            client.wait(SECONDS)
        equal((folder / 'slow').read_bytes() == PAGE, True)


class Fetcher(h3wire.Connection if not h3wire.LACKS else object):
    """aioquic's HTTP/3: its encoder is ls-qpack, with a dynamic table."""

    @classmethod
    async def of(cls, port, **more):
        from aioquic.h3.connection import H3Connection
        connection = await cls.to(port, start=b'', **more)
        connection.http = H3Connection(connection.quic)
        connection.heads, connection.bodies, connection.whole = {}, {}, set()
        connection.flush()
        return connection

    def take(self):
        while (event := self.quic.next_event()) is not None:
            if hasattr(event, 'reason_phrase'):
                self.closed, self.code, self.reason = True, event.error_code, event.reason_phrase
            for found in self.http.handle_event(event) if hasattr(self, 'http') else ():
                if hasattr(found, 'headers'):
                    self.heads.setdefault(found.stream_id, []).append(found.headers)
                if hasattr(found, 'data'):
                    self.bodies[found.stream_id] = self.bodies.get(found.stream_id, b'') + found.data
                if getattr(found, 'stream_ended', False):
                    self.whole.add(found.stream_id)

    def begin(self, fields, body=None):
        stream = self.quic.get_next_available_stream_id()
        self.http.send_headers(stream, fields, end_stream=body is None)
        if body is not None:
            self.http.send_data(stream, body, end_stream=True)
        return stream

    async def fetched(self, stream):
        await self.until(lambda: stream in self.whole)
        assert stream in self.whole, f'{self.code} {self.reason}'
        return dict(self.heads[stream][0])[b':status'], self.bodies.get(stream, b'')


def with_aioquic(work, folder, inside='', **more):
    needs_aioquic()

    async def main(port):
        async with await Fetcher.of(port, **more) as connection:
            await work(connection)
    with served(folder, inside) as server:
        asyncio.run(main(server.port))
        assert 'panic' not in server.log(), server.log()[-2000:]


def fields_of(target, *more):
    return [(b':method', b'GET'), (b':scheme', b'https'), (b':authority', b'a.test'), (b':path', target.encode()), *more]


def test_fields_of_ls_qpack_arrive():
    """Many requests with fields that come again, so that entries are made, named, waited for and put out."""
    async def work(connection):
        chance = random.Random(7)
        streams = {}
        for at in range(600):
            agent, one, two, cookie = (f'{name}-{chance.randrange(most)}' + 'y' * chance.choice((0, 5, 200))
                                       for name, most in (('agent', 3), ('one', 10), ('two', 200), ('id', 5)))
            fields = fields_of(f'/fields?{at % 7}', (b'user-agent', agent.encode()), (b'x-one', one.encode()), (b'x-two', two.encode()),
                               (b'cookie', cookie.encode()))
            streams[connection.begin(fields)] = f'{agent}|{one}|{two}|{cookie}|{at % 7}'.encode()
            if at % chance.choice((1, 5, 30)) == 0:
                connection.flush()
                for stream in list(streams):
                    equal(await connection.fetched(stream), (b'200', streams.pop(stream)))
        connection.flush()
        for stream, wanted in streams.items():
            equal(await connection.fetched(stream), (b'200', wanted))
        # What the server's decoder says moved the encoder's mind.
        assert connection.http._encoder_bytes_sent > 1000, connection.http._encoder_bytes_sent
    with Folder() as folder:
        with_aioquic(work, folder, 'keepalive_requests 10000;')


def test_bodies_of_aioquic_come_and_go():
    async def work(connection):
        post = [(b':method', b'POST'), *fields_of('/echo')[1:]]
        posts = [connection.begin(post, PAGE[:500000]) for _ in range(4)]
        pages = [connection.begin(fields_of('/page')) for _ in range(4)]
        connection.flush()
        for stream in posts:
            equal(await connection.fetched(stream), (b'200', b'POST 500000'))
        for stream in pages:
            status, body = await connection.fetched(stream)
            equal((status, body == PAGE), (b'200', True))
    with Folder() as folder:
        with_aioquic(work, folder)


def test_client_certificates():
    """Each server judges by its own authorities, over QUIC as over TCP."""
    needs_aioquic()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    with Folder() as folder:
        for name, signer in (('authority', None), ('stranger', None), ('alice', 'authority'), ('eve', 'stranger')):
            certificate(folder, name, signer=signer)

        def shows(name):
            return dict(certificate=x509.load_pem_x509_certificate((folder / f'{name}.crt').read_bytes()),
                        private_key=load_pem_private_key((folder / f'{name}.key').read_bytes(), None)) if name else {}

        async def asked(host, name):
            async with await h3wire.Connection.to(server.port, name=host, **shows(name)) as connection:
                head, content = await connection.answer(connection.ask(h3wire.get('/', authority=host)))
                return int(head[b':status']), content
        say = 'location / { return 200 "$ssl_client_verify $ssl_client_s_dn"; }'
        conf = ''.join(f'server {{ listen 127.0.0.1:$port quic; server_name {name}.test; ssl_verify_client {verify};'
                       f' ssl_client_certificate {folder}/authority.crt; {say} ssl_certificate {folder}/quic.crt;'
                       f' ssl_certificate_key {folder}/quic.key; }}' for name, verify in (('on', 'on'), ('optional', 'optional')))
        with served(folder, say, conf) as server:
            for host, name, status, content in (
                    ('on.test', 'alice', 200, b'SUCCESS CN=alice'), ('on.test', None, 400, b'No required SSL certificate was sent'),
                    ('on.test', 'eve', 400, b'The SSL certificate error'), ('optional.test', None, 200, b'NONE '),
                    ('optional.test', 'alice', 200, b'SUCCESS CN=alice'), ('optional.test', 'eve', 400, b'The SSL certificate error'),
                    ('a.test', 'alice', 200, b'NONE ')):
                got = asyncio.run(asked(host, name))
                assert got[0] == status and content in got[1], (host, name, got)


def test_a_handshake_is_rejected():
    """`ssl_reject_handshake`: by the alert unrecognized_name, and for that name alone."""
    needs_aioquic()

    async def ended(name):
        async with await h3wire.Connection.to(server.port, name=name) as connection:
            return await connection.end(), connection.reason

    async def main():
        code, reason = await ended('other.test')
        equal(code, 0x100 + 112, reason)
        async with await h3wire.Connection.to(server.port, name='a.test') as connection:
            equal(await connection.content(connection.ask(h3wire.get('/small'))), b'small')
        code, reason = await ended('other.test')
        equal(code, 0x100 + 112, reason)
    with Folder() as folder:
        with served(folder, outside='server { listen 127.0.0.1:$port quic default_server; ssl_reject_handshake on; }') as server:
            asyncio.run(main())


def test_clients_prove_their_addresses_when_many_shake_hands():
    needs_aioquic()
    from attacks.http3 import initial

    async def retries():
        async with await h3wire.Connection.to(server.port) as connection:
            equal(await connection.content(connection.ask(h3wire.get('/small'))), b'small')
            return connection.quic._retry_count

    def fill():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.connect(('127.0.0.1', server.port))
            while 'clients have to prove their addresses for now' not in server.log():
                near.send(initial(server.port))
        before = server.resident_bytes()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.connect(('127.0.0.1', server.port))
            for _ in range(400):
                near.send(initial(server.port))
        # They are answered by a Retry, and nothing is kept of them.
        assert server.resident_bytes() - before < 8 << 20, server.resident_bytes() - before
    with Folder() as folder, served(folder, outside='client_header_timeout 15s;') as server:
        equal(asyncio.run(retries()), 0)
        fill()
        equal(asyncio.run(retries()), 1)
        # Those that began are over in the end.
        until('an end of the pressure', lambda: asyncio.run(retries()) == 0)


def test_handshakes_have_a_bound():
    """Clients that prove their addresses, and go no further: there is a number of them that is not exceeded, and that keeps
    others away until one of them is gone, but not from TCP."""
    needs_aioquic()
    bound = 1024

    class Half:
        """A client that does what it has to until it has proved its address. What comes then is not read."""

        def __init__(self, port):
            self.quic, self.near = h3wire.Connection.prepared().quic, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.near.connect(('127.0.0.1', port))
            self.near.settimeout(1)
            self.quic.connect(('127.0.0.1', port), now=time.monotonic())
            self.send()
            with contextlib.suppress(TimeoutError):
                self.quic.receive_datagram(self.near.recv(2048), ('127.0.0.1', port), now=time.monotonic())
            if self.quic._retry_count:
                self.send()

        def send(self):
            for data, _ in self.quic.datagrams_to_send(now=time.monotonic()):
                self.near.send(data)

        def gives_up(self):
            self.quic.close()
            self.send()

    def active(server):
        # Over one connection, which is counted, too: one that has just ended may still be.
        if server not in asking:
            asking[server] = http.client.HTTPConnection('127.0.0.1', server.port, timeout=60)
        asking[server].request('GET', '/status')
        return int(re.search(r'Active connections: (\d+)', asking[server].getresponse().read().decode())[1]) - 1

    def come(server, count):
        for _ in range(count):
            Half(server.port).near.close()

    async def small(server, before):
        """What a usual client gets, who asks again and again until there is room."""
        connection = h3wire.Connection.prepared()
        await connection.connect(server.port)
        has_begun = lambda: connection.quic._handshake_confirmed
        assert not await connection.until(has_begun, 1), 'one more handshake'
        before()
        assert await connection.until(has_begun, SECONDS)
        answer = await connection.content(connection.ask(h3wire.get('/small')))
        connection.close()
        return answer
    inside, asking = 'keepalive_timeout 1h; keepalive_requests 1000000; location = /status { stub_status; }', {}
    with Folder() as folder, served(folder, inside, 'client_header_timeout 600s;') as server:
        first = Half(server.port)
        come(server, bound - 1)
        # Some were not heard, on a busy machine, or have ended meanwhile.
        fill = lambda: until('all that may shake hands at once', lambda: active(server) == bound or come(server, bound - active(server)), 300)
        fill()
        before = server.resident_bytes()
        come(server, 300)
        assert active(server) <= bound, f'{active(server)} are there at once'
        grown = server.resident_bytes() - before
        assert grown < 4 << 20, f'{grown} bytes are kept of clients that are not answered'
        fill()
        equal(asyncio.run(small(server, first.gives_up)), b'small')


def test_a_download_goes_on_while_a_new_binary_takes_over():
    for key in ('', 'quic_host_key $dir/../host.key;'):
        with Folder() as folder:
            (folder / 'host.key').write_bytes(bytes(range(64)))
            slow = 'location = /slow { alias $dir/../www/page; limit_rate 512k; }'
            with served(folder, f'{slow} {key}') as server:
                begin = lambda: subprocess.Popen(
                    ['gtlsclient', '-q', '--exit-on-all-streams-close', f'--download={folder}', '127.0.0.1', str(server.port),
                     f'https://a.test:{server.port}/slow'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                with begin() as client:
                    until('the first bytes', lambda: (folder / 'slow').exists() and (folder / 'slow').stat().st_size)
                    os.kill(server.pid, signal.SIGUSR2)
                    until('another one', lambda: (server.folder / 'pid.oldbin').exists()
                          and server.log().count('start worker threads') == 2)
                    new = int((server.folder / 'pid').read_text())
                    try:
                        os.kill(server.pid, signal.SIGQUIT)
                        # New clients are the new one's meanwhile.
                        for _ in range(5):
                            equal(ngtcp2(server.port, folder, targets=('/small',))[0].get('small'), b'small')
                        assert client.poll() is None and server.process.poll() is None, 'the download was over too soon'
                        client.wait(SECONDS)
                        equal((folder / 'slow').read_bytes() == PAGE, True, key)
                        until('the end of the old one', lambda: server.process.poll() is not None)
                    finally:
                        os.kill(new, signal.SIGTERM)
                        until('the end of the new one', lambda: new not in in_group(server.pid))


def test_datagrams_are_as_large_as_the_route_takes():
    """The loopback device takes more than other networks. A probe that is lost ends the search for a connection."""
    found = []

    async def work(connection):
        largest, take = 0, connection.datagram_received

        def received(data, address):
            nonlocal largest
            largest = max(largest, len(data))
            take(data, address)
        connection.datagram_received = received
        for _ in range(100):
            stream = connection.begin(fields_of('/page'))
            connection.flush()
            equal((await connection.fetched(stream))[1] == PAGE, True)
            if largest > 4700:
                break
        found.append(largest)
    with Folder() as folder:
        while len(found) < 5 and max(found, default=0) <= 4700:
            with_aioquic(work, folder)
    equal(4700 < max(found) <= 4906, True, found)


class EchoOfTheHead(socketserver.StreamRequestHandler):
    """Answers once it has a request's head, and then what of the content came."""

    def handle(self):
        length = 0
        while (line := self.rfile.readline()) not in (b'\r\n', b''):
            name, _, value = line.partition(b':')
            length = int(value) if name.lower() == b'content-length' else length
        self.server.begun.set()
        content = self.rfile.read(length)
        self.wfile.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n' % len(content) + content)


def test_an_upstream_is_asked_before_the_body_is_there():
    """Without request buffering, over HTTP/2 and HTTP/3."""
    needs_aioquic()
    fields = [*request('/live', 'POST'), ('content-length', '6')]

    async def arrives(begun):
        assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, SECONDS), 'the upstream heard nothing'
        begun.clear()

    async def main(port, begun):
        async with await h2wire.Connection.to(port) as connection:
            connection.send(h2wire.headers(1, fields, end=False), h2wire.frame(h2wire.DATA, 0, 1, b'abc'))
            await arrives(begun)
            connection.send(h2wire.frame(h2wire.DATA, h2wire.END_STREAM, 1, b'def'))
            equal(await connection.answer(1), b'abcdef')
        async with await h3wire.Connection.to(port) as connection:
            stream = connection.ask(h3wire.headers(fields) + h3wire.frame(h3wire.DATA, b'abc'), end=False)
            await arrives(begun)
            connection.send(stream, h3wire.frame(h3wire.DATA, b'def'), end=True)
            equal(await connection.content(stream), b'abcdef')
    with socketserver.ThreadingTCPServer(('127.0.0.1', 0), EchoOfTheHead) as upstream:
        upstream.daemon_threads, upstream.begun = True, threading.Event()
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        address = f'127.0.0.1:{upstream.server_address[1]}'
        with Folder() as folder, served(folder, f'''http2 on;
                location = /live {{ proxy_pass http://{address}; proxy_http_version 1.1; proxy_request_buffering off; }}''') as server:
            asyncio.run(main(server.port, upstream.begun))
        upstream.shutdown()


def test_content_of_another_length_and_content_that_is_late_end_one_stream():
    """A malformed request gets 400, one that took too long is reset with PROTOCOL_ERROR."""
    needs_aioquic()
    fields = [*request('/take', 'POST'), ('content-length', '6')]

    async def over_http2(port):
        async with await h2wire.Connection.to(port) as connection:
            for stream, content in ((1, b'abc'), (3, b'abcdefghi'), (5, b'')):
                data = [h2wire.frame(h2wire.DATA, h2wire.END_STREAM, stream, content)] if content else []
                connection.send(h2wire.headers(stream, fields, end=not content), *data)
                await connection.until(lambda: stream in connection.resets)
                equal((b'400 Bad Request' in connection.contents[stream], connection.resets[stream]), (True, 1), content)
            connection.send(h2wire.headers(7, fields, end=False), h2wire.frame(h2wire.DATA, 0, 7, b'abc'))
            await connection.until(lambda: 7 in connection.resets)
            equal(connection.resets[7], 1, 'too slow')
            connection.send(h2wire.headers(9, fields, end=False), h2wire.frame(h2wire.DATA, h2wire.END_STREAM, 9, b'abcdef'))
            equal(await connection.answer(9), b'abcdef')

    async def over_http3(port):
        async with await h3wire.Connection.to(port) as connection:
            for content in (b'abc', b'abcdefghi', b''):
                stream = connection.ask(h3wire.headers(fields) + (h3wire.frame(h3wire.DATA, content) if content else b''))
                equal(b'400 Bad Request' in await connection.content(stream), True, content)
            stream = connection.ask(h3wire.headers(fields) + h3wire.frame(h3wire.DATA, b'abcdef'))
            equal(await connection.content(stream), b'abcdef')
    with socketserver.ThreadingTCPServer(('127.0.0.1', 0), EchoOfTheHead) as upstream:
        upstream.daemon_threads, upstream.begun = True, threading.Event()
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        address = f'127.0.0.1:{upstream.server_address[1]}'
        with Folder() as folder, served(folder, f'http2 on; client_body_timeout 1s; location = /take {{ proxy_pass http://{address}; }}') as server:
            asyncio.run(over_http2(server.port))
            asyncio.run(over_http3(server.port))
        upstream.shutdown()


class Hinting(socketserver.StreamRequestHandler):
    """Sends early hints, and the answer once the client has them."""

    def handle(self):
        while self.rfile.readline() not in (b'\r\n', b''):
            pass
        self.wfile.write(b'HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n')
        assert self.server.seen.wait(SECONDS), 'the client has no hints'
        self.wfile.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok')


def test_early_hints_come_before_the_answer():
    async def work(connection):
        stream = connection.begin(fields_of('/'))
        connection.flush()
        await connection.until(lambda: stream in connection.heads)
        equal([dict(head)[b':status'] for head in connection.heads[stream]], [b'103'])
        equal(dict(connection.heads[stream][0])[b'link'], b'</a.css>')
        upstream.seen.set()
        await connection.until(lambda: stream in connection.whole)
        equal([dict(head)[b':status'] for head in connection.heads[stream]], [b'103', b'200'])
        equal(connection.bodies[stream], b'ok')
    with socketserver.ThreadingTCPServer(('127.0.0.1', 0), Hinting) as upstream, Folder() as folder:
        upstream.daemon_threads, upstream.seen = True, threading.Event()
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        with_aioquic(work, folder, f"""early_hints 1; proxy_http_version 1.1;
            location = / {{ proxy_pass http://127.0.0.1:{upstream.server_address[1]}; }}""")
        upstream.shutdown()


def test_what_is_said_of_configurations_is_as_nginx_says_it():
    with Folder() as folder:
        (folder / 'logs').mkdir()
        (folder / 'key').write_bytes(bytes(32))
        (folder / 'empty').touch()
        certificate(folder, 'quic')
        ours = f'ssl_certificate {folder}/quic.crt; ssl_certificate_key {folder}/quic.key;'
        listen = lambda word: f'listen 127.0.0.1:1 quic {word}; {ours}'
        cases = [(listen(word), f'"listen" directive "{word.partition("=")[0]}" parameter is incompatible with "quic"')
                 for word in ('ssl', 'http2', 'proxy_protocol', 'so_keepalive=on', 'deferred', 'backlog=9', 'fastopen=9')]
        cases += [(listen('reuseport'), ''), (f'{listen("")} quic_host_key {folder}/key;', ''),
                  ('listen 127.0.0.1:1 quic;', 'no "ssl_certificate" is defined for the "listen ... quic" directive'),
                  (f'{listen("")} quic_host_key {folder}/none;', f'open() "{folder}/none" failed (2: No such file or directory)'),
                  (f'{listen("")} quic_host_key {folder}/empty;', f'"{folder}/empty" zero key size'),
                  (f'{listen("")} quic_host_key {folder}/key; quic_host_key {folder}/key;', '"quic_host_key" directive is duplicate')]
        for inside, wanted in cases:
            (folder / 'conf').write_text(f'events {{}} http {{ server {{ {inside} }} }}')
            done = subprocess.run([YOROZU, '-t', '-p', folder, '-c', folder / 'conf'], capture_output=True, text=True)
            equal(done.returncode, 1 if wanted else 0, f'{inside}: {done.stderr}')
            assert wanted in done.stderr, (inside, done.stderr)


def test_a_browser_loads_a_page():
    """Chromium, told that the server speaks HTTP/3: a page and 100 things on it, each over HTTP/3."""
    with Folder() as folder:
        with served(folder, 'default_type text/html;') as server:
            (folder / 'www/index.html').write_text('<title>here</title><body>' + ''.join(
                f'<script src="/script.js?{at}"></script>' for at in range(100)) + '<img src="/page">')
            (folder / 'www/script.js').write_text('window.count = (window.count || 0) + 1;')
            key = subprocess.run(f'openssl x509 -in {folder}/quic.crt -pubkey -noout | openssl pkey -pubin -outform der',
                                 shell=True, check=True, capture_output=True).stdout
            trusted = base64.b64encode(hashlib.sha256(key).digest()).decode()
            browser = Browser(f'--origin-to-force-quic-on=a.test:{server.port}', '--host-resolver-rules=MAP a.test 127.0.0.1',
                              f'--ignore-certificate-errors-spki-list={trusted}')
            try:
                browser.open(f'https://a.test:{server.port}/index.html')
                equal(browser.run('return window.count'), 100)
                spoken = browser.run('return performance.getEntries().filter(e => e.nextHopProtocol !== undefined).map(e => e.nextHopProtocol)')
                equal(set(spoken), {'h3'})
                # And an icon, perhaps.
                assert len(spoken) in (102, 103), spoken
                text = browser.run('''return (async () => (await fetch('/echo', {method: 'POST', body: 'x'.repeat(300000)})).text())()''')
                equal(text, 'POST 300000')
            finally:
                browser.close()
