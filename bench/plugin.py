"""What the WordPress plugin costs: saving a post with it and without, on the real WordPress of `make run`."""
import pathlib, statistics, time
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


def waited(site):
    return time.monotonic()


def worked(site):
    """Seconds of CPU that PHP's children have taken: steadier than what a visitor waits for on a machine with other work."""
    children = pathlib.Path(f'/proc/{site.pid("php-fpm")}/task/{site.pid("php-fpm")}/children').read_text().split()
    return sum(int(pathlib.Path(f'/proc/{child}/schedstat').read_text().split()[0]) for child in children) / 1e9


def timed(site, path, clock):
    begun = clock(site)
    answer = site.get(path, Cookie='wordpress_logged_in_bench=1')
    assert answer.status == 200, f'{path}: {answer.status}'
    return 1000 * (clock(site) - begun)


def both(site, path, count, clock):
    """Milliseconds without the plugin, and how many more with it: medians, of pairs measured one right after the other."""
    pairs = [[timed(site, path + query, clock) for query in ('&off', '')] for _ in range(count)]
    return statistics.median(without for without, _ in pairs), statistics.median(with_it - without for without, with_it in pairs)


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
        for what, path, clock, wanted in ((f'save a post of WordPress, {PAGES} pages stored', f'/save.php?id={first}', waited, 'at most 5 ms'),
                                          ('make a page of WordPress, CPU of PHP', '/page-1/?made', worked, 'at most 1 ms and 3 %')):
            without, more = both(site, path, 20 * rounds, clock)
            found.append((f'{what}: without the plugin, and what it adds', '', f'{without:.1f} ms '
                          f'**{more:+.2f} ms, {100 * more / without:+.1f} %**', f'wanted: {wanted}'))
        return found
    finally:
        site.end()
