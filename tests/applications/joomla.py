"""Joomla, as its release has it, with addresses that a search engine likes."""
import base64, json, re, subprocess
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has

ADMIN = '/administrator/index.php'


class Joomla(Application):
    found = 'Joomla'
    folder = 'joomla'
    pages = ['/', '/index.php', '/?format=feed&type=rss', '/?format=feed&type=atom', '/component/users/login', '/component/users/reset', '/component/users/remind', '/index.php?option=com_content&view=categories', ADMIN]
    marks = ['Log out', 'task=logout']
    runs = r'/((administrator|api|installation)/)?index\.php'

    def install(self, visitor):
        has(visitor.get('/installation/index.php'), 'Joomla')
        # The pages of its installer need scripts; the program beside them does the same.
        subprocess.run(['php', 'installation/joomla.php', 'install', '--no-interaction', '--site-name=A garden', '--admin-user=Annabel', f'--admin-username={USER}', f'--admin-password={PASSWORD}', f'--admin-email={EMAIL}',
                        f'--db-host=127.0.0.1:{self.database.port}', f'--db-user={USER}', f'--db-pass={PASSWORD}', '--db-name=site', '--db-prefix=j_'], cwd=self.site, user='www-data', group='www-data', extra_groups=[], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(['rm', '-r', self.site / 'installation'], check=True)
        settings = self.site / 'configuration.php'
        settings.chmod(0o644)
        settings.write_text(re.sub(r"\$sef_rewrite = \S+;", '$sef_rewrite = true;', settings.read_text()))
        # Its search has an index of what this plugin sees.
        self.database.tell("UPDATE site.j_extensions SET enabled = 1 WHERE element = 'finder' AND folder = 'content'")

    def log_in(self, visitor):
        has(visitor.submit(ADMIN, {'username': USER, 'passwd': PASSWORD}), 'task=logout')
        # Visitors' pages have a session of their own.
        visitor.submit('/component/users/login', {'username': USER, 'password': PASSWORD})
        has(visitor.get('/'), 'Log out')

    def article(self, owner, title, text, **more):
        page = owner.submit(f'{ADMIN}?option=com_content&task=article.add', {'jform[title]': title, 'jform[alias]': title.lower(), 'jform[catid]': '2', 'jform[articletext]': f'<p>{text}</p>', 'jform[state]': '1', 'jform[featured]': '1', 'task': 'article.apply', **more})
        return has(page, 'Article saved')

    def write(self, owner):
        # A menu has the category's articles at /garden.
        kind = base64.b64encode(json.dumps({'id': 0, 'title': 'COM_CONTENT_CATEGORY_VIEW_BLOG_TITLE', 'request': {'option': 'com_content', 'view': 'category', 'layout': 'blog'}}).encode()).decode()
        page = owner.submit(f'{ADMIN}?option=com_menus&task=item.add&menutype=mainmenu', {'jform[title]': 'Garden', 'jform[type]': kind, 'task': 'item.setType'})
        has(owner.submit(page, {'jform[title]': 'Garden', 'jform[alias]': 'garden', 'jform[type]': 'component', 'jform[link]': 'index.php?option=com_content&view=category&layout=blog', 'jform[request][id]': '2', 'task': 'item.apply'}), 'Menu item saved')
        self.article(owner, 'Plants', WORD)
        return ['/garden', '/garden/plants', '/garden?format=feed&type=rss', '/index.php/garden/plants', '/index.php?option=com_content&view=article&id=1']

    def keep(self, owner):
        # For its author's group alone, and not published at all.
        self.article(owner, 'Notes', SECRET, **{'jform[access]': '6'})
        self.article(owner, 'Draft', SECRET, **{'jform[state]': '0'})
        return ['/garden/notes', f'{ADMIN}?option=com_content&view=articles&filter[search]={SECRET}', '/garden/draft']

    def search(self):
        return f'/component/finder/search?q={WORD}'

    def upload(self, owner, name, content):
        # Its media manager takes 10 MB at most unless its settings say otherwise: a file goes as base64 in one piece of JSON, and PHP holds all of it in memory.
        page = owner.submit(f'{ADMIN}?option=com_config&view=component&component=com_media', {'jform[restrict_uploads]': '0', 'jform[restrict_uploads_extensions]': 'png,zip', 'jform[doc_extensions]': 'pdf,zip', 'task': 'component.apply'})
        has(page, 'Configuration saved')
        token = re.search(r'"csrf.token":"(\w+)"', owner.get(f'{ADMIN}?option=com_media').text).group(1)
        answer = owner.post(f'{ADMIN}?option=com_media&format=json&task=api.files&mediatypes=0,1,2,3&path=local-images:/', headers={'X-CSRF-Token': token}, json={'name': name, 'content': base64.b64encode(content).decode(), token: '1'})
        return f'/images/{name}' if answer.status_code == 200 and answer.json()['success'] else None

    def log_out(self, owner):
        owner.submit('/', {'task': 'user.logout'})
        owner.get(re.search(r'/administrator/index\.php\?option=com_login&amp;task=logout[^"]*', owner.get(ADMIN).text).group().replace('&amp;', '&'))
