"""What the WordPress plugin costs: saving a post with it and without, on the real WordPress of `make run`."""
import statistics, time
from wordpress import Site

PAGES = 200

# `?off` leaves the plugin out, as if it were not active.
SWITCH = """<?php
if (isset($_GET['off'])) {
    add_filter('option_active_plugins', fn($names) => array_diff($names, array('yorozu/yorozu.php')));
}
"""
SAVE = """<?php
require 'wp-load.php';
nocache_headers();
if (class_exists('Yorozu\\\\Queue') === isset($_GET['off'])) { http_response_code(500); exit; }
wp_update_post(array('ID' => (int) $_GET['id'], 'post_content' => '<p>' . microtime() . '</p>'));
"""
# A page is made, not answered from the cache.
MAKE = "for ($i = 0; $i < %d; $i++) $ids[] = wp_insert_post(array('post_title' => \"Page $i\", 'post_content' => 'x'," \
       " 'post_status' => 'publish')); echo $ids[0];"


def timed(site, path):
    begun = time.monotonic()
    answer = site.get(path, Cookie='wordpress_logged_in_bench=1')
    assert answer.status == 200, f'{path}: {answer.status}'
    return 1000 * (time.monotonic() - begun)


def both(site, path, count):
    """Median milliseconds without the plugin and with it, taken in turn."""
    found = {'&off': [], '': []}
    for _ in range(count):
        for query, times in found.items():
            times.append(timed(site, path + query))
    return tuple(statistics.median(times) for times in found.values())


def lines(rounds):
    """Milliseconds of a save and of a page that is made, without and with the plugin."""
    site, found = Site(), []
    try:
        first = int(site.php(MAKE % PAGES))
        (site.folder / 'www/wp-content/mu-plugins').mkdir()
        (site.folder / 'www/wp-content/mu-plugins/switch.php').write_text(SWITCH)
        site.script('save.php', SAVE)
        for number in range(PAGES):
            site.get(f'/page-{number}/')
        for what, path, wanted in ((f'save a post of WordPress, {PAGES} pages stored', f'/save.php?id={first}', 10),
                                   ('make a page of WordPress', '/page-1/?made', None)):
            without, with_it = both(site, path, 20 * rounds)
            found.append((f'{what}: without the plugin, with it', '', f'{without:.1f} / {with_it:.1f} ms '
                          f'**{with_it - without:+.1f} ms**', f'wanted: at most {wanted} ms' if wanted else ''))
        return found
    finally:
        site.end()
