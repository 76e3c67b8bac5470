-- Wireshark dissector for the packets between Weir processes: frames, hellos, and RoCEv2 packets on the ports of slots, also
-- behind the header of connections over several links; and of MultiEdge's operations, which use other ports.
-- The formats are in docs/wire-and-hello.md and docs/edge.md.
--
--   wireshark -X lua_script:contrib/weir.lua FILE

local FIRST_PORT, LAST_PORT, ROCE_PORT = 20481, 21502, 4791
local HEADER, ICRC, FRAME_VERSION = 40, 4, 1

local services = { [0] = "RC", [1] = "UC", [5] = "XRC" }
local operations = {
    [0x00] = "SEND First", [0x01] = "SEND Middle", [0x02] = "SEND Last", [0x03] = "SEND Last with Immediate",
    [0x04] = "SEND Only", [0x05] = "SEND Only with Immediate",
    [0x06] = "WRITE First", [0x07] = "WRITE Middle", [0x08] = "WRITE Last", [0x09] = "WRITE Last with Immediate",
    [0x0a] = "WRITE Only", [0x0b] = "WRITE Only with Immediate",
    [0x0d] = "READ response First", [0x0e] = "READ response Middle", [0x0f] = "READ response Last",
    [0x10] = "READ response Only",
    [0x16] = "SEND Last with Invalidate", [0x17] = "SEND Only with Invalidate",
}
local immediate = { [0x03] = true, [0x05] = true, [0x09] = true, [0x0b] = true }
local aeth = { [0x0d] = true, [0x0f] = true, [0x10] = true }
local invalidate = { [0x16] = true, [0x17] = true }

local weir = Proto("weir", "Weir frame")
local f = {
    opcode = ProtoField.uint8("weir.opcode", "Opcode", base.HEX),
    operation = ProtoField.string("weir.operation", "Operation"),
    solicited = ProtoField.bool("weir.se", "Solicited event", 8, nil, 0x80),
    migration = ProtoField.bool("weir.m", "Migration request", 8, nil, 0x40),
    pad = ProtoField.uint8("weir.pad", "Pad count", base.DEC, nil, 0x30),
    version = ProtoField.uint8("weir.version", "Header version", base.DEC, nil, 0x0f),
    pkey = ProtoField.uint16("weir.pkey", "P_Key", base.HEX),
    dest_qp = ProtoField.uint24("weir.dest_qp", "Destination QP", base.HEX),
    ack_request = ProtoField.bool("weir.ack_request", "ACK request", 8, nil, 0x80),
    psn = ProtoField.uint24("weir.psn", "PSN", base.DEC),
    address = ProtoField.uint64("weir.address", "Address", base.HEX),
    rkey = ProtoField.uint32("weir.rkey", "rkey", base.HEX),
    number = ProtoField.uint24("weir.message", "Message number", base.DEC),
    offset = ProtoField.uint32("weir.offset", "Offset in the message", base.DEC),
    length = ProtoField.uint32("weir.length", "Length of the message", base.DEC),
    srq = ProtoField.uint24("weir.srq", "SRQ", base.DEC),
    immediate = ProtoField.bytes("weir.immediate", "Immediate data"),
    invalidated = ProtoField.uint32("weir.invalidated_rkey", "Invalidated rkey", base.HEX),
    syndrome = ProtoField.uint8("weir.syndrome", "Syndrome", base.HEX),
    msn = ProtoField.uint24("weir.msn", "MSN", base.DEC),
    payload = ProtoField.bytes("weir.payload", "Payload"),
    payload_length = ProtoField.uint32("weir.payload_length", "Payload length", base.DEC),
    icrc = ProtoField.uint32("weir.icrc", "ICRC, or the tag in its place", base.HEX),
}
weir.fields = f
local malformed = ProtoExpert.new("weir.malformed", "Malformed frame", expert.group.MALFORMED, expert.severity.ERROR)
weir.experts = { malformed }

