"""Starts both programs of a transfer, joined by a socket: both.py WORD..."""

import socket
import subprocess
import sys

ends = socket.socketpair()
programs = []
for role, end in zip(('target', 'initiator'), ends):
    programs.append(subprocess.Popen([*sys.argv[1:], role, str(end.fileno())], pass_fds=[end.fileno()]))
    end.close()
statuses = [program.wait() for program in programs]
if any(statuses):
    sys.exit(f'the target and the initiator ended with {statuses}')
print('both have compared all bytes')
