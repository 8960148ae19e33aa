<?php
/**
 * WordPress's object cache: Redis, or APCu where Redis does not answer, or nothing but the request's own
 * memory. The site works whichever of them is there; copied to wp-content/ by stack/run.
 *
 * Keys are `salt:epoch:blog:group:key`. A flush begins another epoch, so that other programs' keys in the
 * same Redis stay; what is left behind is evicted (maxmemory-policy allkeys-lru).
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
	/** Seconds to wait for Redis before the site goes on without it. */
	const TIMEOUT = 0.5;

	private Redis $redis;

	/** @throws RedisException Redis does not answer. */
	public function __construct( string $socket ) {
		$this->redis = new Redis();
		// Kept by PHP from one request to the next. The connection gets its timeout as it is made: where the kept
		// one does not answer, pconnect() makes another, throws nevertheless, and keeps that one for the next request.
		if ( ! @$this->redis->pconnect( $socket, 0, self::TIMEOUT, null, 0, self::TIMEOUT ) ) {
			throw new RedisException( 'no connection' );
		}
		$this->redis->setOption( Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP );
	}

	/** @throws RedisException Redis does not answer; a stopped one takes connections all the same. */
	public function ping(): void {
		$this->ask( fn() => $this->redis->ping() );
	}

	public function get( array $keys ): array {
		$found = array();
		foreach ( array_combine( $keys, $this->ask( fn() => $this->redis->mget( $keys ) ) ) as $key => $packed ) {
			// Packed in an array, so that a stored false differs from a missing key.
			if ( is_array( $packed ) ) {
				$found[ $key ] = $packed[0];
			}
		}
		return $found;
	}

	public function set( string $key, $value, int $ttl ): bool {
		$options = $ttl > 0 ? array( 'ex' => $ttl ) : array();
		return (bool) $this->ask( fn() => $this->redis->set( $key, array( $value ), $options ) );
	}

	public function add( string $key, $value, int $ttl ): bool {
		$options = $ttl > 0 ? array( 'nx', 'ex' => $ttl ) : array( 'nx' );
		return (bool) $this->ask( fn() => $this->redis->set( $key, array( $value ), $options ) );
	}

	public function delete( string $key ): bool {
		return (bool) $this->ask( fn() => $this->redis->del( $key ) );
	}

	/** @throws RedisException No answer, or an error for an answer. */
	private function ask( callable $question ) {
		try {
			$this->redis->clearLastError();
			$answer = $question();
			if ( null !== $this->redis->getLastError() ) {
				throw new RedisException( $this->redis->getLastError() );
			}
			return $answer;
		} catch ( RedisException $problem ) {
			// An answer that is late must not be taken for that to the next request's first question.
			$this->redis->close();
			throw $problem;
		}
	}
}

final class Yorozu_APCu_Store implements Yorozu_Object_Store {
	public static function is_there(): bool {
		return function_exists( 'apcu_enabled' ) && apcu_enabled();
	}

	public function get( array $keys ): array {
		return apcu_fetch( $keys ) ?: array();
	}

	public function set( string $key, $value, int $ttl ): bool {
		// What has no room must not leave what was there before.
		return apcu_store( $key, $value, $ttl ) || ( apcu_delete( $key ) && false );
	}

	public function add( string $key, $value, int $ttl ): bool {
		return apcu_add( $key, $value, $ttl );
	}

	public function delete( string $key ): bool {
		return apcu_delete( $key );
	}
}

/**
 * The store that all requests share now, and a part of its keys: "redis 5f0c…" or "apcu 5f0c…".
 *
 * Stores do not hear of each other's changes. So nothing is taken over from one to the next: a process that
 * changes the store begins another epoch, in which nothing is stored yet. It stands in a file, which PHP
 * on the command line sees as well, and which is replaced by a rename: it is read whole or not at all.
 */
final class Yorozu_Epoch {
	const FILE = WP_CONTENT_DIR . '/.object-cache-epoch';

	/** Empty: nothing is shared. */
	public static function read(): string {
		return (string) @file_get_contents( self::FILE );
	}