local hello = Proto("weir_hello", "Weir hello")
local h = {
    version = ProtoField.uint8("weir_hello.version", "Version", base.DEC),
    icrc_auto = ProtoField.bool("weir_hello.icrc_auto", "Offers packets without ICRC", 8, nil, 0x01),
    frames = ProtoField.bool("weir_hello.frames", "Offers frames", 8, nil, 0x02),
    shared_memory = ProtoField.bool("weir_hello.shared_memory", "Offers shared memory", 8, nil, 0x04),
    proofs = ProtoField.uint8("weir_hello.proofs", "Proofs", base.DEC),
    boot_id = ProtoField.bytes("weir_hello.boot_id", "Boot ID"),
    ask = ProtoField.uint64("weir_hello.ask", "Nonce of the question", base.HEX),
    answer = ProtoField.uint64("weir_hello.answer", "Nonce of the answer", base.HEX),
    alive = ProtoField.uint64("weir_hello.alive", "Evidence of the same process", base.HEX),
    window = ProtoField.uint32("weir_hello.window", "Window in bytes", base.DEC),
    patience = ProtoField.uint32("weir_hello.patience", "Patience in ms", base.DEC),
    mark = ProtoField.uint32("weir_hello.mark", "Flow-control mark", base.DEC),
    proof = ProtoField.bytes("weir_hello.proof", "Proof (ID, sealed tag and incarnation)"),
    checksum = ProtoField.uint64("weir_hello.checksum", "Checksum", base.HEX),
}
hello.fields = h
local HELLO_HEAD, PROOF, CHECKSUM, HELLO_VERSION = 64, 20, 8, 2
local bad_hello =
    ProtoExpert.new("weir_hello.malformed", "Malformed hello", expert.group.MALFORMED, expert.severity.ERROR)
hello.experts = { bad_hello }

local links = Proto("weir_links", "Weir links")
local orders = { [0] = "any time", [1] = "after one packet", [2] = "after all packets" }
local actions = {
    [0] = "WRITE", [1] = "Rest of a WRITE does not come", [2] = "WRITE failed", [3] = "READ", [4] = "Response",
    [5] = "READ failed",
}
local l = {
    has_packet = ProtoField.bool("weir_links.has_packet", "Packet", 8, nil, 0x01),
    has_ack = ProtoField.bool("weir_links.has_ack", "Acknowledgement", 8, nil, 0x02),
    asks = ProtoField.bool("weir_links.asks", "Asks for an acknowledgement", 8, nil, 0x04),
    order_kind = ProtoField.uint8("weir_links.order_kind", "May be performed", base.DEC, orders, 0x18),
    has_piece = ProtoField.bool("weir_links.has_piece", "Piece of an operation", 8, nil, 0x20),
    has_received = ProtoField.bool("weir_links.has_received", "Says what has arrived", 8, nil, 0x40),
    version = ProtoField.uint8("weir_links.version", "Header version", base.DEC, nil, 0x0f),
    link = ProtoField.uint8("weir_links.link", "Link", base.DEC),
    connection = ProtoField.uint32("weir_links.connection", "Receiver's number of the connection", base.HEX),
    seq = ProtoField.uint32("weir_links.seq", "Sequence number", base.DEC),
    count = ProtoField.uint32("weir_links.count", "Packets on this link before", base.DEC),
    order = ProtoField.uint32("weir_links.order", "Earlier packet", base.DEC),
    received = ProtoField.uint32("weir_links.received", "All have arrived before", base.DEC),
    sent = ProtoField.uint32("weir_links.sent_us", "Sent, by the sender's clock (us)", base.DEC),
    check = ProtoField.uint32("weir_links.check", "Check", base.HEX),
    performed = ProtoField.uint32("weir_links.performed", "All have been performed before", base.DEC),
    failures = ProtoField.uint32("weir_links.failures", "Of them failed", base.DEC),
    heard = ProtoField.uint8("weir_links.heard", "Heard on link", base.DEC),
    held = ProtoField.uint32("weir_links.held_us", "Newest packet came before (us)", base.DEC),
    newest = ProtoField.uint32("weir_links.newest", "Count of the newest packet", base.DEC),
    delay = ProtoField.uint32("weir_links.delay_us", "Its delay, with the difference of the clocks (us)", base.DEC),
    bitmap = ProtoField.bytes("weir_links.bitmap", "Arrived after that"),
    number = ProtoField.uint32("weir_links.piece.number", "Number", base.DEC),
    action = ProtoField.uint8("weir_links.piece.action", "Action", base.DEC, actions, 0x7f),
    notify = ProtoField.bool("weir_links.piece.notify", "Notifies the receiver", 8, nil, 0x80),
    address = ProtoField.uint64("weir_links.piece.address", "Address", base.HEX),
    offset = ProtoField.uint32("weir_links.piece.offset", "Offset", base.DEC),
    bytes = ProtoField.uint32("weir_links.piece.bytes", "Bytes that follow", base.DEC),
    total = ProtoField.uint32("weir_links.piece.total", "Bytes of the WRITE, or that the READ asks for", base.DEC),
    payload = ProtoField.bytes("weir_links.piece.payload", "Payload"),
    hello_version = ProtoField.uint8("weir_links.hello.version", "Version", base.DEC),
    lists_all = ProtoField.bool("weir_links.hello.lists_all", "Lists all interfaces", 8, nil, 0x01),
    pieces = ProtoField.bool("weir_links.hello.pieces", "Packets carry pieces of operations", 8, nil, 0x02),
    refuses = ProtoField.bool("weir_links.hello.refuses", "Refuses the connection", 8, nil, 0x04),
    unknown = ProtoField.bool("weir_links.hello.unknown", "Does not know the connection", 8, nil, 0x08),
    ask = ProtoField.uint64("weir_links.hello.ask", "Nonce of the question", base.HEX),
    answer = ProtoField.uint64("weir_links.hello.answer", "Nonce of the answer", base.HEX),
    own = ProtoField.uint32("weir_links.hello.connection", "Sender's number of the connection", base.HEX),
    first = ProtoField.uint32("weir_links.hello.first", "Sender's first packet", base.DEC),
    interface = ProtoField.uint8("weir_links.hello.interface", "Interface", base.DEC),
    prefix = ProtoField.uint8("weir_links.hello.prefix", "Prefix", base.DEC),
    mtu = ProtoField.uint32("weir_links.hello.mtu", "MTU", base.DEC),
    speed = ProtoField.uint32("weir_links.hello.speed", "Speed in Mbit/s", base.DEC),
    ipv4 = ProtoField.ipv4("weir_links.hello.ipv4", "Address"),
    ipv6 = ProtoField.ipv6("weir_links.hello.ipv6", "Address"),
}
links.fields = l
local bad_links = ProtoExpert.new("weir_links.malformed", "Malformed header of several links", expert.group.MALFORMED,
    expert.severity.ERROR)
