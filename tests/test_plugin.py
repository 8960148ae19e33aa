"""The WordPress plugin: after each change of posts, users and terms exactly the pages that changed are refreshed."""
import json, os, re
from peers import equal
from plugin_pages import AUTHORS_PAGES, KINDS, PATHS, SHOW_THREE, after, all_of, change_of, content, fresh, is_now, mu_plugin, page, purges, settle, stored, until, warm


def test_no_purge_waits_after_the_first_start(site):
    equal(site.php("echo json_encode(array(array() === get_option('yorozu_pending', array()), wp_next_scheduled('yorozu_retry')));"), '[true,false]')


def test_an_edit_refreshes_what_shows_the_post(site):
    ids = content(site)
    changed = after(site, 'text', f"wp_update_post(array('ID' => {ids['four']}, 'post_content' => '<p>New text.</p>'));",
                    touched=['/wp-sitemap-posts-post-1.xml'])
    assert {'/', '/post-four/', '/category/hill/', '/tag/blue/', '/feed/'} <= changed, changed
    assert not {'/post-one/', '/about/', '/category/sea/', '/author/ann/'} & changed, changed
    # A redirect to it shows nothing of it.
    short = f"/?p={ids['four']}"
    warm(site, [short])
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_content' => '<p>Newer text.</p>'));")
    equal((site.get(short).cache, site.get(short).status), ('HIT', 301))
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_name' => 'the-fourth'));")
    equal(site.get(short).fields['location'], site.url + '/the-fourth/')
    site.php(f"wp_update_post(array('ID' => {ids['four']}, 'post_name' => 'post-four'));")
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
    site.php(find + 'wp_publish_post($post->ID);')
    after(site, 'trash', find + 'wp_trash_post($post->ID);', is_hard=True, more=['/post-five/'])
    equal(site.get('/post-five/').status, 404)
    # What is in the trash is shown nowhere: deleting it changes nothing.
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
    site.php(rename.replace('post-first', 'post-one'))


def test_moved_between_terms(site):
    ids = content(site)
    changed = after(site, 'category', f"wp_set_post_categories({ids['three']}, array({ids['bay']}));")
    assert {'/category/hill/', '/category/sea/', '/category/sea/bay/', '/post-three/'} <= changed, changed
    site.php(f"wp_set_post_categories({ids['three']}, array({ids['hill']}));")


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
    site.php("wp_delete_post(get_page_by_path('later', OBJECT, 'post')->ID, true);")
    equal(site.get('/later/').status, 404)


def test_navigation_of_a_block_theme(site):
    """A navigation block that names none shows the newest; its links go with what they lead to."""
    ids = content(site)
    heads = ['/', '/post-one/', '/about/', '/category/sea/', '/2026/']
    link = '<!-- wp:navigation-link {"label":"%s","url":"http://other.invalid/"%s} /-->'
    make = """echo wp_insert_post(array('post_type' => 'wp_navigation', 'post_title' => '%s', 'post_status' => 'publish',
        'post_date' => '%s', 'post_content' => '%s'));"""
    site.php("switch_theme('twentytwentythree');")
    nav, made = int(site.php(make % ('Nav', '2026-01-01 00:00:00', link % ('Out', '')))), []
    try:
        edit = f"wp_update_post(array('ID' => {nav}, 'post_content' => '%s'));"
        changed = after(site, 'navigation', edit % (link % ('Elsewhere', '')), paths=KINDS)
        assert set(heads) <= changed and '/feed/' not in changed, changed
        # Another that is newer is shown instead; from then on it is that which counts.
        made.append(int(re.search(r'\d+$', site.php(make % ('Newer', '2026-02-01 00:00:00', link % ('New', ''))))[0]))
        warm(site, heads)
        assert b'>New<' in site.get('/').body
        site.php(edit % (link % ('Nobody sees it', '')))
        equal([site.get(path).cache for path in heads], ['HIT'] * len(heads), 'an older navigation')
        changed = after(site, 'deleted', f'wp_delete_post({made.pop()}, true);', is_hard=True, paths=KINDS)
        assert set(heads) <= changed, changed
        # A link to a page that is taken away goes as well.
        page = int(site.php("echo wp_insert_post(array('post_type' => 'page', 'post_title' => 'Linked', 'post_status' => 'publish'));"))
        made.append(page)
        site.php(edit % (link % ('To a page', f',"type":"page","kind":"post-type","id":{page}')))
        warm(site, heads)
        assert b'To a page' in site.get('/').body
        changed = after(site, 'page taken away', f"wp_update_post(array('ID' => {page}, 'post_status' => 'draft'));", is_hard=True, paths=KINDS)
        assert set(heads) <= changed, changed
        # By its name, too: the block names the navigation.
        site.php(f"""$id = wp_insert_post(array('post_type' => 'page', 'post_title' => 'Named', 'post_name' => 'named', 'post_status' => 'publish',
            'post_content' => '<!-- wp:navigation {{"ref":{nav}}} /-->'));""")
        changed = after(site, 'named', edit % (link % ('Last', '')), more=['/named/'], paths=KINDS)
        assert '/named/' in changed, changed
    finally:
        site.php(f"""foreach (array({nav}, {', '.join(map(str, made)) or 0}) as $id) wp_delete_post($id, true);
            wp_delete_post(get_page_by_path('named')->ID ?? 0, true); switch_theme('twentytwentyone');""")


