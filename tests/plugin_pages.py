"""The pages of the plugin's tests, and which of them are made again when something changes."""
import concurrent.futures, contextlib, json, re, time
from peers import equal, until as waits_until

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
         '/wp-json/wp/v2/posts', '/wp-json/wp/v2/categories', '/wp-json/wp/v2/users', '/wp-json/wp/v2/comments',
         '/wp-json/wp/v2/search?search=text', '/wp-sitemap.xml', '/wp-sitemap-posts-post-1.xml', '/wp-sitemap-posts-page-1.xml',
         '/wp-sitemap-taxonomies-category-1.xml', '/wp-sitemap-taxonomies-post_tag-1.xml', '/wp-sitemap-users-1.xml',
         '/wp-json/oembed/1.0/embed?url=/post-one/', '/post-three/embed/', '/a-quiet-machine/']
# Of each kind one, where the whole site changes.
KINDS = ['/', '/?s=text', '/post-one/', '/about/', '/category/sea/', '/author/ann/', '/2026/', '/feed/', '/wp-json/wp/v2/posts',
         '/wp-sitemap.xml', '/post-three/embed/']
# Whether a search finds a post is not known without searching.
SEARCHES = ['/?s=text', '/wp-json/wp/v2/search?search=text']

# Pages that name the author Ann; that show the third post.
AUTHORS_PAGES = ['/', '/post-one/', '/author/ann/', '/feed/', '/2026/', '/category/sea/', '/wp-json/wp/v2/posts', '/?s=text', '/post-one/feed/',
                 '/wp-json/oembed/1.0/embed?url=/post-one/', '/wp-sitemap-users-1.xml']
SHOW_THREE = ['/', '/post-three/', '/feed/', '/2026/', '/2026/03/', '/category/hill/', '/category/hill/feed/', '/author/admin/', '/post-three/embed/']

PAST = {'Cookie': 'wordpress_logged_in_none=1'}  # Past the cache; WordPress takes it for nobody's.


# As wp-cron.php does it, which does nothing while another one has its lock, or had it when it ended, and ends the process
# that has run it. What is left then, as JSON.
DUE = """define('DOING_CRON', true);
if (get_option('yorozu_pending')) do_action('yorozu_retry');
ob_start();
foreach (wp_get_ready_cron_jobs() as $time => $hooks)
    foreach ($hooks as $hook => $events)
        foreach ($events as $event) {
            if ($event['schedule']) wp_reschedule_event($time, $event['schedule'], $hook, $event['args']);
            wp_unschedule_event($time, $hook, $event['args']);
            do_action_ref_array($hook, $event['args']);
        }
ob_end_clean();
echo json_encode(array_filter(array('purges' => get_option('yorozu_pending'), 'due' => wp_get_ready_cron_jobs())));"""


def settle(site):
    """Has WordPress do what is due and what waits, until nothing is left that could purge pages later."""
    left = []

    def is_settled():
        left.append(site.php(DUE))
        return left[-1] == '[]'
    waits_until('the end of what is due', is_settled, told=lambda: f'left: {left[-1]}')


def content(site):
    if not hasattr(site, 'ids'):
        # What WordPress does once, with the first page and the first round of wp-cron, purges as well: it is waited for.
        settle(site)
        runs = site.php_runs()
        fresh(site, '/')
        waits_until('the first page', lambda: site.php_runs() > runs)
        site.ids = json.loads(site.php(CONTENT))
        # So is what that left to wp-cron, and a purge that a busy server did not answer in time.
        settle(site)
    for paths in (PATHS, AUTHORS_PAGES):
        # Those of another site may be there.
        paths[:] = [re.sub(r'url=.*?/post', f'url={site.url}/post', path) for path in paths]
    return site.ids


def text(answer):
    # An embedded page has words by which it and the one around it know each other: others each time.
    body = re.sub(rb'(secret=(?:\\?"|&quot;)?)\w{10}\b', rb'\1', answer.body)
    return re.sub(rb'(wp-embed-share-[a-z-]+\d+-)\d+', rb'\1', body)


def page(answer):
    return answer.status, answer.fields.get('location'), text(answer)


