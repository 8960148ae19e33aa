"""Shaarli, as its release has it: one script, one file of links."""
import re
from applications import PASSWORD, SECRET, USER, WORD, Application, has


class Shaarli(Application):
    found = 'PHP scripts'
    folder = 'shaarli'
    # As on Apache: of its own scripts it says of none that nobody may ask for it, but what its .htaccess files refuse.
    runs = r'/.*\.php'
    pages = ['/', '/login', '/tags/cloud', '/tags/list', '/daily-rss', '/feed/atom', '/feed/rss', '/open-search', '/picture-wall', '/tpl/default/css/shaarli.min.css']
    marks = ['admin/logout', 'admin/tools']

    def install(self, visitor):
        # Its page tries first whether sessions work.
        page = visitor.submit('/install', {'setlogin': USER, 'setpassword': PASSWORD, 'title': 'A garden', 'continent': 'Europe', 'city': 'Paris', 'language': 'en'})
        has(page, 'login')

    def log_in(self, visitor):
        has(visitor.submit('/login', {'login': USER, 'password': PASSWORD, 'longlastingsession': 'on'}), 'admin/logout')

    def saved(self, owner, address, word, **more):
        values = {'lf_url': address, 'lf_title': f'About {word}', 'lf_description': f'{word} grows.', 'lf_tags': 'plants'}
        page = owner.submit('/admin/shaare?post=' + address, values | more, button='save_edit')
        return '/shaare/' + re.search(rf'(?s)About {word}.*?(?<!admin)/shaare/([\w-]{{6}})"', has(page, word).text)[1]

    def write(self, owner):
        return [self.saved(owner, 'http://plants.example/', WORD)]

    def keep(self, owner):
        note = self.saved(owner, 'http://private.example/', SECRET, lf_private='on')
        # Its author finds it where strangers find WORD alone.
        return [note, '/?searchterm=private.example', '/?searchtags=plants', '/feed/atom?searchtags=plants', '/daily']

    def search(self):
        return f'/?searchterm={WORD}'

    # What is uploaded are the bookmarks of a browser, and no file that is given back.

    def log_out(self, owner):
        owner.get('/admin/logout')
