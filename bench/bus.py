#!/usr/bin/env python3
"""What the purge bus costs its Redis: many readers of one stream, as many nodes would be, and purges at a steady pace.

  bench/bus.py [NODES ...]     10, 100 and 1,000 without

The readers are connections, not yorozus: each asks as a node does, and takes an entry of the size that a purge of one page
has. For each purge: the Redis's CPU, what it sends, and the time until the last reader has it. docs/nodes.md has a run.
"""
import asyncio, pathlib, resource, statistics, sys, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))
import nodes
from peers import Folder

# Ten a second, for as long as it takes to measure.
PURGES, PAUSE = 100, 0.1
# As those of crates/gateway/src/nodes/send.rs, of a page with an address of usual length, signed.
ENTRY = ('node', 'web-17.example.com', 'run', '9f86d081884c7d65', 'number', '184467',
         'lines', 'after 184466 1764000000000-0\nhard page:' + b'httpsGETwww.example.com/2026/11/a-post-with-a-long-name/'.hex() + ' site\n',
         'sign', '0' * 64)


def command(*words):
    return b'*%d\r\n' % len(words) + b''.join(b'$%d\r\n%s\r\n' % (len(str(word)), str(word).encode()) for word in words)


async def reply(reader):
    """One answer of RESP2."""
    line = (await reader.readline()).rstrip()
    kind, rest = line[:1], line[1:]
    if kind == b'$':
        return None if rest == b'-1' else (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b'*':
        return None if rest == b'-1' else [await reply(reader) for _ in range(int(rest))]
    return rest


async def node(port, arrived):
    """Reads the stream for ever, and notes when each entry came."""
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    last = '0'
    try:
        while True:
            # As crates/gateway/src/nodes/read.rs asks: whether the place is still there, and what is behind it.
            writer.write(command('XRANGE', 'yorozu', last, last)
                         + command('XREAD', 'COUNT', 100, 'BLOCK', 1000, 'STREAMS', 'yorozu', last))
            await reply(reader)
            found = await reply(reader)
            for name, _ in (found[0][1] if found else ()):
                last = name.decode()
                arrived.setdefault(last, []).append(time.monotonic())
    finally:
        writer.close()


async def measured(count):
    with Folder() as folder, nodes.Redis(folder, '--maxclients', '10000') as redis:
        info = lambda name: int(next(line for line in redis.ask('INFO').decode().splitlines() if line.startswith(name + ':')).split(':')[1])
        cpu = lambda: sum(map(int, pathlib.Path(f'/proc/{redis.pid}/stat').read_text().rpartition(')')[2].split()[11:13]))
        memory, arrived = info('used_memory'), {}
        readers = [asyncio.create_task(node(redis.port, arrived)) for _ in range(count)]
        while info('blocked_clients') < count:
            await asyncio.sleep(0.05)
        memory = (info('used_memory') - memory) / count
        reader, writer = await asyncio.open_connection('127.0.0.1', redis.port)
        begun_cpu, begun_bytes, took = cpu(), info('total_net_output_bytes'), []
        for _ in range(PURGES):
            begun = time.monotonic()
            writer.write(command('XADD', 'yorozu', 'MAXLEN', '~', 100000, '*', *ENTRY))
            name = (await reply(reader)).decode()
            while len(arrived.get(name, ())) < count:
                await asyncio.sleep(0.001)
            took.append(1000 * (max(arrived[name]) - begun))
            await asyncio.sleep(max(0, begun + PAUSE - time.monotonic()))
        spent, sent = (cpu() - begun_cpu) * 10 / PURGES, (info('total_net_output_bytes') - begun_bytes) / PURGES
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        writer.close()
    took.sort()
    return spent, sent / 1024, statistics.median(took), took[len(took) * 99 // 100], memory / 1024


def main(counts):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print('| nodes | CPU of Redis for a purge | sent by Redis for a purge | until the last node has it: median, p99 | memory of Redis for a node |\n'
          '| --- | --- | --- | --- | --- |')
    for count in counts:
        spent, sent, median, late, memory = asyncio.run(measured(count))
        print(f'| {count:,} | {spent:.1f} ms | {sent:,.1f} KB | {median:.1f} ms, {late:.1f} ms | {memory:.0f} KB |', flush=True)


if __name__ == '__main__':
    main([int(word) for word in sys.argv[1:]] or [10, 100, 1000])
