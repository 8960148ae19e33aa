"""What `yorozu serve` makes of real applications: `make applications APPLICATIONS=folder`, where the folder has one folder for each.

Each that is there is installed and used, as its author and as strangers, with `--cache 30s` (WordPress without): it is found, works, takes
and gives files of 2 and 200 MB and parts of them, and strangers see nothing of its author's, neither in a page that was kept nor by asking
for each of its files. The rows of the table go to target/tests/applications.
"""
import contextlib, hashlib, importlib, json, os, pathlib, random, re, subprocess, time, urllib.parse
import pytest
import applications
from applications import SECRET, WORD, Application, Visitor
from conftest import LOGS
from peers import YOROZU, Folder, equal
from served import Served

FOLDER = pathlib.Path(os.environ.get('APPLICATIONS') or pytest.skip('APPLICATIONS names no folder', allow_module_level=True))
# Files whose text is a page's, or a program's for browsers: they hold what everyone may read.
PUBLIC = {'.css', '.js', '.mjs', '.map', '.png', '.jpg', '.jpeg', '.gif', '.svg', '.webp', '.avif', '.ico', '.cur', '.woff', '.woff2', '.ttf', '.otf', '.eot', '.wasm', '.htc', '.swf',
          '.html', '.htm', '.xhtml', '.txt', '.pdf', '.mp3', '.mp4', '.webm', '.ogg', '.wav', '.webmanifest', '.less', '.scss', '.hbs', '.csv', '.zip', '.gz', '.bcmap', '.properties', '.ftl', '.pfb', '.afm', '.patch', '.odt', '.rng'}
# What says no more than a release has, but nothing either that a page needs.
IDLE = {'.md', '.json', '.xml', '.xsl', '.xsd', '.dtd', '.tpl', '.mustache', '.po', '.pot', '.mo', '.yml', '.yaml', '.json5', '.rst', '.ts', '.tsx', '.vue', '.sass', '.sh', '.xcf', '.crt', '.tab', '.meta', '.template', ''}
MEGABYTE = 1 << 20


def of_each():
    for path in sorted(pathlib.Path(applications.__file__).parent.glob('[a-z]*.py')):
        module = importlib.import_module(f'applications.{path.stem}')
        yield from (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Application) and kind.__module__ == module.__name__ and kind.found)


def bytes_of(size):
    return random.Random(size).randbytes(size)


class Row:
    """What was seen of an application."""

    def __init__(self, kind):
        self.kind, self.figures, self.wrong = kind, {}, []

    def expect(self, holds, what):
        if not holds:
            self.wrong.append(what)

    def written(self):
        LOGS.joinpath('applications').mkdir(parents=True, exist_ok=True)
        cells = [self.kind.__name__, *(str(self.figures.get(name, '-')) for name in ('requests', 'first page', 'kept', '2 MB', '200 MB', 'files asked for', 'scripts run')), 'yes' if not self.wrong else '; '.join(self.wrong)]
        path = LOGS / f'applications/{self.kind.folder}.md'
        path.write_text('| ' + ' | '.join(cells) + ' |\n')
        path.with_suffix('.json').write_text(json.dumps(dict(self.figures, wrong=self.wrong, given=getattr(self, 'given', {}), ran=getattr(self, 'ran', [])), indent=1))


def logged(served):
    return [json.loads(line) for line in served.told().splitlines() if line.startswith('{"time"')]


def has_private(page, marks):
    return next((mark for mark in [SECRET, *marks] if mark.encode() in page.content), None)


def uploaded(row, application, owner, megabytes, url):
    content = bytes_of(megabytes * MEGABYTE)
    path = application.upload(owner, f'pebbles{megabytes}.zip', content)
    if path is None:
        row.figures[f'{megabytes} MB'] = 'its own limit'
        return
    row.figures[f'{megabytes} MB'] = 'yes'
    whole = owner.get(path)
    row.expect(hashlib.sha256(whole.content).digest() == hashlib.sha256(content).digest(), f'{path}: {whole.status_code}, {len(whole.content)} of {len(content)} bytes that were uploaded')
    # One that the application answers itself may give the whole: RFC 9110, 14.2.
    part = owner.get(path, headers={'Range': 'bytes=1000-1999'})
    row.expect(part.content == content[1000:2000] if part.status_code == 206 else part.content == content, f'{path}: a range has {part.status_code} and {len(part.content)} bytes')
    row.figures[f'{megabytes} MB'] += ', ranges' if part.status_code == 206 else ', no ranges'


