"""A network of WordPress sites (multisite) with the plugin: one in a folder, one under a name of its own."""
import json, os, re, signal
from peers import ROOT, equal, until

# As the screen "Network Setup" does it, which asks to edit wp-config.php in between.
TABLES = """require ABSPATH . 'wp-admin/includes/upgrade.php';
    foreach ($wpdb->tables('ms_global') as $table => $name) $wpdb->$table = $name;
    install_network(); populate_network(1, '127.0.0.1:%d', 'admin@example.invalid', 'Network', '/', false);"""
CONSTANTS = """$_SERVER += array('REMOTE_ADDR' => '127.0.0.1'); if ('127.0.0.1' === $_SERVER['HTTP_HOST']) $_SERVER['HTTP_HOST'] = '127.0.0.1:%d';
    foreach (array('MULTISITE' => true, 'SUBDOMAIN_INSTALL' => false, 'DOMAIN_CURRENT_SITE' => '127.0.0.1:%d', 'PATH_CURRENT_SITE' => '/',
        'SITE_ID_CURRENT_SITE' => 1, 'BLOG_ID_CURRENT_SITE' => 1, 'DISABLE_WP_CRON' => true) as $name => $value) define($name, $value);"""
SITES = """require ABSPATH . 'wp-admin/includes/plugin.php'; grant_super_admin(1);
    foreach (array('home', 'siteurl') as $option) update_option($option, 'http://127.0.0.1:%d');
    $ids = array();
    foreach (array('two' => array('127.0.0.1:%d', '/two/'), 'three' => array('three.test:%d', '/')) as $name => list($domain, $path)) {
        $ids[$name] = wp_insert_site(array('domain' => $domain, 'path' => $path, 'network_id' => 1, 'user_id' => 1, 'title' => $name));
        if (is_wp_error($ids[$name])) throw new Exception($ids[$name]->get_error_message());
        // WordPress leaves the colon of a port out.
        $wpdb->update($wpdb->blogs, array('domain' => $domain), array('blog_id' => $ids[$name]));
        clean_blog_cache($ids[$name]);
        switch_to_blog($ids[$name]);
        foreach (array('home', 'siteurl') as $option) update_option($option, untrailingslashit("http://$domain$path"));
        update_option('permalink_structure', '/%%postname%%/'); update_option('rewrite_rules', ''); switch_theme('twentytwentyone');
        restore_current_blog();
    }
    activate_plugin('yorozu/yorozu.php', '', true);
    echo json_encode($ids);"""
# Of docs/wordpress.md.
RULES = re.search(r'\n(    rewrite \^/\[_.*?)\n\n', (ROOT / 'docs/wordpress.md').read_text(), re.S).group(1)


def network(site):
    """The numbers of the sites; makes them once."""
    if not hasattr(site, 'sites'):
        site.php(TABLES % site.port)
        config = site.folder / 'www/wp-config.php'
        text = re.sub(r"^define\( '(WP_HOME|WP_SITEURL)'.*", '', config.read_text(), flags=re.M)
        config.write_text(text.replace('<?php', '<?php ' + CONSTANTS % (site.port, site.port), 1))
        site.sites = json.loads(site.php(SITES % (site.port, site.port, site.port)))
        file = site.served / 'conf/nginx.conf'
        file.write_text(re.sub(r'(\n        root .*)', r'\n        server_name 127.0.0.1 three.test;\1\n' + RULES.replace('\\', r'\\'), file.read_text()))
        os.kill(site.pid('server'), signal.SIGHUP)
        # PHP's opcache looks at wp-config.php every two seconds: of what it says until then no page is kept.
        known = {'Cookie': 'wordpress_logged_in_x=1'}
        until('the sites', lambda: ask(site, 'three', '/', **known).status == 200 and ask(site, 'two', '/', **known).status == 200)
        site.yorozu('purge', '--all')
    return site.sites


def ask(site, name, path, **fields):
    """A page of a site of the network."""
    host = {'three': f'three.test:{site.port}'}.get(name, f'127.0.0.1:{site.port}')
    return site.get(('/two' if name == 'two' else '') + path, Host=host, **fields)


def warm(site, name, path='/'):
    until(f'{path} of {name} to be stored', lambda: ask(site, name, path).cache == 'HIT')


def on(number, code):
    return f'switch_to_blog({number}); {code} restore_current_blog();'


def write(title):
    return f"wp_insert_post(array('post_title' => '{title}', 'post_name' => '{title}', 'post_content' => 'text', 'post_status' => 'publish', 'post_author' => 1));"


def test_sites_are_sites(site):
    network(site)
    for name, title in ('two', b'two'), ('three', b'three'), ('one', b'Ten thousand'):
        warm(site, name)
        assert title in ask(site, name, '/').body, name
        equal(ask(site, name, '/wp-admin/').status, 302)
        equal(ask(site, name, '/wp-includes/css/buttons.min.css').status, 200)
    equal(ask(site, 'two', '/wp-login.php').status, 200)


