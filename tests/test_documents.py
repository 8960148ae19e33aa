"""The documents say what is so: configurations load, commands are taken, links lead somewhere, messages are in the sources."""
import contextlib, http.server, itertools, json, os, pathlib, re, shlex, shutil, signal, subprocess, sys, threading, time
from handbook import blocks
from peers import ROOT, YOROZU, Folder, Server, is_running, listens, until

README = ROOT / 'README.md'
PAGES = sorted((ROOT / 'docs').glob('*.md'))
DOCUMENTS = [README, *PAGES]
# Made from the rows, or quoted by others as it is.
MADE = {'directives.md', 'personal-cookies.md'}

# --- messages ------------------------------------------------------------------------------------

TROUBLE = ROOT / 'docs/troubleshooting.md'
# Whose every message must be explained: what `-t` warns of, faults of the cache, what the process says of itself, refusals of
# directives that nginx does not have, several machines, certificates, the console and purges by requests.
EXPLAINED = [f'crates/server/src/config/{name}.rs' for name in ('findings', 'visitors', 'omitted', 'shared_sockets', 'cycles', 'issued', 'path_info', 'scripts')] + [
    'crates/cache/src/lib.rs', 'crates/server/src/process/cache_manager.rs', 'crates/modules/src/filters/more_headers/directives.rs',
    'crates/server/src/console/access.rs', 'crates/server/src/console/mod.rs', 'crates/server/src/control/batch.rs', 'crates/server/src/control/purge_api.rs'
] + [f'crates/gateway/src/cache/{name}.rs' for name in ('cleaned', 'early', 'purge')
] + [f'crates/gateway/src/nodes/{name}.rs' for name in ('bus/mod', 'bus/purges', 'keeper', 'lane', 'message', 'mod', 'read', 'send', 'spec', 'target', 'tier')
] + [f'crates/acme/src/{name}.rs' for name in ('client', 'issuer', 'keeper', 'order', 'session', 'tend')]
# In these files, but no message that needs a word: what nginx and its modules say, what says itself what to do, what is not said
# to people.
PLAIN = re.compile('|'.join((
    'could not be resolved', r'timed out \(110', 'is no name of a server', "the connection's task ended", 'cannot start its thread',
    'the entry was not sent', 'it refused the question', "redis.call", 'yorozu purge bus', 'directive invalid', 'directive "issuer"', 'is not supported:', 'cannot load account key', 'unexpected order status',
    r'account ".*" created', 'certificate issued', 'renewal window', '; HttpOnly', 'session 1', 'default-src', 'purged by the console', 'User-Agent', 'a list of strings', 'urls, tags, host', 'shared tier of zone')))
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
TESTS = re.compile(r'\n#\[cfg\(test\)\]\n(?:#\[[^\n]*\n)*mod \w+ \{')
# `{}` and `{name}` in a message, `…` in a document.
GAPS = re.compile(r'\{[^{}]*\}|…')


def code_of(path):
    """A file without its comments, attributes of lints and tests."""
    text = TESTS.split(path.read_text())[0]
    text = re.sub(r'^\s*//.*$', '', text, flags=re.M)
    return re.sub(r'reason = "[^"]*"|expect\("[^"]*"\)', '', text)


def literals(path):
    """Texts in a file, as they are printed."""
    for text in LITERAL.findall(code_of(path)):
        text = re.sub(r'\\\n\s*', '', text).replace('\\"', '"').replace('\\n', ' ').replace('\\\\', '\\')
        yield ' '.join(text.split())


def pieces(message):
    """What stands fast in a message."""
    return [piece.strip() for piece in GAPS.split(message) if len(piece.strip()) > 3]


def explained():
    """The messages of the page: all that is code in the first column of a table."""
    for line in TROUBLE.read_text().splitlines():
        if line.startswith('| `'):
            yield from re.findall(r'`([^`]+)`', re.split(r'(?<!\\)\|', line)[1])


