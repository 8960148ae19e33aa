"""Each client, and each CDN, load balancer or reverse proxy in front of the server, has the hit rate of a plain client.

The headers that an origin gets over plain http are in `setups`: those of browsers, crawlers and monitors (`clients.json`), those that
intermediaries add which terminate TLS (`intermediaries.json`), and those that select another variant of a page (`variants.json`).
Placeholders in braces are filled in: `{host}`, `{path}` and `{address}` are the request's own, all others vary from one request to the
next. Then real proxies, each with the configuration that its documentation recommends.
"""
import collections, contextlib, http.client, http.server, itertools, json, os, pathlib, random, re, shutil, socket, ssl, threading, uuid
import pytest
from openssl import certificate
from peers import FASTCGI, NGINX, ROOT, SECONDS, YOROZU, Apache, Folder, Fpm, Process, Server, equal, free_port, listens, until

HOST = 'site.example'
CLIENTS, INTERMEDIARIES, VARIANTS = (json.loads((ROOT / f'tests/setups/{name}.json').read_text())
                                     for name in ('clients', 'intermediaries', 'variants'))
# Outermost first.
CHAINS = [('Cloudflare', 'AWS ALB', 'ingress-nginx'), ('Cloudflare', 'Traefik'), ('Cloudflare', 'nginx'), ('Akamai', 'HAProxy'),
          ('Cloudflare', 'Varnish behind a TLS terminator'), ('CloudFront with all viewer headers', 'AWS ALB'), ('Bunny', 'Caddy'),
          ('Fastly', 'Google Cloud load balancer', 'Istio'), ('Azure Front Door', 'Azure App Service'), ('Sucuri', 'Apache'),
          ('Azure Application Gateway', 'ingress-nginx')]
COUNTRIES, CITIES = ('DE', 'US', 'FR', 'BR', 'JP'), ('Frankfurt', 'New York', 'Paris', 'Sao Paulo', 'Tokyo')
TOKEN = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-'
PLACEHOLDER = re.compile(r'\{(\w+)(?::([^}]*))?\}')
CONSTANT = ('host', 'path', 'address')
HAPROXY_TCP = f'''
defaults
    mode tcp
    timeout connect {SECONDS}s
    timeout client {SECONDS}s
    timeout server {SECONDS}s'''
PAGE_KEY = '"$scheme$request_method$host$request_uri"'


class Traffic:
    """Requests of the set-ups to a server, with values that vary as they do in production."""

    def __init__(self, port):
        self.port, self.drawn = port, random.Random(1)

    def value(self, kind, detail, turn, path):
        draw = lambda letters: self.drawn.choice(letters[1:]) + ''.join(self.drawn.choices(letters, k=int(detail) - 1))
        in_turn = lambda values: values[turn % len(values)]
        return {'host': lambda: HOST, 'path': lambda: path, 'address': lambda: f'127.0.0.1:{self.port}',
                'ipv4': lambda: f'203.0.113.{self.drawn.randrange(1, 255)}', 'ipv6': lambda: f'2001:db8::{self.drawn.getrandbits(64):x}',
                'uuid': lambda: str(uuid.UUID(int=self.drawn.getrandbits(128), version=4)), 'digits': lambda: draw('0123456789'),
                'hex': lambda: draw('0123456789abcdef'), 'token': lambda: draw(TOKEN), 'one': lambda: in_turn(detail.split('|')),
                'country': lambda: in_turn(COUNTRIES), 'city': lambda: in_turn(CITIES)}[kind]()

    def headers(self, setup, turn, path):
        """Those of the set-up's request number `turn`; the table has a list where a header is sent more than once."""
        fill = lambda text: PLACEHOLDER.sub(lambda found: self.value(*found.groups(), turn, path), text)
        lines = [(name, fill(value)) for name, values in setup.items() for value in ([values] if isinstance(values, str) else values)]
        return lines if 'Host' in setup else [('Host', HOST), *lines]

    def ask(self, setup, turn, path):
        return answer(http.client.HTTPConnection('127.0.0.1', self.port, timeout=SECONDS), path, self.headers(setup, turn, path))

    def ask_often(self, setup, path, times=5):
        return [self.ask(setup, turn, path) for turn in range(times)]


