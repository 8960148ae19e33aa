"""Roundcube 1.7, as its release has it, with SQLite and a Dovecot: all mail is private, and so is each page but the login's."""
import html, re, subprocess
from applications import PASSWORD, SECRET, USER, Application, has
from peers import Process, free_port, listens

MAIL = f'''From: Beatrice <beatrice@example.com>
To: Annabel <annabel@example.com>
Subject: About {SECRET}
Message-ID: <1@example.com>
Date: Wed, 01 May 2024 00:00:00 +0000
Content-Type: multipart/mixed; boundary="=="

--==
Content-Type: text/plain

The {SECRET} sings.
--==
Content-Type: text/plain; name=notes.txt
Content-Disposition: attachment; filename=notes.txt

Notes on {SECRET}.
--==--
'''


class Dovecot(Process):
    """An IMAP server of the test's own, whose mail is below the folder: each user is let in who knows PASSWORD."""

    def __init__(self, folder):
        self.port, self.mail = free_port(), folder / 'mail'
        for name in ('new', 'cur', 'tmp'):
            (self.mail / name).mkdir(parents=True)
        (self.mail / 'cur/1:2,S').write_text(MAIL)
        (folder / 'dovecot.conf').write_text(f'''
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/log
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
first_valid_uid = 1
mail_location = maildir:{self.mail}
service imap-login {{
    inet_listener imap {{
        port = {self.port}
    }}
    inet_listener imaps {{
        port = 0
    }}
}}
passdb {{
    driver = static
    args = password={PASSWORD}
}}
userdb {{
    driver = static
    args = uid=mail gid=mail home={folder}
}}
namespace inbox {{
    inbox = yes
    separator = /
    mailbox Drafts {{
        auto = create
    }}
}}
''')
        subprocess.run(['chown', '-R', 'mail:mail', self.mail], check=True)
        super().__init__(['dovecot', '-F', '-c', str(folder / 'dovecot.conf')], folder / 'out')
        self.wait_for(lambda: listens(self.port))


class Roundcube(Application):
    found = 'a PHP application'
    folder = 'roundcube'
    pages = ['/', '/index.php', '/?_task=login', '/?_task=mail', '/?_task=settings', '/static.php/skins/elastic/styles/styles.min.css', '/static.php/program/js/app.js?s=1', '/static.php/plugins/archive/archive.js']
    marks = ['_task=logout', 'about ' + USER]
    runs = r'/(index|static|installer)\.php'

    def prepare(self):
        folder = self.site.parent / 'dovecot'
        folder.mkdir()
        self.imap = self.stack.enter_context(Dovecot(folder))
        # Its installer writes this from what is typed there.
        (self.site / 'config/config.inc.php').write_text(f'''<?php
$config['db_dsnw'] = 'sqlite:///{self.site}/temp/site.sqlite?mode=0640';
$config['imap_host'] = '127.0.0.1:{self.imap.port}';
$config['smtp_host'] = '127.0.0.1:9';
$config['des_key'] = '0123456789abcdefghijklmn';
$config['plugins'] = ['archive', 'zipdownload'];
$config['skin'] = 'elastic';
''')

    def log_in(self, visitor):
        has(visitor.submit('/', {'_user': USER, '_pass': PASSWORD}), '_task=logout')

    def compose(self, owner):
        page = owner.get('/?_task=mail&_action=compose')
        return page, re.search(r'_id=(\w+)', page.url)[1]

    def keep(self, owner):
        page, _ = self.compose(owner)
        answer = owner.submit(page, {'_to': 'beatrice@example.com', '_subject': f'Draft on {SECRET}', '_message': SECRET, '_draft': '1'})
        has(answer, 'confirmation')
        mail = '/?_task=mail&_mbox=INBOX&_uid=1'
        part = html.unescape(re.search(r'href="([^"]*_action=get[^"]*_part=2)', owner.get(mail + '&_action=show').text)[1])
        return [f'{mail}&_action=show', f'{mail}&_action=preview', f'{mail}&_action=viewsource', part, part + '&_download=1', '/?_task=mail&_mbox=Drafts&_uid=1&_action=show']

    def upload(self, owner, name, content):
        page, number = self.compose(owner)
        token = re.search(r'name="_token" value="(\w+)"', page.text)[1]
        answer = owner.post(f'/?_task=mail&_action=upload&_id={number}&_uploadid=1&_from=compose&_remote=1', data={'_token': token}, files={'_attachments[]': (name, content)})
        # A message and what is attached to it have 100 MB at most, unless max_message_size says otherwise.
        file = re.search(r'rcmfile\d+', answer.text)
        return file and f'/?_task=mail&_action=display-attachment&_id={number}&_file={file[0]}'

    def log_out(self, owner):
        token = re.search(r'"request_token":"(\w+)"', owner.get('/?_task=mail').text)[1]
        owner.get(f'/?_task=logout&_token={token}')