def test_each_message_that_is_explained_is_in_the_sources():
    known = '\n'.join(text for path in (ROOT / 'crates').rglob('src/**/*.rs') for text in literals(path))
    scripts = [ROOT / 'packaging/yorozu/DEBIAN/postinst', ROOT / 'packaging/yorozu/usr/lib/yorozu/upgrade']
    known += '\n'.join(path.read_text() for path in scripts)
    # Texts that are put together say their parts.
    known += '\n'.join(GAPS.sub('', text) for text in known.splitlines())
    missing = [(message, piece) for message in explained() for piece in pieces(message) if piece not in known]
    assert not missing, missing


def test_each_message_of_ours_is_explained():
    page = ' '.join(explained())
    missing = []
    for name in EXPLAINED:
        for text in literals(ROOT / name):
            fixed = max(pieces(text), key=len, default='')
            # What ends with a full stop is of the manual.
            if len(fixed.split()) > 3 and not text.endswith('.') and fixed not in page and not PLAIN.search(text):
                missing.append((name, text))
    assert not missing, '\n'.join(map(str, missing))


# --- configurations and commands -----------------------------------------------------------------

def fenced(path):
    """The blocks between ``` of a document."""
    return re.findall(r'^```\w*\n(.*?)^```', path.read_text(), re.M | re.S)


DIRECTIVE = re.compile(r'^[a-z_0-9]+( [^;{}]*)?[;{]', re.M)


def is_configuration(block):
    first = next(line for line in block.splitlines() if not line.startswith('#'))
    words = first.split()
    return bool(DIRECTIVE.match(first)) and words[0].rstrip(';') in directives() and not first.startswith('<')


def directives():
    if not hasattr(directives, 'known'):
        directives.known = set(re.findall(r'^\| `(\w+)`', (ROOT / 'docs/directives.md').read_text(), re.M)) | {
            'server', 'location', 'upstream', 'http', 'events', 'map', 'if', 'set', 'geo', 'split_clients', 'types', 'acme_issuer', 'include'}
    return directives.known


# What examples name and do not define.
AROUND = {
    'fastcgi_cache_path': 'fastcgi_cache_path {folder}/cache keys_zone=pages:1m;',
    'upstream php': 'upstream php {{ server 127.0.0.1:9; }}',
    'upstream app': 'upstream app {{ server 127.0.0.1:9; }}',
    'set $memcached_key': 'server {{ set $memcached_key a; }}',
    'map': 'map $request_method $purges {{ PURGE 1; default ""; }}',
}


def forms(block, folder):
    """Where a block may stand: a whole file, in http, in server, in a location."""
    has = block.replace('page-cache.conf', 'fastcgi_cache_path')
    around = ' '.join(text.format(folder=folder) for name, text in AROUND.items() if name not in has)
    if 'shared=' in block:
        around += ' cache_purge_bus redis://127.0.0.1:1?node=a;'
    if re.search(r'^(http|events) \{', block, re.M):
        yield block + ('' if 'events' in block else '\nevents {}')
        return
    server = 'listen 127.0.0.1:1;'
    tls = f'ssl_certificate {folder}/crt; ssl_certificate_key {folder}/key;'
    yield f'events {{}}\nhttp {{ {around} {block}\n }}'
    yield f'events {{}}\nhttp {{ {around} {tls} {block}\n }}'
    yield f'events {{}}\nhttp {{ {around} server {{ {server} {tls} {block}\n }} }}'
    yield f'events {{}}\nhttp {{ {around} server {{ {server} location / {{ fastcgi_pass php; {block}\n }} }} }}'
    yield f'events {{}}\nhttp {{ {around} server {{ {server} location / {{ proxy_pass http://app; {block}\n }} }} }}'
    yield f'{block}\nevents {{}}\nhttp {{ }}'