def answer(connection, path, headers):
    with contextlib.closing(connection):
        connection.putrequest('GET', path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        got = connection.getresponse()
        got.content = got.read()
        # Some crawlers ask for the first half megabyte.
        assert got.status in (200, 206) or (got.status, path) == (301, '/old'), (got.status, path, headers)
        return got


def through(client, *intermediaries):
    """The headers of a client behind some intermediaries: each replaces those that it sets itself."""
    found = client
    for setup in intermediaries:
        names = {name.lower() for name in setup}
        found = {name: value for name, value in found.items() if name.lower() not in names} | setup
    return found


class Origin(http.server.ThreadingHTTPServer):
    """Answers with the path, and counts the requests for each."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.asked, self.daemon_threads = collections.Counter(), True

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def requests(self, path):
        return self.asked[path]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked[self.path] += 1
        page = f'page {self.path}'.encode()
        self.send_response(200)
        self.send_header('Content-Type', 'text/html')
        self.send_header('Content-Length', str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


class Php:
    """The same with PHP-FPM."""
    SCRIPT = '''<?php
        file_put_contents(__DIR__ . '/asked', $_SERVER['REQUEST_URI'] . "\\n", FILE_APPEND | LOCK_EX);
        echo 'page ', $_SERVER['REQUEST_URI'];'''

    def __init__(self, folder):
        self.www, self.fpm = folder / 'www', Fpm(folder)
        self.www.mkdir()
        self.www.chmod(0o777)
        (self.www / 'index.php').write_text(self.SCRIPT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.fpm.stop()

    def requests(self, path):
        asked = self.www / 'asked'
        return asked.read_text().splitlines().count(path) if asked.exists() else 0


@contextlib.contextmanager
def cached(kind='proxy', lock='on', trust=''):
    """A page cache in front of an origin. It trusts no proxy without `trust`: there is no `set_real_ip_from`."""
    with Folder() as folder, (Php(folder) if kind == 'fastcgi' else Origin()) as origin:
        upstream = f'{FASTCGI} {folder}/www/index.php; fastcgi_pass unix:{origin.fpm.socket};' if kind == 'fastcgi' else \
            f'proxy_pass http://127.0.0.1:{origin.server_port}; proxy_set_header Host $host;'
        conf = f'''{trust} {kind}_cache_path $dir/cache levels=1:2 keys_zone=z:1m;
            server {{ listen 127.0.0.1:$port;
              location = /who {{ return 200 "$remote_addr $scheme $https"; }} location = /old {{ return 301 /new; }}
              location / {{ {upstream} {kind}_cache z; {kind}_cache_key {PAGE_KEY};
                {kind}_cache_valid 200 10m; {kind}_cache_lock {lock};
                add_header X-Cache $upstream_cache_status; add_header X-Detail $cache_detail; }} }}'''
        with Server(folder, conf) as server:
            yield Traffic(server.port), origin
            assert 'panic' not in server.log(), server.log()


def states(answers):
    return [got.headers['X-Cache'] for got in answers]


def hits(answers):
    """The first one's state, and how many were hits after it."""
    first, *others = states(answers)
    return first, collections.Counter(others)['HIT']


def behind(setup):
    return through(CLIENTS['Chrome on Windows'], setup)


def own_host(setup):
    return {name: value for name, value in setup.items() if name == 'Host'}


class Faults:
    """Reports every set-up that went wrong, not only the first."""

    def __init__(self):
        self.found = []

    def equal(self, name, answers, got, wanted):
        if got != wanted:
            self.found.append(f'{name}: got {got}, wanted {wanted}; {answers[-1].headers["X-Detail"]}')

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if not failure:
            if self.found:
                pytest.fail(f'{len(self.found)} set-ups:\n' + '\n'.join(self.found), pytrace=False)


def test_placeholders_vary_from_request_to_request():
    traffic, constant = Traffic(1), []
    for name, setup in [*CLIENTS.items(), *INTERMEDIARIES.items(), *VARIANTS.items()]:
        requests = [traffic.headers(setup, turn, '/') for turn in range(5)]
        varying = [header for header, values in setup.items()
                   if any(kind not in CONSTANT for kind, _ in PLACEHOLDER.findall(str(values)))]
        constant += [(name, header) for header in varying
                     if len({tuple(value for found, value in request if found == header) for request in requests}) < 2]
        if varying:
            equal(len(set(map(str, requests))), 5, name)
    equal(constant, [])


# --- recorded set-ups --------------------------------------------------------------------------------------

@pytest.mark.parametrize('kind', ['proxy', 'fastcgi'])
def test_each_client_has_the_hit_rate_of_a_plain_client(kind):
    with cached(kind) as (traffic, origin), Faults() as faults:
        for number, (name, client) in enumerate(CLIENTS.items()):
            path = f'/client-{number}'
            answers = traffic.ask_often(client, path)
            plain = traffic.ask(own_host(client), 0, path)
            faults.equal(name, answers, (*states([*answers, plain]), origin.requests(path)), ('MISS', *['HIT'] * 5, 1))


@pytest.mark.parametrize('kind', ['proxy', 'fastcgi'])
def test_behind_each_intermediary_the_origin_is_asked_once(kind):
    with cached(kind) as (traffic, origin), Faults() as faults:
        for number, (name, setup) in enumerate(INTERMEDIARIES.items()):
            path = f'/behind-{number}'
            answers = traffic.ask_often(behind(setup), path)
            faults.equal(name, answers, (*hits(answers), origin.requests(path)), ('MISS', 4, 1))


@pytest.mark.parametrize('kind', ['proxy', 'fastcgi'])
def test_intermediaries_cost_plain_clients_no_hits(kind):
    """A page that was asked for over https may have an address of its own."""
    with cached(kind) as (traffic, origin), Faults() as faults:
        for number, (name, setup) in enumerate(INTERMEDIARIES.items()):
            path = f'/mixed-{number}'
            answers = [traffic.ask(behind(setup) if turn % 2 else {}, turn, path) for turn in range(8)]
            first, second, *others = states(answers)
            pages = {got.content.decode() for got in answers}
            faults.equal(name, answers, (first, second in ('MISS', 'HIT'), {*others}, origin.requests(path) <= 2, pages),
                         ('MISS', True, {'HIT'}, True, {f'page {path}'}))


def test_all_clients_of_an_intermediary_share_its_pages():
    setups = {name: [setup] for name, setup in INTERMEDIARIES.items()}
    setups |= {', '.join(chain): [INTERMEDIARIES[name] for name in chain] for chain in CHAINS}
    clients = [client for client in CLIENTS.values() if not {'Host', 'Range'} & {*client}]
    with cached() as (traffic, origin), Faults() as faults:
        for number, (name, chain) in enumerate(setups.items()):
            path = f'/shared-{number}'
            answers = [traffic.ask(through(client, *chain), turn, path) for turn, client in enumerate(clients)]
            faults.equal(name, answers, (*hits(answers), origin.requests(path)), ('MISS', len(clients) - 1, 1))


def test_a_variant_is_stored_from_its_second_request_on():
    with cached() as (traffic, origin), Faults() as faults:
        for number, (name, setup) in enumerate(VARIANTS.items()):
            path = f'/variant-{number}'
            answers = traffic.ask_often(setup, path)
            plain = traffic.ask_often(own_host(setup), path, 2)
            first, _, *others = states(answers)
            faults.equal(name, answers, (first, *others, *states(plain), origin.requests(path)),
                         ('MISS', 'HIT', 'HIT', 'HIT', 'MISS', 'HIT', 3))


def test_an_unknown_header_costs_no_hits():
    """The page is made without it; where requests do not wait for one another, beside the client's own response."""
    setup = behind({'X-Forwarded-Proto': 'https', 'X-Acme-Edge-Decision': '{hex:8}'})
    with cached() as (traffic, origin):
        answers = traffic.ask_often(setup, '/')
        equal((*hits(answers), origin.requests('/')), ('MISS', 4, 1))
    with cached(lock='off') as (traffic, origin):
        turns, seen = itertools.count(), []

        def state():
            seen.append(traffic.ask(setup, next(turns), '/').headers['X-Cache'])
            return seen[-1]
        equal(state(), 'MISS')
        until('the page', lambda: state() == 'HIT')
        equal([state() for _ in range(5)], ['HIT'] * 5)
        assert origin.requests('/') <= 2 * seen.count('MISS'), (origin.requests('/'), seen)


# --- real proxies ------------------------------------------------------------------------------------------

def need(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f'{program} is not there')


def started(folder, command, port, **more):
    return Process(command, folder / f'{pathlib.Path(command[0]).name}.out', **more).wait_for(lambda: listens(port))


def haproxy(folder, port, to):
    """https://www.haproxy.com/documentation/haproxy-configuration-tutorials/ssl-tls/"""
    need('haproxy')
    (folder / 'haproxy.cfg').write_text(f'''
global
    log stderr local0
defaults
    mode http
    option forwardfor
    timeout connect {SECONDS}s
    timeout client {SECONDS}s
    timeout server {SECONDS}s
frontend www
    bind 127.0.0.1:{port} ssl crt {folder}/site.pem alpn h2,http/1.1
    http-request set-header X-Forwarded-Proto https
    default_backend servers
backend servers
    server yorozu 127.0.0.1:{to}
''')
    return started(folder, ['haproxy', '-db', '-f', folder / 'haproxy.cfg'], port)


def varnish(folder, port, to):
    """https://www.varnish-software.com/developers/tutorials/terminate-tls-varnish-haproxy/, with pages that Varnish does not keep."""
    need('haproxy', 'varnishd')
    between = free_port()
    (folder / 'default.vcl').write_text(f'''vcl 4.1;
import proxy;
backend default {{ .host = "127.0.0.1"; .port = "{to}"; }}
sub vcl_recv {{
    unset req.http.X-Forwarded-Proto;
    set req.http.X-Forwarded-Proto = "http";
    if (proxy.is_ssl()) {{ set req.http.X-Forwarded-Proto = "https"; }}
    return (pass);
}}
''')
    (folder / 'haproxy.cfg').write_text(f'''
{HAPROXY_TCP}
frontend https
    bind 127.0.0.1:{port} ssl crt {folder}/site.pem
    default_backend varnish
backend varnish
    server varnish 127.0.0.1:{between} send-proxy-v2-ssl
''')
    stack = contextlib.ExitStack()
    stack.enter_context(started(folder, ['varnishd', '-F', '-j', 'none', '-n', folder / 'varnish', '-f', folder / 'default.vcl',
                                         '-a', f'127.0.0.1:{between},PROXY', '-s', 'malloc,16m'], between))
    stack.enter_context(started(folder, ['haproxy', '-db', '-f', folder / 'haproxy.cfg'], port))
    return stack


def caddy(folder, port, to):
    """https://caddyserver.com/docs/quick-starts/reverse-proxy"""
    need('caddy')
    (folder / 'Caddyfile').write_text(f'''
{{
    admin off
    auto_https disable_redirects
}}
https://{HOST}:{port} {{
    bind 127.0.0.1
    tls {folder}/site.crt {folder}/site.key
    reverse_proxy 127.0.0.1:{to}
}}
''')
    # Otherwise it writes to the user's home.
    env = {**os.environ, 'XDG_CONFIG_HOME': str(folder), 'XDG_DATA_HOME': str(folder)}
    return started(folder, ['caddy', 'run', '--adapter', 'caddyfile', '--config', folder / 'Caddyfile'], port, env=env)


def apache(folder, port, to):
    """https://httpd.apache.org/docs/2.4/howto/reverse_proxy.html"""
    need('/usr/sbin/apache2')
    modules = '/usr/lib/apache2/modules/mod_'
    named = ('mpm_event', 'authz_core', 'ssl', 'proxy', 'proxy_http', 'headers', 'socache_shmcb')
    load = '\n'.join(f'LoadModule {name}_module {modules}{name}.so' for name in named)
    (folder / 'apache.conf').write_text(f'''
ServerRoot {folder}
ServerName {HOST}
PidFile {folder}/apache.pid
Listen 127.0.0.1:{port}
ErrorLog {folder}/apache.log
DefaultRuntimeDir {folder}
Mutex file:{folder}
{load}
<VirtualHost 127.0.0.1:{port}>
    SSLEngine on
    SSLCertificateFile {folder}/site.crt
    SSLCertificateKeyFile {folder}/site.key
    ProxyPreserveHost On
    RequestHeader set X-Forwarded-Proto "https"
    ProxyPass "/" "http://127.0.0.1:{to}/"
    ProxyPassReverse "/" "http://127.0.0.1:{to}/"
</VirtualHost>
''')
    return started(folder, ['/usr/sbin/apache2', '-f', folder / 'apache.conf', '-DFOREGROUND'], port)


def with_nginx_conf(program):
    def proxy(folder, port, to):
        """https://docs.nginx.com/nginx/admin-guide/web-server/reverse-proxy/"""
        need(program)
        return Server(folder, f'''server {{
            listen 127.0.0.1:{port} ssl;
            server_name {HOST};
            ssl_certificate {folder}/site.crt;
            ssl_certificate_key {folder}/site.key;
            location / {{
                proxy_pass http://127.0.0.1:{to};
                proxy_set_header Host $host;
                proxy_set_header X-Real-IP $remote_addr;
                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                proxy_set_header X-Forwarded-Proto $scheme;
            }}
        }}''', program=program, port=port)
    return proxy


PROXIES = {'haproxy': haproxy, 'varnish': varnish, 'caddy': caddy, 'apache': apache, 'nginx': with_nginx_conf(NGINX),
           'yorozu': with_nginx_conf(YOROZU)}


def over_tls(port, source=None):
    used = ssl.create_default_context()
    used.check_hostname, used.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS)
    connection.sock = used.wrap_socket(socket.create_connection(('127.0.0.1', port), SECONDS, source and (source, 0)), server_hostname=HOST)
    return connection


