//! What is kept on disk, in the folder of `state_path`, which only the server's user may enter. Of nginx's module, whose
//! files are found:
//!
//! | file | holds |
//! | --- | --- |
//! | `account.key`, `account.url` | the account's key in PKCS#8, and its name with the issuer; only read |
//! | `NAME-HASH.crt`, `.key` | a certificate with those behind it, and its key |
//!
//! and of our own:
//!
//! | file | holds |
//! | --- | --- |
//! | `account-HASH.key`, `.url` | the same for the issuer whose `uri` has this digest: issuers may share a folder |
//! | `NAME-HASH.issuer` | the `uri` of the issuer that the certificate is of |
//! | `NAME-HASH.next.key` | the key of the certificate that is being ordered |
//! | `NAME-HASH.order` | the `uri` of the issuer, and the name of the order under way there |
//! | `lock` | locked by the process that orders |
//!
//! A file has its name only when it was written as a whole. A new certificate takes the place of the old one in three
//! steps, and whoever is interrupted between them is understood: a certificate whose key is the next one's is paired with that.

#![expect(
    clippy::disallowed_methods,
    reason = "small files, read before the server serves, and written by a thread that serves no one"
)]

use crate::certificate::{Order, Shown};
use aws_lc_rs::digest::{Context, SHA256};
use http::Uri;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use yorozu_kernel::config::files::read_regular;
use yorozu_kernel::files::temporary::private_folder;

const ACCOUNT: &str = "account";
const LOCK: &str = "lock";
const PROBE: &str = "probe";

/// A folder that this process has the lock of.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: Flock<File>,
}

/// An account with an issuer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Account {
    /// PEM.
    pub key: String,
    pub url: String,
}

fn text(path: &Path) -> Option<String> {
    String::from_utf8(read_regular(path).ok()?.to_vec()).ok()
}

/// What an account's files are called; one with a key of the operator's is that key's, too.
fn account_name(uri: &str, key: Option<&str>) -> String {
    let mut context = Context::new(&SHA256);
    context.update(uri.as_bytes());
    context.update(key.unwrap_or_default().as_bytes());
    let digest = context.finish();
    let digits = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}"));
    format!("{ACCOUNT}-{}", digits.collect::<String>())
}

/// Whether two addresses are of one server.
fn is_of_same_server(one: &str, other: &str) -> bool {
    let server = |text: &str| {
        let uri: Uri = text.parse().ok()?;
        Some((uri.scheme_str()?.to_owned(), uri.authority()?.to_string()))
    };
    server(one).is_some_and(|one| server(other).is_some_and(|other| one == other))
}

/// A certificate that lies in a folder.
#[derive(Debug)]
pub(crate) struct Found {
    pub shown: Shown,
    /// Whether it is of the issuer that the order is for now.
    pub is_of_issuer: bool,
    /// Whether its key is still called the next one.
    is_half_placed: bool,
}

/// What lies in `folder` for an order.
pub(crate) fn find(folder: &Path, order: &Order) -> Option<Found> {
    let name = order.file_name();
    let file = |end: &str| folder.join(format!("{name}{end}"));
    let chain = text(&file(".crt"))?;
    let pair = |key: &str| Shown::read(chain.clone(), text(&file(key))?, true).ok();
    let (shown, is_half_placed) = match pair(".key") {
        Some(shown) => (shown, false),
        None => (pair(".next.key")?, true),
    };
    // Without the file it is of nginx's module, which has one issuer for a folder.
    let is_of_issuer = text(&file(".issuer")).is_none_or(|uri| uri.trim() == order.uri);
    Some(Found { shown, is_of_issuer, is_half_placed })
}

/// Of other certificates in `folder` the one that holds most of an order's names, and then longest: better than none while
/// the order is new.
pub(crate) fn find_similar(folder: &Path, order: &Order) -> Option<Shown> {
    let ends = |path: &Path| path.extension().is_some_and(|end| end == "crt");
    let paths =
        fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(|path| ends(path));
    let now = crate::certificate::now();
    let read = |path: PathBuf| {
        let shown = Shown::read(text(&path)?, text(&path.with_extension("key"))?, false).ok()?;
        let count = order.identifiers.iter().filter(|name| shown.is_for(name)).count();
        (count > 0 && shown.is_valid(now)).then_some((count, shown))
    };
    let best = paths.filter_map(read).max_by_key(|(count, shown)| (*count, shown.validity.1));
    best.map(|(_, shown)| shown)
}