def loads(folder, text):
    file = folder / 'nginx.conf'
    for old, new in {'/etc/ssl/': f'{folder}/', '/etc/yorozu/': f'{folder}/', '/var/lib/yorozu': f'{folder}/state', '/var/cache/': f'{folder}/', '/var/log/': f'{folder}/',
                     'origin.example.com': '127.0.0.1'}.items():
        text = text.replace(old, new)
    file.write_text(f'pid {folder}/pid; error_log {folder}/error.log;\n' + re.sub(r'^\s*(pid|error_log) .*$', '', text, flags=re.M))
    done = subprocess.run([YOROZU, '-t', '-q', '-p', folder, '-c', file], capture_output=True, text=True)
    return done.returncode == 0, done.stderr


def why_not(folder, block):
    """What is said of a block that can stand nowhere."""
    tried = [loads(folder, form) for form in forms(block, folder)]
    if any(is_taken for is_taken, _ in tried):
        return None
    return next((text for _, text in tried if 'not allowed here' not in text), tried[0][1])


def test_each_configuration_loads():
    count, refused = 0, []
    with Folder() as folder:
        for name in ('logs', 'yorozu'):
            (folder / name).mkdir()
        for name in ('uwsgi_params', 'scgi_params'):
            (folder / name).touch()
        for name in ('visitor.conf', 'page-cache.conf'):
            shutil.copy(ROOT / 'presets' / name, folder)
        (folder / 'bus.secret').write_text('a-secret-of-sixteen-bytes-or-more')
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
                        '-subj', '/CN=localhost', '-keyout', folder / 'key', '-out', folder / 'crt'], check=True, stderr=subprocess.DEVNULL)
        # What recipes.md says is for the package's configuration: tests/test_recipes.py.
        for path in filter(lambda path: path.name != 'recipes.md', DOCUMENTS):
            for block in (part for block in blocks(path) + fenced(path) for part in block.split('\n\n')):
                if not is_configuration(block):
                    continue
                count += 1
                said = why_not(folder, block)
                # Some are a list of lines of which one is chosen.
                if said and any(why_not(folder, line) for line in block.splitlines()):
                    refused.append(f'{path.name}:\n{block}\n{said}')
    assert count > 10 and not refused, f'{count}\n' + '\n'.join(refused)


# What is asked of a running server.
ASKING = 'purge|warm|cache|explain|log|top|acme'
COMMANDS = re.compile(r'^(?:sudo )?(?:\S*/)?yorozu (.*)$', re.M)


