"""Requests that two readers could understand differently. Each is a name, its bytes, what is to become of it and,
where it is taken, the content that the upstream must see.

%T is the request's target, %S the target of a request hidden in it, which must never be read as a request.
"""
import dataclasses

# Refused; taken, and the request behind it answered; one of both; the connection ends without an answer to the
# request behind it; answered as HTTP/0.9, where the end of the connection ends the answer.
REFUSED, TAKEN, EITHER, ENDS, OLD = 'refused', 'taken', 'either', 'ends', 'old'
CHUNKED = b'5\r\nhello\r\n0\r\n\r\n'
HIDDEN = b'GET %S HTTP/1.1\r\nHost: a.test\r\n\r\n'


@dataclasses.dataclass
class Form:
    name: str
    data: bytes
    kind: str
    content: bytes = b''
    # Further requests that the same bytes rightly hold: endings of their targets.
    also: tuple = ()


def post(*lines, content=b'', line=b'POST %T HTTP/1.1'):
    return b'\r\n'.join((line, b'Host: a.test', *lines)) + b'\r\n\r\n' + content


def label(text):
    return text.decode('latin1').encode('unicode_escape').decode()[:40].replace(' ', '_').replace("'", '"')


def named(family, forms):
    return [Form(f'{family}-{number:02}-{label(data)}', *rest) for number, (data, *rest) in enumerate(forms)]


def lengths():
    good = [b'5', b' 5', b'5 ', b'   5   ', b'05', b'000005', b'0' * 30 + b'5']
    maybe = [b'\t5', b'5\t', b' \t 5']
    bad = [b'+5', b'-5', b'5,5', b'5, 5', b'5,6', b'5;', b'5.0', b'5e0', b'0x5', b'5\x0b', b'5\x0c', b'\x0b5',
           b'\x0c5', b'5\0', b'\x005', b'five', b'"5"', b"'5'", b'\xd9\xa5', b'\xef\xbc\x95', b'5\x85',
           b'5\xa0', b'%35', b'5,', b',5', b'5#', b'5 5', b'1_0', b'5\r', b'\r5', b'4294967301L',
           b'18446744073709551621', b'9223372036854775808', b'9' * 100, b'-0', b'+0', b'5\x1f', b'5\x7f',
           b'0 5', b'5 chunked', b'5\r\n 5', b'\r\n 5', b'5/5', b'5:5', b'*']
    forms = [(b'Content-Length:' + value, post(b'Content-Length:' + value, content=b'hello'), TAKEN, b'hello')
             for value in good]
    forms += [(b'Content-Length:' + value, post(b'Content-Length:' + value, content=b'hello'), EITHER,
               b'hello')
              for value in maybe]
    forms += [(b'Content-Length:' + value, post(b'Content-Length:' + value, content=b'hello'), REFUSED)
              for value in bad]
    for value in (b'', b' ', b'\t'):
        forms.append((b'Content-Length:' + value, post(b'Content-Length:' + value), EITHER))
    return named('length', forms)


def lengths_twice():
    five, six, none = b'Content-Length: 5', b'Content-Length: 6', b'Content-Length: 0'
    pairs = [(five, five), (five, six), (six, five), (none, five), (five, none), (five, b'content-length: 5'),
             (b'CONTENT-LENGTH: 6', five), (five, b'Content-Length:'), (b'Content-Length:', five),
             (five, b'X: y', b'Content-Length: 05'), (five, five, five), (five, b'Content-Length: x'),
             (b'Content-Length: x', five), (five, b'Content-Length: -1'), (none, b'Content-Length: 35')]
    forms = [(b'+'.join(pair), post(*pair, content=b'hello'), REFUSED) for pair in pairs]
    hidden = post(b'Content-Length: %H', content=HIDDEN)
    forms.append((b'a request as content', hidden, TAKEN, HIDDEN))
    for name in (b'Content-Length ', b' Content-Length', b'\tContent-Length', b'Content-Length\t',
                 b'Content-Length\x0b', b'Content-Length\0', b'Content Length', b'X: y\rContent-Length',
                 b'Content-Length\r'):
        forms.append((name, post(name + b': %H', content=HIDDEN), REFUSED))
    # Names of other fields: there is no content, and what follows is a request of its own.
    for name in (b'Content_Length', b'XContent-Length', b'Content-Lengths', b'Content-Length-',
                 b'Content--Length', b'Content.Length', b'HTTP_CONTENT_LENGTH', b'X-Content-Length',
                 b'Content-Length\xc2\xa0', b'Content\xadLength', b'Content-\r\nLength'):
        forms.append((name, post(name + b': %H', content=HIDDEN), TAKEN, b'', ('-hidden',)))
    # A bare LF ends a line for nginx, so that this is one field like others.
    forms.append((b'X: y LF Content-Length', post(b'X: y\nContent-Length: 5', content=b'hello'), EITHER,
                  b'hello'))
    return named('twice', forms)


