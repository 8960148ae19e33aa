"""The packages as they are made, without a system to install them on: packaging/test has that, and is slow."""
import gzip, importlib.machinery, importlib.util, json, os, re, shutil, subprocess, sys, zipfile
import pytest
from peers import ROOT, YOROZU, Folder, equal

sys.path.insert(0, str(ROOT / 'packaging'))
import cookies
loader = importlib.machinery.SourceFileLoader('deb', str(ROOT / 'packaging/deb'))
deb = importlib.util.module_from_spec(importlib.util.spec_from_loader('deb', loader))
loader.exec_module(deb)


@pytest.fixture(scope='module')
def packages():
    """The packages of the program under test, not compressed."""
    with Folder() as folder:
        yield deb.make(folder, YOROZU, compression='none')


@pytest.fixture(scope='module')
def made(packages):
    """The packages, unpacked into folders of their names."""
    with Folder() as folder:
        for file in packages:
            if file.suffix == '.zip':
                continue
            subprocess.run(['dpkg-deb', '-R', file, folder / file.name.split('_')[0]], check=True)
        yield folder


def test_what_is_said_of_cookies_is_made_from_the_table():
    for path, text in cookies.texts().items():
        assert path.read_text() == text, f'{path} is out of date: packaging/cookies.py'


def test_the_texts_of_the_plugin_are_there_to_translate():
    with Folder() as folder:
        subprocess.run([ROOT / 'packaging/pot', folder / 'yorozu.pot'], check=True)
        made = (folder / 'yorozu.pot').read_text()
    assert made == (ROOT / 'wordpress/yorozu/languages/yorozu.pot').read_text(), 'it is out of date: packaging/pot'
    equal(made.count('\nmsgid_plural "'), 2)
    for text in ('Connect to the web server', '%1$s: \\"%2$s\\"'):
        assert f'msgid "{text}"' in made, text


def test_the_same_program_gives_the_same_packages(packages):
    with Folder() as folder:
        before = os.umask(0o077)
        first = deb.make(folder / 'first', YOROZU, compression='none')
        os.umask(before)
        for one, other in zip(first, packages, strict=True):
            assert one.name == other.name and one.read_bytes() == other.read_bytes(), one.name


def test_the_zip_is_the_plugin(packages):
    with zipfile.ZipFile(packages[-1]) as packed:
        found = {name: packed.read(name) for name in packed.namelist()}
    folder = ROOT / 'wordpress'
    assert found == {str(path.relative_to(folder)): path.read_bytes() for path in (folder / 'yorozu').rglob('*') if path.is_file()}


def test_the_maintainer_is_whoever_made_the_commit_or_is_named(made, packages, monkeypatch):
    control = (made / 'yorozu/DEBIAN/control').read_text()
    assert f'\nMaintainer: {deb.maintainer()}\n' in control and '.invalid' not in control, control
    monkeypatch.setenv('YOROZU_MAINTAINER', 'Ann <ann@example.com>')
    equal(deb.maintainer(), 'Ann <ann@example.com>')


def test_there_is_one_version():
    version = deb.version()
    said = subprocess.run([YOROZU, '-v'], capture_output=True, text=True).stderr
    assert f'yorozu/{version} ' in said, said
    assert f'\n## {version}\n' in (ROOT / 'CHANGELOG.md').read_text()
    plugin = (ROOT / 'wordpress/yorozu/yorozu.php').read_text() + (ROOT / 'wordpress/yorozu/readme.txt').read_text()
    found = re.findall(r"(?:Version: +|VERSION = '|Stable tag: )([\d.]+)", plugin)
    assert found == [version] * 3, found


def test_what_is_in_them(made):
    tree = made / 'yorozu'
    # Whatever is below /etc is the administrator's.
    conffiles = (tree / 'DEBIAN/conffiles').read_text().split()
    assert conffiles == sorted('/' + str(path.relative_to(tree)) for path in (tree / 'etc').rglob('*') if path.is_file()), conffiles
    for name in ('nginx.conf', 'mime.types', 'fastcgi_params', 'refused.conf', 'visitor.conf', 'sites-enabled/default'):
        assert f'/etc/yorozu/{name}' in conffiles, name
    assert (tree / 'etc/yorozu/conf.d').is_dir()
    bill = json.loads(gzip.decompress((tree / 'usr/share/doc/yorozu/sbom.cdx.json.gz').read_bytes()))
    text = (tree / 'usr/share/doc/yorozu/copyright').read_text()
    names = {one['name'] for one in bill['components']}
    assert {'tokio', 'rustls', 'aws-lc-sys'} <= names and all(f'Files: cargo/{name}-' in text for name in names)
    used = {name for line in re.findall(r'^License: (.*)$', text, re.M) for name in re.split(r' or | and ', line)}
    told = set(re.findall(r'^License: (\S+)\n ', text, re.M))
    assert {name.split(' with ')[0] for name in used} <= told, used - told