def fresh(site, path):
    answer = site.get(path, **PAST)
    assert answer.cache == 'BYPASS', answer.cache
    return page(answer)


class Told:
    """Words of a failure, which are asked for only where there is one: each question to WordPress is a process that reads all of it."""

    def __init__(self, words):
        self.words = words

    def __str__(self):
        return self.words()


def is_hit(site, path):
    return site.get(path).cache == 'HIT'


def until(condition, what):
    waits_until(what, condition)


def warm(site, paths):
    for path in paths:
        until(lambda: is_hit(site, path), f'{path} to be stored')


def all_of(read, paths):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return dict(zip(paths, pool.map(read, paths)))


def stored(site, paths):
    """The pages of paths as they are stored at one time; what is no page is not stored."""
    def look():
        answers = all_of(site.get, paths)
        return all(answer.cache == 'HIT' or answer.status != 200 for answer in answers.values()) and answers
    answers = waits_until('all pages to be stored at one time', look)
    return {path: page(answer) for path, answer in answers.items() if answer.status == 200}


def change_of(site, change, paths=PATHS):
    """Makes a change. The pages that were stored before it."""
    before = stored(site, paths)
    # A purge that a busy server did not answer in time would be sent again when the next change is looked at.
    if site.php(change + "register_shutdown_function(fn() => print(get_option('yorozu_pending') ? 'pending' : ''));").endswith('pending'):
        settle(site)
    fresh(site, '/')  # Some changes are completed by the next visitor.
    return before


def visited(site, path):
    """What the cache did for the first visitor after a change, what that one got, and the page as it is now: a page that is still
    stored is compared with what PHP makes past the cache, and any other one PHP has just made."""
    first = site.get(path)
    if first.cache == 'HIT':
        return first.cache, page(first), fresh(site, path)
    made = lambda: (answer := site.get(path)).cache not in ('STALE', 'UPDATING') and answer
    now = waits_until(f'{path} to be made', made) if first.cache in ('STALE', 'UPDATING') else first
    return first.cache, page(first), page(now)


def after(site, what, change, is_hard=False, more=(), touched=(), paths=PATHS):
    """Makes a change and compares every page with what PHP makes now; pages in `touched` may be refreshed though they stay as they
    were. The pages that changed."""
    before = change_of(site, change, [*paths, *more])
    visits = all_of(lambda path: visited(site, path), before)
    changed = {path for path, (_, _, now) in visits.items() if before[path] != now}
    assert changed, f'{what}: nothing changed'
    name, what = what, Told(lambda: name + ' (' + site.php("echo get_option('yorozu_log')[0]['reason'];") + ')')
    for path, (cache, first, now) in visits.items():
        if path not in changed:
            is_spared = cache == 'HIT' or path in touched or path in SEARCHES
            assert is_spared, f'{what}: {path} was refreshed ({cache}); purges: {purges(site)}'
        elif is_hard and path != '/wp-json/wp/v2/categories':  # where posts are counted
            assert first == now, f'{what}: {path} is stale ({cache})'
        elif cache == 'HIT':
            # A purge that the server was too busy for is tried again.
            until(lambda: is_now(site, path, now), Told(lambda: f'{what}: {path} to be refreshed'))
    return changed


def purges(site):
    return site.php("echo json_encode(array_slice(get_option('yorozu_log'), 0, 8)), json_encode(get_option('yorozu_pending'));")


def is_now(site, path, wanted):
    answer = site.get(path)
    # What is not a page any more is not stored.
    return (answer.status, text(answer)) == (wanted[0], wanted[2]) or answer.status == wanted[0] == 404


@contextlib.contextmanager
def mu_plugin(site, code):
    """A plugin of the site's own."""
    folder = site.folder / 'www/wp-content/mu-plugins'
    folder.mkdir(exist_ok=True)
    mark = f'mark{time.monotonic_ns()}'
    marks = lambda: site.get('/?mark', **PAST).fields.get('x-mark')
    script = 'wp-content/mu-plugins/test.php'
    site.script(script, f"<?php if (isset($_GET['mark'])) header('X-Mark: {mark}'); {code}")
    equal(marks(), mark)
    try:
        yield
    finally:
        site.script(script, '<?php')
        equal(marks(), None)