def test_each_command_of_yorozu_is_one():
    """Its options are taken: what it complains of is only that no server runs here, or a file that is not here."""
    refused, count = [], 0
    for path in DOCUMENTS:
        for line in (line for block in blocks(path) + fenced(path) for line in COMMANDS.findall(block)):
            words = shlex.split(line.partition(' >')[0], comments=True)
            if '…' in line or any(word.isupper() and len(word) > 2 for word in words):
                continue
            count += 1
            # Parsed up to what is no option: nothing is done.
            parsed = subprocess.run([YOROZU, *itertools.takewhile(lambda word: word not in ('|', '&&', ';'), words), '--no-such-option'], capture_output=True, text=True)
            if 'invalid option: "--no-such-option"' not in parsed.stderr:
                refused.append(f'{path.name}: yorozu {line}\n{parsed.stderr}')
            # Others are looked for below /usr/share/nginx, as nginx does.
            assert all(file.startswith('/') for option, file in zip(words, words[1:]) if option in ('-c', '-p')), f'{path.name}: yorozu {line}'
            if 'daemon off;' in words or not set(words) & {'-t', '-T', '-v', '-V', '-h', 'cache', 'purge', 'warm', 'explain', 'acme', 'help', '--help', 'completions', '--directives'}:
                continue
            done = subprocess.run([YOROZU, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode == 2:
                refused.append(f'{path.name}: yorozu {line}\n{done.stderr}')
    assert count > 10 and not refused, '\n'.join(refused)


class Origin(http.server.BaseHTTPRequestHandler):
    """The site that the documents speak of: pages with tags, one that sets a cookie, one that is slow, a sitemap."""
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        body = '<urlset><url><loc>https://www.example.com/blog/a</loc></url></urlset>' if self.path.endswith('.xml') else 'a page'
        if 'slow' in self.path:
            time.sleep(0.6)
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Surrogate-Key', 'post-17 home menu-2')
        if 'slow' in self.path or self.path == '/a/page':
            self.send_header('Set-Cookie', 'a=b')
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def site_of_the_documents(folder):
    """A server with that site, and a shell in which commands that name www.example.com and /etc/yorozu reach it."""
    origin = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Origin)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2',
                    '-subj', '/CN=www.example.com', '-keyout', folder / 'key', '-out', folder / 'crt'], check=True, stderr=subprocess.DEVNULL)
    with Server(folder, f'''
            proxy_cache_path $dir/cache keys_zone=pages:1m;
            server {{
                listen 127.0.0.1:$port ssl;
                server_name www.example.com;
                ssl_certificate {folder}/crt; ssl_certificate_key {folder}/key;
                proxy_cache pages; proxy_cache_key $scheme://$request_method$host$request_uri; proxy_cache_valid 1d; proxy_cache_status on;
                location / {{ proxy_pass http://127.0.0.1:{origin.server_port}; }}
                location = /.purge {{ cache_purge_api token=a-secret-of-sixteen-bytes-or-more; }}
            }}''') as server:
        (folder / 'bin').mkdir()
        (folder / 'bin/yorozu').symlink_to(pathlib.Path(YOROZU).resolve())
        curl = f'curl() {{ command curl -sk --connect-to ::127.0.0.1:{server.port} "$@"; }}; '

        def shell(command, **options):
            command = re.sub(r'/etc/yorozu/(\w+/)?nginx.conf', str(server.folder / 'nginx.conf'), command)
            command = re.sub(rf'\byorozu (?=({ASKING})\b)', f'yorozu -c {server.folder}/nginx.conf ', command)
            return subprocess.Popen(['bash', '-c', curl + command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=os.environ | {'PATH': f'{folder}/bin:{os.environ["PATH"]}'}, **options)

        yield shell
    origin.shutdown()


def test_commands_for_a_running_server_work():
    """What needs no other machine, no package and no terminal is done: all of it must succeed."""
    with Folder() as folder, site_of_the_documents(folder) as shell:
        count = 0
        for path in DOCUMENTS:
            for line in (line for block in blocks(path) for line in block.splitlines()):
                if re.match(r'yorozu (purge|warm|cache|explain|acme)\b', line):
                    process = shell(line)
                    out, error = process.communicate(timeout=60)
                    assert process.returncode == 0 and (not error or 'no "acme_certificate"' in error), f'{path.name}: {line}\n{out}{error}'
                    count += 1
        assert count >= 14, count


def test_lines_of_the_log_come():
    with Folder() as folder, site_of_the_documents(folder) as shell:
        lines = [line for block in blocks(ROOT / 'docs/console.md') for line in block.splitlines() if line.startswith('yorozu log --')]
        assert len(lines) == 2, lines
        for line, page in zip(lines, ('blog/', 'slow/')):
            process = shell('exec ' + line)
            came = threading.Event()
            reader = threading.Thread(target=lambda: process.stdout.readline() and came.set())
            reader.start()
            number = 0
            while not came.is_set():
                assert process.poll() is None and number < 500, f'{line}: {process.stderr.read() if process.poll() else number}'
                shell(f'curl https://www.example.com/{page}{number}').communicate(timeout=60)
                number += 1
            process.terminate()
            reader.join()
            process.wait()


def test_answers_are_those_of_the_documents():
    with Folder() as folder, site_of_the_documents(folder) as shell:
        shell('curl https://www.example.com/a https://www.example.com/b').communicate()
        block = next(block for block in blocks(ROOT / 'docs/purge.md') if block.startswith('curl '))
        command, said = block.rsplit('\n', 1)
        out, _ = shell(command).communicate()
        kinds = lambda text: {name: type(value) if not isinstance(value, dict) else sorted(value) for name, value in json.loads(text).items()}
        assert kinds(out) == kinds(said) and json.loads(out)['purged'] == 2, out
        block = next(block for block in blocks(ROOT / 'docs/why-a-miss.md') if block.startswith('curl '))
        command, said = block.split('\n', 1)
        out, _ = shell(command).communicate()
        assert out.strip() == said, out


def test_a_new_binary_takes_over_as_the_document_says():
    block = next(block for block in blocks(ROOT / 'docs/process.md') if '-USR2' in block)
    with Folder() as folder:
        (folder / 'new').mkdir()
        for place in ('yorozu', 'new/yorozu'):
            shutil.copy(YOROZU, folder / place)
        with Server(folder, 'server { listen 127.0.0.1:$port; return 204; }', program=str(folder / 'yorozu')) as server:
            file = server.folder / 'pid'
            old = file.read_text().strip()
            ended = lambda: not pathlib.Path(f'{file}.oldbin').exists()
            events = {'USR2': lambda: not ended() and file.exists() and file.read_text().strip() not in ('', old), 'WINCH': lambda: listens(server.port), 'QUIT': ended}
            try:
                for line in block.splitlines():
                    line = line.replace('/usr/sbin/yorozu', f'{folder}/yorozu').replace('/run/yorozu.pid', str(file))
                    done = subprocess.run(['bash', '-c', line], cwd=folder, capture_output=True, text=True)
                    assert done.returncode == 0, f'{line}: {done.stderr}'
                    name = re.search(r'kill -(\w+)', line)
                    if name:
                        until(f'what {name[1]} brings', events[name[1]])
                assert listens(server.port)
            finally:
                new = file.read_text().strip() if file.exists() else old
                if new not in ('', old):
                    os.kill(int(new), signal.SIGTERM)
                    until('its end', lambda: not is_running(new))


def test_make_knows_each_target():
    known = set(re.findall(r'^([\w-]+):', (ROOT / 'Makefile').read_text(), re.M))
    named = {word for path in DOCUMENTS + [ROOT / 'CONTRIBUTING.md'] for block in blocks(path) + re.findall(r'`([^`]+)`', path.read_text())
             for word in re.findall(r'^(?:[A-Z]+=\S+ )*make ([\w-]+)', block, re.M)}
    assert named and named <= known, named - known


def test_shell_blocks_are_shell():
    for path in DOCUMENTS:
        for block in blocks(path):
            first = block.split()[0]
            if first in ('apt', 'systemctl', 'cp', 'make', 'mariadb', 'echo', 'chown', 'ln', 'kill', 'podman', 'curl', 'sed'):
                done = subprocess.run(['bash', '-n'], input=block, capture_output=True, text=True)
                assert done.returncode == 0, f'{path}:\n{block}\n{done.stderr}'


# --- links and sizes -----------------------------------------------------------------------------

def anchors(path):
    return {re.sub(r'[^\w\- ]', '', title.lower()).strip().replace(' ', '-') for title in re.findall(r'^#+ (.*)$', path.read_text(), re.M)}


def test_links_lead_somewhere():
    for path in DOCUMENTS + [ROOT / 'CHANGELOG.md', ROOT / 'CONTRIBUTING.md']:
        for link in re.findall(r'\]\(([^)\s]+)\)', path.read_text()):
            if link.startswith(('http:', 'https:')):
                continue
            place, _, anchor = link.partition('#')
            target = path.parent / place if place else path
            assert target.exists(), f'{path.name}: {link}'
            assert not anchor or anchor in anchors(target), f'{path.name}: {link}'


def test_the_handbook_lists_its_pages():
    listed = set(re.findall(r'\]\((\S+\.md)\)', (ROOT / 'docs/README.md').read_text()))
    assert listed == {path.name for path in PAGES} - {'README.md'}, listed ^ {path.name for path in PAGES}


def test_the_readme_is_short():
    count = len(README.read_text().splitlines())
    assert count <= 140, count


def test_the_chart_is_made_of_the_results():
    sys.path.insert(0, str(ROOT / 'bench'))
    import report
    assert report.is_up_to_date(), 'bench/report.py writes it'