def test_menu_items_by_whatever_way(site):
    ids = content(site)
    item = """wp_update_nav_menu_item(%d, 0, array('menu-item-title' => '%s', 'menu-item-url' => 'http://%s.invalid/',
        'menu-item-status' => 'publish'));"""
    after(site, 'made', item % (ids['menu'], 'One', 'one') + item % (ids['menu'], 'Two', 'two'), paths=KINDS)
    find = "$ids = wp_list_pluck(array_filter(wp_get_nav_menu_items(%d), fn($one) => in_array($one->title, array('One', 'Two'))), 'ID');" % ids['menu']
    find += '$id = end($ids);'
    changed = after(site, 'renamed', find + "wp_update_post(array('ID' => $id, 'post_title' => 'Three'));", paths=KINDS)
    assert '/' in changed and '/feed/' not in changed, changed
    after(site, 'address', find.replace("'Two'", "'Three'") + "update_post_meta($id, '_menu_item_url', 'http://three.invalid/');", paths=KINDS)
    changed = after(site, 'deleted', find.replace("'Two'", "'Three'") + 'wp_delete_post($id, true);', paths=KINDS)
    assert {'/', '/about/', '/post-one/'} <= changed, changed
    changed = after(site, 'deleted by REST', find + """wp_set_current_user(1); $request = new WP_REST_Request('DELETE', "/wp/v2/menu-items/$id");
        $request->set_param('force', true); $answer = rest_do_request($request); if ($answer->is_error()) throw new Exception($answer->as_error()->get_error_message());""", paths=KINDS)
    assert {'/', '/about/', '/post-one/'} <= changed, changed


def test_terms_that_move(site):
    ids = content(site)
    move = "wp_update_term(%d, 'category', array('parent' => %d));"
    try:
        # The list of its new parent gets its posts; its own address is another.
        changed = after(site, 'parent', move % (ids['bay'], ids['hill']), more=['/category/sea/feed/', '/category/hill/page/1/'],
                        touched=['/wp-json/wp/v2/posts', '/post-three/', '/post-two/', '/', '/feed/', '/2026/'])
        assert {'/category/sea/', '/category/hill/', '/category/hill/feed/', '/category/sea/feed/', '/wp-sitemap-taxonomies-category-1.xml'} <= changed, changed
        equal(site.get('/category/hill/bay/').status, 200)
        # Those below a term that is deleted move up.
        below = int(site.php("echo wp_insert_term('Deep', 'category', array('parent' => %d))['term_id'];" % ids['bay']))
        site.php(f"wp_set_post_categories({ids['two']}, array({ids['bay']}, {below}));")
        warm(site, ['/category/hill/bay/deep/'])
        mid = int(site.php("echo wp_insert_term('Mid', 'category', array('parent' => %d))['term_id'];" % ids['hill']))
        site.php(move % (ids['bay'], mid))
        warm(site, ['/category/hill/mid/bay/deep/', '/category/hill/mid/'])
        site.php(f"wp_delete_term({mid}, 'category');")
        for path in ('/category/hill/mid/bay/deep/', '/category/hill/bay/deep/', '/category/hill/mid/'):
            equal(page(site.get(path)), fresh(site, path), path)
        site.php(f"wp_delete_term({below}, 'category');")
        # Taken from a post by a function of its own.
        changed = after(site, 'removed', f"wp_remove_object_terms({ids['two']}, {ids['bay']}, 'category');", touched=['/wp-sitemap.xml'])
        assert '/category/hill/' in changed, changed
    finally:
        site.php(move % (ids['bay'], ids['sea']) + f"wp_set_post_categories({ids['two']}, array({ids['bay']}));")


