"""The WordPress plugin: comments, themes and options, what is not stored, other plugins, commands, and its screens."""
import contextlib, http.client, json, os, re, signal, subprocess, threading, time, urllib.error, urllib.parse, urllib.request
from browser import Browser
from peers import ROOT, equal
from plugin_pages import KINDS, PAST, PATHS, after, content, fresh, is_hit, is_now, mu_plugin, until, warm
from wordpress import log_in

# --- comments, terms, the site -------------------------------------------------------------------

def test_comments(site):
    ids = content(site)
    comment = """$id = wp_insert_comment(array('comment_post_ID' => %d, 'comment_content' => 'Held back',
        'comment_author' => 'Bob', 'comment_author_email' => 'bob@example.invalid', 'comment_approved' => 0));""" % ids['one']
    warm(site, PATHS)
    site.php(comment)
    equal(site.get('/post-one/').cache, 'HIT', 'a comment that waits for approval')
    find = "$id = get_comments(array('search' => 'Held back', 'status' => 'any'))[0]->comment_ID;"
    changed = after(site, 'approve', find + "wp_set_comment_status($id, 'approve');", touched=['/author/ann/'])
    assert {'/post-one/', '/comments/feed/', '/post-one/feed/'} <= changed, changed
    assert '/post-two/' not in changed
    after(site, 'trash', find + 'wp_trash_comment($id);', is_hard=True)


def test_terms(site):
    ids = content(site)
    rename = "wp_update_term(%s, '%s', array('name' => '%s'));"
    changed = after(site, 'tag', rename % (f"get_term_by('slug', 'blue', 'post_tag')->term_id", 'post_tag', 'Navy'),
                    touched=['/wp-json/wp/v2/posts'])
    assert '/tag/blue/' in changed and '/post-one/' not in changed, changed
    # Now categories, and how many posts each has, stand in the sidebar of every page.
    after(site, 'widget', """update_option('widget_categories', array(2 => array('title' => 'Kinds', 'count' => 1),
        '_multiwidget' => 1)); update_option('sidebars_widgets', array('sidebar-1' => array('categories-2')));""",
          is_hard=True, touched=PATHS, paths=KINDS)
    changed = after(site, 'category', rename % (ids['hill'], 'category', 'Mountain'),
                    touched=['/wp-json/wp/v2/posts'])
    assert {'/category/hill/', '/post-one/'} <= changed, changed
    changed = after(site, 'count', f"wp_set_post_categories({ids['one']}, array({ids['sea']}, {ids['hill']}));",
                    touched=['/post-one/feed/'])
    assert '/about/' in changed, changed
    after(site, 'deleted', f"wp_delete_term({ids['bay']}, 'category');", is_hard=True, touched=PATHS)


def test_author_theme_and_options(site):
    ids = content(site)
    changed = after(site, 'author', f"wp_update_user(array('ID' => {ids['ann']}, 'display_name' => 'Anna'));")
    assert '/author/ann/' in changed and '/post-two/' not in changed, changed
    after(site, 'name', "update_option('blogname', 'Another name');", is_hard=True, touched=PATHS, paths=KINDS)
    # As the block editor sets it: the theme's own logo follows it, without being written.
    after(site, 'logo', """wp_set_current_user(1); $id = wp_insert_attachment(array('post_mime_type' => 'image/png', 'post_title' => 'Logo'), 'logo.png');
        wp_update_attachment_metadata($id, array('width' => 10, 'height' => 10, 'file' => 'logo.png', 'sizes' => array()));
        $request = new WP_REST_Request('PUT', '/wp/v2/settings'); $request->set_body_params(array('site_logo' => $id));
        if (rest_do_request($request)->is_error()) throw new Exception('no logo');""", is_hard=True, touched=PATHS, paths=KINDS)
    site.php("$id = get_option('site_logo'); delete_option('site_logo'); wp_delete_attachment($id, true);")
    after(site, 'theme', "switch_theme('twentytwentythree');", is_hard=True, touched=PATHS, paths=KINDS)
    after(site, 'part', """$id = wp_insert_post(array('post_type' => 'wp_template_part', 'post_name' => 'footer',
        'post_title' => 'Footer', 'post_status' => 'publish', 'post_content' => '<p>New foot</p>'));
        wp_set_object_terms($id, 'twentytwentythree', 'wp_theme');
        wp_set_object_terms($id, 'footer', 'wp_template_part_area');""", is_hard=True, touched=PATHS, paths=KINDS)
    site.php("switch_theme('twentytwentyone');")


def test_stock_of_a_shop(site):
    """WooCommerce is not among Debian's packages: its hooks are called as it calls them."""
    ids = content(site)
    warm(site, ['/post-two/', '/post-three/'])
    site.php(f"""do_action('woocommerce_product_set_stock', new class {{ function get_id() {{ return {ids['two']}; }} }});""")
    for path, wanted in (('/post-two/', True), ('/post-three/', False)):
        equal(site.get(path).cache != 'HIT', wanted, path)


# --- vetoes --------------------------------------------------------------------------------------

@contextlib.contextmanager
def without_bypass(site):
    """The server lets nobody past the cache by a cookie, so that the plugin stands alone."""
    file = site.served / 'conf/visitor.conf'
    whole = file.read_text()
    less, count = re.subn(r'\n\w+_(cache_bypass\w*|no_cache) \$is_\w+;', '', whole)
    equal(count, 6)
    file.write_text(less)
    is_past = lambda: site.get('/?past', **PAST).cache == 'BYPASS'
    os.kill(site.pid('server'), signal.SIGHUP)
    until(lambda: not is_past(), 'the server to read its configuration')
    try:
        yield
    finally:
        file.write_text(whole)
        os.kill(site.pid('server'), signal.SIGHUP)
        until(is_past, 'the server to read its configuration again')


def is_stored(site, path, **fields):
    site.get(path, **fields)
    return 'HIT' in [site.get(path, **fields).cache for _ in range(2)]


def cookies_of(answer):
    return '; '.join(re.findall(r'((?:wp-postpass_|woo|wp_woo)[^=;]*=[^;]*)', answer.fields.get('set-cookie', '')))


