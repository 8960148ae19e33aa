"""`yorozu serve`: folders as applications have them, what strangers get of them, and how the processes end or come back."""
import concurrent.futures, os, pathlib, pwd, re, shlex, shutil, signal, subprocess, sys
import pytest
from issuer import Issuer, is_issued
from peers import SECONDS, YOROZU, Folder, command_of, equal, free_port, get, is_running, listens, until
from served import Served

PAGE = '<?php echo "page ", $_SERVER["REQUEST_URI"], " by ", basename($_SERVER["SCRIPT_FILENAME"]), " path ", $_SERVER["PATH_INFO"] ?? "";'
SECRET = '<?php echo "ran";/* secret */'
# What of a folder strangers may not have, and what they get: of each application files with their texts, then targets with the status and what the response has.
APPLICATIONS = {
    'WordPress': (
        {'wp-load.php': '', 'wp-settings.php': '', 'index.php': PAGE, 'wp-login.php': PAGE, 'wp-admin/index.php': PAGE, 'wp-config.php': SECRET, 'wp-config.php.bak': SECRET, 'wp-includes/post.php': SECRET,
         'readme.html': 'secret', 'wp-content/uploads/x.php': SECRET, 'wp-content/uploads/x.jpg': 'picture', 'wp-content/debug.log': 'secret', '.htaccess': 'secret', 'wp-content/themes/a/style.css': 'style'},
        [('/', 200, 'page / by index.php'), ('/2026/11/a-post/', 200, 'page /2026/11/a-post/ by index.php'), ('/wp-login.php?a=1', 200, 'by wp-login.php'), ('/wp-admin/', 200, 'by index.php'),
         ('/wp-content/uploads/x.jpg', 200, 'picture'), ('/wp-content/themes/a/style.css', 200, 'style'), ('/missing.jpg', 200, 'by index.php'), ('/robots.txt', 200, 'by index.php')],
        ['/wp-config.php', '/wp-config.php.bak', '/wp-config.php/x', '/wp-includes/post.php', '/readme.html', '/wp-content/uploads/x.php', '/wp-content/uploads/x.php/y', '/wp-content/debug.log', '/.htaccess', '/WP-CONFIG.PHP']),
    'Laravel': (
        {'artisan': '', 'bootstrap/app.php': SECRET, '.env': 'secret', 'storage/logs/laravel.log': 'secret', 'vendor/autoload.php': SECRET, 'public/index.php': PAGE, 'public/install.php': PAGE, 'public/index_dev.php': SECRET, 'public/below/other.php': SECRET, 'public/build/app.js': 'script',
         'public/storage/x.php': SECRET, 'public/.htaccess': 'secret', 'database/database.sqlite': 'secret'},
        [('/', 200, 'page / by index.php'), ('/login?a=1', 200, 'page /login?a=1 by index.php'), ('/build/app.js', 200, 'script'), ('/index.php/a/b', 200, 'path /a/b'), ('/install.php', 200, 'by install.php'), ('/.env', 403, ''),
         ('/vendor/autoload.php', 404, ''), ('/storage/logs/laravel.log', 403, ''), ('/database/database.sqlite', 403, '')],
        ['/index_dev.php', '/below/other.php', '/storage/x.php', '/.htaccess', '/../.env', '/%2e%2e/.env', '/index_dev.php/x']),
    'Symfony': (
        {'bin/console': '', 'config/bundles.php': SECRET, '.env.local': 'secret', 'public/index.php': PAGE, 'public/bundles/a.css': 'style', 'var/log/dev.log': 'secret'},
        [('/', 200, 'page /'), ('/index.php/blog', 200, 'path /blog'), ('/blog/1', 200, 'page /blog/1'), ('/bundles/a.css', 200, 'style')],
        ['/.env.local', '/config/bundles.php']),
    'Drupal': (
        {'web/core/lib/Drupal.php': SECRET, 'web/index.php': PAGE, 'web/update.php': PAGE, 'web/core/install.php': PAGE, 'web/core/modules/node/node.module': 'secret', 'web/sites/default/settings.php': SECRET,
         'web/sites/default/files/x.php': SECRET, 'web/sites/default/files/x.jpg': 'picture', 'web/sites/default/private/x.txt': 'secret', 'web/modules/contrib/a/composer.json': 'secret', 'vendor/autoload.php': SECRET,
         'web/core/misc/drupal.js': 'script', 'web/modules/contrib/a/a.info.yml': 'secret', 'web/core/CHANGELOG.txt': 'secret'},
        [('/', 200, 'page /'), ('/node/1', 200, 'page /node/1 by index.php'), ('/sites/default/files/x.jpg', 200, 'picture'), ('/sites/default/files/styles/thumb/a.jpg', 200, 'by index.php'), ('/update.php/selection', 200, 'by update.php'), ('/system/files/dump.sql', 200, 'by index.php'),
         ('/core/install.php', 200, 'by install.php'), ('/core/misc/drupal.js', 200, 'script')],
        ['/core/modules/node/node.module', '/sites/default/settings.php', '/sites/default/files/x.php', '/sites/default/private/x.txt', '/modules/contrib/a/composer.json', '/modules/contrib/a/a.info.yml', '/core/CHANGELOG.txt', '/core/lib/Drupal.php']),
    'MediaWiki': (
        {'load.php': PAGE, 'index.php': PAGE, 'api.php': PAGE, 'includes/WebStart.php': SECRET, 'LocalSettings.php': SECRET, 'maintenance/run.php': SECRET, 'images/a/x.png': 'picture', 'images/x.php': SECRET, 'images/deleted/x': 'secret',
         'cache/l10n.cdb': 'secret', 'vendor/autoload.php': SECRET, 'skins/Vector/a.css': 'style', 'extensions/Math/x.php': SECRET, 'extensions/Math/x.lua': 'secret', 'thumb_handler.php': PAGE},
        [('/', 200, 'page /'), ('/wiki/Main_Page', 200, 'page /wiki/Main_Page by index.php'), ('/wiki/C%2B%2B%3F', 200, 'by index.php'), ('/wiki/a.php', 200, 'by index.php'), ('/wiki/error.log', 200, 'by index.php'), ('/wiki/.hidden', 200, 'by index.php'), ('/load.php?modules=x', 200, 'by load.php'),
         ('/api.php', 200, 'by api.php'), ('/images/a/x.png', 200, 'picture'), ('/skins/Vector/a.css', 200, 'style'), ('/images/thumb/a/x.png/9px-x.png', 200, 'by thumb_handler.php'), ('/favicon.ico', 404, ''), ('/index.php/Main', 200, 'path /Main')],
        ['/LocalSettings.php', '/includes/WebStart.php', '/maintenance/run.php', '/images/x.php', '/images/deleted/x', '/cache/l10n.cdb', '/vendor/autoload.php', '/extensions/Math/x.php', '/extensions/Math/x.lua']),
    'DokuWiki': (
        {'doku.php': PAGE, 'index.php': PAGE, 'lib/exe/fetch.php': PAGE, 'lib/exe/css.php': PAGE, 'data/pages/start.txt': 'secret', 'conf/users.auth.php': SECRET, 'inc/init.php': SECRET, 'bin/dwpage.php': SECRET, 'vendor/autoload.php': SECRET,
         'lib/tpl/dokuwiki/main.php': SECRET, 'lib/tpl/dokuwiki/images/logo.png': 'picture'},
        [('/', 200, 'page /'), ('/start', 200, 'page /start by doku.php'), ('/doku.php?id=start', 200, 'by doku.php'), ('/_media/a:b.png', 200, 'by fetch.php'), ('/lib/exe/css.php', 200, 'by css.php'), ('/lib/tpl/dokuwiki/images/logo.png', 200, 'picture')],
        ['/data/pages/start.txt', '/conf/users.auth.php', '/inc/init.php', '/bin/dwpage.php', '/vendor/autoload.php', '/lib/tpl/dokuwiki/main.php']),
    'Nextcloud': (
        {'remote.php': PAGE, 'ocs/v2.php': PAGE, 'status.php': PAGE, 'index.php': PAGE, 'cron.php': PAGE, 'public.php': PAGE, 'config/config.php': SECRET, 'data/admin/files/x.txt': 'secret', 'lib/base.php': SECRET, '3rdparty/x.php': SECRET,
         'apps/files/js/main.js': 'script', 'core/css/a.css': 'style', 'occ': 'secret', 'db_structure.xml': 'secret', '.htaccess': 'secret', 'templates/x.php': SECRET, 'console.php': SECRET},
        [('/', 200, 'page /'), ('/apps/files/', 200, 'by index.php'), ('/index.php/apps/files', 200, 'path /apps/files'), ('/remote.php/dav/files/ann/uploads/x.php', 200, 'path /dav/files/ann/uploads/x.php'),
         ('/remote.php/dav/files/ann/notes.bak', 200, 'by remote.php'), ('/.well-known/carddav', 301, ''), ('/.well-known/webfinger', 301, ''), ('/status.php', 200, 'by status.php'), ('/apps/files/js/main.js', 200, 'script'),
         ('/core/css/a.css', 200, 'style'), ('/core/preview.png?file=x', 200, 'by index.php'), ('/ocs/v2.php/cloud', 200, 'by v2.php'), ('/remote', 301, '')],
        ['/config/config.php', '/data/admin/files/x.txt', '/lib/base.php', '/3rdparty/x.php', '/occ', '/db_structure.xml', '/.htaccess', '/templates/x.php', '/console.php']),
    'Joomla': (
        {'index.php': PAGE, 'administrator/index.php': PAGE, 'api/index.php': PAGE, 'libraries/src/x.php': SECRET, 'configuration.php': SECRET, 'configuration.php-dist': 'secret', 'tmp/x.php': SECRET, 'images/x.php': SECRET, 'images/x.png': 'picture',
         'administrator/manifests/files/joomla.xml': 'secret', 'administrator/logs/error.php': SECRET, 'media/system/js/core.js': 'script', 'templates/a/index.php': SECRET, 'htaccess.txt': 'secret', 'cli/joomla.php': SECRET},
        [('/', 200, 'page /'), ('/a-category/an-article', 200, 'page /a-category/an-article by index.php'), ('/administrator/', 200, 'page /administrator/'), ('/api/v1/content', 200, 'page /api/v1/content'), ('/images/x.png', 200, 'picture'),
         ('/media/system/js/core.js', 200, 'script'), ('/index.php/blog', 200, 'path /blog')],
        ['/configuration.php', '/configuration.php-dist', '/libraries/src/x.php', '/tmp/x.php', '/images/x.php', '/administrator/manifests/files/joomla.xml', '/administrator/logs/error.php', '/templates/a/index.php', '/htaccess.txt', '/cli/joomla.php']),
    'Moodle': (
        {'index.php': PAGE, 'pluginfile.php': PAGE, 'lib/moodlelib.php': '', 'login/index.php': PAGE, 'course/view.php': PAGE, 'composer.json': 'secret', 'lib/upgrade.txt': 'secret', 'vendor/x.php': SECRET, 'admin/environment.xml': 'secret', 'lib/db/install.xml': 'secret',
         'mod/forum/tests/x_test.php': SECRET, 'mod/forum/lib.php': SECRET, 'admin/settings.php': PAGE, 'admin/cli/cron.php': SECRET, 'theme/boost/style/moodle.css': 'style'},
        [('/', 200, 'page /'), ('/login/', 200, 'page /login/'), ('/course/view.php?id=1', 200, 'by view.php'), ('/pluginfile.php/12/mod_x/a.pdf', 200, 'path /12/mod_x/a.pdf'), ('/pluginfile.php/12/mod_x/dump.sql', 200, 'by pluginfile.php'), ('/admin/settings.php', 200, 'by settings.php'), ('/theme/boost/style/moodle.css', 200, 'style')],
        ['/composer.json', '/lib/upgrade.txt', '/vendor/x.php', '/admin/environment.xml', '/lib/db/install.xml', '/mod/forum/tests/x_test.php', '/mod/forum/lib.php', '/admin/cli/cron.php']),
    'phpMyAdmin': (
        {'index.php': PAGE, 'url.php': PAGE, 'show_config_errors.php': PAGE, 'js/messages.php': PAGE, 'setup/index.php': SECRET, 'libraries/x.php': SECRET, 'config.inc.php': SECRET, 'sql/create_tables.sql': 'secret', 'templates/a.twig': 'secret',
         'themes/a/style.css': 'style', 'vendor/autoload.php': SECRET},
        [('/', 200, 'page /'), ('/index.php?route=/sql', 200, 'by index.php'), ('/js/messages.php?l=en', 200, 'by messages.php'), ('/themes/a/style.css', 200, 'style')],
        ['/setup/index.php', '/setup/', '/libraries/x.php', '/config.inc.php', '/sql/create_tables.sql', '/templates/a.twig', '/vendor/autoload.php']),
    'Kirby': (
        {'index.php': PAGE, 'kirby/bootstrap.php': SECRET, 'content/home/home.txt': 'secret', 'site/accounts/x/.htpasswd': 'secret', 'site/config/config.php': SECRET, 'media/pages/a.jpg': 'picture', 'assets/a.css': 'style'},
        [('/', 200, 'page /'), ('/blog/a-post', 200, 'page /blog/a-post'), ('/panel/login', 200, 'page /panel/login'), ('/media/pages/a.jpg', 200, 'picture'), ('/assets/a.css', 200, 'style'), ('/content/home/home.txt', 200, 'by index.php')],
        ['/kirby/bootstrap.php', '/site/config/config.php', '/site/accounts/x/.htpasswd', '/content/home/home.txt']),
    'Magento': (
        {'bin/magento': '', 'app/etc/env.php': SECRET, 'index.php': SECRET, 'pub/index.php': PAGE, 'pub/static.php': PAGE, 'pub/get.php': PAGE, 'pub/cron.php': SECRET, 'pub/errors/local.xml': 'secret', 'pub/media/customer/x.jpg': 'secret', 'pub/media/x.php': SECRET,
         'pub/media/catalog/a.jpg': 'picture', 'pub/static/frontend/a.css': 'style', 'pub/static/x.php': SECRET},
        [('/', 200, 'page /'), ('/women/tops.html', 200, 'by index.php'), ('/static/version17/frontend/a.css', 200, 'style'), ('/static/version17/frontend/b.css', 200, 'by static.php'), ('/media/catalog/a.jpg', 200, 'picture'),
         ('/media/catalog/b.jpg', 200, 'by get.php')],
        ['/app/etc/env.php', '/cron.php', '/errors/local.xml', '/media/customer/x.jpg', '/media/x.php', '/static/x.php']),
    'a PHP application': (
        {'public/index.php': PAGE, 'src/App.php': SECRET, 'public/a.css': 'style', '.env': 'secret'},
        [('/', 200, 'page /'), ('/any/path', 200, 'page /any/path'), ('/a.css', 200, 'style')],
        ['/.env', '/App.php']),
    'OpenCart': (
        {'system/framework.php': SECRET, 'catalog/controller/x.php': SECRET, 'catalog/view/a.css': 'style', 'catalog/view/a.twig': 'secret', 'index.php': '<?php echo "page ", $_GET["_route_"] ?? "-";', 'backoffice/index.php': PAGE, 'system/storage/upload/order.txt': 'secret',
         'image/x.php': SECRET, 'image/x.png': 'picture', 'config.php': SECRET},
        [('/', 200, 'page -'), ('/en-gb/product/macbook', 200, 'page en-gb/product/macbook'), ('/backoffice/', 200, 'page /backoffice/'), ('/catalog/view/a.css', 200, 'style'), ('/image/x.png', 200, 'picture')],
        ['/system/framework.php', '/catalog/controller/x.php', '/catalog/view/a.twig', '/system/storage/upload/order.txt', '/image/x.php', '/config.php']),
    'phpBB': (
        {'viewtopic.php': PAGE, 'ucp.php': PAGE, 'index.php': PAGE, 'app.php': PAGE, 'config.php': SECRET, 'common.php': SECRET, 'files/2_abc': 'secret', 'store/backup.sql.gz': 'secret', 'includes/functions.php': SECRET, 'adm/index.php': PAGE, 'download/file.php': PAGE,
         'styles/prosilver/theme/a.css': 'style', 'styles/prosilver/template/a.html': 'secret', 'ext/a/b/config/routing.yml': 'secret', 'cron.php': PAGE},
        [('/', 200, 'page /'), ('/help/faq', 200, 'page /help/faq by app.php'), ('/viewtopic.php?t=1', 200, 'by viewtopic.php'), ('/adm/', 200, 'page /adm/'), ('/download/file.php?id=2', 200, 'by file.php'), ('/styles/prosilver/theme/a.css', 200, 'style'),
         ('/app.php/feed', 200, 'path /feed')],
        ['/config.php', '/common.php', '/files/2_abc', '/store/backup.sql.gz', '/includes/functions.php', '/styles/prosilver/template/a.html', '/ext/a/b/config/routing.yml']),
    'FreshRSS': (
        {'constants.php': SECRET, 'p/i/index.php': PAGE, 'p/index.php': PAGE, 'p/api/greader.php': PAGE, 'p/themes/a.css': 'style', 'data/users/a/log.txt': 'secret', 'cli/x.php': SECRET},
        [('/', 200, 'page /'), ('/i/', 200, 'page /i/'), ('/api/greader.php/accounts', 200, 'path /accounts'), ('/themes/a.css', 200, 'style')],
        ['/../data/users/a/log.txt', '/../cli/x.php']),
    'PHP scripts': (
        {'index.php': PAGE, 'about.php': PAGE, 'vendor/x/y.php': SECRET, 'composer.json': 'secret', 'config/db.php': SECRET, '.git/config': 'secret', 'uploads/x.php': SECRET, 'uploads/x.jpg': 'picture', 'dump.sql': 'secret', 'about.php~': SECRET,
         'data/site.sqlite': 'secret', 'data/site.sqlite-wal': 'secret', 'sub/index.php': PAGE, 'orders/.htaccess': 'deny from all', 'orders/1/a.jpg': 'secret', 'orders/x.php': SECRET, 'a.php5': SECRET, 'b.phtml': SECRET, 'c.yaml': 'secret',
         'backup/site.zip': 'secret', 'pages/a.txt': 'secret', 'pages/a.jpg': 'picture', 'pages/.htaccess': 'RewriteEngine on\nRewriteRule \\.txt$ - [F]'},
        [('/', 200, 'page /'), ('/about.php?x=1', 200, 'by about.php'), ('/pretty/url', 200, 'page /pretty/url by index.php'), ('/uploads/x.jpg', 200, 'picture'), ('/about.php/rest', 200, 'path /rest'), ('/sub/', 200, 'page /sub/'), ('/pages/a.jpg', 200, 'picture')],
        ['/vendor/x/y.php', '/composer.json', '/config/db.php', '/.git/config', '/uploads/x.php', '/dump.sql', '/about.php~', '/data/site.sqlite', '/data/site.sqlite-wal', '/uploads/x.jpg/x.php', '/orders/1/a.jpg', '/orders/x.php', '/a.php5', '/b.phtml', '/c.yaml', '/backup/site.zip', '/pages/a.txt']),
    'files': (
        {'index.html': 'front', 'a/b.css': 'style', 'hidden.php': SECRET, '.env': 'secret'},
        [('/', 200, 'front'), ('/a/b.css', 200, 'style'), ('/nothing', 404, '')],
        ['/hidden.php', '/.env', '/hidden.php/x']),
}


