"""The whole system: `make run`'s WordPress, asked by curl-like requests and a real browser."""
import base64, errno, gzip, hashlib, itertools, json, os, pathlib, re, shutil, signal, struct, subprocess, tempfile, threading, time
import zlib
import pytest
from browser import Browser
from peers import ROOT, YOROZU, command_of, equal, until
from wordpress import Site, log_in

SITE = dict(YOROZU_TLS='1')

FRESH = itertools.count()


# --- what a visitor gets -------------------------------------------------------------------------

def test_second_anonymous_visit_is_a_hit_and_runs_no_php(site):
    for path in ('/', '/a-quiet-machine/', '/the-first-thousand/', '/feed/'):
        first = site.get(path)
        equal(first.status, 200, path)
        runs = site.php_runs()
        second = site.get(path)
        equal((second.cache, second.body), ('HIT', first.body), path)
        equal(site.php_runs(), runs, 'PHP ran')


def over_tls(site, path, *options):
    """What curl gets that believes the site's authority alone: status, version and field Alt-Svc, and the page."""
    form = '%{stderr}%{http_code} %{http_version} %header{x-cache} %header{alt-svc}'
    done = subprocess.run(['curl', '-sS', '--cacert', site.served / 'tls/authority.crt', '-w', form, *options, site.secure + path],
                          capture_output=True, text=True, check=True, timeout=60)
    return done.stderr, done.stdout


def test_https_is_a_whole_site_too(site):
    port = site.secure.rpartition(':')[2]
    asked = f'h3=":{port}"; ma=86400'
    said, page = over_tls(site, '/a-quiet-machine/?first')
    equal(said, f'200 2 MISS {asked}')
    equal(over_tls(site, '/a-quiet-machine/?first', '--http1.1'), (f'200 1.1 HIT {asked}', page))
    # Links stay with the address: both are stored.
    plain = site.get('/a-quiet-machine/?first')
    equal(plain.cache, 'MISS')
    for text, own, other in (page, site.secure, site.url), (plain.body.decode(), site.url, site.secure):
        equal((own in text, other in text), (True, False), own)
    # A change reaches both.
    site.php("""$posts = get_posts(['name' => 'a-quiet-machine']);
        wp_update_post(['ID' => $posts[0]->ID, 'post_content' => 'both ways']); do_action('yorozu_retry');""")
    until('the change over both', lambda: 'both ways' in over_tls(site, '/a-quiet-machine/?first')[1]
          and b'both ways' in site.get('/a-quiet-machine/?first').body)
    # wp-admin without its slash leads to the same address.
    location = subprocess.run(['curl', '-sk', '-o', '/dev/null', '-w', '%{redirect_url}', f'{site.secure}/wp-admin'],
                              capture_output=True, text=True, check=True).stdout
    equal(location, f'{site.secure}/wp-admin/')


def test_a_browser_reads_the_site_over_http3(site):
    key = subprocess.run(f'openssl x509 -in {site.served}/tls/site.crt -pubkey -noout | openssl pkey -pubin -outform der',
                         shell=True, check=True, capture_output=True).stdout
    trusted = base64.b64encode(hashlib.sha256(key).digest()).decode()
    browser = Browser(f'--origin-to-force-quic-on={site.secure[8:]}', f'--ignore-certificate-errors-spki-list={trusted}')
    try:
        for path in ('/', '/the-first-thousand/'):
            browser.open(site.secure + path)
            spoken = browser.run("""return performance.getEntries().filter(e => e.nextHopProtocol !== undefined)
                .map(e => e.name + ' ' + e.nextHopProtocol)""")
            own = [line for line in spoken if line.startswith(site.secure)]
            assert len(own) > 2 and all(line.endswith(' h3') for line in own), own
            equal(browser.run('return document.images.length && [...document.images].some(i => !i.naturalWidth)'), False)
        log_in(browser, site, site.secure)
        equal(browser.run('return performance.getEntriesByType("navigation")[0].nextHopProtocol'), 'h3')
    finally:
        browser.close()


def test_known_visitors_bypass_and_leave_nothing_behind(site):
    site.script('who.php', '<?php echo "hello ", $_COOKIE ? key($_COOKIE) : "nobody", uniqid();')
    for cookie in ('wordpress_logged_in_abc=1', 'comment_author_abc=me', 'wp-postpass_abc=1', 'PHPSESSID=1'):
        equal(site.get('/who.php?' + cookie, Cookie=cookie).cache, 'BYPASS', cookie)
        anonymous = site.get('/who.php?' + cookie)
        equal(anonymous.cache, 'MISS', 'something was stored for ' + cookie)
        assert b'nobody' in anonymous.body
        equal(site.get('/who.php?' + cookie).cache, 'HIT')
    assert site.get('/who.php', 'POST', b'a=b').cache in (None, 'BYPASS')
    equal(site.get('/who.php', 'POST', b'a=b').cache, site.get('/who.php', 'POST', b'c').cache)


