"""Configurations as people have them, beside nginx: both load them, or refuse them, and answer alike.

They are Debian's own, and those in tests/configurations. ALSO="FILE ..." names others: $www, $fpm, $crt, $key, $dir, $port and
$tls stand for what a test has in their place. BESIDE=folder has the files that they include.

A line `# ask PATH` or `# ask METHOD PATH | Field: value | Field: value` names one more request of both servers. What they
write to $dir/logs/compared.log is compared, too.
"""
import http.client, itertools, os, pathlib, re, shutil, ssl, subprocess, time
import pytest
from peers import NGINX, YOROZU, Folder, Fpm, Process, free_port, listens

ROOT = pathlib.Path(__file__).resolve().parent.parent
OWN = ROOT / 'tests/configurations'
ALSO = os.environ.get('ALSO', '').split()
BESIDE = os.environ.get('BESIDE') and pathlib.Path(os.environ['BESIDE'])

FILES = {
    'index.php': '<?php header("X-Made: php"); foreach (["REQUEST_METHOD", "REQUEST_URI", "SCRIPT_NAME", "PATH_INFO",'
                 ' "QUERY_STRING", "HTTPS", "DOCUMENT_URI"] as $n) echo $n, "=", $_SERVER[$n] ?? "-", "\\n";',
    'info.php': '<?php echo "info";', 'rest.php/x': '', 'static.php': '<?php echo "static ", $_GET["resource"] ?? "";',
    'get.php': '<?php echo "get";', 'img_auth.php': '<?php echo "auth ", $_SERVER["PATH_INFO"] ?? "";',
    'load.php': '<?php echo "load";', 'remote.php': '<?php echo "remote ", $_SERVER["PATH_INFO"] ?? "-";',
    'index.html': '<html><body>front</body></html>', 'style.css': 'body{}' * 300, 'app.js': 'let a = 1;' * 200,
    'logo.png': 'png', 'icon.svg': '<svg/>', 'font.woff2': 'font', 'robots.txt': 'User-agent: *', 'favicon.ico': 'ico',
    '404.html': 'not here', '50x.html': 'broken', '.htaccess': 'deny', '.git/config': 'secret', '.well-known/x': 'known',
    'wp-content/uploads/a.php': '<?php echo "run";', 'wp-content/uploads/a.jpg': 'jpg', 'wp-admin/index.php': '<?php echo "admin";',
    'sites/default/files/a.txt': 'text', 'sites/default/settings.php': '<?php', 'images/a.png': 'png',
    'core/a.css': 'a', 'static/version1/a.css': 'css', 'media/a.jpg': 'jpg', 'media/customer/x.jpg': 'no',
    'config/config.php': '<?php echo "config";', 'dir/a.txt': 'a', 'backup.sql': 'sql', 'feed.xml': '<rss/>', 'data.json': '{}',
    'manifest.webmanifest': '{}', 'a.tar.gz': 'tar', '.htpasswd': 'guest:{PLAIN}word\n', 'maintenance.html': 'back soon',
    # What PHP is given, but for what differs from run to run.
    'env.php': '<?php ksort($_SERVER); foreach ($_SERVER as $n => $v) if (is_string($v) && !preg_match("/^(REMOTE_PORT|SERVER_SOFTWARE|REQUEST_TIME|HOME|USER|PATH|argv|argc)/", $n)) echo "$n=$v\\n";',
    'assets/app.1a2b3c.js': 'let b = 2;' * 200, 'assets/site.css': 'p{}' * 400, 'assets/site.css.gz': 'made before',
    'img/photo.jpg': 'jpeg', 'img/photo.jpg.webp': 'webp', 'img/photo.webp': 'webp beside', 'admin/index.php': '<?php echo "admin";',
    'spa/index.html': '<html>spa</html>', 'page.html': '<a href="http://old.example/x">Old Name</a> <!--# echo var="uri" -->',
    'uploads/a.phtml': '<?php echo "run";', 'docs/readme.md': '# text', 'composer.json': '{}', 'api.php': '<?php echo "api ", $_SERVER["REQUEST_URI"];',
}

