"""WordPress with the plugin, as Debian has it or a release."""
import re, shutil
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, Visitor, has
from peers import ROOT, until


class WordPress(Application):
    found = 'WordPress'
    folder = 'wordpress'
    pages = ['/', '/feed/', '/comments/feed/', '/wp-json/', '/wp-json/wp/v2/posts', '/sample-page/', '/wp-sitemap.xml', '/wp-login.php', '/robots.txt', '/category/uncategorized/', '/xmlrpc.php?rsd']
    marks = ['id="wpadminbar"', 'Log Out']
    # Pages are kept as long as is usual for WordPress: the plugin purges what changes.
    options = []
    runs = r'/(index|xmlrpc|wp-[\w-]+|wp-admin/.*|wp-content/(?!uploads/).*)\.php'

    def prepare(self):
        shutil.copytree(ROOT / 'wordpress/yorozu', self.site / 'wp-content/plugins/yorozu')
        sample = next(path for path in (self.site / 'wp-config-sample.php', self.site.parent / 'wp-config-sample.php') if path.exists()).read_text()
        for old, new in (('database_name_here', 'site'), ('username_here', USER), ('password_here', PASSWORD), ("'localhost'", f"'127.0.0.1:{self.database.port}'")):
            sample = sample.replace(old, new)
        (self.site / 'wp-config.php').write_text(sample.replace('/* Add any', "define( 'FS_METHOD', 'direct' ); define( 'WP_HTTP_BLOCK_EXTERNAL', true );\n/* Add any"))

    def install(self, visitor):
        page = visitor.submit('/wp-admin/install.php?step=1', {'weblog_title': 'A site', 'user_name': USER, 'admin_password': PASSWORD, 'admin_password2': PASSWORD, 'admin_email': EMAIL})
        has(page, 'Success')
        self.log_in(visitor)
        visitor.submit('/wp-admin/options-permalink.php', {'selection': '/%postname%/', 'permalink_structure': '/%postname%/'}, button='submit')
        plugins = visitor.get('/wp-admin/plugins.php').text
        link = plugins.partition('plugins.php?action=activate&amp;plugin=yorozu')[2].partition('"')[0]
        visitor.get('/wp-admin/plugins.php?action=activate&plugin=yorozu' + link.replace('&amp;', '&'))
        has(visitor.get('/wp-admin/plugins.php?plugin_status=active'), 'yorozu')

    def log_in(self, visitor):
        visitor.get('/wp-login.php')
        has(visitor.post('/wp-login.php', {'log': USER, 'pwd': PASSWORD, 'testcookie': '1'}), 'Dashboard')
        visitor.headers['X-WP-Nonce'] = visitor.get('/wp-admin/admin-ajax.php?action=rest-nonce').text

    def written(self, owner, path, **values):
        answer = owner.post('/wp-json/wp/v2/' + path, json=values)
        assert answer.ok, answer.text
        return answer.json()

    def write(self, owner):
        post = self.written(owner, 'posts', title='Plants', content=f'<p>{WORD}</p>', status='publish')
        for path in ('/plants/', '/', '/feed/'):
            assert WORD in [Visitor(self.url).get(path).text for _ in range(2)][1], path
        self.written(owner, f'posts/{post["id"]}', content=f'<p>{WORD} in flower</p>')
        for path in ('/plants/', '/', '/feed/'):
            # The first one may get the old page while the new one is made (docs/wordpress.md).
            until(f'the new {path}', lambda: 'in flower' in Visitor(self.url).get(path).text, 5)
        return ['/plants/']

    def keep(self, owner):
        private = self.written(owner, 'posts', title='Mine', content=f'<p>{SECRET}</p>', status='private')
        draft = self.written(owner, 'posts', title='Later', content=f'<p>{SECRET}</p>', status='draft')
        return [f'/?p={private["id"]}', f'/?p={draft["id"]}&preview=true', f'/wp-json/wp/v2/posts/{private["id"]}?context=edit', f'/wp-admin/post.php?post={draft["id"]}&action=edit']

    def search(self):
        return f'/?s={WORD}'

    def upload(self, owner, name, content):
        page = has(owner.get('/wp-admin/media-new.php'), '_wpnonce')
        nonce = page.text.partition('name="_wpnonce" value="')[2].partition('"')[0]
        answer = owner.post('/wp-admin/async-upload.php', {'_wpnonce': nonce, 'action': 'upload-attachment', 'name': name}, files={'async-upload': (name, content)}).json()
        assert answer['success'], answer
        return answer['data']['url']

    def log_out(self, owner):
        nonce = re.search(r'action=logout[^"\']*_wpnonce=(\w+)', owner.get('/wp-admin/').text).group(1)
        owner.get(f'/wp-login.php?action=logout&_wpnonce={nonce}')
