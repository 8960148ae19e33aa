"""Answers of an upstream that two readers could understand differently. Each is a name, its bytes, and what is to become
of it: `whole`, the content that a client must get; `failure`, 502; `either`, one of both, or a body that breaks off.

Where `closes` is set the upstream closes behind it. %N is an answer without a request.
"""
import dataclasses

UNASKED = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-Unasked: 1\r\n\r\nunasked'
WHOLE, FAILURE, EITHER = 'whole', 'failure', 'either'


@dataclasses.dataclass
class Form:
    name: str
    data: bytes
    kind: str
    content: bytes = b''
    closes: bool = False
    # Sent some time after the answer.
    late: bytes = b''


def ok(*lines, body=b'', line=b'HTTP/1.1 200 OK'):
    return b'\r\n'.join((line, *lines)) + b'\r\n\r\n' + body


def label(text):
    return text.decode('latin1').encode('unicode_escape').decode()[:40].replace(' ', '_').replace("'", '"')


def named(family, forms):
    return [Form(f'{family}-{number:02}-{label(data)}', *rest) for number, (data, *rest) in enumerate(forms)]


def lengths():
    forms = []
    for value in (b'5', b' 5', b'5 ', b'05', b'000005'):
        forms.append((b'length ' + value, ok(b'Content-Length:' + value, body=b'hello'), WHOLE, b'hello'))
    for value in (b'5\t', b'\t5', b'5, 5', b'5,5'):
        forms.append((b'length ' + value, ok(b'Content-Length:' + value, body=b'hello'), EITHER, b'hello'))
    for value in (b'+5', b'-5', b'5;', b'5.0', b'0x5', b'five', b'5 5', b'', b' ', b'5,6',
                  b'18446744073709551621', b'9' * 60, b'5\x0b', b'5\x0c', b'"5"', b'\xef\xbc\x95', b'5\0',
                  b'5e0', b'-0', b'5#', b'1_0'):
        forms.append((b'length ' + value, ok(b'Content-Length:' + value, body=b'hello'), EITHER, b'hello'))
        forms.append((b'length ' + value + b' unasked',
                      ok(b'Content-Length:' + value, body=b'hello' + UNASKED), EITHER, b'hello'))
    five, six, none = b'Content-Length: 5', b'Content-Length: 6', b'Content-Length: 0'
    for pair in ((five, five), (five, six), (six, five), (none, five), (five, none),
                 (five, b'content-length: 5'), (five, b'Content-Length:'), (b'Content-Length:', five),
                 (five, b'Content-Length: x'), (five, b'X: y', b'Content-Length: 05'), (five, five, five)):
        forms.append((b'+'.join(pair), ok(*pair, body=b'hello'), EITHER, b'hello', True))
    for name in (b'Content-Length ', b' Content-Length', b'Content-Length\t', b'Content_Length',
                 b'Content-Length\0', b'X: y\rContent-Length', b'Content-Length\x0b', b'Content Length'):
        forms.append((name, ok(name + b': 5', body=b'hello'), EITHER, b'hello', True))
    for size in (0, 4, 6, 500):
        content = b'hello' if size >= 5 else b'hello'[:size]
        line = b'Content-Length: %d' % size
        forms.append((line + b' of 5', ok(line, body=b'hello'), EITHER, content, size > 5))
    return named('length', forms)


def codings():
    good, forms = b'5\r\nhello\r\n0\r\n\r\n', []
    for value in (b'chunked', b'Chunked', b' chunked', b'chunked '):
        forms.append((value, ok(b'Transfer-Encoding:' + value, body=good), WHOLE, b'hello'))
    for value in (b'\tchunked', b'chunked\t', b'xchunked', b'chunkedx', b'chunked,', b',chunked',
                  b'chunked, chunked', b'identity', b'gzip, chunked', b'chunked, gzip', b'gzip', b'"chunked"',
                  b'chunked;q=1', b'chunk ed', b'chunked\x0b', b'', b'chunked\0', b'cow', b'chunked\r\n x',
                  b'chunked\xff', b'trailers', b'chunked\x0c', b'identity, chunked'):
        name = b'Transfer-Encoding:' + value
        forms.append((name, ok(name, body=good), EITHER, b'hello', True))
        forms.append((name + b'+length', ok(b'Content-Length: 5', name, body=good), EITHER, b'hello', True))
        forms.append((name + b' unasked', ok(name, b'Content-Length: 15', body=good + UNASKED), EITHER,
                      b'hello'))
    for names in ((b'chunked', b'chunked'), (b'chunked', b'identity'), (b'identity', b'chunked'),
                  (b'', b'chunked'), (b'gzip', b'chunked')):
        lines = [b'Transfer-Encoding: ' + name for name in names]
        forms.append((b'+'.join(names), ok(*lines, body=good), EITHER, b'hello', True))
    for name in (b'Transfer-Encoding ', b' Transfer-Encoding', b'Transfer_Encoding',
                 b'X: y\rTransfer-Encoding'):
        forms.append((name, ok(name + b': chunked', body=good), EITHER, b'hello', True))
    both = ok(b'Transfer-Encoding: chunked', b'Content-Length: 3', body=good)
    forms.append((b'both', both, EITHER, b'hello'))
    forms.append((b'HTTP/1.0', ok(b'Transfer-Encoding: chunked', body=good, line=b'HTTP/1.0 200 OK'), EITHER,
                  b'hello', True))
    return named('coding', forms)