def test_what_a_password_opens_is_nobody_elses(site):
    ids = content(site)
    secret = b'Behind the password'
    post = site.php("""echo wp_insert_post(array('post_title' => 'Vault', 'post_name' => 'vault', 'post_status' => 'publish',
        'post_password' => 'open', 'post_content' => '<p>Behind the password</p>', 'post_excerpt' => '', 'tags_input' => array('locked'),
        'post_category' => array(%d), 'post_author' => %d, 'post_date' => '2025-02-03 04:05:06'));""" % (ids['hill'], ids['ann']))
    given = site.get('/wp-login.php?action=postpass', 'POST', 'post_password=open',
                     Content_Type='application/x-www-form-urlencoded', Referer=site.url + '/vault/')
    cookie = {'Cookie': cookies_of(given)}
    assert 'wp-postpass_' in cookie['Cookie'], given.fields
    code = """
    if (isset($_GET['club'])) add_action('wp', fn() => add_filter('yorozu_personal_cookies', fn($names) => array_merge($names, array('club_'))));
    add_shortcode('posts_of_tag', function () {
        $out = '';
        foreach (get_posts(array('tag' => 'locked')) as $one) $out .= apply_filters('the_content', get_the_content(null, false, $one));
        return $out;
    });
    add_action('template_redirect', function () {
        if (isset($_GET['block'])) die(do_blocks('<!-- wp:latest-posts {"displayPostContent":true,"displayPostContentRadio":"full_post","postsToShow":99} /-->'));
        if (isset($_GET['query'])) die(do_blocks('<!-- wp:query {"query":{"perPage":99,"postType":"post","inherit":false}} --><!-- wp:post-template --><!-- wp:post-content /--><!-- /wp:post-template --><!-- /wp:query -->'));
        if (isset($_GET['shortcode'])) die(do_shortcode('[posts_of_tag]'));
    });"""
    paths = ['/vault/', '/?s=vault', '/tag/locked/', '/tag/locked/feed/', '/author/ann/', '/author/ann/feed/', '/category/hill/',
             '/category/hill/feed/', '/2025/', '/2025/02/', '/2025/02/03/', '/vault/embed/', '/vault/feed/', '/?block', '/?query', '/?shortcode',
             '/wp-json/wp/v2/posts?author=%d' % ids['ann'], f'/wp-json/wp/v2/posts/{post}', f'/wp-json/wp/v2/posts/{post}?password=open']
    try:
        with mu_plugin(site, code), without_bypass(site):
            opened = 0
            for path in paths:
                opened += secret in site.get(path, **cookie).body
                answers = [site.get(path) for _ in range(3)]
                if 'password=' not in path:
                    assert not any(secret in answer.body for answer in answers), f'{path} shows a stranger what the password opens'
                # A search does not find it, for either.
                assert '?s=' in path or all(answer.cache != 'HIT' for answer in answers), f'{path} is stored'
            assert opened > 12, f'the password opened {opened} pages only'
            # The same by a cookie that the site's own code names.
            assert is_stored(site, '/about/?open', Cookie='club_member=7')
            assert not is_stored(site, '/about/?club', Cookie='club_member=7')
            # The visitor's other pages are as public as before, and are not stored for others either.
            assert not is_stored(site, '/about/?visitor', **cookie)
            assert is_stored(site, '/about/?visitor')
            # Its title is for all.
            assert is_stored(site, '/wp-json/oembed/1.0/embed?url=' + site.url + '/vault/')
        # With no password it is found, and its comments are shown.
        found = ['/?s=behind', '/wp-json/wp/v2/search?search=behind', '/wp-json/wp/v2/comments', f'/wp-json/wp/v2/comments?post={post}']
        site.php(f"""wp_insert_comment(array('comment_post_ID' => {post}, 'comment_content' => 'Mine', 'comment_author' => 'Bob',
            'comment_author_email' => 'bob@example.invalid', 'comment_approved' => 1));""")
        warm(site, found[:2])
        site.php(f"wp_update_post(array('ID' => {post}, 'post_password' => ''));")
        for path in found:
            now = fresh(site, path)
            assert b'Vault' in now[2] or b'Mine' in now[2], path
            until(lambda: is_now(site, path, now), f'{path} to be refreshed')
        # A list that gets a post behind a password is gone, for it is not stored again.
        assert is_stored(site, '/author/ann/')
        after(site, 'password', f"wp_update_post(array('ID' => {post}, 'post_password' => 'open'));", is_hard=True, touched=PATHS)
        assert not is_stored(site, '/author/ann/')
        site.php(f"wp_update_post(array('ID' => {post}, 'post_status' => 'draft'));")
        assert is_stored(site, '/author/ann/')
        warm(site, ['/author/ann/'])
        site.php(f"wp_publish_post({post});")
        assert b'Protected: Vault' in site.get('/author/ann/').body
    finally:
        site.php(f'wp_delete_post({post}, true);')


# What WooCommerce does with cookies and hooks, by its documentation; it is not among Debian's packages.
SHOP = """
function is_cart() { return is_page('about'); }
function is_checkout() { return false; }
function is_account_page() { return isset($_GET['account']); }
function shop_cart() { return substr($_COOKIE['wp_woocommerce_session_1'] ?? '', 0, 40); }
add_action('init', function () {
    if (!isset($_GET['add'])) return;
    foreach (array('woocommerce_items_in_cart' => 1, 'woocommerce_cart_hash' => 'abc', 'wp_woocommerce_session_1' => 'cart-of-' . $_GET['add']) as $name => $value)
        header("Set-Cookie: $name=$value; path=/", false);
    $_COOKIE['wp_woocommerce_session_1'] = 'cart-of-' . $_GET['add'];
    if (!isset($_GET['quiet'])) do_action('woocommerce_set_cart_cookies', true);
});
add_action('template_redirect', function () {
    if (isset($_GET['wc-ajax'])) { header('Content-Type: application/json'); die(json_encode(array('fragments' => array('div.mini' => shop_cart())))); }
    if (isset($_GET['late'])) define('WOOCOMMERCE_CHECKOUT', true);
}, 0);
foreach (array('wp_footer', 'wp_body_open') as $hook) add_action($hook, function () { echo '<div class="mini">', esc_html(shop_cart()), '</div>'; });
add_action('rest_api_init', function () {
    foreach (array('/wc/store/v1', '/wc/store') as $base)
        register_rest_route('wc/store', str_replace('/wc/store', '', $base) . '/cart', array('methods' => 'GET',
            'permission_callback' => '__return_true', 'callback' => fn() => array('cart' => shop_cart() . ($_SERVER['HTTP_CART_TOKEN'] ?? ''))));
});
"""


def test_a_cart_is_nobody_elses(site):
    content(site)
    paths = ['/', '/post-one/', '/category/hill/', '/?s=text', '/no-such-page/', '/?wc-ajax=get_refreshed_fragments',
             '/wp-json/wc/store/v1/cart', '/wp-json/wc/store/cart', '/about/', '/?account', '/post-two/?late']
    with mu_plugin(site, SHOP), without_bypass(site):
        site.yorozu('purge', '--all')
        shoppers = {}
        for name in ('ann', 'bob'):
            given = [value for key, value in raw_fields(site, f'/?add={name}') if key == 'set-cookie']
            assert len(given) == 3, given
            shoppers[name] = '; '.join(value.split(';')[0] for value in given)
        # One cookie is enough: they come and go one by one.
        for name, cookies in list(shoppers.items()):
            shoppers[name + ' with one'] = cookies.split('; ')[2]
        orders = [['ann', 'bob', None], [None, 'ann', 'bob'], ['bob with one', None, 'ann with one']]
        for order in orders:
            for path in paths:
                for name in order * 2:
                    body = site.get(path, **({'Cookie': shoppers[name]} if name else {})).body
                    for other in ('ann', 'bob'):
                        if not (name and name.startswith(other)):
                            assert f'cart-of-{other}'.encode() not in body, f'{path} shows the cart of {other} to {name}'
        for path in ('/about/', '/?account', '/post-two/?late', '/?wc-ajax=get_refreshed_fragments', '/wp-json/wc/store/v1/cart'):
            assert not is_stored(site, path), f'{path} is stored'
        assert b'for-ann' in site.get('/wp-json/wc/store/v1/cart', Cart_Token='for-ann').body
        assert b'for-ann' not in site.get('/wp-json/wc/store/v1/cart').body
        # The shop itself is for all.
        assert is_stored(site, '/post-one/')


def raw_fields(site, path):
    connection = http.client.HTTPConnection('127.0.0.1', site.port, timeout=60)
    connection.request('GET', path)
    fields = [(name.lower(), value) for name, value in connection.getresponse().getheaders()]
    connection.close()
    return fields