@pytest.fixture
def base():
    with Folder() as folder:
        yield folder


def site_of(base, files):
    site = base / 'site'
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return site


def is_gone(pids):
    return not any(map(is_running, pids))


@pytest.mark.parametrize('name', APPLICATIONS)
def test_an_application_is_known_served_and_keeps_its_secrets(base, name):
    files, shown, refused = APPLICATIONS[name]
    with Served(base, site_of(base, files)) as served:
        assert f'yorozu: {name} in ' in served.told(), served.told()
        for target, status, text in shown:
            answer = get(served.port, target)
            assert (answer.status, text in answer.content.decode()) == (status, True), (target, answer.status, answer.content)
        for target in refused:
            answer = get(served.port, target)
            body = answer.content.decode()
            # A page of the application's own may say that there is none.
            assert answer.status in (400, 403, 404) or 'by index.php' in body or 'by doku.php' in body, (target, answer.status, body)
            assert 'secret' not in body and 'ran' not in body, (target, body)


@pytest.mark.parametrize('name', APPLICATIONS)
def test_what_it_prints_is_taken_and_has_no_findings(base, name):
    site = site_of(base, APPLICATIONS[name][0])
    for options in ([], ['--cache', '30s']):
        printed = subprocess.run([YOROZU, 'serve', site, '--print', '--port', str(free_port()), *options], capture_output=True, text=True, check=True).stdout
        folder = base / f'printed{len(options)}'
        folder.mkdir(exist_ok=True)
        written = subprocess.run([YOROZU, 'serve', site, '--write', folder, '--port', str(free_port()), *options], capture_output=True, text=True, check=True).stdout
        assert 'used from now on' in written
        assert (folder / 'nginx.conf').read_text().splitlines()[0] in printed
        tested = subprocess.run([YOROZU, '-t', '-p', f'{folder}/', '-e', 'stderr', '-c', folder / 'nginx.conf'], capture_output=True, text=True)
        assert tested.returncode == 0 and '[warn]' not in tested.stderr, tested.stderr
        for path in folder.iterdir():
            path.unlink()


