//! A track: its tables say which samples there are, when they are shown, and where they lie.

use super::atoms::{Atom, Problem, atoms, number, write};
use super::movie::Wanted;
use super::tables::{Chunks, Place, Samples, Sizes, entries, needed, part, place, runs, table};

/// The atoms of a track that are sent on; others are left out, as nginx does.
#[derive(Default)]
pub(super) struct Track<'a> {
    tkhd: Option<Atom<'a>>,
    mdhd: Option<Atom<'a>>,
    hdlr: Option<Atom<'a>>,
    vmhd: Option<Atom<'a>>,
    smhd: Option<Atom<'a>>,
    dinf: Option<Atom<'a>>,
    stsd: Option<Atom<'a>>,
    stts: Option<Atom<'a>>,
    stss: Option<Atom<'a>>,
    ctts: Option<Atom<'a>>,
    stsc: Option<Atom<'a>>,
    stsz: Option<Atom<'a>>,
    stco: Option<Atom<'a>>,
    co64: Option<Atom<'a>>,
}

impl<'a> Track<'a> {
    /// Takes the atoms out of a `trak`.
    pub(super) fn read(content: &'a [u8]) -> Result<Self, Problem> {
        let mut track = Self::default();
        track.take(b"trak", content)?;
        Ok(track)
    }

    /// Takes those that stand where they belong: QuickTime has others of the same names elsewhere.
    fn take(&mut self, outer: &[u8; 4], content: &'a [u8]) -> Result<(), Problem> {
        for atom in atoms(content) {
            let atom = atom?;
            let place = match (outer, &atom.name) {
                (b"trak", b"mdia") | (b"mdia", b"minf") | (b"minf", b"stbl") => {
                    self.take(&atom.name, atom.content)?;
                    continue;
                }
                (b"trak", b"tkhd") => &mut self.tkhd,
                (b"mdia", b"mdhd") => &mut self.mdhd,
                (b"mdia", b"hdlr") => &mut self.hdlr,
                (b"minf", b"vmhd") => &mut self.vmhd,
                (b"minf", b"smhd") => &mut self.smhd,
                (b"minf", b"dinf") => &mut self.dinf,
                (b"stbl", b"stsd") => &mut self.stsd,
                (b"stbl", b"stts") => &mut self.stts,
                (b"stbl", b"stss") => &mut self.stss,
                (b"stbl", b"ctts") => &mut self.ctts,
                (b"stbl", b"stsc") => &mut self.stsc,
                (b"stbl", b"stsz") => &mut self.stsz,
                (b"stbl", b"stco") => &mut self.stco,
                (b"stbl", b"co64") => &mut self.co64,
                _ => continue,
            };
            if place.replace(atom).is_some() {
                return Err("duplicate mp4 atom".to_owned());
            }
        }
        Ok(())
    }
}

/// A head with a duration: of the movie, a track, its media.
pub(super) struct Timed {
    whole: Vec<u8>,
    timescale: u32,
    duration: u64,
    /// Where the duration stands, and how long it is.
    at: usize,
    is_long: bool,
}

impl Timed {
    /// `mvhd` and `mdhd`.
    pub(super) fn with_timescale(atom: &Atom<'_>) -> Option<Self> {
        let is_long = *atom.content.first()? != 0;
        let timescale = number(atom.content, if is_long { 20 } else { 12 })?;
        Self::read(atom, is_long, if is_long { 24 } else { 16 }, timescale)
    }

    /// `tkhd`, whose times are the movie's.
    fn of_track(atom: &Atom<'_>, timescale: u32) -> Option<Self> {
        let is_long = *atom.content.first()? != 0;
        Self::read(atom, is_long, if is_long { 28 } else { 20 }, timescale)
    }

    fn read(atom: &Atom<'_>, is_long: bool, at: usize, timescale: u32) -> Option<Self> {
        let duration = match is_long {
            true => u64::from_be_bytes(*atom.content.get(at..)?.first_chunk()?),
            false => u64::from(number(atom.content, at)?),
        };
        let at = atom.whole.len() - atom.content.len() + at;
        Some(Self { whole: atom.whole.to_vec(), timescale, duration, at, is_long })
    }

    pub(super) const fn timescale(&self) -> u32 {
        self.timescale
    }

    /// The time in the units of this head.
    const fn units(&self, milliseconds: u64) -> u64 {
        milliseconds.saturating_mul(self.timescale as u64) / 1000
    }