def test_output_flows(site):
    """A page that is flushed, or too long to be held back, flows to its visitor and is not stored: its tags are not known when
    its head goes out."""
    content(site)
    step = site.folder / 'tmp/step'
    code = """
    if (isset($_GET['flow'])) set_error_handler(function ($level, $text) {
        // WordPress has deprecated code where a request starts wp-cron.
        if ($level !== E_DEPRECATED) file_put_contents('%s/tmp/notices', "$text\n", FILE_APPEND);
        return false;
    });
    add_action('template_redirect', function () {
        $what = $_GET['flow'] ?? null;
        if (!$what) return;
        $wait = function () { while (!file_exists('%s')) { clearstatcache(); usleep(10000); } };
        header('Content-Type: text/plain');
        if ($what === 'flush') { echo 'first;'; ob_flush(); flush(); $wait(); echo 'second;'; ob_flush(); flush(); echo 'third'; }
        if ($what === 'end') { while (ob_get_level()) ob_end_flush(); echo 'first;'; flush(); $wait(); echo 'second;third'; }
        if ($what === 'clean') { echo 'never'; while (ob_get_level()) ob_end_clean(); echo 'first;'; flush(); $wait(); echo 'second;third'; }
        if ($what === 'file') readfile('%s/tmp/big');
        if ($what === 'echoes') for ($i = 0; $i < 12000; $i++) echo str_repeat('x', 999), ';';
        if ($what === 'one') echo str_repeat('x', 12000000);
        if ($what === 'page') { echo 'never'; ob_clean(); echo str_repeat('x', 2000000); }
        if ($what === 'again') { while (ob_get_level()) ob_end_clean(); ob_start(); echo 'whole'; }
        exit;
    });""" % (site.folder, step, site.folder)
    with open(site.folder / 'tmp/big', 'wb') as file:
        file.truncate(200 << 20)
    for name in ('big', '.'):
        os.chmod(site.folder / 'tmp' / name, 0o777)
    with mu_plugin(site, code):
        for what in ('flush', 'end', 'clean'):
            step.unlink(missing_ok=True)
            connection = http.client.HTTPConnection('127.0.0.1', site.port, timeout=60)
            connection.request('GET', f'/?flow={what}')
            answer = connection.getresponse()
            equal(answer.read(6), b'first;', what)
            step.touch()
            equal(answer.read(), b'second;third', what)
            connection.close()
            equal([site.get(f'/?flow={what}').cache for _ in range(2)], ['MISS'] * 2, what)
        for what, length in (('file', 200 << 20), ('echoes', 12000000), ('one', 12000000)):
            for _ in range(2):
                answer = site.get(f'/?flow={what}')
                equal((answer.status, len(answer.body), answer.cache), (200, length, 'MISS'), what)
        # A page that is long, but not as long as that, is as it was.
        site.get('/?flow=page')
        answer = site.get('/?flow=page')
        equal((answer.cache, len(answer.body), b'never' in answer.body), ('HIT', 2000000, False))
        # A theme that drops the buffers and makes a page after all has a page.
        site.get('/?flow=again')
        equal((site.get('/?flow=again').cache, site.get('/?flow=again').body), ('HIT', b'whole'))
        assert 'site' in site.explain('/?flow=again'), site.explain('/?flow=again')
    notices = site.folder / 'tmp/notices'
    assert not notices.exists(), notices.read_text()
    (site.folder / 'tmp/big').unlink()


OTHER_CACHE = """<?php
// A page cache that answers before plugins are there, as WP Super Cache and others do.
function fake_folder() { return WP_CONTENT_DIR . '/cache/fake'; }
if (%d) { function wp_cache_clear_cache() { array_map('unlink', glob(fake_folder() . '/*')); } }
if (($_SERVER['REQUEST_METHOD'] ?? '') === 'GET' && !$_COOKIE && strpos($_SERVER['REQUEST_URI'], '/wp-admin') === false) {
    $fake_file = fake_folder() . '/' . md5($_SERVER['REQUEST_URI']);
    header('X-Fake: ' . (file_exists($fake_file) ? 'hit' : 'miss'));
    header('X-Fake-Mark: %s');
    if (file_exists($fake_file)) { readfile($fake_file); exit; }
    ob_start(function ($text) use ($fake_file) {
        if (!(%d && defined('DONOTCACHEPAGE')) && http_response_code() === 200) { @mkdir(fake_folder(), 0755, true); file_put_contents($fake_file, $text); }
        return $text;
    });
}
"""


@contextlib.contextmanager
def other_cache(site, is_known, is_heeding):
    config, file = site.folder / 'www/wp-config.php', site.folder / 'www/wp-content/advanced-cache.php'
    whole = config.read_text()
    mark = f'mark{time.monotonic_ns()}'
    marks = lambda: site.get(f'/?{time.monotonic_ns()}').fields.get('x-fake-mark')
    try:
        site.script('wp-content/advanced-cache.php', OTHER_CACHE % (is_known, mark, is_heeding))
        site.script('wp-config.php', whole.replace('<?php', "<?php define('WP_CACHE', true);", 1))
        equal(marks(), mark)
        yield
    finally:
        site.script('wp-config.php', whole)
        file.unlink()
        equal(marks(), None)
        site.php("array_map('unlink', glob(WP_CONTENT_DIR . '/cache/fake/*'));")
        site.yorozu('purge', '--all')


def test_another_page_cache(site):
    ids = content(site)
    shown = ['/', '/post-two/', '/feed/', '/2026/', '/wp-json/wp/v2/posts']
    for is_known, is_heeding in ((True, False), (False, True), (True, True)):
        with other_cache(site, is_known, is_heeding):
            site.php("Yorozu\\Queue::all('test');")
            warm(site, shown + ['/about/'])
            site.yorozu('purge', '--all')
            # Now they are refilled from the other cache's files, if it has any: without tags.
            warm(site, shown + ['/about/'])
            equal(site.get('/post-two/').fields.get('x-fake'), 'miss' if is_heeding else 'hit')
            title = f'Title {int(is_known)}{int(is_heeding)}'
            site.php(f"wp_update_post(array('ID' => {ids['two']}, 'post_title' => '{title}'));")
            for path in shown:
                assert title.encode() in site.get(path).body, f'{path} is stale'
            assert b'Title' in site.get('/post-two/').body
            said = site.php("require ABSPATH . 'wp-admin/includes/admin.php'; echo json_encode(Yorozu\\Health::test());")
            equal(json.loads(said)['status'], 'critical')
            assert ('does not know' in said) != is_known, said
    site.php(f"wp_update_post(array('ID' => {ids['two']}, 'post_title' => 'Post two'));")


def test_vetoes(site):
    content(site)
    code = """add_action('template_redirect', function () {
        if (isset($_GET['veto'])) define('DONOTCACHEPAGE', true);
        if (isset($_GET['bound'])) header('X-Accel-Expires-Max: 77');
        if (isset($_GET['nonce'])) { add_filter('nonce_life', fn() => 7204, 1); echo wp_create_nonce('x'); }
    });"""
    with mu_plugin(site, code):
        for _ in range(2):
            equal(site.get('/?veto').cache, 'MISS')
        equal(site.get('/?nonce').cache, 'MISS')
        asked = site.explain('/?nonce')
        # Made in a half-life of 3602 s, of which the last hour is left to whoever fills the form.
        left = int(re.search(r'fresh +for (\d+) s', asked)[1]) if 'fresh      for' in asked else 0
        assert left <= 3604, asked
        equal(site.get('/?plain').cache, 'MISS')
        # The preset's day, unless the theme itself makes a nonce, which lives for half a day at least.
        assert int(re.search(r'fresh +for (\d+) s', site.explain('/?plain'))[1]) >= 36000, site.explain('/?plain')
        site.get('/?bound')
        assert 'fresh      for 7' in site.explain('/?bound'), site.explain('/?bound')


def test_that_there_is_no_page_is_stored_until_there_is_one(site):
    content(site)
    first, second = site.get('/not-yet/'), site.get('/not-yet/')
    equal([(answer.status, answer.cache) for answer in (first, second)], [(404, 'MISS'), (404, 'HIT')])
    asked = site.explain('/not-yet/')
    assert 0 < int(re.search(r'fresh +for (\d+) s', asked)[1]) <= 60, asked
    post = site.php("echo wp_insert_post(array('post_title' => 'Not yet', 'post_name' => 'not-yet', 'post_type' => 'page', "
                    "'post_status' => 'publish', 'post_content' => '<p>Here now.</p>'));")
    answer = site.get('/not-yet/')
    equal(answer.status, 200)
    assert b'Here now.' in answer.body
    # Gone again, and that is stored, too.
    site.php(f"wp_delete_post({post}, true);")
    equal([site.get('/not-yet/').status for _ in range(2)], [404, 404])
    equal(site.get('/not-yet/').cache, 'HIT')
    # Nobody's own page: a visitor who is known gets it from PHP.
    equal(site.get('/not-yet/', **PAST).cache, 'BYPASS')


