-- Wireshark post-dissector for the comments that Weir writes: the findings of `weir analyze --annotate OUT.pcapng`, and
-- what a capture of Weir says of a packet that was lost or changed.
--
--   wireshark -X lua_script:contrib/weir-findings.lua OUT.pcapng
--
-- Each comment becomes a line of the packet's tree, with fields to filter by: `weir.finding`, `weir.finding.kind ==
-- "damming"`, `weir.finding.number == 1`, `weir.remark`. Expert information colours these packets in the packet list and
-- lists them under Analyze, Expert Information.

local finding = Proto("weir.findings", "Weir")
local f = {
    text = ProtoField.string("weir.finding", "Finding"),
    number = ProtoField.uint32("weir.finding.number", "Number of the finding"),
    kind = ProtoField.string("weir.finding.kind", "Kind"),
    remark = ProtoField.string("weir.remark", "Remark of the capture"),
}
finding.fields = f
local found = ProtoExpert.new("weir.finding.expert", "Finding of weir analyze", expert.group.SEQUENCE, expert.severity.WARN)
local remarked = ProtoExpert.new("weir.remark.expert", "Remark of the capture", expert.group.SEQUENCE, expert.severity.NOTE)
finding.experts = { found, remarked }

local comment = Field.new("frame.comment")

-- What Weir's captures say of packets (docs/wire-and-hello.md).
local function is_remark(text)
    return text:find("^lost") or text:find("by fault injection") or text:find("by the adapter")
end

function finding.dissector(buffer, pinfo, tree)
    for _, field in ipairs({ comment() }) do
        local text = tostring(field.value)
        local number, kind, rest = text:match("^weir: (%d+) ([%w-]+): (.*)$")
        if number then
            local branch = tree:add(finding, buffer(0, 0), "Weir finding " .. number .. ": " .. rest)
            branch:add(f.text, buffer(0, 0), rest)
            branch:add(f.number, buffer(0, 0), tonumber(number))
            branch:add(f.kind, buffer(0, 0), kind)
            branch:add_proto_expert_info(found, rest)
        elseif is_remark(text) then
            local branch = tree:add(finding, buffer(0, 0), "Weir: " .. text)
            branch:add(f.remark, buffer(0, 0), text)
            branch:add_proto_expert_info(remarked, text)
        end
    end
end

register_postdissector(finding)