CODINGS_GOOD = [b'chunked', b'Chunked', b'CHUNKED', b' chunked', b'chunked ', b'cHuNkEd']
CODINGS_MAYBE = [b'\tchunked', b'chunked\t', b' \t chunked \t ']
CODINGS_BAD = [
    b'\x0bchunked', b'chunked\x0b', b'chunked\x0c', b'\x0cchunked', b'chunked\0', b'xchunked', b'chunkedx',
    b'chunke', b'chunked,', b',chunked', b'chunked, chunked', b'identity', b'identity, chunked',
    b'chunked, identity', b'gzip, chunked', b'chunked, gzip', b'gzip', b'"chunked"', b"'chunked'",
    b'chunked;q=1', b'chunked; x', b'chunk ed', b'chunked\r\n x', b'\r\n chunked', b'', b'cow',
    b'cow, chunked', b'chunked\xff', b'\xffchunked', b'chunked\x85', b'\xef\xbd\x83hunked', b'trailers',
    b'chunked\r', b'\rchunked', b'chunked\x1f', b'null', b'chunked chunked', b'0', b'chunked#', b'chunked/1',
    b'*', b'chun\xc2\xadked', b'\xc2\xa0chunked']


def codings():
    forms = []
    for values, kind in ((CODINGS_GOOD, TAKEN), (CODINGS_MAYBE, EITHER), (CODINGS_BAD, REFUSED)):
        for value in values:
            name = b'Transfer-Encoding:' + value
            forms.append((name, post(name, content=CHUNKED), kind, b'hello'))
            # With a length: a reader of that finds content where another one finds a request.
            both = post(b'Content-Length: %H', name, content=b'0\r\n\r\n' + HIDDEN)
            forms.append((name + b'+length', both, REFUSED))
    return named('coding', forms)


