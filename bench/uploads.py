#!/usr/bin/env python3
"""Sends uploads at once and prints how many failed: PORT CLIENTS BYTES."""
import selectors, socket, sys

port, clients, size = map(int, sys.argv[1:])
edge = b'yorozu-boundary'
head = (b'--' + edge + b'\r\nContent-Disposition: form-data; name="f"; filename="f.bin"\r\n'
        b'Content-Type: application/octet-stream\r\n\r\n')
tail = b'\r\n--' + edge + b'--\r\n'
length = len(head) + size + len(tail)
request = (b'POST /upload/upload.php HTTP/1.1\r\nHost: a\r\nConnection: close\r\n'
           b'Content-Type: multipart/form-data; boundary=%s\r\nContent-Length: %d\r\n\r\n' % (edge, length)) + head
block = memoryview(b'x' * 262144)


class Upload:
    def __init__(self):
        self.socket = socket.create_connection(('127.0.0.1', port))
        self.socket.setblocking(False)
        self.pending, self.left, self.answer = memoryview(request), size, b''

    def send(self):
        """False when all is sent."""
        while True:
            if not self.pending:
                if self.left > 0:
                    self.pending = block[:min(len(block), self.left)]
                    self.left -= len(self.pending)
                elif self.left == 0:
                    self.pending, self.left = memoryview(tail), -1
                else:
                    return False
            try:
                self.pending = self.pending[self.socket.send(self.pending):]
            except BlockingIOError:
                return True


failed, selector = 0, selectors.DefaultSelector()
for _ in range(clients):
    upload = Upload()
    selector.register(upload.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, upload)
while selector.get_map():
    for key, events in selector.select():
        upload = key.data
        try:
            if events & selectors.EVENT_READ:
                piece = upload.socket.recv(65536)
                upload.answer += piece
                if not piece:
                    failed += not upload.answer.startswith(b'HTTP/1.1 200')
                    selector.unregister(upload.socket)
                    upload.socket.close()
                    continue
            if events & selectors.EVENT_WRITE and not upload.send():
                selector.modify(upload.socket, selectors.EVENT_READ, upload)
        except OSError:
            failed += 1
            selector.unregister(upload.socket)
            upload.socket.close()
print(failed)
