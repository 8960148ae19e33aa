#!/usr/bin/env python3
"""The WordPress plugin: after each change exactly the pages that changed are made anew.

  tests/plugin.py [NAME ...]     runs the tests whose names contain one of NAME
"""
import json, re, threading, time
from browser import Browser
from wordpress import equal, log_in, main

# What the site has, made once: two authors, nested categories, a menu, pages, comments.
CONTENT = """
switch_theme('twentytwentyone');
$ann = wp_insert_user(array('user_login' => 'ann', 'user_pass' => wp_generate_password(), 'role' => 'author',
    'display_name' => 'Ann', 'user_email' => 'ann@example.invalid'));
$sea = wp_insert_term('Sea', 'category')['term_id'];
$bay = wp_insert_term('Bay', 'category', array('parent' => $sea))['term_id'];
$hill = wp_insert_term('Hill', 'category')['term_id'];
$posts = array();
foreach (array('one' => $sea, 'two' => $bay, 'three' => $hill, 'four' => $hill) as $name => $term) {
    $posts[$name] = wp_insert_post(array('post_title' => "Post $name", 'post_name' => "post-$name",
        'post_content' => "<p>The text of $name.</p>", 'post_status' => 'publish', 'post_category' => array($term),
        'post_author' => $name === 'one' ? $ann : 1, 'tags_input' => $name === 'four' ? array('blue') : array(),
        'post_date' => gmdate('Y-m-d H:i:s', strtotime('2026-0' . (count($posts) + 1) . '-15 12:00'))));
}
$about = wp_insert_post(array('post_title' => 'About', 'post_type' => 'page', 'post_status' => 'publish',
    'post_content' => '<p>About us.</p>'));
wp_insert_post(array('post_title' => 'Team', 'post_type' => 'page', 'post_status' => 'publish',
    'post_content' => '<p>The team.</p>', 'post_parent' => $about));
$menu = wp_create_nav_menu('Main');
wp_update_nav_menu_item($menu, 0, array('menu-item-object' => 'page', 'menu-item-object-id' => $about,
    'menu-item-type' => 'post_type', 'menu-item-status' => 'publish'));
set_theme_mod('nav_menu_locations', array('primary' => $menu));
update_option('sidebars_widgets', array('sidebar-1' => array()));
echo json_encode(compact('ann', 'sea', 'bay', 'hill', 'about', 'menu') + $posts);
"""

PATHS = ['/', '/?s=text', '/post-one/', '/post-two/', '/post-three/', '/post-four/', '/about/', '/about/team/',
         '/category/sea/', '/category/sea/bay/', '/category/hill/', '/tag/blue/', '/author/ann/', '/author/admin/',
         '/2026/', '/2026/03/', '/feed/', '/comments/feed/', '/post-one/feed/', '/category/hill/feed/',
         '/wp-json/wp/v2/posts', '/wp-json/wp/v2/categories', '/wp-sitemap-posts-post-1.xml', '/a-quiet-machine/']

PAST = {'Cookie': 'wordpress_logged_in_none=1'}  # Past the cache; WordPress takes it for nobody's.


def content(site):
    if not hasattr(site, 'ids'):
        site.ids = json.loads(site.php(CONTENT))
    return site.ids


def text(answer):
    # The last change of anything on the site, in feeds that show nothing of it.
    return re.sub(rb'<lastBuildDate>.*?</lastBuildDate>', b'', answer.body)


def fresh(site, path):
    answer = site.get(path, **PAST)
    assert answer.cache == 'BYPASS', answer.cache
    return answer.status, answer.fields.get('location'), text(answer)


def is_hit(site, path):
    return site.get(path).cache == 'HIT'


def until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f'waited in vain for {what}'
        time.sleep(0.02)


def warm(site, paths):
    for path in paths:
        until(lambda: is_hit(site, path), f'{path} to be stored')


