"""What real plugins do to the pages of a site: `make plugins PLUGINS=folder`, where the folder has `plugins` and `themes` as wp-content has.

For each plugin that is there: which pages strangers have as hits, whether one of them shows what a visitor did, and which are stale, or were
refreshed needlessly, after each of the plugin's own changes. The rows of the table, and what they sum up, go to target/tests/plugins. WORDPRESS names the
WordPress.
"""
import contextlib, dataclasses, json, os, pathlib, re, shutil, subprocess, time
import pytest
from browser import Browser
from conftest import LOGS
from peers import equal, until
import plugin_pages
from plugin_pages import all_of, settle
from wordpress import Site, Visitor

FOLDER = pathlib.Path(os.environ.get('PLUGINS') or pytest.skip('PLUGINS names no folder', allow_module_level=True))


def nothing(site, ids):
    return {}


@dataclasses.dataclass
class Row:
    """A plugin in a site. `made` is PHP that prints a JSON object; its values stand for `{name}` in what follows. A visit is what a visitor
    does, which returns the words that no stranger may read."""
    name: str
    main: str
    pages: list
    changes: dict
    made: str = 'echo "{}";'
    theme: str = ''
    visit: object = nothing
    # Pages that are one visitor's, or are not to be stored.
    own: list = dataclasses.field(default_factory=list)
    # Before WordPress is there, as for a request of wp-admin.
    before: str = ''
    is_admin_needed: bool = False
    # JavaScript for the number of things in the cart, as a browser shows it.
    in_cart: str = ''


# What differs each time that a page is made.
NOISE = re.compile(rb'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|data-(timestamp|token)="\w+"|quantity_\w{13}|[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}')
# Related products are drawn at random.
STEADY = '''<?php add_filter('woocommerce_product_related_posts_shuffle', '__return_false');
add_filter('woocommerce_output_related_products_args', fn($args) => array('orderby' => 'id') + $args, PHP_INT_MAX);'''

POST = """$write = fn($title, $text, $type = 'page', $more = array()) => wp_insert_post(array('post_title' => $title, 'post_name' => sanitize_title($title),
    'post_content' => $text, 'post_type' => $type, 'post_status' => 'publish') + $more);"""

SHOP = POST + """
WC_Install::create_pages();
foreach (array('woocommerce_coming_soon' => 'no', 'woocommerce_currency' => 'EUR', 'woocommerce_task_list_hidden' => 'yes', 'woocommerce_enable_reviews' => 'yes',
    'woocommerce_default_customer_address' => 'base', 'woocommerce_permalinks' => array('product_base' => 'product')) as $name => $value) update_option($name, $value);
$wear = wp_insert_term('Wear', 'product_cat')['term_id'];
$make = function ($name, $price) use ($wear) {
    $product = new WC_Product_Simple();
    $product->set_props(array('name' => $name, 'slug' => sanitize_title($name), 'regular_price' => $price, 'category_ids' => array($wear),
        'manage_stock' => true, 'stock_quantity' => 5, 'status' => 'publish'));
    return $product->save();
};
$cap = $make('Cap', '10'); $hat = $make('Hat', '20'); $scarf = $make('Scarf', '30');
$coat = new WC_Product_Variable();
$size = new WC_Product_Attribute();
$size->set_name('Size'); $size->set_options(array('S', 'L')); $size->set_visible(true); $size->set_variation(true);
$coat->set_props(array('name' => 'Coat', 'slug' => 'coat', 'status' => 'publish', 'category_ids' => array($wear), 'attributes' => array($size)));
$coat = $coat->save();
foreach (array('S' => '90', 'L' => '95') as $name => $price) {
    $one = new WC_Product_Variation();
    $one->set_props(array('parent_id' => $coat, 'attributes' => array('size' => $name), 'regular_price' => $price, 'status' => 'publish'));
    $large = $one->save();
}
WC_Product_Variable::sync($coat);
$group = new WC_Product_Grouped();
$group->set_props(array('name' => 'Set', 'slug' => 'set', 'status' => 'publish', 'children' => array($cap, $hat)));
$group->save();
$write('Offers', '[sale_products]'); $write('Featured', '[featured_products]'); $write('Cheap', '[products orderby="price" limit="2"]');
$write('Blocks', '<!-- wp:woocommerce/product-collection {"queryId":0,"query":{"perPage":9,"pages":0,"offset":0,"postType":"product","order":"asc","orderBy":"title","inherit":false,"woocommerceOnSale":true,"woocommerceStockStatus":["instock","onbackorder"]}} --><div class="wp-block-woocommerce-product-collection"><!-- wp:woocommerce/product-template --><!-- wp:post-title /--><!-- wp:woocommerce/product-price /--><!-- /wp:woocommerce/product-template --></div><!-- /wp:woocommerce/product-collection -->');
flush_rewrite_rules();
echo json_encode(compact('cap', 'hat', 'scarf', 'coat', 'large', 'wear'));"""

