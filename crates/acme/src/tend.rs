//! One certificate's task: it waits until something is due, and does it.
//!
//! | stands | next |
//! | --- | --- |
//! | another process has the lock | looks at the disk every few seconds |
//! | not issued | orders at once |
//! | issued | asks the issuer when to renew, where it tells; waits; orders |
//! | failed | orders again after 1, 10, 100 minutes, then a day; or at a reload, if the issuer does not want to be left alone |
//! | refused for what is in the configuration | waits for a reload |

use crate::certificate::{Certificate, Duty, Next, Shown, now};
use crate::challenges::{Challenges, Kind};
use crate::names::Names;
use crate::order::Ordering;
use crate::schedule::{self, Attempts};
use crate::session::{Accounts, Failure, Session, open};
use crate::state::{self, Folder};
use instant_acme::Error;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use yorozu_kernel::base::faults;
use yorozu_kernel::logging::error::Level;
use yorozu_tls::pem::key_text;

/// Between two looks at a folder that another process writes to; chosen.
const LOOK: Duration = Duration::from_secs(5);
/// The clock may be set: it is looked at this often at least.
const SLEEP_MAX: Duration = Duration::from_secs(60 * 60);
/// Time for an order from beginning to end; chosen, above what its steps may take.
const ORDER_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Certificates that are ordered at the same time; chosen.
const ORDERS_MAX: usize = 4;
/// The time between two questions when to renew, where the issuer does not say.
const INFO_PAUSE: Duration = Duration::from_secs(12 * 60 * 60);

/// What the tasks of the thread share.
pub(crate) struct Office {
    pub challenges: Arc<Challenges>,
    accounts: Accounts,
    /// Held while an account is taken up: one registers, and the others find it.
    opening: Mutex<()>,
    /// Gone with the last certificate that is kept there.
    folders: RefCell<HashMap<PathBuf, Weak<Folder>>>,
    orders: Semaphore,
    names: Names,
}

impl Office {
    pub(crate) fn new(challenges: Arc<Challenges>) -> Self {
        Self {
            challenges,
            accounts: Accounts::default(),
            opening: Mutex::new(()),
            folders: RefCell::default(),
            orders: Semaphore::new(ORDERS_MAX),
            names: Names::default(),
        }
    }

    /// The folder, locked; `None`: another process has it.
    fn folder(&self, path: &Path) -> Result<Option<Rc<Folder>>, String> {
        let known = self.folders.borrow().get(path).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(Some(known));
        }
        let locked = Folder::lock(path)?.map(Rc::new);
        if let Some(locked) = &locked {
            self.folders.borrow_mut().insert(path.to_owned(), Rc::downgrade(locked));
        }
        Ok(locked)
    }

    async fn session(&self, duty: &Arc<Duty>, folder: Option<&Folder>) -> Result<Session, Failure> {
        let _turn = self.opening.lock().await;
        open(duty, folder, &self.accounts).await
    }
}

/// What the issuer said of the time of renewal.
#[derive(Clone, Copy, Debug, Default)]
struct Renewal {
    at: Option<Duration>,
    window: Option<(Duration, Duration)>,
    ask_at: Duration,
    /// It is not asked before, whatever is reloaded.
    not_before: Duration,
    failures: u32,
}

impl Renewal {
    /// Whether the issuer is asked now when to renew. A time that is further away than any pause was meant by a clock that has
    /// been set back since.
    fn is_to_ask(&self, now: Duration) -> bool {
        now >= self.ask_at || self.ask_at > now + schedule::INFO_PAUSE_MAX
    }
}

/// A certificate that is tended.
struct Tended {
    certificate: Arc<Certificate>,
    office: Rc<Office>,
    folder: Option<Rc<Folder>>,
    renewal: Renewal,
    attempts: Attempts,
    /// Whether it was issued just now, and its time of renewal is not known yet.
    is_new: bool,
}

/// Tends a certificate as long as it is wanted.
pub(crate) async fn tend(certificate: Arc<Certificate>, office: Rc<Office>) {
    let mut reread = certificate.reread();
    let mut tended = Tended {
        certificate,
        office,
        folder: None,
        renewal: Renewal::default(),
        attempts: Attempts::default(),
        is_new: false,
    };
    loop {
        reread.borrow_and_update();
        faults::point("acme");
        let pause = tended.step().await;
        let is_waiting = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause.min(SLEEP_MAX)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = is_waiting => {}
            changed = reread.changed() => {
                if changed.is_err() {
                    return;
                }
                // What was wrong may be repaired.
                tended.certificate.note(|standing| standing.failures = 0);
                tended.attempts.reloaded();
                tended.renewal.ask_at = tended.renewal.ask_at.min(tended.renewal.not_before);
            }
        }
    }
}

