-- The readers of a log (log.lua): its members, or the devices of a member, each of which reads for itself.

--- (member: str) -> bool
--- uses: base
function log.is_member(member)
  return redis.call("ZSCORE", base .. "readers", member) or redis.call("HEXISTS", base .. "devices", member) == 1
end

-- Returns the devices of a member that are readers. "" is the device without a name, which a member begins with.
--- (member: str) -> table
--- uses: base
function log.devices(member)
  local known = redis.call("HGET", base .. "devices", member)
  return known and cmsgpack.unpack(known) or { "" }
end

-- Returns the lowest cursor of a member's devices.
--- (member: str) -> int
--- uses: base
--- seldom
function log.lowest_cursor(member)
  local devices, low = log.devices(member), math.huge
  for i = 1, #devices do
    local cursor = redis.call("ZSCORE", base .. "readers", log.reader_name(member, devices[i]))
    low = math.min(low, tonumber(cursor) or math.huge)
  end
  return low
end

--- (member: str, device: str) -> str
function log.reader_name(member, device)
  return device == "" and member or member .. "\0" .. device
end

-- Returns the number after which a reader with this cursor reads, and whether the log began again since: its numbers
-- end below the cursor, because the server fell back to an older state. Then the reader begins with the oldest message,
-- because nothing shows which of the present ones it has read.
--- (l: table, cursor: int) -> int, bool
function log.present_cursor(l, cursor)
  if cursor > l.top then return l.first - 1, true end
  return cursor, false
end