PRODUCT = "$product = wc_get_product({%s}); $product->%s; $product->save();"


def shop(site, ids):
    shopper = Visitor(site)
    shopper.ask('/product/hat/')
    answer = shopper.ask(f"/?add-to-cart={ids['scarf']}&quantity=3")
    assert any('items_in_cart' in name for name in shopper.cookies), (answer.status, shopper.cookies)
    for path in ('/cart/', '/shop/', '/', '/product/scarf/', '/checkout/', '/a-quiet-machine/'):
        shopper.ask(path)
    return {'shopper': shopper}


SHOP_PAGES = ['/', '/a-quiet-machine/', '/feed/', '/shop/', '/shop/?orderby=price', '/shop/?min_price=15&max_price=40', '/product/cap/', '/product/hat/', '/product/scarf/', '/product/coat/',
              '/product/set/', '/product-category/wear/', '/offers/', '/featured/', '/cheap/', '/blocks/', '/wp-json/wc/store/v1/products', '/wp-json/wc/store/v1/products/{cap}',
              '/wp-json/wc/store/v1/products?on_sale=true', '/wp-json/wc/store/v1/products/collection-data?calculate_price_range=true', '/wp-sitemap-posts-product-1.xml']
SHOP_CHANGES = {
    'price': PRODUCT % ('cap', "set_regular_price('12')"),
    'sale': PRODUCT % ('hat', "set_sale_price('15')"),
    'end of the sale': PRODUCT % ('hat', "set_sale_price('')"),
    'stock': PRODUCT % ('cap', 'set_stock_quantity(2)'),
    'out of stock': PRODUCT % ('cap', 'set_stock_quantity(0)'),
    'in stock again': PRODUCT % ('cap', 'set_stock_quantity(4)'),
    'hide what is out of stock': "update_option('woocommerce_hide_out_of_stock_items', 'yes'); $product = wc_get_product({scarf}); $product->set_stock_quantity(0); $product->save();",
    'shown again': PRODUCT % ('scarf', 'set_stock_quantity(3)'),
    'hidden': PRODUCT % ('scarf', "set_catalog_visibility('hidden')"),
    'visible': PRODUCT % ('scarf', "set_catalog_visibility('visible')"),
    'featured': PRODUCT % ('hat', 'set_featured(true)'),
    'price of a variation': PRODUCT % ('large', "set_regular_price('99')"),
    'an order': "$order = wc_create_order(); $order->add_product(wc_get_product({hat}), 2); $order->calculate_totals(); $order->payment_complete();",
    'review': "wp_insert_comment(array('comment_post_ID' => {cap}, 'comment_type' => 'review', 'comment_content' => 'Fits.', 'comment_author' => 'Ann', 'comment_approved' => 1, 'comment_meta' => array('rating' => 4)));",
    'name of the category': "wp_update_term({wear}, 'product_cat', array('name' => 'Clothes'));",
    'menu order': PRODUCT % ('scarf', 'set_menu_order(-1)'),
    'new product': "$product = new WC_Product_Simple(); $product->set_props(array('name' => 'Belt', 'slug' => 'belt', 'regular_price' => '5', 'category_ids' => array({wear}), 'status' => 'publish')); $product->save();",
    'trashed': "wc_get_product(get_page_by_path('belt', OBJECT, 'product')->ID)->delete();",
    'currency': "update_option('woocommerce_currency', 'CHF');",
    'store notice': "update_option('woocommerce_demo_store_notice', 'Closed in May'); update_option('woocommerce_demo_store', 'yes');",
}


