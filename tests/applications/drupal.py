"""Drupal 10, as Composer lays it out: visitors see "web"."""
import re, struct, zlib
import lxml.html
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


def picture():
    """A PNG of 600 x 400 dots."""
    chunk = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 600, 400, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(400 * (b'\0' + 600 * b'\x20\x80\x40'))) + chunk(b'IEND', b'')


class Drupal(Application):
    found = 'Drupal'
    folder = 'drupal'
    pages = ['/', '/node', '/rss.xml', '/user/login', '/user/password', '/user/register', '/contact', '/filter/tips', '/jsonapi', '/jsonapi/node/article', '/robots.txt']
    marks = ['Log out', 'My account']
    runs = r'/(index|update|core/(install|rebuild|authorize|modules/statistics/statistics))\.php'

    def prepare(self):
        settings = self.site / 'web/sites/default/settings.php'
        settings.write_text((settings.parent / 'default.settings.php').read_text() + "\n$settings['file_private_path'] = 'sites/default/files/private';\n")

    def batch(self, page, visitor):
        """Follows the pages of a long task as a browser without scripts does."""
        while refresh := lxml.html.fromstring(page.content).xpath('//meta[translate(@http-equiv, "R", "r") = "refresh"]/@content'):
            page = visitor.get(refresh[0].partition('URL=')[2])
        return page

    def install(self, visitor):
        page = visitor.submit('/core/install.php', {'langcode': 'en'}, button='op')
        page = visitor.submit(page, {'profile': 'standard'}, button='op')
        # It warns of little memory for PHP; whoever wants to goes on.
        if 'continue anyway' in page.text:
            page = visitor.get('/core/install.php?langcode=en&profile=standard&continue=1')
        page = visitor.submit(page, {'driver': 'sqlite', 'sqlite[database]': 'sites/default/files/.ht.sqlite'}, button='op')
        page = self.batch(page, visitor)
        page = visitor.submit(page, {'site_name': 'A garden', 'site_mail': EMAIL, 'account[name]': USER, 'account[pass][pass1]': PASSWORD, 'account[pass][pass2]': PASSWORD, 'account[mail]': EMAIL}, button='op')
        has(self.batch(page, visitor), 'Congratulations')
        page = visitor.submit('/admin/modules', {'modules[media][enable]': 'media', 'modules[jsonapi][enable]': 'jsonapi', 'modules[statistics][enable]': 'statistics'}, button='op')
        # It asks whether what they depend on may be installed as well.
        has(self.batch(visitor.submit(page, {'confirm': '1'}, button='op'), visitor), 'have been')
        # Pages may be kept by proxies, as its handbook advises.
        has(visitor.submit('/admin/config/development/performance', {'page_cache_maximum_age': '900'}, button='op'), 'have been saved')
        fields = '/admin/structure/media/manage/{0}/fields/media.{0}.field_media_{1}'
        has(visitor.submit(fields.format('document', 'document'), {'settings[file_extensions]': 'zip'}, button='op'), 'Saved')
        # What members alone hear: below "private", which PHP hands out.
        has(visitor.submit(fields.format('audio', 'audio_file') + '/storage', {'settings[uri_scheme]': 'private'}, button='op'), 'Updated')
        has(visitor.submit(fields.format('audio', 'audio_file'), {'settings[file_extensions]': 'txt'}, button='op'), 'Saved')

    def log_in(self, visitor):
        has(visitor.submit('/user/login', {'name': USER, 'pass': PASSWORD}, button='op'), 'Log out')
        # A page's personal parts follow later by a script, except for browsers without any.
        visitor.get('/big_pipe/no-js?destination=/')

    def article(self, owner, title, text, alias, **more):
        # The editor has its scripts, among them those below "vendor" that are for browsers.
        for path in {*re.findall(r'(?:src|href)="(/[^"]+\.(?:js|css|svg)\b[^"]*)"', owner.get('/node/add/article').text)}:
            assert owner.get(path.replace('&amp;', '&')).status_code == 200, path
        page = owner.submit('/node/add/article', {}, {'files[field_image_0]': (f'{title}.png', picture())}, button='field_image_0_upload_button')
        values = {'title[0][value]': title, 'body[0][value]': text, 'path[0][alias]': alias, 'field_tags[target_id]': 'Herbs', 'field_image[0][alt]': title, **more}
        return has(owner.submit(page, values, button='op'), 'has been created')

    def write(self, owner):
        self.article(owner, 'Plants', WORD, '/plants')
        page = owner.get('/plants').text
        # The picture as it was uploaded, one of another size, and styles: PHP makes the latter two when they are first asked for.
        made = re.findall(r'"(/sites/default/files/(?:styles|css|js)/[^"]+)"', page.replace('&amp;', '&'))
        assert {kind for path in made for kind in ('styles', 'css') if f'/{kind}/' in path} == {'styles', 'css'}, page
        has(owner.submit('/plants', {'subject[0][value]': 'A word', 'comment_body[0][value]': WORD}, button='op'), 'A word')
        return ['/plants', '/node/1', '/index.php/plants', '/taxonomy/term/1', *made[:4]]

    def keep(self, owner):
        self.article(owner, 'Notes', SECRET, '/notes', **{'status[value]': []})
        has(owner.submit('/media/add/audio', {'status[value]': []}, {'files[field_media_audio_file_0]': ('voice.txt', SECRET.encode())}, button='op'), 'has been created')
        return ['/notes', '/node/2', '/node/2/edit', re.search(r'/system/files/[^"]+', owner.get('/media/1/edit').text).group()]

    def search(self):
        return f'/search/node?keys={WORD}'

    def upload(self, owner, name, content):
        page = owner.submit('/media/add/document', {'revision_log_message[0][value]': 'New'}, {'files[field_media_document_0]': (name, content)}, button='op')
        has(page, 'has been created')
        newest = re.search(r'/media/\d+/edit', owner.get('/admin/content/media').text).group()
        return re.search(rf'/sites/default/files/[\w-]+/{name}', owner.get(newest).text).group()

    def log_out(self, owner):
        owner.get('/user/logout')


