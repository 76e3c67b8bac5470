"""What a capture of Weir's holds: which operations went in which direction, and which NAKs."""

import struct

ROCE_PORT = 4791
SERVICES = {0: 'RC', 1: 'UC', 3: 'UD'}
OPERATIONS = {
    0x00: 'SEND first', 0x01: 'SEND middle', 0x02: 'SEND last', 0x03: 'SEND last with immediate', 0x04: 'SEND only',
    0x05: 'SEND only with immediate', 0x06: 'WRITE first', 0x07: 'WRITE middle', 0x08: 'WRITE last',
    0x09: 'WRITE last with immediate', 0x0a: 'WRITE only', 0x0b: 'WRITE only with immediate', 0x0c: 'READ request',
    0x0d: 'READ response first', 0x0e: 'READ response middle', 0x0f: 'READ response last', 0x10: 'READ response only',
    0x11: 'ACK', 0x12: 'atomic response', 0x13: 'compare-and-swap', 0x14: 'fetch-and-add',
    0x16: 'SEND last with invalidate', 0x17: 'SEND only with invalidate',
}
ACK = 0x11
NAKS = {0x60: 'sequence NAK', 0x61: 'invalid request NAK', 0x62: 'remote access NAK', 0x63: 'operational NAK'}
# What the cells must exchange in both directions: all that Soft-RoCE sends.
EXPECTED = {
    *(f'RC {name}' for opcode, name in OPERATIONS.items() if opcode != ACK), 'RC ACK', 'RC RNR NAK',
    'RC sequence NAK', 'RC remote access NAK',
    *(f'UC {OPERATIONS[opcode]}' for opcode in range(0x0c)),
    'UD SEND only', 'UD SEND only with immediate',
}
ENHANCED_PACKET, INTERFACE, SECTION = 6, 1, 0x0a0d0d0a


def kinds(path, own):
    """The set of (whether Weir sent it, name) of the packets in a file. `own`: Weir's addresses, packed."""
    found = set()
    with open(path, 'rb') as file:
        data = file.read()
    at = 0
    # A process that is killed leaves an incomplete block at the end.
    while at + 12 <= len(data):
        kind, length = struct.unpack_from('<II', data, at)
        if length < 12 or at + length > len(data):
            break
        if kind == ENHANCED_PACKET:
            captured = struct.unpack_from('<I', data, at + 20)[0]
            packet = of_frame(data[at + 28:at + 28 + min(captured, 128)], own)
            if packet:
                found.add(packet)
        at += length
    return found


def of_frame(frame, own):
    """(whether Weir sent it, name) of an Ethernet frame; None if it is not RoCE."""
    ethertype = frame[12:14]
    if ethertype == b'\x08\x00':
        source, at = frame[26:30], 14 + 4 * (frame[14] & 15)
    elif ethertype == b'\x86\xdd':
        source, at = frame[22:38], 54
    else:
        return None
    # A UDP header, a BTH and an ICRC.
    if len(frame) < at + 8 + 12 or int.from_bytes(frame[at + 2:at + 4], 'big') != ROCE_PORT:
        return None
    opcode = frame[at + 8]
    service, operation = SERVICES.get(opcode >> 5), opcode & 31
    # Connection management is from QP 1 to QP 1.
    if service is None or operation not in OPERATIONS or int.from_bytes(frame[at + 13:at + 16], 'big') == 1:
        return None
    name = OPERATIONS[operation]
    if operation == ACK:
        syndrome = frame[at + 20]
        if syndrome & 0x60 == 0x20:
            name = 'RNR NAK'
        else:
            name = NAKS.get(syndrome, name)
    return source in own, f'{service} {name}'


def missing(found):
    """What did not go in one of the directions, as texts."""
    ways = {True: 'from Weir', False: 'from Soft-RoCE'}
    return [f'{name} {ways[sent]}' for name in sorted(EXPECTED) for sent in ways if (sent, name) not in found]