def test_no_stale_page_after_a_hard_purge_under_load(site):
    ids = content(site)
    post, seen, problems = ids['three'], [0], []
    stop = threading.Event()

    def load():
        while not stop.is_set():
            begun_with = seen[0]
            body = site.get('/post-three/').body
            found = int((re.search(rb'version (\d+)', body) or [0, 0])[1])
            if found < begun_with:
                problems.append((found, begun_with))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for version in range(1, 6):
            # By its password's change, which is hard; then the text.
            site.php(f"""wp_update_post(array('ID' => {post}, 'post_name' => 'post-three',
                'post_content' => 'version {version}')); Yorozu\\Queue::tags('test', array('post-{post}'), true);""")
            seen[0] = version
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    equal(problems, [])


def test_warm(site):
    ids = content(site)
    sitemap = site.url + '/wp-sitemap.xml'
    counts = lambda text: [int(number) for number in re.findall(r'(\d+) (?:pages|made|fresh|not stored|failed)', text)]
    site.yorozu('purge', '--all')
    pages, made, fresh, not_stored, failed = counts(site.yorozu('warm', sitemap))
    assert made == pages > 10 and not (fresh or not_stored or failed), (pages, made)
    runs = site.php_runs()
    # Nothing is made twice, and the codings that visitors take are there.
    equal(counts(site.yorozu('warm', '--jobs', '1', site.url + '/post-two/', site.url + '/')), [2, 0, 2, 0, 0])
    equal(site.get('/post-two/', Accept_Encoding='gzip').fields['content-encoding'], 'gzip')
    equal(site.php_runs(), runs)
    assert 'codings    gzip' in site.explain('/post-two/'), site.explain('/post-two/')
    # After a purge only what it took.
    said = site.yorozu('purge', '--tag', f"link-{ids['two']}", '--warm', sitemap)
    purged, again = int(said.split()[0]), counts(said.splitlines()[1])
    assert 0 < again[1] <= purged and again[1] + again[2] == pages, said
    problem = site.yorozu('warm', site.url + '/nothing-here/', site.url + '/wp-login.php', is_failing=True)
    assert '1 not stored, 1 failed' in problem and '/nothing-here/: status 404' in problem, problem
    site.script('no.xml', '<html></html>')
    assert 'not a sitemap: <html>' in site.yorozu('warm', site.url + '/no.xml', is_failing=True)
    # What a page of the site says is no order to the terminal, and no line of its own.
    site.script('bad.xml', '<urlset><url><loc>http://a/p&#27;]0;T&#7;&#10;forged</loc></url></urlset>'.replace('&#27;', '\x1b'))
    said = site.yorozu('warm', site.url + '/bad.xml', is_failing=True)
    assert '\x1b' not in said and len(said.splitlines()) == 1 and '\\u{' in said, ascii(said)


# --- the server away, an import, WP-CLI ----------------------------------------------------------

def test_a_server_that_is_away_does_no_harm(site):
    ids = content(site)
    edit = f"wp_update_post(array('ID' => {ids['two']}, 'post_content' => 'While it was away'));"
    # Kept, and purged when WP-Cron tries again.
    config = site.folder / 'www/wp-config.php'
    whole = config.read_text()
    warm(site, ['/post-two/'])
    config.write_text(whole.replace('<?php', "<?php define('YOROZU_URL', 'http://127.0.0.1:1/.purge'); define('YOROZU_TOKEN', 'of-no-server');", 1))
    try:
        site.php(edit.replace('was away', 'was down'))
    finally:
        config.write_text(whole)
    # It may have been told again by now.
    log = json.loads(site.php("echo json_encode(array_slice(get_option('yorozu_log'), 0, 3));"))
    assert any('no connection' in told['result'] for told in log), log
    # It is told again, and what is scheduled is published, though all visitors have hits: the server asks for wp-cron by itself.
    warm(site, ['/', '/post-two/'])
    site.php("""global $wpdb; $id = wp_insert_post(array('post_title' => 'Due soon', 'post_status' => 'future', 'post_content' => 'x',
        'post_date_gmt' => gmdate('Y-m-d H:i:s', time() + 3600)));
        $wpdb->update($wpdb->posts, array('post_date' => '2026-11-01 00:00:00', 'post_date_gmt' => '2026-11-01 00:00:00'), array('ID' => $id));
        wp_clear_scheduled_hook('publish_future_post', array($id)); wp_schedule_single_event(time(), 'publish_future_post', array($id));
        clean_post_cache($id); delete_transient('doing_cron');""")
    seen = []
    for path, what in ('/post-two/', b'was down'), ('/', b'Due soon'):
        until(lambda: what in (seen.append(site.get(path)) or seen[-1]).body, f'{what} without a visitor')
        assert {answer.cache for answer in seen} <= {'HIT', 'STALE', 'UPDATING'}, [answer.cache for answer in seen]
        seen.clear()
    # One that was refused becomes one of all pages, once it is not refused any more.
    warm(site, ['/post-two/'])
    config.write_text(whole.replace('<?php', f"<?php define('YOROZU_URL', '{site.url}/.purge'); define('YOROZU_TOKEN', 'another-token-of-sixteen-bytes');", 1))
    try:
        site.php(edit.replace('was away', 'refused'))
        log = json.loads(site.php("do_action('yorozu_retry'); echo json_encode(array_slice(get_option('yorozu_log'), 0, 3));"))
    finally:
        config.write_text(whole)
    assert any('the token is missing or wrong' in told['result'] for told in log), log
    # Or the server's own request to wp-cron is at it, with the token that it read before.
    retry = lambda: site.php("do_action('yorozu_retry'); echo json_encode(get_option('yorozu_pending'));") in ('false', '[]')
    until(lambda: retry() and b'refused' in site.get('/post-two/').body, 'it to be told again')


def test_a_purge_that_waits_is_lost_to_no_other_process(site):
    """Several look after them, with a cache of options between them; what one cannot send another one may."""
    content(site)
    warm(site, ['/about/', '/post-one/'])
    keep = "$keep = new ReflectionMethod('Yorozu\\Queue', 'keep'); $keep->setAccessible(true); $wait = fn($path) => $keep->invoke(null, array(array('tags' => array(), 'urls' => array($path), 'soft' => false)));"
    site.php(keep + """$wait('/about/'); wp_cache_delete('yorozu_pending', 'options'); wp_cache_set('notoptions', array('yorozu_pending' => true), 'options');""")
    # While it is sent another one comes, here by the log that is written then.
    site.php(keep + """add_filter('pre_update_option_yorozu_log', function($log) use ($wait) { $wait('/post-one/'); return $log; }); do_action('yorozu_retry');""")
    equal((site.get('/about/').cache, site.get('/post-one/').cache), ('MISS', 'HIT'))
    site.php("do_action('yorozu_retry');")
    equal((site.get('/post-one/').cache, site.php("echo json_encode(get_option('yorozu_pending'));")), ('MISS', '[]'))


def test_an_import_is_one_purge(site):
    content(site)
    warm(site, ['/', '/about/'])
    site.php("""for ($i = 0; $i < 120; $i++) wp_insert_post(array('post_title' => "Imported $i", 'post_status' => 'publish',
        'post_content' => 'x', 'post_name' => "imported-$i"));""")
    log = json.loads(site.php("echo json_encode(get_option('yorozu_log')[0]);"))
    equal(log['count'], 1)
    assert 'purged' in log['result'], log
    assert site.get('/').cache != 'HIT'
    site.php("""foreach (get_posts(array('numberposts' => -1, 's' => 'Imported')) as $post) wp_delete_post($post->ID, true);""")


