"""`make run CLUSTER=3`: one WordPress behind three nodes, a balancer and a Redis."""
import re
from peers import equal, until

SITE = dict(CLUSTER='3')

PATH = '/a-quiet-machine/'


def ask(port, path, site):
    """What a node answers that is asked as the balancer asks it."""
    return site.get(path, port=port, Host=f'127.0.0.1:{site.port}')


def nodes(site):
    return [int(port) for port in re.findall(r'yorozu: http://localhost:(\d+)/ - Ctrl-C', site.out.read_text())]


def test_the_balancer_asks_each_node(site):
    equal(len(nodes(site)), 3)
    equal({site.get('/robots.txt').fields['x-node'] for _ in range(12)}, {f'127.0.0.1:{port}' for port in nodes(site)})


def test_a_page_is_made_once_for_all_nodes(site):
    runs = site.php_runs()
    answers = [ask(port, f'{PATH}?once', site) for port in nodes(site)]
    equal(answers[0].status, 200)
    assert len({answer.body for answer in answers}) == 1
    equal(site.php_runs(), runs + 1, 'PHP ran')
    # From here on each has it.
    equal([ask(port, f'{PATH}?once', site).cache for port in nodes(site)], ['HIT'] * 3)


def test_an_edit_through_one_shows_on_the_others(site):
    for number in range(3):
        [ask(port, PATH, site) for port in nodes(site)]
        site.php(f"""$posts = get_posts(['name' => 'a-quiet-machine']);
            wp_update_post(['ID' => $posts[0]->ID, 'post_content' => 'edit {number}']); do_action('yorozu_retry');""")
        for port in nodes(site):
            until('the edit', lambda: f'edit {number}'.encode() in ask(port, PATH, site).body)


def test_a_node_that_dies_is_left_out_and_comes_back_right(site):
    site.get(PATH)
    [ask(port, PATH, site) for port in nodes(site)]
    before = site.kill('node2')
    site.php("""$posts = get_posts(['name' => 'a-quiet-machine']);
        wp_update_post(['ID' => $posts[0]->ID, 'post_content' => 'while it was away']); do_action('yorozu_retry');""")
    for _ in range(6):
        equal(site.get('/').status, 200)
    site.said('node2 answers again', before)
    until('the edit', lambda: b'while it was away' in ask(nodes(site)[1], PATH, site).body)