local bad_check = ProtoExpert.new("weir_links.bad_check", "Wrong check", expert.group.CHECKSUM, expert.severity.ERROR)
links.experts = { bad_links, bad_check }
local LINKS_HEADER, LINKS_ACK, LINKS_PIECE, LINKS_VERSION, LINKS_CHECK = 23, 12, 21, 2, 19
local LINKS_HEARD, LINKS_HELLO, LINKS_HELLO_VERSION = 12, 32, 2

-- Whether the opcode has frames, and whether it belongs to a WRITE.
local function kind(opcode)
    local service, operation = bit.rshift(opcode, 5), bit.band(opcode, 0x1f)
    local name, in_service = operations[operation], services[service]
    local framed = name and in_service and (in_service ~= "UC" or operation <= 0x0b)
    return framed, operation >= 0x06 and operation <= 0x0b, name, in_service, operation
end

local function dissect_frame(buffer, pinfo, tree)
    pinfo.cols.protocol = "Weir"
    local subtree = tree:add(weir, buffer())
    local opcode = buffer(0, 1):uint()
    local framed, write, name, service, operation = kind(opcode)
    if buffer:len() < HEADER + ICRC or not framed then
        subtree:add_proto_expert_info(malformed)
        return
    end
    local pad = bit.rshift(bit.band(buffer(1, 1):uint(), 0x30), 4)
    local payload = buffer:len() - HEADER - ICRC - pad
    local offset, length = buffer(24, 4):uint(), buffer(28, 4):uint()
    subtree:add(f.opcode, buffer(0, 1))
    subtree:add(f.operation, buffer(0, 1), service .. " " .. name)
    for _, field in ipairs { f.solicited, f.migration, f.pad, f.version } do
        subtree:add(field, buffer(1, 1))
    end
    subtree:add(f.pkey, buffer(2, 2))
    subtree:add(f.dest_qp, buffer(5, 3))
    subtree:add(f.ack_request, buffer(8, 1))
    subtree:add(f.psn, buffer(9, 3))
    if write then
        subtree:add(f.address, buffer(12, 8))
        subtree:add(f.rkey, buffer(20, 4))
    else
        subtree:add(f.number, buffer(21, 3))
    end
    subtree:add(f.offset, buffer(24, 4))
    subtree:add(f.length, buffer(28, 4))
    if service == "XRC" and not (operation >= 0x0d and operation <= 0x10) then
        subtree:add(f.srq, buffer(33, 3))
    end
    if immediate[operation] then
        subtree:add(f.immediate, buffer(36, 4))
    elseif aeth[operation] then
        subtree:add(f.syndrome, buffer(36, 1))
        subtree:add(f.msn, buffer(37, 3))
    elseif invalidate[operation] then
        subtree:add(f.invalidated, buffer(36, 4))
    end
    if payload < 0 or offset + payload > length then
        subtree:add_proto_expert_info(malformed)
        return
    end
    if payload > 0 then
        subtree:add(f.payload, buffer(HEADER, payload))
    end
    subtree:add(f.payload_length, buffer(HEADER, payload), payload):set_generated()
    subtree:add_le(f.icrc, buffer(buffer:len() - ICRC, ICRC))
    pinfo.cols.info = string.format("%s %s QP=0x%06x PSN=%d %d-%d of %d", service, name, buffer(5, 3):uint(),
        buffer(9, 3):uint(), offset, offset + payload, length)
