"""Pages for visitors with a cart: those that print nothing of it but what scripts fill in are the stored ones of all."""
import json, shutil
import pytest
from browser import Browser
from peers import ROOT, equal
from plugin_pages import content, mu_plugin, settle
from test_plugin_screens import is_stored, raw_fields
from wordpress import Visitor

# A theme: a link to the cart in the head, which WooCommerce's script replaces; by query, what others print of it.
THEME = '''
function theme_cart_link() { echo '<a class="cart">', WC()->cart->get_cart_contents_count(), ' items</a>'; }
add_filter('woocommerce_add_to_cart_fragments', function ($fragments) { ob_start(); theme_cart_link(); $fragments['a.cart'] = ob_get_clean(); return $fragments; });
function theme_part($print) { ob_start(); $print(); return ob_get_clean(); }
add_filter('woocommerce_add_to_cart_fragments', fn($fragments) => $fragments + array('i.sum' => WC()->cart->get_cart_contents_count(), 'i.part' => theme_part('theme_cart_link')));
add_action('wp_enqueue_scripts', function () { if (!isset($_GET['no_script'])) wp_enqueue_script('wc-cart-fragments', '/fragments.js', array(), '1', true); });
add_action('wp_body_open', function () {
    if (isset($_GET['link']) || isset($_GET['no_script'])) theme_cart_link();
    if (isset($_GET['block'])) echo Automattic\\WooCommerce\\Blocks\\mini_cart();
    if (isset($_GET['bare'])) echo 'own count: ', WC()->cart->get_cart_contents_count();
    if (isset($_GET['part'])) echo theme_part('theme_cart_link');
    if (isset($_GET['other_part'])) echo theme_part(function () { echo 'own count: ', WC()->cart->get_cart_contents_count(); });
    if (isset($_GET['early'])) echo $GLOBALS['early'];
    if (isset($_GET['name'])) echo apply_filters('woocommerce_customer_get_first_name', 'Ann');
    if (isset($_GET['nonce'])) wp_nonce_field('woocommerce-login');
    if (isset($_GET['viewed'])) the_widget('WC_Widget_Recently_Viewed', array('title' => 'Seen', 'number' => 7), array('before_widget' => '<section class="own">', 'after_widget' => '</section>', 'before_title' => '<h2>', 'after_title' => '</h2>'));
});
add_action('init', function () {
    if (isset($_GET['early'])) $GLOBALS['early'] = WC()->cart->is_empty() ? 'empty' : 'full';
    if (isset($_GET['add'])) { WC()->session->begin('cart-of-' . $_GET['add']); WC()->cart->add($_GET['add']); }
    foreach (array('notice' => 'wc_notices', 'country' => 'customer', 'other' => 'another_plugin') as $name => $key)
        if (isset($_GET[$name])) { WC()->session->set($key, array('notice' => $_GET[$name], 'country' => $_GET[$name])); wp_redirect('/'); exit; }
    if (isset($_GET['reset'])) foreach (array('customer', 'another_plugin') as $key) WC()->session->set($key, null);
}, 20);
'''
SAME = ['/', '/post-one/', '/category/hill/', '/feed/', '/wp-json/wp/v2/posts', '/?link', '/?block', '/?s=text', '/wp-sitemap.xml', '/?viewed', '/?part']
OWN = ['/?bare', '/?other_part', '/?early', '/?name', '/?nonce', '/?no_script']


def shopper(site, name):
    visitor = Visitor(site)
    visitor.ask(f'/?add={name}', 'POST')
    equal(set(visitor.cookies), {'woocommerce_items_in_cart', 'wp_woocommerce_session_1'})
    return visitor


@pytest.fixture(scope='module')
def shop(site):
    content(site)
    shutil.copytree(ROOT / 'tests/woocommerce', site.folder / 'www/wp-content/plugins/woocommerce')
    site.php("require_once ABSPATH . 'wp-admin/includes/plugin.php'; activate_plugin('woocommerce/woocommerce.php');")
    settle(site)
    with mu_plugin(site, THEME):
        site.yorozu('purge', '--all')
        yield site


