//! What the cache does with a request: the whole table of states.

use bytes::Bytes;
use yorozu_cache::{EntryHead, Part};
use yorozu_gateway::cache::decision::*;
use yorozu_gateway::cache::settings::{self, Conf};
use yorozu_gateway::fastcgi;

const NOW: i64 = 100_000;
const FRESH: i64 = NOW + 1;
const OVER: i64 = NOW;

fn conf(text: &str) -> Conf {
    let text = format!("http {{ server {{ location / {{ {text} }} }} }}");
    let config = crate::testing::config(&text);
    let location = config.locations.iter().find(|location| &location.name[..] == b"/");
    settings::with_prefix(location.unwrap(), &fastcgi::FAMILY).clone()
}

fn head(fresh_until: i64) -> EntryHead {
    EntryHead { fresh_until, stored_at: NOW - 50_000, ..EntryHead::default() }
}

const UPDATING: &str = "fastcgi_cache_use_stale updating;";
const BACKGROUND: &str = "fastcgi_cache_background_update on;";
const BOTH: &str = "fastcgi_cache_use_stale error updating; fastcgi_cache_background_update on;";

#[test]
fn a_page_answers_as_long_as_it_is_fresh_whatever_the_settings() {
    for text in ["", UPDATING, BACKGROUND, BOTH] {
        assert_eq!(Decision::of_page(&head(FRESH), &conf(text), NOW), Decision::Hit);
        let strict = EntryHead { must_revalidate: true, ..head(FRESH) };
        assert_eq!(Decision::of_page(&strict, &conf(text), NOW), Decision::Hit);
    }
    // A clock was set back.
    let from_the_future = EntryHead { stored_at: NOW + 10_000, ..head(NOW + 20_000) };
    let decided = Decision::of_page(&from_the_future, &conf(""), NOW);
    assert_eq!(decided, Decision::Expired(NoStale::NotAllowed));
}

#[test]
fn an_expired_page_answers_where_the_configuration_the_page_or_a_soft_purge_says_so() {
    use Decision::{Expired, Renewed};
    use NoStale::{MustRevalidate, NotAllowed};
    use Renewal::{Background, FirstAsking};
    let plain = head(OVER);
    let strict = EntryHead { must_revalidate: true, ..head(OVER) };
    // `s-maxage` forbids stale answers, but for those that `stale-while-revalidate` allows beside it.
    let window = EntryHead { stale_updating_until: NOW + 1, ..head(OVER) };
    let strict_window = EntryHead { must_revalidate: true, ..window.clone() };
    let past_window = EntryHead { stale_updating_until: NOW, ..head(OVER) };
    let purged = EntryHead { is_purged: true, ..head(FRESH) };
    let strict_purged = EntryHead { must_revalidate: true, ..purged.clone() };
    // No soft purge makes it fresher than it was.
    let purged_over = EntryHead { is_purged: true, ..head(OVER) };
    let strict_purged_over = EntryHead { is_purged: true, ..strict.clone() };
    let by_settings =
        [Expired(NotAllowed), Renewed(FirstAsking), Expired(NotAllowed), Renewed(Background)];
    let by_page = |first, background| [first, first, background, background].map(Renewed);
    let never = || [(); 4].map(|()| Expired(MustRevalidate));
    // By settings: none, updating, background_update, both.
    let table = [
        (&plain, by_settings.clone()),
        (&past_window, by_settings),
        (&strict, never()),
        (&window, by_page(FirstAsking, Background)),
        (&strict_window, by_page(FirstAsking, Background)),
        (&purged, by_page(Background, Background)),
        (&strict_purged, by_page(Background, Background)),
        (
            &purged_over,
            [Expired(NotAllowed), Renewed(Background), Expired(NotAllowed), Renewed(Background)],
        ),
        (&strict_purged_over, never()),
    ];
    for (head, wanted) in &table {
        for (text, wanted) in ["", UPDATING, BACKGROUND, BOTH].iter().zip(wanted) {
            assert_eq!(Decision::of_page(head, &conf(text), NOW), *wanted, "{text} {head:?}");
        }
    }
    // Failures alone let it answer for a failure, not while it is renewed.
    let of_failures = conf("fastcgi_cache_use_stale error timeout http_500;");
    assert_eq!(Decision::of_page(&plain, &of_failures, NOW), Expired(NotAllowed));
    let off = conf("fastcgi_cache_use_stale off updating;");
    assert_eq!(Decision::of_page(&plain, &off, NOW), Expired(NotAllowed));
}