    /// Cuts the duration; how much it began later than what is left, or `None` if nothing is.
    pub(super) fn cut(&mut self, wanted: &Wanted) -> Option<()> {
        let left = self.duration.checked_sub(self.units(wanted.start))?;
        let length = self.units(wanted.length);
        self.duration = if wanted.length > 0 { left.min(length) } else { left };
        self.put();
        Some(())
    }

    fn put(&mut self) {
        let long = self.duration.to_be_bytes();
        let bytes = if self.is_long { &long[..] } else { &long[4..] };
        self.whole[self.at..self.at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn whole(&self) -> &[u8] {
        &self.whole
    }
}

/// A track of which a part is wanted.
pub(super) struct Cut<'a> {
    track: Track<'a>,
    tkhd: Timed,
    mdhd: Timed,
    /// Media time of the samples in front of the start, from a key frame on.
    prefix: u64,
    stts: Vec<[u32; 2]>,
    ctts: Vec<[u32; 2]>,
    stss: Vec<u32>,
    stsc: Vec<[u32; 3]>,
    stsz: Sizes<'a>,
    chunks: Chunks<'a>,
    /// Where the first sample lies in the file.
    first_byte: u64,
    /// Where the last one ends; `None`: the end of the file's samples.
    last_byte: Option<u64>,
}

/// The first entries make up this many samples; as nginx, the one that is cut may be left with none.
fn keep(entries: &mut Vec<[u32; 2]>, mut samples: u64) {
    for at in 0..entries.len() {
        let count = u64::from(entries[at][0]);
        if samples < count {
            entries[at][0] = u32::try_from(samples).unwrap_or(0);
            entries.truncate(at + 1);
            return;
        }
        samples -= count;
    }
}

/// Without the entries of as many samples.
fn skip(entries: impl Iterator<Item = [u32; 2]>, mut samples: u64) -> Vec<[u32; 2]> {
    let rest = entries.filter_map(|[count, value]| {
        let skipped = samples.min(u64::from(count));
        samples -= skipped;
        let left = count - u32::try_from(skipped).unwrap_or(count);
        (left > 0 || skipped == 0).then_some([left, value])
    });
    rest.collect()
}

/// What of the times is wanted.
struct Times {
    samples: Samples,
    prefix: u64,
    stts: Vec<[u32; 2]>,
}

impl Times {
    /// Counts in `stts` to the start and to the end; from the key frame before it, if `keys` says where they are.
    fn of(
        stts: &Atom<'_>,
        wanted: &Wanted,
        mdhd: &Timed,
        keys: Option<&[u32]>,
    ) -> Result<Self, Problem> {
        let entries = entries::<2>(stts)?;
        let start = sample_at(entries.clone(), mdhd.units(wanted.start));
        let start = start.ok_or_else(|| "start time is out mp4 stts samples".to_owned())?;
        let key = keys.and_then(|keys| {
            // They are counted from 1.
            keys.iter().map(|key| u64::from(*key)).take_while(|key| *key <= start + 1).last()
        });
        let first = key.map_or(start, |key| key.saturating_sub(1));
        let prefix =
            duration(entries.clone(), start).saturating_sub(duration(entries.clone(), first));
        let mut stts = skip(entries, first);
        let mut end = None;
        if wanted.length > 0 {
            let time = mdhd.units(wanted.length).saturating_add(prefix);
            let all = || stts.iter().map(|[count, _]| u64::from(*count)).sum();
            let count = sample_at(stts.iter().copied(), time).unwrap_or_else(all);
            keep(&mut stts, count);
            end = Some(first + count);
        }
        Ok(Self { samples: Samples { start: first, end }, prefix, stts })
    }
}

/// The sample shown at a time; `None` behind the last.
fn sample_at(entries: impl Iterator<Item = [u32; 2]>, mut time: u64) -> Option<u64> {
    let mut sample = 0;
    for [count, duration] in entries {
        let all = u64::from(count) * u64::from(duration);
        if time < all {
            return Some(sample + time / u64::from(duration));
        }
        time -= all;
        sample += u64::from(count);
    }
    None
}

/// How long the first samples last.
fn duration(entries: impl Iterator<Item = [u32; 2]>, mut samples: u64) -> u64 {
    let mut time = 0;
    for [count, duration] in entries {
        let counted = samples.min(u64::from(count));
        time += counted * u64::from(duration);
        samples -= counted;
    }
    time
}

impl<'a> Cut<'a> {
    /// What of the track is wanted; `None` if that is nothing.
    pub(super) fn of(
        track: Track<'a>,
        wanted: &Wanted,
        movie_timescale: u32,
    ) -> Result<Option<Self>, Problem> {
        let small = |name: &str| format!("mp4 {name} atom too small");
        let (tkhd, mdhd) = (needed(track.tkhd, "tkhd")?, needed(track.mdhd, "mdhd")?);
        let tkhd = Timed::of_track(&tkhd, movie_timescale);
        let mut tkhd = tkhd.ok_or_else(|| small("tkhd"))?;
        let mut mdhd = Timed::with_timescale(&mdhd).ok_or_else(|| small("mdhd"))?;
        for timed in [&mut tkhd, &mut mdhd] {
            let is_over = timed.duration <= timed.units(wanted.start);
            if is_over || timed.cut(wanted).is_none() {
                return Ok(None);
            }
        }
        let stss = track.stss.map(|atom| entries::<1>(&atom)).transpose()?;
        let keys: Vec<u32> = stss.into_iter().flatten().map(|[sample]| sample).collect();
        let is_from_key = wanted.is_from_key && track.stss.is_some();
        let stts = needed(track.stts, "stts")?;
        let times = Times::of(&stts, wanted, &mdhd, is_from_key.then_some(&keys))?;
        let samples = times.samples;
        mdhd.duration = mdhd.duration.saturating_add(times.prefix);
        mdhd.put();
        Self::placed(track, (tkhd, mdhd), times, samples, &keys).map(Some)
    }

