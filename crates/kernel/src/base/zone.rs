//! The time zone in which the server writes times.

use jiff::tz::TimeZone;
use std::path::Path;
use std::sync::LazyLock;

/// Where the system keeps its zones, unless `TZDIR` names another folder.
const FOLDER: &str = "/usr/share/zoneinfo";

/// That of `TZ` in the environment, as libc and so nginx understand it; without it, that of the system.
///
/// It is not `TimeZone::system` that looks at `TZ`: it finds a name only by way of a list of all zones,
/// and reads all their files for that, again and again.
pub fn local() -> TimeZone {
    static NAMED: LazyLock<Option<TimeZone>> = LazyLock::new(|| {
        let name = std::env::var_os("TZ")?;
        let folder = std::env::var_os("TZDIR").unwrap_or_else(|| FOLDER.into());
        Some(named(name.to_str().unwrap_or_default(), Path::new(&folder)))
    });
    #[expect(clippy::disallowed_methods, reason = "this is the one place that may ask")]
    NAMED.clone().unwrap_or_else(TimeZone::system)
}

/// The zone that a value of `TZ` means: a file, if there is one, otherwise a rule of POSIX. What is neither is UTC.
fn named(value: &str, folder: &Path) -> TimeZone {
    let name = value.strip_prefix(':').unwrap_or(value);
    if name.is_empty() {
        return TimeZone::UTC;
    }
    let of_file = || TimeZone::tzif(name, &file(&folder.join(name))?).ok();
    let of_rule = |text: &str| TimeZone::posix(text).ok();
    of_file()
        .or_else(|| of_rule(name))
        // POSIX leaves open when a summer time without a rule begins. libc takes the rule of the United States.
        .or_else(|| of_rule(&format!("{name},M3.2.0,M11.1.0")))
        .unwrap_or(TimeZone::UTC)
}

#[expect(clippy::disallowed_methods, reason = "once, with the first time that is written")]
fn file(path: &Path) -> Option<Vec<u8>> {
    // A pipe may have no end, or no writer.
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    std::fs::read(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    #[test]
    fn a_zone_is_a_file_or_a_rule() {
        // 2026-01-01 and 2026-07-01, both at noon: the offsets in minutes.
        let table = [
            ("America/New_York", -300, -240),
            (":America/New_York", -300, -240),
            ("/usr/share/zoneinfo/America/New_York", -300, -240),
            ("EST5EDT", -300, -240),
            ("Asia/Kolkata", 330, 330),
            ("JST-9", 540, 540),
            ("<+0330>-3:30", 210, 210),
            ("CET-1CEST,M3.5.0,M10.5.0/3", 60, 120),
            ("AAA5BBB", -300, -240),
            ("", 0, 0),
            (":", 0, 0),
            ("UTC", 0, 0),
            ("nonsense", 0, 0),
            ("Nowhere/City", 0, 0),
            ("/dev/zero", 0, 0),
            ("America", 0, 0),
        ];
        for (value, winter, summer) in table {
            let zone = named(value, Path::new(FOLDER));
            let minutes = [1_767_268_800, 1_782_907_200].map(|seconds| {
                zone.to_offset(Timestamp::from_second(seconds).unwrap()).seconds() / 60
            });
            assert_eq!(minutes, [winter, summer], "{value:?}");
        }
    }

    #[test]
    fn a_name_is_looked_for_in_the_folder_of_zones() {
        let zone = named("Kolkata", &Path::new(FOLDER).join("Asia"));
        assert_eq!(zone.to_offset(Timestamp::UNIX_EPOCH).seconds(), 330 * 60);
    }
}