LISTS = ('/', '/feed/', '/category/vault/', '/category/vault/feed/', '/author/admin/', '/author/admin/feed/',
         '/2026/01/', '/?s=CONFIDENTIAL', '/wp-json/wp/v2/posts', '/?a=1')


def test_what_a_password_opens_is_not_shown_to_others(site):
    post = site.php('''wp_set_current_user(1); $term = wp_insert_term('Vault', 'category', array('slug' => 'vault'));
        echo wp_insert_post(array('post_title' => 'Vault', 'post_content' => 'CONFIDENTIAL', 'post_name' => 'vault',
            'post_status' => 'publish', 'post_password' => 'sesame', 'post_date' => '2026-01-02 03:04:05',
            'post_category' => array($term['term_id'])));''')
    opened = site.get('/wp-login.php?action=postpass', 'POST', b'post_password=sesame&Submit=Enter',
                      Content_Type='application/x-www-form-urlencoded', Referer=site.url + '/vault/')
    reader = opened.fields['set-cookie'].split(';')[0]
    assert reader.startswith('wp-postpass_')
    paths = (*LISTS, '/vault/', '/vault/feed/', f'/wp-json/wp/v2/posts/{post}', f'/?p={post}')
    seen = [path for path in paths if b'CONFIDENTIAL' in site.get(path, Cookie=reader).body]
    assert '/vault/' in seen and '/category/vault/feed/' in seen, seen
    for path in paths:
        # A search shows what was searched for.
        for _ in range(2):
            assert b'CONFIDENTIAL</p>' not in site.get(path).body, path
        equal(b'CONFIDENTIAL' in site.get(path, Cookie=reader).body, path in seen, 'the reader at ' + path)
    # Lists that show it are not stored: the other tests want them without it.
    site.php(f'wp_delete_post({post}, true);')


def test_a_cart_is_not_shown_to_others(site):
    plugins = site.folder / 'www/wp-content/mu-plugins'
    plugins.mkdir(exist_ok=True)
    # As WooCommerce: what is in the cart stands in the head of every page, and in cookies.
    (plugins / 'cart.php').write_text('''<?php
        add_action('template_redirect', function () {
            if (isset($_GET['add-to-cart'])) {
                setcookie('woocommerce_items_in_cart', '1', 0, '/'); setcookie('woocommerce_cart_hash', 'abc', 0, '/');
                setcookie('wp_woocommerce_session_' . COOKIEHASH, 't_1', 0, '/');
            }
        });
        add_action('wp_body_open', function () {
            echo isset($_COOKIE['woocommerce_items_in_cart']) ? "another's cart" : 'no cart';
        });''')
    site.yorozu('purge', '--all')
    try:
        added = site.get('/?add-to-cart=17')
        equal((added.cache, site.get('/?add-to-cart=17').cache), ('BYPASS', 'BYPASS'))
        cookies = 'woocommerce_items_in_cart=1; woocommerce_cart_hash=abc; wp_woocommerce_session_x=t_1'
        for path in ('/', '/a-quiet-machine/', '/author/admin/', '/?b=1'):
            assert b"another's cart" in site.get(path, Cookie=cookies).body, path
            anonymous = site.get(path)
            equal((anonymous.cache, b'no cart' in anonymous.body), ('MISS', True), path)
            equal(site.get(path).cache, 'HIT', path)
            assert b"another's cart" in site.get(path, Cookie=cookies).body, path
    finally:
        (plugins / 'cart.php').unlink()
        site.yorozu('purge', '--all')


def test_robots_txt_is_made_by_wordpress(site):
    answer = site.get('/robots.txt')
    assert answer.status == 200 and b'/wp-admin/' in answer.body, answer.body
    equal(site.get('/robots.txt').cache, 'HIT')


def test_head_has_no_content(site):
    site.get('/a-quiet-machine/')
    head = site.get('/a-quiet-machine/', 'HEAD')
    equal((head.status, head.body), (200, b''))


def test_redirects_and_refusals(site):
    admin = site.get('/wp-admin')
    equal((admin.status, admin.fields['location']), (301, '/wp-admin/'))
    equal(site.get('/wp-admin/').status, 302)
    for path in ('/.htaccess', '/.git/config', '/wp-content/uploads/x.php', '/files/a/b.PHP'):
        equal(site.get(path).status, 403, path)
    for path in ('/no-such-script.php', '/wp-content/no.php/x'):
        equal(site.get(path).status, 404, path)


def test_path_info(site):
    site.script('info.php', '<?php echo $_SERVER["SCRIPT_NAME"], "|", $_SERVER["PATH_INFO"] ?? "";')
    equal(site.get('/info.php/a/b?c').body, b'/info.php|/a/b')


