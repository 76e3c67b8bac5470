"""Starts a server, and a client when the server listens: server_client.py PORT WORD... (the client gets 127.0.0.1)."""

import pathlib
import subprocess
import sys
import time


def listens(port):
    tables = [pathlib.Path('/proc/net', name) for name in ('tcp', 'tcp6')]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()]
    return any(row[1].endswith(f':{port:04X}') and row[3] == '0A' for row in rows)


def main():
    port, words = int(sys.argv[1]), sys.argv[2:]
    server = subprocess.Popen(words)
    try:
        while not listens(port):
            if server.poll() is not None:
                sys.exit(f'the server ended with {server.returncode} before it listened')
            time.sleep(0.05)
        client = subprocess.run([*words, '127.0.0.1'])
        if client.returncode:
            # It may wait for its client for ever.
            sys.exit(f'the client ended with {client.returncode}')
        if server.wait():
            sys.exit(f'the server ended with {server.returncode}')
    finally:
        server.terminate()
    print('both have ended well')


main()
