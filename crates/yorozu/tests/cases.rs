//! Every `.case` file against yorozu, and against Debian's nginx where it is installed.
//!
//! `CASE=part-of-a-name cargo test --test cases` runs some of them.

use std::path::Path;
use std::sync::Mutex;
use yorozu_testkit::case;
use yorozu_testkit::server::Kind;

#[test]
fn every_case_holds_here_and_with_nginx() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/src");
    let wanted = std::env::var("CASE").unwrap_or_default();
    let files = case::files(&root);
    let files: Vec<_> = files.iter().filter(|f| f.to_string_lossy().contains(&wanted)).collect();
    assert!(!files.is_empty(), "no case matches \"{wanted}\"");
    let yorozu = Kind::Yorozu(env!("CARGO_BIN_EXE_yorozu").into());
    let next = Mutex::new(files.iter());
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let file = next.lock().expect("no holder panics").next();
            let Some(file) = file else { return };
            let text = std::fs::read_to_string(file).expect("it was just found");
            let case = case::parse(&text);
            let mut kinds = vec![yorozu.clone()];
            kinds.extend(Kind::oracle().filter(|_| case.differs.is_none()));
            for kind in kinds {
                if let Err(why) = case::run(&case, &kind) {
                    let text =
                        format!("{} ({}) with {kind:?}:\n  {why}", file.display(), case.about);
                    failures.lock().expect("no holder panics").push(text);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
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