@pytest.mark.parametrize('proxy', PROXIES)
def test_the_second_browser_behind_a_real_proxy_gets_a_hit(proxy):
    paths, port = ('/', '/about', '/shop?page=2'), free_port()
    with cached() as (traffic, origin), Folder() as folder, Faults() as faults:
        certificate(folder, 'site', subject=f'/CN={HOST}')
        (folder / 'site.pem').write_text((folder / 'site.crt').read_text() + (folder / 'site.key').read_text())
        with PROXIES[proxy](folder, port, traffic.port):
            for path in paths:
                answers = [answer(over_tls(port), path, traffic.headers(CLIENTS[name], turn, path))
                           for turn, name in enumerate(('Chrome on Windows', 'Firefox'))]
                faults.equal(path, answers, (*hits(answers), origin.requests(path)), ('MISS', 1, 1))


# --- docs/behind-a-proxy.md ------------------------------------------------------------------------------------

VISITOR = '127.0.0.2'


def lines_for(heading):
    """What the page says is to be written, for a proxy on this machine."""
    page = (ROOT / 'docs/behind-a-proxy.md').read_text()
    lines = re.search(rf'^## {heading}.*?^```nginx\n(.*?)^```', page, re.M | re.S)[1]
    return re.sub(r'set_real_ip_from \S+;', 'set_real_ip_from 127.0.0.1;', lines)


