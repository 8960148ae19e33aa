//! crypt(3): a password and a setting to a hash that begins with the setting.
//!
//! # Source
//! libxcrypt, crypt(5). Of its kinds `$gy$`, `$7$`, `$md5`, `$2x$` and `$3$` are not known here.

mod des;

use aws_lc_rs::hmac;
use blowfish::Blowfish;
use md5::{Digest as _, Md5};
use yescrypt::PasswordVerifier as _;

/// Whether the password has this hash. A hash that crypt(3) refuses matches none.
pub(super) fn verify(password: &[u8], hash: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(hash) else { return false };
    if text.starts_with("$y$") {
        return has_yescrypt(password, text);
    }
    let made = crypt(password, text);
    made.is_some_and(|made| aws_lc_rs::constant_time::verify_slices_are_equal(&made, hash).is_ok())
}

/// The whole hash, if the setting is one; what follows the setting does not matter.
fn crypt(password: &[u8], setting: &str) -> Option<Vec<u8>> {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"!*:;\\".contains(&byte);
    if !setting.bytes().all(is_allowed) {
        return None;
    }
    if setting.starts_with("$2") {
        return bcrypt(password, setting);
    }
    if let Some(rest) = setting.strip_prefix("$1$") {
        return Some(md5(b"$1$", password, salt_of(rest, 8)));
    }
    for prefix in ["$5$", "$6$"] {
        if let Some(rest) = setting.strip_prefix(prefix) {
            return sha2(prefix, password, rest);
        }
    }
    if let Some(rest) = setting.strip_prefix("$sha1$") {
        return sha1(password, rest);
    }
    des(password, setting)
}

const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Three bytes as four letters, the lowest bits first; fewer letters where fewer bits are left.
fn push_letters(out: &mut Vec<u8>, bytes: [u8; 3], count: usize) {
    let mut value = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
    for _ in 0..count {
        out.push(LETTERS[(value & 63) as usize]);
        value >>= 6;
    }
}

/// What letters stand for, the lowest bits first.
fn number(letters: &str) -> Option<u32> {
    letters.bytes().rev().try_fold(0, |number, letter| {
        let digit = LETTERS.iter().position(|other| *other == letter)?;
        Some(number << 6 | u32::try_from(digit).ok()?)
    })
}

fn salt_of(rest: &str, most: usize) -> &[u8] {
    let salt = rest.split('$').next().unwrap_or_default().as_bytes();
    &salt[..salt.len().min(most)]
}

/// Poul-Henning Kamp's md5crypt: `$1$`, and with another magic Apache's `$apr1$`.
pub(super) fn md5(magic: &[u8], password: &[u8], salt: &[u8]) -> Vec<u8> {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password);
    let inner = inner.finalize();
    let mut first = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    for (index, _) in password.iter().enumerate() {
        first.update([inner[index % 16]]);
    }
    let mut left = password.len();
    while left > 0 {
        let nothing = left & 1 == 1;
        first.update([if nothing { 0 } else { password[0] }]);
        left >>= 1;
    }
    let mut digest = first.finalize();
    for round in 0..1000 {
        let mut next = Md5::new();
        next.update(if round % 2 == 1 { password } else { &digest[..] });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if round % 2 == 1 { &digest[..] } else { password });
        digest = next.finalize();
    }
    let mut out = [magic, salt, b"$"].concat();
    for at in 0..5 {
        let last = if at == 4 { 5 } else { at + 12 };
        push_letters(&mut out, [digest[at], digest[at + 6], digest[last]], 4);
    }
    push_letters(&mut out, [0, 0, digest[11]], 2);
    out
}

