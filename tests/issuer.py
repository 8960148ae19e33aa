"""Issuers of certificates: pebble, which is Let's Encrypt's own test server, with the name server that it asks; and one that says what a
test wants, believes every signature, and looks at no name.

A recent pebble comes by Go's own client into target/tools, where there is one; else Debian's package is used, which knows
neither the times of renewal nor profiles: the tests of these are ignored then.
"""
import base64, functools, http.client, http.server, json, os, re, shutil, socket, socketserver, ssl, struct, subprocess, threading, time
import pytest
from peers import ROOT, Process, free_port, listens

TOOLS = ROOT / 'target/tools'
PACKAGE = 'github.com/letsencrypt/pebble/v2/cmd/pebble@v2.10.1'


def pebble():
    """The program, and whether it is a recent one."""
    made = TOOLS / 'pebble'
    if not made.exists() and shutil.which('go'):
        TOOLS.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        subprocess.run(['go', 'install', PACKAGE], env=os.environ | {'GOBIN': str(TOOLS)}, capture_output=True,
                       timeout=600)
        print(f'pebble was built, as there was none in {TOOLS}: {time.monotonic() - begun:.0f} s', flush=True)
    return (str(made), True) if made.exists() else (shutil.which('pebble') or 'pebble', False)


PEBBLE, IS_RECENT = pebble()


def needs_recent(what):
    if not IS_RECENT:
        pytest.skip(f'the pebble that is there knows no {what}, and Go does not get another one')


def lives(seconds):
    """An issuer's certificates of such a life."""
    return {'validity': seconds, 'profiles': {'default': {'description': 'usual', 'validityPeriod': seconds}}}


class Names:
    """A name server: every name is here, but for those that are said to be elsewhere. It answers unless it is closed."""

    def __init__(self):
        self.elsewhere, self.is_open = {}, threading.Event()
        self.is_open.set()
        # pebble asks over TCP, an old one over UDP.
        self.port = free_port()
        for kind in (socketserver.ThreadingTCPServer, socketserver.ThreadingUDPServer):
            server = kind(('127.0.0.1', self.port), self.handler(), bind_and_activate=False)
            server.allow_reuse_address = server.daemon_threads = True
            server.server_bind()
            server.server_activate()
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def handler(names):
        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                if isinstance(self.request, tuple):
                    question, udp = self.request
                    udp.sendto(names.answer(question), self.client_address)
                    return
                with self.request.makefile('rwb') as stream:
                    while length := stream.read(2):
                        answer = names.answer(stream.read(*struct.unpack('>H', length)))
                        stream.write(struct.pack('>H', len(answer)) + answer)
                        stream.flush()
        return Handler

    def answer(self, question):
        self.is_open.wait()
        at, labels = 12, []
        while question[at]:
            labels.append(question[at + 1:at + 1 + question[at]].decode())
            at += 1 + question[at]
        kind = struct.unpack('>H', question[at + 1:at + 3])[0]
        address = self.elsewhere.get('.'.join(labels).lower(), '127.0.0.1')
        answer = b''
        if kind == 1:
            answer = b'\xc0\x0c' + struct.pack('>HHIH', 1, 1, 0, 4) + socket.inet_aton(address)
        head = question[:2] + struct.pack('>HHHHH', 0x8180, 1, bool(answer), 0, 0)
        return head + question[12:at + 5] + answer


class Issuer(Process):
    """pebble."""

    def __init__(self, folder, http_port, tls_port=0, names=None, reject=0, validity=3600, port=None, wait=True, env=(), **more):
        self.folder = folder / f'pebble-{free_port()}'
        self.folder.mkdir()
        self.names = names or Names()
        self.port, self.management = port or free_port(), free_port()
        self.certificate = folder / 'ca.crt'
        if not self.certificate.exists():
            subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                            '-keyout', folder / 'ca.key', '-subj', '/CN=localhost', '-days', '30',
                            '-addext', 'subjectAltName=DNS:localhost', '-out', self.certificate], check=True, capture_output=True)
        conf = {'listenAddress': f'127.0.0.1:{self.port}', 'managementListenAddress': f'127.0.0.1:{self.management}',
                'certificate': str(self.certificate), 'privateKey': str(folder / 'ca.key'),
                'httpPort': http_port, 'tlsPort': tls_port or free_port(), 'ocspResponderURL': '',
                'certificateValidityPeriod': validity, 'keyAlgorithm': 'ecdsa', 'retryAfter': {'authz': 1, 'order': 1},
                'profiles': {'default': {'description': 'usual', 'validityPeriod': validity},
                             'short': {'description': 'short', 'validityPeriod': 7200}}} | more
        (self.folder / 'conf.json').write_text(json.dumps({'pebble': conf}))
        env = os.environ | {'PEBBLE_VA_NOSLEEP': '1', 'PEBBLE_WFE_NONCEREJECT': str(reject), 'PEBBLE_AUTHZREUSE': '0'} | dict(env)
        super().__init__([PEBBLE, '-config', self.folder / 'conf.json', '-strict',
                          '-dnsserver', f'127.0.0.1:{self.names.port}'], self.folder / 'out', env=env)
        if wait:
            self.wait_for(lambda: listens(self.port) and listens(self.management))

    def block(self, *lines, name='ca', terms='accept_terms_of_service;', state='state_path $dir/state;'):
        return (f'acme_issuer {name} {{ uri https://localhost:{self.port}/dir; ssl_trusted_certificate {self.certificate};'
                f' {terms} {state} {" ".join(lines)} }}')

    def manage(self, method, path, content=None):
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection('127.0.0.1', self.management, context=context, timeout=60)
        connection.request(method, path, content, {'User-Agent': 'tests'})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, f'{path}: {answer.status} {text}'
        return text

    def wants_renewed(self, pem):
        """Says that a certificate is to be renewed at once, to who asks."""
        when = lambda seconds: time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time.time() + seconds))
        window = {'suggestedWindow': {'start': when(-120), 'end': when(-60)}, 'explanationURL': 'http://a.example/'}
        self.manage('POST', '/set-renewal-info/', json.dumps({'Certificate': pem, 'ARIResponse': json.dumps(window)}))

    def root(self):
        path = self.folder / 'root.pem'
        path.write_text(self.manage('GET', '/roots/0'))
        return path

    def issued(self):
        """How many certificates it made."""
        return self.out.read_text().count('Issued certificate serial')

    def accounts(self):
        return len(re.findall(r'There are now \d+ accounts in memory', self.out.read_text()))


