"""Moodle, as its release has it, with MariaDB, installed by its command."""
import re, subprocess, urllib.parse
from applications import EMAIL, PASSWORD, SECRET, USER, WORD, Application, has


class Moodle(Application):
    found = 'Moodle'
    folder = 'moodle'
    pages = ['/', '/course/index.php', '/login/index.php', '/login/forgot_password.php', '/theme/styles.php/boost/1/all', '/lib/javascript.php/1/lib/javascript-static.js', '/theme/image.php/boost/core/1/help',
             '/lib/requirejs.php/1/core/first.js', '/theme/yui_combo.php?rollup/3.18.1/yui-moodlesimple-min.css', '/help.php?component=moodle&identifier=enrolmentnewuser&lang=en',
             '/pix/moodlelogo.png', '/lib/ajax/service-nologin.php?info=core_fetch_notifications']
    marks = ['Log out', 'logout.php?sesskey']
    # All but what others include, and libraries.
    runs = r'/(?!lib/|vendor/|(.*/)?(classes|db|lang|tests|fixtures|cli)/|(.*/)?(version|settings|lib|locallib|upgradelib|deprecatedlib|renderers?|externallib)\.php).*\.php' \
           r'|/admin/settings\.php|/lib/(ajax|editor|xhprof/xhprof_html)/.*\.php|/lib/(javascript|jssourcemap|requirejs)\.php'

    def install(self, visitor):
        data = self.site.parent / 'moodledata'
        subprocess.run(['install', '-d', '-o', 'www-data', '-g', 'www-data', data], check=True)
        values = {'wwwroot': self.url.rstrip('/'), 'dataroot': data, 'dbtype': 'mariadb', 'dbhost': '127.0.0.1', 'dbport': self.database.port, 'dbname': 'site', 'dbuser': USER, 'dbpass': PASSWORD,
                  'fullname': 'A school', 'shortname': 'school', 'adminuser': USER, 'adminpass': PASSWORD, 'adminemail': EMAIL}
        subprocess.run(['php', '-d', 'max_input_vars=5000', 'admin/cli/install.php', '--non-interactive', '--agree-license', *(f'--{name}={value}' for name, value in values.items())],
                       check=True, stdout=subprocess.DEVNULL, cwd=self.site, user='www-data', group='www-data', extra_groups=[])

    def log_in(self, visitor):
        has(visitor.submit('/login/index.php', {'username': USER, 'password': PASSWORD}), 'Log out')

    def write(self, owner):
        page = owner.submit('/course/edit.php?category=1', {'fullname': f'About {WORD}', 'shortname': WORD, 'summary_editor[text]': f'<p>{WORD} in the garden'}, button='saveanddisplay')
        self.course = has(page, WORD).text.partition('"courseId":')[2].partition(',')[0]
        return [f'/course/info.php?id={self.course}']

    def keep(self, owner):
        page = owner.submit(f'/course/modedit.php?add=page&course={self.course}&section=0', {'name': 'Notes', 'page[text]': f'<p>{SECRET}'}, button='submitbutton')
        page = has(page, SECRET)
        has(owner.submit('/user/edit.php', {'description_editor[text]': f'<p>{SECRET}'}, button='submitbutton'), 'Changes saved')
        return [page.url.removeprefix(self.url.rstrip('/')), '/user/profile.php']

    def search(self):
        return f'/course/search.php?search={WORD}'

    def upload(self, owner, name, content):
        # As the scripts of its file picker do: into the draft of a form, which is then sent.
        page = owner.get('/user/files.php').text
        draft, context, key, repository = (re.search(pattern, page).group(1) for pattern in (r'"itemid":(\d+)', r'"contextid":(\d+)', r'"sesskey":"(\w+)"', r'"id":"(\d+)","name":"[^"]*","type":"upload"'))
        answer = owner.post('/repository/repository_ajax.php?action=upload', data={'sesskey': key, 'repo_id': repository, 'itemid': draft, 'ctx_id': context, 'env': 'filemanager', 'maxbytes': -1, 'areamaxbytes': -1,
                                                                                   'savepath': '/', 'title': name, 'author': '', 'license': 'unknown'}, files={'repo_upload_file': (name, content)})
        assert answer.json().get('file') == name, answer.text[:1000]
        form = urllib.parse.urlencode({'sesskey': key, '_qf__core_user_form_private_files': 1, 'files_filemanager': draft})
        answer = owner.post(f'/lib/ajax/service.php?sesskey={key}&info=core_form_dynamic_form', json=[{'index': 0, 'methodname': 'core_form_dynamic_form', 'args': {'formdata': form, 'form': r'core_user\form\private_files'}}])
        assert not answer.json()[0]['error'], answer.text[:1000]
        return f'/pluginfile.php/{context}/user/private/{name}'

    def log_out(self, owner):
        key = re.search(r'"sesskey":"(\w+)"', owner.get('/my/').text).group(1)
        owner.get(f'/login/logout.php?sesskey={key}')