def test_a_change_on_a_site_that_a_request_switches_to(site):
    """Of the network's own screens and of plugins that publish on several sites."""
    ids = network(site)
    for name in ('two', 'three'):
        for other in ('one', 'two', 'three'):
            warm(site, other)
        site.php(on(ids[name], write(f'from-elsewhere-{name}')))
        until(f'the post on {name}', lambda: f'from-elsewhere-{name}'.encode() in ask(site, name, '/').body)
        rest = {'two', 'three'} - {name}
        equal([ask(site, other, '/').cache for other in sorted(rest)], ['HIT'])
        equal(ask(site, 'one', '/').cache, 'HIT')
    # Posts of two sites have one number, and each its own state.
    site.php(on(ids['two'], "$two = " + write('a-draft').replace("'publish'", "'draft'"))
             + f"switch_to_blog({ids['three']}); wp_insert_post(array('import_id' => $two, 'post_title' => 'same', 'post_name' => 'same', "
             "'post_content' => 'text', 'post_status' => 'publish')); restore_current_blog(); update_option('the_number', $two);")
    for name in ('two', 'three'):
        warm(site, name)
    warm(site, 'three', '/same/')
    site.php("$number = get_option('the_number');" + on(ids['two'], "wp_update_post(array('ID' => $number, 'post_content' => 'more'));")
             + on(ids['three'], 'wp_trash_post($number);'))
    equal(ask(site, 'three', '/same/').status, 404)
    equal(ask(site, 'two', '/').cache, 'HIT', 'a draft of another site')


def test_the_first_site_shows_posts_of_others(site):
    ids = network(site)
    folder = site.folder / 'www/wp-content/mu-plugins'
    folder.mkdir(exist_ok=True)
    (folder / 'others.php').write_text("""<?php add_action('wp_footer', function() { if (!is_main_site()) return;
        switch_to_blog(%d); echo '<p id="others">', implode(' ', wp_list_pluck(get_posts(), 'post_title')), '</p>'; restore_current_blog(); });""" % ids['three'])
    until('the list', lambda: b'id="others"' in ask(site, 'one', '/', Cookie='wordpress_logged_in_none=1').body)
    site.yorozu('purge', '--all')
    warm(site, 'one')
    site.php(on(ids['three'], write('news-of-three')))
    until('the news on the first site', lambda: b'news-of-three' in ask(site, 'one', '/').body)
    (folder / 'others.php').unlink()
    until('no list', lambda: b'id="others"' not in ask(site, 'one', '/', Cookie='wordpress_logged_in_none=1').body)
    site.yorozu('purge', '--all')


def test_a_site_that_is_suspended(site):
    ids = network(site)
    for name in ('two', 'three'):
        for state, status in ('archived', 410), ('deleted', 410), ('spam', 410):
            warm(site, name)
            site.php(f"update_blog_status({ids[name]}, '{state}', 1);")
            equal(ask(site, name, '/').status, status, f'{name} {state}')
            site.php(f"update_blog_status({ids[name]}, '{state}', 0);")
            equal(ask(site, name, '/').status, 200, f'{name} not {state}')


def test_an_author_of_several_sites(site):
    ids = network(site)
    for name in ('two', 'three'):
        site.php(on(ids[name], write(f'by-admin-{name}')))
        warm(site, name, f'/by-admin-{name}/')
    site.php("wp_update_user(array('ID' => 1, 'display_name' => 'Ada Jones'));")
    for name in ('two', 'three'):
        until(f'the name on {name}', lambda: b'Ada Jones' in ask(site, name, f'/by-admin-{name}/').body)


def test_a_plugin_of_all_sites(site):
    network(site)
    folder = site.folder / 'www/wp-content/plugins/everywhere'
    folder.mkdir(exist_ok=True)
    (folder / 'everywhere.php').write_text("<?php\n/* Plugin Name: Everywhere */ add_action('wp_footer', function() { echo 'everywhere'; });")
    for name in ('one', 'two', 'three'):
        warm(site, name)
    site.php("require ABSPATH . 'wp-admin/includes/plugin.php'; wp_cache_delete('plugins', 'plugins');"
             "$problem = activate_plugin('everywhere/everywhere.php', '', true); if ($problem) throw new Exception($problem->get_error_message());")
    for name in ('one', 'two', 'three'):
        assert b'everywhere' in ask(site, name, '/').body, name
    site.php("require ABSPATH . 'wp-admin/includes/plugin.php'; deactivate_plugins('everywhere/everywhere.php', false, true);")
    for name in ('one', 'two', 'three'):
        assert b'everywhere' not in ask(site, name, '/').body, name


def test_the_owner_of_a_site_purges_that_site(site):
    """Its capabilities are as those of the first site's owner; the token is that of the host, which both share."""
    ids = network(site)
    said = json.loads(site.php(on(ids['two'], """echo json_encode(array(
        Yorozu\\Settings::sanitize(array('urls' => "/two/a\\n/a\\n/twofold/"))['urls'], Yorozu\\Sites::has('/two/b'), Yorozu\\Sites::has('/b')));""")
        .replace('echo', "require ABSPATH . 'wp-admin/includes/admin.php'; echo", 1)))
    equal(said, ['/two/a', True, False])


def test_a_site_that_is_deleted_and_one_that_is_uninstalled(site):
    ids = network(site)
    warm(site, 'three')
    site.php(f"require ABSPATH . 'wp-admin/includes/admin.php'; wpmu_delete_blog({ids['three']}, true);")
    assert ask(site, 'three', '/').status != 200
    left = "echo json_encode(array_map(fn($id) => get_blog_option($id, 'yorozu_log', null) === null, array(1, %d)));" % ids['two']
    equal(json.loads(site.php(left)), [False, False])
    equal(json.loads(site.php("define('WP_UNINSTALL_PLUGIN', 'yorozu/yorozu.php'); require WP_PLUGIN_DIR . '/yorozu/uninstall.php';" + left)), [True, True])
