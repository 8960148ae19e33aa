"""More than one machine: purges over Redis, with nodes, servers and networks that come and go."""
import asyncio, collections, contextlib, ctypes, http.client, http.server, itertools, json, os, random, re, shutil, signal
import socket, subprocess, sys, threading, time, urllib.parse
import pytest
from monitoring import Viewer
from nodes import (ASKED, BUS, GONE, HELD, NODE, PATIENT, SECRET, SHORT, USUAL, VERSIONS, Namespace, Node, Redis, ask, ip, origin,
                   site, warm)
from peers import NGINX, ROOT, SECONDS, YOROZU, Accepting, Folder, Memcached, Process, Server, free_port, listens, until

STORM = float(os.environ.get('STORM', 0))
CLONE_NEWNET = 0x40000000  # unshare(2)


@pytest.fixture
def own_network():
    """Has a test in a network namespace of its own, where Redis and the origin are beside a switch; it goes with the last process in it,
    however that ends."""
    before, system = os.open('/proc/self/ns/net', os.O_RDONLY), ctypes.CDLL(None, use_errno=True)
    if system.unshare(CLONE_NEWNET):
        pytest.skip(f'network namespaces are not allowed here: {os.strerror(ctypes.get_errno())}')
    try:
        ip('link', 'set', 'lo', 'up')
        # With an address of its own: else it has that of a line, and another one when that is cut.
        ip('link', 'add', 'name', 'switch', 'address', '02:00:00:00:00:01', 'type', 'bridge')
        ip('link', 'set', 'switch', 'up')
        ip('addr', 'add', f'{Namespace.REDIS_HOST}/24', 'dev', 'switch')
        yield
    except (AssertionError, OSError) as problem:
        pytest.skip(f'network namespaces are not allowed here: {problem}')
    finally:
        assert system.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(before)


def test_purges_reach_every_node():
    with site() as (redis, nodes):
        a, b, c = nodes
        warm(nodes, '/1', '/2', '/3', '/4')
        VERSIONS['/1'] += 1
        assert a.purge('/1') == 'sent'
        assert a.page('/1') == (1, 'MISS')
        b.becomes('/1', 1), c.becomes('/1', 1)
        VERSIONS.update(['/2', '/3', '/4'])
        answers = b.purge_by_api({'tags': ['page-2']}, {'urls': ['//site.example/3']}, {'tags': ['page-4'], 'soft': True})
        assert [answer['bus'] for answer in answers] == ['sent'] * 3, answers
        for node in nodes:
            for path in '/2', '/4':
                node.becomes(path, 1)
        assert a.metric('connected') == 1 and a.metric('entries_total{kind="sent"}') >= 2
        assert c.metric('entries_total{kind="read"}') >= 4
        assert all(GONE not in node.log() for node in nodes)


def test_viewers_are_told_of_purges_of_other_nodes():
    with site('ab') as (_, (a, b)):
        warm([b], '/1')
        with Viewer(b, unix=b.folder / 'pid.sock') as viewer:
            viewer.next('figures')
            a.purge_by_api({'tags': ['page-1'], 'soft': True})
            [purge] = viewer.next('purges')
            assert (purge['kind'], purge['what'], purge['pages'], purge['soft']) == ('tag', 'site.example page-1', 1, True), purge


def test_others_follow_at_once():
    """Others hear of a purge, and do not ask for what is new now and then: between the purge and the first new answer are some
    requests, not hundreds; also through a reload. The best of some rounds is judged."""
    with site() as (_, nodes):
        a, b, c = nodes
        for rounds in range(1, 6), range(6, 11):
            asked = collections.defaultdict(list)
            for number in rounds:
                warm(nodes, '/1')
                VERSIONS['/1'] += 1
                a.purge('/1')
                for node in b, c:
                    asked[node.name].append(next(count for count in itertools.count() if node.page('/1')[0] >= number))
            print(f'old answers after a purge: {dict(asked)}')
            assert all(min(counts) < 30 for counts in asked.values()), asked
            b.reload()


def test_a_node_that_was_away_reads_before_it_serves():
    with site() as (redis, nodes):
        a, b, c = nodes
        warm(nodes, '/1', '/2')
        b.kill()
        os.kill(c.serving_pid, signal.SIGSTOP)
        VERSIONS['/1'] += 1
        a.purge('/1')
        os.kill(c.serving_pid, signal.SIGCONT)
        c.becomes('/1', 1)
        b.again()
        assert b.page('/1') == (1, 'MISS'), 'the first answer of all'
        assert b.page('/2') == (0, 'HIT'), 'what was not purged is still there'
        # Cut off, it serves what it has, and follows when it is back.
        c.way.is_cut.set()
        VERSIONS['/2'] += 1
        a.purge('/2')
        assert c.page('/2') == (0, 'HIT')
        c.way.is_cut.clear()
        c.becomes('/2', 1)
        assert all(GONE not in node.log() for node in nodes)


def test_without_redis_a_start_purges_everything():
    with site('a', bus=USUAL) as (redis, [a]):
        warm([a], '/1')
        a.kill()
        os.kill(redis.pid, signal.SIGSTOP)
        VERSIONS['/1'] += 1
        a.again()
        assert a.page('/1') == (1, 'MISS')
        a.says('what the other nodes purged is not known: everything stored is purged softly')
        os.kill(redis.pid, signal.SIGCONT)
        until('the bus', lambda: a.metric('connected') == 1)
        assert GONE not in a.log()


def test_without_redis_purges_are_queued():
    with site(bus=SHORT, redis=['--appendonly', 'yes']) as (redis, nodes):
        a, b, c = nodes
        warm(nodes, '/1', '/2', '/3', '/4')
        redis.kill()
        for path in '/1', '/2', '/3':
            VERSIONS[path] += 1
            assert a.purge(path) == 'queued'
            assert a.page(path) == (1, 'MISS'), 'its own node is done'
        assert a.purge_by_api({'tags': ['none']})[0]['bus'] == 'queued'
        assert a.metric('queued') == 4 and a.metric('connected') == 0
        a.says('does not answer, purges are queued')
        # They outlast the node.
        a.kill()
        a.again()
        assert a.page('/4')[0] == 0
        assert a.metric('queued') >= 1
        redis.again()
        for node in b, c:
            for path in '/1', '/2', '/3':
                node.becomes(path, 1)
        until('the queue', lambda: a.metric('queued') == 0)
        lines = b''.join(fields[b'lines'] for _, fields in redis.entries()).decode().splitlines()
        keys = [bytes.fromhex(line.split()[1][5:]).decode() for line in lines if ' page:' in line]
        # Each with what its URL may have led to.
        hosts = 'site.example', '*site.example'
        assert keys == [key for path in ('/1', '/2', '/3') for key in (path, *(f'url //{host}{path}' for host in hosts))], keys
        until('the file', lambda: not (a.folder / 'cache/yorozu.bus.queue').exists())
        a.says('answers again')
        a.kill()
        a.again()
        assert a.metric('queued') == 0


def test_the_queue_on_disk_is_bounded():
    """Of more than 10,000 purges that wait everything is purged instead, in memory and in the file."""
    with site('ab', bus=SHORT, redis=['--appendonly', 'yes']) as (redis, (a, b)):
        warm([a, b], '/1', '/2')
        file, sizes = a.folder / 'cache/yorozu.bus.queue', []
        redis.kill()
        for number in range(102):
            a.purge_by_api(*[{'tags': [f'none-{number}-{one}']} for one in range(100)])
            sizes.append(file.stat().st_size)
            assert a.metric('queued') <= 10_000
        assert sizes[-1] < max(sizes) / 10, (sizes[-1], max(sizes))
        VERSIONS['/1'] += 1
        assert a.purge('/1') == 'queued'
        # The next process has no more than that either.
        a.kill()
        a.again()
        assert a.metric('queued') < 1000
        redis.again()
        b.becomes('/1', 1)
        until('the queue', lambda: a.metric('queued') == 0)
        lines = b''.join(fields[b'lines'] for _, fields in redis.entries()).decode()
        assert 'soft all: pages' in lines
        until('the file', lambda: not file.exists())