impl Folder {
    /// Locks a folder, which is made if it is missing; `None`: another process has it.
    ///
    /// # Errors
    /// As the system has it, with the path.
    pub(crate) fn lock(path: &Path) -> Result<Option<Self>, String> {
        let file = path.join(LOCK);
        let failed = |what: &str, path: &Path, problem: &io::Error| {
            format!("{what} \"{}\" failed ({})", path.display(), yorozu_conf::os_error(problem))
        };
        private_folder(path).map_err(|problem| failed("mkdir()", path, &problem))?;
        let opened = new_file().truncate(false).open(&file);
        let opened = opened.map_err(|problem| failed("open()", &file, &problem))?;
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Self { path: path.to_owned(), _lock: lock })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, number)) => Err(failed("flock()", &file, &number.into())),
        }
    }

    /// Writes a file, under its name only as a whole.
    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let place = self.path.join(name);
        // One process writes: what an interrupted one left is written over.
        let beside = self.path.join(format!(".{name}"));
        let written = new_file().truncate(true).open(&beside).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &place)?;
            self.sync()
        });
        written.map_err(|problem| {
            format!("writing \"{}\" failed ({})", place.display(), yorozu_conf::os_error(&problem))
        })
    }

    /// Whether files can be written: what could not be kept is not to be asked for.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.write(PROBE, "")?;
        self.remove(PROBE);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn read(&self, name: &str) -> Option<String> {
        text(&self.path.join(name))
    }

    fn remove(&self, name: &str) {
        // One that is left is written over, or removed the next time.
        let _ = fs::remove_file(self.path.join(name));
    }

    /// The account with an issuer, if it is known; `key` where the operator gave one.
    pub(crate) fn account(&self, uri: &str, key: Option<&str>) -> Option<Account> {
        let name = account_name(uri, key);
        let read = |name: &str| {
            let url = self.read(&format!("{name}.url"))?.trim().to_owned();
            let key = match key {
                Some(key) => key.to_owned(),
                None => self.read(&format!("{name}.key"))?,
            };
            (!url.is_empty()).then_some(Account { key, url })
        };
        // Of nginx's module it is not said which issuer's it is.
        read(&name).or_else(|| read(ACCOUNT).filter(|found| is_of_same_server(&found.url, uri)))
    }

    /// Keeps an account; its key, unless that is a file of the operator's.
    pub(crate) fn keep_account(
        &self,
        uri: &str,
        account: &Account,
        is_own: bool,
    ) -> Result<(), String> {
        let name = account_name(uri, (!is_own).then_some(&*account.key));
        // The issuer's name for it last: without that the rest is no account.
        self.remove(&format!("{name}.url"));
        if is_own {
            self.write(&format!("{name}.key"), &account.key)?;
        }
        self.write(&format!("{name}.url"), &account.url)
    }

    pub(crate) fn forget_account(&self, uri: &str, key: Option<&str>) {
        let name = account_name(uri, key);
        let is_own = self.read(&format!("{name}.url")).is_some();
        self.remove(&format!("{}.url", if is_own { &name } else { ACCOUNT }));
    }

    /// The name of an order under way.
    pub(crate) fn order(&self, order: &Order) -> Option<String> {
        let text = self.read(&format!("{}.order", order.file_name()))?;
        let (uri, url) = text.trim().split_once('\n')?;
        (uri == order.uri).then(|| url.to_owned())
    }

    pub(crate) fn keep_order(&self, order: &Order, url: &str) -> Result<(), String> {
        self.write(&format!("{}.order", order.file_name()), &format!("{}\n{url}\n", order.uri))
    }

    pub(crate) fn forget_order(&self, order: &Order) {
        self.remove(&format!("{}.order", order.file_name()));
    }

    /// The key of the certificate that is being ordered, in PEM.
    pub(crate) fn next_key(&self, order: &Order) -> Option<String> {
        self.read(&format!("{}.next.key", order.file_name()))
    }

    pub(crate) fn keep_next_key(&self, order: &Order, key: &str) -> Result<(), String> {
        self.write(&format!("{}.next.key", order.file_name()), key)
    }

    /// Puts a new certificate, whose key is the next one, in its place.
    pub(crate) fn keep(&self, order: &Order, chain: &str) -> Result<(), String> {
        let name = order.file_name();
        self.write(&format!("{name}.issuer"), &order.uri)?;
        self.write(&format!("{name}.crt"), chain)?;
        self.place_key(order)?;
        self.forget_order(order);
        Ok(())
    }

    fn place_key(&self, order: &Order) -> Result<(), String> {
        let name = order.file_name();
        let (from, to) = (format!("{name}.next.key"), self.path.join(format!("{name}.key")));
        let renamed = fs::rename(self.path.join(from), &to).and_then(|()| self.sync());
        renamed.map_err(|problem| {
            format!("rename() to \"{}\" failed ({})", to.display(), yorozu_conf::os_error(&problem))
        })
    }

    /// Finishes what an interrupted process began.
    pub(crate) fn tidy(&self, order: &Order) -> Result<(), String> {
        match find(&self.path, order) {
            Some(Found { is_half_placed: true, .. }) => {
                self.place_key(order)?;
                self.forget_order(order);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifier::{Identifier, KeyKind};

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("yorozu-acme-{name}.{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn order(folder: &Path, names: &[&str]) -> Order {
        let dns = |name: &&str| Identifier::Dns((*name).to_owned());
        Order {
            issuer: "i".to_owned(),
            uri: "https://ca.example/dir".to_owned(),
            folder: Some(folder.to_owned()),
            identifiers: names.iter().map(dns).collect(),
            key: KeyKind::default(),
        }
    }

    fn made(names: &[&str]) -> Shown {
        Shown::self_signed(&order(Path::new("/"), names).identifiers).unwrap()
    }

    #[test]
    fn one_process_at_a_time_has_the_lock() {
        let temporary = Temporary::new("lock");
        let first = Folder::lock(&temporary.0).unwrap().unwrap();
        assert!(Folder::lock(&temporary.0).unwrap().is_none());
        drop(first);
        assert!(Folder::lock(&temporary.0).unwrap().is_some());
        assert!(
            Folder::lock(Path::new("/proc/none"))
                .unwrap_err()
                .starts_with("mkdir() \"/proc/none\" failed")
        );
    }

    #[test]
    fn an_interruption_at_any_step_leaves_a_certificate_with_its_key() {
        let temporary = Temporary::new("steps");
        let (old, new) = (made(&["a.example"]), made(&["a.example"]));
        let order = order(&temporary.0, &["a.example"]);
        let shown = || find(&temporary.0, &order).map(|found| found.shown.chain);
        let folder = Folder::lock(&temporary.0).unwrap().unwrap();
        let name = order.file_name();
        folder.keep_next_key(&order, &old.key).unwrap();
        folder.keep(&order, &old.chain).unwrap();
        assert_eq!(shown().as_ref(), Some(&old.chain));
        folder.keep_order(&order, "https://ca.example/order/1").unwrap();
        folder.keep_next_key(&order, &new.key).unwrap();
        assert_eq!(shown().as_ref(), Some(&old.chain));
        // A part of a certificate never has its name.
        fs::write(temporary.0.join(format!(".{name}.crt")), &new.chain[..50]).unwrap();
        assert_eq!(shown().as_ref(), Some(&old.chain));
        folder.write(&format!("{name}.crt"), &new.chain).unwrap();
        assert_eq!(shown().as_ref(), Some(&new.chain));
        assert!(folder.order(&order).is_some());
        folder.tidy(&order).unwrap();
        assert_eq!(shown().as_ref(), Some(&new.chain));
        assert_eq!((folder.order(&order), folder.next_key(&order)), (None, None));
        assert_eq!(folder.read(&format!("{name}.key")), Some(new.key));
    }

    #[test]
    fn what_another_issuer_gave_is_known_as_that() {
        let temporary = Temporary::new("issuers");
        let folder = Folder::lock(&temporary.0).unwrap().unwrap();
        let (order, shown) = (order(&temporary.0, &["a.example"]), made(&["a.example"]));
        folder.keep_next_key(&order, &shown.key).unwrap();
        folder.keep(&order, &shown.chain).unwrap();
        assert!(find(&temporary.0, &order).unwrap().is_of_issuer);
        let other = Order { uri: "https://other.example/dir".to_owned(), ..order.clone() };
        assert!(!find(&temporary.0, &other).unwrap().is_of_issuer);
        let account = Account { key: "key".to_owned(), url: "https://ca.example/1".to_owned() };
        folder.keep_account(&order.uri, &account, true).unwrap();
        assert_eq!(folder.account(&order.uri, None), Some(account.clone()));
        assert_eq!(folder.account(&other.uri, None), None);
        // One with the operator's key is that key's.
        folder.keep_account(&order.uri, &account, false).unwrap();
        assert_eq!(folder.account(&order.uri, Some("key")), Some(account.clone()));
        assert_eq!(folder.account(&order.uri, Some("other")), None);
        folder.forget_account(&order.uri, None);
        assert_eq!(folder.account(&order.uri, None), None);
        // As nginx's module has it.
        folder.write("account.key", "key").unwrap();
        folder.write("account.url", "https://ca.example/1").unwrap();
        assert_eq!(folder.account(&order.uri, None), Some(account));
        assert_eq!(folder.account(&other.uri, None), None);
        folder.keep_order(&order, "https://ca.example/order/1").unwrap();
        assert_eq!(folder.order(&order).as_deref(), Some("https://ca.example/order/1"));
        assert_eq!(folder.order(&other), None);
    }

    #[test]
    fn a_similar_certificate_is_better_than_none() {
        let temporary = Temporary::new("similar");
        let folder = Folder::lock(&temporary.0).unwrap().unwrap();
        for names in [&["a.example"][..], &["a.example", "b.example"], &["c.example"]] {
            let (order, shown) = (order(&temporary.0, names), made(names));
            folder.keep_next_key(&order, &shown.key).unwrap();
            folder.keep(&order, &shown.chain).unwrap();
        }
        let new = order(&temporary.0, &["a.example", "b.example", "d.example"]);
        let found = find_similar(&temporary.0, &new).unwrap();
        assert!(new.identifiers[..2].iter().all(|name| found.is_for(name)));
        assert!(find_similar(&temporary.0, &order(&temporary.0, &["d.example"])).is_none());
    }
}