class Drupal7(Application):
    """Drupal 7, whose pages are those of Drupal 6 and Backdrop, too: all of it in one folder."""
    found = 'Drupal'
    folder = 'drupal7'
    pages = ['/', '/node', '/rss.xml', '/user', '/user/password', '/user/register', '/contact', '/filter/tips', '/robots.txt']
    marks = ['Log out', 'My account']
    runs = r'/(index|install|update|cron|xmlrpc|authorize|modules/statistics/statistics)\.php'
    batch = Drupal.batch

    def prepare(self):
        folder = self.site / 'sites/default'
        (folder / 'settings.php').write_text((folder / 'default.settings.php').read_text())

    def install(self, visitor):
        # Its first pages choose these; it warns of little memory for PHP, and whoever wants to goes on.
        page = visitor.get('/install.php?profile=standard&locale=en&continue=1')
        page = visitor.submit(page, {'driver': 'sqlite', 'sqlite[database]': 'sites/default/files/.ht.sqlite'}, button='op')
        page = self.batch(page, visitor)
        page = visitor.submit(page, {'site_name': 'A garden', 'site_mail': EMAIL, 'account[name]': USER, 'account[pass][pass1]': PASSWORD, 'account[pass][pass2]': PASSWORD, 'account[mail]': EMAIL, 'clean_url': '1'}, button='op')
        has(self.batch(page, visitor), 'Congratulations')
        has(self.batch(visitor.submit('/admin/modules', {'modules[Core][contact][enable]': '1', 'modules[Core][statistics][enable]': '1'}, button='op'), visitor), 'have been saved')
        has(visitor.submit('/admin/config/media/file-system', {'file_private_path': 'sites/default/files/private'}, button='op'), 'have been saved')
        has(visitor.submit('/admin/config/development/performance', {'cache': '1', 'page_cache_maximum_age': '900', 'preprocess_css': '1', 'op': 'Save configuration'}), 'have been saved')
        # Articles get a file that all may have, and one below "private", which PHP hands out.
        for name, scheme in (('pebbles', 'public'), ('voice', 'private')):
            page = visitor.submit('/admin/structure/types/manage/article/fields', {'fields[_add_new_field][label]': name, 'fields[_add_new_field][field_name]': name, 'fields[_add_new_field][type]': 'file', 'fields[_add_new_field][widget_type]': 'file_generic'}, button='op')
            page = visitor.submit(page, {'field[settings][uri_scheme]': scheme}, button='op')
            has(visitor.submit(page, {'instance[settings][file_extensions]': 'txt zip'}, button='op'), 'Saved')

    def log_in(self, visitor):
        has(visitor.submit('/user', {'name': USER, 'pass': PASSWORD}, button='op'), 'Log out')

    def article(self, owner, title, text, files=None, **more):
        page = owner.submit('/node/add/article', {'title': title, 'body[und][0][value]': text, **more}, files, button='op')
        return has(page, 'has been created')

    def write(self, owner):
        self.article(owner, 'Plants', WORD, {'files[field_image_und_0]': ('plants.png', picture())}, **{'field_tags[und]': 'Herbs'})
        made = re.findall(r'"(?:https?://[^/"]+)?(/sites/default/files/(?:styles|css)/[^"]+)"', owner.get('/node/1').text.replace('&amp;', '&'))
        assert [path for path in made if '/styles/' in path], made
        return ['/node/1', '/?q=node/1', '/taxonomy/term/1', *made[:3]]

    def keep(self, owner):
        self.article(owner, 'Notes', SECRET, {'files[field_voice_und_0]': ('voice.txt', SECRET.encode())}, status=[])
        return ['/node/2', '/node/2/edit', re.search(r'/system/files/[^"]+', owner.get('/node/2').text).group()]

    def search(self):
        return f'/search/node/{WORD}'

    def upload(self, owner, name, content):
        page = self.article(owner, name, name, {'files[field_pebbles_und_0]': (name, content)})
        return re.search(rf'/sites/default/files/([\w-]+/)?{name}', page.text).group()

    def log_out(self, owner):
        owner.get('/user/logout')