def chunks():
    forms, data, last = [], b'\r\nhello\r\n', b'0\r\n\r\n'

    def chunked(kind, *bodies, closes=False):
        for body in bodies:
            forms.append((body[:40], ok(b'Transfer-Encoding: chunked', body=body), kind, b'hello', closes))
    chunked(WHOLE, *[size + data + last for size in (b'5', b'05', b'5;a=b', b'5;a="b"', b'5;' + b'a' * 3000)])
    chunked(WHOLE, b'5' + data + b'0\r\nX: y\r\n\r\n',
            b'5' + data + b'0\r\nContent-Length: 9\r\nHost: x\r\n\r\n', b'5' + data + b'000\r\n\r\n')
    for size in (b' 5', b'+5', b'-5', b'0x5', b'5h', b'g', b'', b'5\x0b', b'5\x0c', b'5\0', b'5 5', b'5,',
                 b'10000000000000005', b'FFFFFFFFFFFFFFFB', b'8000000000000005', b'"5"', b'5 ', b'5\t',
                 b'0' * 40 + b'5'):
        chunked(EITHER, size + data + last, closes=True)
        chunked(EITHER, size + data + last + UNASKED)
    chunked(EITHER, b'5\r\nhelloXX' + last, b'5\r\nhello' + last, b'5\r\nhell\r\n' + last,
            b'5\r\nhello!\r\n' + last, b'5\r\nhello\r\r\n' + last, b'5\nhello\n0\n\n', b'5\nhello\r\n' + last,
            b'5' + data + b'0\n\n', b'5' + data + b'0x0\r\n\r\n', b'5' + data + b'-0\r\n\r\n', b'5' + data,
            b'5' + data + b'0\r\n', b'5' + data + b'0', b'5\r\nhel', b'5\r\n', b'5', b'',
            b'5' + data + b'\r\n', b'5' + data + b'0\r\nX: ' + b'y' * 90000 + b'\r\n\r\n',
            b'5;' + b'a' * 90000 + data + last, closes=True)
    # More than was announced: what is left over answers no request.
    chunked(EITHER, b'5' + data + last + UNASKED, b'5' + data + last + b'garbage', b'5' + data + last + last,
            b'5' + data + last + b'\r\n', b'5' + data + last + b'\0')
    return named('chunk', forms)


def statuses():
    forms, five = [], b'Content-Length: 5'
    for status in (b'100 Continue', b'102 Processing', b'103 Early Hints', b'199 x'):
        interim = b'HTTP/1.1 ' + status
        forms.append((status + b' before', ok(line=interim) + ok(five, body=b'hello'), WHOLE, b'hello'))
        forms.append((status + b' twice', ok(line=interim) * 2 + ok(five, body=b'hello'), WHOLE, b'hello'))
        forms.append((status + b' with a length', ok(five, line=interim) + ok(five, body=b'hello'), EITHER,
                      b'hello'))
        forms.append((status + b' with a field',
                      ok(b'Set-Cookie: interim=1', line=interim) + ok(five, body=b'hello'), WHOLE, b'hello'))
        forms.append((status + b' alone', ok(line=interim), FAILURE, b'', True))
        forms.append((status + b' with content',
                      ok(five, line=interim, body=b'hello') + ok(five, body=b'hello'), EITHER, b'hello',
                      True))
    forms.append((b'100 a hundred times', ok(line=b'HTTP/1.1 100 Continue') * 100 + ok(five, body=b'hello'),
                  EITHER, b'hello'))
    forms.append((b'101', ok(b'Upgrade: x', b'Connection: upgrade', line=b'HTTP/1.1 101 Switching Protocols'),
                  EITHER, b'', True))
    forms.append((b'101 and an answer', ok(line=b'HTTP/1.1 101 Switching Protocols') + UNASKED, EITHER))
    for status in (b'204 No Content', b'304 Not Modified'):
        line = b'HTTP/1.1 ' + status
        forms.append((status, ok(line=line), WHOLE))
        forms.append((status + b' with a length', ok(five, line=line), EITHER))
        forms.append((status + b' with content', ok(five, line=line, body=b'hello'), EITHER))
        forms.append((status + b' with chunks',
                      ok(b'Transfer-Encoding: chunked', line=line, body=b'5\r\nhello\r\n0\r\n\r\n'), EITHER))
        forms.append((status + b' with an answer',
                      ok(b'Content-Length: %d' % len(UNASKED), line=line, body=UNASKED), EITHER))
        forms.append((status + b' and another', ok(line=line) + UNASKED, EITHER))
    forms.append((b'205 with content', ok(five, line=b'HTTP/1.1 205 Reset Content', body=b'hello'), EITHER,
                  b'hello'))
    for line in (b'HTTP/1.0 200 OK', b'HTTP/1.1 200', b'HTTP/1.1 200 ', b'HTTP/1.1 200 O\xffK',
                 b'HTTP/1.1 200 a b c'):
        forms.append((line, ok(five, line=line, body=b'hello'), WHOLE, b'hello'))
    for line in (b'HTTP/1.1 99 x', b'HTTP/1.1 1000 x', b'HTTP/1.1 000 x', b'HTTP/1.1 2x0 OK',
                 b'HTTP/1.1 -200 OK', b'HTTP/1.1  200 OK', b'HTTP/2 200 OK', b'HTTP/2.0 200 OK',
                 b'HTTP/0.9 200 OK', b'http/1.1 200 OK', b'HTTP/1.1\t200\tOK', b' HTTP/1.1 200 OK',
                 b'HTTP/1.1 200 O\0K', b'HTTP/1.1 200 O\rK', b'HTTP/1.1 999 x', b'HTTP/1.1 600 x',
                 b'HTTP/1.1200 OK', b'ICY 200 OK', b'\r\nHTTP/1.1 200 OK', b'HTTP/1.1', b'', b'SSH-2.0-x',
                 b'HTTP/1.1 +200 OK', b'HTTP/1.1 200\x0bOK', b'hello'):
        forms.append((line, ok(five, line=line, body=b'hello'), EITHER, b'hello', True))
    return named('status', forms)


