"""Records of FastCGI that two readers could understand differently, and heads of CGI in them."""
from .answer_forms import EITHER, FAILURE, WHOLE, named
from .origins import ABORT, BEGIN, DATA, END, PARAMS, STDERR, STDIN, STDOUT, UNKNOWN, VALUES_RESULT, record, records

HEAD = b'Content-Type: text/plain\r\n\r\n'
PAGE = HEAD + b'hello'
OVER = record(STDOUT) + record(END, bytes(8))
LATE = records(HEAD + b'unasked')


def out(content, **more):
    return record(STDOUT, content, **more)


def framing():
    forms = [
        (b'as usual', out(PAGE) + OVER, WHOLE, b'hello'),
        (b'without the empty STDOUT', out(PAGE) + record(END, bytes(8)), WHOLE, b'hello'),
        (b'padding', out(PAGE, padding=7) + record(STDOUT, padding=255) + record(END, bytes(8), padding=8),
         WHOLE, b'hello'),
        (b'byte by byte', b''.join(out(bytes([byte])) for byte in PAGE) + OVER, WHOLE, b'hello'),
        (b'padded bytes', b''.join(out(bytes([byte]), padding=255) for byte in PAGE) + OVER, WHOLE, b'hello'),
        (b'head apart', out(HEAD) + out(b'hello') + OVER, WHOLE, b'hello'),
        (b'head torn', out(HEAD[:-1]) + out(HEAD[-1:] + b'hello') + OVER, WHOLE, b'hello'),
        (b'many empty STDERR', record(STDERR) * 2000 + out(PAGE) + OVER, WHOLE, b'hello'),
        (b'STDERR before', record(STDERR, b'a warning') + out(PAGE) + OVER, WHOLE, b'hello'),
        (b'STDERR between', out(HEAD) + record(STDERR, b'a warning\0\r\n') + out(b'hello') + OVER, EITHER,
         b'hello'),
        (b'STDERR behind', out(PAGE) + record(STDERR, b'a warning') + OVER, EITHER, b'hello'),
        (b'STDERR alone', record(STDERR, b'a warning') + OVER, FAILURE),
        (b'STDERR of 64 KB', record(STDERR, b'e' * 65535) * 4 + out(PAGE) + OVER, EITHER, b'hello'),
        (b'no content', out(HEAD) + OVER, WHOLE, b''),
        (b'nothing', OVER, FAILURE),
        (b'END alone', record(END, bytes(8)), FAILURE),
        (b'half a head', out(HEAD[:-2]) + OVER, EITHER, b''),
        (b'closed', b'', FAILURE, b'', True),
        (b'closed in a head', out(HEAD[:9]), FAILURE, b'', True),
        (b'closed in the content', out(PAGE), EITHER, b'hello', True),
        (b'closed in a record', out(PAGE)[:-2], EITHER, b'hel', True),
        (b'closed behind STDOUT', out(PAGE) + record(STDOUT), EITHER, b'hello', True),
        (b'closed in END', out(PAGE) + record(STDOUT) + record(END, bytes(8))[:12], EITHER, b'hello', True),
        (b'STDOUT behind its end', out(PAGE) + record(STDOUT) + out(b' more') + record(END, bytes(8)), EITHER,
         b'hello more'),
        (b'STDOUT behind END', out(PAGE) + OVER + out(b' more'), EITHER, b'hello'),
        (b'two answers', out(PAGE) + OVER + LATE, EITHER, b'hello'),
        (b'three answers', out(PAGE) + OVER + LATE + LATE, EITHER, b'hello'),
        (b'half an answer behind', out(PAGE) + OVER + LATE[:20], EITHER, b'hello'),
        (b'END twice', out(PAGE) + OVER + record(END, bytes(8)), EITHER, b'hello'),
        (b'another answer later', out(PAGE) + OVER, WHOLE, b'hello', False, LATE),
        (b'END later', out(PAGE) + OVER, WHOLE, b'hello', False, record(END, bytes(8))),
        (b'a byte later', out(PAGE) + OVER, WHOLE, b'hello', False, b'\1'),
        (b'END of 0 bytes', out(PAGE) + record(STDOUT) + record(END), EITHER, b'hello', True),
        (b'END of 16 bytes', out(PAGE) + record(STDOUT) + record(END, bytes(16)), EITHER, b'hello', True),
    ]
    for status in (b'\0\0\0\1\0', b'\0\0\0\0\1', b'\0\0\0\0\2', b'\0\0\0\0\3', b'\0\0\0\0\xff',
                   b'\xff\xff\xff\xff\0'):
        forms.append((b'END says ' + status, out(PAGE) + record(STDOUT) + record(END, status + bytes(3)),
                      EITHER, b'hello'))
    for number in (0, 2, 256, 65535):
        forms.append((b'STDOUT of request %d' % number, out(PAGE) + out(b'unasked', number=number) + OVER,
                      EITHER, b'hello', True))
        forms.append((b'all of request %d' % number, records(PAGE, number=number), EITHER, b'hello', True))
        forms.append((b'END of request %d' % number, out(PAGE) + record(END, bytes(8), number=number), EITHER,
                      b'hello', True))
    for kind in (0, BEGIN, ABORT, PARAMS, STDIN, DATA, 9, VALUES_RESULT, UNKNOWN, 12, 255):
        forms.append((b'a record of type %d' % kind, record(kind, b'unasked') + out(PAGE) + OVER, EITHER,
                      b'hello', True))
        forms.append((b'type %d between' % kind, out(PAGE) + record(kind, b'unasked') + OVER, EITHER,
                      b'hello', True))
    for version in (0, 2, 255):
        forms.append((b'version %d' % version, out(PAGE, version=version) + OVER, EITHER, b'hello', True))
    forms += [(name, name + out(PAGE) + OVER, EITHER, b'hello', True)
              for name in (b'HTTP/1.1 200 OK\r\n\r\n', b'\0' * 8, b'\1' * 8, b'x')]
    return named('records', forms)