def views_of_shoppers(site, row, ids, pages):
    """Puts things into the carts of two browsers; the views of pages in these and in a stranger's that came from the cache, and those that do
    not show the visitor's own cart."""
    hits, wrong, products = 0, {}, ('Cap', 'Hat', 'Scarf')
    with contextlib.ExitStack() as stack:
        shoppers = [(stack.enter_context(contextlib.closing(Browser())), wanted) for wanted in (1, 2, 0)]
        for (browser, wanted), product in zip(shoppers, products):
            browser.open(site.url + '/shop/')
            for number in range(wanted):
                browser.click(f'[data-product_id="{ids[product.lower()]}"].add_to_cart_button')
                browser.wait(lambda: browser.run(row.in_cart) == number + 1, f'{number + 1} in the cart')
        for path in pages:
            assert is_ever_hit(site, path)
            for browser, wanted in shoppers:
                since = len(site.log())
                browser.open(site.url + path)
                try:
                    browser.wait(lambda: browser.run(row.in_cart) == wanted, f'{wanted} in the cart')
                except AssertionError:
                    wrong.setdefault(path, []).append([wanted, browser.run(row.in_cart)])
                line = rf'"GET {re.escape(path)} HTTP/1.1" 200 .* (\w+) [\d.]+$'
                until(f'{path} in the log', lambda: re.search(line, site.log()[since:], re.M))
                hits += re.search(line, site.log()[since:], re.M)[1] == 'HIT'
        # At the end each looks into the cart.
        for (browser, wanted), product in zip(shoppers, products):
            browser.open(site.url + '/cart/')
            # An empty one offers products.
            inside = lambda: [name for name in products if name in browser.text('main')] * ('empty' not in browser.text('main'))
            browser.wait(lambda: inside() == [product][:wanted], f'{[product][:wanted]} in the cart: {inside()}')
    return hits, (len(pages) + 1) * len(shoppers), wrong


def edd_buyer(site, ids):
    buyer = Visitor(site)
    buyer.ask('/downloads/song/')
    answer = buyer.ask('/?edd_action=add_to_cart&download_id=%d' % ids['song'])
    for path in ('/kasse/', '/danke/', '/', '/downloads/song/', '/verlauf/'):
        buyer.ask(path)
    assert any(name.startswith('edd_') for name in buyer.cookies), (answer.status, answer.fields, buyer.cookies)
    return {'buyer': buyer}


def edd_currency(site):
    """As the screen of settings saves it."""
    admin = Visitor(site).log_in()
    screen = '/wp-admin/edit.php?post_type=download&page=edd-settings&tab=payments&section=currency'
    form = admin.ask(screen).body.decode()
    nonce = re.search(r'name="_wpnonce" value="(\w+)"', form)[1]
    answer = admin.ask('/wp-admin/options.php', 'POST', {'option_page': 'edd_settings', 'action': 'update', '_wpnonce': nonce, '_wp_http_referer': screen,
                                                        'edd_settings[currency]': 'EUR', 'edd_tab_override': 'payments', 'edd_section_override': 'currency'})
    equal((answer.status, site.php("echo edd_get_option('currency');")), (302, 'EUR'))


