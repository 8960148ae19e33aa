"""Bludit, as its release has it."""
import re, urllib.parse, uuid
from applications import PASSWORD, SECRET, WORD, Application, has


class Bludit(Application):
    found = 'PHP scripts'
    folder = 'bludit'
    # As on Apache: of its own scripts it says of none that nobody may ask for it, but what its .htaccess files refuse.
    runs = r'/.*\.php'
    pages = ['/', '/create-your-own-content', '/about', '/rss.xml', '/sitemap.xml', '/robots.txt', '/bl-kernel/css/bootstrap.min.css', '/bl-kernel/js/functions.js']
    marks = ['Log out', '/admin/logout']

    def install(self, visitor):
        visitor.submit('/install.php?language=en', {'password': PASSWORD})
        (self.site / 'install.php').unlink()

    def log_in(self, visitor):
        has(visitor.submit('/admin/', {'username': 'admin', 'password': PASSWORD}), 'Log out')

    def token(self, owner):
        return re.search(r'tokenCSRF = "(\w+)"', owner.get('/admin/dashboard').text)[1]

    def saved(self, owner, slug, word, kind):
        sent = {'tokenCSRF': self.token(owner), 'uuid': uuid.uuid4().hex, 'title': f'A {word}', 'slug': slug, 'type': kind, 'content': f'<p>{word}</p>', 'category': '', 'tags': ''}
        has(owner.post('/admin/new-content', data=sent), word)
        return '/' + slug

    def write(self, owner):
        # Its plugins make them.
        for plugin in ('pluginRSS', 'pluginSitemap', 'pluginSearch'):
            owner.get(f'/admin/install-plugin/{plugin}')
        paths = [self.saved(owner, 'planting', WORD, 'published'), self.saved(owner, 'beds', WORD, 'static')]
        has(owner.get('/planting'), WORD)
        return paths

    def keep(self, owner):
        self.saved(owner, 'sowing', SECRET, 'draft')
        return ['/admin/edit-content/sowing']

    def search(self):
        return f'/search/{WORD}'

    def upload(self, owner, name, content):
        # Its pages take pictures alone, its API other files as well.
        tokens = owner.get('/admin/api').json()
        page = owner.post('/api/files/planting', data={'token': tokens['apiToken'], 'authentication': tokens['authToken']}, files={'file': (name, content)})
        return urllib.parse.urlparse(page.json()['absoluteURL']).path

    def log_out(self, owner):
        owner.get('/admin/logout')