@pytest.fixture
def folder():
    with Folder() as folder:
        certificate(folder, 'site', subject=f'/CN={HOST}')
        (folder / 'site.pem').write_text((folder / 'site.crt').read_text() + (folder / 'site.key').read_text())
        yield folder


def is_known(ask):
    """Whether the visitor's address and scheme are known, and pages are hits."""
    equal(ask('/who').content, f'{VISITOR} https on'.encode())
    # Without the port that only the proxy knows.
    equal(ask('/old').headers['Location'], f'https://{HOST}/new')
    equal(hits([ask('/'), ask('/')]), ('MISS', 1))


@pytest.mark.parametrize('proxy', PROXIES)
def test_the_visitor_behind_a_real_proxy_is_known(folder, proxy):
    port = free_port()
    with cached(trust=lines_for('HAProxy')) as (traffic, _), PROXIES[proxy](folder, port, traffic.port):
        is_known(lambda path: answer(over_tls(port, VISITOR), path, [('Host', HOST)]))


@pytest.mark.parametrize('name, heading, field', [
    ('Cloudflare', 'Cloudflare', 'CF-Connecting-IP'), ('Cloudflare Tunnel', 'Cloudflare', 'Cf-Connecting-Ip'), ('Traefik', 'HAProxy', 'X-Forwarded-For'),
    ('AWS ALB', 'HAProxy', 'X-Forwarded-For')])