def test_the_first_post_of_a_term_and_of_an_author(site):
    ids = content(site)
    term, author = map(int, site.php("""echo wp_insert_term('Fresh', 'category')['term_id'], ' ', wp_insert_user(array('user_login' => 'new',
        'user_pass' => 'x', 'role' => 'author', 'display_name' => 'New', 'user_email' => 'new@example.invalid'));""").split())
    maps = {'/wp-sitemap-taxonomies-category-1.xml', '/wp-sitemap-users-1.xml', '/wp-json/wp/v2/users'}
    try:
        changed = after(site, 'first', f"""wp_insert_post(array('post_title' => 'First', 'post_name' => 'first', 'post_status' => 'publish',
            'post_content' => 'x', 'post_category' => array({term}), 'post_author' => {author}, 'post_date' => '2026-01-02 03:04:05'));""",
                        touched=['/wp-sitemap.xml', '/category/hill/', '/tag/blue/', '/category/hill/feed/', '/author/admin/', '/post-one/feed/'])
        assert maps <= changed, changed
        changed = after(site, 'last', "wp_delete_post(get_page_by_path('first', OBJECT, 'post')->ID, true);", is_hard=True,
                        touched=['/wp-sitemap.xml', '/category/hill/', '/tag/blue/'])
        assert maps <= changed, changed
    finally:
        site.php(f"require_once ABSPATH . 'wp-admin/includes/user.php'; wp_delete_user({author}); wp_delete_term({term}, 'category');")


def test_users(site):
    ids = content(site)
    changed = after(site, 'bio', f"update_user_meta({ids['ann']}, 'description', 'Writes.');", touched=AUTHORS_PAGES)
    assert '/wp-json/wp/v2/users' in changed, changed
    changed = after(site, 'bio', f"wp_update_user(array('ID' => {ids['ann']}, 'description' => 'Writes more.'));", touched=AUTHORS_PAGES)
    assert '/wp-json/wp/v2/users' in changed, changed
    # A post is another author's.
    oembed = '/wp-json/oembed/1.0/embed?url=' + site.url + '/post-one/'
    changed = after(site, 'author', f"wp_update_post(array('ID' => {ids['one']}, 'post_author' => 1));", touched=['/wp-sitemap.xml'])
    assert {oembed, '/author/admin/', '/wp-json/wp/v2/posts'} <= changed, changed
    site.php(f"wp_update_post(array('ID' => {ids['one']}, 'post_author' => {ids['ann']}));")
    # One who leaves gives the posts to another.
    gone = int(site.php("""$id = wp_insert_user(array('user_login' => 'gone', 'user_pass' => 'x', 'role' => 'author', 'display_name' => 'Gone',
        'user_email' => 'gone@example.invalid')); wp_insert_post(array('post_title' => 'Left', 'post_name' => 'left', 'post_status' => 'publish',
        'post_content' => 'x', 'post_author' => $id)); echo $id;"""))
    changed = after(site, 'leaves', f"require_once ABSPATH . 'wp-admin/includes/user.php'; wp_delete_user({gone}, {ids['ann']});", is_hard=False,
                    more=['/left/'], touched=AUTHORS_PAGES + ['/wp-sitemap.xml'])
    assert {'/author/ann/', '/wp-json/wp/v2/posts', '/wp-json/wp/v2/users', '/wp-sitemap-users-1.xml', '/left/'} <= changed, changed
    site.php("wp_delete_post(get_page_by_path('left', OBJECT, 'post')->ID, true);")