def coding_names():
    forms = []
    for name in (b'transfer-encoding', b'TRANSFER-ENCODING', b'Transfer-encoding'):
        forms.append((name, post(name + b': chunked', content=CHUNKED), TAKEN, b'hello'))
    for name in (b'Transfer-Encoding ', b' Transfer-Encoding', b'\tTransfer-Encoding', b'Transfer-Encoding\t',
                 b'Transfer-Encoding\x0b', b'Transfer\0-Encoding', b'Transfer Encoding',
                 b'X: y\rTransfer-Encoding', b'Transfer-Encoding\r', b'\x00Transfer-Encoding',
                 b'Transfer-\r\n Encoding'):
        forms.append((name, post(name + b': chunked', content=CHUNKED), REFUSED))
        forms.append((name + b'+length', post(b'Content-Length: 5', name + b': chunked',
                                              content=b'0\r\n\r\n'),
                      REFUSED))
    # Another field's name: the length alone counts.
    for name in (b'Transfer_Encoding', b'XTransfer-Encoding', b'Transfer-Encodings', b'X-Transfer-Encoding',
                 b'HTTP_TRANSFER_ENCODING', b'Transfer.Encoding', b'Transfer-Encoding\xc2\xa0', b'TE'):
        forms.append((name + b'+length', post(b'Content-Length: 5', name + b': chunked',
                                              content=b'0\r\n\r\n'),
                      TAKEN, b'0\r\n\r\n'))
    for values in ((b'chunked', b'identity'), (b'identity', b'chunked'), (b'chunked', b'chunked'),
                   (b'chunked', b''), (b'', b'chunked'), (b'gzip', b'chunked'), (b'chunked', b'gzip'),
                   (b'cow', b'chunked')):
        lines = [b'Transfer-Encoding: ' + value for value in values]
        forms.append((b'+'.join(values), post(*lines, content=CHUNKED), REFUSED))
    old = b'POST %T HTTP/1.0'
    forms.append((b'HTTP/1.0', post(b'Transfer-Encoding: chunked', content=CHUNKED, line=old), REFUSED))
    forms.append((b'HTTP/1.0 length', post(b'Content-Length: 5', b'Connection: keep-alive', content=b'hello',
                                           line=old),
                  TAKEN, b'hello'))
    forms.append((b'HTTP/1.0 both', post(b'Content-Length: 5', b'Transfer-Encoding: chunked',
                                         content=b'0\r\n\r\n', line=old), REFUSED))
    for method in (b'GET', b'HEAD', b'DELETE', b'OPTIONS', b'PUT', b'PATCH', b'FOO'):
        line = method + b' %T HTTP/1.1'
        forms.append((method + b' chunked', post(b'Transfer-Encoding: chunked', content=CHUNKED, line=line),
                      TAKEN, b'hello'))
        forms.append((method + b' length', post(b'Content-Length: 5', content=b'hello', line=line), TAKEN,
                      b'hello'))
    return named('name', forms)


def chunks():
    start = b'Transfer-Encoding: chunked'
    forms = []

    def chunked(kind, content, *bodies, also=()):
        for body in bodies:
            forms.append((body[:40], post(start, content=body), kind, content, also))
    last, data = b'0\r\n\r\n', b'\r\nhello\r\n'
    chunked(TAKEN, b'hello', *[size + data + last for size in (
        b'5', b'05', b'5;', b'5;a', b'5;a=b', b'5;a="b"', b'5 ;a=b', b'5; a', b'5;' + b'a' * 4000)])
    chunked(TAKEN, b'hello', b'5' + data + b'00\r\n\r\n', b'5' + data + b'0;a=b\r\n\r\n',
            b'5' + data + b'000000\r\n\r\n')
    chunked(EITHER, b'hello', b'5 ' + data + last, b'5\t' + data + last, b'5 \t ' + data + last,
            b'5' + data + b'0 \r\n\r\n', b'0' * 15 + b'5' + data + last, b'0' * 40 + b'5' + data + last)
    chunked(TAKEN, b'hello' * 2 + b'x', b'A\r\nhellohello\r\n1\r\nx\r\n' + last,
            b'a\r\nhellohello\r\n1\r\nx\r\n' + last)
    chunked(REFUSED, b'', *[size + data + last for size in (
        b' 5', b'\t5', b'+5', b'-5', b'0x5', b'5h', b'g', b'', b' ', b';', b';a=b', b'5\x0b', b'5\x0c',
        b'\x0b5', b'5\0', b'5 5', b'5,', b'5,5', b'5.0', b'10000000000000005', b'FFFFFFFFFFFFFFFB',
        b'8000000000000005', b'fffffffffffffffe', b'0' * 16 + b'10000000000000005', b'\xef\xbc\x95', b'"5"',
        b'5\r', b'5_', b'_5', b'5a=b', b'\r5', b'\n5', b'5\x85', b'5\xa0', b'5:', b'5=')])
    # The end of a chunk, and of the last one.
    chunked(REFUSED, b'', b'5\r\nhelloXX' + last, b'5\r\nhello' + last, b'5\r\nhello\r' + last,
            b'5\r\nhell\r\n' + last, b'5\r\nhello!\r\n' + last, b'5\r\nhello\n\r\n' + last,
            b'5\r\nhello\r\r\n' + last, b'5\r\nhello\0\0' + last)
    # Bare LF: refused, or read as nginx reads it.
    chunked(EITHER, b'hello', b'5\nhello\r\n' + last, b'5\r\nhello\n' + last, b'5\nhello\n0\n\n',
            b'5' + data + b'0\n\n', b'5' + data + b'0\r\n\n', b'5' + data + b'0\n\r\n')
    chunked(EITHER, b'hello', b'5;a\n' + b'hello\r\n' + last, b'5;\nhello\r\n' + last,
            b'5;a="\r\nhello\r\n' + last)
    chunked(EITHER, b'hello', b'5;a\rb' + data + last, b'5;\0' + data + last, b'5;\x0b' + data + last)
    chunked(REFUSED, b'', b'5' + data + b'-0\r\n\r\n', b'5' + data + b'0x0\r\n\r\n',
            b'5' + data + b'+0\r\n\r\n', b'5' + data + b'x\r\n\r\n', b'5' + data + b'\r\n\r\n')
    # Trailers: none may become a field of the request or hide another one.
    for trailer in (b'X: y', b'Content-Length: 5', b'Transfer-Encoding: chunked', b'Host: evil.test',
                    b'Connection: close', b'Authorization: Bearer x', b'X: y\r\nZ: w', b'X:',
                    b'X: ' + b'y' * 4000):
        chunked(TAKEN, b'hello', b'5' + data + b'0\r\n' + trailer + b'\r\n\r\n')
    for trailer in (b'X: y\rZ', b'X: \0', b'X', b'X : y', b': y', b'X: y\r\n z', b' X: y', b'X: y\nZ: w',
                    b'GET %S HTTP/1.1'):
        chunked(EITHER, b'hello', b'5' + data + b'0\r\n' + trailer + b'\r\n\r\n')
    # The line of the request behind it is a trailer then.
    chunked(ENDS, b'hello', b'5' + data + b'0\r\n')
    chunked(ENDS, b'', b'5' + data, b'5\r\nhel', b'5', b'fffffff' + data + last, b'')
    return named('chunk', forms)


