"""FreeScout, a help desk made with Laravel, as its release has it, with MariaDB."""
import re
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


class FreeScout(Application):
    found = 'Laravel'
    folder = 'freescout'
    pages = ['/', '/login', '/password/reset', '/robots.txt', '/site.webmanifest', '/js/laroute.js', '/css/fonts.css', '/index.php/login']
    marks = ['Log Out', 'Annabel']
    runs = r'/(index|install|tools)\.php'

    def install(self, visitor):
        # Each page leads to this script, beside the one that makes all others, until it has written the settings.
        has(visitor.get('/install.php'), 'Installer')
        has(visitor.get('/install/requirements'), 'Check Permissions')
        database = {'database_connection': 'mysql', 'database_hostname': '127.0.0.1', 'database_port': str(self.database.port), 'database_name': 'site', 'database_username': USER, 'database_password': PASSWORD}
        admin = {'admin_first_name': 'Annabel', 'admin_last_name': 'Lee', 'admin_email': EMAIL, 'admin_password': PASSWORD}
        has(visitor.submit('/install/environment/wizard', {'app_url': self.url.rstrip('/'), **database, **admin}), 'successfully installed')
        (self.site / 'public/install.php').unlink()

    def log_in(self, visitor):
        has(visitor.submit('/login', {'email': EMAIL, 'password': PASSWORD, 'remember': 'on'}), 'Log Out')

    def ajax(self, owner, path, values, files=None):
        page = owner.get(self.box)
        token = re.search(r'csrf-token" content="([^"]+)"', page.text)[1]
        return has(owner.post(path, data={**values, '_token': token}, files=files, headers={'X-Requested-With': 'XMLHttpRequest'}), '"status":"success"').json()

    def write(self, owner):
        page = owner.submit('/mailbox/new', {'email': 'help@example.com', 'name': 'Help'})
        self.box = '/mailbox/' + re.search(r'/mailbox/(?:\w+/)*(\d+)', page.url)[1]
        # What it shows to strangers: files that are part of what it sends by mail.
        return [self.ajax(owner, '/uploads/upload', {}, {'file': ('notes.txt', WORD.encode())})['url']]

    def keep(self, owner):
        number = self.box.rpartition('/')[2]
        form = {'action': 'send_reply', 'mailbox_id': number, 'is_create': '1', 'type': '2', 'name': 'Lenore', 'phone': '1', 'subject': SECRET, 'body': f'{SECRET} and {WORD}', 'status': '1', 'user_id': '-1'}
        self.ajax(owner, '/conversation/ajax', form)
        talk = re.search(r'(/conversation/\d+)', has(owner.get(f'/search?q={WORD}'), SECRET).text)[1]
        return [talk, f'/search?q={SECRET}', self.box]

    def search(self):
        return f'/search?q={WORD}'

    def upload(self, owner, name, content):
        return self.ajax(owner, '/conversation/upload', {'attach': '1'}, {'file': (name, content, 'application/zip')})['url']

    def log_out(self, owner):
        token = re.search(r'csrf-token" content="([^"]+)"', owner.get(self.box).text)[1]
        owner.post('/logout', data={'_token': token})