def test_who_is_cut_off_says_so():
    """Also a node that purges nothing; it follows as soon as the network is back."""
    with site('ab', bus=USUAL) as (redis, (a, b)):
        warm([a, b], '/1')
        until('the bus', lambda: a.metric('connected') == 1)
        a.way.is_cut.set()
        until('that it is noticed', lambda: a.metric('connected') == 0)
        a.says('does not answer, purges are queued')
        VERSIONS['/1'] += 1
        b.purge('/1')
        assert a.page('/1') == (0, 'HIT'), 'it goes on serving what it has'
        a.way.is_cut.clear()
        a.becomes('/1', 1)
        until('the bus', lambda: a.metric('connected') == 1)
        a.says('answers again')


def test_a_line_that_is_cut_and_healed(own_network):
    """Packets of a node are lost both ways, for less than the bus waits for an answer and for longer: the others follow one another,
    what it purges itself is done there, and all know all once the line is there again."""
    with site(network=Namespace, bus=SHORT) as (redis, (a, b, c)):
        warm([a, b, c], '/1', '/2', '/3')
        for number, seconds in enumerate((0, 0.5, 4), 1):
            warm([a, b, c], '/2')
            c.way.is_cut.set()
            for node, other, path in (a, b, '/1'), (b, a, '/2'):
                VERSIONS[path] += 1
                node.purge(path)
                other.becomes(path, VERSIONS[path])
            assert c.page('/2') == (number - 1, 'HIT'), 'it goes on serving what it has'
            VERSIONS['/3'] += 1
            assert c.purge('/3') == 'queued'
            assert c.page('/3')[0] == number, 'its own purge is done'
            time.sleep(seconds)
            assert [node.page('/3')[0] for node in (a, b)] == [number - 1] * 2
            c.way.is_cut.clear()
            for node in a, b, c:
                for path in '/1', '/2', '/3':
                    node.becomes(path, number)
            until('the queue', lambda: c.metric('queued') == 0 and c.metric('connected') == 1)
        assert all(GONE not in node.log() and 'are missing' not in node.log() for node in (a, b, c))


def test_a_full_redis_is_no_silent_one():
    """With `noeviction` it refuses what needs memory, and answers all else."""
    with site('ab', redis=['--maxmemory-policy', 'noeviction'], shared=SHARED) as (redis, (a, b)):
        for path in ('/1', '/2'):
            a.page(path)
        until('the pages', lambda: a.shared('stored') == 2)
        # Until it has asked once, a node may have no connection yet.
        b.page('/2')
        redis.ask('CONFIG', 'SET', 'maxmemory', 1)
        for number in range(10, 30):
            assert a.page(f'/{number}') == (0, 'MISS')
        assert b.page('/1') == (0, 'HIT'), 'what is there is found'
        VERSIONS['/1'] += 1
        assert b.purge('/1') == 'queued'
        assert b.page('/1') == (1, 'MISS')
        a.says('refuses what it is asked: OOM')
        b.says('refuses purges, which are queued: OOM')
        time.sleep(2)
        assert a.log().count('refuses what it is asked') == 1, a.log()
        assert 'does not answer' not in a.log() + b.log() and 'answers again' not in a.log() + b.log(), a.log() + b.log()
        redis.ask('CONFIG', 'SET', 'maxmemory', 0)
        assert (a.shared('stored'), a.shared('dropped')) == (2, 20)
        until('the queue', lambda: b.metric('queued') == 0 and b.metric('connected') == 1)
        a.becomes('/1', 1)
        until('pages are stored', lambda: redis_has(redis, 'new', a, b))


def test_a_user_needs_what_the_document_says():
    """With the rights of `docs/nodes.md` and no others, purges are sent and pages shared."""
    document = (ROOT / 'docs/nodes.md').read_text()
    sentence = document[document.index('A user needs'):].split('\n')[0]
    rights, pages = [re.search(r'`(\+[^`]*)`' + text, sentence).group(1).split() for text in (' on the keys', ' on `')]
    keys = [f'~{pattern.replace("NAME", "yorozu")}' for pattern in re.findall(r'`([^`+]*NAME[^`]*)`', sentence)]
    assert len(keys) == 3, keys
    bus = 'redis://site:word@127.0.0.1:@REDIS@?wait=300ms&' + PATIENT
    users = ['--user', 'site', 'on', '>word', *keys, *rights, *pages, '--user', 'default', 'on', 'nopass', '~*', '&*', '+@all']
    with site('ab', bus=bus, redis=users, shared=SHARED.replace('://', '://site:word@')) as (redis, (a, b)):
        assert a.page('/1') == (0, 'MISS')
        until('the page', lambda: a.shared('stored') == 1)
        assert b.page('/1') == (0, 'HIT')
        VERSIONS['/1'] += 1
        # Until the other node has done it, too.
        until('the purge', lambda: a.purge('/1') == 'sent')
        assert b.page('/1')[0] == 1
        # What is not stored gives its lease back.
        assert a.page('/private') == b.page('/private') == (0, 'MISS')
        until('no lease', lambda: not redis.ask('KEYS', '*:lease'))
        b.kill()
        b.again()
        assert b.page('/1')[0] == 1
        assert not redis.ask('ACL', 'LOG'), redis.ask('ACL', 'LOG')
        for log in a.log(), b.log():
            assert 'refuses' not in log and 'does not answer' not in log and 'NOPERM' not in log, log


def test_who_lost_its_place_purges_everything():
    with site('ab', redis=['--appendonly', 'no']) as (redis, nodes):
        a, b = nodes
        for number, lose in enumerate([lambda: redis.ask('FLUSHALL'), lambda: redis.ask('XTRIM', 'yorozu', 'MAXLEN', 1),
                                       lambda: (redis.kill(), redis.again())], 1):
            for node in nodes:
                until('the bus', lambda: node.metric('connected') == 1)
            warm(nodes, '/1', '/2')
            b.way.is_cut.set()
            VERSIONS.update(['/1', '/2'])
            a.purge('/1')
            a.purge('/2')
            lose()
            b.way.is_cut.clear()
            for path in '/1', '/2':
                b.becomes(path, number)
            b.says(GONE, number)
            # Everybody's place was lost, but for the one who had read the last entry.
            until('the bus', lambda: b.metric('connected') == 1)
        time.sleep(1.2)
        assert b.log().count(GONE) == 3, b.log()
        assert b.metric('lost_total') == 3


def notices_a_loss(redis, a, b):
    """Of two purges of one node while the other is away, Redis loses the first."""
    b.kill()
    VERSIONS.update(['/1', '/2'])
    assert a.purge('/1') == 'sent'
    redis.ask('XDEL', 'yorozu', redis.entries()[-1][0])
    assert a.purge('/2') == 'sent'
    b.again()
    for path in '/1', '/2':
        b.becomes(path, 1)
    b.says('are missing: everything stored is purged softly')


def test_what_is_missing_is_noticed():
    """An entry that Redis had taken and then has no more, while everyone's place is still there."""
    with site('ab') as (redis, nodes):
        a, b = nodes
        warm(nodes, '/1', '/2')
        notices_a_loss(redis, a, b)


def test_what_is_missing_of_a_new_process_is_noticed():
    """A process that goes on at the place of the one before, and whose first entry is lost."""
    with site('ab') as (redis, nodes):
        a, b = nodes
        warm(nodes, '/1', '/2')
        a.kill()
        a.again()
        notices_a_loss(redis, a, b)


def test_a_node_that_joins_misses_nothing():
    """What others wrote before a node took its place is no loss to it."""
    with site('ab') as (redis, nodes):
        a, b = nodes
        for number in range(600):
            a.purge(f'/{number}')
        b.kill()
        shutil.rmtree(b.folder / 'cache')
        a.purge('/0')
        b.again()
        warm(nodes, '/1', '/2')
        VERSIONS['/1'] += 1
        assert a.purge('/1') == 'sent'
        b.becomes('/1', 1)
        assert b.page('/2') == (0, 'HIT') and 'are missing' not in b.log(), b.log()


def test_a_redis_that_comes_back_older_is_noticed():
    with site('ab') as (redis, nodes):
        a, b = nodes
        warm(nodes, '/1')
        redis.ask('SAVE')
        b.kill()
        VERSIONS['/1'] += 1
        assert a.purge('/1') == 'sent'
        # As a replica that takes over before it has the last entries.
        redis.kill()
        redis.again()
        a.says(GONE)
        b.again()
        assert b.page('/1') == (1, 'MISS')
        assert GONE not in b.log() and 'entries of node "a"' in b.log(), b.log()