def after(site, what, change, is_hard=False, more=(), touched=()):
    """Makes a change and compares every page with what it is past the cache; pages in `touched` may be made anew
    though they stay as they were. The pages that changed."""
    paths = PATHS + list(more)
    # Those that are no pages are not stored.
    paths = [path for path in paths if fresh(site, path)[0] == 200]
    warm(site, paths)
    before = {path: fresh(site, path) for path in paths}
    site.php(change)
    now = {path: fresh(site, path) for path in paths}
    changed = {path for path in paths if before[path] != now[path]}
    assert changed, f'{what}: nothing changed'
    what += ' (' + site.php("echo get_option('yorozu_log')[0]['reason'];") + ')'
    for path in paths:
        first = site.get(path)
        same = (first.status, first.fields.get('location'), text(first))
        if path not in changed:
            # Whether a search finds a post is not known without searching.
            assert first.cache == 'HIT' or path in touched or path == '/?s=text', f'{what}: {path} was made anew ({first.cache})'
        elif is_hard and path != '/wp-json/wp/v2/categories':  # where posts are counted
            assert same == now[path], f'{what}: {path} is stale ({first.cache})'
        else:
            # The old page once more is what a soft purge is.
            until(lambda: text(site.get(path)) == now[path][2], f'{what}: {path} to be made anew')
    return changed


# --- posts ---------------------------------------------------------------------------------------

def test_no_purge_waits_after_the_first_start(site):
    equal(site.php("echo json_encode(array(get_option('yorozu_pending'), wp_next_scheduled('yorozu_retry')));"), '[false,false]')


def test_an_edit_refreshes_what_shows_the_post(site):
    ids = content(site)
    changed = after(site, 'text', f"wp_update_post(array('ID' => {ids['four']}, 'post_content' => '<p>New text.</p>'));",
                    touched=['/wp-sitemap-posts-post-1.xml'])
    assert {'/', '/post-four/', '/category/hill/', '/tag/blue/', '/feed/'} <= changed, changed
    assert not {'/post-one/', '/about/', '/category/sea/', '/author/ann/'} & changed, changed
    # Its title stands at its neighbours', too.
    changed = after(site, 'title', f"wp_update_post(array('ID' => {ids['two']}, 'post_title' => 'Second'));",
                    touched=['/wp-sitemap-posts-post-1.xml', '/author/ann/', '/tag/blue/', '/category/hill/'])
    assert {'/post-one/', '/post-three/', '/post-two/'} <= changed, changed


def test_publish_and_unpublish(site):
    ids = content(site)
    publish = """wp_insert_post(array('post_title' => 'Post five', 'post_name' => 'post-five', 'post_status' => 'publish',
        'post_category' => array(%d), 'post_content' => '<p>The text of five.</p>', 'post_author' => 1));""" % ids['bay']
    changed = after(site, 'publish', publish)
    # The archive above its category has it, too.
    assert {'/', '/category/sea/', '/category/sea/bay/', '/author/admin/', '/2026/', '/feed/'} <= changed, changed
    assert not {'/category/hill/', '/tag/blue/', '/author/ann/', '/post-one/', '/about/'} & changed, changed
    equal(site.get('/post-five/').status, 200)
    find = "$post = get_page_by_path('post-five', OBJECT, 'post');"
    draft = find + "wp_update_post(array('ID' => $post->ID, 'post_status' => 'draft'));"
    changed = after(site, 'unpublish', draft, is_hard=True, more=['/post-five/'])
    assert {'/post-five/', '/', '/category/sea/'} <= changed, changed
    equal(site.get('/post-five/').status, 404)
    again = find + 'wp_publish_post($post->ID);'
    after(site, 'publish again', again)
    after(site, 'trash', find + 'wp_trash_post($post->ID);', is_hard=True, more=['/post-five/'])
    equal(site.get('/post-five/').status, 404)
    # What is in the trash is nobody's: deleting it changes nothing.
    warm(site, ['/'])
    site.php(find.replace('five', 'five__trashed') + 'wp_delete_post($post->ID, true);')
    equal(site.get('/').cache, 'HIT')


def test_another_address(site):
    ids = content(site)
    rename = f"wp_update_post(array('ID' => {ids['one']}, 'post_name' => 'post-first'));"
    changed = after(site, 'slug', rename, is_hard=True)
    assert {'/post-one/', '/', '/author/ann/'} <= changed, changed
    moved = site.get('/post-one/')
    equal((moved.status, moved.fields['location']), (301, site.url + '/post-first/'))
    after(site, 'slug back', rename.replace('post-first', 'post-one'), is_hard=True, more=['/post-first/'])


def test_moved_between_terms(site):
    ids = content(site)
    changed = after(site, 'category', f"wp_set_post_categories({ids['three']}, array({ids['bay']}));")
    assert {'/category/hill/', '/category/sea/', '/category/sea/bay/', '/post-three/'} <= changed, changed
    after(site, 'back', f"wp_set_post_categories({ids['three']}, array({ids['hill']}));")


