"""DokuWiki, as its release has it."""
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


class DokuWiki(Application):
    found = 'DokuWiki'
    folder = 'dokuwiki'
    pages = ['/', '/doku.php?id=start', '/start', '/doku.php?do=index', '/doku.php?id=start&do=recent', '/feed.php', '/lib/exe/css.php?t=dokuwiki', '/doku.php?id=start&do=login', '/_export/raw/start']
    marks = ['Logged in as']
    runs = r'/(doku|index|feed|install|lib/exe/\w+|lib/plugins/styling/popup)\.php'

    def install(self, visitor):
        page = visitor.submit('/install.php', {'d[title]': 'A wiki', 'd[superuser]': USER, 'd[fullname]': 'Annabel', 'd[email]': EMAIL, 'd[password]': PASSWORD, 'd[confirm]': PASSWORD, 'd[policy]': '0', 'd[license]': 'cc-by'}, button='submit')
        has(page, 'success')
        (self.site / 'install.php').unlink()
        # Short URLs, as its handbook has them.
        with open(self.site / 'conf/local.php', 'a') as settings:
            settings.write("\n$conf['userewrite'] = 1;\n")
        # Nobody but members reads what is below "private".
        with open(self.site / 'conf/acl.auth.php', 'a') as settings:
            settings.write('private:*\t@ALL\t0\nprivate:*\t@user\t16\n')

    def log_in(self, visitor):
        page = visitor.submit('/doku.php?id=start&do=login', {'u': USER, 'p': PASSWORD})
        has(page, 'Logged in as')

    def saved(self, owner, name, text):
        page = owner.submit(f'/doku.php?id={name}&do=edit', {'wikitext': text}, button='do[save]')
        has(page, text)
        return '/' + name

    def write(self, owner):
        return [self.saved(owner, 'start', WORD), self.saved(owner, 'garden:plants', WORD)]

    def keep(self, owner):
        name = self.saved(owner, 'private:notes', SECRET)
        return [name, '/doku.php?id=private:notes', '/_export/raw/private:notes']

    def search(self):
        return f'/start?do=search&q={WORD}'

    def upload(self, owner, name, content):
        page = owner.submit('/lib/exe/mediamanager.php?ns=', {}, {'upload': (name, content)})
        return f'/_media/{name}' if 'Upload successful' in page.text else None

    def log_out(self, owner):
        token = owner.get('/start').text.partition('sectok=')[2].partition('"')[0]
        owner.get(f'/doku.php?id=start&do=logout&sectok={token}')