def test_forged_entries_are_not_believed():
    with site('ab', bus='redis://127.0.0.1:@REDIS@?secret=@SECRET@&' + PATIENT) as (redis, nodes):
        a, b = nodes
        warm(nodes, '/1', '/2')
        a.purge('/2')
        until('the entry', lambda: b.metric('entries_total{kind="read"}') >= 1)
        _, real = redis.entries()[-1]
        assert real[b'node'] == b'a' and len(real[b'sign']) == 64
        warm(nodes, '/1', '/2')
        line = b'hard all: pages\n'
        forged = [{**real, b'lines': line}, {**real, b'number': b'99', b'lines': line}, {**real, b'sign': b'0' * 64},
                  {key: value for key, value in real.items() if key != b'sign'}, {b'x': b'y'}]
        for fields in [*forged, real]:
            redis.ask('XADD', 'yorozu', '*', *[word for pair in fields.items() for word in pair])
        until('all of them', lambda: b.metric('entries_total{kind="refused"}') == 5)
        b.says('is not believed: its signature is wrong')
        assert b.log().count('is not believed') == 1, 'one line a second'
        # The real one came again, and is known by its number.
        assert [b.page(path)[1] for path in ('/1', '/2')] == ['HIT', 'HIT']
        VERSIONS['/1'] += 1
        a.purge('/1')
        b.becomes('/1', 1)
        assert SECRET not in b.log() + a.log()


def test_an_answer_waits_for_the_others():
    with site(bus=f'{BUS}&wait=300ms') as (redis, nodes):
        a, b, c = nodes
        warm(nodes, '/1')
        for number in range(1, 21):
            VERSIONS['/1'] += 1
            # Where the machine stands still others are late as well; then once more.
            until('all', lambda: a.purge('/1') == 'sent')
            assert [node.page('/1')[0] for node in nodes] == [number] * 3
        c.way.is_cut.set()
        until('all but one', lambda: a.purge('/1') == 'late: c')

        def late():
            answer, = b.purge_by_api({'tags': ['x']})
            assert 'c' in answer['late'] and answer['bus'] == 'sent', answer
            return answer['late'] == ['c']
        until('all but one', late)
        os.kill(b.serving_pid, signal.SIGSTOP)
        # Where the machine stands still it is not known who is; then once more.
        until('all but two', lambda: sorted(a.purge('/1')[6:].split(', ')) == ['b', 'c'])
        os.kill(b.serving_pid, signal.SIGCONT)
        c.way.is_cut.clear()
        until('both', lambda: a.purge('/1') == 'sent')


def test_a_master_that_becomes_a_replica_loses_no_purge():
    """READONLY, and MASTERDOWN where it does not even answer questions: purges wait, pages are made, and each is said once."""
    for serves_stale in 'yes', 'no':
        with site('ab', shared=SHARED, redis=['--replica-serve-stale-data', serves_stale]) as (redis, (a, b)):
            warm((a, b), '/1')
            redis.ask('REPLICAOF', '127.0.0.1', free_port())
            VERSIONS['/1'] += 1
            assert a.purge('/1') == 'queued'
            until('a line', lambda: any(text in a.log() for text in ('queued: READONLY', 'MASTERDOWN')))
            assert a.page('/1')[0] == 1
            for number in range(10):
                assert a.page(f'/new{number}') == (0, 'MISS')
            assert a.log().count('purges, which are queued') + a.log().count('purges are queued') == 1, a.log()
            redis.ask('REPLICAOF', 'NO', 'ONE')
            b.becomes('/1', 1)
            until('the queue', lambda: a.metric('queued') == 0 and a.metric('connected') == 1)
            assert a.purge('/1') == 'sent' and GONE not in a.log() + b.log()


def test_what_a_lost_place_left_is_done_as_it_says():
    """A node that lost its place purges everything softly; a purge that it finds in the stream is done by then as it was meant."""
    with site('ab', bus='redis://127.0.0.1:@REDIS@?timeout=10s&wait=20s') as (redis, (a, b)):
        warm((a, b), '/1')
        b.way.is_cut.set()
        redis.ask('FLUSHALL')
        # Else its question of before would be answered.
        redis.ask('CLIENT', 'KILL', 'TYPE', 'normal')
        VERSIONS['/1'] += 1
        said = []
        purge = threading.Thread(target=lambda: said.append(a.purge('/1')))
        purge.start()
        until('the entry', lambda: any(b'hard' in fields[b'lines'] for _, fields in redis.entries()))
        b.way.is_cut.clear()
        purge.join()
        assert said == ['sent'], said
        assert b.page('/1') == (1, 'MISS')
        assert GONE in b.log()


def test_what_is_too_long_is_passed():
    """Entries that are too long together are read one by one; one that is too long for any reader is passed, and costs the place."""
    with site('ab', bus='redis://127.0.0.1:@REDIS@?timeout=10s') as (redis, (a, b)):
        warm((a, b), '/1')
        b.way.is_cut.set()
        for _ in range(5):
            redis.ask('XADD', 'yorozu', '*', 'x', 'y' * (16 << 20))
        VERSIONS['/1'] += 1
        a.purge('/1')
        b.way.is_cut.clear()
        b.becomes('/1', 1)
        assert GONE not in a.log() + b.log()
        for words in ['x', 'y' * (65 << 20)], ['x'] * 70_000:
            before = [node.log().count(GONE) for node in (a, b)]
            redis.ask('XADD', 'yorozu', '*', *words)
            for node, count in zip((a, b), before):
                node.says(GONE, count + 1)
            warm((a, b), '/1')
            VERSIONS['/1'] += 1
            a.purge('/1')
            b.becomes('/1', VERSIONS['/1'])


def test_nodes_that_redis_forgot_are_waited_for():
    """What Redis has lost says nothing of nodes that are down: this node knows them, also after a restart."""
    with site(bus='redis://127.0.0.1:@REDIS@?wait=300ms') as (redis, (a, b, c)):
        assert a.purge('/1') == 'sent'
        until('the note', lambda: 'node c ' in notes_of(a))
        c.kill()
        def only_c_is_late(of):
            # Others have to notice the loss first.
            return of.purge('/1') == 'late: c'
        for lose in [('FLUSHALL',), ('DEL', '{yorozu}:nodes')]:
            redis.ask(*lose)
            assert 'c' in a.purge('/1').removeprefix('late: ').split(', '), 'it cannot have done it'
            until('the others', lambda: only_c_is_late(a))
        redis.ask('FLUSHALL')
        a.kill(), a.again()
        until('the others', lambda: only_c_is_late(a))
        redis.kill(), redis.again()
        until('the others', lambda: only_c_is_late(a))
        c.again()
        until('all', lambda: a.purge('/1') == 'sent')


def notes_of(node):
    path = node.folder / 'cache/yorozu.bus.nodes'
    return path.read_text() if path.exists() else ''


def test_of_nodes_that_nobody_notes_nothing_is_said():
    """A user that may not note its place, as of a Redis that loses the notes: who has done it is not known."""
    user = ['--user', *'default on nopass ~* &* +@all -hset'.split()]
    with site('ab', bus='redis://127.0.0.1:@REDIS@?wait=200ms', redis=user) as (redis, (a, b)):
        assert a.purge('/1') == 'late: b, ?', a.purge('/1')
        redis.ask('ACL', 'SETUSER', 'default', '+hset')
        until('both', lambda: a.purge('/1') == 'sent')


def test_what_a_request_changed_is_purged_everywhere():
    changed = NODE.replace('proxy_cache_lock on;', 'proxy_cache_lock on; proxy_cache_invalidate on;')
    with Folder() as folder, Redis(folder) as redis, origin() as web:
        VERSIONS.clear()
        bus = f'unix:{redis.folder}/socket'
        with Node(folder, web, bus, 'a', changed) as a, Node(folder, web, bus, 'b', changed) as b:
            warm([b], '/1')
            VERSIONS['/1'] += 1
            a.ask('/1', 'POST', 'x')
            b.becomes('/1', 1)


def test_zones_of_later_configurations_are_purged():
    """A folder that was left out of the configuration for a while did not hear of purges."""
    with site('ab') as (redis, nodes):
        a, b = nodes
        warm(nodes, '/1')
        config = b.folder / 'nginx.conf'
        text = config.read_text()
        other = text.replace(f'{b.folder}/cache', f'{b.folder}/other')
        config.write_text(other)
        b.reload()
        VERSIONS['/1'] += 1
        a.purge('/1')
        b.becomes('/1', 1)
        config.write_text(text)
        b.reload()
        assert b.page('/1')[0] == 1


