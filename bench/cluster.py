"""Three nodes and a Redis on one machine: how soon a purge is on all of them, and what purges of others cost."""
import asyncio, pathlib, re, socket, statistics, time
import nodes
from clients import hits_during
from peers import until

# For each round of the bench.
PURGES = 100
CLIENTS = 1000
WRITER = 'local n = 0\nfunction request() n = (n + 1) % 50 return wrk.format("GET", "/hot" .. n) end'


def following(a, b, c, count):
    """Milliseconds from a purge's answer on one node to the first new answer of each of the others."""
    took = []
    for _ in range(count):
        nodes.warm([b, c], '/1')
        nodes.VERSIONS['/1'] += 1
        version = nodes.VERSIONS['/1']
        assert a.purge('/1') == 'sent'
        begun = time.monotonic()
        left = [b, c]
        while left:
            behind = [node for node in left if node.page('/1')[0] < version]
            took += [1000 * (time.monotonic() - begun)] * (len(left) - len(behind))
            left = behind
    return sorted(took)


class Purger:
    """Purges over one connection, with as little work of its own as can be: the machine is the node's, too."""

    def __init__(self, node):
        self.node = node
        self.connect()

    def connect(self):
        self.socket = socket.create_connection(('127.0.0.1', self.node.port))
        self.answers = self.socket.makefile('rb')

    def purge(self, number):
        self.socket.sendall(b'PURGE /cold%d HTTP/1.1\r\nHost: site.example\r\n\r\n' % (number % 100))
        head = b''.join(iter(lambda: self.answers.readline().strip(), b'')).lower()
        assert b'x-purge-bus: sent' in head, head
        self.answers.read(int(re.search(rb'content-length: *(\d+)', head)[1]))
        # After as many requests as `keepalive_requests` says.
        if b'connection: close' in head:
            self.connect()


def cpu(pid):
    """Microseconds that the threads of a process have had."""
    return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f'/proc/{pid}/task').glob('*/schedstat')) / 1000


def hits(folder, node, seconds, purger=None):
    """Hits of a node while another one purges a hundred times a second: in a second, and in a second of its CPU."""
    script = folder / 'hot.lua'
    script.write_text(WRITER)
    before = cpu(node.serving_pid)
    rate = hits_during(purger and purger.purge, node.port, script, seconds, '-c20', '-H', 'Host: site.example')
    return rate, rate * seconds / (cpu(node.serving_pid) - before)


def cost(purger, pids, count):
    """Microseconds of each process for a purge, a hundred a second."""
    before, due = [cpu(pid) for pid in pids], time.monotonic()
    for number in range(count):
        purger.purge(number)
        due += 0.01
        time.sleep(max(0, due - time.monotonic()))
    return [(cpu(pid) - used) / count for pid, used in zip(pids, before)]


async def one(port, path):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(f'GET {path} HTTP/1.1\r\nHost: site.example\r\nConnection: close\r\n\r\n'.encode())
    answer = await reader.read()
    writer.close()
    return answer.startswith(b'HTTP/1.1 200 ')


async def crowd(ports, path, count):
    """How many of many clients at once got a page that no node has."""
    return sum(await asyncio.gather(*(one(ports[number % len(ports)], path) for number in range(count))))


def of_redis(redis, pages, node):
    """What Redis does for each page that a node takes from it: commands and bytes sent."""
    figure = lambda name: int(re.search(rf'^{name}:(\d+)', redis.ask('INFO', 'stats').decode(), re.M)[1])
    names = 'total_commands_processed', 'total_net_output_bytes'
    before = [figure(name) for name in names]
    for path in pages:
        assert node.page(path)[1] == 'HIT'
    return [(figure(name) - figure_before) / len(pages) for name, figure_before in zip(names, before)]


def memory(redis):
    """Bytes of Redis for each connection of a node."""
    clients = redis.ask('CLIENT', 'LIST').decode().splitlines()
    sizes = [int(re.search(r'tot-mem=(\d+)', line)[1]) for line in clients if 'cmd=client' not in line]
    return statistics.mean(sizes), len(sizes)


def lines(program, rounds, seconds):
    """The rows."""
    with nodes.site(shared='redis://127.0.0.1:@REDIS@', program=str(program)) as (redis, (a, b, c)):
        took = following(a, b, c, PURGES * rounds)
        nodes.warm([b], *[f'/hot{number}' for number in range(50)])
        hits(redis.root, b, seconds)
        purger = Purger(a)
        pairs = [(hits(redis.root, b, seconds, purger), hits(redis.root, b, seconds)) for _ in range(rounds)]
        ratio, of_cpu = (statistics.median(during[at] / without[at] for during, without in pairs) for at in (0, 1))
        own, other, of_the_redis = map(statistics.median, zip(*[
            cost(purger, (a.serving_pid, b.serving_pid, redis.pid), 100) for _ in range(rounds)]))
        made = asyncio.run(crowd([node.port for node in (a, b, c)], '/slow', CLIENTS)), nodes.ASKED['/slow']
        pages = [f'/shared{number}' for number in range(200)]
        for path in pages:
            a.page(path)
        until('the tier to have them', lambda: a.shared('stored') >= len(pages))
        commands, sent = of_redis(redis, pages, b)
        held, count = memory(redis)
        return [
            ('a purge on one of three nodes, until the first new answer of the others: median, p99', '-',
             f'{statistics.median(took):.1f} ms, {took[len(took) * 99 // 100]:.1f} ms', 'wanted: p99 under 20 ms'),
            ('hits per second of a node during 100 purges per second on another one, against without', '-',
             f'{ratio:.2f}', 'wanted: at least 0.9'),
            ('the same hits per second of the CPU of the node alone: others and their clients are on the machine, too', '-',
             f'{of_cpu:.2f}', ''),
            ('CPU for a purge on one of three nodes: of that node, of each other one, of Redis', '-',
             f'{own:.0f} µs, {other:.0f} µs, {of_the_redis:.0f} µs', ''),
            (f'{CLIENTS:,} clients on three nodes at once, one missing page: answers, times that it was made', '-',
             f'{made[0]:,}, {made[1]}', 'wanted: all, 1'),
            ('a page of 1 byte that a node takes from Redis: commands (one before the answer), bytes that Redis sends', '-',
             f'{commands:.2f}, {sent:.0f}', 'wanted: 1 before the answer'),
            ('memory of Redis for a connection of a node, and how many there are', '-', f'{held / 1024:.1f} KB, {count}', ''),
        ]
