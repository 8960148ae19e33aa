//! crypt(3)'s oldest kinds: DES, with a salt that swaps bits of the expanded half. No library of ciphers has
//! a place for that.
//!
//! # Source
//! FIPS 46-3, with its tables; the manual of crypt(3).

const INITIAL: [u8; 64] = [
    58, 50, 42, 34, 26, 18, 10, 2, 60, 52, 44, 36, 28, 20, 12, 4, 62, 54, 46, 38, 30, 22, 14, 6,
    64, 56, 48, 40, 32, 24, 16, 8, 57, 49, 41, 33, 25, 17, 9, 1, 59, 51, 43, 35, 27, 19, 11, 3, 61,
    53, 45, 37, 29, 21, 13, 5, 63, 55, 47, 39, 31, 23, 15, 7,
];
const FINAL: [u8; 64] = [
    40, 8, 48, 16, 56, 24, 64, 32, 39, 7, 47, 15, 55, 23, 63, 31, 38, 6, 46, 14, 54, 22, 62, 30,
    37, 5, 45, 13, 53, 21, 61, 29, 36, 4, 44, 12, 52, 20, 60, 28, 35, 3, 43, 11, 51, 19, 59, 27,
    34, 2, 42, 10, 50, 18, 58, 26, 33, 1, 41, 9, 49, 17, 57, 25,
];
const PERMUTATION: [u8; 32] = [
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10, 2, 8, 24, 14, 32, 27, 3, 9, 19,
    13, 30, 6, 22, 11, 4, 25,
];
const CHOICE_1: [u8; 56] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60,
    52, 44, 36, 63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29,
    21, 13, 5, 28, 20, 12, 4,
];
const CHOICE_2: [u8; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2, 41, 52,
    31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];
const SHIFTS: [u32; 16] = [1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1];
const SELECTIONS: [[u8; 64]; 8] = [
    [
        14, 4, 13, 1, 2, 15, 11, 8, 3, 10, 6, 12, 5, 9, 0, 7, 0, 15, 7, 4, 14, 2, 13, 1, 10, 6, 12,
        11, 9, 5, 3, 8, 4, 1, 14, 8, 13, 6, 2, 11, 15, 12, 9, 7, 3, 10, 5, 0, 15, 12, 8, 2, 4, 9,
        1, 7, 5, 11, 3, 14, 10, 0, 6, 13,
    ],
    [
        15, 1, 8, 14, 6, 11, 3, 4, 9, 7, 2, 13, 12, 0, 5, 10, 3, 13, 4, 7, 15, 2, 8, 14, 12, 0, 1,
        10, 6, 9, 11, 5, 0, 14, 7, 11, 10, 4, 13, 1, 5, 8, 12, 6, 9, 3, 2, 15, 13, 8, 10, 1, 3, 15,
        4, 2, 11, 6, 7, 12, 0, 5, 14, 9,
    ],
    [
        10, 0, 9, 14, 6, 3, 15, 5, 1, 13, 12, 7, 11, 4, 2, 8, 13, 7, 0, 9, 3, 4, 6, 10, 2, 8, 5,
        14, 12, 11, 15, 1, 13, 6, 4, 9, 8, 15, 3, 0, 11, 1, 2, 12, 5, 10, 14, 7, 1, 10, 13, 0, 6,
        9, 8, 7, 4, 15, 14, 3, 11, 5, 2, 12,
    ],
    [
        7, 13, 14, 3, 0, 6, 9, 10, 1, 2, 8, 5, 11, 12, 4, 15, 13, 8, 11, 5, 6, 15, 0, 3, 4, 7, 2,
        12, 1, 10, 14, 9, 10, 6, 9, 0, 12, 11, 7, 13, 15, 1, 3, 14, 5, 2, 8, 4, 3, 15, 0, 6, 10, 1,
        13, 8, 9, 4, 5, 11, 12, 7, 2, 14,
    ],
    [
        2, 12, 4, 1, 7, 10, 11, 6, 8, 5, 3, 15, 13, 0, 14, 9, 14, 11, 2, 12, 4, 7, 13, 1, 5, 0, 15,
        10, 3, 9, 8, 6, 4, 2, 1, 11, 10, 13, 7, 8, 15, 9, 12, 5, 6, 3, 0, 14, 11, 8, 12, 7, 1, 14,
        2, 13, 6, 15, 0, 9, 10, 4, 5, 3,
    ],
    [
        12, 1, 10, 15, 9, 2, 6, 8, 0, 13, 3, 4, 14, 7, 5, 11, 10, 15, 4, 2, 7, 12, 9, 5, 6, 1, 13,
        14, 0, 11, 3, 8, 9, 14, 15, 5, 2, 8, 12, 3, 7, 0, 4, 10, 1, 13, 11, 6, 4, 3, 2, 12, 9, 5,
        15, 10, 11, 14, 1, 7, 6, 0, 8, 13,
    ],
    [
        4, 11, 2, 14, 15, 0, 8, 13, 3, 12, 9, 7, 5, 10, 6, 1, 13, 0, 11, 7, 4, 9, 1, 10, 14, 3, 5,
        12, 2, 15, 8, 6, 1, 4, 11, 13, 12, 3, 7, 14, 10, 15, 6, 8, 0, 5, 9, 2, 6, 11, 13, 8, 1, 4,
        10, 7, 9, 5, 0, 15, 14, 2, 3, 12,
    ],
    [
        13, 2, 8, 4, 6, 15, 11, 1, 10, 9, 3, 14, 5, 0, 12, 7, 1, 15, 13, 8, 10, 3, 7, 4, 12, 5, 6,
        11, 0, 14, 9, 2, 7, 11, 4, 1, 9, 12, 14, 2, 0, 6, 10, 13, 15, 3, 5, 8, 2, 1, 14, 7, 4, 10,
        8, 13, 15, 12, 9, 0, 3, 5, 6, 11,
    ],
];

