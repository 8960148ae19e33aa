<?php
namespace Automattic\WooCommerce\Blocks;

function mini_cart() {
    return WC()->cart->get_cart_contents_count();
}