def test_a_request_of_before_a_reload_purges_by_the_new_bus():
    changed = NODE.replace('proxy_cache_lock on;', 'proxy_cache_lock on; proxy_cache_invalidate on;')
    HELD.clear()
    with site('ab', http=changed, shared=SHARED) as (redis, (a, b)):
        warm([a, b], '/held')
        post = threading.Thread(target=a.ask, args=('/held', 'POST', 'x'))
        post.start()
        until('the request', lambda: ASKED['/held'] >= 1)
        config = a.folder / 'nginx.conf'
        config.write_text(config.read_text().replace('node=a', 'node=a timeout=4s'))
        a.reload()
        VERSIONS['/held'] += 1
        HELD.set()
        post.join()
        assert a.page('/held') == (1, 'MISS')
        b.becomes('/held', 1)
        assert a.metric('queued') == 0


def test_a_cluster_says_where_the_stream_is():
    with Folder() as folder, origin() as web, contextlib.ExitStack() as stack:
        VERSIONS.clear()
        options = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '4000', '--requirepass', 'word', '--masterauth', 'word']
        servers = [stack.enter_context(Locked(folder, *options, '--cluster-config-file', 'nodes.conf', '--cluster-port', free_port())) for _ in range(3)]
        subprocess.run(['redis-cli', '-a', 'word', '--cluster', 'create', *[f'127.0.0.1:{server.port}' for server in servers],
                        '--cluster-yes'], check=True, capture_output=True)
        until('the cluster', lambda: all('cluster_state:ok' in server.ask('CLUSTER', 'INFO').decode() for server in servers))
        hosts = ','.join(f'127.0.0.1:{server.port}' for server in servers)
        bus = f'redis+cluster://:word@{hosts}?timeout=300ms'
        with Node(folder, web, bus, 'a') as a, Node(folder, web, bus, 'b') as b:
            warm([a, b], '/1')
            VERSIONS['/1'] += 1
            until('the purge', lambda: a.purge('/1') == 'sent')
            b.becomes('/1', 1)
            # The slot moves while purges go on.
            slot = servers[0].ask('CLUSTER', 'KEYSLOT', 'yorozu')
            at = next(server for server in servers if server.holds('yorozu'))
            to = next(server for server in servers if server is not at)
            ids = {server.port: server.ask('CLUSTER', 'MYID').decode() for server in servers}
            to.ask('CLUSTER', 'SETSLOT', slot, 'IMPORTING', ids[at.port])
            at.ask('CLUSTER', 'SETSLOT', slot, 'MIGRATING', ids[to.port])
            keys = at.ask('CLUSTER', 'GETKEYSINSLOT', slot, 10)
            at.ask('MIGRATE', '127.0.0.1', to.port, '', 0, 5000, 'AUTH', 'word', 'KEYS', *keys)
            VERSIONS['/1'] += 1
            a.purge('/1')
            for server in servers:
                server.ask('CLUSTER', 'SETSLOT', slot, 'NODE', ids[to.port])
            b.becomes('/1', 2)
            until('the queue', lambda: a.metric('queued') == 0)
            VERSIONS['/1'] += 1
            until('the new server', lambda: a.purge('/1') == 'sent')
            b.becomes('/1', 3)
            assert to.holds('yorozu')


def test_a_replica_of_a_cluster_takes_over():
    """Purges and pages go on when the server that has the stream dies."""
    with Folder() as folder, origin() as web, contextlib.ExitStack() as stack:
        VERSIONS.clear(), ASKED.clear()
        options = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '4000', '--requirepass', 'word', '--masterauth', 'word',
                   '--cluster-replica-validity-factor', '0', '--repl-diskless-sync-delay', '0', '--cluster-config-file', 'nodes.conf']
        servers = [stack.enter_context(Locked(folder, *options, '--cluster-port', free_port())) for _ in range(6)]
        subprocess.run(['redis-cli', '-a', 'word', '--cluster', 'create', *[f'127.0.0.1:{server.port}' for server in servers],
                        '--cluster-replicas', '1', '--cluster-yes'], check=True, capture_output=True)
        until('the cluster', lambda: all('cluster_state:ok' in server.ask('CLUSTER', 'INFO').decode() for server in servers))
        hosts = ','.join(f'127.0.0.1:{server.port}' for server in servers)
        url = f'redis+cluster://:word@{hosts}'
        http = NODE.replace('@SHARED@', f'shared={url}?timeout=5s')
        with Node(folder, web, f'{url}?timeout=300ms', 'a', http) as a, Node(folder, web, f'{url}?timeout=300ms', 'b', http) as b:
            until('both', lambda: a.knows_of() == b.knows_of() == 2)
            VERSIONS['/1'] += 1
            until('the purge', lambda: a.purge('/1') == 'sent')
            assert a.page('/1') == (1, 'MISS')
            until('the page', lambda: a.shared('stored') == 1)
            b.becomes('/1', 1)
            assert ASKED['/1'] == 1
            def is_master(server):
                return b'role:master' in server.ask('INFO', 'replication')
            master = next(server for server in servers if is_master(server) and server.holds('yorozu'))
            until('the replica', lambda: b'state=online' in master.ask('INFO', 'replication'))
            master.kill()
            VERSIONS['/1'] += 1
            assert a.purge('/1') == 'queued'
            b.becomes('/1', 2)
            until('the new master', lambda: a.purge('/1') == 'sent')
            assert any(is_master(server) and server.holds('yorozu') for server in servers if server is not master)


class Locked(Redis):
    """A server with a password."""

    def ask(self, *words):
        with socket.create_connection(('127.0.0.1', self.port), SECONDS) as connection:
            stream = connection.makefile('rwb')
            ask(stream, 'AUTH', 'word')
            return ask(stream, *words)

    def holds(self, key):
        return self.ask('EXISTS', key) == 1


def test_sentinels_say_who_the_master_is():
    with Folder() as folder, origin() as web, contextlib.ExitStack() as stack:
        VERSIONS.clear()
        master = stack.enter_context(Redis(folder))
        replica = stack.enter_context(Redis(folder, '--replicaof', f'127.0.0.1 {master.port}', '--repl-diskless-sync-delay', '0'))
        until('the replica', lambda: b'master_link_status:up' in replica.ask('INFO', 'replication'))
        sentinels = []
        for number in range(3):
            port = free_port()
            path = folder / f'sentinel-{number}.conf'
            path.write_text(f'''port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor web 127.0.0.1 {master.port} 2
sentinel down-after-milliseconds web 3500
sentinel failover-timeout web 2000
''')
            process = stack.enter_context(Process(['redis-server', path, '--sentinel'], folder / f'sentinel-{number}.out'))
            process.wait_for(lambda: listens(port))
            sentinels.append(port)
        hosts = ','.join(f'127.0.0.1:{port}' for port in sentinels)
        url = f'redis+sentinel://{hosts}/web/0'
        bus, http = f'{url}?timeout=300ms', NODE.replace('@SHARED@', f'shared={url}?timeout=5s')
        with Node(folder, web, bus, 'a', http) as a, Node(folder, web, bus, 'b', http) as b:
            warm([a, b], '/1')
            VERSIONS['/1'] += 1
            until('the purge', lambda: a.purge('/1') == 'sent')
            b.becomes('/1', 1)
            def knows_all():
                with socket.create_connection(('127.0.0.1', sentinels[0])) as connection:
                    return len(ask(connection.makefile('rwb'), 'SENTINEL', 'SENTINELS', 'web')) == 2
            until('the sentinels', knows_all)
            master.kill()
            VERSIONS['/1'] += 1
            assert a.purge('/1') == 'queued'
            b.becomes('/1', 2)
            until('the new master', lambda: a.purge('/1') == 'sent')
            # It has pages as well.
            def is_shared():
                path = f'/{random.random()}'
                a.page(path)
                return b.page(path)[1] == 'HIT'
            until('a page', is_shared)
            assert b.shared('hit') >= 1