ROWS = [
    Row('woocommerce', 'woocommerce/woocommerce.php', SHOP_PAGES, SHOP_CHANGES, SHOP, 'storefront', shop, ['/cart/', '/checkout/', '/my-account/'],
        in_cart="return +(document.querySelector('.site-header .cart-contents .count')?.innerText.match(/\\d+/) ?? '-1')"),
    Row('woocommerce', 'woocommerce/woocommerce.php', SHOP_PAGES, SHOP_CHANGES, SHOP, 'twentytwentyfive', shop, ['/cart/', '/checkout/', '/my-account/'],
        in_cart="return +(document.querySelector('.wc-block-mini-cart__badge')?.innerText || 0)"),
    Row('easy-digital-downloads', 'easy-digital-downloads/easy-digital-downloads.php', ['/', '/downloads/song/', '/list/', '/downloads/'], {
        'price': "update_post_meta({song}, 'edd_price', '3.00');",
        'price, saved': "update_post_meta({song}, 'edd_price', '4.00'); wp_update_post(array('ID' => {song}));",
        'name': "wp_update_post(array('ID' => {song}, 'post_title' => 'Tune'));",
        'currency': edd_currency,
    }, POST + """
        $song = $write('Song', 'La la.', 'download'); update_post_meta($song, 'edd_price', '2.00');
        $kasse = $write('Kasse', '[download_checkout]'); $danke = $write('Danke', '[edd_receipt]'); $verlauf = $write('Verlauf', '[purchase_history]'); $write('List', '[downloads]');
        edd_update_option('purchase_page', $kasse); edd_update_option('success_page', $danke); edd_update_option('purchase_history_page', $verlauf);
        flush_rewrite_rules(); echo json_encode(compact('song'));""", visit=edd_buyer, own=['/kasse/', '/danke/', '/verlauf/'], is_admin_needed=True),
    Row('bbpress', 'bbpress/bbpress.php', ['/', '/forums/', '{forum_path}', '{topic_path}', '/forums/search/?bbp_search=secret'], {
        'reply': "$id = bbp_insert_reply(array('post_parent' => {topic}, 'post_content' => 'A reply.', 'post_status' => 'publish', 'post_author' => 1), array('topic_id' => {topic}, 'forum_id' => {forum}));",
        'new topic': "bbp_insert_topic(array('post_parent' => {forum}, 'post_title' => 'Second', 'post_content' => 'More.', 'post_status' => 'publish', 'post_author' => 1), array('forum_id' => {forum}));",
        'closed': 'bbp_close_topic({topic});',
        'sticky': 'bbp_stick_topic({topic});',
        'spam': "bbp_spam_topic({other});",
        'hidden forum': 'bbp_hide_forum({forum});',
    }, """$forum = bbp_insert_forum(array('post_title' => 'Forum', 'post_status' => 'publish'));
        $make = fn($title) => bbp_insert_topic(array('post_parent' => $forum, 'post_title' => $title, 'post_content' => 'secret text', 'post_status' => 'publish', 'post_author' => 1), array('forum_id' => $forum));
        $topic = $make('Topic'); $other = $make('Other'); flush_rewrite_rules();
        $forum_path = wp_make_link_relative(get_permalink($forum)); $topic_path = wp_make_link_relative(get_permalink($topic));
        echo json_encode(compact('forum', 'topic', 'other', 'forum_path', 'topic_path'));"""),
    Row('contact-form-7', 'contact-form-7/wp-contact-form-7.php', ['/', '/contact/', '/a-quiet-machine/', '/wp-json/contact-form-7/v1/contact-forms/{form}/feedback/schema'], {
        'form': "$form = wpcf7_contact_form({form}); $form->set_properties(array('form' => '[text* your-name] [submit \"Send it\"]')); $form->save();",
        'title of the form': "$form = wpcf7_contact_form({form}); $form->set_title('Other'); $form->save();",
        'messages': "$form = wpcf7_contact_form({form}); $form->set_properties(array('messages' => array('invalid_required' => 'Fill it in.') + $form->prop('messages'))); $form->save();",
    }, POST + """$form = WPCF7_ContactForm::get_template(array('title' => 'Form')); $form->save(); $form = $form->id();
        $write('Contact', '[contact-form-7 id="' . $form . '" title="Form"]'); flush_rewrite_rules(); echo json_encode(compact('form'));"""),
    Row('polylang', 'polylang/polylang.php', ['/', '/de/', '/a-quiet-machine/', '/de/hallo/', '/feed/', '/wp-sitemap.xml'], {
        'text': "wp_update_post(array('ID' => {hallo}, 'post_content' => 'Neu.'));",
        'translation': POST + "$id = $write('Neues', 'Deutsch.', 'post'); pll_set_post_language($id, 'de'); pll_save_post_translations(array('en' => {quiet}, 'de' => $id));",
        'name of a language': "$lang = PLL()->model->get_language('de'); PLL()->model->languages->update(array('lang_id' => $lang->term_id, 'name' => 'German', 'slug' => 'de', 'locale' => 'de_DE', 'rtl' => 0, 'term_group' => 1));",
    }, POST + """foreach (array(array('English', 'en', 'en_US', 0), array('Deutsch', 'de', 'de_DE', 1)) as list($name, $slug, $locale, $order))
            PLL()->model->languages->add(array('name' => $name, 'slug' => $slug, 'locale' => $locale, 'rtl' => 0, 'term_group' => $order));
        $quiet = get_page_by_path('a-quiet-machine', OBJECT, 'post')->ID;
        foreach (get_posts(array('post_type' => array('post', 'page'), 'numberposts' => -1, 'lang' => '')) as $one) pll_set_post_language($one->ID, 'en');
        $hallo = $write('Hallo', 'Deutsch.', 'post'); pll_set_post_language($hallo, 'de');
        flush_rewrite_rules(); echo json_encode(compact('quiet', 'hallo'));""", before="define('WP_ADMIN', true);"),
    Row('elementor', 'elementor/elementor.php', ['/', '/built/', '/about/', '/a-quiet-machine/'], {
        'text of a widget': "$data = json_encode(json_decode(str_replace('Hello', 'Good day', get_post_meta({built}, '_elementor_data', true)))); update_post_meta({built}, '_elementor_data', wp_slash($data));",
        'saved in the editor': "wp_set_current_user(1); $d = \\Elementor\\Plugin::$instance->documents->get({built}); $d->save(array('elements' => json_decode(str_replace('Good day', 'Good night', get_post_meta({built}, '_elementor_data', true)), true)));",
        'global colour': "wp_set_current_user(1); $kit = \\Elementor\\Plugin::$instance->kits_manager->get_active_kit(); $kit->update_settings(array('system_colors' => array(array('_id' => 'primary', 'title' => 'Primary', 'color' => '#FF0000'))));",
        'template in a shortcode': "$t = str_replace('Template', 'Pattern', get_post_meta({template}, '_elementor_data', true)); wp_set_current_user(1); \\Elementor\\Plugin::$instance->documents->get({template})->save(array('elements' => json_decode($t, true)));",
        'files cleared': "\\Elementor\\Plugin::$instance->files_manager->clear_cache();",
    }, POST + """wp_set_current_user(1);
        $data = fn($text) => array(array('id' => 'abc1234', 'elType' => 'section', 'isInner' => false, 'settings' => array(), 'elements' => array(array('id' => 'abc1235', 'elType' => 'column', 'isInner' => false,
            'settings' => array('_column_size' => 100), 'elements' => array(array('id' => 'abc1236', 'elType' => 'widget', 'widgetType' => 'heading', 'isInner' => false, 'settings' => array('title' => $text), 'elements' => array()))))));
        $make = function ($title, $text, $type, $more) use ($write, $data) {
            $id = $write($title, '', $type);
            foreach ($more + array('_elementor_edit_mode' => 'builder', '_elementor_version' => ELEMENTOR_VERSION) as $name => $value) update_post_meta($id, $name, $value);
            \\Elementor\\Plugin::$instance->documents->get($id)->save(array('elements' => $data($text)));
            return $id;
        };
        $built = $make('Built', 'Hello', 'page', array('_elementor_template_type' => 'wp-page'));
        $template = $make('Piece', 'Template', 'elementor_library', array('_elementor_template_type' => 'section'));
        $write('About', '<!-- wp:shortcode -->[elementor-template id="' . $template . '"]<!-- /wp:shortcode -->');
        flush_rewrite_rules(); echo json_encode(compact('built', 'template'));"""),
    *(Row(name, main, ['/', '/a-quiet-machine/', *maps], {
        'new page': POST + "$write('Fresh', 'New.');",
        'text': "wp_update_post(array('ID' => get_page_by_path('a-quiet-machine', OBJECT, 'post')->ID, 'post_content' => 'Other.'));",
        'title of a post': "wp_update_post(array('ID' => get_page_by_path('a-quiet-machine', OBJECT, 'post')->ID, 'post_title' => 'Louder'));",
        'trashed': "wp_trash_post(get_page_by_path('fresh')->ID);",
        'a post': POST + "$write('Today', 'x', 'post');",
    }, POST + more + "flush_rewrite_rules(); echo '{}';", is_admin_needed=True) for name, main, maps, more in (
        ('wordpress-seo', 'wordpress-seo/wp-seo.php', ['/sitemap_index.xml', '/page-sitemap.xml', '/post-sitemap.xml', '/category-sitemap.xml'], ''),
        ('seo-by-rank-math', 'seo-by-rank-math/rank-math.php', ['/sitemap_index.xml', '/page-sitemap.xml', '/post-sitemap.xml'], "update_option('rank_math_modules', array('sitemap')); update_option('rank_math_registration_skip', 1); "),
        ('all-in-one-seo-pack', 'all-in-one-seo-pack/all_in_one_seo_pack.php', ['/sitemap.xml', '/post-sitemap.xml', '/page-sitemap.xml'], ''),
    )),
    *(Row(name, main, ['/', '/a-quiet-machine/', '/feed/', '/wp-json/wp/v2/posts', *more], {
        'text': "wp_update_post(array('ID' => get_page_by_path('a-quiet-machine', OBJECT, 'post')->ID, 'post_content' => 'Other.'));", **changes}, made, is_admin_needed=True) for name, main, more, made, changes in (
        ('complianz-gdpr', 'complianz-gdpr/complianz-gpdr.php', ['/wp-json/complianz/v1/banner'], "echo '{}';", {}),
        ('cookie-notice', 'cookie-notice/cookie-notice.php', [], "echo '{}';", {}),
        ('cookie-law-info', 'cookie-law-info/cookie-law-info.php', [], "echo '{}';", {}),
        ('litespeed-cache', 'litespeed-cache/litespeed-cache.php', [], "echo '{}';", {'purge of all': "do_action('litespeed_purge_all');"}),
        ('autoptimize', 'autoptimize/autoptimize.php', [], "update_option('autoptimize_css', 'on'); update_option('autoptimize_js', 'on'); echo '{}';", {'files deleted': 'autoptimizeCache::clearall();'}),
        ('wp-statistics', 'wp-statistics/wp-statistics.php', [], "echo '{}';", {}),
        ('advanced-custom-fields', 'advanced-custom-fields/acf.php', ['/shows/'], POST + """
            acf_add_local_field_group(array('key' => 'group_a', 'title' => 'A', 'fields' => array(array('key' => 'field_a', 'name' => 'hours', 'type' => 'text')), 'location' => array()));
            $place = $write('Place', 'x', 'post'); update_field('field_a', 'Nine', $place);
            file_put_contents(WPMU_PLUGIN_DIR . '/shows.php', "<?php add_shortcode('hours', fn() => get_field('hours', $place));");
            $write('Shows', '[hours]'); flush_rewrite_rules(); echo json_encode(compact('place'));""", {'a field of another post': "update_field('hours', 'Ten', {place});"}),
        ('the-events-calendar', 'the-events-calendar/the-events-calendar.php', ['/events/', '/event/fair/'], POST + """
            $fair = tribe_events()->set_args(array('title' => 'Fair', 'status' => 'publish', 'start_date' => '+3 days 10:00', 'duration' => HOUR_IN_SECONDS))->create()->ID; flush_rewrite_rules(); echo json_encode(compact('fair'));""",
            {'another day': "tribe_events()->where('id', {fair})->set('start_date', '+5 days 10:00')->set('end_date', '+5 days 11:00')->save();"}),
        ('buddypress', 'buddypress/bp-loader.php', [], "echo '{}';", {}),
        ('redis-cache', 'redis-cache/redis-cache.php', [], "echo '{}';", {}),
        ('w3-total-cache', 'w3-total-cache/w3-total-cache.php', [], "echo '{}';", {}),
        ('wpforms-lite', 'wpforms-lite/wpforms.php', ['/ask/'], POST + """
            $form = wpforms()->obj('form')->add('Form', array(), array('template' => 'simple-contact-form-template')); $write('Ask', '[wpforms id="' . $form . '"]'); flush_rewrite_rules(); echo json_encode(compact('form'));""",
            {'form': "$data = wpforms()->obj('form')->get({form}, array('content_only' => true, 'cap' => false)); $data['settings']['submit_text'] = 'Send it'; wpforms()->obj('form')->update({form}, $data, array('cap' => false));"}),
    )),
]


