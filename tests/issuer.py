"""An issuer of certificates that says what a test wants: it believes every signature, and looks at no name."""
import base64, http.server, json, threading

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