impl Tended {
    /// Does what is due; the time until the next look, `None` for a reload.
    async fn step(&mut self) -> Option<Duration> {
        let certificate = Arc::clone(&self.certificate);
        let duty = certificate.duty()?;
        if let Some(path) = certificate.order.folder.clone() {
            match self.hold(&path) {
                Ok(true) => {}
                Ok(false) => {
                    take_up(&certificate);
                    certificate.note(|standing| standing.next = Next::Other);
                    return Some(LOOK);
                }
                Err(text) => return Some(self.fail(&Failure::from(text)).unwrap_or(LOOK)),
            }
        }
        let shown = certificate.shown().filter(|shown| shown.is_issued);
        if let Some(shown) = shown {
            let renew_at = self.renew_at(&duty, &shown).await;
            let is_interrupted = self
                .folder
                .as_ref()
                .is_some_and(|folder| folder.order(&certificate.order).is_some());
            let left = renew_at.saturating_sub(now());
            let is_new = std::mem::take(&mut self.is_new);
            if is_new && schedule::is_too_soon(shown.validity, left) {
                let end = yorozu_tls::x509::date(shown.validity.1);
                let text = format!(
                    "the certificate, valid until {end}, is due for renewal as soon as it was issued"
                );
                return self.fail(&Failure::from(text)).map(|pause| pause.max(left));
            }
            if !left.is_zero() && !is_interrupted {
                certificate.note(|standing| {
                    standing.next = Next::Renew(renew_at);
                    standing.failures = 0;
                    standing.last_error = None;
                });
                return Some(left.min(self.renewal.ask_at.saturating_sub(now())).max(LOOK));
            }
        }
        let left = self.attempts.left(Instant::now());
        if !left.is_zero() {
            certificate.note(|standing| standing.next = Next::Order(now() + left));
            return Some(left);
        }
        match self.order(&duty).await {
            Ok(shown) => {
                let end = shown.validity.1;
                // The count of failures stays: this certificate may be one.
                certificate.note(|standing| standing.last_error = None);
                certificate.show(shown);
                self.renewal = Renewal::default();
                self.is_new = true;
                let text =
                    format!("certificate issued, valid until {}", yorozu_tls::x509::date(end));
                certificate.log(Level::Notice, &text);
                Some(Duration::ZERO)
            }
            Err(failure) => self.fail(&failure),
        }
    }

    /// Whether this process has the folder.
    fn hold(&mut self, path: &Path) -> Result<bool, String> {
        if self.folder.is_some() {
            return Ok(true);
        }
        self.folder = self.office.folder(path)?;
        let Some(folder) = &self.folder else { return Ok(false) };
        folder.tidy(&self.certificate.order)?;
        // The process that had it before may have put another one there.
        take_up(&self.certificate);
        Ok(true)
    }

    async fn order(&self, duty: &Arc<Duty>) -> Result<Shown, Failure> {
        // Before the turn: who waits for names keeps no other order waiting.
        let _names = match duty.issuer.challenge {
            Kind::Http => None,
            Kind::TlsAlpn => {
                Some(self.office.names.take(&self.certificate.order.identifiers).await)
            }
        };
        let _turn = self.office.orders.acquire().await;
        self.certificate.note(|standing| standing.next = Next::Ordering);
        let folder = self.folder.as_deref();
        folder.map_or(Ok(()), Folder::check)?;
        let work = async {
            let session = self.office.session(duty, folder).await?;
            let (certificate, challenges) = (&*self.certificate, &self.office.challenges);
            let ordering = Ordering { certificate, duty, session: &session, folder, challenges };
            ordering.run().await
        };
        let late = || Err(Failure::from("the order is not done in time".to_owned()));
        let got = tokio::time::timeout(ORDER_TIMEOUT, work).await.unwrap_or_else(|_| late());
        if got.as_ref().is_err_and(|why| why.kind.as_deref() == Some("accountDoesNotExist")) {
            // The next attempt registers another one.
            let issuer = &duty.issuer;
            let own = issuer.account_key.as_ref().map(|key| key_text(&key.0));
            let uri = issuer.uri.to_string();
            folder.iter().for_each(|folder| folder.forget_account(&uri, own.as_deref()));
            self.office.accounts.forget(&duty.issuer);
        }
        got
    }