def test_what_dies_is_started_again_and_a_signal_ends_all(base):
    with Served(base, site_of(base, {'index.php': PAGE})) as served:
        equal(get(served.port, '/').status, 200)
        first = served.fpm()
        os.kill(first, signal.SIGKILL)
        until('PHP again', lambda: 'PHP-FPM is started again' in served.told(), told=served.told)
        until('a page again', lambda: get(served.port, '/').status == 200, told=served.told)
        pids = served.children()
        assert first not in pids and len(pids) > 3
        served.process.send_signal(signal.SIGINT)
        equal(served.process.wait(SECONDS), 0)
        assert is_gone(pids), served.told()


def test_the_server_goes_on_while_its_master_is_started_again(base):
    with Served(base, site_of(base, {'index.php': PAGE})) as served:
        master = next(pid for pid in served.children(served.process.pid) if 'daemon off' in command_of(pid))
        server, *_ = served.children(master)
        os.kill(master, signal.SIGKILL)
        while 'the server is started again' not in served.told():
            equal(get(served.port, '/').status, 200)
        pid_file = next((base / 'state/yorozu').glob('*/pid'))
        until('a new master', lambda: pid_file.exists() and pid_file.read_text().strip() not in ('', str(master)))
        equal(get(served.port, '/').status, 200)
        assert pathlib.Path(f'/proc/{server}').exists()
        pids = [*served.children(), server]
        served.process.send_signal(signal.SIGINT)
        equal(served.process.wait(SECONDS), 0)
        assert is_gone(pids), served.told()


