#!/usr/bin/env python3
"""Many clients that do little: PORT KIND COUNT PATH. Says "ready" when all are connected, stays until its input ends.

  idle     asks once over a connection that is kept, reads the answer, and is silent
  writer   sends the head of a request byte by byte
  reader   asks, and takes the answer byte by byte
"""
import select, socket, sys, time

port, kind, count, path = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
request = f'GET {path} HTTP/1.1\r\nHost: a\r\n\r\n'.encode()


def connect():
    client = socket.socket()
    if kind == 'reader':
        # As little as the kernel lets arrive unread.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(('127.0.0.1', port))
    return client


def read_whole(client):
    answer = b''
    while b'\r\n\r\n' not in answer:
        piece = client.recv(65536)
        if not piece:
            sys.exit('the connection ended')
        answer += piece
    head, _, content = answer.partition(b'\r\n\r\n')
    lengths = [int(line.split(b':')[1]) for line in head.lower().split(b'\r\n') if line.startswith(b'content-length')]
    while len(content) < lengths[0] if lengths else not content.endswith(b'\r\n0\r\n\r\n'):
        content += client.recv(65536)


clients = []
for _ in range(count):
    client = connect()
    if kind == 'writer':
        client.send(request[:20])
    else:
        client.send(request)
        if kind == 'idle':
            read_whole(client)
    client.setblocking(False)
    clients.append(client)
print('ready', flush=True)
sent = 20
while not select.select([sys.stdin], [], [], 1)[0]:
    for client in clients if kind != 'idle' else []:
        try:
            if kind == 'writer':
                # Once round the longest head: then fields that go on.
                client.send(request[sent:sent + 1] if sent < len(request) - 2 else b'a')
            else:
                client.recv(1)
        except OSError:
            pass
    sent += 1
