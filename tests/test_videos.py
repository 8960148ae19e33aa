"""Parts of videos (`mp4`): files made up at random, each sample of the answer looked at, and nginx beside it.

ROUNDS= files, SEED= repeats them
"""
import os, random
from peers import NGINX, Folder, Server, equal, get
from videos import Track, movie

ROUNDS, SEED = int(os.environ.get('ROUNDS', 10)), int(os.environ.get('SEED', 1))


def read(content, path=''):
    """Atoms by path, `/moov/trak` as lists."""
    found, at = {}, 0
    while at < len(content):
        length, name, top = int.from_bytes(content[at:at + 4]), content[at + 4:at + 8].decode(), 8
        if length == 1:
            length, top = int.from_bytes(content[at + 8:at + 16]), 16
        assert length >= top and at + length <= len(content), (path, name, length)
        inner = content[at + top:at + length]
        key = f'{path}/{name}'
        if name == 'trak':
            found.setdefault(key, []).append(read(inner))
        elif name in ('moov', 'mdia', 'minf', 'stbl', 'edts'):
            found.update(read(inner, key))
        else:
            assert key not in found, key
            found[key] = inner
        at += length
    return found


def numbers(content, width=4, skip=8):
    return [int.from_bytes(content[at:at + width]) for at in range(skip, len(content), width)]


def samples(trak, file):
    """What a player reads: the samples of a track, with their durations and which are key frames."""
    at = '/mdia/minf/stbl/'
    size, count, *sizes = numbers(trak[f'{at}stsz'], 4, 4)
    sizes = sizes or [size] * count
    assert len(sizes) == count
    places = numbers(trak[f'{at}stco']) if f'{at}stco' in trak else numbers(trak[f'{at}co64'], 8)
    entries = numbers(trak[f'{at}stsc'])
    entries = [entries[three:three + 3] for three in range(0, len(entries), 3)]
    assert not entries or entries[0][0] == 1, entries
    counts = []
    for place, (first, samples, _) in enumerate(entries):
        last = entries[place + 1][0] if place + 1 < len(entries) else len(places) + 1
        counts += [samples] * (last - first)
    assert len(counts) == len(places) and sum(counts) == count, (counts, len(places), count)
    found, next_size = [], iter(sizes)
    for place, samples in zip(places, counts):
        for _ in range(samples):
            size = next(next_size)
            found.append(file[place:place + size])
            place += size
    durations = numbers(trak[f'{at}stts'])
    times = [value for count, value in zip(durations[::2], durations[1::2]) for _ in range(count)]
    return found, times, numbers(trak[f'{at}stss']) if f'{at}stss' in trak else None