PATHS = '''/ /index.php /index.php/path/info /info.php /nothing /nothing/ /nothing.php /dir /dir/ /dir/a.txt /style.css /app.js
/logo.png /icon.svg /font.woff2 /robots.txt /favicon.ico /.htaccess /.git/config /.well-known/x /.well-known/acme-challenge/x
/wp-content/uploads/a.php /wp-content/uploads/a.jpg /wp-admin/ /wp-admin /wp-login.php?a=1 /xmlrpc.php /sites/default/files/a.txt
/sites/default/settings.php /images/a.png /core/a.css /static/version1/a.css /static/version2/b.css /media/a.jpg /media/b.jpg
/media/customer/x.jpg /config/config.php /backup.sql /feed.xml /data.json /manifest.webmanifest /404.html /50x.html /?q=1&x=2
/index.html /a%20b /wiki/Main_Page /w/index.php?title=x /remote.php/dav /remote /caldav /a.tar.gz /nginx_status /status /ping
/style.123.css /sitemap.xml /feed/ /2026/11/a-post/ /..%2f..%2fetc/passwd /server-status'''.split()


class Place:
    """What the configurations find: a site, PHP, certificates."""

    def __init__(self, folder):
        self.folder, self.www = folder, folder / 'www'
        for name, text in FILES.items():
            path = self.www / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                        '-days', '2', '-subj', '/CN=localhost', '-keyout', folder / 'key', '-out', folder / 'crt'],
                       check=True, capture_output=True)

    def words(self):
        """What stands for what in a configuration, but for ports and the server's own folder."""
        return {'www': self.www, 'crt': self.folder / 'crt', 'key': self.folder / 'key', 'fpm': self.folder / 'php.sock',
                'presets': ROOT / 'presets'}


def asked(line):
    """The request of a line `# ask`."""
    first, *fields = line.split(' | ')
    *method, path = first.split()
    return path, tuple(tuple(field.strip().split(': ', 1)) for field in fields), (method or ['GET'])[0]


def complete(text):
    """A whole configuration: most are a part of `http {}`."""
    if not re.search(r'(?m)^\s*events\b', text):
        text = f'events {{ }}\nhttp {{\n{text}\n}}\n'
    return text


def start(place, program, text, ports):
    name = pathlib.Path(program).name
    folder = place.folder / f'{name}-{free_port()}'
    for sub in ('logs', 'tmp', 'cache'):
        (folder / sub).mkdir(parents=True)
    # What the files beside nginx.conf are on Debian; a folder given with --also has its own.
    for source in ([pathlib.Path('/etc/nginx')] + ([BESIDE] if BESIDE else [])):
        shutil.copytree(source, folder, dirs_exist_ok=True, symlinks=True,
                        ignore=shutil.ignore_patterns('nginx.conf', 'modules-enabled', '.git'))
    words = place.words() | ports | {'dir': folder}
    fill = lambda text: re.sub(r'\$(www|crt|key|fpm|presets|dir|port|tls|other)\b', lambda match: str(words[match[1]]), text)
    text = fill(text)
    for path in folder.rglob('*.conf') if BESIDE else []:
        path.write_text(fill(path.read_text()))
    user = 'user root;\n' if os.geteuid() == 0 else ''
    temporary = ''.join(f'{kind}_temp_path {folder}/tmp/{kind};\n'
                        for kind in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi')
                        if name == 'nginx' or kind not in ('uwsgi', 'scgi'))
    text = re.sub(r'(?m)^\s*(user|pid|daemon|worker_processes)\s[^;]*;', '', text)
    text = re.sub(r'(?m)^http\s*{', lambda match: match[0] + '\n' + temporary, text, count=1)
    text = f'{user}daemon off;\npid {folder}/pid;\n{text}'
    (folder / 'nginx.conf').write_text(text)
    command = [program, '-p', f'{folder}/', '-e', folder / 'logs/error.log', '-c', folder / 'nginx.conf']
    tested = subprocess.run([*command[:1], '-t', *map(str, command[1:])], capture_output=True, text=True)
    if tested.returncode:
        return [line for line in tested.stderr.splitlines() if '[emerg]' in line or '[crit]' in line][:1]
    process = Process(command, folder / 'out').wait_for(lambda: all(listens(port) for port in ports.values() if f':{port}' in text or f' {port}' in text))
    process.folder = folder
    return process


