"""The demonstration of Symfony, a blog: as its repository has it, with what Composer installs."""
import re, subprocess
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


class SymfonyDemo(Application):
    found = 'Symfony'
    folder = 'symfonydemo'
    pages = ['/', '/en', '/fr', '/en/blog/', '/en/blog/page/2', '/en/blog/rss.xml', '/en/blog/?tag=lorem', '/en/login', '/en/blog/search?q=lorem', '/build/entrypoints.json', '/robots.txt']
    marks = ['Logout']

    def prepare(self):
        # It tells the authors of comments by mail.
        (self.site / '.env.local').write_text('MAILER_DSN=null://null\n')

    def install(self, visitor):
        # Its handbook adds people by the console.
        subprocess.run(['php', 'bin/console', 'app:add-user', USER, PASSWORD, EMAIL, 'Annabel Lee', '--admin'], user='www-data', group='www-data', extra_groups=[], cwd=self.site, check=True, stdout=subprocess.DEVNULL)

    def log_in(self, visitor):
        page = visitor.submit('/en/login', {'_username': USER, '_password': PASSWORD, '_remember_me': 'on'})
        assert visitor.cookies.get('REMEMBERME'), page.text[:2000]

    def saved(self, owner, text, year):
        page = owner.submit('/en/admin/post/new', {'post[title]': text, 'post[summary]': text, 'post[content]': text + ' and enough to be a post', 'post[publishedAt]': f'{year}-01-01T10:00', 'post[tags]': ''})
        return re.search(rf'(/en/admin/post/\d+)"[^>]*>', has(owner.get('/en/admin/post/'), text).text)[1]

    def write(self, owner):
        self.saved(owner, WORD, 2020)
        post = f'/en/blog/posts/{WORD}'
        # A form that POSTs to a pretty URL.
        has(owner.submit(post, {'comment[content]': f'Some {WORD} grows here'}), 'Some ')
        return [post]

    def keep(self, owner):
        post = self.saved(owner, SECRET, 2090)
        return ['/en/admin/post/', post, post + '/edit']

    def search(self):
        return f'/en/blog/search?q={WORD}'

    # It has no uploads.

    def log_out(self, owner):
        page = owner.get('/en/admin/post/')
        owner.get(re.search(r'href="([^"]*/logout[^"]*)"', page.text)[1].replace('&amp;', '&'))