def heads(sent=records):
    """Heads of CGI, with what they are sent as."""
    forms = []
    for line in (b'Status: 200', b'Status: 200 OK', b'Status:200', b'status: 200 OK', b'X: y', b'X:',
                 b'Content-Length: 5', b'Status: 200 a b'):
        forms.append((line, sent(line + b'\r\n' + PAGE), WHOLE, b'hello'))
    # An interim answer would be followed by no other; after a 101 the client would speak FastCGI itself.
    for line in (b'Status: 100', b'Status: 101', b'Status: 101\r\nUpgrade: x\r\nConnection: upgrade',
                 b'Status: 103', b'Status: 199', b'Status: 099', b'Status: 1000', b'Status: 1', b'Status: 0'):
        forms.append((line, sent(line + b'\r\n' + PAGE), FAILURE))
    for line in (b'Status: 2x0', b'Status: -1', b'Status:', b'Status: 2000', b'Status: 204',
                 b'Status: 304', b'Status: 200\r\nStatus: 500', b'Content-Length: 4', b'Content-Length: 6',
                 b'Content-Length: 500', b'Content-Length: -5', b'Content-Length: x',
                 b'Content-Length: 5\r\nContent-Length: 6', b'Content-Length: 0',
                 b'Transfer-Encoding: chunked', b'Transfer-Encoding: chunked\r\nContent-Length: 5',
                 b'Connection: close', b'Connection: Content-Length', b'Upgrade: x', b'X: y\rZ: w', b'X: \0',
                 b'X', b': y', b' X: y', b'X : y', b'X: y\r\n z', b'X\0: y', b'X: \x7f', b'HTTP/1.1 200 OK',
                 b'Location: /\rX: y', b'Set-Cookie: a\rSet-Cookie: b', b'X: ' + b'y' * 70000,
                 b'Location: \0', b'Status: 302\r\nLocation: //evil', b'Status: 200 O\rK',
                 b'Status: 200 O\0K', b'X-Accel-Redirect: /a\0b',
                 b'\r\n'.join(b'X%d: y' % number for number in range(2000))):
        forms.append((line[:40], sent(line + b'\r\n' + PAGE), EITHER, b'hello'))
    # As nginx: its status line is passed over.
    forms.append((b'an answer of HTTP', sent(b'HTTP/1.1 200 OK\r\n' + PAGE), EITHER, b'hello'))
    forms.append((b'LF alone', sent(PAGE.replace(b'\r\n', b'\n')), WHOLE, b'hello'))
    forms.append((b'CR alone', sent(PAGE.replace(b'\r\n', b'\r')), EITHER))
    forms.append((b'no head', sent(b'hello'), EITHER))
    forms.append((b'an empty head', sent(b'\r\nhello'), EITHER, b'hello'))
    return named('cgi', forms)


def all_forms():
    return framing() + heads()