def test_nothing_is_left_of_one_that_is_killed(base):
    site = site_of(base, {'index.php': PAGE})
    with Served(base, site) as served:
        pids = served.children()
        served.process.kill()
        served.process.wait()
        until('the end of all', lambda: is_gone(pids))
        with Served(base, site) as again:
            equal(get(again.port, '/').status, 200)


def test_a_second_one_is_told_who_serves_the_folder_and_who_has_the_port(base):
    site = site_of(base, {'index.php': PAGE})
    with Served(base, site) as served:
        refused = subprocess.run([YOROZU, 'serve', site], capture_output=True, text=True, env=os.environ | {'XDG_STATE_HOME': str(base / 'state')})
        assert refused.returncode == 1
        assert f'is served already: http://localhost:{served.port}/ by process {served.process.pid}' in refused.stderr, refused.stderr
        other = base / 'other'
        other.mkdir()
        refused = subprocess.run([YOROZU, 'serve', other, '--port', str(served.port)], capture_output=True, text=True, env=os.environ | {'XDG_STATE_HOME': str(base / 'state')})
        assert refused.returncode == 1
        assert re.search(rf'port {served.port} is taken by yorozu \(process \d+\)', refused.stderr), refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to be another user')
def test_the_owner_of_the_folder_runs_php_and_root_never_does(base):
    site = site_of(base, {'index.php': '<?php echo posix_getpwuid(posix_geteuid())["name"]; file_put_contents("made", "x");'})
    user = pwd.getpwnam('games')
    os.chown(site, user.pw_uid, user.pw_gid)
    with Served(base, site) as served:
        equal(get(served.port, '/').content, b'games')
        equal((site / 'made').stat().st_uid, user.pw_uid)
        assert 'as games' in served.told()
    os.chown(site, 0, 0)
    with Served(base, site) as served:
        equal(get(served.port, '/').content.split(b'<')[0].strip()[:8], b'www-data')


