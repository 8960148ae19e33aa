<?php
/**
 * WordPress's object cache: Redis, or APCu where Redis does not answer, or nothing but the request's own
 * memory. The site works whichever of them is there; copied to wp-content/ by stack/run.
 *
 * Keys are `salt:generation:blog:group:key`. A flush takes another generation, so that nobody else's
 * keys in the same Redis go with it; what is left behind is evicted (maxmemory-policy allkeys-lru).
 */

defined( 'ABSPATH' ) || exit;

/** Values shared by all requests. Keys are strings; a missing key is absent from what get() returns. */
interface Yorozu_Object_Store {
	public function get( array $keys ): array;
	public function set( string $key, $value, int $ttl ): bool;
	public function add( string $key, $value, int $ttl ): bool;
	public function delete( string $key ): bool;
}

final class Yorozu_Redis_Store implements Yorozu_Object_Store {
	/** Seconds to wait for Redis before the request goes on without it. */
	const TIMEOUT = 0.3;

	private Redis $redis;

	/** @throws RedisException Redis does not answer. */
	public function __construct( string $socket ) {
		$this->redis = new Redis();
		// Kept by PHP from one request to the next.
		if ( ! @$this->redis->pconnect( $socket, 0, self::TIMEOUT ) ) {
			throw new RedisException( 'no connection' );
		}
		$this->redis->setOption( Redis::OPT_READ_TIMEOUT, self::TIMEOUT );
		$this->redis->setOption( Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP );
	}

	public function get( array $keys ): array {
		$found = array();
		foreach ( array_combine( $keys, $this->redis->mget( $keys ) ) as $key => $packed ) {
			// Packed in an array, so that a stored false is told from a missing key.
			if ( is_array( $packed ) ) {
				$found[ $key ] = $packed[0];
			}
		}
		return $found;
	}

	public function set( string $key, $value, int $ttl ): bool {
		return (bool) $this->redis->set( $key, array( $value ), $ttl > 0 ? array( 'ex' => $ttl ) : array() );
	}

	public function add( string $key, $value, int $ttl ): bool {
		$options = $ttl > 0 ? array( 'nx', 'ex' => $ttl ) : array( 'nx' );
		return (bool) $this->redis->set( $key, array( $value ), $options );
	}

	public function delete( string $key ): bool {
		return (bool) $this->redis->del( $key );
	}
}

final class Yorozu_APCu_Store implements Yorozu_Object_Store {
	public function get( array $keys ): array {
		return apcu_fetch( $keys ) ?: array();
	}

	public function set( string $key, $value, int $ttl ): bool {
		return apcu_store( $key, $value, $ttl );
	}

	public function add( string $key, $value, int $ttl ): bool {
		return apcu_add( $key, $value, $ttl );
	}

	public function delete( string $key ): bool {
		return apcu_delete( $key );
	}
}

class WP_Object_Cache {
	public $cache_hits   = 0;
	public $cache_misses = 0;

	/** What this request has seen: full key => value. */
	private array $seen = array();
	private ?Yorozu_Object_Store $store = null;
	private array $global_groups  = array();
	private array $private_groups = array();
	private string $salt;
	private string $generation;
	private string $blog;

	public function __construct() {
		$this->salt = defined( 'WP_CACHE_KEY_SALT' ) ? WP_CACHE_KEY_SALT : DB_NAME;
		$this->switch_to_blog( get_current_blog_id() );
		$this->store      = $this->open();
		$this->generation = $this->read_generation();
	}

	private function open(): ?Yorozu_Object_Store {
		if ( defined( 'WP_REDIS_SOCKET' ) && class_exists( 'Redis' ) ) {
			try {
				return new Yorozu_Redis_Store( WP_REDIS_SOCKET );
			} catch ( RedisException $problem ) {
				error_log( 'object cache: Redis does not answer (' . $problem->getMessage() . '), going on without it' );
			}
		}
		return function_exists( 'apcu_enabled' ) && apcu_enabled() ? new Yorozu_APCu_Store() : null;
	}

	/** Uses the store; a failure ends its use for this request. */
	private function with_store( callable $use, $otherwise ) {
		if ( null === $this->store ) {
			return $otherwise;
		}
		try {
			return $use( $this->store );
		} catch ( RedisException $problem ) {
			error_log( 'object cache: Redis failed (' . $problem->getMessage() . '), going on without it' );
			$this->store = null;
			return $otherwise;
		}
	}

