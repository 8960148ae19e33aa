<?php
/*
 * Plugin Name: WooCommerce
 *
 * What tests need of WooCommerce, which is not among Debian's packages: the filters through which a cart is read, from files of the
 * same names, the session and its cookies. Compared with WooCommerce 11.0.1 on 2026-11-30; `make plugins` runs the real one.
 */
require __DIR__ . '/includes/class-wc-cart.php';
require __DIR__ . '/src/Blocks/MiniCart.php';

abstract class WC_Session {
    protected $_data = array();

    public function get($key, $default = null) {
        return isset($this->_data[$key]) ? maybe_unserialize($this->_data[$key]) : $default;
    }

    public function set($key, $value) {
        $this->_data[$key] = maybe_serialize($value);
    }
}

class WC_Session_Handler extends WC_Session {
    private $id, $has_cookie = false;

    public function __construct() {
        $this->id = substr($_COOKIE['wp_woocommerce_session_1'] ?? '', 0, 40);
        $this->_data = $this->id ? (array) get_option("session_$this->id", array()) : array();
        add_action('shutdown', fn() => $this->id && update_option("session_$this->id", $this->_data, false), 20);
        add_filter('nonce_user_logged_out', fn($user, $action = '') => $this->id && str_starts_with((string) $action, 'woocommerce') ? $this->id : $user, 10, 2);
    }

    public function has_session() {
        return isset($_COOKIE['wp_woocommerce_session_1']) || $this->has_cookie;
    }

    public function begin($id) {
        $this->id = $id;
        $this->has_cookie = true;
        setcookie('wp_woocommerce_session_1', $id, 0, '/');
    }
}

class WC_Customer {
    public function get_is_vat_exempt() {
        return false;
    }

    public function get_taxable_address() {
        return array(WC()->session->get('customer', array())['country'] ?? 'GB', '', '', '');
    }
}

final class WooCommerce {
    public $version = '11.0.1', $session, $cart, $customer;

    public static function instance() {
        static $instance;
        return $instance = $instance ?? new self();
    }

    public function plugin_path() {
        return __DIR__;
    }
}

function WC() {
    return WooCommerce::instance();
}

function wc_tax_enabled() {
    return (bool) get_option('woocommerce_calc_taxes');
}

class WC_Tax {
    public static function get_tax_class_slugs() {
        return array('reduced-rate');
    }

    public static function find_rates($of) {
        return 'DE' === $of['country'] && 'reduced-rate' === $of['tax_class'] ? array(7 => array('rate' => 7.0)) : array();
    }
}

function wc_get_customer_default_location() {
    return array('country' => 'GB', 'state' => '');
}

// Both are asked for by their classes alone.
class WC_Widget_Recently_Viewed extends WP_Widget {
    public function __construct() {
        parent::__construct('woocommerce_recently_viewed_products', 'Recently viewed');
    }

    public function widget($args, $instance) {
        if (!empty($_COOKIE['woocommerce_recently_viewed'])) {
            echo '<p class="viewed">viewed: ', esc_html($_COOKIE['woocommerce_recently_viewed']), ', at most ', (int) $instance['number'], '</p>';
        }
    }
}

function wc_track_product_view() {
    if (is_singular('product')) {
        setcookie('woocommerce_recently_viewed', (string) get_the_ID(), 0, '/');
    }
}
add_action('template_redirect', 'wc_track_product_view', 20);
add_action('template_redirect', fn() => isset($_GET['wc-ajax']) && do_action('wc_ajax_' . $_GET['wc-ajax']), 0);

add_action('plugins_loaded', fn() => do_action('woocommerce_loaded'), -1);
add_action('widgets_init', fn() => register_widget('WC_Widget_Recently_Viewed'));
add_action('init', function () {
    register_post_type('product', array('public' => true));
    WC()->session = new WC_Session_Handler();
    WC()->customer = new WC_Customer();
    WC()->cart = new WC_Cart();
    WC()->cart->load();
});
// Notices are shown once, by the first page that is printed.
add_action('wp_body_open', function () {
    foreach (WC()->session->get('wc_notices', array()) as $notice) {
        echo 'notice: ', esc_html($notice);
    }
    if (WC()->session->get('wc_notices')) {
        WC()->session->set('wc_notices', null);
    }
});
