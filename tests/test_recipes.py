"""docs/recipes.md and docs/second-year.md do what they say: their blocks, as they stand there, with real PHP-FPM."""
import base64, re, subprocess
import pytest
from handbook import blocks, inlined
from peers import ROOT, YOROZU, Folder, Fpm, Server, equal, get, until

PAGE = ROOT / 'docs/recipes.md'
TEXT = PAGE.read_text()
PRESETS = ROOT / 'presets'
SCRIPT = '<?php echo $_SERVER["REQUEST_URI"], " ", $_SERVER["HTTP_USER_AGENT"] ?? "", " ", hrtime(true);'


class Package:
    """The package's configuration with one site; `http` and `server` have what recipes say."""

    def __init__(self, http='', server='', site=None, before=lambda folder: None):
        self.http, self.server_lines, self.site, self.before = http, server, site, before

    def __enter__(self):
        self.folder = Folder().__enter__()
        self.www = self.folder / 'www'
        self.www.mkdir()
        for name in ('index.php', 'wp-login.php'):
            (self.www / name).write_text(SCRIPT)
        self.before(self.folder)
        self.fpm = Fpm(self.folder)
        conf = (PRESETS / 'nginx.conf').read_text()
        conf = conf[conf.index('http {') + 6:conf.rindex('}')]
        site = self.site or f'server {{ listen 80; root /var/www/html; {self.server_lines} fastcgi_cache pages; include applications/wordpress.conf; }}'
        conf = conf.replace('include conf.d/*.conf;', 'include conf.d/php-fpm.conf;\n' + self.http).replace('include sites-enabled/*;', site)
        self.server = Server(self.folder, self.here(inlined(conf)))
        return self

    def here(self, text):
        text = re.sub(r'listen \[::\]:.*\n', '', text).replace('listen 80;', 'listen 127.0.0.1:$port;')
        for old, new in {'/run/php/php-fpm.sock': self.fpm.socket, '/var/www/html': self.www, '/var/www/shop/public': self.www, '/var/www/closed': self.folder / 'closed-page', '/var/cache/yorozu': '$dir/cache',
                         '/var/log/yorozu': '$dir/logs', '/etc/yorozu': self.folder}.items():
            text = text.replace(old, str(new))
        return text

    def __exit__(self, *_):
        self.server.stop()
        self.fpm.stop()
        self.folder.__exit__(None, None, None)

    def get(self, path, **fields):
        return get(self.server.port, path, **fields)


def test_old_addresses_and_other_names_lead_on():
    http, server = blocks(PAGE, 'Old addresses')
    write = lambda folder: (folder / 'moved-2026.map').write_text('/old /new;\n"/two words" /words?a=b;\n')
    with Package(http, server, before=write) as site:
        equal([(got.status, got.headers['Location']) for got in map(site.get, ('/old', '/two%20words', '/other'))],
              [(301, f'http://127.0.0.1:{site.server.port}/new'), (301, f'http://127.0.0.1:{site.server.port}/words?a=b'), (200, None)])
    [other] = blocks(PAGE, 'One name for the site')
    with Package(site=other) as site:
        equal(site.get('/a?b', Host='example.com').headers['Location'], 'https://www.example.com/a?b')


def test_the_site_of_another_application_is_served():
    site, *_ = blocks(PAGE, 'Another application')
    with Package(site=site) as served:
        assert served.get('/any/path?x=1').content.startswith(b'/any/path?x=1')


@pytest.mark.parametrize('name', sorted(path.stem for path in (PRESETS / 'applications').iterdir()))
def test_the_rules_of_each_application_stand_in_a_site(name):
    fallback = re.search(r'`(set \$fallback [^`]*)`', TEXT)[1]
    listed = 'files.conf and php.conf' if name in ('php',) else TEXT
    assert f'`{name}.conf`' in listed or name == 'wordpress', f'{name} is not in the table'
    with Package(site=f'server {{ listen 80; root /var/www/html; {fallback} include applications/{name}.conf; }}') as site:
        assert site.get('/').status in (200, 403, 404)


def test_a_copy_for_trying_things_out_is_closed_and_not_kept():
    [server] = blocks(PAGE, 'A copy for trying things out')
    write = lambda folder: (folder / 'staging.htpasswd').write_text('ann:{PLAIN}secret\n')
    # What the site says itself, the recipe replaces.
    with Package(site=f'server {{ listen 80; root /var/www/html; {server} include applications/wordpress.conf; }}', before=write) as site:
        equal(site.get('/').status, 401)
        known = {'Authorization': 'Basic ' + base64.b64encode(b'ann:secret').decode()}
        first, second = site.get('/', **known), site.get('/', **known)
        equal((first.status, first.headers['X-Robots-Tag'], first.content == second.content), (200, 'noindex', False))