def test_validity_per_status(site):
    # WordPress itself marks its 404 pages as not to be stored; the plugin allows a minute.
    equal((site.get('/nothing-here/').status, site.get('/nothing-here/').cache), (404, 'HIT'))
    site.script('gone.php', '<?php http_response_code(410); echo "gone";')
    equal((site.get('/gone.php').status, site.get('/gone.php').cache), (410, 'HIT'), '410 1m')
    site.script('away.php', '<?php header("Location: /" . uniqid(), true, 302);')
    equal([site.get('/away.php').cache for _ in range(2)], ['MISS', 'MISS'], '302')
    first = site.get('/a-quiet-machine')
    equal((first.status, first.fields['location']), (301, site.url + '/a-quiet-machine/'))
    equal(site.get('/a-quiet-machine').cache, 'HIT', '301 1d')


def test_a_stale_page_answers_while_php_is_away(site):
    site.script('brief.php', '<?php header("X-Accel-Expires: 1"); echo "brief";')
    equal(site.get('/brief.php').cache, 'MISS')
    time.sleep(2.1)
    socket_path = str(site.served / 'php.sock')
    away = socket_path + '.away'
    os.rename(socket_path, away)
    try:
        stale = site.get('/brief.php')
        equal((stale.status, stale.cache, stale.body), (200, 'STALE', b'brief'))
        equal(site.get('/brief.php?new').status, 502)
    finally:
        os.rename(away, socket_path)

    def is_new():
        cache = site.get('/brief.php').cache
        assert cache in ('STALE', 'UPDATING', 'HIT'), f'{cache}: a request waited for the new one'
        return cache == 'HIT'
    until('the new page', is_new)


def redis_socket(site):
    return re.search(r"WP_REDIS_SOCKET', '([^']+)'", (site.folder / 'www/wp-site.php').read_text())[1]


def redis(site, *command):
    return subprocess.run(['redis-cli', '-s', redis_socket(site), *command], capture_output=True, text=True).stdout.strip()


def test_objects_are_kept_in_redis_and_the_site_lives_without_it(site):
    site.get('/?s=anything')
    assert int(redis(site, 'dbsize')) > 10
    equal(redis(site, 'config', 'get', 'maxmemory-policy').split()[-1], 'allkeys-lru')
    site.script('objects.php', """<?php define('WP_USE_THEMES', false); require 'wp-load.php';
        header('Cache-Control: no-store');
        if ($_GET['do'] === 'write') {
            wp_cache_set('list', array(false, null, 'x' => 1.5), 'test'); wp_cache_set('no', false, 'test');
            wp_cache_set('brief', 1, 'test', 1); wp_cache_add('list', 'never', 'test'); wp_cache_set('n', 41, 'test');
            wp_cache_add_non_persistent_groups('own'); wp_cache_set('own', 1, 'own');
        }
        if ($_GET['do'] === 'flush') wp_cache_flush();
        $no = wp_cache_get('no', 'test', false, $found);
        echo json_encode(array(wp_cache_get('list', 'test'), $no, $found, wp_cache_incr('n', 1, 'test'),
            wp_cache_get('own', 'own'), wp_cache_get_multiple(array('list', 'none'), 'test')['none'],
            wp_cache_replace('unknown', 1, 'test')));""")
    objects = lambda do: json.loads(site.get(f'/objects.php?do={do}&{next(FRESH)}').body)
    kept = {'0': False, '1': None, 'x': 1.5}
    equal(objects('write'), [kept, False, True, 42, 1, False, False])
    equal(objects('read'), [kept, False, True, 43, False, False, False])
    equal(objects('flush'), [False, False, False, False, False, False, False])
    number = int(redis(site, 'info', 'server').split('process_id:')[1].split()[0])
    os.kill(number, signal.SIGSTOP)
    try:
        equal(site.get(f'/?s=frozen{next(FRESH)}').status, 200)
    finally:
        os.kill(number, signal.SIGCONT)
    equal(objects('write')[0], kept)