def test_wp_cli(site):
    """WP-CLI is not among Debian's packages: its commands are called as it calls them."""
    content(site)
    double = """class Done extends Exception {} class WP_CLI {
        static $said = array();
        static function log($text) { self::$said[] = $text; } static function success($text) { self::$said[] = $text; }
        static function error($text) { throw new Done($text); } static function add_command($name, $class) {} }
        require WP_PLUGIN_DIR . '/yorozu/includes/class-command.php'; $command = new Yorozu\\Command();"""
    run = lambda code: json.loads(site.php(
        double + f"try {{ {code} }} catch (Done $e) {{ WP_CLI::$said[] = 'error: ' . $e->getMessage(); }}"
        'echo json_encode(WP_CLI::$said);'))
    warm(site, ['/about/', '/post-one/', '/post-two/'])
    equal(run("$command->purge(array('/about/'), array());"), ['1 stored pages purged.'])
    equal((site.get('/about/').cache, is_hit(site, '/post-one/')), ('MISS', True))
    tag = f"post-{site.ids['one']}"
    assert 'purged' in run(f"$command->purge(array(), array('tag' => '{tag}', 'soft' => true));")[0]
    equal(site.get('/post-one/').cache, 'STALE')
    assert run("$command->purge(array(), array('all' => true));")
    equal(site.get('/post-two/').cache, 'MISS')
    assert run("$command->purge(array(), array());")[0].startswith('error: Nothing to purge')
    assert 'pages: ' in run('$command->status();')[0]
    assert any('WP-CLI' in line for line in run('$command->log();'))


def test_site_health(site):
    content(site)
    warm(site, ['/'])
    ask = "require ABSPATH . 'wp-admin/includes/admin.php'; echo json_encode(%s);"
    for _ in range(2):
        said = json.loads(site.php(ask % 'WP_Site_Health::get_instance()->get_test_page_cache()'))
        assert 'Page cache is detected' in said['label'], said
        site.yorozu('purge', '--all')  # Just stored, it is there as well.
    said = json.loads(site.php(ask % 'Yorozu\\Health::test()'))
    equal((said['status'], said['label']), ('good', 'The page cache is purged when something changes'))
    said = json.loads(site.php("update_option('yorozu_settings', array('is_on' => 0, 'urls' => ''));" + ask % 'Yorozu\\Health::test()'
                               + "delete_option('yorozu_settings');"))
    equal(said['status'], 'recommended')


def test_site_health_says_whether_the_page_cache_works(site):
    content(site)
    warm(site, ['/'])
    works = lambda: json.loads(site.php("require ABSPATH . 'wp-admin/includes/admin.php'; echo json_encode(Yorozu\\Health::works());"))
    said = works()
    equal((said['status'], said['label']), ('good', 'The page cache works'), said['description'])
    with mu_plugin(site, "add_action('send_headers', function() { setcookie('seen', 'yes'); });"):
        site.yorozu('purge', '--all')
        said = works()
        equal(said['status'], 'critical')
        assert 'The page sets a cookie. A plugin sets a cookie for every visitor' in said['description'], said
    site.yorozu('purge', '--all')
    # The server has heard of the cookie, with the page that set it.
    equal(works()['label'], 'The page cache works')
    site.script('tell.php', "<?php header('X-Accel-Cookies: -seen'); header('Cache-Control: no-store'); echo 'told';")
    equal(site.get('/tell.php').body, b'told')
    said = works()
    assert (said['status'], said['label']) == ('critical', 'Visitors with the cookie "seen" get pages generated for others'), said
    assert '&quot;~(^|;)\\s*seen=&quot; 1;' in said['description'], said
    site.php("do_action('switch_theme');")
    equal(works()['label'], 'The page cache works')
    site.yorozu('purge', '--all')
    # A stored error or redirect is no page that comes from the cache.
    with mu_plugin(site, "add_action('template_redirect', function() { if (is_front_page()) { status_header(404); } });"):
        said = works()
        equal((said['status'], 'status 404' in said['description']), ('recommended', True), said)
    with mu_plugin(site, "add_action('template_redirect', function() { if (is_front_page()) { wp_redirect('/about/', 301); exit; } });"):
        site.yorozu('purge', '--all')
        equal(works()['label'], 'The page cache works', 'of what it leads to')
    with mu_plugin(site, "add_action('template_redirect', function() { if (is_front_page()) { wp_redirect('/nowhere/', 301); exit; } });"):
        site.yorozu('purge', '--all')
        equal((works()['status'], 'status 404' in works()['description']), ('recommended', True))
    site.yorozu('purge', '--all')


def untell(site):
    """Has the site know nothing of its server; the text of its wp-config.php, to be put back."""
    whole = (site.folder / 'www/wp-config.php').read_text()
    site.script('wp-config.php', whole.replace('<?php', "<?php putenv('YOROZU_URL'); putenv('YOROZU_TOKEN');", 1))
    site.php("delete_option('yorozu_server');")
    return whole


def test_purges_go_with_the_answer_where_there_is_no_address(site):
    """Also with a long one, as the block editor gets. One that has begun takes none, and the log says so."""
    ids = content(site)
    whole = untell(site)
    site.script('edit.php', """<?php require 'wp-load.php'; if (isset($_GET['early'])) { while (ob_get_level()) ob_end_flush(); echo ' '; flush(); }
        wp_update_post(array('ID' => %d, 'post_content' => $_POST['text'])); echo Yorozu\\Client::is_configured() ? 'yes' : 'no', str_repeat('x', 100000);""" % ids['two'])
    edit = lambda text, query='': site.get('/edit.php' + query, 'POST', f'text={text}'.encode(), Content_Type='application/x-www-form-urlencoded').body
    try:
        assert edit('anything').startswith(b'no')
        for text in ('long', 'longer'):
            warm(site, ['/post-two/', '/about/'])
            edit(text)
            until(lambda: f'<p>{text}</p>'.encode() in site.get('/post-two/').body, text)
            equal(site.get('/about/').cache, 'HIT')
        edit('late', '?early')
        assert 'not purged: the answer had begun' in site.php("echo get_option('yorozu_log')[0]['result'];")
    finally:
        site.script('wp-config.php', whole)
        assert edit('anything').startswith(b'yes')


def test_a_site_connects_to_its_server(site):
    """Without a line in wp-config.php: the address and the token are tried before they are kept."""
    token = re.search(r'token=(\w+)', (site.served / 'token.conf').read_text())[1]
    # Before the dashboard asks in the background for what keeps the address that PHP knew when it began.
    whole = untell(site)
    browser = Browser()
    try:
        log_in(browser, site)
        screen = site.url + '/wp-admin/options-general.php?page=yorozu'
        browser.open(screen)
        browser.find('#yorozu-state.notice-warning')
        offered = browser.run('return document.querySelector("#yorozu-token").value')
        assert f'cache_purge_api token={offered};' in browser.text('#yorozu-line') and len(offered) == 32
        equal(browser.run('return document.querySelector("#yorozu-url").value'), site.url + '/.purge')
        for given, said in (('short', 'at least 16'), ('a-token-that-it-does-not-know', 'status 403')):
            browser.run(f'document.querySelector("#yorozu-token").value = "{given}"; document.querySelector("#yorozu-connect-submit").click()')
            browser.wait(lambda: 'Not connected' in browser.text() and said in browser.text(), said)
            equal(site.php("echo json_encode(Yorozu\\Client::is_configured());"), 'false')
        browser.run(f'document.querySelector("#yorozu-token").value = "{token}"; document.querySelector("#yorozu-connect-submit").click()')
        browser.find('#yorozu-state.notice-success')
        # The token is on no page.
        assert token not in browser.run('return document.documentElement.outerHTML')
        warm(site, ['/about/'])
        equal(site.php("Yorozu\\Queue::url('test', '/about/'); echo Yorozu\\Queue::flush();"), '1')
    finally:
        browser.close()
        site.script('wp-config.php', whole)
        site.php("delete_option('yorozu_server');")