/// Ulrich Drepper's kinds on SHA-256 and SHA-512.
fn sha2(prefix: &str, password: &[u8], rest: &str) -> Option<Vec<u8>> {
    const ROUNDS: &str = "rounds=";
    let mut out = prefix.as_bytes().to_vec();
    let (salt, rounds) = match rest.strip_prefix(ROUNDS) {
        Some(rest) => {
            let (rounds, salt) = rest.split_once('$')?;
            out.extend([ROUNDS.as_bytes(), rounds.as_bytes(), b"$"].concat());
            (salt, decimal(rounds)?)
        }
        None => (rest, sha_crypt::Params::RECOMMENDED_ROUNDS),
    };
    let params = sha_crypt::Params::new(rounds).ok()?;
    let salt = salt_of(salt, 16);
    out.extend([salt, b"$"].concat());
    // The bytes come in threes, from the thirds of the digest, whose order turns with each.
    if prefix == "$5$" {
        let digest = sha_crypt::sha256_crypt(password, salt, params);
        for at in 0..10 {
            let thirds = [digest[at], digest[at + 10], digest[at + 20]];
            push_letters(&mut out, turned(thirds, 3 - at % 3), 4);
        }
        push_letters(&mut out, [0, digest[31], digest[30]], 3);
    } else {
        let digest = sha_crypt::sha512_crypt(password, salt, params);
        for at in 0..21 {
            push_letters(
                &mut out,
                turned([digest[at], digest[at + 21], digest[at + 42]], at % 3),
                4,
            );
        }
        push_letters(&mut out, [0, 0, digest[63]], 2);
    }
    Some(out)
}

fn turned(mut bytes: [u8; 3], by: usize) -> [u8; 3] {
    bytes.rotate_left(by % 3);
    bytes
}