def games():
    """A user and group who are not root: others where root runs the tests."""
    user = pwd.getpwnam('games') if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    return user.pw_uid, user.pw_gid


def as_games():
    user, group = games()
    return dict(user=user, group=group, extra_groups=[]) if os.geteuid() == 0 else {}


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to be another user')
def test_any_user_serves_a_folder_of_their_own(base):
    site = site_of(base, {'index.php': '<?php echo posix_getpwuid(posix_geteuid())["name"];'})
    (base / 'state').mkdir()
    os.chown(base / 'state', *games())
    # Where the other user may run it.
    binary = shutil.copy(YOROZU, base / 'yorozu')
    with Served(base, site, program=binary, **as_games()) as served:
        equal(get(served.port, '/').content, b'games')
        state = next((base / 'state/yorozu').iterdir())
        equal(oct(state.stat().st_mode & 0o777), '0o700')


def test_the_console_is_this_machines_and_asks_for_its_token(base):
    site = site_of(base, {'index.php': PAGE})
    with Served(base, site) as served:
        address, token = re.search(rf'its console is at http://localhost:{served.port}(/\S+)#token=(\S+)', served.told()).groups()
        page = lambda path, **fields: get(served.port, address + path, **fields)
        equal((page('').status, page('figures').status, page('figures', Authorization=f'Bearer {token}').status), (200, 403, 200))
        assert token not in ' '.join(command_of(pid) for pid in served.children())
    with Served(base, site, '--listen', f'0.0.0.0:{free_port()}') as served:
        assert 'console' not in served.told()


def test_what_it_keeps_is_where_it_is_told_to_and_may_have_a_long_path(base):
    state = base / ('long' * 30) / 'state'
    with Served(base, site_of(base, {'index.php': PAGE}), '--cache', '1m', '--state', str(state), '--memory', '200m') as served:
        equal([get(served.port).headers['X-Cache'] for _ in range(2)], ['MISS', 'HIT'])
        assert (state / 'conf/nginx.conf').exists() and not (base / 'state').exists()
        assert 'up to 2 processes' in served.told()
        sockets = pathlib.Path(re.search(r'unix:(.*)/php.sock', (state / 'conf/nginx.conf').read_text())[1])
    assert not sockets.is_relative_to(base)
    shutil.rmtree(sockets)


def test_what_it_keeps_is_refused_where_others_could_change_or_see_it(base):
    site = site_of(base, {'index.php': PAGE})
    (base / 'open').mkdir()
    (base / 'open').chmod(0o777)
    for state, words in (base / 'open', 'can be changed by others'), (site / 'state', 'which visitors see'), (base / 'my state', 'that configurations cannot have'):
        refused = subprocess.run([YOROZU, 'serve', site, '--state', state], capture_output=True, text=True)
        assert refused.returncode == 1 and words in refused.stderr and len(refused.stderr.splitlines()) == 1, refused.stderr
    equal(oct((base / 'open').stat().st_mode & 0o777), '0o777')


