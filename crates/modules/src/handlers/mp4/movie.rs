//! A movie: the head that says what its tracks are, made again for a part of them.

use super::atoms::{Problem, atoms, write};
use super::track::{Cut, Timed, Track};
use std::ops::Range;

/// Which part is wanted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Wanted {
    /// In milliseconds.
    pub(super) start: u64,
    /// In milliseconds; 0: up to the end.
    pub(super) length: u64,
    /// Whether it begins with the key frame before the start.
    pub(super) is_from_key: bool,
}

/// What is sent: before the samples, and which of the file's bytes they are.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) head: Vec<u8>,
    pub(super) data: Range<u64>,
}

/// The part of a movie. `ftyp` is sent in front; `moov` is the head's content, `mdat` where the file's samples are.
pub(super) fn cut(
    ftyp: &[u8],
    moov: &[u8],
    mdat: &Range<u64>,
    wanted: &Wanted,
) -> Result<Made, Problem> {
    let (mut mvhd, mut traks) = (None, Vec::new());
    for atom in atoms(moov) {
        let atom = atom?;
        match &atom.name {
            b"cmov" => return Err("unsupported mp4 cmov atom".to_owned()),
            b"mvhd" if mvhd.replace(atom).is_some() => {
                return Err("duplicate mp4 atom".to_owned());
            }
            b"trak" => traks.push(atom),
            _ => {}
        }
    }
    let mvhd = mvhd.ok_or_else(|| "no mp4 mvhd atoms were found".to_owned())?;
    let mvhd = Timed::with_timescale(&mvhd);
    let mut mvhd = mvhd.ok_or_else(|| "mp4 mvhd atom too small".to_owned())?;
    mvhd.cut(wanted).ok_or_else(|| "mp4 start time exceeds file duration".to_owned())?;
    let mut tracks = Vec::with_capacity(traks.len());
    for trak in traks {
        tracks.extend(Cut::of(Track::read(trak.content)?, wanted, mvhd.timescale())?);
    }
    if tracks.is_empty() {
        return Err("no mp4 trak atoms were found".to_owned());
    }
    let places = || tracks.iter().filter_map(|track| track.bytes(mdat.end));
    let start = places().map(|(start, _)| start).min();
    let end = places().map(|(_, end)| end).max();
    let (Some(start), Some(end)) = (start, end) else {
        return Err("no data between start time and end time".to_owned());
    };
    let data = start..end.max(start);
    if data.start < mdat.start || data.end > mdat.end {
        return Err("start time is out mp4 mdat atom".to_owned());
    }
    let mut head = ftyp.to_vec();
    // Once to know how long it is, which says where the samples come to lie.
    let length = written(&mvhd, &tracks, 0)?.len() + head.len() + mdat_head(&data).len();
    let moved = i64::try_from(length as u64).ok().zip(i64::try_from(data.start).ok());
    let moved = moved.map(|(length, start)| length - start).unwrap_or(0);
    head.extend(written(&mvhd, &tracks, moved)?);
    head.extend(mdat_head(&data));
    Ok(Made { head, data })
}

fn written(mvhd: &Timed, tracks: &[Cut<'_>], moved: i64) -> Result<Vec<u8>, Problem> {
    let mut out = Vec::new();
    write(&mut out, b"moov", |out| {
        out.extend_from_slice(mvhd.whole());
        tracks.iter().try_for_each(|track| track.write(moved, out))
    })?;
    Ok(out)
}

fn mdat_head(data: &Range<u64>) -> Vec<u8> {
    let bytes = data.end - data.start;
    match u32::try_from(bytes + 8) {
        Ok(short) => [&short.to_be_bytes()[..], b"mdat"].concat(),
        Err(_) => [&1u32.to_be_bytes()[..], b"mdat", &(bytes + 16).to_be_bytes()].concat(),
    }
}