/// The traditional kind: eight characters, 25 times.
pub(super) fn traditional(password: &[u8], salt: u32) -> u64 {
    Cipher::new(key(password), salt).repeat(25)
}

/// That of BSD/OS: all characters, as often as the hash says.
pub(super) fn extended(password: &[u8], salt: u32, count: u32) -> u64 {
    let mut whole = key(password);
    for more in password.chunks(8).skip(1) {
        whole = Cipher::new(whole, 0).encrypt(whole) ^ key(more);
    }
    Cipher::new(whole, salt).repeat(count)
}

/// Seven bits of each of eight characters; the eighth is for parity, which is ignored.
fn key(password: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    for (byte, character) in bytes.iter_mut().zip(password) {
        *byte = character << 1;
    }
    u64::from_be_bytes(bytes)
}

/// The bits that a table numbers, from the highest of `width`, which is 1.
fn permute(value: u64, width: u32, table: &[u8]) -> u64 {
    table.iter().fold(0, |out, bit| out << 1 | value >> (width - u32::from(*bit)) & 1)
}

struct Cipher {
    keys: [u64; 16],
    /// Bits that are swapped between the halves of an expanded half.
    swapped: u64,
}

impl Cipher {
    fn new(key: u64, salt: u32) -> Self {
        let chosen = permute(key, 64, &CHOICE_1);
        let rotate = |half: u64, by: u32| (half << by | half >> (28 - by)) & 0xfff_ffff;
        let (mut left, mut right) = (chosen >> 28, chosen & 0xfff_ffff);
        let keys = SHIFTS.map(|shift| {
            (left, right) = (rotate(left, shift), rotate(right, shift));
            permute(left << 28 | right, 56, &CHOICE_2)
        });
        Self { keys, swapped: u64::from(salt.reverse_bits() >> 8) }
    }

    fn repeat(&self, count: u32) -> u64 {
        (0..count).fold(0, |block, _| self.encrypt(block))
    }

    fn encrypt(&self, block: u64) -> u64 {
        let block = permute(block, 64, &INITIAL);
        let (mut left, mut right) = (block >> 32, block & 0xffff_ffff);
        for key in self.keys {
            (left, right) = (right, left ^ self.mangle(right, key));
        }
        permute(right << 32 | left, 64, &FINAL)
    }

    fn mangle(&self, half: u64, key: u64) -> u64 {
        let half = u32::try_from(half).expect("a half has 32 bits");
        // Six bits each, which overlap by two.
        let expanded = (0..8)
            .fold(0, |out, group| out << 6 | u64::from(half.rotate_left(5 + 4 * group) & 0x3f));
        let differing = (expanded >> 24 ^ expanded) & self.swapped;
        let mixed = expanded ^ differing ^ differing << 24 ^ key;
        let selected = SELECTIONS.iter().zip(0u32..).fold(0, |out, (table, group)| {
            let bits = mixed >> (42 - 6 * group) & 0x3f;
            let (row, column) = (bits >> 4 & 2 | bits & 1, bits >> 1 & 15);
            out << 4 | u64::from(table[(row * 16 + column) as usize])
        });
        permute(selected, 32, &PERMUTATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_salt_it_is_des() {
        // The example of many books, and NBS Special Publication 500-20's first.
        let cipher = Cipher::new(0x1334_5779_9bbc_dff1, 0);
        assert_eq!(cipher.encrypt(0x0123_4567_89ab_cdef), 0x85e8_1354_0f0a_b405);
        let cipher = Cipher::new(0x0101_0101_0101_0101, 0);
        assert_eq!(cipher.encrypt(0x95f8_a5e5_dd31_d900), 0x8000_0000_0000_0000);
    }
}