    /// Notes a failure; the time until the next attempt.
    fn fail(&mut self, failure: &Failure) -> Option<Duration> {
        let certificate = &self.certificate;
        let pause = schedule::pause(certificate.standing().failures + 1, fastrand::f64());
        let pause = self.attempts.failed(Instant::now(), pause, failure.retry_after);
        let next = match failure.is_final {
            true => Next::Reload,
            false => Next::Order(now() + pause),
        };
        certificate.note(|standing| {
            standing.failures += 1;
            standing.last_error = Some(failure.text.clone());
            standing.next = next;
        });
        let (level, then) = match failure.is_final {
            true => (Level::Error, "not tried again before a reload".to_owned()),
            false => (Level::Warn, format!("next attempt in {} s", pause.as_secs())),
        };
        certificate.log(level, &format!("{} while updating certificate, {then}", failure.text));
        (!failure.is_final).then_some(pause)
    }

    /// When to renew: as the issuer says, or else by the certificate's life.
    async fn renew_at(&mut self, duty: &Arc<Duty>, shown: &Shown) -> Duration {
        if self.renewal.is_to_ask(now()) {
            self.ask(duty, shown).await;
        }
        let at = self
            .renewal
            .at
            .get_or_insert_with(|| schedule::renewal(shown.validity, fastrand::f64()));
        *at
    }

    async fn ask(&mut self, duty: &Arc<Duty>, shown: &Shown) {
        self.renewal.not_before = now() + schedule::info_pause(Duration::ZERO);
        let failed = match self.window(duty, shown).await {
            Ok(Some((window, pause))) => {
                self.renewal.ask_at = now() + pause;
                self.renewal.failures = 0;
                if window.0 >= window.1 || window.1 > shown.validity.1 + INFO_PAUSE * 2 {
                    "invalid renewal window".to_owned()
                } else {
                    self.note_window(window, shown);
                    return;
                }
            }
            // It does not tell.
            Ok(None) => {
                self.renewal.ask_at = now() + INFO_PAUSE;
                return;
            }
            Err(failure) => {
                self.renewal.failures += 1;
                let pause = schedule::pause(self.renewal.failures, fastrand::f64());
                let alone = schedule::info_pause(failure.retry_after.unwrap_or_default());
                self.renewal.not_before = now() + alone;
                self.renewal.ask_at = now() + pause.min(INFO_PAUSE).max(alone);
                failure.text
            }
        };
        self.certificate.log(Level::Warn, &format!("{failed} while updating renewal info"));
    }

    fn note_window(&mut self, window: (Duration, Duration), shown: &Shown) {
        // A time that was drawn stays as long as the window does.
        if self.renewal.window != Some(window) {
            self.renewal.window = Some(window);
            let chance = fastrand::f64();
            self.renewal.at = Some(match self.is_new {
                true => schedule::within_of_new(window, shown.validity, now(), chance),
                false => schedule::within(window, chance),
            });
            let date = yorozu_tls::x509::date;
            let text =
                format!("CA suggested renewal window: {} - {}", date(window.0), date(window.1));
            self.certificate.log(Level::Info, &text);
        }
    }

    /// The issuer's window for the renewal, and the time until it is asked again; `None` if it tells none.
    async fn window(
        &self,
        duty: &Arc<Duty>,
        shown: &Shown,
    ) -> Result<Option<((Duration, Duration), Duration)>, Failure> {
        let Some(identifier) = shown.identifier() else { return Ok(None) };
        let session = self.office.session(duty, self.folder.as_deref()).await?;
        let seconds = |time: i64| Duration::from_secs(u64::try_from(time).unwrap_or_default());
        match session.account.renewal_info(&identifier).await {
            Ok((info, pause)) => {
                let window = info.suggested_window;
                let window =
                    (seconds(window.start.unix_timestamp()), seconds(window.end.unix_timestamp()));
                Ok(Some((window, schedule::info_pause(pause))))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(Failure::of(&error, &session.sight, &[])),
        }
    }
}

/// Takes up what lies on the disk, where that is another one than is shown.
pub(crate) fn take_up(certificate: &Certificate) -> bool {
    let order = &certificate.order;
    let Some(found) = order.folder.as_deref().and_then(|folder| state::find(folder, order)) else {
        return false;
    };
    let shown = certificate.shown();
    if shown.is_none_or(|shown| shown.chain != found.shown.chain) {
        certificate.show(Shown { is_issued: found.is_of_issuer, ..found.shown });
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_asked_again_though_the_clock_was_set_back() {
        let now = Duration::from_secs(1_700_000_000);
        let day = schedule::INFO_PAUSE_MAX;
        let renewal = |ask_at| Renewal { ask_at, ..Renewal::default() };
        assert!(renewal(now).is_to_ask(now) && Renewal::default().is_to_ask(now));
        assert!(!renewal(now + day).is_to_ask(now), "a pause");
        assert!(renewal(now + day * 365).is_to_ask(now), "of a clock that was a year ahead");
    }
}
