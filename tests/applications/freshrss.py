"""FreshRSS, as its release has it, with SQLite: its public folder is p."""
import re, warnings
from applications import PASSWORD, SECRET, USER, WORD, Application, has

FEED = f'''<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>A garden</title><id>urn:garden</id><updated>2024-05-01T00:00:00Z</updated>
<entry><title>Plants: {WORD}</title><id>urn:garden:1</id><link href="http://garden.example/1"/><updated>2024-05-01T00:00:00Z</updated><content type="html">&lt;p&gt;{WORD} grows.&lt;/p&gt;</content></entry></feed>
'''


class FreshRss(Application):
    found = 'FreshRSS'
    folder = 'freshrss'
    pages = ['/i/', '/i/?a=normal', '/i/?a=global', '/i/?a=rss&state=0', '/i/?c=auth&a=login', '/i/?a=about', '/api/', '/api/greader.php', '/api/fever.php', '/f.php?h=1']
    marks = ['class="signout"', 'c=user&amp;a=profile']
    runs = r'/(index|f|ext|i/index|api/(index|fever|greader|query|pshb))\.php'

    def prepare(self):
        # A feed to read, of the site's own.
        (self.site / 'p/garden.xml').write_text(FEED)

    def install(self, visitor):
        visitor.submit('/i/', {'language': 'en'})
        page = visitor.submit('/i/index.php?step=2', {'type': 'sqlite'})
        page = visitor.submit(page, {'default_user': USER, 'auth_type': 'form', 'passwordPlain': PASSWORD})
        has(visitor.get('/i/index.php?step=5'), 'passwordPlain')

    def challenge(self, visitor):
        """What the script of its login form sends."""
        asked = visitor.get(f'/i/?c=javascript&a=nonce&user={USER}').json()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)
            import crypt
            return crypt.crypt(asked['nonce'] + crypt.crypt(PASSWORD, asked['salt1']), '$2a$04$' + 'abcdefghijklmnopqrstuu')

    def log_in(self, visitor):
        page = visitor.get('/i/?c=auth&a=login')
        page = visitor.submit(page, {'username': USER, 'challenge': self.challenge(visitor), 'keep_logged_in': '1'})
        has(page, 'class="signout"')

    def write(self, owner):
        # Strangers read along, and programs by the API.
        has(owner.submit('/i/?c=auth', {'anon_access': '1', 'api_enabled': '1'}), 'anon_access')
        page = owner.submit('/i/?c=subscription&a=add', {'url_rss': self.url + 'garden.xml'})
        self.feed = re.search(r'[?&;]id=(\d+)', page.url)[1]
        return ['/i/?a=normal&state=0', f'/i/?get=f_{self.feed}&state=0']

    def keep(self, owner):
        # Neither its queries nor its settings are a stranger's.
        owner.get(f'/i/?c=configure&a=bookmarkQuery&search={SECRET}&get=f_{self.feed}')
        return ['/i/?c=configure&a=queries']

    def search(self):
        return f'/i/?search={WORD}&state=0'

    # Feeds, lists of them and style sheets are read, never given back as they were: there is no upload.

    def log_out(self, owner):
        owner.get('/i/?c=auth&a=logout')