	public static function is_of_redis( string $epoch ): bool {
		return 0 === strpos( $epoch, 'redis ' );
	}

	/** Another epoch; empty where there is none because it cannot be written. */
	public static function begin( string $store ): string {
		$name  = bin2hex( random_bytes( 8 ) );
		$epoch = "$store $name";
		$file  = self::FILE . ".$name";
		if ( strlen( $epoch ) === @file_put_contents( $file, $epoch ) && @rename( $file, self::FILE ) ) {
			return $epoch;
		}
		self::complain();
		// A full disk has room for a removal: with no epoch nothing is shared, old things neither.
		@unlink( $file );
		@unlink( self::FILE );
		return '';
	}

	/** Says once a minute, where it can be known, what is wrong. */
	private static function complain(): void {
		if ( ! Yorozu_APCu_Store::is_there() || apcu_add( self::FILE, true, MINUTE_IN_SECONDS ) ) {
			error_log( 'object cache: cannot write ' . self::FILE . ', so objects are not kept between requests: let PHP write to that folder' );
		}
	}
}

class WP_Object_Cache {
	public $cache_hits   = 0;
	public $cache_misses = 0;

	/** Seconds after which a Redis that failed is asked again. */
	const PAUSE = 2;

	/** What this request has seen: `blog:group:key` => value. */
	private array $seen = array();
	private ?Yorozu_Object_Store $store = null;
	/** What the keys in the store begin with; of the epoch the store is used in. */
	private string $epoch = '';
	/** When Redis was tried; without APCu, each process has to know by itself. */
	private float $tried_at = 0;
	private array $global_groups  = array();
	private array $private_groups = array();
	private string $salt;
	private string $blog;

	public function __construct() {
		$this->salt = defined( 'WP_CACHE_KEY_SALT' ) ? WP_CACHE_KEY_SALT : DB_NAME;
		$this->switch_to_blog( get_current_blog_id() );
		$this->enter( Yorozu_Epoch::read() );
	}

	/** Uses the store of an epoch; begins another if there is none, and when Redis answers again or fails. */
	private function enter( string $epoch ): void {
		$this->epoch = $epoch;
		$this->store = null;
		$is_of_redis = Yorozu_Epoch::is_of_redis( $epoch );
		if ( self::has_redis() && ( $is_of_redis || $this->may_try_again() ) ) {
			try {
				$redis = new Yorozu_Redis_Store( WP_REDIS_SOCKET );
				if ( ! $is_of_redis ) {
					$redis->ping();
					$this->epoch = Yorozu_Epoch::begin( 'redis' );
				}
				$this->store = '' === $this->epoch ? null : $redis;
				return;
			} catch ( RedisException $problem ) {
				if ( $is_of_redis ) {
					$this->leave_redis( $problem );
					return;
				}
			}
		}
		$this->enter_without_redis( $epoch );
	}

	private function enter_without_redis( string $epoch ): void {
		$has_apcu    = Yorozu_APCu_Store::is_there();
		$this->epoch = '' === $epoch && $has_apcu ? Yorozu_Epoch::begin( 'apcu' ) : $epoch;
		$is_usable   = $has_apcu && '' !== $this->epoch && ! Yorozu_Epoch::is_of_redis( $this->epoch );
		$this->store = $is_usable ? new Yorozu_APCu_Store() : null;
	}

	private function leave_redis( RedisException $problem ): void {
		$epoch = Yorozu_Epoch::read();
		// Perhaps another process has left it already.
		if ( '' === $epoch || Yorozu_Epoch::is_of_redis( $epoch ) ) {
			error_log( 'object cache: Redis failed (' . $problem->getMessage() . '), going on without it' );
			$epoch = Yorozu_Epoch::begin( 'apcu' );
			$this->may_try_again();
		}
		$this->enter_without_redis( $epoch );
	}

	/** Whether other requests see what is stored. */
	public function is_shared(): bool {
		return '' !== $this->epoch;
	}

	private static function has_redis(): bool {
		return defined( 'WP_REDIS_SOCKET' ) && class_exists( 'Redis' );
	}

