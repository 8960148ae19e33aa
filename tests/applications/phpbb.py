"""phpBB 3.3, as its release has it."""
import re, subprocess, time
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


class PhpBb(Application):
    found = 'phpBB'
    folder = 'phpbb'
    pages = ['/', '/index.php', '/viewforum.php?f=2', '/viewtopic.php?t=1', '/app.php/help/faq', '/app.php/feed', '/memberlist.php', '/ucp.php?mode=login', '/ucp.php?mode=terms', '/viewonline.php', '/app.php/help/bbcode']
    marks = ['Logout']
    runs = r'/(app|cron|faq|feed|index|mcp|memberlist|posting|report|search|ucp|viewforum|viewonline|viewtopic|adm/(index|swatch)|download/file|install/app)\.php'

    def install(self, visitor):
        has(visitor.get('/install/app.php/install'), 'Install')
        # Each step of its installer asks for the next by scripts; the program beside it does the same.
        host, port = re.search(r'//([^:/]+):(\d+)', visitor.url).groups()
        (self.site / 'store/installer.yml').write_text(f'''installer:
    admin: {{name: {USER}, password: {PASSWORD}, email: {EMAIL}}}
    board: {{lang: en, name: A garden, description: Words of its gardeners}}
    database: {{dbms: sqlite3, dbhost: {self.site}/store/board.sqlite3, dbport: ~, dbuser: ~, dbpasswd: ~, dbname: ~, table_prefix: phpbb_}}
    email: {{enabled: false, smtp_delivery: ~, smtp_host: ~, smtp_port: ~, smtp_auth: ~, smtp_user: ~, smtp_pass: ~}}
    server: {{cookie_secure: false, server_protocol: 'http://', force_server_vars: false, server_name: {host}, server_port: {port}, script_path: /}}
    extensions: []
''')
        subprocess.run(['php', 'install/phpbbcli.php', 'install', 'store/installer.yml'], cwd=self.site, user='www-data', group='www-data', extra_groups=[], check=True, capture_output=True)
        # Attachments of any size, which a new board limits to 256 KB.
        for name in ('max_filesize', 'attachment_quota'):
            subprocess.run(['php', 'bin/phpbbcli.php', 'config:set', name, '0'], cwd=self.site, user='www-data', group='www-data', extra_groups=[], check=True, capture_output=True)
        subprocess.run(['rm', '-r', self.site / 'install'], check=True)
        (self.site / 'store/installer.yml').unlink()

    def typed(self, visitor, path, *what, **more):
        page = visitor.get(path) if isinstance(path, str) else path
        # A form that comes back at once is taken for a robot's.
        time.sleep(2)
        return visitor.submit(page, *what, **more)

    def log_in(self, visitor):
        has(self.typed(visitor, '/ucp.php?mode=login', {'username': USER, 'password': PASSWORD}, button='login'), 'Logout')

    def write(self, owner):
        page = has(self.typed(owner, '/posting.php?mode=post&f=2', {'subject': 'Plants', 'message': WORD}, button='post'), WORD)
        self.topic = int(re.search(r'[?&;]t=(\d+)', page.text).group(1))
        return [f'/viewtopic.php?t={self.topic}', f'/app.php/feed/topic/{self.topic}']

    def keep(self, owner):
        page = self.typed(owner, '/posting.php?mode=post&f=2', {'subject': 'Notes', 'message': SECRET}, button='save')
        has(owner.submit(page, {}, button='confirm'), 'saved')
        # A message to its author alone.
        page = self.typed(owner, '/ucp.php?i=pm&mode=compose', {'username_list': USER}, button='add_to')
        has(self.typed(owner, page, {'subject': 'Notes', 'message': SECRET}, button='post'), 'sent')
        # Messages arrive when their folder is looked at.
        owner.get('/ucp.php?i=pm&folder=inbox')
        return ['/ucp.php?i=ucp_main&mode=drafts&edit=1', '/ucp.php?i=pm&mode=view&f=0&p=1']

    def search(self):
        return f'/search.php?keywords={WORD}'

    def upload(self, owner, name, content):
        page = self.typed(owner, f'/posting.php?mode=reply&t={self.topic}', {'message': name}, {'fileupload': (name, content)}, button='add_file')
        page = has(self.typed(owner, page, {}, button='post'), name)
        return '/download/file.php?id=' + re.findall(r'download/file\.php\?id=(\d+)', page.text)[-1]

    def log_out(self, owner):
        owner.get(re.search(r'[^"]*mode=logout[^"]*', owner.get('/').text).group().replace('&amp;', '&').lstrip('.'))
