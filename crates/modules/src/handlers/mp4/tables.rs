//! The tables of a track: sizes of samples, and the chunks that they lie in.

use super::atoms::{Atom, Problem, number};

/// Samples from one on to before another.
#[derive(Clone, Copy)]
pub(super) struct Samples {
    pub(super) start: u64,
    /// `None`: all that follow.
    pub(super) end: Option<u64>,
}

/// Numbers in a table, each entry `N` of them.
pub(super) fn entries<'a, const N: usize>(
    atom: &Atom<'a>,
) -> Result<impl ExactSizeIterator<Item = [u32; N]> + Clone + use<'a, N>, Problem> {
    let bytes = table(atom, 4 * N)?;
    Ok(bytes.chunks_exact(4 * N).map(|entry| {
        std::array::from_fn(|at| number(entry, 4 * at).expect("as long as the entry"))
    }))
}

/// The entries of a table, which are this long.
pub(super) fn table<'a>(atom: &Atom<'a>, entry_bytes: usize) -> Result<&'a [u8], Problem> {
    let count = number(atom.content, 4).and_then(|count| usize::try_from(count).ok());
    let bytes = count.and_then(|count| count.checked_mul(entry_bytes));
    let found = bytes.and_then(|bytes| atom.content.get(8..)?.get(..bytes));
    found.ok_or_else(|| format!("mp4 {} atom too small", String::from_utf8_lossy(&atom.name)))
}

pub(super) fn needed<'a>(atom: Option<Atom<'a>>, name: &str) -> Result<Atom<'a>, Problem> {
    atom.ok_or_else(|| format!("no mp4 {name} atoms were found"))
}

/// Sizes of samples.
#[derive(Clone, Copy)]
pub(super) enum Sizes<'a> {
    /// All have this one; how many there are.
    Same(u32, u32),
    Each(&'a [u8]),
}

impl<'a> Sizes<'a> {
    pub(super) fn read(atom: &Atom<'a>) -> Result<Self, Problem> {
        let small = || "mp4 stsz atom too small".to_owned();
        let size = number(atom.content, 4).ok_or_else(small)?;
        let count = number(atom.content, 8).ok_or_else(small)?;
        if size > 0 {
            return Ok(Self::Same(size, count));
        }
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(4));
        let found = bytes.and_then(|bytes| atom.content.get(12..)?.get(..bytes));
        found.map(Self::Each).ok_or_else(small)
    }

    pub(super) const fn count(self) -> u64 {
        match self {
            Self::Same(_, count) => count as u64,
            Self::Each(bytes) => bytes.len() as u64 / 4,
        }
    }

    pub(super) fn part(self, samples: Samples) -> Result<Self, Problem> {
        let count = self.count();
        if samples.start > count {
            return Err("start time is out mp4 stsz samples".to_owned());
        }
        let end = samples.end.unwrap_or(count);
        if end > count || end < samples.start {
            return Err("end time is out mp4 stsz samples".to_owned());
        }
        let at = |sample: u64| usize::try_from(4 * sample).unwrap_or(usize::MAX);
        Ok(match self {
            Self::Same(size, _) => {
                Self::Same(size, u32::try_from(end - samples.start).unwrap_or(0))
            }
            Self::Each(bytes) => Self::Each(&bytes[at(samples.start)..at(end)]),
        })
    }

    pub(super) fn total(self) -> u64 {
        match self {
            Self::Same(size, count) => u64::from(size) * u64::from(count),
            Self::Each(bytes) => {
                bytes.chunks_exact(4).filter_map(|size| number(size, 0)).map(u64::from).sum()
            }
        }
    }
}