def fields():
    forms, five = [], b'Content-Length: 5'
    for line in (b'X: y\nZ: w', b'X: \x80\xff', b'X:', b'Connection: X', b'Connection: close',
                 b'X: ' + b'y' * 3000, b'Keep-Alive: timeout=0', b'Content-Type: text/html\t; x',
                 b'Trailer: X', b'Date: x', b'Server: x', b'Via: 1.1 x', b'Upgrade: h2c'):
        forms.append((line, ok(line, five, body=b'hello'), WHOLE, b'hello', line == b'Connection: close'))
    for line in (b'X: y\rZ: w', b'X: \0', b'X', b': y', b' X: y', b'X : y', b'X y: z', b'X: y\r\n z', b'\0',
                 b'X\0: y', b'X: y\r', b'X: \x7f', b'X\xff: y', b'X: \x1b[31m', b'X\r: y',
                 b'Set-Cookie: a=b\rSet-Cookie: c=d', b'Location: /\rX: y', b'Content-Type: a\0b',
                 b'ETag: "\0"', b'X: ' + b'y' * 70000, b'X-Accel-Redirect: /%0d%0aX', b'X-Accel-Redirect: ',
                 b'X-Accel-Redirect: /a\0b', b'X-Accel-Expires: \0', b'Location: //\\evil', b'Refresh: 0;\rX',
                 b'Content-Encoding: a\rb', b'Cache-Control: max-age=1\rX', b'Vary: \0',
                 b'Content-Range: bytes 0-4/5', b'Connection: Content-Length',
                 b'Connection: Transfer-Encoding',
                 b'\r\n'.join(b'X%d: y' % number for number in range(2000))):
        forms.append((line[:40], ok(line, five, body=b'hello'), EITHER, b'hello', True))
    return named('field', forms)


def unasked():
    """A second answer: with the first one, or while the connection is idle."""
    five = ok(b'Content-Length: 5', body=b'hello')
    chunked = ok(b'Transfer-Encoding: chunked', body=b'5\r\nhello\r\n0\r\n\r\n')
    forms = []
    for name, first in ((b'length', five), (b'chunked', chunked)):
        for more in (UNASKED, UNASKED * 3, b'HTTP/1.1 100 Continue\r\n\r\n', b'\r\n', b'\n', b'\0', b'x',
                     b'HTTP/1.1 200 OK\r\n', UNASKED[:-3], b'0\r\n\r\n',
                     b'HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'):
            forms.append((name + b' with ' + more, first + more, EITHER, b'hello'))
            forms.append((name + b' later ' + more, first, WHOLE, b'hello', False, more))
    forms.append((b'without length', ok(body=b'hello'), WHOLE, b'hello', True))
    forms.append((b'without length, an answer in it', ok(body=UNASKED), WHOLE, UNASKED, True))
    forms.append((b'nothing', b'', FAILURE, b'', True))
    forms.append((b'half a head', b'HTTP/1.1 200 OK\r\nContent-Le', FAILURE, b'', True))
    forms.append((b'LF alone', five.replace(b'\r\n', b'\n'), EITHER, b'hello', True))
    forms.append((b'CR alone', five.replace(b'\r\n', b'\r'), EITHER, b'', True))
    return named('second', forms)


def all_forms():
    return [form for family in (lengths, codings, chunks, statuses, fields, unasked) for form in family()]