def test_shoppers_have_hits_where_a_page_is_the_same(shop):
    ann, bob = shopper(shop, 'ann'), shopper(shop, 'bob')
    for path in SAME + OWN:
        assert is_stored(shop, path), path
    for path in SAME:
        stored = shop.get(path).body
        equal([(who.ask(path).cache, who.ask(path).body) for who in (ann, bob)], [('HIT', stored)] * 2, path)
    for path in OWN:
        stored = shop.get(path).body
        equal([who.ask(path).cache for who in (ann, bob)], ['BYPASS'] * 2, path)
        equal((shop.get(path).cache, shop.get(path).body), ('HIT', stored), path)
    assert b'own count: 1' in ann.ask('/?bare').body and b'own count: 0' in shop.get('/?bare').body
    # A page that is not stored yet is made for the shopper alone.
    assert b'1 items' in ann.ask('/?link&new').body and b'0 items' in shop.get('/?link&new').body
    equal(ann.ask('/?link&new').cache, 'HIT')


def test_who_has_more_than_a_cart_has_pages_of_ones_own(shop):
    ann = shopper(shop, 'ann')
    for what in ('?notice=Added', '?other=EUR', '?country=DE'):
        shop.php(f"update_option('woocommerce_calc_taxes', {int('country' in what)});")
        assert is_stored(shop, '/')
        equal(ann.ask('/').cache, 'HIT')
        ann.ask('/' + what)
        equal(ann.cookies.get('yorozu_own'), '1', what)
        page = ann.ask('/')
        equal((page.cache, b'notice: Added' in page.body), ('BYPASS', 'notice' in what), what)
        # A notice is shown once; the rest is there until it is taken back.
        ann.ask('/?reset')
        equal((ann.cookies.get('yorozu_own'), ann.ask('/').cache), (None, 'HIT'), what)
    for is_taxed, country in ((1, 'FR'), (0, 'DE')):
        shop.php(f"update_option('woocommerce_calc_taxes', {is_taxed});")
        assert is_stored(shop, '/')
        ann.ask('/?country=' + country)
        equal((ann.cookies.get('yorozu_own'), ann.ask('/').cache), (None, 'HIT'), 'an address that changes no taxes')
    assert not any('yorozu_own' in value for _, value in raw_fields(shop, '/?x')), 'a stranger gets the cookie'


def test_products_that_were_viewed_cost_a_fragment_alone(shop):
    cap, hat = json.loads(shop.php("""echo json_encode(array_map(fn($name) => wp_insert_post(array('post_type' => 'product', 'post_title' => $name, 'post_name' => $name, 'post_status' => 'publish')), array('cap', 'hat')));
        update_option('widget_woocommerce_recently_viewed_products', array(2 => array('number' => 5), '_multiwidget' => 1)); update_option('sidebars_widgets', array('sidebar-1' => array('woocommerce_recently_viewed_products-2'))); flush_rewrite_rules();"""))
    for path in ('/product/cap/', '/product/hat/', '/?viewed'):
        assert is_stored(shop, path), path
    browser = Browser()
    try:
        browser.open(shop.url + '/?viewed')
        equal(browser.run("return [document.querySelectorAll('section h2').length, document.cookie]"), [0, ''])
        for path in ('/product/cap/', '/product/hat/', '/product/cap/'):
            browser.open(shop.url + path)
        browser.open(shop.url + '/?viewed')
        equal(browser.text('section.own'), f'Seen\nviewed: {hat}|{cap}, at most 7')
        equal(shop.get('/?viewed', Cookie=f'woocommerce_recently_viewed={cap}').cache, 'HIT')
    finally:
        browser.close()


def test_the_site_may_say_otherwise(shop):
    ann = shopper(shop, 'ann')
    with mu_plugin(shop, THEME + "add_filter('yorozu_is_page_shared', fn($is) => $is && !isset($_GET['club']));"):
        assert is_stored(shop, '/?club')
        equal(ann.ask('/?club').cache, 'BYPASS')
    # mu_plugin() took the theme away with it.
    with mu_plugin(shop, THEME):
        assert is_stored(shop, '/?link&again')
        equal(ann.ask('/?link&again').cache, 'HIT')