def request_lines():
    forms = []

    def lines(kind, *texts, also=()):
        for text in texts:
            forms.append((text[:40], text + b'\r\nHost: a.test\r\n\r\n', kind, b'', also))
    lines(TAKEN, b'GET %T HTTP/1.1', b'HEAD %T HTTP/1.1', b'DELETE %T HTTP/1.1', b'OPTIONS %T HTTP/1.1',
          b'PATCH %T HTTP/1.1', b'FOO %T HTTP/1.1', b'\r\nGET %T HTTP/1.1', b'\r\n\r\nGET %T HTTP/1.1',
          b'GET http://a.test%T HTTP/1.1', b'GET HTTP://A.TEST%T HTTP/1.1')
    lines(EITHER, b'GET  %T HTTP/1.1', b'GET %T  HTTP/1.1', b'GET %T HTTP/1.1 ', b'GET %T HTTP/1.1  ',
          b'\nGET %T HTTP/1.1', b'\rGET %T HTTP/1.1', b'GET %T HTTP/1.2', b'GET %T HTTP/1.9',
          b'GET %T HTTP/1.01', b'GET %T#fragment HTTP/1.1', b'GET %T?a#b HTTP/1.1',
          b'GET http://other.test%T HTTP/1.1', b'GET http://user@a.test%T HTTP/1.1',
          b'GET http://a.test:80%T HTTP/1.1', b'GET ftp://a.test%T HTTP/1.1', b'GET %T\x80\xff HTTP/1.1',
          b'GET %T%00 HTTP/1.1', b'GET %T%0d%0aX:%20y HTTP/1.1', b'GET %T%20HTTP/1.1%0d%0aX:%20y HTTP/1.1',
          b'GET /%T HTTP/1.1', b'GET %T/../../x HTTP/1.1', b'GET %T%zz HTTP/1.1', b'GET %T% HTTP/1.1',
          b'TRACE %T HTTP/1.1', b'CONNECT %T HTTP/1.1', b'_ %T HTTP/1.1', b'G-T %T HTTP/1.1',
          b'GET %T|<>"{}^`\\ HTTP/1.1', b'GET /./%T HTTP/1.1', b'POST %T HTTP/1.1')
    lines(REFUSED, b' GET %T HTTP/1.1', b'\tGET %T HTTP/1.1', b'GET\t%T HTTP/1.1', b'GET %T\tHTTP/1.1',
          b'GET %T HTTP/1.1\t', b'GET %T HTTP/2.0', b'GET %T HTTP/3.0', b'GET %T HTTP/0.9',
          b'GET %T http/1.1', b'GET %T HTTP/1,1', b'GET %T HTTP /1.1', b'GET %T HTTP/1.1x',
          b'GET %T HTTPS/1.1', b'GET %T HTTP/1.', b'GET %T HTTP/.1', b'GET %T HTTP/1', b'GET %T HTTP/11.1',
          b'GET %T HTTP/1.1.1', b'GET %T HTTP/-1.1', b'GET %T HTTP/01.1', b'GET %T HTTP/1.1\0',
          b'GET %T HTTP/1.1 x', b'GET %T x HTTP/1.1', b'get %T HTTP/1.1', b'Get %T HTTP/1.1',
          b'G\0ET %T HTTP/1.1', b'GE T %T HTTP/1.1', b'GET: %T HTTP/1.1', b'"GET" %T HTTP/1.1',
          b'%T HTTP/1.1', b'GET', b'GET %T\0 HTTP/1.1', b'GET %T\r HTTP/1.1', b'GET %T\x0b HTTP/1.1',
          b'GET %T\x7f HTTP/1.1', b'GET %T\x01 HTTP/1.1', b'GET \0%T HTTP/1.1', b'GET x%T HTTP/1.1',
          b'GET ?%T HTTP/1.1', b'GET * HTTP/1.1', b'GET http:%T HTTP/1.1', b'GET http://%T HTTP/1.1',
          b'GET ://a%T HTTP/1.1', b'GET a.test:80 HTTP/1.1', b'PRI * HTTP/2.0', b'GET %T HTTP/1.1\rX: y',
          b'\0GET %T HTTP/1.1', b'GET\0%T HTTP/1.1', b'GET\x0b%T\x0bHTTP/1.1', b'\x16\x03\x01GET %T HTTP/1.1',
          b'GET\r\n%T HTTP/1.1', b'PROXY TCP4 1.1.1.1 2.2.2.2 1 2')
    # A request of HTTP/0.9 ends with its line and its answer with the connection.
    lines(OLD, b'GET %T', b'GET %T ', b'GET %T\r\nHTTP/1.1')
    lines(REFUSED, b'POST %T')
    return named('line', forms)