def test_a_page_in_the_menu(site):
    ids = content(site)
    changed = after(site, 'page text', f"wp_update_post(array('ID' => {ids['about']}, 'post_content' => 'All new.'));")
    equal(changed, {'/about/'})
    changed = after(site, 'page title', f"wp_update_post(array('ID' => {ids['about']}, 'post_title' => 'Who'));")
    assert {'/', '/post-one/', '/about/'} <= changed and '/feed/' not in changed, changed


def test_a_scheduled_post_that_is_due(site):
    content(site)
    site.php("""wp_insert_post(array('post_title' => 'Later', 'post_name' => 'later', 'post_status' => 'future',
        'post_content' => 'Due.', 'post_date' => gmdate('Y-m-d H:i:s', time() + 3600),
        'post_date_gmt' => gmdate('Y-m-d H:i:s', time() + 3600)));""")
    changed = after(site, 'due', """$post = get_page_by_path('later', OBJECT, 'post');
        global $wpdb; $wpdb->update($wpdb->posts, array('post_date' => '2026-11-01 00:00:00',
            'post_date_gmt' => '2026-11-01 00:00:00'), array('ID' => $post->ID)); clean_post_cache($post->ID);
        check_and_publish_future_post($post->ID);""")
    assert {'/', '/feed/'} <= changed, changed
    after(site, 'gone', "wp_delete_post(get_page_by_path('later', OBJECT, 'post')->ID, true);", is_hard=True,
          more=['/later/'])


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
          is_hard=True, touched=PATHS)
    changed = after(site, 'category', rename % (ids['hill'], 'category', 'Mountain'),
                    touched=['/wp-json/wp/v2/posts'])
    assert {'/category/hill/', '/post-one/'} <= changed, changed
    changed = after(site, 'count', f"wp_set_post_categories({ids['one']}, array({ids['sea']}, {ids['hill']}));",
                    touched=['/post-one/feed/'])
    assert '/about/' in changed, changed
    after(site, 'deleted', f"wp_delete_term({ids['bay']}, 'category');", is_hard=True, touched=PATHS)


def test_menu_author_theme_and_options(site):
    ids = content(site)
    changed = after(site, 'menu', f"""wp_update_nav_menu_item({ids['menu']}, 0, array('menu-item-title' => 'Out',
        'menu-item-url' => 'http://other.invalid/', 'menu-item-status' => 'publish'));""")
    assert '/' in changed and '/feed/' not in changed, changed
    changed = after(site, 'author', f"wp_update_user(array('ID' => {ids['ann']}, 'display_name' => 'Anna'));")
    assert '/author/ann/' in changed and '/post-two/' not in changed, changed
    after(site, 'name', "update_option('blogname', 'Another name');", is_hard=True, touched=PATHS)
    after(site, 'theme', "switch_theme('twentytwentythree');", is_hard=True, touched=PATHS)
    after(site, 'part', """$id = wp_insert_post(array('post_type' => 'wp_template_part', 'post_name' => 'footer',
        'post_title' => 'Footer', 'post_status' => 'publish', 'post_content' => '<p>New foot</p>'));
        wp_set_object_terms($id, 'twentytwentythree', 'wp_theme');
        wp_set_object_terms($id, 'footer', 'wp_template_part_area');""", is_hard=True, touched=PATHS)
    after(site, 'back', "switch_theme('twentytwentyone');", is_hard=True, touched=PATHS)


def test_stock_of_a_shop(site):
    """WooCommerce is not among Debian's packages: its hooks are called as it calls them."""
    ids = content(site)
    warm(site, ['/post-two/', '/post-three/'])
    site.php(f"""do_action('woocommerce_product_set_stock', new class {{ function get_id() {{ return {ids['two']}; }} }});""")
    for path, wanted in (('/post-two/', True), ('/post-three/', False)):
        equal(site.get(path).cache != 'HIT', wanted, path)


# --- vetoes --------------------------------------------------------------------------------------

def mu_plugin(site, code):
    folder = site.folder / 'www/wp-content/mu-plugins'
    folder.mkdir(exist_ok=True)
    (folder / 'test.php').write_text('<?php ' + code)


