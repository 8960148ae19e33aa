"""phpMyAdmin, as its release has it, with a MariaDB: no page is public, but for the login's."""
import html, re
from applications import PASSWORD, SECRET, USER, Application, has

MEGABYTE = 1 << 20


class PhpMyAdmin(Application):
    found = 'phpMyAdmin'
    folder = 'phpmyadmin'
    pages = ['/', '/index.php', '/index.php?route=/&lang=en', '/js/messages.php?l=en&v=5.2.1', '/index.php?route=/server/databases', '/url.php?url=https%3A%2F%2Fwww.phpmyadmin.net%2F',
             '/themes/pmahomme/css/theme.css', '/js/dist/functions.js', '/doc/html/index.html', '/favicon.ico']
    marks = ['route=/logout', f'{USER}@']
    runs = r'/(index|url|show_config_errors|js/messages)\.php'

    def prepare(self):
        (self.site / 'config.inc.php').write_text(f'''<?php
$cfg['blowfish_secret'] = '0123456789abcdefghijklmnopqrstuv';
$cfg['Servers'][1] = ['auth_type' => 'cookie', 'host' => '127.0.0.1', 'port' => '{self.database.port}', 'compress' => false, 'AllowNoPassword' => false];
''')

    def log_in(self, visitor):
        has(visitor.submit('/', {'pma_username': USER, 'pma_password': PASSWORD}), 'route=/logout')

    def keep(self, owner):
        page = owner.submit('/index.php?route=/database/sql&db=site', {'sql_query': f"CREATE TABLE notes (text VARCHAR(99)) COMMENT 'On {SECRET}'; INSERT INTO notes VALUES ('{SECRET}')"})
        has(page, 'alert-success')
        return ['/index.php?route=/sql&db=site&table=notes&pos=0', '/index.php?route=/table/structure&db=site&table=notes']

    def link(self, page, route):
        return '/' + html.unescape(re.search(rf'href="(index\.php\?route=/{route}[^"]+)"', page.text)[1])

    def upload(self, owner, name, content):
        if len(content) > 32 * MEGABYTE:
            # A value of that size is more than a statement of MariaDB may have.
            return None
        statements = f"CREATE TABLE stones (id INT PRIMARY KEY, stone LONGBLOB); INSERT INTO stones VALUES (1, x'{content.hex()}');"
        has(owner.submit('/index.php?route=/database/import&db=site', {'format': 'sql'}, {'import_file': ('stones.sql', statements.encode())}), 'successfully')
        return self.link(owner.get('/index.php?route=/sql&db=site&table=stones&pos=0'), 'table/get-field')

    def log_out(self, owner):
        page = owner.get('/index.php?route=/')
        owner.post('/index.php?route=/logout', data={'token': re.search(r'name="token" value="([^"]+)"', page.text)[1]})