#[test]
fn one_request_renews_a_page_and_the_others_get_it_as_it_is() {
    let table = [
        (Renewal::Background, Claiming::Maker, Step::Refreshing),
        (Renewal::Background, Claiming::Taken, Step::Updating),
        (Renewal::Background, Claiming::Barred, Step::RefreshingClean),
        (Renewal::FirstAsking, Claiming::Maker, Step::Making),
        (Renewal::FirstAsking, Claiming::Taken, Step::Updating),
        (Renewal::FirstAsking, Claiming::Barred, Step::Alone),
    ];
    for (renewal, claiming, wanted) in table {
        assert_eq!(renewal.step(claiming), wanted, "{renewal:?} {claiming:?}");
    }
}

#[test]
fn a_part_answers_what_it_holds_while_it_is_fresh_and_its_start_is_completed_where_asked_for() {
    let part = |first, fresh_until| {
        let asked = Bytes::from_static(b"bytes=0-9");
        let part = Part { first, total: 100, is_to_end: false, asked };
        EntryHead { part: Some(part), body_bytes: 10, ..head(fresh_until) }
    };
    let complete = conf("fastcgi_cache_complete_partial on;");
    let held = AskedOfPart { covered: Some(2..4), wants_all: false, is_short: true };
    let all = AskedOfPart { covered: None, wants_all: true, is_short: true };
    let other = AskedOfPart { wants_all: false, ..all.clone() };
    let long = AskedOfPart { is_short: false, ..all.clone() };
    let beyond = |completes| Decision::Beyond { completes };
    let table = [
        (part(0, FRESH), &complete, &held, Decision::Part(2..4)),
        (part(5, FRESH), &complete, &held, Decision::Part(2..4)),
        (part(0, OVER), &complete, &held, beyond(false)),
        (part(0, FRESH), &complete, &all, beyond(true)),
        (part(0, FRESH), &conf(""), &all, beyond(false)),
        (part(5, FRESH), &complete, &all, beyond(false)),
        (part(0, OVER), &complete, &all, beyond(false)),
        (part(0, FRESH), &complete, &other, beyond(false)),
        (part(0, FRESH), &complete, &long, beyond(false)),
    ];
    for (head, conf, asked, wanted) in table {
        let decided = Decision::of_part(&head, conf, NOW, asked.clone());
        assert_eq!(decided, wanted, "{head:?} {asked:?}");
    }
}

#[test]
fn a_missing_page_is_made_by_all_or_by_one_once_it_is_asked_for_often_enough() {
    let uses = "fastcgi_cache_min_uses 3;";
    let lock = "fastcgi_cache_lock on;";
    let both = "fastcgi_cache_min_uses 3; fastcgi_cache_lock on;";
    // settings, uses, is a part stored, is the range far in it
    let table = [
        ("", 1, false, false, Missing::Beside),
        ("", 1, false, true, Missing::RangeBeyond),
        ("", 1, true, false, Missing::Beside),
        (uses, 2, false, false, Missing::TooFewUses),
        (uses, 2, false, true, Missing::TooFewUses),
        (uses, 3, false, false, Missing::Beside),
        (uses, 3, false, true, Missing::RangeBeyond),
        (lock, 1, false, false, Missing::InLine),
        (lock, 1, true, false, Missing::Beside),
        (lock, 1, false, true, Missing::RangeBeyond),
        (both, 2, false, false, Missing::TooFewUses),
        (both, 3, false, false, Missing::InLine),
    ];
    for (text, uses, is_partial, is_beyond, wanted) in table {
        let missing = Missing::of(&conf(text), uses, is_partial, is_beyond);
        assert_eq!(missing, wanted, "{text} {uses} {is_partial} {is_beyond}");
    }
}