def test_a_picture_that_is_deleted(site):
    ids = content(site)
    picture = site.php(f"""$id = wp_insert_attachment(array('post_mime_type' => 'image/png', 'post_title' => 'Picture', 'post_status' => 'inherit'), 'x.png');
        set_post_thumbnail({ids['three']}, $id); echo $id;""")
    changed = after(site, 'picture', f'wp_delete_attachment({picture}, true);', touched=SHOW_THREE)
    assert '/wp-json/wp/v2/posts' in changed, changed


def test_addresses_of_pages_below(site):
    """A page's address begins with those of the pages above it."""
    ids = content(site)
    rename = f"wp_update_post(array('ID' => {ids['about']}, 'post_name' => '%s'));"
    try:
        warm(site, ['/about/team/'])
        site.php(rename % 'we')
        equal([site.get(path).status for path in ('/about/team/', '/we/team/')], [301, 200])
        warm(site, ['/we/team/'])
        site.php(f"wp_trash_post({ids['about']});")
        assert site.get('/we/team/').status != 200
        site.php(f"wp_untrash_post({ids['about']}); wp_publish_post({ids['about']});")
    finally:
        site.php(rename % 'about')
    equal(site.get('/about/team/').status, 200)


def test_popular_posts_and_other_orders(site):
    ids = content(site)
    code = """add_action('template_redirect', function () {
        foreach (array('comment_count' => 'popular', 'title' => 'abc', 'modified' => 'news') as $by => $name)
            if (isset($_GET[$name])) die(implode(' ', wp_list_pluck(get_posts(array('orderby' => $by, 'order' => 'ASC', 'numberposts' => 99)), 'ID')));
        if (isset($_GET['front'])) die(implode(' ', wp_list_pluck((new WP_Query(array('post__in' => get_option('sticky_posts') ?: array(0))))->posts, 'ID')));
    });"""
    orders = ['/?popular', '/?abc', '/?news', '/?front']
    with mu_plugin(site, code):
        warm(site, orders)
        for what, path, change in (
                ('text', '/?news', f"wp_update_post(array('ID' => {ids['four']}, 'post_content' => 'Changed'));"),
                ('comment', '/?popular', f"""wp_insert_comment(array('comment_post_ID' => {ids['two']}, 'comment_content' => 'Yes', 'comment_author' => 'Bob',
                    'comment_author_email' => 'bob@example.invalid', 'comment_approved' => 1));"""),
                ('title', '/?abc', f"wp_update_post(array('ID' => {ids['two']}, 'post_title' => 'Zebra'));"),
                ('sticky', '/?front', f"stick_post({ids['three']});")):
            before = fresh(site, path)
            site.php(change)
            now = fresh(site, path)
            assert before != now, what
            until(lambda: is_now(site, path, now), f'{what}: {path} to be refreshed')
        warm(site, orders)
        site.php(f"wp_update_post(array('ID' => {ids['three']}, 'post_content' => '<p>The text of three, again.</p>'));")
        equal([site.get(path).cache == 'HIT' for path in orders[:2]], [True, True])
    site.php(f"unstick_post({ids['three']}); wp_update_post(array('ID' => {ids['two']}, 'post_title' => 'Post two'));")