end

local function dissect_hello(buffer, pinfo, tree)
    pinfo.cols.protocol = "Weir"
    local subtree = tree:add(hello, buffer())
    if buffer:len() < HELLO_HEAD + CHECKSUM then
        subtree:add_proto_expert_info(bad_hello)
        return
    end
    subtree:add(h.version, buffer(4, 1))
    if buffer(4, 1):uint() ~= HELLO_VERSION then
        return
    end
    local proofs = buffer(6, 1):uint()
    for _, field in ipairs { h.icrc_auto, h.frames, h.shared_memory } do
        subtree:add(field, buffer(5, 1))
    end
    subtree:add(h.proofs, buffer(6, 1))
    subtree:add(h.boot_id, buffer(8, 16))
    subtree:add(h.ask, buffer(24, 8))
    subtree:add(h.answer, buffer(32, 8))
    subtree:add(h.alive, buffer(40, 8))
    subtree:add(h.window, buffer(48, 4))
    subtree:add(h.patience, buffer(52, 4))
    subtree:add(h.mark, buffer(56, 4))
    if buffer:len() ~= HELLO_HEAD + proofs * PROOF + CHECKSUM then
        subtree:add_proto_expert_info(bad_hello)
        return
    end
    for at = 0, proofs - 1 do
        subtree:add(h.proof, buffer(HELLO_HEAD + at * PROOF, PROOF))
    end
    subtree:add(h.checksum, buffer(buffer:len() - CHECKSUM, CHECKSUM))
    pinfo.cols.info = string.format("Hello, %d proofs", proofs)
end

-- CRC-32 of bytes, with 4 zeros in place of those at `at`.
local crc_table = {}
for byte = 0, 255 do
    local value = byte
    for _ = 1, 8 do
        local low = bit.band(value, 1)
        value = bit.bxor(bit.rshift(value, 1), low == 1 and 0xedb88320 or 0)
    end
    crc_table[byte] = value
end

local function crc32(buffer, length, at)
    local bytes, crc = buffer(0, length):bytes(), 0xffffffff
    for k = 0, length - 1 do
        local byte = (k >= at and k < at + 4) and 0 or bytes:get_index(k)
        crc = bit.bxor(bit.rshift(crc, 8), crc_table[bit.band(bit.bxor(crc, byte), 0xff)])
    end
    return bit.tohex(bit.bnot(crc))
end

-- Where the fields of a header are that it may have, and the bytes of the header; nil if they do not fit, or cannot be.
local function links_header(buffer)
    if buffer:len() < LINKS_HEADER then
        return nil
    end
    local flags, length, received, order = buffer(0, 1):uint(), LINKS_HEADER, nil, nil
    if bit.band(flags, 0x40) ~= 0 then
        received, length = length, length + 4
    end
    if bit.band(flags, 0x18) ~= 0 then
        order, length = length, length + 4
    end
    local is_bad = bit.band(flags, 0x18) == 0x18 or bit.band(flags, 0x80) ~= 0
    if is_bad or length > buffer:len() or bit.band(flags, 0x42) == 0x02 then
        return nil
    end
    return { received = received, order = order, length = length }
end