# One for all: the authorities of the system, which take longer to read than a request, are not wanted.
TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


def ask(port, is_tls, path, fields=(), method='GET'):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    if is_tls:
        connection = http.client.HTTPSConnection('127.0.0.1', port, timeout=60, context=TRUSTING)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in ({'Host': 'localhost'} | dict(fields)).items():
            connection.putheader(name, value)
        begun = time.time()
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, normal(answer.getheaders(), body, port), own(body, port), (begun, time.time())
    except (http.client.BadStatusLine, ConnectionError, http.client.RemoteDisconnected):
        return 'closed', [], b'', (0, 0)
    finally:
        connection.close()


def own(body, port):
    body = body.replace(f':{port}'.encode(), b':PORT')
    if body[:2] == b'\x1f\x8b':
        return b'gzip'
    body = re.sub(rb'\r\n--\d{20}\b', b'\r\n--B', body)
    return re.sub(rb'<hr><center>(nginx|yorozu)[^<]*</center>', b'', body)


def normal(fields, body, port):
    kept = []
    for name, value in fields:
        name = name.lower()
        if name in ('date', 'server', 'age', 'connection', 'keep-alive', 'transfer-encoding', 'content-length'):
            continue
        if name == 'vary' and len(body) < 300:
            # Of a short answer of PHP nginx does not know the length: gzip_min_length does not hold for it.
            continue
        if name == 'accept-ranges' and any(other.lower() == 'content-encoding' for other, _ in fields):
            # Of a file that was compressed before one of the two sends ranges.
            continue
        if name in ('expires', 'x-request-id'):
            value = '-'
        # One says it in one line, the other in two.
        kept.append((name, re.sub(r'boundary=\d+', 'boundary=B', value.replace(f':{port}', ':PORT'))))
    return sorted(set(kept))


REQUESTS = [(path, (), 'GET') for path in PATHS] + [
    ('/style.css', (('Accept-Encoding', 'gzip'),), 'GET'), ('/app.js', (('Accept-Encoding', 'gzip, br'),), 'GET'),
    ('/', (('Accept-Encoding', 'gzip'),), 'HEAD'), ('/', (('Content-Length', '0'),), 'POST'), ('/', (), 'OPTIONS'),
    ('/index.php', (('Cookie', 'wordpress_logged_in_x=1'),), 'GET'), ('/logo.png', (('Range', 'bytes=0-1'),), 'GET'),
    ('/logo.png', (('Referer', 'http://evil.example/'),), 'GET'), ('/', (('User-Agent', 'DavClnt'),), 'GET'),
    ('/', (('Host', 'other.example'),), 'GET'), ('/?origin', (('Origin', 'http://x.example'),), 'GET'), ('/', (), 'TRACE'),
]


def lines_of(server):
    """What a server that ended wrote to the log that is compared."""
    path = server.folder / 'logs/compared.log'
    return path.read_text().splitlines() if path.exists() else []