def logged_in(site, name, password):
    """Asks as a browser does that has logged in."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def ask(path, **fields):
        try:
            return opener.open(site.url + path, urllib.parse.urlencode(fields).encode() if fields else None).read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.read().decode()

    ask('/wp-login.php')
    ask('/wp-login.php', log=name, pwd=password, testcookie='1')
    return ask


def test_a_file_that_is_edited_in_wp_admin(site):
    content(site)
    site.php("wp_insert_user(array('user_login' => 'reader', 'user_pass' => 'a-long-word-1', 'role' => 'subscriber'));")
    for name, password, cache in ('reader', 'a-long-word-1', 'HIT'), ('admin', site.password, 'MISS'):
        ask = logged_in(site, name, password)
        nonce = re.search(r'id="nonce"[^>]*value="(\w+)"', ask('/wp-admin/theme-editor.php?file=style.css&theme=twentytwentyone'))
        warm(site, ['/about/'])
        said = ask('/wp-admin/admin-ajax.php', action='edit-theme-plugin-file', nonce=nonce[1] if nonce else '', theme='twentytwentyone',
                   file='style.css', newcontent='/* edited */')
        equal(('"success":true' in said, site.get('/about/').cache), (name == 'admin', cache), said)


def test_no_path_spoils_the_purges_beside_it(site):
    """A path that begins with two slashes names a host, and the server refuses whatever is purged with another host's."""
    content(site)
    warm(site, ['/post-one/'])
    site.php("update_option('yorozu_settings', array('is_on' => 1, 'urls' => '//elsewhere/'));"
             f"wp_update_post(array('ID' => {site.ids['one']}, 'post_content' => 'beside another path'));")
    until(lambda: b'beside another path' in site.get('/post-one/').body, 'the edit')
    site.php("delete_option('yorozu_settings');")
    equal(site.php("echo Yorozu\\Settings::sanitize(array('urls' => \"//elsewhere/\\n/here/\"))['urls'];"
                   .replace('echo', "require ABSPATH . 'wp-admin/includes/admin.php'; echo", 1)), '/here/')
    warm(site, ['/post-one/'])
    equal(site.php(f"Yorozu\\Queue::url('test', '{site.url}//post-one/'); echo Yorozu\\Queue::flush();"), '1')


def test_behind_another_web_server_there_is_nothing_to_check(site):
    """Without YOROZU_URL, and with the SERVER_SOFTWARE of another one."""
    script = """define('ABSPATH', '/'); function add_filter() {} function add_action() {} function __($text) { return $text; } function esc_html($text) { return $text; }
        function esc_html__($text) { return $text; } function esc_url($text) { return $text; } function admin_url() { return ''; } function get_option() { return false; }
        function home_url() { throw new Exception('it was asked for'); } $_SERVER['SERVER_SOFTWARE'] = '%s';
        spl_autoload_register(function($name) { $name = strtolower(str_replace(array('Yorozu\\\\', '_'), array('', '-'), $name));
            require '%s/wordpress/yorozu/includes/class-' . $name . '.php'; });
        echo json_encode(array(array_keys(Yorozu\\Health::tests(array('async' => array()))['async']), %s));"""
    ask = lambda software, more: json.loads(subprocess.run(['php', '-r', script % (software, ROOT, more)],
                                                           check=True, capture_output=True, text=True).stdout)
    equal(ask('yorozu/1', 'null'), [['yorozu_works'], None])
    equal(ask('Apache', 'Yorozu\\Health::works()["status"]'), [[], 'recommended'])


def test_each_reason_has_words_for_the_owner_of_a_site(site):
    table = (ROOT / 'docs/console.md').read_text()
    names = [name for row in re.findall(r'^\| (`[^|]*) \|', table.split('## Reasons')[1].split('\n## ')[0], re.M)
             for name in re.findall('`([a-z-]+)`', row)]
    assert len(names) >= 24, names
    said = json.loads(site.php('echo json_encode(array_map(array("Yorozu\\Reasons", "words"), json_decode(%s)));' % repr(json.dumps(names))))
    for name, (what, advice) in zip(names, said):
        assert what and what != name and advice, name


def test_make_run_says_where_its_console_is(site):
    address = re.search('its console is at (.*)', site.out.read_text())[1]
    address, token = address.split('#token=')
    equal(address, f'http://localhost:{site.port}/.console/')
    equal([site.get(path).status for path in ('/.console/', '/.console/about', '/.console/figures')], [200, 403, 403])
    equal([site.get(path, Authorization=f'Bearer {token}').status for path in ('/.console/about', '/.console/figures')], [200] * 2)


def test_a_day_has_its_hours(site):
    script = '''
        $hour = time() - time() %% HOUR_IN_SECONDS;
        $answer = fn($begun, $hits, $saved) => array('live' => array('begun' => 1000 * $begun, 'saved_ms' => $saved,
            'answers' => array('HIT' => $hits, 'STALE' => 0, 'UPDATING' => 0, 'MISS' => 10, 'BYPASS' => 5)));
        $point = fn($at, $begun, $hits) => array('time' => $at, 'begun' => 1000 * $begun, 'hits' => $hits, 'others' => 10, 'saved' => 0);
        $old = $hour - 30 * DAY_IN_SECONDS;
        update_option('yorozu_history', array($point($hour - 7200, $old, 100), $point($hour - 3600, $old, 160), $point($hour - 1800, $hour - 2000, 7)), false);
        $day = Yorozu\\History::day($answer($hour - 2000, 9, 1000));
        Yorozu\\History::note($answer($hour - 2000, 9, 1000));
        $count = count(get_option('yorozu_history'));
        Yorozu\\History::note($answer($hour - 2000, 9, 1000));
        $kept = count(get_option('yorozu_history')) - $count;
        delete_option('yorozu_history');
        echo json_encode(array(array_column($day['hours'], 'hits'), $kept, count($day['hours'])));'''
    hits, kept, hours = json.loads(site.php(script.replace('%%', '%').replace('\\\\', '\\')))
    # What was counted before the first point is of no hour; a new process begins at nothing.
    equal((hits[-3:], sum(hits), kept, hours), ([0, 67, 2], 69, 0, 24))


def test_the_token_is_given_to_who_shows_a_certificate(site):
    """Only on this machine is none asked for."""
    content(site)
    hosts = {'127.0.0.1': False, '127.9.9.9': False, '[::1]': False, 'localhost': False, '10.0.0.1': True, '[fe80::1]': True,
             '127.example.org': True, 'cache.example.org': True, '[2001:db8::1]': True, '1.1.1.1': True}
    for host, is_verified in hosts.items():
        said = json.loads(site.php("""$tls = new ReflectionMethod('Yorozu\\Client', 'tls'); $tls->setAccessible(true);
            echo json_encode($tls->invoke(null, '%s'));""" % host))
        equal((said['verify_peer'], said['verify_peer_name']), (is_verified, is_verified), host)


def test_what_is_wrong_with_the_address_is_said(site):
    """That of the documents is for plain HTTP, and the site wordpress-https only redirects there."""
    said = json.loads(site.php("""$read = new ReflectionMethod('Yorozu\\Client', 'read'); $read->setAccessible(true);
        foreach (array("301 Moved\\r\\nLocation: https://www.example.com/.purge\\r\\n\\r\\n<html>", "403 Forbidden\\r\\n\\r\\n<html>",
            "403 Forbidden\\r\\n\\r\\nthe token is missing or wrong\\n", "200 OK\\r\\n\\r\\na page") as $answer) {
            try { $read->invoke(null, "HTTP/1.1 $answer", false, home_url('/.purge')); } catch (RuntimeException $problem) { $said[] = $problem->getMessage(); }
        } echo json_encode($said);"""))
    where = site.url + '/.purge'
    equal(said, [f'status 301 from {where}: it leads to https://www.example.com/.purge; the address itself is needed, such as https://127.0.0.1/.purge',
                 f'status 403 from {where}: the server has no "cache_purge_api" there', f'status 403 from {where}: the token is missing or wrong',
                 f'status 200 from {where}: the server has no "cache_purge_api" there'])


# --- a person with a browser ---------------------------------------------------------------------

