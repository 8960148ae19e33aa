//! What the fuzz targets check, on each file of `fuzz/corpus` and on changes of them: some of a fixed seed, others with `SEED`,
//! more with `ROUNDS`. libFuzzer, which looks for those that go other ways, is `fuzz/run`.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod cache_file;
mod certificate;
mod configuration;
mod fastcgi;
mod http1;
mod http2;
mod http3;
mod proxy_protocol;
mod upstream;

use fastrand::Rng;
use std::fs;
use std::path::{Path, PathBuf};

/// Changed inputs of each target, if `ROUNDS` says nothing.
const ROUNDS: u64 = 2000;
/// Most bytes of an input.
const BYTES_MAX: usize = 4096;

/// Shows the input whose check panicked.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("input: b\"{}\"", self.0.escape_ascii());
        }
    }
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// An input like those of a corpus.
fn changed(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..=input.len());
        match rng.u8(..5) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => {
                input[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xff, b' ', b'\n']).unwrap();
            }
            2 => input.insert(at, rng.u8(..)),
            3 => {
                let end = rng.usize(at..=input.len());
                input.drain(at..end);
            }
            _ => {
                let other = rng.choice(corpus).unwrap();
                input.truncate(at);
                input.extend_from_slice(&other[rng.usize(..=other.len())..]);
            }
        }
    }
    input.truncate(BYTES_MAX);
    input
}

fn replay(target: &str, check: fn(&[u8])) {
    let mut files: Vec<_> = fs::read_dir(fuzz().join("corpus").join(target))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    // What is drawn does not depend on the order of a folder.
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for input in &corpus {
        let _shown = Shown(input);
        check(input);
    }
    let seed = number("SEED").unwrap_or(1);
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    for _ in 0..number("ROUNDS").unwrap_or(ROUNDS) {
        let input = changed(&corpus, &mut rng);
        let _shown = Shown(&input);
        check(&input);
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        mod replay {
            $(#[test]
            fn $target() {
                super::replay(stringify!($target), super::$target::check);
            })*
        }
    };
}

replays! { cache_file certificate configuration fastcgi http1 http2 http3 proxy_protocol upstream }

#[test]
fn every_fuzz_target_is_replayed() {
    let files = fs::read_dir(fuzz().join("targets")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut targets: Vec<_> = files.map(|file| stem(file.unwrap().path())).collect();
    targets.sort();
    assert_eq!(targets, TARGETS);
}
