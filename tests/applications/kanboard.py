"""Kanboard, as its release has it, with SQLite."""
import re
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


class Kanboard(Application):
    found = 'PHP scripts'
    folder = 'kanboard'
    pages = ['/', '/login', '/?controller=AuthController&action=login', '/healthcheck.php', '/jsonrpc.php', '/robots.txt', '/assets/js/app.min.js', '/assets/css/light.min.css']
    marks = ['Logout']
    given = {'.bash', '.dat', '.exe', '.markdown'}
    # As on Apache: of its own scripts it says of none that nobody may ask for it, but what its .htaccess files refuse.
    runs = r'/.*\.php'

    def prepare(self):
        # Short URLs, as its handbook has them.
        settings = self.site / 'config.php'
        settings.write_text((self.site / 'config.default.php').read_text().replace("define('ENABLE_URL_REWRITE', false)", "define('ENABLE_URL_REWRITE', true)"))

    def install(self, visitor):
        # It makes its database when it is first asked, with this account.
        has(visitor.submit('/login', {'username': 'admin', 'password': 'admin'}), 'Logout')
        visitor.submit('/?controller=UserCreationController&action=show', {'username': USER, 'name': 'Annabel', 'email': EMAIL, 'password': PASSWORD, 'confirmation': PASSWORD, 'role': 'app-admin'})
        has(visitor.get('/users'), USER)

    def log_in(self, visitor):
        has(visitor.submit('/login', {'username': USER, 'password': PASSWORD}), 'Logout')

    def task(self, owner, project, text):
        owner.submit(f'/project/{project}/task/create', {'title': text, 'color_id': 'green'})
        board = has(owner.get(f'/board/{project}'), text)
        return re.findall(r'data-task-id="(\d+)"', board.text)[-1]

    def project(self, owner, path, name):
        page = owner.submit(path, {'name': name})
        return re.search(r'/project/(\d+)', page.url + page.text)[1]

    def write(self, owner):
        project = self.project(owner, '/project/create', 'Garden')
        task = self.task(owner, project, WORD)
        page = owner.get(f'/project/{project}/share')
        page = owner.get(re.search(r'href="([^"]*switch=enable[^"]*)"', page.text)[1].replace('&amp;', '&'))
        token = re.search(r'/public/board/(\w+)', page.text)[1]
        return [f'/public/board/{token}', f'/public/task/{task}/{token}', f'/feed/project/{token}', f'/ical/project/{token}', f'/?controller=BoardViewController&action=readonly&token={token}']

    def keep(self, owner):
        project = self.project(owner, '/project/create/personal', 'Cellar')
        self.own = self.task(owner, project, SECRET)
        # An attachment is a file in its data folder, whose name it makes up.
        path = self.upload(owner, 'notes.txt', SECRET.encode())
        return [f'/board/{project}', f'/task/{self.own}', f'/project/{project}/overview', '/dashboard', f'/search?search={SECRET}', f'/?controller=TaskViewController&action=show&task_id={self.own}', path]

    def upload(self, owner, name, content):
        form = owner.get(f'/task/{self.own}/file/create')
        token = re.search(r'"csrf":"([^"]+)"|csrf&quot;:&quot;(.+?)&quot;', form.text)
        answer = owner.post(f'/task/{self.own}/file/save', data={'csrf_token': token[1] or token[2]}, files={'files[]': (name, content)}, headers={'X-Requested-With': 'XMLHttpRequest'})
        has(answer, 'OK')
        page = has(owner.get(f'/task/{self.own}'), name)
        return re.findall(r'(/task/\d+/file/\d+/download/\w+)', page.text)[-1]

    def log_out(self, owner):
        page = owner.get('/dashboard')
        owner.get(re.search(r'href="([^"]*/logout[^"]*)"', page.text)[1].replace('&amp;', '&'))