def shows_what_was_counted(browser, site):
    """Hits and others of this site, as the server says them itself and its console shows them."""
    live = json.loads(site.php('echo json_encode(Yorozu\\Client::answer()["live"]);'))
    site.php("delete_option('yorozu_history');")
    browser.open(site.url + '/wp-admin/options-general.php?page=yorozu')
    numbers = lambda text: [int(number.replace(',', '')) for number in re.findall(r'\d[\d,]*', text)]
    hits, able, passed, unstorable = numbers(browser.text('#yorozu-ratio .description'))
    hits_of_all, all_ = numbers(browser.text('#yorozu-ratio-all .description'))
    answers = live['answers']
    wanted = sum(answers[status] for status in ('HIT', 'STALE', 'UPDATING'))
    # Nothing is asked meanwhile but by WordPress itself.
    close = lambda got, least: least <= got <= least + 10
    assert close(hits, wanted) and hits == hits_of_all, (hits, hits_of_all, answers)
    assert close(all_, sum(answers.values())) and close(passed, answers['BYPASS']) and close(unstorable, live['unstorable']), (all_, passed, unstorable, live)
    equal(all_, able + passed + unstorable)
    for part, of in (('', able), ('-all', all_)):
        assert f'{100 * hits / of:.1f} %' in browser.text('#yorozu-ratio' + part), browser.text('#yorozu-ratio' + part)
    said = re.search(r'(?:(\d+) min )?([\d.]+) s', browser.text('#yorozu-saved'))
    saved = 60 * int(said[1] or 0) + float(said[2])
    assert live['saved_ms'] / 1000 - 1 <= saved <= live['saved_ms'] / 1000 + 5, (saved, live)


def test_the_admin_screens(site):
    content(site)
    warm(site, ['/about/', '/post-one/'])
    browser = Browser()
    try:
        log_in(browser, site)
        browser.open(site.url + '/about/')
        browser.find('#wp-admin-bar-yorozu')
        browser.run('document.querySelector("#wp-admin-bar-yorozu-page a").click()')
        browser.wait(lambda: 'purged' in browser.text('#wp-admin-bar-yorozu'), 'to be told')
        assert not is_hit(site, '/about/') or site.get('/about/').fields['age'] == '0'
        assert is_hit(site, '/post-one/')
        browser.open(site.url + '/about/')
        assert 'purged' not in browser.text('#wp-admin-bar-yorozu')
        warm(site, ['/post-two/'])
        browser.open(site.url + '/wp-admin/edit.php')
        row = '#post-%d .yorozu a' % site.ids['two']
        browser.find(row)
        browser.run(f'document.querySelector("{row}").click()')
        browser.wait(lambda: '1 stored page purged' in browser.text('.notice-success'), 'the notice')
        assert '/wp-admin/edit.php' in browser.url()
        equal(site.get('/post-two/').cache, 'MISS')
        browser.open(site.url + '/wp-admin/options-general.php?page=yorozu')
        browser.find('#yorozu-state.notice-success')
        assert 'The page cache works' in browser.text('#yorozu-state')
        assert 'pages' in browser.text('#yorozu-figures')
        shows_what_was_counted(browser, site)
        assert '/post-two/' in browser.text('#yorozu-misses') and 'The first visit' in browser.text('#yorozu-misses')
        assert 'pages came from the cache' in browser.run("return document.querySelector('#yorozu-chart').getAttribute('aria-label')")
        equal(browser.run("return document.querySelectorAll('#yorozu-hours tbody tr').length"), 24, 'hours for who sees no chart')
        assert 'by hand' in browser.text('#yorozu-log') and 'admin' in browser.text('#yorozu-log')
        for tab in ('what', 'figures', 'wrong'):
            browser.find(f'#tab-link-yorozu-{tab}')
        site.php("""update_option('yorozu_log', array_map(fn($n) => array('time' => 1 + $n, 'user' => 0, 'reason' => "post $n published", 'count' => 1234, 'result' => 'purged 7 in 1.5 ms'), range(1, 45)));""")
        browser.open(site.url + '/wp-admin/options-general.php?page=yorozu&purges=3')
        rows = browser.run("return [...document.querySelectorAll('#yorozu-log tbody tr')].map(row => row.innerText)")
        equal((len(rows), rows[0].split('\t')), (5, ['1970-01-01 00:00:42', '-', 'post 41 published', '1,234', '7 pages purged in 1.5 ms']))
        browser.resize(390, 844, is_phone=True)
        browser.open(site.url + '/wp-admin/options-general.php?page=yorozu')
        equal(browser.run("return [document.documentElement.scrollWidth, [...document.querySelectorAll('#yorozu-log tbody tr')].length]"), [390, 20])
        browser.resize(1280, 900)
        equal(browser.run("""return [document.querySelectorAll('#wpbody th:not([scope])').length, document.querySelectorAll('#wpbody table.widefat').length -
            document.querySelectorAll('#wpbody table.widefat caption').length, document.querySelectorAll('#wpbody .button-primary').length,
            document.getElementById(document.querySelector('#yorozu-urls').getAttribute('aria-describedby')) !== null]"""), [0, 0, 1, True])
        press = 'document.querySelector("#yorozu-purge-all").click()'
        browser.run('window.confirm = text => { window.asked = text; return false; };' + press)
        assert 'Purge all' in browser.run('return window.asked') and is_hit(site, '/post-one/')
        browser.run('window.confirm = () => true;' + press)
        browser.wait(lambda: 'stored pages purged' in browser.text('.notice-success'), 'the notice')
        equal(site.get('/post-one/').cache, 'MISS')
        browser.run('document.querySelector("#yorozu-urls").value = "/extra.php\\nnonsense<b/id=evil>"')
        browser.run('document.querySelector("#submit").click()')
        browser.wait(lambda: 'Left out: nonsense<b' in browser.text(), 'the complaint')
        equal(browser.run('return [document.querySelector("#yorozu-urls").value, document.querySelectorAll("#evil, .notice-success:not(#yorozu-state)").length]'),
              ['/extra.php', 0])
        # Site Health's own script asks so, after other tests that ask for the world outside.
        browser.open(site.url + '/wp-admin/site-health.php')
        ask = '''const request = new XMLHttpRequest(); request.open('POST', ajaxurl, false);
            request.setRequestHeader('Content-Type', 'application/x-www-form-urlencoded');
            request.send('action=health-check-' + SiteHealth.site_status.async.find(one => one.test === 'yorozu_works').test.replace('_', '-')
                + '&_wpnonce=' + %s); return request.responseText;'''
        said = json.loads(browser.run(ask % 'SiteHealth.nonce.site_status'))
        equal((said['success'], said['data']['label']), (True, 'The page cache works'))
        equal(browser.run(ask % '"wrong"'), '-1', 'without its nonce')
        # A stranger's link does nothing: it has no nonce.
        warm(site, ['/post-one/'])
        browser.open(site.url + '/wp-admin/admin-post.php?action=yorozu_purge&what=all')
        assert 'expired' in browser.text(), browser.text()
        assert is_hit(site, '/post-one/')
        # What is no page of the site purges nothing.
        browser.open(site.url + '/wp-admin/options-general.php?page=yorozu')
        link = browser.run('return document.querySelector("#wp-admin-bar-yorozu-all a").href')
        for what in ('what=page&path=', 'what=page&path=//elsewhere.example/', 'what=page&path=https://elsewhere.example/', 'what=everything'):
            browser.open(re.sub('what=all(&path=?)?', what, link))
            assert 'Nothing was purged' in browser.text(), browser.text()
        assert is_hit(site, '/post-one/')
    finally:
        browser.close()
    equal(site.get('/wp-admin/admin-post.php?action=yorozu_purge&what=all').status in (302, 200, 400, 403), True)
    assert is_hit(site, '/post-one/'), 'who is not logged in purged'


# EDD 3.6: its functions by name, what its shortcodes show, and how bbPress 2.6 hides a forum.
RECEIPT = """
function edd_is_checkout() { return is_page('about'); }
add_shortcode('edd_receipt', fn() => 'Order of ' . esc_html($_GET['key'] ?? 'nobody'));
"""


