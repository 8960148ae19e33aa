"""Nextcloud, as its release has it, with SQLite."""
import subprocess, urllib.parse
from applications import PASSWORD, SECRET, USER, WORD, Application, has

FILES = f'/remote.php/dav/files/{USER}'
CALENDAR = f'/remote.php/dav/calendars/{USER}/garden'
SHARES = '/ocs/v2.php/apps/files_sharing/api/v1/shares?format=json'
# Prints SECRET, which is not in it, where it runs.
PROBE = f"<?php echo strrev('{SECRET[::-1]}');\n"
PIECE = 10 << 20


class Nextcloud(Application):
    found = 'Nextcloud'
    folder = 'nextcloud'
    pages = ['/', '/login', '/index.php/login', '/status.php', '/cron.php', '/ocs-provider/', '/ocm-provider/', '/index.php/apps/theming/manifest', '/index.php/core/js/oc.js',
             '/apps/theming/css/default.css', '/core/img/logo/logo.svg', '/robots.txt']
    marks = [f'data-user="{USER}"', 'Log out']
    # The front script has all other paths, whether there is a script or not: it leads to the login, which looks as if they ran. The probes tell.
    runs = r'/(index|remote|public|cron|status|core/ajax/update|ocs/v[12]|oc[ms]-provider/index|updater/index)\.php|/(?!config|lib|3rdparty|data|console).+\.php'
    probes = ['apps/files/probe.php', 'apps/probe.php', 'core/probe.php', 'themes/probe.php', 'resources/probe.php', 'probe.php']

    def occ(self, *words):
        subprocess.run(['php', 'occ', *words], user='www-data', group='www-data', extra_groups=[], cwd=self.site, check=True, stdout=subprocess.DEVNULL)

    def prepare(self):
        (self.site / 'config/CAN_INSTALL').touch()
        for name in self.probes:
            (self.site / name).write_text(PROBE)

    def install(self, visitor):
        self.occ('maintenance:install', '--database=sqlite', f'--admin-user={USER}', f'--admin-pass={PASSWORD}', f'--data-dir={self.site}/data')
        self.occ('config:system:set', 'overwrite.cli.url', f'--value={self.url}')

    def log_in(self, visitor):
        def token():
            return visitor.get('/apps/files/' if 'requesttoken' in visitor.headers else '/login').text.partition('data-requesttoken="')[2].partition('"')[0]
        # Its form is made by scripts, which send this token with each request of theirs.
        page = visitor.post('/login', {'user': USER, 'password': PASSWORD, 'requesttoken': token()}, headers={'Origin': self.url.rstrip('/')})
        has(page, f'data-user="{USER}"')
        visitor.headers.update({'requesttoken': 'none', 'OCS-APIRequest': 'true'})
        visitor.headers['requesttoken'] = token()

    def put(self, owner, path, content, **more):
        page = owner.put(path, data=content, **more)
        assert page.status_code in (201, 204), f'PUT {path}: {page.status_code} {page.text[:500]}'
        return path

    def shared(self, owner, name):
        return urllib.parse.urlparse(owner.post(SHARES, {'path': name, 'shareType': 3}).json()['ocs']['data']['url']).path

    def write(self, owner):
        # What its overview for administrators warns of where it is missing.
        page = owner.get('/login')
        for name, value in (('Referrer-Policy', 'no-referrer'), ('X-Content-Type-Options', 'nosniff'), ('X-Frame-Options', 'SAMEORIGIN'), ('X-Permitted-Cross-Domain-Policies', 'none')):
            assert page.headers.get(name) == value, f'{name}: {page.headers.get(name)}'
        assert owner.get('/.well-known/webfinger').headers.get('X-NEXTCLOUD-WELL-KNOWN') == '1'
        assert owner.request('PROPFIND', '/.well-known/caldav', headers={'Depth': '0'}).status_code == 207
        has(owner.get('/ocm-provider/'), 'apiVersion')
        self.put(owner, f'{FILES}/{WORD}.txt', WORD)
        # Names that URLs and servers know otherwise.
        for name in ('über 100% #1?+a&b;c.css', 'index.php', 'lib.php', '.well-known'):
            path = self.put(owner, f'{FILES}/{urllib.parse.quote(name)}', name.encode())
            assert owner.get(path).content == name.encode(), name
        assert owner.request('MKCOL', f'{FILES}/{WORD}.php').status_code == 201
        self.put(owner, f'{FILES}/{WORD}.php/{WORD}.php', WORD)
        file, folder = self.shared(owner, f'/{WORD}.txt'), self.shared(owner, f'/{WORD}.php')
        has(owner.get(f'{file}/download'), WORD)
        return [file, f'{file}/download', f'/index.php{file}', folder, f'{folder}/download?path=/&files={WORD}.php']

    def keep(self, owner):
        event = f'BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\nDTSTART:20260101T000000Z\r\nSUMMARY:{SECRET}\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n'
        report = '<c:calendar-query xmlns:d="DAV:" xmlns:c="urn:ietf:params:xml:ns:caldav"><d:prop><c:calendar-data/></d:prop><c:filter><c:comp-filter name="VCALENDAR"/></c:filter></c:calendar-query>'
        assert owner.request('MKCALENDAR', CALENDAR).status_code == 201
        self.put(owner, f'{CALENDAR}/1.ics', event, headers={'Content-Type': 'text/calendar'})
        has(owner.request('REPORT', f'{CALENDAR}/', data=report, headers={'Depth': '1', 'Content-Type': 'application/xml'}), SECRET)
        self.put(owner, f'{FILES}/notes.txt', SECRET)
        # What is not what it was is not written over.
        assert owner.put(f'{FILES}/notes.txt', data=WORD, headers={'If-Match': '"other"'}).status_code == 412
        moved = {'Destination': urllib.parse.urljoin(self.url, f'{FILES}/moved%20notes.txt')}
        assert owner.request('COPY', f'{FILES}/notes.txt', headers=moved).status_code == 201
        has(owner.request('PROPFIND', f'{FILES}/', headers={'Depth': '1'}), 'moved%20notes.txt')
        return [f'{FILES}/notes.txt', f'{FILES}/moved%20notes.txt', '/remote.php/webdav/notes.txt', '/apps/files/ajax/download.php?dir=/&files=notes.txt', f'{CALENDAR}/1.ics', f'{CALENDAR}/?export']

    def search(self):
        return f'/ocs/v2.php/search/providers/files/search?term={WORD}&format=json'

    def upload(self, owner, name, content):
        whole = self.put(owner, f'{FILES}/{name}', content)
        # Its pages send what is large in pieces, and clients what they do not know the length of.
        self.put(owner, f'{FILES}/streamed-{name}', iter([content]))
        pieces, parts = f'/remote.php/dav/uploads/{USER}/{name}', f'{FILES}/parts-{name}'
        target = {'Destination': urllib.parse.urljoin(self.url, parts), 'OC-Total-Length': str(len(content))}
        assert owner.request('MKCOL', pieces, headers=target).status_code == 201
        for number, begin in enumerate(range(0, len(content), PIECE), 1):
            self.put(owner, f'{pieces}/{number:05}', content[begin:begin + PIECE], headers=target)
        assert owner.request('MOVE', f'{pieces}/.file', headers=target).status_code in (201, 204)
        assert owner.get(parts).content == content and owner.get(f'{FILES}/streamed-{name}').content == content
        return whole

    def log_out(self, owner):
        owner.get('/logout', params={'requesttoken': owner.headers['requesttoken']})