def page(answer):
    return quiet(plugin_pages.page(answer))


def quiet(seen):
    return *seen[:2], NOISE.sub(b'', seen[2])


def fresh(site, path):
    return quiet(plugin_pages.fresh(site, path))


def visited(site, path):
    cache, first, now = plugin_pages.visited(site, path)
    return cache, quiet(first), quiet(now)


def filled(text, ids):
    return re.sub(r'\{(\w+)\}', lambda found: str(ids[found[1]]) if found[1] in ids else found[0], text)


def begun(row, installed):
    """A site with a plugin; what its set-up printed."""
    site = Site(installed)
    content = site.folder / 'www/wp-content'
    shutil.copytree(FOLDER / 'plugins' / row.name, content / 'plugins' / row.name)
    if row.theme:
        shutil.copytree(FOLDER / 'themes' / row.theme, content / 'themes' / row.theme, dirs_exist_ok=True)
    (content / 'mu-plugins').mkdir()
    (content / 'mu-plugins/steady.php').write_text(STEADY)
    # Plugins write to .htaccess.
    subprocess.run(['chown', '-R', 'www-data', content, site.folder / 'www'], check=True)
    site.php("require_once ABSPATH . 'wp-admin/includes/plugin.php'; $problem = activate_plugin('%s'); if (is_wp_error($problem)) throw new Exception($problem->get_error_message());" % row.main
             + (f"switch_theme('{row.theme}');" if row.theme else ''))
    if row.is_admin_needed:
        admin = Visitor(site).log_in()
        for path in ('/wp-admin/', '/wp-admin/plugins.php'):
            admin.ask(path)
    ids = json.loads(re.search(r'\{.*\}$|\[\]$', site.php(row.made, row.before))[0]) or {}
    # The rules of what the set-up has made are known from the next request on.
    site.php('flush_rewrite_rules();')
    settle(site)
    # Some plugins write styles and templates with the first page, and those right only if it is a known user's.
    admin = Visitor(site).log_in()
    for path in row.pages:
        admin.ask(filled(path, ids))
        fresh(site, filled(path, ids))
    return site, ids