def fields():
    forms = []

    def get(kind, *names, method=b'GET', content=b'', also=()):
        for name in names:
            data = method + b' %T HTTP/1.1\r\nHost: a.test\r\n' + name + b'\r\n\r\n'
            forms.append((name[:40], data, kind, content, also))
    get(TAKEN, b'X: y', b'X:y', b'X:', b'X: \t y \t ', b'X: \x80\xff', b"!#$%&'*+.^_`|~: y", b'X: "a\\"b"',
        b'X:: y', b'Connection: Host', b'Connection: Content-Length', b'Connection: Transfer-Encoding',
        b'Connection: keep-alive, Cookie', b'Keep-Alive: timeout=5', b'Proxy-Connection: close',
        b'TE: trailers', b'Upgrade: websocket',
        b'Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA',
        b'Connection: Upgrade\r\nUpgrade: TLS/1.0', b'Trailer: Content-Length', b'Proxy: http://evil.test',
        b'Max-Forwards: 0', b'X: ' + b'y' * 6000, b'Range: bytes=0-0', b'Via: 1.1 evil',
        b'X-Real-IP: 1.1.1.1', b'Content-Type: a\tb')
    get(EITHER, b'X', b'X\x0b: y', b'X\xc2\xa0: y', b'X: y\x0b', b'X: y\x1b', b'X: \x7f', b'(X): y',
        b'X[]: y', b'X: y\nZ: w', b'X@Z: w', b'Expect: 100-continue', b'X: ' + b'y' * 9000,
        b'Connection: Upgrade\r\nUpgrade: websocket')
    get(REFUSED, b': y', b' X: y', b'\tX: y', b'X : y', b'X\t: y', b'X y: z', b'X: y\r\n z', b'X: y\r\n\tz',
        b'X: y\rZ: w', b'X: \0y', b'X\0: y', b'X: y\r', b'\rX: y', b'X\r: y', b'\0', b'Host: a.test',
        b'Host: b.test', b'host: a.test', b'X: ' + b'y' * 40000,
        b'\r\n'.join(b'X%d: y' % number for number in range(3000)), b'\x01X: y', b'X\x7f: y')
    get(ENDS, b'Connection: close', b'Connection: close, X', b'Connection: X, close', b'Connection: Close')
    expected = b'Content-Length: 5\r\nExpect: '
    for value, kind in ((b'100-continue', TAKEN), (b'100-Continue', TAKEN), (b'100-continue ', TAKEN),
                        (b'foo', EITHER), (b'100-continue, foo', EITHER), (b'', EITHER),
                        (b'100-continue\r\nExpect: 100-continue', EITHER), (b'200-ok', EITHER),
                        (b'"100-continue"', EITHER)):
        data = b'POST %T HTTP/1.1\r\nHost: a.test\r\n' + expected + value + b'\r\n\r\nhello'
        forms.append((b'Expect: ' + value, data, kind, b'hello'))
    data = b'POST %T HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n' + CHUNKED
    forms.append((b'Expect chunked', data, TAKEN, b'hello'))
    return named('field', forms)