-- Bytes of header, acknowledgement and piece; nil if they do not fit.
local function links_front(buffer)
    local header = links_header(buffer)
    if not header then
        return nil
    end
    local flags, front = buffer(0, 1):uint(), header.length
    if bit.band(flags, 0x02) ~= 0 then
        if buffer:len() < front + LINKS_ACK then
            return nil
        end
        front = front + LINKS_ACK + LINKS_HEARD * buffer(front + 8, 1):uint() + 4 * buffer(front + 9, 1):uint()
    end
    if bit.band(flags, 0x20) ~= 0 then
        front = front + LINKS_PIECE
    end
    return front <= buffer:len() and front or nil
end

local function links_check_is_right(buffer, front)
    return crc32(buffer, front, LINKS_CHECK) == buffer(LINKS_CHECK, 4):bytes():tohex(true)
end

local function dissect_piece(buffer, tree, at)
    tree:add(l.number, buffer(at, 4))
    tree:add(l.action, buffer(at + 4, 1))
    tree:add(l.notify, buffer(at + 4, 1))
    tree:add(l.address, buffer(at + 5, 8))
    tree:add(l.offset, buffer(at + 13, 4))
    tree:add(l.total, buffer(at + 17, 4))
    -- A capture may have several packets as one: this one has the rest of its WRITE at most.
    local payload = buffer:reported_len() - at - LINKS_PIECE
    if buffer(at + 4, 1):uint() % 0x80 == 0 then
        payload = math.min(payload, buffer(at + 17, 4):uint() - buffer(at + 13, 4):uint())
    end
    tree:add(l.bytes, payload):set_generated()
    local captured = math.min(payload, buffer:len() - at - LINKS_PIECE)
    if captured > 0 then
        tree:add(l.payload, buffer(at + LINKS_PIECE, captured))
    end
    local action = bit.band(buffer(at + 4, 1):uint(), 0x7f)
    local bytes = action == 3 and buffer(at + 17, 4):uint() or payload
    return string.format("%s %d at %d, %d bytes", actions[action] or "Piece", buffer(at, 4):uint(),
        buffer(at + 13, 4):uint(), bytes)
end

local function dissect_links_ack(buffer, tree, at)
    local count, words = buffer(at + 8, 1):uint(), buffer(at + 9, 1):uint()
    tree:add(l.performed, buffer(at, 4))
    tree:add(l.failures, buffer(at + 4, 4))
    at = at + LINKS_ACK
    for _ = 1, count do
        tree:add(l.heard, buffer(at, 1))
        tree:add(l.held, buffer(at + 2, 2), 2 * buffer(at + 2, 2):uint())
        tree:add(l.newest, buffer(at + 4, 4))
        tree:add(l.delay, buffer(at + 8, 4))
        at = at + LINKS_HEARD
    end
    if words > 0 then
        tree:add(l.bitmap, buffer(at, 4 * words))
    end
    return at + 4 * words
end

-- Dissects the header and what belongs to it. What else follows goes to `inner`.
local function dissect_links(buffer, pinfo, tree, inner)
    pinfo.cols.protocol = "Weir"
    local front = links_front(buffer)
    local subtree = tree:add(links, buffer(0, front or buffer:len()))
    if not front then
        subtree:add_proto_expert_info(bad_links)
        return
    end
    local flags = buffer(0, 1):uint()
    for _, field in ipairs { l.has_packet, l.has_ack, l.asks, l.order_kind, l.has_piece, l.has_received } do
        subtree:add(field, buffer(0, 1))
    end
    subtree:add(l.version, buffer(1, 1))
    subtree:add(l.link, buffer(2, 1))
    subtree:add(l.connection, buffer(3, 4))
    local has_packet = bit.band(flags, 0x01) ~= 0
    if has_packet then
        subtree:add(l.seq, buffer(7, 4))
    end
    subtree:add(l.count, buffer(11, 4))
    subtree:add(l.sent, buffer(15, 4))
    local check = subtree:add(l.check, buffer(LINKS_CHECK, 4))
    if not links_check_is_right(buffer, front) then
        check:add_proto_expert_info(bad_check)
    end
    local header = links_header(buffer)
    if header.received then
        subtree:add(l.received, buffer(header.received, 4))
    end
    if header.order then
        subtree:add(l.order, buffer(header.order, 4))
    end
    local at, info = header.length, nil
    if bit.band(flags, 0x02) ~= 0 then
        at = dissect_links_ack(buffer, subtree, at)
        info = string.format("all before %d have arrived", buffer(header.received, 4):uint())
    end
    local link = string.format("Link %d", buffer(2, 1):uint())
    if bit.band(flags, 0x20) ~= 0 then
        info = dissect_piece(buffer, subtree, at)
    elseif has_packet and front < buffer:len() then
        inner(buffer(front):tvb(), pinfo, tree)
        pinfo.cols.info:prepend(string.format("%s, %d: ", link, buffer(7, 4):uint()))
        return
    end
    if has_packet then
        link = string.format("%s, %d", link, buffer(7, 4):uint())
    end
    pinfo.cols.info = string.format("%s: %s", link, info or (bit.band(flags, 0x04) ~= 0 and "question" or "header"))