/// A number as it would be written: no sign, no zeros in front.
fn decimal(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// NetBSD's kind: HMAC with SHA-1, again and again.
fn sha1(password: &[u8], rest: &str) -> Option<Vec<u8>> {
    let (count, salt) = rest.split_once('$')?;
    let (count, salt): (u32, _) = (count.parse().ok()?, salt_of(salt, usize::MAX));
    if salt.is_empty() {
        return None;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, password);
    let first = [salt, format!("$sha1${count}").as_bytes()].concat();
    let mut digest = hmac::sign(&key, &first);
    for _ in 1..count {
        digest = hmac::sign(&key, digest.as_ref());
    }
    let bytes = [digest.as_ref(), &digest.as_ref()[..1]].concat();
    let mut out = [format!("$sha1${count}$").as_bytes(), salt, b"$"].concat();
    for three in bytes.chunks_exact(3) {
        push_letters(&mut out, [three[0], three[1], three[2]], 4);
    }
    Some(out)
}

/// Niels Provos's and David Mazières's kind, `$2a$`, `$2b$` or `$2y$`: they differ in nothing since their mistakes
/// are mended.
fn bcrypt(password: &[u8], setting: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut parts = setting.get(1..29)?.splitn(3, '$');
    let (Some("2a" | "2b" | "2y"), Some(cost), Some(salt)) =
        (parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let number = |text: &[u8]| {
        text.iter().try_fold(0u128, |number, letter| {
            let digit = ALPHABET.iter().position(|other| other == letter)?;
            Some(number << 6 | digit as u128)
        })
    };
    let letters = |bytes: &[u8], out: &mut Vec<u8>| {
        for three in bytes.chunks(3) {
            let mut padded = [0; 3];
            padded[..three.len()].copy_from_slice(three);
            let value = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
            for at in 0..=three.len() {
                out.push(ALPHABET[(value >> (18 - 6 * at) & 63) as usize]);
            }
        }
    };
    let is_cost = cost.len() == 2 && cost.bytes().all(|byte| byte.is_ascii_digit());
    // crypt(3)'s bounds of the power of two.
    let rounds = cost.parse().ok().filter(|rounds: &u32| is_cost && (4..=31).contains(rounds))?;
    // 22 letters are four bits more than the salt.
    let (start, last) = salt.as_bytes().split_at(21);
    let salt = (number(start)? << 2 | number(last)? >> 4).to_be_bytes();
    let key = [password, b"\0"].concat();
    let mut cipher = Blowfish::bc_init_state();
    cipher.salted_expand_key(&salt, &key);
    for _ in 0..1u32 << rounds {
        cipher.bc_expand_key(&key);
        cipher.bc_expand_key(&salt);
    }
    let mut digest = Vec::new();
    for pair in b"OrpheanBeholderScryDoubt".chunks_exact(8) {
        let half = |bytes: &[u8]| bytes.iter().fold(0, |half, byte| half << 8 | u32::from(*byte));
        let mut pair = [half(&pair[..4]), half(&pair[4..])];
        for _ in 0..64 {
            pair = cipher.bc_encrypt(pair);
        }
        digest.extend(pair.map(u32::to_be_bytes).concat());
    }
    let mut out = setting.get(..7)?.as_bytes().to_vec();
    letters(&salt, &mut out);
    letters(&digest[..23], &mut out);
    Some(out)
}

/// The traditional kind, two letters of salt, and that of BSD/OS, `_`, four letters of a count and four of salt.
fn des(password: &[u8], setting: &str) -> Option<Vec<u8>> {
    let (setting, block) = match setting.strip_prefix('_') {
        Some(rest) => {
            let (count, salt) = (number(rest.get(..4)?)?, number(rest.get(4..8)?)?);
            (&setting[..9], des::extended(password, salt, count.max(1)))
        }
        None => {
            let salt = setting.get(..2)?;
            (salt, des::traditional(password, number(salt)?))
        }
    };
    let mut out = setting.as_bytes().to_vec();
    // 66 bits, the highest first.
    let block = u128::from(block) << 2;
    out.extend((0..11).map(|at| LETTERS[(block >> (60 - 6 * at) & 63) as usize]));
    Some(out)
}

/// Solar Designer's kind. As the library has it, which makes the hash as long as the one it is given.
fn has_yescrypt(password: &[u8], hash: &str) -> bool {
    /// Letters of 256 bits.
    const DIGEST_LETTERS: usize = 43;
    /// Most memory for one hash; chosen, Debian's own settings take 16 MB.
    const MEMORY_BYTES_MAX: u64 = 1 << 30;
    let mut fields = hash.split('$').skip(2);
    let (Some(params), Some(_), Some(digest), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    let is_bearable = params.parse().is_ok_and(|params: yescrypt::Params| {
        let memory = params.n().checked_mul(128 * u64::from(params.r()));
        memory.is_some_and(|memory| memory <= MEMORY_BYTES_MAX)
    });
    digest.len() == DIGEST_LETTERS
        && is_bearable
        && yescrypt::Yescrypt::default().verify_password(password, hash).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// What the system's crypt(3) makes of passwords and settings, by Perl, which every Debian has.
    fn system(asked: &[(Vec<u8>, String)]) -> Vec<String> {
        const SCRIPT: &str = "while (<>) { chomp; my ($p, $s) = split / /, $_, 2; \
            print crypt(pack('H*', $p), $s) // '*0', qq(\\n) }";
        let mut perl = Command::new("perl");
        let perl = perl.args(["-e", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut perl = perl.spawn().unwrap();
        let mut lines = perl.stdin.take().unwrap();
        for (password, setting) in asked {
            let hex: String = password.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(lines, "{hex} {setting}").unwrap();
        }
        drop(lines);
        let said = perl.wait_with_output().unwrap();
        assert!(said.status.success());
        let said = String::from_utf8(said.stdout).unwrap();
        said.lines().map(str::to_owned).collect()
    }

    fn assert_as_system(asked: &[(Vec<u8>, String)]) {
        let said = system(asked);
        assert_eq!(said.len(), asked.len());
        let differing = asked.iter().zip(said).filter_map(|((password, setting), said)| {
            let made = crypt(password, setting).and_then(|made| String::from_utf8(made).ok());
            let wanted = (!said.starts_with('*')).then_some(said);
            (made != wanted).then(|| format!("{setting:?} of {password:?}: {made:?}, {wanted:?}"))
        });
        assert_eq!(differing.collect::<Vec<_>>(), [""; 0]);
    }

    /// Of every length that matters somewhere, with bytes of every kind.
    fn passwords() -> Vec<Vec<u8>> {
        let lengths = [0, 1, 7, 8, 9, 16, 31, 32, 64, 71, 72, 73, 511];
        let mut random = fastrand::Rng::with_seed(7);
        let make = |length| (0..length).map(|_| random.u8(1..)).collect();
        lengths.into_iter().map(make).collect()
    }

    #[test]
    fn every_kind_is_as_the_system_makes_it() {
        let settings = [
            "ab",
            "..",
            "zz",
            "Z9",
            "_J9..rasm",
            "_/...zzzz",
            "$1$saltsalt",
            "$1$",
            "$1$s$",
            "$5$saltsalt",
            "$5$rounds=1000$s",
            "$6$saltsaltsaltsalt",
            "$6$rounds=1001$",
            "$6$$",
            "$sha1$1000$saltsalt",
            "$sha1$7$s$",
            "$2a$04$29nHkV/8DltVEzee13D1Xe",
            "$2b$04$......................",
            "$2y$05$abcdefghijklmnopqrstuu",
        ];
        let asked: Vec<_> = passwords()
            .into_iter()
            .flat_map(|password| settings.map(|setting| (password.clone(), setting.to_owned())))
            .collect();
        assert_as_system(&asked);
    }

    #[test]
    fn settings_at_the_bounds_are_as_the_system_takes_them() {
        let settings = [
            "",
            "a",
            "a!",
            "ab!",
            "ab*",
            "a:b",
            "é",
            "ab/.",
            "abNANd1rDfiNc",
            "abNANd1rDfiNc:x",
            "*0",
            "*1",
            "!!",
            "x",
            "_",
            "_J9..ras",
            "_....salt",
            "_J9..rasmz0.F/jqjWck",
            "_J9..ra!m",
            "$",
            "$1",
            "$1$",
            "$1$saltsaltsalt",
            "$1$sa\\lt",
            "$1$salt$hash$more",
            "$0$salt$",
            "$5",
            "$5$",
            "$5$rounds=999$s",
            "$5$rounds=01000$s",
            "$5$rounds=$s",
            "$5$rounds=x$s",
            "$5$rounds=1000",
            "$5$rounds=+1000$s",
            "$5$rounds=1000000000$s",
            "$5$rounds=4294968296$s",
            "$5$rounds=1000x$s",
            "$6$thisisaverylongsaltstringover16",
            "$6$rounds=5000$s$tail",
            "$6$rounds=1000$rounds=1000$s",
            "$6$sa;lt",
            "$2a$",
            "$2y$03$29nHkV/8DltVEzee13D1Xe",
            "$2y$32$29nHkV/8DltVEzee13D1Xe",
            "$2$05$29nHkV/8DltVEzee13D1Xe",
            "$2c$05$29nHkV/8DltVEzee13D1Xe",
            "$2y$5$29nHkV/8DltVEzee13D1Xee",
            "$2y$+4$29nHkV/8DltVEzee13D1Xe",
            "$2y$04$29nHkV/8DltVEzee13D1X",
            "$2y$04$29nHkV/8DltVEzee13D1Xf",
            "$2y$04$29nHkV/8DltVEzee13D1X=",
            "$2y$04.29nHkV/8DltVEzee13D1Xe",
            "$2y$04$29nHkV/8Dl$VEzee13D1Xe",
            "$sha1$",
            "$sha1$1000",
            "$sha1$x$salt",
            "$sha1$01000$salt",
            "$sha1$1000$",
            "$sha1$9$0123456789012345678901234567890123456789012345678901234567890123456789",
        ];
        let ask = |setting: &str| (b"secret".to_vec(), setting.to_owned());
        assert_as_system(&settings.map(ask));
    }

    #[test]
    fn yescrypt_is_as_the_system_makes_it() {
        let settings = ["$y$j75$saltsalt", "$y$j9T$saltsaltsalt", "$y$j85$......"];
        let ask =
            |password: Vec<u8>| settings.map(|setting| (password.clone(), setting.to_owned()));
        let asked: Vec<_> = passwords().into_iter().step_by(3).flat_map(ask).collect();
        for ((password, setting), hash) in asked.iter().zip(system(&asked)) {
            assert!(hash.starts_with("$y$"), "{setting}: {hash}");
            assert!(verify(password, hash.as_bytes()), "{hash} of {password:?}");
            assert!(!verify(&[&password[..], b"x"].concat(), hash.as_bytes()), "{hash}");
            for cut in 1..44 {
                assert!(
                    !verify(password, &hash.as_bytes()[..hash.len() - cut]),
                    "{hash} but {cut}"
                );
            }
        }
        // More memory than any machine has.
        assert!(!verify(b"secret", format!("$y$jyT$saltsalt${}", "x".repeat(43)).as_bytes()));
    }
}