def hosts():
    def with_host(lines, kind, line=b'GET %T HTTP/1.1'):
        return (lines[:40] + b'|' + line[4:11], line + b'\r\n' + lines + b'\r\n', kind)
    taken = [b'Host: a.test\r\n', b'Host:a.test\r\n', b'host: A.TEST\r\n', b'Host: a.test:80\r\n',
             b'Host: 127.0.0.1\r\n', b'Host: [::1]\r\n', b'Host: [::1]:80\r\n', b'Host: a.test.\r\n']
    either = [b'Host: a.test:\r\n', b'Host: a.test:x\r\n', b'Host: a.test:99999\r\n', b'Host: a_b.test\r\n',
              b'Host: .test\r\n', b'Host: user@a.test\r\n', b'Host: a.test,b.test\r\n', b'Host: \x80\r\n',
              b'Host: a%00b\r\n', b'Host: a?b\r\n', b'Host: a#b\r\n', b'Host: a.test;\r\n',
              b'Host: "a.test"\r\n', b'Host:\ta.test\r\n', b'Host: a:b:c\r\n', b'Host: a\\b\r\n',
              b'Host: *\r\n', b'Host: <a>\r\n', b'Host: a|b\r\n', b'Host: -\r\n']
    refused = [b'', b'Host : a.test\r\n', b' Host: a.test\r\n', b'Host: a.test\r\nHost: a.test\r\n',
               b'Host: a/b\r\n', b'Host: a b\r\n', b'Host: a.test\r\nHost: b.test\r\n', b'Host: a\0b\r\n',
               b'Host: a..b\r\n', b'Host: [::1\r\n', b'Host: a.test\r\n b.test\r\n',
               b'Host: a.test\rHost: b.test\r\n', b'Host: http://a.test/\r\n', b'Host: a.test\r\nHost:\r\n',
               b'Host: a\tb\r\n', b'Host: \r\n', b'Host\r\n',
               # Below `root /sites/$host` these would be the folder of all sites.
               b'Host: .\r\n', b'Host: ..\r\n', b'Host: ...\r\n', b'Host: a.test..\r\n', b'Host: /\r\n',
               b'Host: ../x\r\n', b'Host: ..:80\r\n', b'Host: .:80\r\n', b'Host: :80\r\n']
    forms = [with_host(lines, TAKEN) for lines in taken] + [with_host(lines, EITHER) for lines in either]
    forms += [with_host(lines, REFUSED) for lines in refused]
    absolute = b'GET http://a.test%T HTTP/1.1'
    forms += [with_host(lines, EITHER, absolute)
              for lines in (b'', b'Host: b.test\r\n', b'Host: \r\n', b'Host: a.test:81\r\n')]
    forms += [with_host(lines, REFUSED, absolute)
              for lines in (b'Host: a/b\r\n', b'Host: a.test\r\nHost: a.test\r\n')]
    return named('host', forms)