def test_over_tls_the_server_is_verified():
    with Folder() as folder, origin() as web:
        VERSIONS.clear()
        subprocess.run(f'''cd {folder}; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2
            -subj /CN=redis -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem'''.replace('\n', ' '),
                       shell=True, check=True, capture_output=True)
        for name in 'key.pem', 'cert.pem':
            (folder / name).chmod(0o644)
        tls = free_port()
        with Redis(folder, '--tls-port', tls, '--tls-cert-file', folder / 'cert.pem', '--tls-key-file', folder / 'key.pem',
                   '--tls-auth-clients', 'no') as redis:
            bus = f'rediss://localhost:{tls}'
            http = NODE.replace('@SHARED@', f'shared={bus}?ca={folder}/cert.pem&timeout=5s')
            with Node(folder, web, f'{bus}?ca={folder}/cert.pem&{PATIENT}', 'a', http) as a, \
                    Node(folder, web, f'{bus} ca={folder}/cert.pem timeout=10s', 'b', http) as b:
                until('both', lambda: a.knows_of() == b.knows_of() == 2)
                warm([a, b], '/1')
                VERSIONS['/1'] += 1
                assert a.purge('/1') == 'sent'
                b.becomes('/1', 1)
                assert a.page('/2') == (0, 'MISS')
                until('the page', lambda: a.shared('stored') >= 1)
                until('the page', lambda: b.page('/2') == (0, 'HIT') and b.shared('hit') >= 1)
            with Node(folder, web, f'{bus}?start_timeout=300ms', 'c') as c:
                assert c.purge('/1') == 'queued'
                c.says('does not answer, purges are queued: ')
                assert 'certificate' in c.log(), c.log()


# An answer may take long on a busy machine, after which a node makes the page by itself.
SHARED = 'redis://127.0.0.1:@REDIS@?timeout=5s'


def test_pages_are_shared():
    with site(shared=SHARED) as (redis, nodes):
        a, b, c = nodes
        assert a.page('/1') == (0, 'MISS')
        until('the page in Redis', lambda: a.shared('stored') == 1)
        assert b.page('/1') == c.page('/1') == (0, 'HIT')
        assert ASKED['/1'] == 1 and b.shared('hit') == 1
        # Each node has it by itself from then on.
        redis.ask('FLUSHALL')
        assert b.page('/1') == (0, 'HIT') and ASKED['/1'] == 1


def test_a_purge_is_one_of_shared_pages_too():
    with site(shared=SHARED) as (redis, nodes):
        a, b, c = nodes
        for number in range(1, 21):
            way = [lambda: a.purge('/1'), lambda: b.purge_by_api({'tags': ['page-1']}), lambda: c.purge('/1'),
                   lambda: a.purge_by_api({'tags': ['all'], 'soft': True})][number % 4]
            a.page('/1')
            VERSIONS['/1'] += 1
            way()
            # Whoever makes it has read its own purge: it is good for all.
            for node in nodes:
                node.becomes('/1', number)
        # Soft: a copy in memory answered once more.
        assert ASKED['/1'] <= 21 + 10, ASKED
        # A node that starts knows what the stream still has.
        b.kill()
        shutil.rmtree(b.folder / 'cache')
        b.again()
        before = ASKED['/1']
        assert b.page('/1')[0] == 20
        VERSIONS['/1'] += 1
        os.kill(b.serving_pid, signal.SIGSTOP)
        a.purge('/1')
        os.kill(b.serving_pid, signal.SIGCONT)
        b.becomes('/1', 21)


def test_forms_tags_and_variants_are_shared():
    with site('ab', shared=SHARED) as (redis, nodes):
        a, b = nodes
        gzip = {'Accept-Encoding': 'gzip'}
        a.ask('/long', headers=gzip)
        until('the page', lambda: redis.ask('KEYS', '*:' + '?' * 32))
        key, = redis.ask('KEYS', '*:' + '?' * 32)
        until('its compressed form', lambda: a.ask('/long', headers=gzip) and b'form' in redis.ask('GET', key))
        assert b.page('/long')[1] == 'HIT'
        VERSIONS['/long'] += 1
        b.purge_by_api({'tags': ['page-long']})
        b.becomes('/long', 1), a.becomes('/long', 1)
        for kind in 'x', 'y':
            answer, text = a.ask('/varied', headers={'Accept-Language': kind})
            assert text == f'0{kind}'
        until('both', lambda: a.shared('stored') >= 4)
        for kind in 'y', 'x':
            answer, text = b.ask('/varied', headers={'Accept-Language': kind})
            assert text == f'0{kind}' and answer.headers['X-Cache'] == 'HIT', (text, dict(answer.headers))
        assert ASKED['/varied'] == 2


def test_what_is_damaged_is_made_again():
    for bus in 'redis://127.0.0.1:@REDIS@', 'redis://127.0.0.1:@REDIS@?secret=@SECRET@&' + PATIENT:
        with site('ab', bus=bus, shared=SHARED) as (redis, nodes):
            a, b = nodes
            a.page('/1')
            until('the page', lambda: redis.ask('KEYS', '{yorozu}:*:' + '?' * 32))
            key, = redis.ask('KEYS', '{yorozu}:*:' + '?' * 32)
            value = redis.ask('GET', key)
            for at in 3, 10, 30, len(value) // 2, len(value) - 1:
                damaged = value[:at] + bytes([value[at] ^ 1]) + value[at + 1:]
                redis.ask('SET', key, damaged)
                b.purge_by_api({'tags': ['page-1']})
                before = b.shared('damaged')
                assert b.page('/1')[1] == 'MISS'
                assert b.shared('damaged') == before + 1, at
                until('its own', lambda: redis.ask('GET', key) not in (None, damaged))
                b.says('is damaged, or not signed')
            redis.ask('SET', key, value[:50])
            b.purge('/1')
            assert b.page('/1')[1] == 'MISS'