@functools.cache
def context_of(root):
    """What a client verifies by; each costs more than a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if root:
        context.load_verify_locations(cadata=root)
        context.check_hostname, context.verify_mode = True, ssl.CERT_REQUIRED
    return context


def shown(port, name, root=None):
    """The certificate that a client sees, in PEM; with `root` only a valid one."""
    context = context_of(root.read_text() if root else None)
    with socket.create_connection(('127.0.0.1', port), timeout=60) as plain:
        with context.wrap_socket(plain, server_hostname=name) as connection:
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(True))


def is_issued(port, name, root):
    try:
        return shown(port, name, root)
    except (ssl.SSLError, OSError):
        return None


# --- a scripted one ----------------------------------------------------------------------------------------

PROBLEM = 'urn:ietf:params:acme:error:'


def problem(kind, status=403, detail='because', **fields):
    """A refusal (RFC 8555, section 6.7); `fields` with `_` for `-` are the answer's."""
    named = {name.replace('_', '-'): value for name, value in fields.items()}
    return status, {'Content-Type': 'application/problem+json'} | named, {'type': PROBLEM + kind, 'detail': detail, 'status': status}


class ScriptedIssuer:
    """`answers` has, by path, what is answered: a status, fields, and content; or a function that is given the request's
    content and makes that. One that returns nothing has the connection closed."""

    def __init__(self):
        self.answers, self.asked, self.held = {}, [], threading.Event()
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def log_message(self, *_):
                pass

            def do_GET(self):
                issuer.answer(self)

            do_HEAD = do_POST = do_GET
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.uri = f'http://127.0.0.1:{self.port}'
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.held.set()
        self.server.shutdown()
        self.server.server_close()

    def block(self, *lines, name='ca'):
        return (f'acme_issuer {name} {{ uri {self.uri}/dir; accept_terms_of_service; state_path $dir/{name};'
                f' {" ".join(lines)} }}')

    def count(self, path):
        return self.asked.count(path)

    def hold(self, _):
        """An answer that does not come as long as the issuer is there."""
        self.held.wait()

    def usual(self, path):
        url = self.uri
        if path == '/dir':
            names = {'newNonce': 'nonce', 'newAccount': 'account', 'newOrder': 'order', 'revokeCert': 'revoke', 'keyChange': 'change'}
            return 200, {}, {name: f'{url}/{place}' for name, place in names.items()} | {'meta': {}}
        if path == '/account':
            return 201, {'Location': f'{url}/account/1'}, {'status': 'valid'}
        return (200, {}, {}) if path == '/nonce' else problem('malformed', 404)

    def order(self, status, **more):
        """An order's answer, of a name that was seen already."""
        content = {'status': status, 'identifiers': [{'type': 'dns', 'value': 'a.example'}], 'authorizations': [],
                   'finalize': f'{self.uri}/finalize'} | more
        return 201, {'Location': f'{self.uri}/order/1'}, content

    def answer(self, request):
        length = int(request.headers.get('Content-Length', 0))
        content = json.loads(request.rfile.read(length)) if length else {}
        payload = content.get('payload', '')
        content = json.loads(base64.urlsafe_b64decode(payload + '==') or b'null')
        self.asked.append(request.path)
        answer = self.answers.get(request.path) or self.usual(request.path)
        answer = answer(content) if callable(answer) else answer
        if answer is None:
            request.close_connection = True
            return
        status, fields, content = answer
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        request.send_response(status)
        for name, value in {'Replay-Nonce': f'n{len(self.asked)}', 'Content-Length': str(len(content))}.items() | fields.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(b'' if request.command == 'HEAD' else content)