def sequences():
    get = b'GET %T HTTP/1.1\r\nHost: a.test\r\n\r\n'
    more = b'GET %T-%N HTTP/1.1\r\nHost: a.test\r\n\r\n'
    three = get + b''.join(more.replace(b'%N', str(number).encode()) for number in (1, 2))
    body = post(b'Content-Length: 3', content=b'abc') + more.replace(b'%N', b'1')
    forms = [(b'three', three, TAKEN, b'', ('-1', '-2')),
             (b'content and one more', body, TAKEN, b'abc', ('-1',)),
             (b'empty lines between', get + b'\r\n\r\n\r\n' + more.replace(b'%N', b'1'), TAKEN, b'', ('-1',)),
             (b'LF alone', get.replace(b'\r\n', b'\n'), EITHER),
             (b'LF at the end', b'GET %T HTTP/1.1\r\nHost: a.test\r\n\n', EITHER),
             (b'CR alone', get.replace(b'\r\n', b'\r'), REFUSED),
             (b'CR CR LF', get.replace(b'\r\n', b'\r\r\n'), REFUSED),
             (b'LF CR', get.replace(b'\r\n', b'\n\r'), REFUSED),
             (b'content shorter', post(b'Content-Length: 3', content=b'abc\r\n'), TAKEN, b'abc'),
             (b'content longer', post(b'Content-Length: 500', content=b'abc'), ENDS),
             (b'far longer', post(b'Content-Length: 900000', content=b'abc'), ENDS),
             (b'no content', post(b'Content-Length: 0'), TAKEN),
             (b'POST without length', post(), TAKEN),
             (b'garbage behind', get + b'garbage\r\n\r\n', ENDS),
             (b'NUL behind', get + b'\0\0\0\0', ENDS),
             (b'hidden behind chunks', post(b'Transfer-Encoding: chunked', content=b'0\r\n\r\n' + HIDDEN),
              TAKEN, b'', ('-hidden',))]
    return named('sequence', forms)


def all_forms():
    families = (lengths, lengths_twice, codings, coding_names, chunks, request_lines, fields, hosts,
                sequences)
    return [form for family in families for form in family()]


# What random forms are made with: bytes and words that one reader may pass over and another one not.
PIECES = [b'\r', b'\n', b'\r\n', b'\0', b' ', b'\t', b'\x0b', b'\x0c', b':', b';', b',', b'0', b'5', b'-',
          b'+', b'"', b'\xff', b'_', b'\x85', b'Content-Length: 5\r\n', b'Transfer-Encoding: chunked\r\n',
          b'chunked', b'0\r\n\r\n', b'Host: b.test\r\n', b'Connection: close\r\n',
          b'Expect: 100-continue\r\n', b'HTTP/1.1', b'HTTP/1.0', b'%T', b'/']


def random_form(random, number, forms):
    """One of the forms, changed in up to three places; only that nothing may be smuggled is known of it."""
    data = random.choice(forms).data
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        end = at + random.choice((0, 0, 1, 2, random.randint(0, 20)))
        data = data[:at] + random.choice((b'', *PIECES)) + data[end:]
    return Form(f'random-{number}', data, None)
