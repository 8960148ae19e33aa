//! What runs beside Debian's nginx where it is installed: every `.case` file in every form, generated configurations, and which
//! directives the cases show.
//!
//! `CASE=part-of-a-name,other cargo test -p yorozu --test cases every_case` runs some of them, `FORM=https/2` in one form.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod coverage;
mod differential;

use std::path::Path;
use std::sync::{Arc, Mutex};
use yorozu_testkit::case;
use yorozu_testkit::server::Kind;
use yorozu_testkit::shared::{Part, seated};

/// Cases that run at once; they mostly wait.
const THREADS: usize = 24;

#[test]
fn every_case_holds_here_and_with_nginx() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let wanted = std::env::var("CASE").unwrap_or_default();
    let files = case::files(&root);
    let files: Vec<_> = files
        .iter()
        .filter(|f| wanted.split(",").any(|part| f.to_string_lossy().contains(part)))
        .collect();
    assert!(!files.is_empty(), "no case matches \"{wanted}\"");
    let oracle = Kind::oracle();
    let yorozu = Kind::Yorozu(env!("CARGO_BIN_EXE_yorozu").into());
    let mut work = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("it was just found");
        for case in case::parse_all(&text) {
            let case = Arc::new(case);
            for kind in std::iter::once(&yorozu).chain(&oracle) {
                let mut parts = case.parts(kind);
                if let Ok(name) = std::env::var("FORM") {
                    parts.iter_mut().for_each(|forms| forms.retain(|form| form.name == name));
                    parts.retain(|forms| !forms.is_empty());
                }
                let name = format!("{} ({}) with {kind:?}", file.display(), case.about);
                work.extend(parts.into_iter().map(|forms| Part {
                    name: name.clone(),
                    case: Arc::clone(&case),
                    kind: kind.clone(),
                    forms,
                }));
            }
        }
    }
    let next = Mutex::new(seated(work).into_iter());
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let guest = next.lock().expect("no holder panics").next();
            let Some(guest) = guest else { return };
            let name = guest.name().to_owned();
            if let Err(why) = guest.run() {
                failures.lock().expect("no holder panics").push(format!("{name}:\n  {why}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().expect("no holder panics");
    assert!(
        failures.is_empty(),
        "{} of {} cases:\n{}",
        failures.len(),
        files.len(),
        failures.join("\n")
    );
    println!("{} cases", files.len());
}