def test_an_order_is_shown_to_no_stranger(site):
    """By its page, and by its shortcode on any page; the guest has no cookie that is known."""
    ids = content(site)
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_content' => '[edd_receipt]'));")
    with mu_plugin(site, RECEIPT):
        site.yorozu('purge', '--all')
        warm(site, ['/post-three/'])
        for path in ('/about/', '/post-four/'):
            for _ in range(3):
                equal(site.get(path).cache, 'MISS', path)
        assert b'Order of ann' in site.get('/post-four/?key=ann').body
        equal(site.get('/post-four/?key=ann').cache, 'MISS')
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_content' => '<p>The text of four.</p>'));")


# What a plugin does that keeps something of a visitor under a cookie of its own, as the session of Easy Digital Downloads 3.6.5 did, which no table knew.
OWN_COOKIE = """
add_action('init', function () {
    if (isset($_POST['age'])) setcookie('my_age', $_POST['age'], 0, '/');
    if (isset($_POST['gone'])) { setcookie('my_gone', '', time() - 9, '/'); setcookie('cmplz_banner', 'yes', 0, '/'); }
    if (isset($_POST['told'])) do_action('wpsc_add_cookie', 'my_told');
});
add_filter('the_content', fn($text) => 'Age: ' . esc_html($_COOKIE['my_age'] ?? 'none') . ' ' . esc_html($_COOKIE['my_told'] ?? ''));
"""


def test_who_has_a_cookie_that_the_site_sets_makes_no_page_for_others(site):
    content(site)
    names = lambda: site.php("echo json_encode(get_option('yorozu_cookies', array()));")
    asks = lambda cookie: {site.get('/about/', Cookie=cookie).cache for _ in range(3)}
    with mu_plugin(site, OWN_COOKIE):
        site.php("delete_option('yorozu_cookies');")
        form = {'Content-Type': 'application/x-www-form-urlencoded'}
        for body in ('gone=1', 'age=17', 'age=18', 'told=1'):
            site.get('/about/', 'POST', body, **form)
        equal(json.loads(names()), {'my_age': 1, 'my_told': 1})
        # Neither here nor where the server has not heard of it, is a page of such a visitor stored.
        for told, caches in (('my_age, my_told', {'BYPASS'}), ('-my_age, -my_told', {'MISS'})):
            for cookie, own in (('my_age=17', b'Age: 17'), ('my_told=Ann', b'Age: none Ann')):
                site.yorozu('purge', '--all')
                site.script('tell.php', f"<?php header('X-Accel-Cookies: {told}'); header('Cache-Control: no-store');")
                site.get('/tell.php')
                # Its response tells the server again.
                equal(site.get('/about/', Cookie=cookie).cache, *caches)
                assert own in site.get('/about/', Cookie=cookie).body
                warm(site, ['/about/'])
                equal((site.get('/about/', Cookie=cookie).cache, b'Age: none' in site.get('/about/').body), ('BYPASS', True))
        site.yorozu('purge', '--all')
        equal(asks('cmplz_banner=yes'), {'MISS', 'HIT'}, 'a harmless one')
    with mu_plugin(site, OWN_COOKIE + "add_filter('yorozu_is_cookie_harmless', fn($is, $name) => $is || $name === 'my_age', 10, 2);"):
        site.yorozu('purge', '--all')
        site.get('/about/')
        assert 'HIT' in asks('my_age=17'), 'said to be harmless'
        equal(asks('my_told=Ann'), {'BYPASS'})
        site.php('Yorozu\\Cookies::forget();')
        site.get('/?s=whatever')
        equal(asks('my_told=Ann'), {'HIT'}, 'forgotten')
    site.php("delete_option('yorozu_cookies');")
    site.yorozu('purge', '--all')


def test_prices_by_the_visitor_s_address_are_not_stored(site):
    content(site)
    with mu_plugin(site, "class WooCommerce {}"):
        site.yorozu('purge', '--all')
        for default, wanted in (('geolocation', 'MISS'), ('geolocation_ajax', 'HIT'), ('base', 'HIT')):
            site.php(f"update_option('woocommerce_default_customer_address', '{default}');")
            site.get('/about/'), site.get('/about/')
            until(lambda: site.get('/about/').cache == wanted, default)
    site.php("delete_option('woocommerce_default_customer_address');")


def test_a_front_page_that_polylang_chooses_by_the_browser_is_not_stored(site):
    """PLL_Cache_Compat of 3.8 keeps it from being stored, if it is told on `plugins_loaded` that there is a cache."""
    content(site)
    with mu_plugin(site, """add_action('plugins_loaded', function () {
            if (apply_filters('pll_is_cache_active', false)) add_action('wp', fn() => is_front_page() && define('DONOTCACHEPAGE', true));
        }, 0);"""):
        site.yorozu('purge', '--all')
        warm(site, ['/about/'])
        equal([site.get('/').cache for _ in range(3)], ['MISS'] * 3)


def test_what_is_written_to_the_table_of_posts_is_noticed(site):
    """bbPress hides forums so, with the topics below them."""
    ids = content(site)
    write = lambda status: f"""global $wpdb; $wpdb->update($wpdb->posts, array('post_status' => '{status}'), array('ID' => {ids['about']}));"""
    change = lambda status: site.php(f"get_post({ids['about']}); {write(status)} clean_post_cache({ids['about']});")
    # bbp_hide_forum() of 2.6.14, where nothing had read it before.
    hide = lambda: site.php(f"{write('private')} wp_transition_post_status('private', '', get_post({ids['about']})); clean_post_cache({ids['about']});")
    other = '/wp-json/wp/v2/categories'  # Names no page.
    for hides in (lambda: change('private'), hide):
        warm(site, ['/about/', '/about/team/', other])
        hides()
        equal(site.get('/about/').status, 404)
        equal([site.get(path).cache == 'HIT' for path in ('/about/team/', other)], [False, True])
        change('publish')
        equal(site.get('/about/').status, 200)
    # Nothing was written.
    warm(site, ['/about/'])
    site.php(f"get_post({ids['about']}); clean_post_cache({ids['about']});")
    equal(site.get('/about/').cache, 'HIT')


def test_what_a_shop_changes_for_all_pages(site):
    content(site)
    site.php("update_option('woocommerce_currency', 'EUR'); update_option('woocommerce_queue', 1);")
    for change in ("update_option('woocommerce_currency', 'USD');", "update_option('woocommerce_coming_soon', 'yes');",
                   "do_action('woocommerce_tax_rate_updated', 1, array());", "do_action('elementor/core/files/clear_cache');"):
        warm(site, ['/about/', '/post-one/'])
        site.php(change)
        assert site.get('/about/').cache != 'HIT', change
    warm(site, ['/about/'])
    site.php("update_option('woocommerce_queue', 2);")
    equal(site.get('/about/').cache, 'HIT')
    site.php("foreach (array('currency', 'coming_soon', 'queue') as $name) delete_option('woocommerce_' . $name);")


# What a product says of itself to those who hear that it is saved (WC_Data, WooCommerce 11).
PRODUCT = "class Product { function __construct(public $changes) {} function get_id() { return %d; } function get_changes() { return $this->changes; } }"


def test_a_product_comes_to_lists_that_do_not_show_it(site):
    ids = content(site)
    product = PRODUCT % ids['four']
    for changes, wanted in (("array('sale_price' => 1)", False), ("array('description' => 1)", True)):
        warm(site, ['/category/hill/', '/category/sea/', '/post-four/'])
        site.php(f"{product} do_action('woocommerce_before_product_object_save', new Product({changes}));")
        # Stale once, as after each purge of what is edited.
        equal(site.get('/category/hill/').cache == 'HIT', wanted, changes)
        equal([site.get(path).cache for path in ('/category/sea/', '/post-four/')], ['HIT', 'HIT'], changes)