	private function read_generation(): string {
		$name  = $this->salt . ':generation';
		$found = $this->with_store( fn( $store ) => $store->get( array( $name ) ), array() );
		return (string) ( $found[ $name ] ?? '0' );
	}

	private function is_private( string $group ): bool {
		return isset( $this->private_groups[ $group ] );
	}

	private function name( $key, $group ): string {
		$group = $group ?: 'default';
		$blog  = isset( $this->global_groups[ $group ] ) ? '' : $this->blog;
		return "{$this->salt}:{$this->generation}:{$blog}:{$group}:{$key}";
	}

	private static function own( $value ) {
		return is_object( $value ) ? clone $value : $value;
	}

	private static function is_key( $key ): bool {
		return is_int( $key ) || ( is_string( $key ) && '' !== trim( $key ) );
	}

	public function get( $key, $group = 'default', $force = false, &$found = null ) {
		if ( ! self::is_key( $key ) ) {
			$found = false;
			return false;
		}
		$values = $this->get_names( array( $key => $this->name( $key, $group ) ), $group, $force );
		$found  = array_key_exists( $key, $values );
		return $found ? $values[ $key ] : false;
	}

	public function get_multiple( $keys, $group = 'default', $force = false ) {
		$names = array();
		foreach ( $keys as $key ) {
			$names[ $key ] = $this->name( $key, $group );
		}
		$values = $this->get_names( $names, $group, $force );
		$result = array();
		foreach ( $keys as $key ) {
			$result[ $key ] = array_key_exists( $key, $values ) ? $values[ $key ] : false;
		}
		return $result;
	}

	/** Values of `key => full name`; missing ones are absent. */
	private function get_names( array $names, $group, $force ): array {
		$is_private = $this->is_private( $group ?: 'default' );
		$unseen     = $is_private ? array() : array_filter(
			$names,
			fn( $name ) => $force || ! array_key_exists( $name, $this->seen )
		);
		if ( $unseen ) {
			$fresh = $this->with_store( fn( $store ) => $store->get( array_values( $unseen ) ), array() );
			foreach ( $unseen as $name ) {
				unset( $this->seen[ $name ] );
			}
			$this->seen = $fresh + $this->seen;
		}
		$values = array();
		foreach ( $names as $key => $name ) {
			if ( array_key_exists( $name, $this->seen ) ) {
				++$this->cache_hits;
				$values[ $key ] = self::own( $this->seen[ $name ] );
			} else {
				++$this->cache_misses;
			}
		}
		return $values;
	}

	public function set( $key, $value, $group = 'default', $ttl = 0 ) {
		if ( ! self::is_key( $key ) ) {
			return false;
		}
		$name                = $this->name( $key, $group );
		$this->seen[ $name ] = self::own( $value );
		if ( $this->is_private( $group ?: 'default' ) ) {
			return true;
		}
		return $this->with_store( fn( $store ) => $store->set( $name, $value, max( 0, (int) $ttl ) ), true );
	}

	public function add( $key, $value, $group = 'default', $ttl = 0 ) {
		if ( ! self::is_key( $key ) || wp_suspend_cache_addition() ) {
			return false;
		}
		$name = $this->name( $key, $group );
		if ( array_key_exists( $name, $this->seen ) ) {
			return false;
		}
		$is_added = $this->is_private( $group ?: 'default' )
			|| $this->with_store( fn( $store ) => $store->add( $name, $value, max( 0, (int) $ttl ) ), true );
		if ( $is_added ) {
			$this->seen[ $name ] = self::own( $value );
		}
		return $is_added;
	}

	public function replace( $key, $value, $group = 'default', $ttl = 0 ) {
		$this->get( $key, $group, false, $found );
		return $found && $this->set( $key, $value, $group, $ttl );
	}

	public function delete( $key, $group = 'default' ) {
		if ( ! self::is_key( $key ) ) {
			return false;
		}
		$name     = $this->name( $key, $group );
		$was_seen = array_key_exists( $name, $this->seen );
		unset( $this->seen[ $name ] );
		if ( $this->is_private( $group ?: 'default' ) ) {
			return $was_seen;
		}
		return $this->with_store( fn( $store ) => $store->delete( $name ), $was_seen );
	}