def wanted(track, start, end, is_from_key):
    """The samples from one to before another, by the durations alone; `None`: none at all."""
    def sample_at(time):
        for sample, duration in enumerate(track.durations):
            if time < duration:
                return sample
            time -= duration
        return len(track.durations)
    first = sample_at(start * track.timescale // 1000)
    if first == len(track.durations):
        return None
    begun = first
    if is_from_key and track.keys:
        begun = max(key for key in track.keys if key <= first + 1) - 1
    prefix = sum(track.durations[begun:first])
    last = len(track.durations)
    if end:
        time, last = (end - start) * track.timescale // 1000 + prefix, begun
        while last < len(track.durations) and time >= track.durations[last]:
            time -= track.durations[last]
            last += 1
    return begun, last


def judge(answer, tracks, start, end, is_from_key, what):
    """Every sample of the answer is the one it has to be."""
    parts = [wanted(track, start, end, is_from_key) for track in tracks]
    parts = [(track, part) for track, part in zip(tracks, parts) if part]
    if answer.status != 200:
        assert not any(last > first for _, (first, last) in parts) or start >= shortest(tracks), (what, answer.status)
        return
    found = read(answer.content)
    by_number = {int.from_bytes(trak['/tkhd'][20 if trak['/tkhd'][0] else 12:][:4]): trak for trak in found['/moov/trak']}
    for track, (first, last) in parts:
        if track.number not in by_number:
            # It ends, in whole units of its own or the movie's, at the start.
            assert start >= shortest([track]), (what, track.number)
            continue
        contents, times, keys = samples(by_number[track.number], answer.content)
        equal(contents, track.samples[first:last], what)
        equal(times, track.durations[first:last], what)
        if track.keys:
            equal(keys, [key - first for key in track.keys if first < key <= last], what)


def shortest(tracks):
    """When the first of them ends, in milliseconds, with what is lost by rounding."""
    return min(track.duration() * 1000 // track.timescale for track in tracks) - 4


def is_odd(tracks, start, end, is_from_key):
    """Where nginx does not count the sizes of samples that are all equal, lists a chunk without samples, or finds no data
    since all of a part lies in one chunk."""
    parts = [(track, wanted(track, start, end, is_from_key)) for track in tracks]
    within = lambda track, first, last: any(first in chunk and (last <= first or last - 1 in chunk) for chunk in track.chunks)
    return any(track.is_uniform for track in tracks) or any(part and within(track, *part) for track, part in parts)


def test_parts_have_the_samples_they_should_and_are_nginx_s():
    print(f'SEED={SEED}')
    with Folder() as folder:
        conf = f'''server {{ listen 127.0.0.1:$port; root {folder};
            location / {{ mp4; mp4_max_buffer_size 20m; }} location /key/ {{ alias {folder}/; mp4; mp4_start_key_frame on; }} }}'''
        os.chmod(folder, 0o755)
        with Server(folder, conf) as server, Server(folder, conf, NGINX) as nginx:
            compared = number = 0
            # How many parts can be compared depends on what was drawn.
            while number < ROUNDS or compared < 5 * ROUNDS:
                number += 1
                assert number < 10 * ROUNDS, compared
                dice = random.Random(f'{SEED} {number}')
                tracks = [Track(dice, at + 1, dice.random() < 0.5, dice.random() < 0.4, dice.random() < 0.15)
                          for at in range(dice.randint(1, 3))]
                file = movie(dice, tracks)
                (folder / f'{number}.mp4').write_bytes(file)
                length = max(track.duration() * 1000 // track.timescale for track in tracks)
                for _ in range(12):
                    start = dice.choice((0, dice.randint(0, length + 5)))
                    end = dice.choice((0, start + dice.randint(1, 40), dice.randint(0, length + 50)))
                    is_from_key = dice.random() < 0.4
                    path = f'/{"key/" if is_from_key else ""}{number}.mp4?start={start / 1000}' + (f'&end={end / 1000}' if end else '')
                    ours, theirs = get(server.port, path), get(nginx.port, path)
                    end = end if end > start else 0
                    if ours.content != file:
                        judge(ours, tracks, start, end, is_from_key, f'{path} of SEED={SEED}')
                    if not is_odd(tracks, start, end, is_from_key):
                        compared += 1
                        assert (ours.status, ours.content if ours.status == 200 else b'') == (
                            theirs.status, theirs.content if theirs.status == 200 else b''), (path, SEED, ours.status, theirs.status, nginx.log()[-300:])
            assert 'panic' not in server.log(), server.log()


def test_files_that_are_broken_are_refused_and_bounded():
    dice = random.Random(SEED)
    print(f'SEED={SEED}')
    with Folder() as folder:
        os.chmod(folder, 0o755)
        conf = f'''server {{ listen 127.0.0.1:$port; root {folder}; location / {{ mp4; }}
            location /key/ {{ alias {folder}/; mp4; mp4_start_key_frame on; }} }}'''
        good = movie(dice, [Track(dice, at + 1, True, True, False) for at in range(2)])
        with Server(folder, conf) as server:
            before = server.allocated_bytes()
            for number in range(8 * ROUNDS):
                broken = bytearray(good)
                for _ in range(dice.randint(1, 4)):
                    # Numbers of the head, large and small.
                    at = dice.randrange(len(broken) - 4)
                    broken[at:at + 4] = dice.choice((bytes(4), b'\xff' * 4, b'\x7f\xff\xff\xff', dice.randbytes(4), b'\0\0\0\1'))
                (folder / 'broken.mp4').write_bytes(broken[:dice.randint(1, len(broken))] if dice.random() < 0.3 else broken)
                for path in ('/broken.mp4?start=0.2', '/key/broken.mp4?start=0.1&end=0.4', '/broken.mp4?end=0.3'):
                    answer = get(server.port, path)
                    assert answer.status in (200, 500), (path, answer.status, SEED)
                    assert len(answer.content) < 4 * len(good), (path, len(answer.content), SEED)
            assert server.allocated_bytes() - before < 64 << 20, server.allocated_bytes()
            assert 'panic' not in server.log(), server.log()