def test_links_of_the_handbook_lead_somewhere(made):
    place = made / 'yorozu/usr/share/doc/yorozu/docs'
    links = [(page.name, link) for page in sorted(place.glob('*.md')) for link in re.findall(r'\]\(([^)\s]+)\)', page.read_text())]
    missing = [(page, link) for page, link in links if not link.startswith(('http:', 'https:')) and not (place / (link.partition('#')[0] or page)).exists()]
    assert len(links) > 40 and not missing, missing


def test_the_configurations_in_it_load_where_they_are(made):
    for tree in ('etc/yorozu', 'usr/share/yorozu'):
        for file in sorted((made / 'yorozu' / tree).rglob('*.conf')):
            text = file.read_text().replace('/var/', f'{made}/var/').replace('/run/yorozu.pid', f'{made}/pid').replace('origin.example.com', '127.0.0.1')
            file.write_text(text)
    for place in ('log', 'cache', 'lib'):
        (made / 'var' / place / 'yorozu').mkdir(parents=True)
    for file in sorted((made / 'yorozu').rglob('nginx.conf')):
        if any(name in str(file) for name in ('microcache', 'supercache')):
            # They name certificates that are not here; tests/test_presets.py serves them.
            continue
        done = subprocess.run([YOROZU, '-t', '-q', '-c', file], capture_output=True, text=True)
        assert done.returncode == 0, f'{file}: {done.stderr}'


def test_the_manual_pages_are_whole(made):
    pages = sorted((made / 'yorozu/usr/share/man').rglob('*.gz'))
    for page in pages:
        done = subprocess.run(['man', '--warnings', '-E', 'UTF-8', '-l', '-Tutf8', '-Z', page], capture_output=True, text=True,
                              env=os.environ | {'MANWIDTH': '80'}) if shutil.which('man') else None
        assert not done or done.returncode == 0 and not done.stderr, done.stderr
    texts = {page.name.removesuffix('.gz'): gzip.decompress(page.read_bytes()).decode() for page in pages}
    assert len(texts) > 12 and '.SH EXAMPLES' in texts['yorozu-purge.8'] and '\\-\\-watch' in texts['yorozu-serve.8'], texts.keys()
    text = texts['yorozu-directives.5']
    rows = re.findall(r'^\| `(\w+)` \| \w', subprocess.run([YOROZU, '--directives'], capture_output=True, text=True).stdout, re.M)
    missing = [name for name in rows if f'\\fB{name}\\fR' not in text]
    assert len(rows) > 500 and not missing, missing


def test_completions_are_those_of_each_shell(made):
    bash, zsh, fish = (made / 'yorozu' / place for place in ('usr/share/bash-completion/completions/yorozu', 'usr/share/zsh/vendor-completions/_yorozu',
                                                             'usr/share/fish/vendor_completions.d/yorozu.fish'))
    ask = f'source {bash}; COMP_WORDS=(yorozu purge --t); COMP_CWORD=2; _yorozu yorozu --t purge; echo "${{COMPREPLY[*]}}"'
    assert subprocess.run(['bash', '-c', ask], capture_output=True, text=True).stdout.split() == ['--tag']
    assert zsh.read_text().startswith('#compdef yorozu') and '--explain-sizes' in zsh.read_text()
    assert 'complete -c yorozu' in fish.read_text()


def test_the_scripts_are_sh():
    for file in [*(ROOT / 'packaging/yorozu/DEBIAN').iterdir(), *(ROOT / 'packaging/yorozu/usr/lib/yorozu').iterdir()]:
        if file.name != 'control':
            assert subprocess.run(['sh', '-n', file]).returncode == 0, file
