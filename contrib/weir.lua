-- Wireshark dissector for the packets between Weir processes: frames, hellos, and RoCEv2 packets on the ports of slots.
-- The format is in docs/wire-and-hello.md.
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

function weir.dissector(buffer, pinfo, tree)
    if buffer:len() < 16 then
        return 0
    end
    if buffer(0, 4):string() == "WEIR" then
        dissect_hello(buffer, pinfo, tree)
    elseif bit.band(buffer(1, 1):uint(), 0x0f) == FRAME_VERSION then
        dissect_frame(buffer, pinfo, tree)
    else
        local roce = DissectorTable.get("udp.port"):get_dissector(ROCE_PORT)
        if roce then
            roce:call(buffer, pinfo, tree)
        end
    end
    return buffer:len()
end

DissectorTable.get("udp.port"):add(string.format("%d-%d", FIRST_PORT, LAST_PORT), weir)