# How many pages may be refreshed though they did not change, of all in PATHS.
NEEDLESS = (
    ('title', "wp_update_post(array('ID' => {two}, 'post_title' => 'Another title'));", 1),
    ('text', "wp_update_post(array('ID' => {two}, 'post_content' => '<p>The text of another.</p>'));", 2),
    ('description', "wp_update_term({hill}, 'category', array('description' => 'High up.'));", 1),
    ('name of a category', "wp_update_term({hill}, 'category', array('name' => 'Height'));", 2),
    ('name of a tag', "wp_update_term(get_term_by('slug', 'blue', 'post_tag')->term_id, 'post_tag', array('name' => 'Azure'));", 2),
    ('sticky', "stick_post({three});", 1),
    ('not sticky', "unstick_post({three});", 1),
    ('text of a comment', "$id = wp_insert_comment(array('comment_post_ID' => {one}, 'comment_content' => 'First', 'comment_author_email' => 'bob@example.invalid', 'comment_approved' => 1)); "
                          "Yorozu\\Queue::flush(true);", 1),
    ('text of a comment edited', "wp_update_comment(array('comment_ID' => get_comments(array('search' => 'First'))[0]->comment_ID, 'comment_content' => 'Second'));", 0),
    ('date', "wp_update_post(array('ID' => {two}, 'post_date' => '2026-02-16 12:00:00', 'post_date_gmt' => '2026-02-16 12:00:00'));", 2),
    ('author', "wp_update_post(array('ID' => {three}, 'post_author' => {ann}));", 2),
    ('author again', "wp_update_post(array('ID' => {three}, 'post_author' => 1));", 4),
    ('draft', "wp_insert_post(array('post_title' => 'Draft', 'post_status' => 'draft', 'post_content' => 'x', 'post_category' => array({sea})));", 0),
    ('published', "wp_publish_post(get_posts(array('post_status' => 'draft', 'title' => 'Draft'))[0]->ID);", 2),
    ('widget put by', "update_option('widget_text', array(7 => array('title' => 'x', 'text' => 'y'), '_multiwidget' => 1));", 0),
    ('inactive widgets', "$all = wp_get_sidebars_widgets(); $all['wp_inactive_widgets'][] = 'text-7'; wp_set_sidebars_widgets($all);", 0),
    ('order of plugins', "do_action('updated_option', 'active_plugins', array('a/a.php', 'b/b.php'), array('b/b.php', 'a/a.php'));", 0),
    ('mods of another theme', "update_option('theme_mods_none', array('a' => time()));", 0),
    ('length of feeds', "update_option('posts_per_rss', 11);", 4),
    ('order of comments', "update_option('comment_order', 'desc');", 12),
    ('an update of what is not active', "do_action('upgrader_process_complete', null, array('type' => 'plugin', 'action' => 'update', 'plugins' => array('akismet/akismet.php')));", 0),
    ('a new category', "wp_insert_term('Empty', 'category');", 1),
)


# What plugins of forms, templates, fields, sitemaps and settings do; each was compared with real ones (tests/real_plugins.py): Contact Form 7 6.1.6,
# WPForms 2.0.0, Elementor 4.2.3, Advanced Custom Fields 6.8.0, Easy Digital Downloads 3.6.5 and Yoast 28.3 on WordPress 7.1.4, 2026-11-29.
CONTENT_BY_NUMBER = """
add_action('init', function () {
    register_post_type('form');
    register_setting('mine', 'mine_currency');
    if ($_SERVER['REQUEST_URI'] === '/page-sitemap.xml') {
        global $wpdb;
        exit(wp_json_encode($wpdb->get_results("SELECT post_name, post_modified FROM $wpdb->posts WHERE post_type = 'page' AND post_status = 'publish' ORDER BY ID")));
    }
});
add_shortcode('form', fn($named) => 'Form: ' . get_post($named['id'])->post_content);
add_shortcode('hours', fn() => 'Hours: ' . get_post_meta(%(one)d, 'hours', true));
add_shortcode('colour', fn() => 'Colour: ' . get_term_meta(%(sea)d, 'colour', true));
add_shortcode('currency', fn() => 'Currency: ' . get_option('mine_currency'));
add_action('rest_api_init', function () {
    foreach (array('secret' => null, 'shared' => 'public, max-age=600') as $name => $control) {
        foreach (array('mine/v1', 'wc/store-of-mine') as $namespace) register_rest_route($namespace, $name, array('permission_callback' => '__return_true',
            'callback' => fn() => new WP_REST_Response(uniqid(), 200, array_filter(array('Cache-Control' => $control)))));
    }
});
foreach (array('', '_nopriv') as $who) add_action("wp_ajax{$who}_count", fn() => exit((string) update_post_meta(%(one)d, 'views', uniqid())));
"""


