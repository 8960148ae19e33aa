//! `auth_basic`: a name and a password, by a file of them (RFC 7617).

use super::crypt;
use bytes::Bytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;
use yorozu_kernel::base::limits;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::files::read_regular;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::credentials::basic_credentials;
use yorozu_kernel::exchange::outcome::Permission;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_auth_basic", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `auth_basic string | off`
#[derive(Clone, Debug)]
pub struct Realm(Option<Template>);

impl Setting for Realm {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(match args.word(0) {
            b"off" => None,
            text => Some(Template::compile(text, args.env)?),
        }))
    }
}

/// `auth_basic_user_file`; relative to the configuration's folder.
#[derive(Clone, Debug)]
pub struct UserFile {
    name: Template,
    folder: PathBuf,
}

impl Setting for UserFile {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let name = Template::compile(args.word(0), args.env)?;
        Ok(Self { name, folder: args.env.conf_prefix.clone() })
    }
}

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LIMIT_EXCEPT;

settings! {
    /// The realm for which a visitor must enter a name and a password.
    auth_basic: Realm = "off", ONE, CONTEXTS;
    /// Names and passwords, one per line.
    auth_basic_user_file: Option<UserFile> = none, ONE, CONTEXTS;
}

impl Conf {
    /// Whether a password is asked for.
    pub fn is_on(&self) -> bool {
        self.auth_basic.0.is_some() && self.auth_basic_user_file.is_some()
    }
}

/// What a file says about a name and password.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PasswordCheck {
    Match,
    Mismatch,
    /// The name stands nowhere.
    NoUser,
    NoFile,
    Unreadable,
    /// Others' passwords took too long.
    Crowded,
}

thread_local! {
    /// The worker's hashes under way; a flood of wrong passwords gets no more than that.
    static HASHING: Arc<Semaphore> = Arc::new(Semaphore::new(limits::HASHES_MAX));
}

/// Whether name and password let the client in.
///
/// # Source
/// nginx, `ngx_http_auth_basic_module`.
pub async fn check(exchange: &mut Exchange) -> Permission {
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    let (Some(realm), Some(file)) = (&conf.auth_basic.0, &conf.auth_basic_user_file) else {
        return Permission::NoOpinion;
    };
    let realm = realm.value(exchange);
    if &realm[..] == b"off" {
        return Permission::NoOpinion;
    }
    let name = file.name.value(exchange);
    let path = file.folder.join(OsStr::from_bytes(&name));
    let said = exchange.request.known(exchange.request.known.authorization);
    let Some((user, password)) = said.and_then(basic_credentials) else {
        let text = "no user/password was provided for basic authentication";
        error::request(exchange, Level::Info, text);
        return challenge(exchange, &realm);
    };
    let shown = (error::verbatim(&user).into_owned(), error::path_text(&path).into_owned());
    let found = verify(path, user, password).await;
    let (user, path) = shown;
    match found {
        PasswordCheck::Match => return Permission::Allow,
        PasswordCheck::Crowded => {
            error::request(exchange, Level::Error, "too many passwords wait to be checked");
            return Permission::Refuse(503);
        }
        PasswordCheck::NoFile => {
            let text = format!("open() \"{path}\" failed (2: No such file or directory)");
            error::request(exchange, Level::Error, &text);
            return Permission::Refuse(403);
        }
        PasswordCheck::Unreadable => {
            error::request(exchange, Level::Crit, &format!("open() \"{path}\" failed"));
            return Permission::Refuse(500);
        }
        PasswordCheck::NoUser => {
            let text = format!("user \"{user}\" was not found in \"{path}\"");
            error::request(exchange, Level::Error, &text);
        }
        PasswordCheck::Mismatch => {
            let text = format!("user \"{user}\": password mismatch");
            error::request(exchange, Level::Error, &text);
        }
    }
    challenge(exchange, &realm)
}

fn challenge(exchange: &mut Exchange, realm: &[u8]) -> Permission {
    let value = [b"Basic realm=\"", realm, b"\""].concat();
    exchange.challenges.push((Bytes::from_static(b"WWW-Authenticate"), value.into()));
    Permission::Refuse(401)
}

/// Looks the name up and checks the password.
async fn verify(path: PathBuf, user: Vec<u8>, password: Vec<u8>) -> PasswordCheck {
    let read = tokio::task::spawn_blocking(move || look_up(&path, &user));
    match read.await {
        Ok(Ok(hash)) => compare(password, hash).await,
        Ok(Err(why)) => why,
        Err(_) => PasswordCheck::Unreadable,
    }
}