	public function incr( $key, $offset = 1, $group = 'default' ) {
		$value = $this->get( $key, $group, true, $found );
		if ( ! $found ) {
			return false;
		}
		$value = max( 0, ( is_numeric( $value ) ? (int) $value : 0 ) + (int) $offset );
		$this->set( $key, $value, $group );
		return $value;
	}

	public function decr( $key, $offset = 1, $group = 'default' ) {
		return $this->incr( $key, -(int) $offset, $group );
	}

	public function flush() {
		$this->seen       = array();
		$this->generation = uniqid();
		$name             = $this->salt . ':generation';
		return $this->with_store( fn( $store ) => $store->set( $name, $this->generation, 0 ), true );
	}

	public function flush_runtime() {
		$this->seen = array();
		return true;
	}

	public function add_global_groups( $groups ) {
		$this->global_groups += array_fill_keys( (array) $groups, true );
	}

	public function add_non_persistent_groups( $groups ) {
		$this->private_groups += array_fill_keys( (array) $groups, true );
	}

	public function switch_to_blog( $blog ) {
		$this->blog = is_multisite() ? (string) $blog : '';
	}
}

function wp_cache_init() {
	$GLOBALS['wp_object_cache'] = new WP_Object_Cache();
}

function wp_cache_add( $key, $data, $group = '', $expire = 0 ) {
	return $GLOBALS['wp_object_cache']->add( $key, $data, $group, $expire );
}

function wp_cache_add_multiple( array $data, $group = '', $expire = 0 ) {
	$result = array();
	foreach ( $data as $key => $value ) {
		$result[ $key ] = wp_cache_add( $key, $value, $group, $expire );
	}
	return $result;
}

function wp_cache_replace( $key, $data, $group = '', $expire = 0 ) {
	return $GLOBALS['wp_object_cache']->replace( $key, $data, $group, $expire );
}

function wp_cache_set( $key, $data, $group = '', $expire = 0 ) {
	return $GLOBALS['wp_object_cache']->set( $key, $data, $group, $expire );
}

function wp_cache_set_multiple( array $data, $group = '', $expire = 0 ) {
	$result = array();
	foreach ( $data as $key => $value ) {
		$result[ $key ] = wp_cache_set( $key, $value, $group, $expire );
	}
	return $result;
}

function wp_cache_get( $key, $group = '', $force = false, &$found = null ) {
	return $GLOBALS['wp_object_cache']->get( $key, $group, $force, $found );
}

function wp_cache_get_multiple( $keys, $group = '', $force = false ) {
	return $GLOBALS['wp_object_cache']->get_multiple( $keys, $group, $force );
}

function wp_cache_delete( $key, $group = '' ) {
	return $GLOBALS['wp_object_cache']->delete( $key, $group );
}

function wp_cache_delete_multiple( array $keys, $group = '' ) {
	$result = array();
	foreach ( $keys as $key ) {
		$result[ $key ] = wp_cache_delete( $key, $group );
	}
	return $result;
}

function wp_cache_incr( $key, $offset = 1, $group = '' ) {
	return $GLOBALS['wp_object_cache']->incr( $key, $offset, $group );
}

function wp_cache_decr( $key, $offset = 1, $group = '' ) {
	return $GLOBALS['wp_object_cache']->decr( $key, $offset, $group );
}

function wp_cache_flush() {
	return $GLOBALS['wp_object_cache']->flush();
}

function wp_cache_flush_runtime() {
	return $GLOBALS['wp_object_cache']->flush_runtime();
}

function wp_cache_supports( $feature ) {
	$features = array( 'add_multiple', 'set_multiple', 'get_multiple', 'delete_multiple', 'flush_runtime' );
	return in_array( $feature, $features, true );
}

function wp_cache_close() {
	return true;
}

function wp_cache_add_global_groups( $groups ) {
	$GLOBALS['wp_object_cache']->add_global_groups( $groups );
}

function wp_cache_add_non_persistent_groups( $groups ) {
	$GLOBALS['wp_object_cache']->add_non_persistent_groups( $groups );
}

function wp_cache_switch_to_blog( $blog_id ) {
	$GLOBALS['wp_object_cache']->switch_to_blog( $blog_id );
}

function wp_cache_reset() {
	$GLOBALS['wp_object_cache']->flush_runtime();
}
