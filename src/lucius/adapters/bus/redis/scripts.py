"""Lua scripts for what must happen atomically: each is one round trip, for any number of streams.

Arguments begin with the group and the consumer; single messages are named by the index of their stream among KEYS and
their id.
"""

from lucius.adapters.bus.redis.connection import LuaScript

_READ = """
    local function read(key, group, consumer, count)
        local got = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', key, '>')
        if got and got.err and string.sub(got.err, 1, 7) == 'NOGROUP' then
            redis.call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
            got = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', key, '>')
        end
        return got
    end
"""
_OURS = """
    local function pending(key, group, consumer, id)
        local found = redis.pcall('XPENDING', key, group, id, id, 1, consumer)
        return not found.err and found[1]
    end
    local function remove(key, group, id)
        redis.call('XACK', key, group, id)
        redis.call('XDEL', key, id)
    end
"""
_DEAD_LETTER = """
    local told = {job_id = 1, step_id = 1, attempt_no = 1, lease_id = 1, tenant_id = 1}
    local function dead_letter(dead, key, group, id, reason, times)
        local entry = redis.call('XRANGE', key, id, id)[1]
        if entry then
            local letter = {'reason', reason, 'deliveries', times, 'stream', key}
            for i = 1, #entry[2], 2 do
                if told[entry[2][i]] then
                    letter[#letter + 1] = entry[2][i]
                    letter[#letter + 1] = entry[2][i + 1]
                end
            end
            redis.call('XADD', dead, '*', unpack(letter))
        end
        remove(key, group, id)
    end
"""

TAKE = LuaScript(
    _READ
    + """
    local found, left = {}, tonumber(ARGV[3])
    for _, key in ipairs(KEYS) do
        if left <= 0 then break end
        local got = read(key, ARGV[1], ARGV[2], left)
        if got and got.err then return got end
        for _, entry in ipairs(got and got[1][2] or {}) do
            found[#found + 1] = {key, entry[1], entry[2]}
            left = left - 1
        end
    end
    return found
"""
)
"""Reads new messages, at most ARGV[3] over all streams. Creates missing groups, as after a wipe."""

CLAIM = LuaScript(
    _OURS
    + _DEAD_LETTER
    + """
    local dead, found, left = table.remove(KEYS), {}, tonumber(ARGV[3])
    for _, key in ipairs(KEYS) do
        if left <= 0 then break end
        local stale = redis.pcall('XPENDING', key, ARGV[1], 'IDLE', ARGV[4], '-', '+', left)
        for _, one in ipairs(stale.err and {} or stale) do
            local id, times = one[1], one[4]
            if times >= tonumber(ARGV[5]) then
                dead_letter(dead, key, ARGV[1], id, 'DELIVERED_TOO_OFTEN', times)
            else
                local entry = redis.call('XCLAIM', key, ARGV[1], ARGV[2], ARGV[4], id)[1]
                if entry then
                    found[#found + 1] = {key, entry[1], entry[2]}
                    left = left - 1
                else
                    redis.call('XACK', key, ARGV[1], id)
                end
            end
        end
    end
    return found
"""
)
"""Claims at most ARGV[3] messages that their consumers have not renewed for ARGV[4] ms.

Those that were delivered ARGV[5] times are moved to the dead letters, the last of KEYS, instead.
"""

FIND_LOST = LuaScript(
    """
    local at_work, found, left = {}, {}, tonumber(ARGV[3])
    for i = 4, #ARGV, 2 do at_work[ARGV[i] .. ' ' .. ARGV[i + 1]] = true end
    for i, key in ipairs(KEYS) do
        local mine = redis.pcall('XPENDING', key, ARGV[1], '-', '+', 10000, ARGV[2])
        for _, one in ipairs(mine.err and {} or mine) do
            if left > 0 and not at_work[i .. ' ' .. one[1]] then
                local entry = redis.call('XCLAIM', key, ARGV[1], ARGV[2], 0, one[1], 'RETRYCOUNT', one[4])[1]
                if entry then
                    found[#found + 1] = {key, entry[1], entry[2]}
                    left = left - 1
                end
            end
        end
    end
    return found
"""
)
"""Finds messages delivered in answers that never arrived: pending for this consumer, and unknown to it."""