def test_robots_and_guesses_of_passwords_are_slowed_down():
    http, server, failregex = blocks(PAGE, 'Robots and guesses of passwords')
    with Package(http, server + ' access_log /var/log/yorozu/access.log main;') as site:
        equal(site.get('/', User_Agent='Mozilla/5.0 (compatible; AhrefsBot/7.0)').status, 403)
        guesses = [site.get('/wp-login.php', method='POST', body='log=a').status for _ in range(20)]
        # More on a slow machine: ten a minute.
        assert guesses[:6] == [200] * 6 and guesses.count(429) > 7, guesses
        equal([site.get(path).status for path in ('/', '/xmlrpc.php')], [200, 403])
        log = site.server.folder / 'logs/access.log'
        pattern = failregex.removeprefix('failregex = ').replace('<HOST>', r'(?P<host>\S+)')
        until('a line for each guess', lambda: len(re.findall(pattern, log.read_text(), re.M)) == len(guesses), told=log.read_text)


def test_browsers_get_the_form_of_a_picture_that_they_know():
    http, server = blocks(PAGE, 'WebP and AVIF')

    def write(folder):
        for name in ('a.jpg', 'a.jpg.webp', 'a.jpg.avif', 'b.jpg'):
            (folder / 'www' / name).write_text(name)
    with Package(http, server, before=write) as site:
        said = [site.get(path, Accept=accept) for path, accept in (('/a.jpg', 'image/avif,image/webp,*/*'), ('/a.jpg', 'image/webp,*/*'), ('/a.jpg', '*/*'), ('/b.jpg', 'image/avif,*/*'))]
        equal([(got.content.decode(), got.headers['Content-Type'], got.headers['Vary']) for got in said],
              [('a.jpg.avif', 'image/avif', 'Accept'), ('a.jpg.webp', 'image/webp', 'Accept'), ('a.jpg', 'image/jpeg', 'Accept'), ('b.jpg', 'image/jpeg', 'Accept')])


def test_phones_have_pages_of_their_own_and_no_more_than_that():
    [http] = blocks(PAGE, 'Pages for phones')
    key, param = re.findall(r'`(fastcgi_(?:cache_key|param) [^`]*)`', TEXT[TEXT.index('## Pages for phones'):TEXT.index('## Closed for maintenance')])
    rules = (PRESETS / 'applications/wordpress.conf').read_text().replace('include php.conf;', f'include php.conf; {param}')
    with Package(http, site=f'server {{ listen 80; root /var/www/html; fastcgi_cache pages; {key} {rules} }}') as site:
        pages = {agent: site.get('/', User_Agent=agent).content.split()[1:] for agent in ('Mozilla/5.0 (X11)', 'curl/8', 'x (iPhone; y)', 'x (Android 14; Mobile)')}
        equal([page[0] for page in pages.values()], [b'desktop', b'desktop', b'phone', b'phone'])
        equal(len({page[1] for page in pages.values()}), 2)


def test_a_site_is_closed_while_a_file_is_there():
    [server] = blocks(PAGE, 'Closed for maintenance')

    def write(folder):
        (folder / 'closed-page').mkdir()
        (folder / 'closed-page/index.html').write_text('back soon')
    for address, wanted in (('203.0.113.5', [200, 503, 200]), ('127.0.0.1', [200, 200, 200])):
        with Package(server=server.replace('203.0.113.5', address), before=write) as site:
            closed, seen = site.folder / 'closed', []
            for is_closed in (False, True, False):
                closed.touch() if is_closed else closed.unlink(missing_ok=True)
                got = site.get('/')
                seen.append(got.status)
                if got.status == 503:
                    equal((got.content, got.headers['Retry-After']), (b'back soon', '600'))
            equal(seen, wanted)


def test_a_site_has_a_php_of_its_own():
    [commands] = blocks(PAGE, 'Several versions of PHP')
    with Folder() as folder:
        subprocess.run(['cp', '-r', *PRESETS.iterdir(), folder], check=True)
        subprocess.run(['bash', '-ec', commands.replace('/etc/yorozu', str(folder))], check=True)
        (folder / 'sites-enabled').mkdir()
        (folder / 'sites-enabled/old.conf').write_text(f'server {{ listen 127.0.0.1:1; root {folder}; include wordpress-php74.conf; }}')
        for path in [folder / 'nginx.conf', folder / 'page-cache.conf']:
            path.write_text(re.sub(r'/(?:var/(?:log|cache)|run)/', f'{folder}/', path.read_text()))
        (folder / 'yorozu').mkdir()
        told = subprocess.run([YOROZU, '-T', '-p', folder, '-c', folder / 'nginx.conf'], capture_output=True, text=True)
        assert told.returncode == 0 and 'fastcgi_pass php74;' in told.stdout and 'unix:/run/php/php7.4-fpm.sock' in told.stdout, told.stderr


def test_the_figures_for_a_small_machine_are_those_that_serve_has():
    page = (ROOT / 'docs/second-year.md').read_text()
    with Folder() as folder, Folder() as state:
        for name in ('wp-load.php', 'wp-settings.php', 'index.php'):
            (folder / name).write_text('<?php')
        told = subprocess.run([YOROZU, 'serve', folder, '--memory', '1g', '--explain-sizes', '--state', state], capture_output=True, text=True, check=True).stdout
        size = lambda name: re.search(rf'^{re.escape(name)} +(\d+)', told, re.M)[1]
        assert f"| the page cache | {size('memory=')} MB |" in page and f"| {size('pm.max_children')} at {size('a process of PHP')} MB |" in page, told