def compare(name, text):
    """Both servers with one configuration; what differs."""
    requests = REQUESTS + [asked(line) for line in re.findall(r'(?m)^\s*# ask (.+)', text)]
    text = complete(text)
    found = []
    with Folder() as folder:
        place = Place(folder)
        with Fpm(folder):
            ports = {'port': free_port(), 'tls': free_port(), 'other': free_port()}
            answers, written = {}, {}
            for program in (NGINX, YOROZU):
                server = start(place, program, text, ports)
                if isinstance(server, list):
                    answers[program] = server
                    continue
                with server:
                    answers[program] = [ask(ports[kind], kind == 'tls', *request) for kind in ('port', 'tls')
                                        if listens(ports[kind]) for request in requests]
                written[program] = lines_of(server)
    wanted, got = answers[NGINX], answers[YOROZU]
    refused = [answer for answer in (wanted, got) if answer and isinstance(answer[0], str)]
    if len(refused) == 2:
        return [], f'both refuse it: {refused}'
    if refused:
        return [f'{name}: refused by one: nginx {wanted[:1]!r}, yorozu {got[:1]!r}'], ''
    for at, (one, other) in enumerate(zip(wanted, got)):
        if not is_alike(one, other):
            path, *more = requests[at % len(requests)]
            found.append(f'{name}: {path} {more}\n  nginx  {one}\n  yorozu {other}')
    assert wanted, f'{name} listens on neither port'
    found += [f'{name}: in the log\n  nginx  {one}\n  yorozu {other}'
              for one, other in itertools.zip_longest(written[NGINX], written[YOROZU]) if one != other]
    return found, f'{len(wanted)} answers' + (f', {len(written[NGINX])} lines' if written[NGINX] else '')


def is_alike(one, other):
    """Whether two answers are the same, but for what `expires @time` comes to when they are given."""
    (one, first, (begun, ended)), (other, second, (other_begun, other_ended)) = map(without_ages, (one, other))
    # Each is at the same time over, but for a second by which a server's clock may be late, and what is left of one.
    ends_alike = lambda age, its: age == its or age + begun <= its + other_ended + 2 and its + other_begun <= age + ended + 2
    return one == other and all(map(ends_alike, first, second))


def without_ages(answer):
    status, fields, body, when = answer
    ages = [int(age) for name, value in fields if name == 'cache-control' for age in re.findall(r'max-age=(\d+)', value)]
    return (status, [(name, re.sub(r'max-age=\d+', 'max-age', value)) for name, value in fields], body), ages, when


def debian():
    """Debian's nginx.conf with its default site, PHP switched on as its comments say."""
    text = pathlib.Path('/etc/nginx/nginx.conf').read_text()
    site = pathlib.Path('/etc/nginx/sites-available/default').read_text()
    site = re.sub(r'(?m)^\s*listen \[::\]:80.*$', '', site).replace('listen 80 default_server', 'listen 127.0.0.1:$port default_server')
    site = site.replace('root /var/www/html', 'root $www')
    site = site.replace('server_name _;', '''server_name _;
        location ~ \\.php$ { include /etc/nginx/snippets/fastcgi-php.conf; fastcgi_pass unix:$fpm; }
        location ~ /\\.ht { deny all; }
        location /koi/ { include /etc/nginx/koi-win; }'''.split('        location /koi/')[0])
    text = re.sub(r'include /etc/nginx/(modules-enabled|conf\.d)/[^;]*;', '', text)
    text = text.replace('include /etc/nginx/sites-enabled/*;', f'include /etc/nginx/koi-utf; include /etc/nginx/win-utf; include /etc/nginx/koi-win;\n{site}')
    return re.sub(r'/var/log/nginx', '$dir/logs', text)


EVERY = {'debian': debian} | {path.stem: path.read_text for path in sorted(OWN.glob('*.conf'))} if not ALSO \
    else {path: pathlib.Path(path).read_text for path in ALSO}


@pytest.mark.parametrize('name', EVERY)
def test_both_answer_alike(name):
    found, told = compare(name, EVERY[name]())
    assert not told.startswith('both') or BESIDE, told
    assert not found, '\n' + '\n'.join(found)
    print(f'{name}: {told}')