def is_ever_hit(site, path):
    for _ in range(5):
        answer = site.get(path)
        if answer.cache == 'HIT':
            return True
        time.sleep(0.2)
    return False


def version(row):
    head = (FOLDER / 'plugins' / row.main).read_text(errors='replace')[:8000]
    return re.search(r'^[ \t/*#@]*Version:\s*(\S+)', head, re.M)[1]


def name_of(row):
    return row.name + (f'-{row.theme}' if row.theme else '')


@pytest.mark.parametrize('row', [pytest.param(row, id=name_of(row)) for row in ROWS if (FOLDER / 'plugins' / row.name).is_dir()])
def test_plugin(row, installed):
    site, ids = begun(row, installed)
    try:
        found = found_in(site, row, ids)
    finally:
        site.end()
    shoppers = f"{found['shoppers']} of {found['views']}" if row.in_cart else ''
    line = f"| {row.name} {version(row)}{' with ' + row.theme if row.theme else ''} | {found['hits']} of {found['pages']} | {shoppers} | {found['leaks'] or 'none'} | {found['stale'] or 'none'} | {found['needless']} of {found['spared']} |"
    (LOGS / 'plugins').mkdir(parents=True, exist_ok=True)
    (LOGS / 'plugins' / f'{name_of(row)}.json').write_text(json.dumps(found, indent=1))
    (LOGS / 'plugins' / f'{name_of(row)}.md').write_text(line + '\n')
    print(line)
    equal((found['leaks'], found['stale'], found.get('wrong', {})), ({}, {}, {}))
    assert found.get('shoppers', 1) >= 0.8 * found.get('views', 1), found


