"""Videos (MP4) made up at random, each sample known."""


def atom(name, *content, long=False):
    content = b''.join(content)
    if long:
        return (1).to_bytes(4) + name.encode() + (len(content) + 16).to_bytes(8) + content
    return (len(content) + 8).to_bytes(4) + name.encode() + content


def table(name, entries, width=4, front=b''):
    numbers = [number.to_bytes(width if width == 8 else 4) for entry in entries
               for number in (entry if isinstance(entry, tuple) else (entry,))]
    return atom(name, bytes(4), front, len(entries).to_bytes(4), *numbers)


def runs(values):
    """Equal values behind one another, counted."""
    found = []
    for value in values:
        if found and found[-1][1] == value:
            found[-1] = found[-1][0] + 1, value
        else:
            found.append((1, value))
    return found


class Track:
    """Samples with their durations and places; the last of a chunk is where the random generator says."""

    def __init__(self, dice, number, has_keys, has_offsets, is_uniform):
        self.number, self.timescale = number, dice.choice((1000, 600, 44100, 90000))
        count = dice.randint(1, 300)
        base = dice.randint(1, self.timescale // 5)
        self.durations = [base if dice.random() < 0.9 else base + dice.randint(1, 50) for _ in range(count)]
        sizes = [9] * count if is_uniform else [dice.randint(4, 60) for _ in range(count)]
        self.samples = [(number.to_bytes(1) + at.to_bytes(3) + bytes(60))[:size] for at, size in enumerate(sizes)]
        self.keys = sorted({1, *dice.sample(range(1, count + 1), count // 7)}) if has_keys else None
        self.offsets = [dice.randint(0, 3) * base for _ in range(count)] if has_offsets else None
        self.chunks, at = [], 0
        size = dice.randint(1, 9)
        while at < count:
            size = size if dice.random() < 0.7 else dice.randint(1, 9)
            self.chunks.append(range(at, min(at + size, count)))
            at += size
        self.is_uniform, self.is_long, self.version = is_uniform, dice.random() < 0.2, dice.choice((0, 1))

    def duration(self):
        return sum(self.durations)

    def trak(self, places, scale):
        wide = lambda number: number.to_bytes(8 if self.version else 4)
        times = wide(1) + wide(2)
        tkhd = atom('tkhd', bytes([self.version, 0, 0, 7]), times, self.number.to_bytes(4), bytes(4),
                    wide(self.duration() * scale // self.timescale), bytes(60))
        mdhd = atom('mdhd', bytes([self.version, 0, 0, 0]), times, self.timescale.to_bytes(4), wide(self.duration()), bytes(4))
        chunks, stsc = [len(chunk) for chunk in self.chunks], []
        for at, samples in enumerate(chunks):
            if not stsc or stsc[-1][1] != samples:
                stsc.append((at + 1, samples, 1))
        size = len(self.samples[0]) if self.is_uniform else 0
        sizes = atom('stsz', bytes(4), size.to_bytes(4), len(self.samples).to_bytes(4),
                     *([] if size else [len(sample).to_bytes(4) for sample in self.samples]))
        tables = [atom('stsd', bytes(4), (1).to_bytes(4), atom('mp4v', bytes(78))), table('stts', runs(self.durations)),
                  table('stss', self.keys) if self.keys else b'',
                  table('ctts', runs(self.offsets)) if self.offsets else b'', table('stsc', stsc), sizes,
                  table('co64', places, 8) if self.is_long else table('stco', places)]
        return atom('trak', tkhd, atom('edts', b'left out'), atom('mdia', mdhd, atom('hdlr', b'handler'), atom(
            'minf', atom('vmhd', b'v'), atom('dinf', b'd'), atom('stbl', *tables))), atom('udta', b'left out, too'))


def movie(dice, tracks):
    """A file of these tracks, whose chunks alternate; with the head in front or behind."""
    scale = dice.choice((1000, 600))
    duration = max(track.duration() * scale // track.timescale for track in tracks)
    order = sorted((at / len(track.chunks), track.number, at) for track in tracks for at in range(len(track.chunks)))
    named = {track.number: track for track in tracks}
    is_front, is_long = dice.random() < 0.5, dice.random() < 0.2
    ftyp = atom('ftyp', b'isommade')

    def head(start):
        places, at = {track.number: [] for track in tracks}, start
        for _, number, chunk in order:
            places[number].append(at)
            at += sum(len(named[number].samples[sample]) for sample in named[number].chunks[chunk])
        mvhd = atom('mvhd', bytes(4), bytes(8), scale.to_bytes(4), duration.to_bytes(4), bytes(80))
        return atom('moov', mvhd, *(track.trak(places[track.number], scale) for track in tracks))
    content = b''.join(named[number].samples[sample] for _, number, chunk in order for sample in named[number].chunks[chunk])
    mdat, free = atom('mdat', content, long=is_long), atom('free', bytes(dice.randint(0, 9)))
    before = len(ftyp) + len(free) + len(mdat) - len(content)
    if is_front:
        return ftyp + free + head(before + len(head(0))) + mdat
    return ftyp + free + mdat + head(before)