def test_a_server_that_lost_its_master_outlives_a_start_that_fails(base):
    site, written = site_of(base, {'index.php': PAGE}), base / 'own'
    environment = os.environ | {'XDG_STATE_HOME': str(base / 'state')}
    port = free_port()
    subprocess.run([YOROZU, 'serve', site, '--write', written, '--port', str(port)], check=True, capture_output=True, env=environment)
    whole = (written / 'nginx.conf').read_text()
    with Served(base, site) as served:
        master = next(pid for pid in served.children(served.process.pid) if 'daemon off' in command_of(pid))
        (written / 'nginx.conf').write_text(whole + 'nonsense;')
        os.kill(master, signal.SIGKILL)
        until('a start that fails', lambda: served.told().count('the server ended') > 1, told=served.told)
        equal(get(port).status, 200)
        (written / 'nginx.conf').write_text(whole)
        until('another one', lambda: served.told().count('is started again') > 1, told=served.told)
        equal(get(port).status, 200)


def test_pages_are_kept_where_the_application_is_known_or_it_is_asked_for(base):
    counted = '<?php if (isset($_COOKIE["own_session"])) { header("Cache-Control: private"); } echo microtime(true);'
    site = site_of(base, {'index.php': counted})
    twice = lambda port, **fields: get(port, '/', **fields).content == get(port, '/', **fields).content
    with Served(base, site) as served:
        assert 'no pages are kept' in served.told()
        assert not twice(served.port)
    with Served(base, site, '--cache', '30s') as served:
        assert 'pages are kept for 30s' in served.told()
        assert twice(served.port)
        assert not twice(served.port, Cookie='own_session=1')
        equal(get(served.port, '/?utm_source=x').content, get(served.port, '/').content)
    files = APPLICATIONS['WordPress'][0] | {'index.php': '<?php echo microtime(true);'}
    with Served(base, site_of(base, files)) as served:
        assert 'pages are kept for 10m, or a day by a plugin' in served.told() and twice(served.port)
        (served.base / 'site/seconds.php').write_text('<?php header("Cache-Control: no-store"); echo getenv("YOROZU_SECONDS");')
        equal(get(served.port, '/seconds.php').content, b'86400')
        assert not twice(served.port, Cookie='wordpress_logged_in_x=1')
        kept = lambda path: get(served.port, path).headers.get_all('Cache-Control')
        week, ever = ['max-age=604800', 'public'], ['max-age=31536000', 'public, immutable']
        (served.base / 'site/wp-includes/a.css').write_text('style')
        equal([kept(path) for path in ('/wp-includes/a.css', '/wp-includes/a.css?ver=6.1', '/wp-content/themes/a/style.css?ver=6.1')], [week, ever, week])


def test_the_application_purges_its_pages_by_what_php_is_told(base):
    counted = '<?php file_put_contents("count", "x", FILE_APPEND); echo filesize("count"), " ", getenv("YOROZU_URL"), " ", getenv("YOROZU_TOKEN");'
    purge = '<?php header("Cache-Control: no-store"); echo file_get_contents(getenv("YOROZU_URL"), false, stream_context_create(["http" => ["method" => "POST", "header" => "Host: " . $_SERVER["HTTP_HOST"] . "\r\nAuthorization: Bearer " . getenv("YOROZU_TOKEN"), "content" => \'{"urls": ["/"]}\']]));'
    site = site_of(base, {'index.php': counted, 'purge.php': purge})
    (site / 'count').touch()
    os.chmod(site / 'count', 0o666)
    with Served(base, site, '--cache', '1h') as served:
        first, url, token = get(served.port).content.decode().split()
        equal((first, url, len(token)), ('1', f'http://127.0.0.1:{served.port}/.purge', 32))
        equal(get(served.port).content.decode().split()[0], '1')
        assert b'"purged":1' in get(served.port, '/purge.php').content
        equal(get(served.port).content.decode().split(), ['2', url, token])
        equal(get(served.port, '/.purge', 'POST', '{"all": true}', Authorization='Bearer ' + '0' * 32).status, 403)
        shown = subprocess.run([YOROZU, 'serve', site, '--print', '--cache', '1h'], capture_output=True, text=True, env=os.environ | {'XDG_STATE_HOME': str(base / 'state')})
        assert token not in shown.stdout + served.told(), 'the token is shown'
    # It stays for those who have kept it.
    with Served(base, site, '--cache', '1h', '--tls', 'internal') as served:
        assert token in get(served.port, '/?again').content.decode()
        assert b'"purged":' in get(served.port, '/purge.php').content
    with Served(base, site, '--cache', '1h', env={'YOROZU_TOKEN': 'of-the-environment'}) as served:
        assert 'of-the-environment' in get(served.port, '/?told').content.decode()
        assert b'"purged":' in get(served.port, '/purge.php').content
    refused = subprocess.run([YOROZU, 'serve', site, '--cache', '1h'], capture_output=True, text=True, env=os.environ | {'XDG_STATE_HOME': str(base / 'state'), 'YOROZU_TOKEN': 'short'})
    assert refused.returncode == 1 and 'YOROZU_TOKEN: 16 or more letters' in refused.stderr, refused
    with Served(base, site) as served:
        equal(get(served.port).content.decode().split()[1:], [])
        equal(get(served.port, '/.purge').status, 403)


