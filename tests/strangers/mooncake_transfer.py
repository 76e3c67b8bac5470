"""A transfer by Mooncake's transfer engine: mooncake_transfer.py target|initiator DESCRIPTOR, as nixl_transfer.py."""

import ctypes

from mooncake.engine import TransferEngine
from talk import SIZE, pattern, role_and_line

ADDRESS = '127.0.0.1'


def target(line, engine, buffer, place):
    line.say(engine.get_rpc_port(), place)
    line.heard()
    assert buffer == pattern(3), 'the target received other bytes than the initiator wrote'
    buffer[:] = pattern(5)
    line.say('changed')
    line.heard()


def initiator(line, engine, buffer, place):
    port, remote = line.heard()
    peer = f'{ADDRESS}:{port}'
    buffer[:] = pattern(3)
    assert engine.transfer_sync_write(peer, place, int(remote), SIZE) == 0, 'the write failed'
    line.say('written')
    line.heard()
    assert engine.transfer_sync_read(peer, place, int(remote), SIZE) == 0, 'the read failed'
    assert buffer == pattern(5), 'the initiator read other bytes than the target has'
    line.say('done')


def main():
    role, line = role_and_line()
    engine = TransferEngine()
    assert engine.initialize(ADDRESS, 'P2PHANDSHAKE', 'rdma', '') == 0, 'the engine does not start'
    buffer = bytearray(SIZE)
    place = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    assert engine.register_memory(place, SIZE) == 0, 'the memory was not registered'
    (target if role == 'target' else initiator)(line, engine, buffer, place)
    engine.unregister_memory(place)


main()