-- Returns a reader's name and cursor; the cursor is nil if its member is not in the log. If the log began again below
-- the cursor, `l.restarted` is set.
--
-- A new device starts at the lowest cursor of its member. There is then a third value, for `log.add_device`: the
-- devices of the member, including the new one. It omits the device "" if that has never pulled, because messages would
-- be kept for it for ever.
--- (l: table, member: str, device: str) -> str, int | nil, table | nil
--- uses: base
function log.reader(l, member, device)
  local name = log.reader_name(member, device)
  local cursor = redis.call("ZSCORE", base .. "readers", name)
  if cursor then
    cursor, l.restarted = log.present_cursor(l, tonumber(cursor))
    return name, cursor
  end
  if not log.is_member(member) then return name end
  local devices, low = log.devices(member), log.present_cursor(l, log.lowest_cursor(member))
  local unused = #devices == 1 and devices[1] == "" and redis.call("HEXISTS", base .. "seen", member) == 0
  if unused then devices = {} end
  devices[#devices + 1] = device
  return name, low, devices
end

-- Adds the reader `name`, a new device, and stores the list from `log.reader`. Removes the device "" if it is not
-- listed.
--- (member: str, name: str, cursor: int, devices: table)
--- uses: base
--- seldom
function log.add_device(member, name, cursor, devices)
  if devices[1] ~= "" then redis.call("ZREM", base .. "readers", member) end
  redis.call("ZADD", base .. "readers", cursor, name)
  redis.call("HSET", base .. "devices", member, cmsgpack.pack(devices))
end

--- (name: str)
--- uses: base
function log.remove_reader(name)
  redis.call("ZREM", base .. "readers", name)
  redis.call("HDEL", base .. "seen", name)
  redis.call("ZREM", base .. "watching", name)
  if redis.call("HDEL", base .. "next", name) == 1 then
    redis.call("UNLINK", base .. "claimed:" .. name, base .. "leased:" .. name)
    shared_reader.dismiss(name)
  end
end

-- Adds a member, which starts with the latest messages, `last` of them; with 0 it starts with the next message, and
-- with -1 with the oldest that is stored. If it is a member already, its cursor stays. Returns { "OK", cursor, 1 if it
-- is new } or { "GONE" }.
--- keys: base state
--- args: caller: str, number: int, member: str, last: int
--- flags: allow-oom
--- frame: once
function script.join(base, state, caller, number, member, last)
  if not l then return log.refuse_gone() end
  if log.is_member(member) then
    local _, cursor = log.reader(l, member, "")
    return idempotency.keep(caller, number, { "OK", cursor, 0 })
  end
  local cursor = l.first - 1
  if last >= 0 then cursor = math.max(cursor, events.floor(l, last)) end
  redis.call("ZADD", base .. "readers", cursor, member)
  return { "OK", cursor, 1 }
end

-- Removes a member with all its devices, and wakes those that wait, because the member may be one of them. When the
-- last member leaves, the log is deleted. Returns { "OK", 1 if it was a member, 1 if there is more to trim, how many
-- are left to wake, 1 if the caller must call again, because one call could not delete everything about the member }.
--- keys: base state
--- args: caller: str, number: int, given: int, member: str
--- flags: allow-oom
--- frame: once
function script.leave(base, state, caller, number, given, member)
  if not l then return idempotency.keep(caller, number, { "OK", 0, 0, 0, 0 }) end
  local again = own.forget(member) and 1 or 0
  if not log.is_member(member) then return idempotency.keep(caller, number, { "OK", 0, 0, 0, again }) end
  local devices = log.devices(member)
  for i = 1, #devices do log.remove_reader(log.reader_name(member, devices[i])) end
  redis.call("HDEL", base .. "devices", member)
  local more, left = 0
  if redis.call("ZCARD", base .. "readers") == 0 then
    left = log.delete(l)
  else
    more, left = log.trim(l, clock.now(given)), log.report_change()
  end
  return { "OK", 1, more, left, again }
end

-- Removes a device that will not read again. If it was the last one, the device without a name takes over its cursor.
-- Returns { "OK", 1 if it was a reader, 1 if there is more to trim } or { "GONE" }.
--- keys: base state
--- args: given: int, member: str, device: str
--- flags: allow-oom
--- frame: log
function script.drop_device(base, state, given, member, device)
  if not l then return log.refuse_gone() end
  local name = log.reader_name(member, device)
  local cursor = redis.call("ZSCORE", base .. "readers", name)
  if not cursor then return { "OK", 0, 0 } end
  local kept = {}
  for _, one in ipairs(log.devices(member)) do
    if one ~= device then kept[#kept + 1] = one end
  end
  log.remove_reader(name)
  if #kept == 0 then redis.call("ZADD", base .. "readers", cursor, member) end
  if #kept == 0 or (#kept == 1 and kept[1] == "") then
    redis.call("HDEL", base .. "devices", member)
  else
    redis.call("HSET", base .. "devices", member, cmsgpack.pack(kept))
  end
  return { "OK", 1, log.trim(l, clock.now(given)) }
end

-- Moves the cursor of a reader back, so that the message at `position` and all after it are unread. Returns { "OK" };
-- { "RESTARTED" } if the log began again since; { "FREED", number of the oldest message } if the message was freed;
-- { "SHARED" } if workers share the reader; or { "GONE" | "VANISHED" | "NOT_A_MEMBER" | "MANY" }.
--- keys: base state
--- args: given: int, member: str, device: str, position: str
--- flags: allow-oom
--- frame: log
function script.mark_unread(base, state, given, member, device, position)
  if not l then return log.refuse_gone() end
  local name, cursor, devices = log.reader(l, member, device)
  if not cursor then return log.refuse() end
  if devices and #devices > log.MAX_DEVICES then return { "MANY" } end
  local number = log.locate(l, position)
  if l.is_lost then return { "VANISHED", "log" } end
  if not number then return { "RESTARTED" } end
  if number < l.first then return { "FREED", l.first } end
  if l.has_shared and redis.call("HEXISTS", base .. "next", name) == 1 then return { "SHARED" } end
  if devices then log.add_device(member, name, cursor, devices) end
  redis.call("HSET", base .. "seen", name, string.format("%d", clock.now(given)))
  if number - 1 < cursor then redis.call("ZADD", base .. "readers", number - 1, name) end
  return { "OK" }
end

-- Returns the state of the log and of one reader: { "OK", now, top, first, bytes, number of readers, number of
-- message ids that are kept, ms of the oldest or 0, cursor or -1, seen or 0, first unclaimed number or 0, number of
-- claims, number of dead letters, number of messages above the cursor that do not count as unread } or { "GONE" |
-- "VANISHED" }. A device that has never pulled has the cursor with which it would start. `watch` 1: if the reader has
-- acknowledged everything, the next sender is asked to notify its member (`watching` in log.lua).
--- keys: base state
--- args: given: int, member: str, device: str, watch: int
--- flags: allow-oom
--- frame: log
function script.status(base, state, given, member, device, watch)
  if not l then return log.refuse_gone() end
  local name, cursor = log.reader(l, member, device)
  local now, readers = clock.now(given), redis.call("ZCARD", base .. "readers")
  if readers == 0 then return { "VANISHED", "readers" } end
  local kept, oldest = ids.kept()
  if not cursor then
    return { "OK", now, l.top, l.first, l.ended - l.begun, readers, kept, oldest, -1, 0, 0, 0, 0, 0 }
  end
  if watch == 1 and cursor >= l.top then redis.call("ZADD", base .. "watching", l.top, name) end
  local seen = tonumber(redis.call("HGET", base .. "seen", name) or 0)
  local unclaimed = tonumber(redis.call("HGET", base .. "next", name) or 0)
  local claimed = unclaimed > 0 and redis.call("ZCARD", base .. "claimed:" .. name) or 0
  local dead = redis.call("ZCARD", base .. "dead")
  local read_to = math.max(cursor, l.first - 1)
  local mine = member ~= "" and log.uncounted(l, member, read_to) or 0
  return {
    "OK", now, l.top, l.first, l.ended - l.begun, readers, kept, oldest, cursor, seen, unclaimed, claimed, dead, mine,
  }
end

-- Returns a page of the readers, beginning with those that are furthest behind: { "OK", top, first, reader, cursor,
-- seen or 0, number of messages above the cursor that do not count as unread, … } or { "GONE" }.
--- keys: base state
--- args: offset: int, n: int
--- flags: no-writes
--- frame: log
function script.readers(base, state, offset, n)
  if not l then return log.refuse_gone() end
  local rows = redis.call("ZRANGE", base .. "readers", offset, offset + n - 1, "WITHSCORES")
  local answer = { "OK", l.top, l.first }
  for i = 1, #rows, 2 do
    answer[#answer + 1] = rows[i]
    local cursor = log.present_cursor(l, tonumber(rows[i + 1]))
    answer[#answer + 1] = cursor
    answer[#answer + 1] = tonumber(redis.call("HGET", base .. "seen", rows[i]) or 0)
    local read_to = math.max(cursor, l.first - 1)
    answer[#answer + 1] = log.uncounted(l, string.match(rows[i], "^%Z*"), read_to)
  end
  return answer
end