    /// With the samples found in their chunks.
    fn placed(
        track: Track<'a>,
        (tkhd, mdhd): (Timed, Timed),
        times: Times,
        samples: Samples,
        keys: &[u32],
    ) -> Result<Self, Problem> {
        let all = match (track.co64, track.stco) {
            (Some(atom), _) => Chunks::Long(table(&atom, 8)?),
            (None, atom) => Chunks::Short(table(&needed(atom, "stco")?, 4)?),
        };
        let runs = runs(&needed(track.stsc, "stsc")?, all.count())?;
        let sizes = Sizes::read(&needed(track.stsz, "stsz")?)?;
        let stsz = sizes.part(samples)?;
        let start = place(&runs, samples.start, "start")?;
        let end = match samples.end {
            Some(end) => place(&runs, end, "end")?,
            None => Place { chunk: all.count(), samples: 0 },
        };
        let before = |place: Place, sample: u64| -> Result<u64, Problem> {
            let start = sample.saturating_sub(place.samples);
            Ok(sizes.part(Samples { start, end: Some(sample) })?.total())
        };
        let out = || "start time is out mp4 stco chunks".to_owned();
        let first_chunk = all.offset(start.chunk).ok_or_else(out)?;
        let first_byte = first_chunk.saturating_add(before(start, samples.start)?);
        let is_empty = samples.end.is_some_and(|end| end <= samples.start);
        let chunks_end = match is_empty {
            true => start.chunk,
            false => end.chunk + u64::from(end.samples > 0),
        };
        let chunks = all.part(start.chunk, chunks_end.max(start.chunk)).ok_or_else(out)?;
        let last_byte = match samples.end {
            Some(last) if !is_empty => {
                // Of a chunk that is whole, all of its samples.
                let inside = match end.samples {
                    0 => place(&runs, last - 1, "end")?.samples + 1,
                    samples => samples,
                };
                let place = Place { chunk: chunks_end - 1, samples: inside };
                let chunk = all.offset(place.chunk).ok_or_else(out)?;
                Some(chunk.saturating_add(before(place, last)?))
            }
            Some(_) => Some(0),
            None => None,
        };
        let mut ctts = match track.ctts {
            Some(atom) => skip(entries::<2>(&atom)?, samples.start),
            None => Vec::new(),
        };
        if let Some(end) = samples.end {
            keep(&mut ctts, end - samples.start);
        }
        let is_wanted =
            |sample: u64| sample > samples.start && samples.end.is_none_or(|end| sample <= end);
        let stss = keys.iter().filter(|key| is_wanted(u64::from(**key)));
        let stss = stss.map(|key| key - u32::try_from(samples.start).unwrap_or(0)).collect();
        let stsc = if is_empty { Vec::new() } else { part(&runs, start, end) };
        let Times { prefix, stts, .. } = times;
        Ok(Self {
            track,
            tkhd,
            mdhd,
            prefix,
            stts,
            ctts,
            stss,
            stsc,
            stsz,
            chunks,
            first_byte,
            last_byte,
        })
    }

    /// Where the samples lie in a file whose samples end at `end`; `None` if there are none.
    pub(super) fn bytes(&self, end: u64) -> Option<(u64, u64)> {
        let last = self.last_byte.unwrap_or(end);
        (last > 0).then_some((self.first_byte, last))
    }

