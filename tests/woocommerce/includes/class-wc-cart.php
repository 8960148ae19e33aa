<?php
class WC_Cart {
    public $cart_contents = array();

    public function load() {
        $this->cart_contents = (array) WC()->session->get('cart', array());
        do_action('woocommerce_cart_loaded_from_session', $this);
        // Each request looks whether the cookies are right.
        add_action('wp', fn() => $this->is_empty());
        add_action('shutdown', fn() => $this->is_empty(), 0);
    }

    public function get_cart() {
        return apply_filters('woocommerce_get_cart_contents', $this->cart_contents);
    }

    public function is_empty() {
        return array() === $this->get_cart();
    }

    public function get_cart_contents_count() {
        return count($this->get_cart());
    }

    public function add($what) {
        $this->cart_contents[] = $what;
        WC()->session->set('cart', $this->cart_contents);
        setcookie('woocommerce_items_in_cart', '1', 0, '/');
        do_action('woocommerce_set_cart_cookies', true);
    }
}