def test_what_was_written_is_used_and_never_overwritten(base):
    site, written = site_of(base, {'index.php': PAGE}), base / 'own'
    environment = os.environ | {'XDG_STATE_HOME': str(base / 'state')}
    write = lambda *more: subprocess.run([YOROZU, 'serve', site, '--write', written, '--port', str(port), *more], capture_output=True, text=True, env=environment)
    port = free_port()
    equal(write().returncode, 0)
    configuration = written / 'nginx.conf'
    configuration.write_text(configuration.read_text().replace('include refused.conf;', 'include refused.conf; location = /mine { return 200 mine; }'))
    mine = configuration.read_text()
    told = write('--cache', '10s').stdout
    assert 'nginx.conf.new' in told and configuration.read_text() == mine and 'fastcgi_cache pages' in (written / 'nginx.conf.new').read_text()
    with Served(base, site) as served:
        assert f'as {written} says' in served.told()
        equal(get(port, '/mine').content, b'mine')
    configuration.chmod(0o666)
    refused = subprocess.run([YOROZU, 'serve', site], capture_output=True, text=True, env=environment)
    assert refused.returncode == 1 and 'can be changed by others' in refused.stderr, refused.stderr
    with Served(base, site, '--forget') as served:
        equal(get(served.port, '/mine').content[:10], b'page /mine')


def test_a_change_counts_at_once_for_who_writes_the_application(base):
    site = site_of(base, {'index.php': '<?php include "src/page.php";', 'src/page.php': '<?php echo "one";', 'var/cache/made.php': ''})
    with Served(base, site, '--cache', '1h', '--watch') as served:
        equal([get(served.port).content for _ in range(2)], [b'one'] * 2)
        (site / 'src/page.php').write_text('<?php echo "two";')
        until('the change', lambda: get(served.port).content == b'two', told=served.told)
        # Said once the pages are gone.
        until('the line', lambda: 'src/page.php was changed' in served.told(), told=served.told)
        # A folder that was not there, too; and none of what the application itself writes.
        (site / 'src/new').mkdir()
        until('the folder', lambda: served.told().count('was changed') == 2, told=served.told)
        (site / 'var/cache/made.php').write_text('made')
        (site / 'src/new/page.php').write_text('<?php echo "three";')
        until('the file', lambda: 'src/new/page.php was changed' in served.told(), told=served.told)
        assert 'made.php' not in served.told()


def test_a_reload_sees_what_the_folder_has_become(base):
    site = site_of(base, {'index.html': 'front'})
    with Served(base, site, '--json') as served:
        equal(get(served.port, '/').content, b'front')
        until('a line of the log', lambda: '"uri":"/","status":200' in served.told(), told=served.told)
        (site / 'new.html').write_text('new')
        served.process.send_signal(signal.SIGHUP)
        equal(get(served.port, '/new.html').content, b'new')
        assert served.process.poll() is None


def test_neither_a_reload_nor_the_end_loses_a_request(base):
    site = site_of(base, {'index.php': '<?php if (isset($_GET["slow"])) { touch("begun"); while (!file_exists("go")) { usleep(10000); clearstatcache(); } } echo "whole";'})
    site.chmod(0o777)
    with Served(base, site) as served:
        for ask_to in signal.SIGHUP, signal.SIGTERM:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                slow = pool.submit(get, served.port, '/?slow=1')
                until('its begin', (site / 'begun').exists)
                idle = set(served.children(served.fpm()))
                served.process.send_signal(ask_to)
                # It is heard: PHP's processes that have nothing to do go, or no client is taken any more.
                is_heard = (lambda: idle - set(served.children(served.fpm()))) if ask_to == signal.SIGHUP else (lambda: not listens(served.port))
                until('the signal', is_heard, told=served.told)
                (site / 'go').touch()
                equal(slow.result().content, b'whole')
            (site / 'begun').unlink()
            (site / 'go').unlink()


def test_a_unit_serves_the_folder_as_the_command_did(base):
    site, port = site_of(base, {'index.php': PAGE}).rename(base / 'my 100% site'), free_port()
    environment = os.environ | {'XDG_STATE_HOME': str(base / 'state'), 'XDG_CONFIG_HOME': str(base / 'config'), 'PATH': os.environ['PATH']}
    for folder in 'state', 'config':
        (base / folder).mkdir()
        os.chown(base / folder, *games())
    binary = shutil.copy(YOROZU, base / 'yorozu')
    install = lambda *options: subprocess.run([binary, 'serve', site, '--port', str(port), '--json', '--install', *options], capture_output=True, text=True, env=environment, **as_games())
    said = install()
    name, = (base / 'config/systemd/user').iterdir()
    assert said.stdout.startswith(f'{name}: written') and f'systemctl --user enable --now {name.name}' in said.stdout, said
    line = next(line for line in name.read_text().splitlines() if line.startswith('ExecStart='))
    environment['XDG_STATE_HOME'] = next(line for line in name.read_text().splitlines() if line.startswith('Environment=XDG_STATE_HOME=')).split('=', 2)[2]
    command = [word.replace('%%', '%') for word in shlex.split(line.removeprefix('ExecStart='))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, **as_games())
    try:
        until('the site', lambda: listens(port))
        equal(get(port, '/').status, 200)
    finally:
        process.terminate()
        equal(process.wait(SECONDS), 0)
    # Written again by itself, and by nobody over another's.
    assert '"30s"' not in name.read_text() and install('--cache', '30s').returncode == 0 and '--cache 30s' in name.read_text()
    name.write_text('[Service]\n')
    refused = install()
    assert refused.returncode == 1 and 'was not written by --install' in refused.stderr, refused
    equal(name.read_text(), '[Service]\n')


