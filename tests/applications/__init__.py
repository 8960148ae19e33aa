"""Real PHP applications, driven as their users drive them: what tests/real_applications.py asks of each."""
import functools, pathlib, subprocess, urllib.parse
import lxml.html, requests
from peers import SECONDS, Process, free_port, listens

# What everyone may read, what its author alone may read, and who the author is.
WORD, SECRET = 'heatherwort', 'xylophage'
USER, PASSWORD, EMAIL = 'annabel', 'Correct-h0rse-staple', 'annabel@example.com'


class Visitor(requests.Session):
    """A browser without scripts at the site of a URL."""

    def __init__(self, url):
        super().__init__()
        self.url = url
        # Neither a proxy nor a .netrc of whoever runs the tests.
        self.trust_env = False

    def request(self, method, path, **more):
        return super().request(method, urllib.parse.urljoin(self.url, path), timeout=4 * SECONDS, **more)

    def submit(self, path, values, files=None, button='', **more):
        """Sends the first form at `path` (or in a response) that has fields of these names, with whatever else it holds."""
        page = path if isinstance(path, requests.Response) else self.get(path)
        document = lxml.html.fromstring(page.content, base_url=page.url)
        names = {*values, *(files or ()), *filter(None, [button])}
        forms = [form for form in document.forms if names <= {*form.xpath('.//@name')}]
        assert forms, f'{page.url} ({page.status_code}) has no form with {sorted(names)}, but {[sorted(filter(None, form.fields)) for form in document.forms]}: {page.text[:2000]}'
        form = forms[0]
        sent = [(name, value) for name, value in form.form_values() if name not in names]
        sent += [(name, value) for name, values_ in values.items() for value in (values_ if isinstance(values_, list) else [values_])]
        if button:
            sent.append((button, (form.xpath(f'.//*[@name="{button}"]/@value') or [''])[0]))
        target = urllib.parse.urljoin(page.url, form.get('action') or page.url)
        if (form.get('method') or 'get').lower() == 'get':
            return self.get(target, params=sent, **more)
        return self.post(target, data=sent, files=files, **more)


class MariaDb(Process):
    """A MariaDB of the test's own at a port of 127.0.0.1; USER has the database "site" with PASSWORD."""

    def __init__(self, folder):
        subprocess.run(['install', '-d', '-o', 'mysql', folder], check=True)
        subprocess.run(['mariadb-install-db', '--no-defaults', f'--datadir={folder}/data', '--user=mysql', '--skip-test-db', '--auth-root-authentication-method=normal'], check=True, stdout=subprocess.DEVNULL)
        self.port, socket = free_port(), f'{folder}/socket'
        super().__init__(['mariadbd', '--no-defaults', f'--datadir={folder}/data', '--user=mysql', f'--socket={socket}', '--bind-address=127.0.0.1', f'--port={self.port}', '--max-allowed-packet=64M'], folder / 'log')
        self.wait_for(lambda: pathlib.Path(socket).exists() and listens(self.port))
        self.tell = lambda statement: subprocess.run(['mariadb', '--no-defaults', f'--socket={socket}', '-uroot', '-e', statement], check=True)
        self.tell(f"CREATE DATABASE site CHARACTER SET utf8mb4; CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION")


class Application:
    """One application, as its author and as a stranger use it."""
    # What `yorozu serve` says that it found, and its folder below the one that has them all.
    found = folder = ''
    # Pages that strangers may read once it is installed.
    pages = ['/']
    # Endings of files that it may hand out beside those that pages need: they tell nothing.
    given = set()
    # Scripts that may run when a request names them.
    runs = r'/index\.php'
    # What its pages have for who is logged in alone.
    marks = []
    # Options for `yorozu serve`.
    options = ['--cache', '30s']

    def __init__(self, site, stack):
        # The folder that is served, its URL, and what ends with the test.
        self.site, self.url, self.stack = site, '', stack

    @functools.cached_property
    def database(self):
        return self.stack.enter_context(MariaDb(self.site.parent / 'mariadb'))

    def prepare(self):
        """Does what its handbook says is to be done on the machine, before it is asked for."""

    def install(self, visitor):
        """Installs it by its own pages."""

    def log_in(self, visitor):
        """Logs its author in."""

    def write(self, owner):
        """Writes WORD where everyone may read it; paths."""
        return []

    def keep(self, owner):
        """Writes SECRET where its author alone may read it; paths."""
        return []

    def search(self):
        """The path of a search for WORD."""

    def upload(self, owner, name, content):
        """Uploads a file; the path of it, or None where the application refuses it by a limit of its own."""

    def log_out(self, owner):
        """Logs its author out."""


def text_of(page):
    """What a page's reader sees, on one line."""
    document = lxml.html.fromstring(page.content or b'<p>nothing')
    for hidden in document.xpath('//script | //style'):
        hidden.drop_tree()
    return ' '.join(document.text_content().split())


def has(page, word):
    assert word in page.text, f'{page.request.method} {page.url} ({page.status_code}) is without "{word}": {text_of(page)[:1500]}'
    return page