	/** Of all requests one in PAUSE seconds waits for a Redis that may still not answer. */
	private function may_try_again(): bool {
		if ( Yorozu_APCu_Store::is_there() ) {
			return apcu_add( $this->salt . ':redis was tried', true, self::PAUSE );
		}
		$is_due = microtime( true ) - $this->tried_at >= self::PAUSE;
		if ( $is_due ) {
			$this->tried_at = microtime( true );
		}
		return $is_due;
	}

	/** Uses the store; where that is Redis and it fails, the one after it. */
	private function with_store( callable $use, $otherwise ) {
		try {
			return null === $this->store ? $otherwise : $use( $this->store );
		} catch ( RedisException $problem ) {
			$this->leave_redis( $problem );
			return null === $this->store ? $otherwise : $use( $this->store );
		}
	}

	/**
	 * Changes what all requests share. If it did not reach what they read by now, then another epoch begins:
	 * no process keeps what should have been replaced.
	 */
	private function change( callable $use, $otherwise ) {
		$result = $this->with_store( $use, $otherwise );
		$epoch  = Yorozu_Epoch::read();
		if ( null === $this->store ? '' !== $epoch : $epoch !== $this->epoch ) {
			$this->renew( $epoch );
		}
		return $result;
	}

	/** Everybody begins with nothing, in the store that is used now. */
	private function renew( string $epoch ): void {
		$this->enter( Yorozu_Epoch::begin( Yorozu_Epoch::is_of_redis( $epoch ) ? 'redis' : 'apcu' ) );
	}

	/** Then what was read is not what there is, and whether something was written is not known. */
	private static function has_database_failed(): bool {
		global $wpdb;
		return '' !== (string) $wpdb->last_error || ! isset( $wpdb->dbh );
	}

	private function is_private( string $group ): bool {
		return isset( $this->private_groups[ $group ] );
	}

	private function name( $key, $group ): string {
		$group = $group ?: 'default';
		$blog  = isset( $this->global_groups[ $group ] ) ? '' : $this->blog;
		return "{$blog}:{$group}:{$key}";
	}

	/** A name's key in the store; asked for again with each use, as the epoch may change. */
	private function stored( string $name ): string {
		return "{$this->salt}:{$this->epoch}:{$name}";
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
			$fresh = $this->with_store(
				fn( $store ) => $store->get( array_map( array( $this, 'stored' ), $unseen ) ),
				array()
			);
			foreach ( $unseen as $name ) {
				unset( $this->seen[ $name ] );
				if ( array_key_exists( $this->stored( $name ), $fresh ) ) {
					$this->seen[ $name ] = $fresh[ $this->stored( $name ) ];
				}
			}
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
		if ( self::has_database_failed() ) {
			$this->change( fn( $store ) => $store->delete( $this->stored( $name ) ), true );
			return true;
		}
		$ttl = max( 0, (int) $ttl );
		return $this->change( fn( $store ) => $store->set( $this->stored( $name ), $value, $ttl ), true );
	}

	public function add( $key, $value, $group = 'default', $ttl = 0 ) {
		if ( ! self::is_key( $key ) || wp_suspend_cache_addition() ) {
			return false;
		}
		$name = $this->name( $key, $group );
		if ( array_key_exists( $name, $this->seen ) ) {
			return false;
		}
		$ttl      = max( 0, (int) $ttl );
		$is_added = $this->is_private( $group ?: 'default' ) || self::has_database_failed()
			|| $this->with_store( fn( $store ) => $store->add( $this->stored( $name ), $value, $ttl ), true );
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
		return $this->change( fn( $store ) => $store->delete( $this->stored( $name ) ), $was_seen );
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
		$this->seen = array();
		$epoch      = Yorozu_Epoch::read();
		if ( '' !== $epoch ) {
			$this->renew( $epoch );
		}
		return true;
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
	// Without a store, transients belong in the database: the lock of WP-Cron is one. Not before ms-settings.php has been here a
	// second time, which would load WordPress's own cache as well.
	add_action( 'muplugins_loaded', fn() => $GLOBALS['wp_object_cache']->is_shared() || wp_using_ext_object_cache( false ), 0 );
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