def found_in(site, row, ids):
    pages = [filled(path, ids) for path in row.pages]
    hits = [path for path in pages if is_ever_hit(site, path)]
    found = dict(pages=len(pages), hits=len(hits), never=[path for path in pages if path not in hits], leaks={}, stale={}, needless=0, needlessly={}, spared=0)
    found['answers'] = {path: [site.get(path).status, site.get(path).fields.get('set-cookie')] for path in pages}
    for path in row.own:
        if is_ever_hit(site, path):
            found['leaks'][path] = 'is stored'
    found['visitors'] = {name: visitor.cookies for name, visitor in row.visit(site, ids).items()}
    if row.in_cart:
        shown = [path for path in hits if '/wp-' not in path and 'feed' not in path]
        found['shoppers'], found['views'], found['wrong'] = views_of_shoppers(site, row, ids, shown)
    for path in pages:
        seen = page(site.get(path))
        if seen != fresh(site, path):
            found['leaks'][path] = 'differs after a visit'
    for what, change in row.changes.items():
        for path in hits:
            is_ever_hit(site, path)
        before = {path: page(answer) for path, answer in all_of(site.get, hits).items()}
        change(site) if callable(change) else site.php(filled(change, ids))
        # Some changes are completed by the next visitor.
        fresh(site, '/')
        for path, (cache, first, now) in all_of(lambda path: visited(site, path), before).items():
            is_same = before[path] == now
            found['spared'] += is_same
            if is_same and cache != 'HIT':
                found['needless'] += 1
                found['needlessly'].setdefault(what, []).append(path)
            elif cache == 'HIT' and first != now and page(site.get(path)) != fresh(site, path):
                found['stale'].setdefault(what, []).append(path)
    return found