    /// Writes the track; chunks lie `moved` bytes further on than in the file.
    pub(super) fn write(&self, moved: i64, out: &mut Vec<u8>) -> Result<(), Problem> {
        let copy = |atom: &Option<Atom<'_>>, out: &mut Vec<u8>| {
            out.extend_from_slice(atom.map_or(&[], |atom| atom.whole));
        };
        write(out, b"trak", |out| {
            out.extend_from_slice(self.tkhd.whole());
            self.write_edit(out)?;
            write(out, b"mdia", |out| {
                out.extend_from_slice(self.mdhd.whole());
                copy(&self.track.hdlr, out);
                write(out, b"minf", |out| {
                    copy(&self.track.vmhd, out);
                    copy(&self.track.smhd, out);
                    copy(&self.track.dinf, out);
                    write(out, b"stbl", |out| {
                        copy(&self.track.stsd, out);
                        self.write_tables(moved, out)
                    })
                })
            })
        })
    }

    /// Has the player leave out what goes before the start.
    fn write_edit(&self, out: &mut Vec<u8>) -> Result<(), Problem> {
        if self.prefix == 0 {
            return Ok(());
        }
        write(out, b"edts", |out| {
            write(out, b"elst", |out| {
                out.extend([1, 0, 0, 0, 0, 0, 0, 1]);
                out.extend(self.tkhd.duration.to_be_bytes());
                out.extend(self.prefix.to_be_bytes());
                out.extend([0, 1, 0, 0]);
                Ok(())
            })
        })
    }

    fn write_tables(&self, moved: i64, out: &mut Vec<u8>) -> Result<(), Problem> {
        let flags = |atom: Option<Atom<'_>>| -> [u8; 4] {
            atom.and_then(|atom| atom.content.first_chunk().copied()).unwrap_or_default()
        };
        put_table(out, b"stts", flags(self.track.stts), &self.stts)?;
        if self.track.stss.is_some() {
            let keys: Vec<[u32; 1]> = self.stss.iter().map(|key| [*key]).collect();
            put_table(out, b"stss", flags(self.track.stss), &keys)?;
        }
        if !self.ctts.is_empty() {
            put_table(out, b"ctts", flags(self.track.ctts), &self.ctts)?;
        }
        put_table(out, b"stsc", flags(self.track.stsc), &self.stsc)?;
        write(out, b"stsz", |out| {
            out.extend(flags(self.track.stsz));
            let (size, count, each) = match self.stsz {
                Sizes::Same(size, count) => (size, count, &[][..]),
                Sizes::Each(each) => (0, u32::try_from(each.len() / 4).unwrap_or(0), each),
            };
            out.extend(size.to_be_bytes());
            out.extend(count.to_be_bytes());
            out.extend_from_slice(each);
            Ok(())
        })?;
        self.write_chunks(moved, out)
    }

    fn write_chunks(&self, moved: i64, out: &mut Vec<u8>) -> Result<(), Problem> {
        let (name, atom) = match self.chunks {
            Chunks::Short(_) => (b"stco", self.track.stco),
            Chunks::Long(_) => (b"co64", self.track.co64),
        };
        let large = || "too large chunk offset in mp4 stco atom".to_owned();
        let content = atom.map_or(&[][..], |atom| atom.content);
        write(out, name, |out| {
            out.extend_from_slice(content.get(..4).unwrap_or(&[0; 4]));
            let count = self.chunks.count();
            out.extend(u32::try_from(count).unwrap_or(0).to_be_bytes());
            for chunk in 0..count {
                let offset = match chunk {
                    0 => self.first_byte,
                    _ => self.chunks.offset(chunk).unwrap_or(0),
                };
                let offset = offset.checked_add_signed(moved).ok_or_else(large)?;
                match self.chunks {
                    Chunks::Short(_) => {
                        let offset = u32::try_from(offset).map_err(|_| large())?;
                        out.extend(offset.to_be_bytes());
                    }
                    Chunks::Long(_) => out.extend(offset.to_be_bytes()),
                }
            }
            Ok(())
        })
    }
}

fn put_table<const N: usize>(
    out: &mut Vec<u8>,
    name: &[u8; 4],
    flags: [u8; 4],
    entries: &[[u32; N]],
) -> Result<(), Problem> {
    write(out, name, |out| {
        out.extend(flags);
        out.extend(u32::try_from(entries.len()).unwrap_or(0).to_be_bytes());
        out.extend(entries.iter().flatten().flat_map(|number| number.to_be_bytes()));
        Ok(())
    })
}