/// Compares when it is the password's turn. A good hash takes long, on purpose.
async fn compare(mut password: Vec<u8>, hash: Vec<u8>) -> PasswordCheck {
    // It ends where C's does, as with nginx.
    password.truncate(memchr::memchr(0, &password).unwrap_or(password.len()));
    if password.len() > limits::PASSWORD_BYTES_MAX {
        return PasswordCheck::Mismatch;
    }
    let turn = HASHING.with(Arc::clone).acquire_owned();
    let Ok(turn) = tokio::time::timeout(limits::HASHING_WAIT, turn).await else {
        return PasswordCheck::Crowded;
    };
    let work = move || {
        // Held to the end, also when the client leaves before.
        let _turn = turn;
        is_password(&password, &hash)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(true) => PasswordCheck::Match,
        Ok(false) | Err(_) => PasswordCheck::Mismatch,
    }
}

/// The hash of the user's password, or why there is none.
fn look_up(path: &std::path::Path, user: &[u8]) -> Result<Vec<u8>, PasswordCheck> {
    let text = read_regular(path).map_err(|problem| match problem.kind() {
        std::io::ErrorKind::NotFound => PasswordCheck::NoFile,
        _ => PasswordCheck::Unreadable,
    })?;
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (name, hash) = (parts.next().unwrap_or_default(), parts.next());
        if name.starts_with(b"#") || name != user {
            continue;
        }
        if let Some(hash) = hash {
            return Ok(hash.to_vec());
        }
    }
    Err(PasswordCheck::NoUser)
}

/// Whether the password has this hash: `$apr1$`, `{PLAIN}`, `{SHA}`, `{SSHA}` as nginx has them, and those of
/// crypt(3).
fn is_password(password: &[u8], hash: &[u8]) -> bool {
    let same = |a: &[u8], b: &[u8]| aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok();
    let sha1 = |parts: &[&[u8]]| {
        let algorithm = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
        aws_lc_rs::digest::digest(algorithm, &parts.concat())
    };
    if let Some(plain) = hash.strip_prefix(b"{PLAIN}") {
        return same(password, plain);
    }
    if let Some(encoded) = hash.strip_prefix(b"{SHA}") {
        let wanted =
            yorozu_kernel::exchange::credentials::decode_base64(encoded).unwrap_or_default();
        return same(sha1(&[password]).as_ref(), &wanted);
    }
    if let Some(encoded) = hash.strip_prefix(b"{SSHA}") {
        let wanted =
            yorozu_kernel::exchange::credentials::decode_base64(encoded).unwrap_or_default();
        let Some((digest, salt)) = wanted.split_at_checked(20) else { return false };
        return same(sha1(&[password, salt]).as_ref(), digest);
    }
    if let Some(rest) = hash.strip_prefix(b"$apr1$") {
        let salt = rest.split(|byte| *byte == b'$').next().unwrap_or_default();
        return same(&crypt::md5(b"$apr1$", password, &salt[..salt.len().min(8)]), hash);
    }
    crypt::verify(password, hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by htpasswd, openssl passwd and crypt(3), all of "secret".
    const HASHES: [&str; 9] = [
        "{PLAIN}secret",
        "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
        "{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0",
        "$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0",
        "$1$saltsalt$9xy1btjgzLYfb7hivXtC//",
        "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA",
        "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
        "$2y$05$29nHkV/8DltVEzee13D1XeZboM/1fOjhjcNoZyw0/lodd/wQ6LmgC",
        "abNANd1rDfiNc",
    ];

    #[test]
    fn passwords_in_every_form_are_known() {
        for hash in HASHES {
            assert!(is_password(b"secret", hash.as_bytes()), "{hash}");
            assert!(!is_password(b"Secret", hash.as_bytes()), "{hash}");
            assert!(!is_password(b"", hash.as_bytes()), "{hash}");
        }
        assert!(!is_password(b"secret", b""));
        assert!(!is_password(b"secret", b"{SSHA}short"));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_password_waits_its_turn_but_not_for_ever() {
        let ask = || compare(b"secret".to_vec(), HASHES[0].into());
        let all = u32::try_from(limits::HASHES_MAX).unwrap();
        let others = HASHING.with(Arc::clone).acquire_many_owned(all).await.unwrap();
        assert_eq!(ask().await, PasswordCheck::Crowded);
        #[expect(clippy::disallowed_methods, reason = "a test without a worker")]
        let waiting = tokio::spawn(ask());
        tokio::task::yield_now().await;
        drop(others);
        assert_eq!(waiting.await.unwrap(), PasswordCheck::Match);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_password_longer_than_crypt_takes_is_nobodys() {
        let long = vec![b'x'; limits::PASSWORD_BYTES_MAX + 1];
        let plain = [b"{PLAIN}", &long[..]].concat();
        assert!(is_password(&long, &plain));
        assert_eq!(compare(long.clone(), plain).await, PasswordCheck::Mismatch);
        let (shorter, hash) = (long[1..].to_vec(), [b"{PLAIN}", &long[1..]].concat());
        assert_eq!(compare(shorter, hash).await, PasswordCheck::Match);
    }
}