def test_what_is_read_by_number(site):
    ids = content(site)
    pages = ['/form/', '/hours/', '/colour/', '/currency/', '/page-sitemap.xml']
    others = ['/post-two/', '/post-three/', '/about/', '/category/hill/']
    with mu_plugin(site, CONTENT_BY_NUMBER % ids):
        form, *made = json.loads(site.php("""$form = wp_insert_post(array('post_type' => 'form', 'post_status' => 'publish', 'post_content' => 'Old'));
            $make = fn($name, $text) => wp_insert_post(array('post_type' => 'page', 'post_status' => 'publish', 'post_title' => $name, 'post_content' => $text));
            echo json_encode(array($form, $make('Form', "[form id=$form]"), $make('Hours', '[hours]'), $make('Colour', '[colour]'), $make('Currency', '[currency]')));"""))
        try:
            changes = [
                ('/form/', f"wp_update_post(array('ID' => {form}, 'post_content' => 'New'));"),
                ('/form/', f"wp_update_post(array('ID' => {form}, 'post_content' => 'Newer'));"),
                ('/hours/', f"update_post_meta({ids['one']}, 'hours', 'from nine');"),
                ('/hours/', f"delete_post_meta({ids['one']}, 'hours');"),
                ('/colour/', f"update_term_meta({ids['sea']}, 'colour', 'blue');"),
            ]
            for path, change in changes:
                equal(after(site, path, change, paths=pages + others, touched=['/page-sitemap.xml']), {path}, change)
            after(site, 'a page', f"wp_update_post(array('ID' => {made[0]}, 'post_content' => '[form id={form}] as before'));", paths=pages)
            # As the screen of a plugin's settings saves it, and as WordPress's own.
            save = """$GLOBALS['pagenow'] = 'options.php'; $_POST['option_page'] = '%s'; update_option('%s', uniqid());"""
            assert '/currency/' in after(site, 'settings', save % ('mine', 'mine_currency'), is_hard=True, paths=['/currency/'])
            warm(site, pages)
            for words in (('mine', '_transient_mine'), ('writing', 'mailserver_login'), ('', 'mine_other')):
                site.php(save % words)
            equal([site.get(path).cache for path in pages], ['HIT'] * len(pages))
            # A visitor's view that is counted is no edit.
            counted = [site.get('/wp-admin/admin-ajax.php?action=count', 'POST').body for _ in range(2)]
            assert counted[0].isdigit() and counted[1] == b'1', counted
            equal([site.get(path).cache for path in pages], ['HIT'] * len(pages))
            # What other namespaces of the REST API answer may be for one visitor.
            for namespace in ('mine/v1', 'wc/store-of-mine'):
                secret, shared = ({site.get(f'/wp-json/{namespace}/{name}').body for _ in range(3)} for name in ('secret', 'shared'))
                equal((len(secret), len(shared)), (3, 1), namespace)
            # What goes and was read by nothing: many of them together would purge the whole site.
            log = lambda: site.php("echo json_encode(get_option('yorozu_log'));")
            before = log()
            site.php(f"foreach (wp_get_post_revisions({made[0]}) ?: array(get_post(wp_save_post_revision({made[0]}))) as $one) wp_delete_post_revision($one);"
                     "wp_delete_post(wp_insert_post(array('post_type' => 'oembed_cache', 'post_title' => 'x', 'post_content' => 'x')), true);")
            equal(log(), before)
        finally:
            site.php(f"foreach (array({form}, {', '.join(map(str, made))}) as $id) wp_delete_post($id, true); delete_option('mine_currency');")


def test_few_pages_are_made_anew_needlessly(site):
    ids = content(site)
    # What earlier tests left to wp-cron is not counted here.
    settle(site)
    counts, total = [], 0
    for what, change, most in NEEDLESS:
        change = re.sub(r'\{(\w+)\}', lambda found: str(ids[found[1]]), change)
        before = change_of(site, change)
        first = all_of(site.get, before)
        now = stored(site, PATHS)
        renewed = [f'{path} ({answer.cache})' for path, answer in first.items() if answer.cache != 'HIT' and before[path] == now[path]]
        counts.append((len(renewed), most, what, renewed, purges(site) if len(renewed) > most else ''))
        total += len(renewed)
    # And none is left as it was before one of them.
    equal(all_of(lambda path: fresh(site, path), now), now)
    if 'COUNTS' in os.environ:
        for count, most, what, renewed, _ in counts:
            print(f'  {count:3} of at most {most:3}: {what} {renewed}')
        print(f'  {total:3} together')
    for count, most, what, renewed, said in counts:
        assert count <= most, f'{what}: {count} pages were refreshed needlessly: {renewed}; purges: {said}'