/// Where chunks begin.
#[derive(Clone, Copy)]
pub(super) enum Chunks<'a> {
    Short(&'a [u8]),
    Long(&'a [u8]),
}

impl Chunks<'_> {
    pub(super) const fn count(self) -> u64 {
        match self {
            Self::Short(bytes) => bytes.len() as u64 / 4,
            Self::Long(bytes) => bytes.len() as u64 / 8,
        }
    }

    pub(super) fn offset(self, chunk: u64) -> Option<u64> {
        let chunk = usize::try_from(chunk).ok()?;
        match self {
            Self::Short(bytes) => number(bytes, chunk * 4).map(u64::from),
            Self::Long(bytes) => Some(u64::from_be_bytes(*bytes.get(chunk * 8..)?.first_chunk()?)),
        }
    }

    /// The chunks from `start` on to before `end`.
    pub(super) fn part(self, start: u64, end: u64) -> Option<Self> {
        let at = |chunk: u64, bytes| Some(usize::try_from(chunk).ok()? * bytes);
        Some(match self {
            Self::Short(bytes) => Self::Short(bytes.get(at(start, 4)?..at(end, 4)?)?),
            Self::Long(bytes) => Self::Long(bytes.get(at(start, 8)?..at(end, 8)?)?),
        })
    }
}

/// A place between samples: how many in the chunk go before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) chunk: u64,
    pub(super) samples: u64,
}

/// Chunks of which each has as many samples: from one on to before another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) samples: u32,
    pub(super) description: u32,
}

pub(super) fn runs(atom: &Atom<'_>, chunks: u64) -> Result<Vec<Run>, Problem> {
    let entries = entries::<3>(atom)?;
    if entries.len() == 0 {
        return Err("zero number of entries in stsc atom".to_owned());
    }
    let unordered = || "unordered mp4 stsc chunks".to_owned();
    let mut runs: Vec<Run> = Vec::with_capacity(entries.len());
    for [chunk, samples, description] in entries {
        let start = u64::from(chunk).checked_sub(1).ok_or_else(unordered)?;
        if let Some(last) = runs.last_mut() {
            if start < last.start {
                return Err(unordered());
            }
            last.end = start;
        }
        runs.push(Run { start, end: chunks, samples, description });
    }
    match runs.iter().all(|run| run.start <= run.end) {
        true => Ok(runs),
        false => Err(unordered()),
    }
}

/// The chunk that a sample lies in; that behind the last for the one behind the last.
pub(super) fn place(runs: &[Run], mut sample: u64, what: &str) -> Result<Place, Problem> {
    for run in runs {
        let samples = u64::from(run.samples);
        let count = (run.end - run.start).saturating_mul(samples);
        if sample < count {
            return Ok(Place { chunk: run.start + sample / samples, samples: sample % samples });
        }
        sample -= count;
    }
    let end = runs.last().map_or(0, |run| run.end);
    match sample {
        0 => Ok(Place { chunk: end, samples: 0 }),
        _ => Err(format!("{what} time is out mp4 stsc chunks")),
    }
}

/// Entries of `stsc` for the samples between two places, counted from the first chunk.
pub(super) fn part(runs: &[Run], start: Place, end: Place) -> Vec<[u32; 3]> {
    let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let mut out = Vec::new();
    let mut put = |chunk: u64, samples: u64, run: &Run| {
        out.push([short(chunk - start.chunk + 1), short(samples), run.description]);
    };
    for run in runs {
        let is_within = |chunk: u64| run.start <= chunk && chunk < run.end;
        let mut first = run.start.max(start.chunk);
        if start.samples > 0 && is_within(start.chunk) {
            let all = if end.chunk == start.chunk { end.samples } else { u64::from(run.samples) };
            put(start.chunk, all.saturating_sub(start.samples), run);
            first += 1;
        }
        if first < run.end.min(end.chunk) {
            put(first, u64::from(run.samples), run);
        }
        let is_last_begun = start.samples > 0 && end.chunk == start.chunk;
        if end.samples > 0 && is_within(end.chunk) && !is_last_begun {
            put(end.chunk, end.samples, run);
        }
    }
    out
}