def test_one_node_makes_a_page_for_all():
    with site(shared=SHARED + '&lease=6s') as (redis, nodes):
        a, b, c = nodes
        threads = [threading.Thread(target=node.page, args=('/slow',)) for node in nodes for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ASKED['/slow'] == 1, ASKED
        # What is not stored gives its lease back.
        for node in nodes:
            node.page('/private')
        assert ASKED['/private'] == 3, ASKED
        until('no lease', lambda: not redis.ask('KEYS', '*:lease'))
        # A lease ends with its time, if its node does not end it.
        def ask_in_vain():
            with contextlib.suppress(http.client.HTTPException, OSError):
                a.ask('/slow2')
        threading.Thread(target=ask_in_vain, daemon=True).start()
        until('the lease', lambda: redis.ask('KEYS', '*:lease'))
        a.kill()
        begun = time.monotonic()
        assert b.page('/slow2') == (0, 'MISS')
        print(f'after {time.monotonic() - begun:.1f} s')


def test_a_page_that_ends_does_not_come_back():
    """A fresh page whose early refresh finds that it is gone, and one that a POST changed."""
    early = NODE.replace('proxy_cache_background_update on;', 'proxy_cache_background_update on; proxy_cache_early_refresh 50;')
    with site('ab', http=early, shared=SHARED) as (redis, (a, b)):
        a.page('/slow-ends')
        until('the page', lambda: a.shared('stored') == 1)
        assert b.page('/slow-ends') == (0, 'HIT')
        until('its file', lambda: any(len(path.name) == 32 for path in (b.folder / 'cache').rglob('*')))
        b.kill()
        b.again()
        VERSIONS['/slow-ends'] += 1
        until('its end', lambda: a.page('/slow-ends')[1] == 'MISS')
        # It may be fresh on the disk of another node, which does not send it again.
        b.page('/slow-ends')
        assert a.page('/slow-ends')[0] == 1 and b.shared('stored') == 0
        redis.ask('FLUSHDB')
    with site('ab', shared=SHARED) as (redis, (a, b)):
        a.page('/1')
        until('the page', lambda: a.shared('stored') == 1)
        # Only the tier has it for `b`: what a request changes there is found by the page's own lifetime.
        VERSIONS['/1'] += 1
        b.ask('/1', 'POST', 'x')
        assert b.page('/1') == (1, 'MISS')
        until('the new page', lambda: b.shared('stored') == 1)
        # The tier does not answer: the page there is not believed all the same.
        a.page('/2')
        until('the page', lambda: a.shared('stored') == 2)
        VERSIONS['/2'] += 1
        redis.ask('CLIENT', 'PAUSE', 300, 'WRITE')
        b.ask('/2', 'POST', 'x')
        assert b.page('/2') == (1, 'MISS')


def test_an_expired_page_of_another_node_answers_where_the_origin_fails():
    with site('ab', shared=SHARED) as (redis, (a, b)):
        for path in ('/brief', '/brief-purged', '/brief-varied'):
            a.ask(path, headers={'Accept-Language': '0'})
        until('the pages', lambda: a.shared('stored') >= 3)
        life = max(redis.ask('PTTL', key) for key in redis.ask('KEYS', '*'))
        assert 50_000 < life < 61_000, life
        assert a.purge('/brief-purged') == 'sent'
        # They expire.
        time.sleep(1.1)
        VERSIONS['/brief'] = VERSIONS['/brief-purged'] = VERSIONS['/brief-varied'] = -1
        assert b.page('/brief') == (0, 'STALE')
        until('the purge', lambda: b.ask('/brief-purged')[0].status == 502)
        # Of another variant.
        assert b.ask('/brief-varied', headers={'Accept-Language': '1'})[0].status == 502
        # Where the origin answers again its answer is taken.
        VERSIONS['/brief'] = 1
        assert b.page('/brief') == (1, 'EXPIRED')


def test_a_redis_whose_clock_went_back_brings_no_page_back():
    """It lost the stream, names entries by a lower time than before, and pages are on another server."""
    with Folder() as other, Redis(other) as tier, site('ab', shared=f'redis://127.0.0.1:{tier.port}?timeout=5s') as (redis, (a, b)):
        redis.ask('XADD', 'yorozu', f'{int(time.time() + 3600) * 1000}-0', 'x', 'y')
        a.purge('/0'), b.purge('/0')
        a.page('/1')
        until('the page', lambda: a.shared('stored') == 1)
        redis.ask('FLUSHALL')
        a.says(GONE), b.says(GONE)
        until('both', lambda: a.purge('/0') == b.purge('/0') == 'sent')
        VERSIONS['/1'] += 1
        assert a.purge('/1') == 'sent'
        b.becomes('/1', 1)
        # And pages are shared again.
        a.page('/2')
        until('the page', lambda: a.shared('stored') >= 2)
        assert redis_has(tier, '3', a, b)


def test_what_came_from_the_tier_is_not_sent_back():
    with site('ab', shared=SHARED) as (redis, (a, b)):
        a.page('/1')
        until('the page', lambda: a.shared('stored') == 1)
        assert b.page('/1') == (0, 'HIT')
        b.page('/2')
        until('the page', lambda: b.shared('stored') >= 1)
        assert b.shared('stored') == 1


def test_a_lease_is_waited_for_no_longer_than_a_lock():
    """A request waits for other nodes as for other requests: for `lock_timeout` at most, however long the lease is."""
    http = NODE.replace('proxy_cache_lock on;', 'proxy_cache_lock on; proxy_cache_lock_timeout 1s;')
    with site('ab', http=http, shared=SHARED + '&lease=600s') as (redis, (a, b)):
        page = threading.Thread(target=a.page, args=('/slow',))
        page.start()
        until('the lease', lambda: redis.ask('KEYS', '*:lease'))
        key, = redis.ask('KEYS', '*:lease')
        redis.ask('SET', key, 'of a node that is gone', 'PX', 600_000)
        page.join()
        until('the page in Redis', lambda: a.shared('stored') == 1)
        assert b.page('/slow') == (0, 'HIT'), 'the page is there, whoever has the lease'
        def read():
            return b.metric('entries_total{kind="read"}')
        before = read()
        a.purge('/slow')
        until('the purge', lambda: read() > before)
        begun = time.monotonic()
        assert b.page('/slow')[1] == 'MISS'
        took = time.monotonic() - begun
        print(f'waited {took:.1f} s for a lease')
        assert 1 <= took < SECONDS, took


def test_a_lease_is_given_back_by_its_holder_alone():
    """A node that makes a page for longer than its lease leaves that of the next one."""
    def with_leases(shared, leases, hold):
        with site('a', shared=shared) as (redis, [a]):
            made = threading.Thread(target=a.page, args=('/slow',))
            made.start()
            until('the lease', lambda: leases(redis))
            key, = leases(redis)
            hold(redis, key)
            made.join()
            a.page('/other')
            # Behind the page, over the same connection.
            until('both pages', lambda: a.shared('stored') == 2)
            until('the end of its own', lambda: leases(redis) == [key])
    with_leases(SHARED, lambda redis: redis.ask('KEYS', '*:lease'), lambda redis, key: redis.ask('SET', key, 'of another node'))
    with Folder() as folder, Memcached(folder) as server:
        def ask(line):
            with socket.create_connection(('127.0.0.1', server.port), 10) as connection:
                connection.sendall(line + b'\r\n')
                return b''.join(iter(connection.makefile('rb').readline, b'END\r\n'))
        def leases(_):
            keys = re.findall(rb'key=(\S+)', ask(b'lru_crawler metadump all'))
            return [urllib.parse.unquote_to_bytes(key) for key in keys if key.endswith(b'lease')]
        with_leases(f'memcached://127.0.0.1:{server.port}?timeout=5s', leases, lambda _, key: ask(b'set %s 0 60 1\r\nx\r\nget none' % key))


def test_without_leases_each_node_makes_its_own():
    with site('ab', shared=SHARED + '&lease=off') as (redis, nodes):
        threads = [threading.Thread(target=node.page, args=('/slow',)) for node in nodes]
        for thread in threads:
            thread.start()
        until('both', lambda: ASKED['/slow'] == 2)
        for thread in threads:
            thread.join()
        assert not redis.ask('KEYS', '*:lease')


def test_a_large_page_is_each_nodes_own():
    with site('ab', shared=SHARED + '&max_object=2k') as (redis, (a, b)):
        a.ask('/long'), a.page('/short')
        until('the short one', lambda: a.shared('stored') == 1)
        assert a.shared('dropped') >= 1
        assert b.page('/short') == (0, 'HIT') and b.ask('/long')[0].headers['X-Cache'] == 'MISS'


def test_a_new_node_costs_no_page():
    """The first requests of a node that is empty ask the application for nothing that the others have."""
    with site('ab', shared=SHARED) as (redis, (a, b)):
        paths = [f'/{number}' for number in range(100)]
        for path in paths:
            a.page(path)
        until('all of them', lambda: a.shared('stored') == len(paths))
        b.kill()
        shutil.rmtree(b.folder / 'cache')
        b.again()
        before = sum(ASKED.values())
        for number in range(1000):
            assert b.page(paths[number % 100]) == (0, 'HIT'), number
        assert sum(ASKED.values()) == before


def test_hits_in_memory_do_not_wait_for_the_tier():
    """Neither Redis of the bus nor of the tier has a part in a hit: it stands still, and would be waited for longer than a client waits;
    nor where it is known to stand still."""
    url = 'redis://127.0.0.1:@REDIS@?timeout='
    for timeout in '600s', '100ms':
        with site('a', bus=f'{url}{timeout}&start_timeout=10s', shared=url + timeout) as (redis, [a]):
            warm([a], '/1')
            os.kill(redis.pid, signal.SIGSTOP)
            def is_open():
                # Something waits for it meanwhile. Who has given up before it is asked says nothing of it.
                a.ask(f'/2-{random.random()}')
                return 'pages are made without it' in a.log()
            if timeout == '100ms':
                until('an open circuit', is_open)
                a.purge('/3')
            for _ in range(100):
                assert a.page('/1') == (0, 'HIT')
            os.kill(redis.pid, signal.SIGCONT)


def test_without_the_tier_pages_are_made():
    with Folder() as other, Redis(other) as tier, site('ab', shared=f'redis://127.0.0.1:{tier.port}') as (_, nodes):
        a, b = nodes
        # A tier has 20 ms to answer: not every page comes to it.
        until('a page', lambda: a.page(f'/{random.random()}') and a.shared('stored') >= 1)
        lines = lambda: b.log().count('pages are made without it')
        before = lines()
        os.kill(tier.pid, signal.SIGSTOP)
        for number in range(100):
            assert b.page(f'/{number}') == (0, 'MISS')
        b.says('does not answer, pages are made without it')
        assert lines() <= before + 1, b.log()
        os.kill(tier.pid, signal.SIGCONT)
        def answers():
            b.page(f'/new{random.random()}')
            return 'answers again' in b.log()
        until('the tier', answers)
        a.page('/x'), until('the page', lambda: redis_has(tier, 'x', a, b))


def redis_has(tier, path, a, b):
    a.purge(f'/{path}')
    a.page(f'/{path}')
    return b.page(f'/{path}') == (0, 'HIT')


def test_pages_are_shared_over_memcached():
    with Folder() as folder, Memcached(folder) as one, Memcached(folder) as two, Memcached(folder) as three:
        servers = ','.join(f'127.0.0.1:{server.port}' for server in (one, two, three))
        with site('ab', shared=f'memcached://{servers}?timeout=5s') as (_, nodes):
            a, b = nodes
            for number in range(20):
                assert a.page(f'/{number}') == (0, 'MISS')
            until('all of them', lambda: a.shared('stored') == 20)
            until('all', lambda: sum(server.stat('curr_items') for server in (one, two, three)) == 20)
            assert all(server.stat('curr_items') for server in (one, two, three))
            for number in range(20):
                assert b.page(f'/{number}') == (0, 'HIT')
            VERSIONS['/3'] += 1
            b.purge('/3')
            assert b.page('/3') == (1, 'MISS')
            a.becomes('/3', 1)
            one.kill()
            for number in range(30, 40):
                assert a.page(f'/{number}') == (0, 'MISS')


class FullMemcached(Accepting):
    """A memcached that has nothing and takes nothing."""

    def __init__(self):
        self.asked = collections.Counter()
        super().__init__()

    def serve(self, connection):
        stream = connection.makefile('rwb')
        with contextlib.suppress(OSError):
            for line in stream:
                words = line.split()
                self.asked[words[0]] += 1
                if words[0] in (b'add', b'set'):
                    stream.read(int(words[4]) + 2)
                answers = {b'get': b'END', b'delete': b'NOT_FOUND'}
                stream.write(answers.get(words[0], b'SERVER_ERROR out of memory storing object') + b'\r\n')
                stream.flush()


def test_a_full_memcached_is_waited_for_by_nobody():
    server = FullMemcached()
    # Who waited for a claim that another node holds would wait longer than a client.
    http = NODE.replace('proxy_cache_lock on;', 'proxy_cache_lock on; proxy_cache_lock_timeout 600s;')
    with site('ab', http=http, shared=f'memcached://127.0.0.1:{server.port}?timeout=5s&lease=600s') as (_, nodes):
        for number in range(4):
            for node in nodes:
                assert node.page(f'/{number}') == (0, 'MISS')
        for node in nodes:
            node.says('shared tier of zone "pages" refuses what it is asked: SERVER_ERROR out of memory storing object')
        assert server.asked[b'add'] == 8, server.asked


def test_what_a_server_closed_meanwhile_is_asked_again():
    """A server ends connections that are idle for long: no page is lost by that, and none made without need."""
    with Folder() as other, Redis(other) as tier, site('ab', shared=f'redis://127.0.0.1:{tier.port}?timeout=5s') as (_, nodes):
        a, b = nodes
        for number in range(10):
            tier.ask('CLIENT', 'KILL', 'TYPE', 'normal')
            assert a.page(f'/{number}') == (0, 'MISS')
            until('the page', lambda: a.shared('stored') == number + 1)
            assert b.page(f'/{number}') == (0, 'HIT')
        assert a.shared('dropped') == a.shared('failed') == b.shared('failed') == 0
        assert not tier.ask('KEYS', '*:lease') and ASKED.total() == 10


def names_in(server):
    """Keys of the pages that a memcached has."""
    with socket.create_connection(('127.0.0.1', server.port), 10) as connection:
        connection.sendall(b'lru_crawler metadump all\r\n')
        lines = list(iter(connection.makefile('rb').readline, b'END\r\n'))
    keys = [urllib.parse.unquote(re.search(rb'key=(\S+)', line)[1].decode()) for line in lines]
    return [key for key in keys if not key.endswith(':lease')]


def found_by_nginx(folder, servers, keys):
    """The keys that nginx finds with the ring of `hash ... consistent`, asking one server for each."""
    caches = ''.join(f'server 127.0.0.1:{server.port};' for server in servers)
    conf = f"""upstream caches {{ hash $arg_key consistent; {caches} }}
        server {{ listen 127.0.0.1:$port; location / {{
            set $memcached_key $arg_key; memcached_next_upstream off; memcached_pass caches; }} }}"""
    with Server(folder, conf, NGINX) as nginx:
        def has(key):
            connection = http.client.HTTPConnection('127.0.0.1', nginx.port, timeout=SECONDS)
            connection.request('GET', f'/?key={key}')
            return connection.getresponse().status == 200
        return [key for key in keys if has(key)]


def found_by_php(folder, servers, keys):
    """The keys that PHP's client finds with the ring of libmemcached."""
    added = ''.join(f'$m->addServer("127.0.0.1", {server.port});' for server in servers)
    code = f"""$m = new Memcached(); $m->setOption(Memcached::OPT_LIBKETAMA_COMPATIBLE, true); {added}
        foreach (json_decode($argv[1]) as $key) if ($m->get($key) !== false) echo $key, "\\n";"""
    out = subprocess.run(['php8.2', '-r', code, '--', json.dumps(keys)], check=True, capture_output=True, text=True).stdout
    return out.splitlines()


def test_other_clients_find_the_memcached_of_a_page():
    """By the same ring: nginx's of `hash ... consistent`, PHP's with `hash=ketama`."""
    for hash, found in ('', found_by_nginx), ('&hash=consistent', found_by_nginx), ('&hash=ketama', found_by_php):
        with Folder() as folder, Memcached(folder) as one, Memcached(folder) as two, Memcached(folder) as three:
            servers = one, two, three
            hosts = ','.join(f'127.0.0.1:{server.port}' for server in servers)
            with site('a', shared=f'memcached://{hosts}?timeout=5s{hash}') as (_, [a]):
                for number in range(60):
                    a.page(f'/{number}')
                until('all of them', lambda: a.shared('stored') == 60)
                until('all', lambda: sum(len(names_in(server)) for server in servers) == 60)
                keys = [key for server in servers for key in names_in(server)]
                assert all(names_in(server) for server in servers)
                assert found(folder, servers, keys) == keys, hash


def test_what_cannot_be_is_refused():
    with Folder() as folder:
        def says(http):
            (folder / 'logs').mkdir(exist_ok=True)
            (folder / 'nginx.conf').write_text(f'events {{}} http {{ {http} }}')
            tested = subprocess.run([YOROZU, '-t', '-p', folder, '-c', folder / 'nginx.conf'], capture_output=True, text=True)
            return tested.stderr
        path = f'fastcgi_cache_path {folder}/cache keys_zone=z:1m'
        bus = 'cache_purge_bus redis://a;'
        good = says(f'{path} shared=redis://a?timeout=5ms&max_object=1m&lease=off; {bus}')
        assert 'is successful' in good, good
        for http, text in [
            (f'{path} shared=redis://a;', 'without "cache_purge_bus"'), (f'{path} shared=http://a; {bus}', 'expected redis://'),
            (f'{path} shared=redis://a?x=1; {bus}', 'invalid parameter "x=1"'),
            (f'{path} shared=redis://a?hash=ketama; {bus}', 'invalid parameter "hash=ketama"'),
            (f'{path} shared=memcached://a,b?hash=other; {bus}', 'invalid parameter "hash=other"'), (f'{bus} {bus}', 'is duplicate'),
            ('cache_purge_bus http://a;', 'expected redis://'), ('cache_purge_bus redis://a stream=;', 'invalid parameter'),
            ('cache_purge_bus redis://a secret=/nowhere;', '/nowhere'),
            *[(f'server {{ location / {{ {directive}; }} }}', text) for directive, texts in {
                'srcache_fetch GET /x': ('"fastcgi_cache"', '"cache_purge_bus"', '"shared="'),
                'srcache_store PUT /x': ('"fastcgi_cache"', '"cache_purge_bus"', '"shared="'),
                'srcache_fetch_skip $a': ('"fastcgi_cache_bypass"',), 'srcache_store_skip $a': ('"fastcgi_no_cache"',),
                'srcache_response_cache_control off': ('"fastcgi_ignore_headers Cache-Control Expires"',),
                'redis_pass a': ('"fastcgi_cache"', '"shared="'), 'redis2_pass a': ('"fastcgi_cache"', '"shared="'),
                'redis2_query get x': ('"fastcgi_cache"', '"shared="'),
            }.items() for text in texts],
        ]:
            told = says(http)
            assert text in told and 'is successful' not in told, (http, told)
            name = re.search(r'(srcache|redis2?|set_escape)_\w+', http)
            assert not name or f'"{name[0]}"' in told, (http, told)


def test_what_the_bus_costs_is_simulated():
    """The command that docs/nodes.md has its table from."""
    sys.path.insert(0, str(ROOT / 'bench'))
    import bus
    bus.PURGES = 10
    cpu, sent, median, late, memory = asyncio.run(bus.measured(20))
    assert cpu >= 0 and sent > 1 and 0 < median <= late and memory > 1, (cpu, sent, median, late, memory)


def test_the_preset_of_a_node_and_of_its_balancer_are_taken():
    """As `presets/cluster` says: its file in `conf.d`, with `shared=` in the line of the zone."""
    with Folder() as folder:
        shutil.copytree(ROOT / 'presets', folder / 'presets')
        (folder / 'log').mkdir()
        (folder / 'secret').write_text(SECRET)
        shutil.copytree(folder / 'presets/sites', folder / 'presets/sites-enabled', ignore=lambda *_: ['wordpress-https.conf'])
        for path in (folder / 'presets').glob('**/*.conf'):
            text = path.read_text()
            for old, new in {'/var/log/yorozu/www.example.com': '/log', '/var/log/yorozu': '/log', '/run/yorozu.pid': '/pid',
                             '/var/cache/yorozu': '/cache', '/etc/yorozu/bus.secret': '/secret'}.items():
                text = text.replace(old, str(folder) + new)
            path.write_text(text)
        nodes_conf = (folder / 'presets/cluster/nodes.conf').read_text()
        shutil.copy(folder / 'presets/cluster/nodes.conf', folder / 'presets/conf.d')
        shared = re.search(r'^# +(shared=\S*.*)$', nodes_conf, re.M)[1]
        zones = folder / 'presets/page-cache.conf'
        text, count = re.subn(r'(fastcgi_cache_path [^;]*);', rf'\1 {shared};', zones.read_text())
        assert count == 1
        zones.write_text(text)
        for name in 'nginx.conf', 'cluster/nginx.conf':
            tested = subprocess.run([YOROZU, '-t', '-p', folder, '-c', folder / 'presets' / name], capture_output=True, text=True)
            assert 'is successful' in tested.stderr and tested.returncode == 0, tested.stderr


class Storm:
    """Readers and purgers of three nodes while all that can fail fails, once each; STORM=60 goes on for a minute.

    A purger raises a page's version at the origin and has it purged on a node; once that has answered, no answer of that
    node to a request that begins later may show an older one.
    """
    PAGES = [f'/{number}' for number in range(6)]
    # After which no entry is missing anywhere, and after which some may be.
    MILD, WILD = ['reload', 'kill', 'redis', 'cut', 'stop'], ['trim', 'flush']
    # Of lines in network namespaces.
    PARTITIONS = ['cut', 'cut', 'long cut', 'split']

    def __init__(self, redis, nodes, troubles):
        self.redis, self.nodes = redis, nodes
        # In turn, so that none is left out.
        self.troubles = itertools.cycle(random.sample(troubles, len(troubles)))
        self.rounds, self.end = len(troubles), time.monotonic() + STORM
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.least = {node.name: collections.Counter() for node in nodes}
        self.last, self.problems, self.counts, self.done = collections.Counter(), [], collections.Counter(), collections.Counter()

    def guarded(self, work):
        def run():
            try:
                while not self.is_over.is_set():
                    work()
            except Exception as problem:
                self.problems.append(repr(problem))
                self.is_over.set()
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def read(self):
        node, page = random.choice(self.nodes), random.choice(self.PAGES)
        with self.lock:
            least = self.least[node.name][page]
        try:
            version, how = node.page(page)
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)
            return
        self.counts[how] += 1
        self.done['read'] += 1
        if version < least:
            self.problems.append(f'{node.name} shows {page} at {version} ({how}), purged at {least}')

    def purge(self):
        node, page = random.choice(self.nodes), random.choice(self.PAGES)
        with self.lock:
            VERSIONS[page] += 1
            version = VERSIONS[page]
        try:
            answer, text = node.ask(page, 'PURGE')
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)
            return
        if answer.status in (200, 412):
            self.counts[answer.headers['X-Purge-Bus']] += 1
            self.done['purge'] += 1
            with self.lock:
                self.least[node.name][page] = max(self.least[node.name][page], version)
                self.last[page] = max(self.last[page], version)
        time.sleep(0.02)

    def trouble(self):
        if self.rounds <= 0 and time.monotonic() >= self.end:
            return self.is_over.set()
        self.rounds -= 1
        node, what, before = random.choice(self.nodes), next(self.troubles), self.done.copy()
        self.counts[what] += 1
        if what == 'reload':
            node.reload()
        elif what == 'kill':
            node.kill()
            node.again()
        elif what == 'redis':
            self.redis.kill()
            time.sleep(random.random() / 2)
            self.redis.again()
        elif what in ('cut', 'long cut'):
            # Longer: than an answer of Redis is waited for.
            node.way.is_cut.set()
            time.sleep(random.random() if what == 'cut' else random.uniform(3, 5))
            node.way.is_cut.clear()
        elif what == 'split':
            # Only one node has Redis, or none.
            alone = random.choice([node, None])
            others = [other for other in self.nodes if other is not alone]
            for other in others:
                other.way.is_cut.set()
            time.sleep(random.random())
            for other in others:
                other.way.is_cut.clear()
        elif what == 'stop':
            os.kill(self.redis.pid, signal.SIGSTOP)
            time.sleep(random.random())
            os.kill(self.redis.pid, signal.SIGCONT)
        else:
            self.redis.ask(*{'trim': ['XTRIM', 'yorozu', 'MAXLEN', 1], 'flush': ['FLUSHALL']}[what])
        until('readers and purgers', lambda: self.problems or self.done['read'] >= before['read'] + 20 and self.done['purge'] >= before['purge'] + 5)

    def run(self):
        threads = [self.guarded(work) for work in [self.read] * 4 + [self.purge] * 2]
        trouble = self.guarded(self.trouble)
        for thread in [*threads, trouble]:
            thread.join()
        print(dict(self.counts))
        assert not self.problems, '\n'.join(self.problems[:10])
        # And all of them come to know all of it.
        for node in self.nodes:
            until('the queue', lambda: node.metric('queued') == 0 and node.metric('connected') == 1)
        for node in self.nodes:
            for page in self.PAGES:
                node.becomes(page, self.last[page])