@pytest.mark.parametrize('args, status, words', [
    (['/nothing/there'], 1, 'No such file'), (['/etc/passwd'], 1, 'is no folder'), (['.', '--port', 'x'], 2, 'a number from 1 to 65535 was expected'), (['.', '--cache', 'soon'], 2, 'a time was expected'),
    (['.', '--listen', 'a;b'], 2, 'an address was expected'), (['.', '--domain', 'a b'], 2, 'a name was expected'), (['.', '--tls', 'on'], 2, 'expected internal'), (['.', '--issuer', 'https://x/'], 2, 'needs "--domain"'),
    (['.', '--domain', 'shop.test', '--port', '81'], 2, 'takes the ports 80 and 443'), (['.', '--fast'], 2, "invalid option: \"--fast\""), (['.', '--php', '/nothing'], 1, 'neither a program or socket'),
])
def test_bad_input_is_one_line_that_says_what_was_expected(base, args, status, words):
    (base / 'index.php').write_text('')
    refused = subprocess.run([YOROZU, 'serve', *args], capture_output=True, text=True, cwd=base)
    assert refused.returncode == status and words in refused.stderr and len(refused.stderr.splitlines()) == 1, refused.stderr


def test_sizes_are_explained(base):
    told = subprocess.run([YOROZU, 'serve', site_of(base, {'index.php': PAGE}), '--explain-sizes'], capture_output=True, text=True, check=True).stdout
    assert re.search(r'pm.max_children +\d+ ', told) and re.search(r'memory= +\d+ MB', told), told


def test_without_php_it_says_what_to_install(base):
    site = site_of(base, {'index.php': PAGE})
    if any(pathlib.Path('/run/php').glob('*.sock')) or any(pathlib.Path('/usr/sbin').glob('php-fpm*')):
        pytest.skip('PHP-FPM is here')
    refused = subprocess.run([YOROZU, 'serve', site], capture_output=True, text=True)
    assert 'apt install php-fpm' in refused.stderr


def curl(*words):
    done = subprocess.run(['curl', '-s', '--max-time', '60', '-w', ' %{http_code} %{http_version}', *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_https_is_by_an_authority_of_its_own_for_its_names_alone(base):
    site = site_of(base, {'index.php': '<?php echo $_SERVER["HTTPS"] ?? "plain";'})
    with Served(base, site, '--tls', 'internal', '--domain', 'shop.test') as served:
        secure = int(re.search(r'https://shop.test:(\d+)/', served.told())[1])
        authority = re.search(r'import (\S+authority.crt)', served.told())[1]
        equal(curl('--cacert', authority, f'https://localhost:{secure}/'), (0, 'on 200 2'))
        equal(curl('--cacert', authority, '--resolve', f'shop.test:{secure}:127.0.0.1', f'https://shop.test:{secure}/'), (0, 'on 200 2'))
        equal(curl('--cacert', authority, f'https://127.0.0.1:{secure}/')[0], 0)
        assert curl(f'https://localhost:{secure}/')[0] == 60, 'the system does not know it'
        equal(curl(f'http://localhost:{served.port}/'), (0, 'plain 200 1.1'))
        key = pathlib.Path(authority).with_name('authority.key')
        equal(oct(key.stat().st_mode & 0o777), '0o600')
        first = pathlib.Path(authority).read_text()
    with Served(base, site, '--tls', 'internal', '--domain', 'shop.test'):
        equal(pathlib.Path(authority).read_text(), first)
    with Served(base, site, '--tls', 'internal'):
        assert pathlib.Path(authority).read_text() != first, 'one for other names'


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root for a network of its own')
def test_a_domain_gets_its_certificate_and_http_leads_to_https(base):
    done = subprocess.run(['unshare', '--net', '--mount', sys.executable, '-B', __file__, str(base)], capture_output=True, text=True, env=os.environ | {'YOROZU': YOROZU})
    assert done.returncode == 0, done.stdout + done.stderr


def in_a_network_of_its_own(base):
    """Names that lead here, an issuer whose certificate the system trusts, and the ports 80 and 443."""
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
    (base / 'hosts').write_text('127.0.0.1 localhost shop.test www.shop.test\n')
    subprocess.run(['mount', '--bind', base / 'hosts', '/etc/hosts'], check=True)
    site = site_of(base, {'index.php': '<?php echo $_SERVER["HTTPS"] ?? "plain";'})
    with Issuer(base, 80, 443) as issuer:
        subprocess.run(['mount', '--bind', issuer.certificate, '/etc/ssl/certs/ca-certificates.crt'], check=True)
        url = f'https://localhost:{issuer.port}/dir'
        refused = subprocess.run([YOROZU, 'serve', site, '--domain', 'nothing.test', '--issuer', url], capture_output=True, text=True)
        assert refused.returncode == 1 and '"nothing.test" has no address' in refused.stderr, refused.stderr
        with Served(base, site, '--domain', 'shop.test', '--domain', 'www.shop.test', '--issuer', url, '--contact', 'ann@shop.test') as served:
            until('the certificate', lambda: is_issued(443, 'www.shop.test', issuer.root()), told=served.told)
            answer = get(80, '/a?b=1', Host='shop.test')
            equal((answer.status, answer.headers['Location']), (301, 'https://shop.test/a?b=1'))
            equal(curl('--cacert', issuer.root(), 'https://shop.test/'), (0, 'on 200 2'))
            assert 'https://shop.test/' in served.told() and 'terms are accepted' in served.told()


if __name__ == '__main__':
    in_a_network_of_its_own(pathlib.Path(sys.argv[1]))
