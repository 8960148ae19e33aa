//! Every constant bound of the program, with unit and source.

use std::time::Duration;

/// Time between two beats of a worker's pulse; shorter than the usual timeouts of connections.
pub const PULSE: Duration = Duration::from_secs(20);
/// A piece of memory that gets whole pages from the allocator, in bytes; chosen.
pub const LARGE_PIECE_BYTES: usize = 4 * 1024 * 1024;
/// What has been free for so long the allocator gives back; a little more than mimalloc's `purge_delay`.
pub const UNUSED_AFTER: Duration = Duration::from_millis(1100);
/// Largest window of flow control in HTTP/2, in bytes (RFC 9113, section 6.9.1).
pub const H2_WINDOW_MAX: u32 = (1 << 31) - 1;
/// Largest frame every HTTP/2 client takes, in bytes (RFC 9113, section 4.2).
pub const H2_FRAME_BYTES: usize = 16 * 1024;
/// A shorter piece of a response waits for those that are there behind it, in bytes; nginx's `postpone_output`.
pub const H2_SMALL_BYTES: usize = 1460;
/// How long an HTTP/2 stream stays open whose response is over before its request is; chosen.
pub const H2_LINGERING: Duration = Duration::from_millis(100);
/// How long a client may take to answer the PING behind the first GOAWAY of an HTTP/2 connection; chosen: streams that it
/// began before it knew are answered meanwhile.
pub const H2_FAREWELL: Duration = Duration::from_secs(1);
/// How long the end of an HTTP/3 stream is waited for behind a head that announces no content; chosen: clients send it with
/// the head, or at once.
pub const H3_END_WAIT: Duration = Duration::from_millis(10);
/// Bytes of a response that wait for the client in one HTTP/2 stream; chosen: several frames.
pub const H2_SEND_BYTES: usize = 256 * 1024;
/// Streams a client may give up before it counts whether it is more than every second; chosen.
pub const H2_RESETS_MIN: u64 = 100;
/// QUIC handshakes of one worker and address at once; chosen. Above half of that clients have to prove their addresses.
pub const QUIC_HANDSHAKES_MAX: usize = 1024;
/// First packets of clients that wait for a worker, and bytes behind them; chosen.
pub const QUIC_INCOMING_MAX: usize = 1024;
pub const QUIC_INCOMING_BYTES: u64 = 8 * 1024 * 1024;
/// How long a token proves an address; as nginx's `NGX_QUIC_NEW_TOKEN_LIFETIME`.
pub const QUIC_TOKEN_LIFETIME: Duration = Duration::from_secs(600);
/// Bytes of the least and of the largest datagram of a QUIC connection; the least is RFC 9000's (section 14), the largest a
/// third of what may be under way when a connection begins (RFC 9002, section 7.2): with one that looks for the MTU, and one
/// more, the library would send no others, the end of the connection among them.
pub const QUIC_DATAGRAM_BYTES: (u16, u16) = (1200, 14_720 / 3);
/// Bytes of responses that one QUIC connection has sent and the client did not acknowledge, or that wait; chosen: 100 Mbit/s
/// over 80 ms.
pub const QUIC_SEND_BYTES: u64 = 1024 * 1024;
/// Worker threads; chosen above any machine this runs on.
pub const WORKERS_MAX: u64 = 1024;
/// Rewrites and internal redirects of one request; nginx's `NGX_HTTP_MAX_URI_CHANGES`.
pub const URI_CHANGES_MAX: u32 = 10;
/// MIME types in one block; chosen.
pub const TYPES_MAX: usize = 65_536;
/// Bytes read from a client at once; chosen: sixteen pages hold any pipelined burst.
pub const READ_BYTES: usize = 64 * 1024;
/// Bytes of a file read and written at once without sendfile; nginx's output_buffers hold as much.
pub const FILE_CHUNK_BYTES: usize = 64 * 1024;
/// Bytes read on the event loop of a file whose system cannot tell whether it would wait; chosen: such a read takes less
/// than waking a thread.
pub const READ_ON_LOOP_BYTES: usize = 16 * 1024;
/// Bytes of a file that are sent by one call; chosen: as much as sockets take at once, and read from a disk before.
pub const SENDFILE_BYTES: usize = 512 * 1024;
/// Bytes of small files that a worker keeps; chosen: style sheets, scripts and icons of some sites.
pub const SMALL_FILES_BYTES: u64 = 16 * 1024 * 1024;
/// How many of them are expected; chosen: of 8 KB each.
pub const SMALL_FILES: usize = 2048;
/// What one of them takes besides its content, about.
pub const SMALL_FILE_OVERHEAD: u64 = 128;
/// For so long a file must not have changed; times of files may be a hundredth of a second late, those of
/// networks' and old file systems two seconds.
pub const SMALL_FILE_SETTLED_SECONDS: i64 = 2;
/// Bytes that wait in a body which is made of others (`ssi`, `add_before_body`, `slice`); chosen, as above.
pub const MADE_AHEAD_BYTES: usize = 64 * 1024;
/// How long connections may take to end that were closed at `worker_shutdown_timeout`; chosen.
pub const ENDING: Duration = Duration::from_millis(500);
/// Connections of one worker to one memcached server; chosen: keys that are slow at the same time are few.
pub const PIPELINES_MAX: usize = 8;
/// How long others wait behind the oldest question of such a connection; chosen: far above what memcached takes for
/// any key, far below what a visitor notices.
pub const PIPELINE_PATIENCE: Duration = Duration::from_millis(25);
/// How deep subrequests make others; as nginx, whose first request counts.
pub const SUBREQUESTS_DEEP: u32 = 51;
/// Subrequests for one answer; chosen above what any page is made of, so that one that includes itself ends.
pub const SUBREQUESTS_MAX: u32 = 10_000;
/// Of those, made at once before it is their turn in the answer; chosen: each may hold [`MADE_AHEAD_BYTES`].
pub const SUBREQUESTS_AHEAD: u32 = 64;
/// What `set` and `block` keep for one answer with server side includes, in bytes; chosen.
pub const SSI_KEPT_BYTES: usize = 1024 * 1024;
/// Access-log bytes of one worker before they are written without waiting for the round's end.
pub const LOG_BATCH_BYTES: usize = 64 * 1024;
/// How long the end of the process waits for the disk to take the last lines of its logs; chosen.
pub const LOG_DRAIN_TIME: Duration = Duration::from_secs(1);
/// Longest content of a request to the control socket or of a batch of purges, in bytes; chosen: ten thousand
/// purges, as many as one request may have, of URLs with long names in other scripts, which are escaped.
pub const CONTROL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Connections waiting to be accepted; the kernel lowers it to net.core.somaxconn.
/// Unlike nginx (511), so that ten thousand clients can arrive at once.
pub const BACKLOG: i32 = 16_384;
/// Pause after the system refused a connection for want of descriptors; nginx's 500 ms.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// What a client has to come to its first request, where its connection's place is wanted; chosen: a handshake takes a few
/// round trips.
pub const BEGINNING: Duration = Duration::from_secs(1);
/// Connections that each socket of a worker may have, whatever those of other sockets have taken; chosen: a purge, a console and
/// some probes at once.
pub const CONNECTIONS_RESERVED: usize = 8;
/// Connections that could be ended for another one, of which the oldest is; chosen: to look at thousands each time is dear.
pub const SPARE_LOOKED_AT: usize = 64;
/// Pause before a worker without room looks again for a connection to end; chosen.
pub const ROOM_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two lines that say that connections ran out; chosen.
pub const FULL_INTERVAL: Duration = Duration::from_secs(10);
/// What panics again within this time, or a worker that ends within it, waits as long before it is begun again; chosen.
pub const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a worker is started again in the place of one that ended soon after its start; chosen.
pub const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// How long a server process that was told to stop may take, until it is ended; chosen. nginx gives workers a second.
pub const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// Longest pause before a server process is started in the place of one that ended; each that ends within
/// [`RESTART_INTERVAL`] doubles it; chosen.
pub const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Workers that end within [`RESTART_INTERVAL`] of their start, one after the other, until the process gives up; chosen.
pub const RESTARTS_MAX: u32 = 10;
/// Longest pause between two rounds of cache housekeeping; nginx's.
pub const CACHE_MANAGER_PAUSE: Duration = Duration::from_secs(10);
/// Pause between two looks for cache files that others delete; chosen.
pub const CACHE_WATCHER_PAUSE: Duration = Duration::from_secs(1);
/// Longest body of a page that is kept in memory; longer ones are answered from their files.
pub use yorozu_cache::BODY_IN_MEMORY_MAX;
/// Bytes of pages of one zone that wait for the disk; what is more is kept in memory alone.
pub use yorozu_cache::WAITING_BYTES_MAX;
/// Stored pages compressed at once, process-wide; chosen to leave a core for serving.
pub const COMPRESSIONS_MAX: usize = 2;
/// Bytes that compress responses on their way, process-wide; what comes then is sent as it is. Chosen: some hundred slow
/// clients with gzip.
pub const CODERS_BYTES: u64 = 128 * 1024 * 1024;
/// `try_files`, `index` and `if (-f)` may look at this many files for one request; chosen.
pub const PATH_BYTES_MAX: usize = 4096;
/// Events taken at one look at the sockets; chosen by measurement: what this many connections and requests hold stays
/// in the core's second cache until their turn is over (docs/decisions/0013).
pub const EVENTS_PER_TURN: usize = 32;
/// Tasks run between two looks at the sockets; chosen: a whole turn's ready connections.
pub const EVENT_INTERVAL: u32 = 256;
/// Rounds of ready tasks, of 61 each, between two looks at the sockets; chosen: enough for all that the events of one
/// look lead to.
pub const ROUNDS_OF_TASKS: usize = 8;
/// Bytes of responses to pipelined requests that are sent together; chosen: several small ones, or one page.
pub const PIPELINED_BYTES: usize = 16 * 1024;
/// With this many answers in one turn, those of the next are sent together; chosen: with fewer, waiting costs more than
/// the caches give.
pub const BATCH_MIN: usize = 4;
/// Threads per worker for work that may block: cache files, compression; chosen.
pub const BLOCKING_THREADS_MAX: usize = 8;
/// Searches of regular expressions whose outcome a worker remembers; chosen: some dozen pages that are asked
/// for all the time, with some dozen expressions each.
pub const REGEX_MEMO: usize = 1024;
/// Longest subject that is remembered; chosen: paths, hosts and most fields, 256 KB in all.
pub const REGEX_MEMO_BYTES: usize = 256;
/// Memory for one search of a regular expression that machine code has no room for, in KiB; chosen: some times what a head
/// of 60 KB needs.
pub const REGEX_HEAP_KIB: usize = 64 << 10;
/// Paths whose location a worker remembers; chosen, as above.
pub const LOCATION_MEMO: usize = 1024;
/// Longest path of those; chosen, as above.
pub const LOCATION_MEMO_BYTES: usize = 256;
/// Longest password that is compared with a hash; as crypt(3), libxcrypt's `CRYPT_MAX_PASSPHRASE_SIZE`: some hashes take
/// time with the square of it.
pub const PASSWORD_BYTES_MAX: usize = 511;
/// Passwords of one worker that are hashed at once; chosen: some of its threads for work that may block stay free.
pub const HASHES_MAX: usize = 2;
/// How long a password waits for those before it; chosen: some hundred good hashes.
pub const HASHING_WAIT: Duration = Duration::from_secs(10);
/// How many variables may need one another in a row; as nginx.
pub const VARIABLES_DEEP: usize = 100;
/// Longest file that a configuration names, in bytes; chosen above any list of networks.
pub const NAMED_FILE_BYTES: u64 = 256 * 1024 * 1024;
/// Names of files that the pattern of an `include` is compared with; chosen above any folder of sites.
pub const GLOB_NAMES: usize = 200_000;
/// How long a named pipe is waited for that holds passwords, and what is read of it; chosen.
pub const PIPE_WAIT: Duration = Duration::from_secs(10);
pub const PIPE_BYTES: u64 = 64 * 1024;