end

local function dissect_links_hello(buffer, pinfo, tree)
    pinfo.cols.protocol = "Weir"
    local subtree = tree:add(links, buffer())
    if buffer:len() < LINKS_HELLO + 4 then
        subtree:add_proto_expert_info(bad_links)
        return
    end
    subtree:add(l.hello_version, buffer(4, 1))
    if buffer(4, 1):uint() ~= LINKS_HELLO_VERSION then
        return
    end
    for _, field in ipairs { l.lists_all, l.pieces, l.refuses, l.unknown } do
        subtree:add(field, buffer(5, 1))
    end
    subtree:add(l.ask, buffer(8, 8))
    subtree:add(l.answer, buffer(16, 8))
    subtree:add(l.own, buffer(24, 4))
    subtree:add(l.first, buffer(28, 4))
    local count, at, last = buffer(6, 1):uint(), LINKS_HELLO, buffer:len() - 4
    for _ = 1, count do
        local length = at + 12 <= last and buffer(at + 1, 1):uint() or 0
        if (length ~= 4 and length ~= 16) or at + 12 + length > last then
            subtree:add_proto_expert_info(bad_links)
            return
        end
        subtree:add(l.interface, buffer(at, 1))
        subtree:add(length == 4 and l.ipv4 or l.ipv6, buffer(at + 12, length))
        subtree:add(l.prefix, buffer(at + 2, 1))
        subtree:add(l.mtu, buffer(at + 4, 4))
        subtree:add(l.speed, buffer(at + 8, 4))
        at = at + 12 + length
    end
    local check = subtree:add(l.check, buffer(last, 4))
    if at ~= last then
        subtree:add_proto_expert_info(bad_links)
    elseif crc32(buffer, last, last) ~= buffer(last, 4):bytes():tohex(true) then
        check:add_proto_expert_info(bad_check)
    end
    pinfo.cols.info = string.format("Hello of several links, %d addresses", count)
end

-- A frame or a RoCEv2 packet.
local function dissect_packet(buffer, pinfo, tree)
    if buffer:len() >= 2 and bit.band(buffer(1, 1):uint(), 0x0f) == FRAME_VERSION then
        dissect_frame(buffer, pinfo, tree)
    else
        local roce = DissectorTable.get("udp.port"):get_dissector(ROCE_PORT)
        if roce then
            roce:call(buffer, pinfo, tree)
        end
    end
end

function weir.dissector(buffer, pinfo, tree)
    if buffer:len() < 16 then
        return 0
    end
    if buffer(0, 4):string() == "WEIR" then
        dissect_hello(buffer, pinfo, tree)
    elseif buffer(0, 4):string() == "WLNK" then
        dissect_links_hello(buffer, pinfo, tree)
    elseif bit.band(buffer(1, 1):uint(), 0x0f) == LINKS_VERSION then
        dissect_links(buffer, pinfo, tree, dissect_packet)
    else
        dissect_packet(buffer, pinfo, tree)
    end
    return buffer:len()
end

DissectorTable.get("udp.port"):add(string.format("%d-%d", FIRST_PORT, LAST_PORT), weir)

-- MultiEdge's operations, between any other ports.
links:register_heuristic("udp", function(buffer, pinfo, tree)
    if buffer:len() >= LINKS_HELLO + 4 and buffer(0, 4):string() == "WLNK" then
        dissect_links_hello(buffer, pinfo, tree)
        return true
    end
    if buffer:len() < LINKS_HEADER or bit.band(buffer(1, 1):uint(), 0x0f) ~= LINKS_VERSION then
        return false
    end
    local front = links_front(buffer)
    if not front or not links_check_is_right(buffer, front) then
        return false
    end
    dissect_links(buffer, pinfo, tree, dissect_packet)
    return true
end)