def asked_by_each(row, application, owner, public, private):
    """Asks for pages as the author, as strangers and as the author again, so that each could have what was kept of the other."""
    url = application.url
    for path in public + private:
        for _ in range(2):
            page = owner.get(path)
            row.expect(page.status_code == 200, f'{path}: {page.status_code} for its author')
            if path in private:
                row.expect(SECRET in page.text, f'{path}: its author does not see it')
        before = {mark for mark in application.marks if mark in page.text}
        for _ in range(3):
            stranger = Visitor(url)
            shown = stranger.get(path)
            row.expect(shown.status_code < 500, f'{path}: {shown.status_code} for a stranger')
            seen = has_private(shown, application.marks)
            row.expect(seen is None, f'{path}: a stranger sees "{seen}"')
        page = owner.get(path)
        row.expect(before <= {mark for mark in application.marks if mark in page.text}, f'{path}: its author has a stranger\'s page')


def swept(row, application, root):
    """Asks for each file of the application as a stranger: by extension how many are given, and scripts that ran."""
    given, ran, asked = {}, [], 0
    stranger = Visitor(application.url)
    for path in sorted(root.rglob('*')):
        if not path.is_file() or path.is_symlink():
            continue
        name = '/' + str(path.relative_to(root))
        asked += 1
        stranger.cookies.clear()
        answer = stranger.get(urllib.parse.quote(name), allow_redirects=False, headers={'Accept-Encoding': 'identity'})
        is_file = answer.status_code == 200 and len(answer.content) == path.stat().st_size and answer.content == path.read_bytes()
        is_script = re.search(r'\.(php\d?|phtml|phar)$', name)
        row.expect(not (is_script and is_file and b'<?' in answer.content), f'{name}: the source of a script')
        row.expect(SECRET.encode() not in answer.content, f'{name}: a stranger sees "{SECRET}"')
        if is_script and answer.status_code not in (403, 404):
            ran.append(name)
            row.expect(re.fullmatch(application.runs, name), f'{name}: ran')
        elif is_file and not is_script:
            given.setdefault(path.suffix.lower(), []).append(name)
    row.given = {suffix: names if suffix not in PUBLIC else len(names) for suffix, names in given.items()}
    row.ran = ran
    for suffix in sorted(given.keys() - PUBLIC - IDLE - application.given):
        row.expect(False, f'{len(given[suffix])} files "{suffix}" are given: {" ".join(given[suffix][:5])}')
    row.figures.update({'files asked for': asked, 'scripts run': len(ran)})


@pytest.mark.parametrize('kind', of_each(), ids=lambda kind: kind.__name__)
def test_application(kind):
    source = FOLDER / kind.folder
    if not source.exists():
        pytest.skip(f'{source} is not there')
    row = Row(kind)
    with Folder() as base, contextlib.ExitStack() as stack:
        site = base / kind.folder
        subprocess.run(['cp', '-a', source, site], check=True)
        application = kind(site, stack)
        application.prepare()
        subprocess.run(['chown', '-R', 'www-data:www-data', site], check=True)
        since = time.monotonic()
        served = stack.enter_context(Served(base, site, '--json', *kind.options))
        application.url = url = f'http://127.0.0.1:{served.port}/'
        Visitor(url).get('/')
        row.figures['first page'] = f'{time.monotonic() - since:.1f} s'
        row.expect(f'yorozu: {kind.found} in ' in served.told(), f'not found: {served.told()[:300]}')
        application.install(Visitor(url))
        owner = Visitor(url)
        application.log_in(owner)
        public = [*kind.pages, *application.write(owner)]
        private = application.keep(owner)
        if application.search():
            public.append(application.search())
            row.expect(WORD in owner.get(application.search()).text, 'its search finds nothing')
        asked_by_each(row, application, owner, public, private)
        for megabytes in (2, 200):
            uploaded(row, application, owner, megabytes, url)
        application.log_out(owner)
        for path in private:
            row.expect(has_private(owner.get(path), kind.marks) is None, f'{path}: shown after logging out')
        lines = logged(served)
        # Neither an error nor a page of the server's own where the application has one.
        row.expect(not [line for line in lines if line['status'] >= 500], f'5xx: {[line["uri"] for line in lines if line["status"] >= 500][:5]}')
        kept = {line['uri'] for line in lines if line['cache'] == 'HIT'}
        row.figures.update({'requests': len(lines), 'kept': f'{len(kept & {path for path in public})} of {len(public)}'})
        printed = subprocess.run([YOROZU, 'serve', site, '--print'], capture_output=True, text=True, check=True).stdout
        swept(row, application, pathlib.Path(re.search(r'(?m)^\s*root (\S+);', printed).group(1)))
    row.written()
    equal(row.wrong, [], kind.__name__)