def test_sizes_follow_the_memory(site):
    shown = re.search(r'memory (\d+) MB, 75 % of it (\d+) MB: (.*)', site.out.read_text())
    equal((sum(map(int, re.findall(r'\d+', shown[3]))), int(shown[2])), (int(shown[1]) * 75 // 100,) * 2, shown[0])
    sizes = lambda memory: subprocess.run(
        ['bash', '-c', f'here={ROOT}; . $here/stack/lib.sh; YOROZU_MEMORY={memory} compute_sizes'], capture_output=True,
        text=True).stderr.split(': ')[1].strip()
    # The guide's own machine: its 512 MB for InnoDB and 128 for queries.
    equal(sizes(2048), 'MariaDB 512 + 128 + 128, Redis 64, pages and PHP 704')
    equal(sizes(512), 'MariaDB 128 + 32 + 128, Redis 32, pages and PHP 64')
    # A sixteenth of what is left for pages.
    equal(int(re.search(r'memory=(\d+)m', (site.served / 'conf/page-cache.conf').read_text())[1]), int(shown[3].split()[-1]) // 16)


def test_static_files(site):
    path = '/wp-includes/css/dist/block-library/style.css'
    whole = site.get(path)
    equal((whole.status, whole.fields['content-type']), (200, 'text/css'))
    etag, modified = whole.fields['etag'], whole.fields['last-modified']
    part = site.get(path, Range='bytes=0-9')
    equal((part.status, part.body), (206, whole.body[:10]))
    equal(site.get(path, If_None_Match=etag).status, 304)
    equal(site.get(path, If_Modified_Since=modified).status, 304)
    equal(site.get(path, Range='bytes=99999999-').status, 416)
    equal(site.get(path, If_Match='"other"').status, 412)


def test_browsers_keep_files_and_compress_them(site):
    path = '/wp-includes/css/dist/block-library/style.css'
    # Of the two Cache-Control fields the last one.
    equal(site.get(path).fields['cache-control'], 'public')
    equal(site.get(path + '?ver=6.1').fields['cache-control'], 'public, immutable')
    for coding in ('gzip', 'br', 'zstd'):
        equal(site.get(path, Accept_Encoding=coding).fields['content-encoding'], coding)
        # A large stored page is sent as it is while its first form is made.
        packed = lambda: site.get('/', Accept_Encoding=coding).fields.get('content-encoding')
        until(coding, lambda: packed() == coding)


def test_gzip_as_configured(site):
    plain = site.get('/')
    packed = site.get('/', Accept_Encoding='gzip')
    equal(packed.fields.get('content-encoding'), 'gzip')
    equal((plain.fields['vary'], packed.fields['vary']), ('Accept-Encoding',) * 2)
    equal(gzip.decompress(packed.body), site.get('/').body)
    again = site.get('/', Accept_Encoding='gzip')
    equal((again.cache, again.body), ('HIT', packed.body), 'compressed once')


# --- a person with a browser ---------------------------------------------------------------------

def png():
    chunk = lambda kind, data: (struct.pack('>I', len(data)) + kind + data
                                + struct.pack('>I', zlib.crc32(kind + data)))
    rows = b''.join(b'\0' + b'\xc0\x30\x30' * 40 for _ in range(40))
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 40, 40, 8, 2, 0, 0, 0))
            + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


def test_a_person_logs_in_writes_uploads_and_is_commented_on(site):
    browser = Browser()
    try:
        log_in(browser, site)
        assert 'Dashboard' in browser.text('h1')
        browser.open(site.url + '/wp-admin/post-new.php')
        browser.wait(lambda: browser.run(
            'return !!(window.wp && wp.data && wp.data.select("core/editor") &&'
            ' wp.data.select("core/editor").getCurrentPostId())'), 'the editor')
        browser.run('wp.data.dispatch("core/editor").editPost({title: "Written in a browser",'
                    ' content: "<p>by hand</p>", status: "publish"});'
                    'wp.data.dispatch("core/editor").savePost()')
        browser.wait(lambda: browser.run(
            'const e = wp.data.select("core/editor");'
            'return e.isCurrentPostPublished() && !e.isSavingPost()'), 'the post to be saved')
        image = site.folder / 'picture.png'
        image.write_bytes(png())
        browser.open(site.url + '/wp-admin/media-new.php?browser-uploader')
        browser.run('document.querySelector("#html-upload-ui").style.display = "block"')
        browser.type('#async-upload', str(image))
        browser.click('#html-upload')
        browser.wait(lambda: 'upload.php' in browser.url(), 'the media library')
        uploaded = next((site.folder / 'www/wp-content/uploads').rglob('picture*.png'))
        path = '/wp-content/uploads/' + str(uploaded.relative_to(site.folder / 'www/wp-content/uploads'))
        equal(site.get(path).body, png())
        seen = site.get('/written-in-a-browser/')
        equal(seen.cache, 'MISS', 'the logged-in view was stored')
        assert b'by hand' in seen.body and b'wpadminbar' not in seen.body
    finally:
        browser.close()
    leave_a_comment(site)


def leave_a_comment(site):
    visitor = Browser()
    try:
        visitor.open(site.url + '/written-in-a-browser/')
        visitor.find('#comment')
        visitor.run('for (const [id, text] of Object.entries(arguments[0]))'
                    ' document.getElementById(id).value = text',
                    {'comment': 'Well cached!', 'author': 'Visitor', 'email': 'v@example.invalid'})
        if visitor.run('return !!document.querySelector("#wp-comment-cookies-consent")'):
            visitor.run('document.querySelector("#wp-comment-cookies-consent").checked = true')
        visitor.click('#submit')
        visitor.wait(lambda: 'Well cached!' in visitor.text(), 'the comment')
    finally:
        visitor.close()
    def others_see_it():
        seen = site.get('/written-in-a-browser/')
        assert b'v@example.invalid' not in seen.body, "the visitor's own view was stored"
        return b'Well cached!' in seen.body
    until('the comment on the stored page', others_see_it)


# --- the processes -------------------------------------------------------------------------------
# A site just started, where the first pause is the shortest.

class Trickle:
    """Asks for a page all the while; a with block."""

    def __init__(self, site, path):
        self.site, self.path, self.seen, self.is_over = site, path, [], threading.Event()

    def ask(self):
        while not self.is_over.wait(0.02):
            try:
                answer = self.site.get(self.path)
                self.seen.append((answer.status, answer.cache))
            except OSError as problem:
                self.seen.append(type(problem).__name__)

    def __enter__(self):
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def store(site, path):
    """Has a page stored; its file is written behind the answer."""
    site.get(path)
    key = (site.url.partition('//')[2] + path).encode()
    files = lambda: (site.served / 'pages').rglob('?' * 32)
    until('the file', lambda: any(key in file.read_bytes() for file in files()))


def heals(site):
    """A page that was never asked for is made, with its objects in Redis."""
    def healed():
        try:
            page = site.get(f'/?s=healed{next(FRESH)}')
            return page.status == 200 and redis(site, 'dbsize') not in ('', '0')
        except OSError:
            return False
    until('the site to heal', healed)


# What is said of each when it dies, and when it is back.
SAID = {'php-fpm': (r'PHP-FPM ended \(signal: 9 \(SIGKILL\)\): it is started again in \d+ s', 'PHP-FPM is started again'),
        'server': (r'the server ended \(signal: 9 \(SIGKILL\)\): it is started again in \d+ s', 'the server is started again')}
SAID |= {name: (rf'make run: {name} died \(signal KILL\), it is started again in \d+ s; its last words: \S', f'make run: {name} answers again, after')
         for name in ('redis', 'mariadb', 'yorozu')}


def test_each_process_that_dies_is_started_again(site):
    site.restart()
    store(site, '/a-quiet-machine/')
    for name in ('redis', 'php-fpm', 'mariadb', 'server'):
        before = site.pid(name)
        with Trickle(site, '/a-quiet-machine/') as trickle:
            said = site.kill(name)
            for line in SAID[name]:
                site.said(line, said)
            heals(site)
            until('visits meanwhile', lambda: len(trickle.seen) > 10)
        assert site.pid(name) != before
        # Also while the server has no master, until the next one takes it over.
        unserved = [seen for seen in trickle.seen if seen != (200, 'HIT')]
        assert not unserved, (name, unserved)
        equal(site.get('/a-quiet-machine/').cache, 'HIT', name)


def test_all_processes_that_die_at_once_are_started_again(site):
    site.restart()
    store(site, '/a-quiet-machine/')
    # The last one takes PHP and the server with it.
    names = ('redis', 'mariadb', 'yorozu')
    said = site.kill(*names)
    for name in names:
        site.said(f'make run: {name} died', said)
        site.said(f'make run: {name} answers again', said)
    heals(site)
    equal(site.get('/a-quiet-machine/').cache, 'HIT')
    equal(site.process.poll(), None)


def test_stale_pages_answer_while_php_and_the_database_are_dead(site):
    site.restart()
    for name, code in (('php-fpm', 'echo "brief";'), ('mariadb', 'require "wp-load.php"; echo "brief";')):
        path = f'/dead-{name}.php'
        site.script(path[1:], f'<?php header("X-Accel-Expires: 1"); {code}')
        equal(site.get(path).cache, 'MISS', name)
        time.sleep(2.1)
        said = site.kill(name)
        stale = site.get(path)
        equal((stale.status, stale.body), (200, b'brief'))
        assert stale.cache in ('STALE', 'UPDATING'), stale.cache
        site.said(SAID[name][1], said)
        heals(site)


def test_the_pause_before_a_start_grows_and_begins_anew(site):
    site.restart()
    pauses = []
    for _ in range(3):
        said = site.kill('redis')
        pauses.append(int(site.said(r'redis died .* in (\d+) s', said)[1]))
        site.said('redis answers again', said)
    assert [pause / pauses[0] for pause in pauses] == [1, 2, 4], pauses
    heals(site)
    # No test lasts as long as a process must be well: the clock is set.
    shown = subprocess.run(['bash', '-c', f"""here={ROOT}; . $here/stack/lib.sh; . $here/stack/processes.sh
        data=$(mktemp -d); mkdir "$data/log"
        start some '' false; wait; sleep 0.1
        for age in 0 0 0 50 60 0 0; do born[some]=$((SECONDS - age)); plan_restart some; done
        for _ in 1 2 3 4; do plan_restart some; done; rm -r "$data" """], capture_output=True, text=True).stderr
    equal([int(pause) for pause in re.findall(r'in (\d+) s', shown)], [1, 2, 4, 8, 1, 2, 4, 8, 16, 32, 60], shown)


class Stopped:
    """A process that neither answers nor ends."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


STORE = """<?php define('WP_USE_THEMES', false); require 'wp-load.php'; header('Cache-Control: no-store');
    echo explode(' ', file_get_contents(WP_CONTENT_DIR . '/.object-cache-epoch'))[0], ' ';
    if (isset($_GET['set'])) update_option('coherence', $_GET['set'], false);
    echo get_option('coherence');"""


def test_nothing_stale_comes_back_with_redis(site):
    site.restart()
    site.script('store.php', STORE)
    ask = lambda words='': site.get(f'/store.php?{next(FRESH)}&{words}').body.decode()
    in_redis = lambda: until('Redis to be used again', lambda: ask().startswith('redis '))
    in_redis()
    # Twice: what is in Redis from before the first time must not come back after the second.
    for turn in ('a', 'b'):
        equal(ask(f'set=one-{turn}'), f'redis one-{turn}')
        with Stopped(site.pid('redis')):
            equal(ask(f'set=two-{turn}').split()[1], f'two-{turn}')
            equal(ask(), f'apcu two-{turn}')
            equal(ask(f'set=three-{turn}'), f'apcu three-{turn}')
            # PHP on the command line has no APCu: what others have there must not outlive its change.
            site.php(f'ini_set("error_log", "/dev/null"); update_option("coherence", "four-{turn}");')
            equal(ask(), f'apcu four-{turn}')
        in_redis()
        equal(ask(), f'redis four-{turn}')
    # What APCu kept of the first time is of no use the second time.
    equal(ask('set=five'), 'redis five')
    said = site.kill('redis')
    equal(ask().split()[1], 'five')
    site.said('redis answers again', said)
    in_redis()
    equal(ask(), 'redis five')


def test_a_request_that_spans_a_switch_leaves_nothing_stale(site):
    site.script('store.php', STORE)
    # Begins with one store, and writes when everybody uses another.
    site.script('spanning.php', """<?php define('WP_USE_THEMES', false); require 'wp-load.php';
        header('Cache-Control: no-store');
        get_option('coherence');
        $file = __DIR__ . '/wp-content/spanning'; touch($file);
        while (file_exists($file)) { usleep(1000); clearstatcache(); }
        update_option('coherence', $_GET['set'], false); echo 'done';""")
    ask = lambda words='': site.get(f'/store.php?{next(FRESH)}&{words}').body.decode()
    flag = site.folder / 'www/wp-content/spanning'

    def span(value, meanwhile):
        thread = threading.Thread(target=site.get, args=(f'/spanning.php?{next(FRESH)}&set={value}',))
        thread.start()
        until('the request to have begun', flag.exists)
        meanwhile()
        flag.unlink()
        thread.join()

    until('Redis to be used', lambda: ask('set=before').startswith('redis '))
    redis_pid = site.pid('redis')

    def stop_and_go_on():
        with Stopped(redis_pid):
            until('APCu to be used', lambda: ask() == 'apcu before')
        until('Redis to be used again', lambda: ask() == 'redis before')
    span('after', stop_and_go_on)
    equal(ask(), 'redis after')

    os.kill(redis_pid, signal.SIGSTOP)
    until('APCu to be used', lambda: ask('set=before').startswith('apcu'))

    def go_on():
        os.kill(redis_pid, signal.SIGCONT)
        until('Redis to be used again', lambda: ask() == 'redis before')
    span('later', go_on)
    equal(ask(), 'redis later')


def test_a_stopped_redis_holds_few_requests_up(site):
    """At first, and one each time it is tried again: that is a connection which it has not taken yet."""
    site.script('store.php', STORE)
    ask = lambda: site.get(f'/store.php?{next(FRESH)}')
    untaken = lambda: int(subprocess.run(['ss', '-Hxl', 'src', redis_socket(site)], check=True, capture_output=True, text=True).stdout.split()[2])
    pause = int(re.search(r'const PAUSE\s*= (\d+);', (ROOT / 'stack/object-cache.php').read_text())[1])
    until('Redis to be used', lambda: ask().body.startswith(b'redis'))
    begun = time.monotonic()
    with Stopped(site.pid('redis')):
        for _ in range(40):
            equal(ask().status, 200)
        tries = untaken()
        # Each takes half a second: if all requests tried, they were more than one in a pause.
        assert 1 <= tries <= 2 + (time.monotonic() - begun) / pause, tries


def test_a_redis_that_stops_again_and_again_is_never_waited_for_long(site):
    site.script('store.php', STORE)
    ask = lambda: site.get(f'/store.php?{next(FRESH)}')
    # As often as every PHP process meets one: what it kept of the time before must have a timeout as well.
    for _ in range(20):
        until('Redis to be used', lambda: ask().body.startswith(b'redis'))
        with Stopped(site.pid('redis')):
            for _ in range(2):
                equal(ask().status, 200)


def test_what_a_dying_database_answers_is_not_kept(site):
    site.restart()
    site.script('dying.php', """<?php define('WP_USE_THEMES', false); require 'wp-load.php';
        header('Cache-Control: no-store');
        $wpdb->suppress_errors(); remove_all_actions('template_redirect'); do_action('template_redirect');
        $file = __DIR__ . '/wp-content/dying'; touch($file);
        while (file_exists($file)) { usleep(1000); clearstatcache(); }
        echo var_export(get_option('coherence'), true);""")
    site.script('store.php', STORE)
    ask = lambda words='': site.get(f'/store.php?{next(FRESH)}&{words}').body.decode()
    equal(ask('set=there').split()[1], 'there')
    flag, answers = site.folder / 'www/wp-content/dying', []
    thread = threading.Thread(target=lambda: answers.append(site.get(f'/dying.php?{next(FRESH)}').body))
    redis(site, 'flushall')
    thread.start()
    until('the request to have begun', flag.exists)
    redis(site, 'flushall')
    with Stopped(site.supervisor()):
        said = site.kill('mariadb')
        flag.unlink()
        thread.join()
    equal(answers, [b'false'], 'the database was not asked')
    site.said('mariadb answers again', said)
    heals(site)
    equal(ask().split()[1], 'there')


def test_a_killed_run_is_warm_at_its_next_start(site):
    store(site, '/a-quiet-machine/')
    names = ('yorozu', 'redis', 'php-fpm', 'mariadb')
    pids = [site.pid(name) for name in names]
    os.kill(site.supervisor(), signal.SIGKILL)
    assert site.process.wait(60) != 0
    site.kill('server')
    port = site.port
    site.start()
    if site.port == port:
        equal(site.get('/a-quiet-machine/').cache, 'HIT')
    for name, pid in zip(names, pids):
        # Whose number its parent has not asked for has ended, too.
        assert not command_of(pid), f'{name} of the killed run is left'


def test_changes_of_the_owner_are_kept(site):
    wordpress = site.folder / 'www/wp-config.php'
    wordpress.write_text(wordpress.read_text().replace("<?php\n", "<?php\ndefine( 'WP_CACHE', true );\ndefine( 'YOROZU_SECONDS', 1200 );\n"))
    port = site.port
    site.restart()
    assert site.port != port and "define( 'WP_CACHE', true );" in wordpress.read_text()
    assert f'127.0.0.1:{site.port}/' in site.get('/').body.decode()
    equal(wordpress.stat().st_mode & 0o777, 0o640)
    # The owner's word for how long pages are kept counts before the day that the server says.
    until('a hit', lambda: site.get('/a-quiet-machine/').cache == 'HIT')
    assert 1000 < int(re.search(r'ttl=(\d+)', site.get('/a-quiet-machine/').fields['cache-status'])[1]) <= 1200
    # And a configuration of the server's that was written to be changed.
    own = site.folder / 'own'
    subprocess.run([YOROZU, 'serve', site.folder / 'www', '--state', site.served, '--port', str(site.port), '--write', own], check=True, capture_output=True)
    (own / 'nginx.conf').write_text((own / 'nginx.conf').read_text().replace('fastcgi_cache pages;', 'fastcgi_cache pages; fastcgi_cache_dry_run on;'))
    site.stop()
    site.start(site.port)
    equal((site.get('/robots.txt').status, site.served.joinpath('written').read_text()), (200, str(own)))
    assert f'as {own} says' in site.out.read_text()
    # All pages would have been hits, and none would have shown a visitor anything else.
    pages = re.findall(rf'<loc>http://[^/]+(/[^<]*)', site.get('/wp-sitemap-posts-post-1.xml').body.decode() + site.get('/wp-sitemap-taxonomies-category-1.xml').body.decode())
    assert len(pages) > 3, pages
    for path in ['/', '/feed/', *pages]:
        site.get(path)
        equal((site.get(path).fields['cache-status'], path), ('yorozu; fwd=bypass; fwd-status=200; detail=dry-run', path))
    assert 'dry run' not in site.out.read_text()
    # What nothing purges is seen.
    plugins = site.folder / 'www/wp-content/mu-plugins'
    plugins.mkdir(exist_ok=True)
    (plugins / 'footer.php').write_text("<?php add_action('wp_footer', function () { echo 'put there by FTP'; });")
    assert b'put there by FTP' in site.get('/a-quiet-machine/').body
    until('the difference', lambda: "dry run: would have been a hit, but the stored response differs" in site.out.read_text())
    (plugins / 'footer.php').unlink()
    (site.served / 'written').unlink()


def test_another_wordpress_whose_folder_php_may_not_write(installed, tmp_path):
    other, folder = tmp_path / 'wordpress', pathlib.Path(tempfile.mkdtemp(prefix='yorozu-other.'))
    subprocess.run(['cp', '-RL', '/usr/share/wordpress', other], check=True)
    # Newer versions read this file by themselves.
    (other / 'wp-content/mu-plugins').mkdir()
    (other / 'wp-content/mu-plugins/other.php').write_text("<?php require_once ABSPATH . 'wp-admin/includes/plugin.php'; header('X-Other: yes');")
    subprocess.run(['tar', '-C', folder, '-xf', installed], check=True)
    shutil.rmtree(folder / 'www')
    (folder / 'plugin').unlink()
    site = Site(data=folder, WORDPRESS=str(other))
    try:
        until('a hit', lambda: site.get('/').cache == 'HIT')
        equal(site.get('/').fields['x-other'], 'yes')
        assert 'WORDPRESS' not in site.out.read_text()
        if os.geteuid() != 0:
            return
        content = folder / 'www/wp-content'
        subprocess.run(['chown', '-R', 'root', content], check=True)
        (content / '.object-cache-epoch').unlink(missing_ok=True)
        site.restart()
        said = site.out.read_text()
        assert f'WORDPRESS counts at the first start: the site in {folder}/www stays' in said and f'PHP may not write to {content}' in said, said
        # The lock of WP-Cron is a transient: where it is lost, one event is carried out each time.
        site.script('transient.php', """<?php require 'wp-load.php'; header('Cache-Control: no-store'); echo json_encode(get_transient('mine'));
            set_transient('mine', $_GET['set']);""")
        equal([site.get(f'/transient.php?set={value}').body for value in ('one', 'two')], [b'false', b'"one"'])
        until('a complaint', lambda: 'object cache: cannot write' in site.out.read_text())
        site.stop()
        refused = subprocess.run([ROOT / 'stack/run'], capture_output=True, text=True, env=os.environ | {'YOROZU_DATA': str(folder), 'WORDPRESS': '/etc'})
        equal((refused.returncode, 'WORDPRESS is "/etc": a folder with WordPress (wp-load.php) was expected' in refused.stderr), (1, True), refused.stderr)
    finally:
        site.end()


def test_a_full_disk_is_said_and_the_site_goes_on(installed):
    folder = tempfile.mkdtemp(prefix='yorozu-small.')
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=400m', 'none', folder]
    if subprocess.run(mount, capture_output=True).returncode:
        os.rmdir(folder)
        pytest.skip('a small disk needs root')
    try:
        small = Site(installed, folder, YOROZU_MEMORY='512')
        try:
            stay_on_a_full_disk(small)
        finally:
            small.stop()
        # Unbuffered: closing it would write again.
        with open(small.folder / 'filler', 'wb', buffering=0) as filler:
            fill(filler)
        refused = subprocess.run([ROOT / 'stack/run'], capture_output=True, text=True,
                                 env=os.environ | {'YOROZU_DATA': folder})
        equal((refused.returncode, f'the disk of {folder} is full' in refused.stderr), (1, True), refused.stderr)
    finally:
        subprocess.run(['umount', '-l', folder], check=True)
        os.rmdir(folder)


def fill(file):
    try:
        while True:
            file.write(b'x' * 65536)
            file.flush()
    except OSError as problem:
        equal(problem.errno, errno.ENOSPC)


def stay_on_a_full_disk(site):
    site.script('store.php', STORE)
    site.get('/a-quiet-machine/')
    # Unbuffered: closing it would write again.
    with open(site.folder / 'filler', 'wb', buffering=0) as filler:
        fill(filler)
        with Trickle(site, '/a-quiet-machine/') as trickle:
            site.said(f'make run: the disk of {site.folder} is full')
            count = len(trickle.seen)
            until('visits meanwhile', lambda: len(trickle.seen) > count + 100)
        assert set(trickle.seen) == {(200, 'HIT')}, set(trickle.seen)
        equal(site.process.poll(), None)
    (site.folder / 'filler').unlink()
    site.said('has space again')
    heals(site)
    written = lambda: site.get(f'/store.php?{next(FRESH)}&set=again').body.split()[1:] == [b'again']
    until('WordPress to write', written)


def test_everything_ends_with_the_run(site):
    # Also what is between a death and its next start, and what does not heed its signal.
    said = site.kill('redis')
    site.said('redis died', said)
    site.stop()
    left = subprocess.run(['pgrep', '-f', str(site.folder)], capture_output=True, text=True).stdout
    equal(left, '', 'left behind')
    site.start()
    assert 'installing' not in site.out.read_text()