def test_the_visitor_is_known_by_the_headers_of(name, heading, field):
    assert field in INTERMEDIARIES[name]
    setup = behind(INTERMEDIARIES[name]) | {field: VISITOR}
    with cached(trust=lines_for(heading)) as (traffic, _):
        is_known(lambda path: traffic.ask(setup, 0, path))


def test_the_visitor_is_known_by_the_proxy_protocol(folder):
    need('haproxy')
    port, between = free_port(), free_port()
    (folder / 'haproxy.cfg').write_text(f'''
{HAPROXY_TCP}
listen www
    bind 127.0.0.1:{port}
    server yorozu 127.0.0.1:{between} send-proxy-v2
''')
    conf = lines_for('The PROXY protocol').replace('listen 443', f'listen 127.0.0.1:{between}').replace('www.example.com', HOST)
    conf = conf.replace('server {', f'server {{ ssl_certificate {folder}/site.crt; ssl_certificate_key {folder}/site.key; return 200 "$remote_addr $scheme $https";')
    with Server(folder, conf + 'server { listen 127.0.0.1:$port; }'), started(folder, ['haproxy', '-db', '-f', folder / 'haproxy.cfg'], port):
        equal(answer(over_tls(port, VISITOR), '/', [('Host', HOST)]).content, f'{VISITOR} https on'.encode())


def test_apache_behind_the_server_knows_the_visitor(folder):
    www = folder / 'www'
    www.mkdir()
    (www / 'index.php').write_text('<?php echo $_SERVER["REMOTE_ADDR"], " ", $_SERVER["HTTPS"] ?? "plain", " ", $_SERVER["HTTP_HOST"];')
    told = re.findall(r'`((?:RemoteIP|SetEnvIf)[^`]*)`', (ROOT / 'docs/behind-a-proxy.md').read_text())
    equal(len(told), 3)
    conf = lines_for('In front of Apache').replace('www.example.com', HOST)
    with Apache(folder, www, modules=('remoteip', 'setenvif'), more='\n'.join(told)) as apache:
        secure = free_port()
        conf = conf.replace('127.0.0.1:8080', f'127.0.0.1:{apache.port}').replace('listen 80;', f'''listen 127.0.0.1:$port; listen 127.0.0.1:{secure} ssl;
            ssl_certificate {folder}/site.crt; ssl_certificate_key {folder}/site.key;''')
        with Server(folder, conf):
            equal(answer(over_tls(secure, VISITOR), '/', [('Host', HOST)]).content, f'{VISITOR} on {HOST}'.encode())