def test_vetoes(site):
    ids = content(site)
    mu_plugin(site, """add_action('template_redirect', function () {
        if (isset($_GET['veto'])) define('DONOTCACHEPAGE', true);
        if (isset($_GET['nonce'])) { add_filter('nonce_life', fn() => 7204, 1); echo wp_create_nonce('x'); }
    });""")
    try:
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
    finally:
        mu_plugin(site, '')
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_password' => 'open'));")
    for _ in range(2):
        equal(site.get('/post-four/').cache, 'MISS', 'a page behind a password')
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_password' => ''));")


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
    purged, again = json.loads(said.splitlines()[0])['purged'], counts(said.splitlines()[1])
    assert 0 < again[1] <= purged and again[1] + again[2] == pages, said
    problem = site.yorozu('warm', site.url + '/nothing-here/', site.url + '/wp-login.php', is_failing=True)
    assert '1 not stored, 1 failed' in problem and '/nothing-here/: status 404' in problem, problem
    site.script('no.xml', '<html></html>')
    assert 'it is no sitemap: <html>' in site.yorozu('warm', site.url + '/no.xml', is_failing=True)


# --- the server away, an import, WP-CLI ----------------------------------------------------------

def test_a_server_that_is_away_does_no_harm(site):
    ids = content(site)
    edit = f"wp_update_post(array('ID' => {ids['two']}, 'post_content' => 'While it was away'));"
    # Kept, and purged when WP-Cron tries again.
    config = site.folder / 'www/wp-config.php'
    whole = config.read_text()
    warm(site, ['/post-two/'])
    config.write_text(re.sub(r"'YOROZU_URL', '[^']*'", "'YOROZU_URL', 'http://127.0.0.1:1/.purge'", whole))
    try:
        site.php(edit.replace('was away', 'was down'))
    finally:
        config.write_text(whole)
    log = json.loads(site.php("echo json_encode(get_option('yorozu_log')[0]);"))
    assert 'no connection' in log['result'], log
    equal(site.php("echo (bool) wp_next_scheduled('yorozu_retry');"), '1')
    site.php("do_action('yorozu_retry');")
    until(lambda: b'was down' in site.get('/post-two/').body, 'the second try')


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
    assert 'fscgi: ' in run('$command->status();')[0]
    assert any('WP-CLI' in line for line in run('$command->log();'))


def test_the_token_is_given_to_who_shows_a_certificate(site):
    """Only on this machine is none asked for."""
    content(site)
    hosts = {'127.0.0.1': False, '127.9.9.9': False, '[::1]': False, 'localhost': False, '10.0.0.1': True, '[fe80::1]': True,
             '127.example.org': True, 'cache.example.org': True, '[2001:db8::1]': True, '1.1.1.1': True}
    for host, is_verified in hosts.items():
        said = json.loads(site.php("""$tls = new ReflectionMethod('Yorozu\\Client', 'tls'); $tls->setAccessible(true);
            echo json_encode($tls->invoke(null, '%s'));""" % host))
        equal((said['verify_peer'], said['verify_peer_name']), (is_verified, is_verified), host)


# --- a person with a browser ---------------------------------------------------------------------

def test_the_admin_screens(site):
    content(site)
    warm(site, ['/about/', '/post-one/'])
    browser = Browser()
    try:
        log_in(browser, site)
        browser.open(site.url + '/about/')
        browser.find('#wp-admin-bar-yorozu')
        browser.run('document.querySelector("#wp-admin-bar-yorozu-page a").click()')
        browser.wait(lambda: not is_hit(site, '/about/') or None, 'the page to be purged')
        assert is_hit(site, '/post-one/')
        browser.open(site.url + '/wp-admin/options-general.php?page=yorozu')
        assert 'fscgi' in browser.text('#yorozu-figures')
        assert 'by hand' in browser.text('#yorozu-log') and 'admin' in browser.text('#yorozu-log')
        browser.run('document.querySelector("#yorozu-urls").value = "/extra.php\\nnonsense"')
        browser.run('document.querySelector("#submit").click()')
        browser.wait(lambda: 'Left out: nonsense' in browser.text(), 'the complaint')
        equal(browser.run('return document.querySelector("#yorozu-urls").value'), '/extra.php')
        browser.run('document.querySelector("#wpbody .button-primary").click()')
        browser.wait(lambda: 'stored pages purged' in browser.text('.notice-success'), 'the notice')
        equal(site.get('/post-one/').cache, 'MISS')
        # A stranger's link does nothing: it has no nonce.
        warm(site, ['/post-one/'])
        browser.open(site.url + '/wp-admin/admin-post.php?action=yorozu_purge&what=all')
        assert 'expired' in browser.text(), browser.text()
        assert is_hit(site, '/post-one/')
    finally:
        browser.close()
    equal(site.get('/wp-admin/admin-post.php?action=yorozu_purge&what=all').status in (302, 200, 400, 403), True)
    assert is_hit(site, '/post-one/'), 'who is not logged in purged'


main(globals())