RENEW = LuaScript(
    _OURS
    + """
    local ours = {}
    for i = 3, #ARGV, 2 do
        local key, id = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
        local found = pending(key, ARGV[1], ARGV[2], id)
        if found then redis.call('XCLAIM', key, ARGV[1], ARGV[2], 0, id, 'JUSTID') end
        ours[#ours + 1] = found and 1 or 0
    end
    return ours
"""
)
"""Touches messages at work; returns which are still ours. Never takes back what another has claimed."""

SETTLE = LuaScript(
    _OURS
    + """
    local ours = {}
    for i = 3, #ARGV, 2 do
        local key, id = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
        local found = pending(key, ARGV[1], ARGV[2], id)
        if found then remove(key, ARGV[1], id) end
        ours[#ours + 1] = found and 1 or 0
    end
    return ours
"""
)
"""Acknowledges and deletes messages that are ours; returns which were. The group is the stream's only one."""

GIVE_BACK = LuaScript(
    _OURS
    + """
    local given = {}
    for i = 3, #ARGV, 2 do
        local key, id = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
        local entry = pending(key, ARGV[1], ARGV[2], id) and redis.call('XRANGE', key, id, id)[1]
        if entry then
            remove(key, ARGV[1], id)
            redis.call('XADD', key, '*', unpack(entry[2]))
        end
        given[#given + 1] = entry and 1 or 0
    end
    return given
"""
)
"""Requeues messages that were not begun, as new ones for any consumer; returns which were ours."""

DEAD_LETTER = LuaScript(
    _OURS
    + _DEAD_LETTER
    + """
    local found = pending(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
    if found then dead_letter(KEYS[2], KEYS[1], ARGV[1], ARGV[3], ARGV[4], found[4]) end
"""
)
"""Moves one message, if it is ours, to the dead letters, with a reason."""

TRIM = LuaScript(
    """
    local key, group, keep, before, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    local last, held = '0-0', 0
    local groups = redis.pcall('XINFO', 'GROUPS', key)
    for _, one in ipairs(groups.err and {} or groups) do
        local about = {}
        for i = 1, #one, 2 do about[one[i]] = one[i + 1] end
        if about.name == group then last, held = about['last-delivered-id'], about.pending end
    end
    local many = math.min(redis.call('XLEN', key) - held - keep, most)
    if many <= 0 then return 0 end
    local gone, window = 0, many + math.floor(keep / 4)
    for _, entry in ipairs(redis.call('XRANGE', key, '(' .. last, '+', 'COUNT', window)) do
        if gone >= many then break end
        for i = 1, #entry[2], 2 do
            if entry[2][i] == 'ack_deadline_ms' and tonumber(entry[2][i + 1]) < before then
                gone = gone + redis.call('XDEL', key, entry[1])
            end
        end
    end
    return gone
"""
)
"""Deletes late messages where more than ARGV[2] were never delivered; returns how many.

Deletes the oldest whose ACK deadline is before ARGV[3] (the ledger's time, as deadlines are), at most ARGV[4]. Looks
past as many as a quarter of ARGV[2] that are not late.
"""

FORGET_GONE = LuaScript(
    """
    for _, key in ipairs(KEYS) do
        local consumers = redis.pcall('XINFO', 'CONSUMERS', key, ARGV[1])
        for _, one in ipairs(consumers.err and {} or consumers) do
            local about = {}
            for i = 1, #one, 2 do about[one[i]] = one[i + 1] end
            local gone = about.name == ARGV[2] or about.idle > tonumber(ARGV[3])
            if gone and about.pending == 0 then redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], about.name) end
        end
    end
"""
)
"""Deletes consumers that hold nothing and were idle for ARGV[3] ms, and ARGV[2], if it holds nothing, at once."""
