"""Starts a server, and a client when the server listens: server_client.py PORT WORD... (the client gets 127.0.0.1)."""

import pathlib
import subprocess
import sys
import time


def listens(port):
    rows = [line.split() for name in ('tcp', 'tcp6') for line in pathlib.Path('/proc/net', name).read_text().splitlines()]
    return any(row[1].endswith(f':{port:04X}') and row[3] == '0A' for row in rows)


port, words = int(sys.argv[1]), sys.argv[2:]
server = subprocess.Popen(words)
while not listens(port):
    if server.poll() is not None:
        sys.exit(f'the server ended with {server.returncode} before it listened')
    time.sleep(0.05)
client = subprocess.run([*words, '127.0.0.1'])
statuses = [server.wait(), client.returncode]
if any(statuses):
    sys.exit(f'the server and the client ended with {statuses}')
print('both have ended well')
