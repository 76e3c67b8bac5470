"""A transfer by NIXL: nixl_transfer.py target|initiator DESCRIPTOR.

The initiator writes to the target, and the target compares; the target changes its buffer, and the initiator reads it.
"""

import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config
from talk import SIZE, pattern, role_and_line

LIMIT = 60


def run_transfer(agent, operation, local, remote, peer):
    handle = agent.initialize_xfer(operation, local, remote, peer)
    state = agent.transfer(handle)
    end = time.monotonic() + LIMIT
    while state == 'PROC' and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
    assert state == 'DONE', f'{operation}: {state}'
    agent.release_xfer_handle(handle)


def target(line, agent, buffer, local):
    line.say(agent.get_agent_metadata().hex())
    line.say(agent.get_serialized_descs(local).hex())
    line.heard()
    assert buffer.tobytes() == pattern(3), 'the target received other bytes than the initiator wrote'
    buffer[:] = numpy.frombuffer(pattern(5), dtype=numpy.uint8)
    line.say('changed')
    line.heard()


def initiator(line, agent, buffer, local):
    peer = agent.add_remote_agent(bytes.fromhex(line.heard()[0]))
    remote = agent.deserialize_descs(bytes.fromhex(line.heard()[0]))
    buffer[:] = numpy.frombuffer(pattern(3), dtype=numpy.uint8)
    run_transfer(agent, 'WRITE', local, remote, peer)
    line.say('written')
    line.heard()
    run_transfer(agent, 'READ', local, remote, peer)
    assert buffer.tobytes() == pattern(5), 'the initiator read other bytes than the target has'
    agent.remove_remote_agent(peer)
    line.say('done')


def main():
    role, line = role_and_line()
    agent = nixl_agent(role, nixl_agent_config(backends=['UCX']))
    buffer = numpy.zeros(SIZE, dtype=numpy.uint8)
    place = (buffer.ctypes.data, SIZE, 0)
    registered = agent.register_memory([(*place, '')], 'DRAM')
    local = agent.get_xfer_descs([place], 'DRAM')
    (target if role == 'target' else initiator)(line, agent, buffer, local)
    agent.deregister_memory(registered)


main()