def storm(troubles, **more):
    seed = int(os.environ.get('SEED', 1))
    print(f'SEED={seed}')
    random.seed(seed)
    bus = 'redis://127.0.0.1:@REDIS@?timeout=200ms&start_timeout=10s'
    with site(bus=bus, redis=['--appendonly', 'yes'], **more) as (redis, nodes):
        Storm(redis, nodes, troubles).run()
        return nodes[0].log() + nodes[1].log() + nodes[2].log()


def test_no_node_shows_what_it_purged():
    storm(Storm.MILD + Storm.WILD)


def test_all_nodes_come_to_know_all():
    """Where Redis keeps what it had taken, nothing is missing, and nothing is purged that was not meant."""
    log = storm(Storm.MILD)
    for text in GONE, 'are missing', 'is not known':
        assert text not in log, [line for line in log.splitlines() if text in line]


def test_no_node_shows_what_it_purged_of_shared_pages():
    storm(Storm.MILD + Storm.WILD, shared='redis://127.0.0.1:@REDIS@')


def test_no_node_shows_what_it_purged_through_partitions(own_network):
    storm(Storm.PARTITIONS + Storm.MILD + Storm.WILD, network=Namespace, shared='redis://127.0.0.1:@REDIS@')


def test_all_nodes_come_to_know_all_through_partitions(own_network):
    log = storm(Storm.PARTITIONS + ['reload', 'kill'], network=Namespace)
    for text in GONE, 'are missing', 'is not known':
        assert text not in log, [line for line in log.splitlines() if text in line]
