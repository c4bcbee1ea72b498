-- The readers of a log (log.lua): its members, or in place of a member its devices, each with a cursor of its own.

--- (who: str) -> bool
--- uses: base
function log.is_member(who)
  return redis.call("ZSCORE", base .. "readers", who) or redis.call("HEXISTS", base .. "devices", who) == 1
end

-- The devices through which a member reads; "" stands for the member itself.
--- (who: str) -> table
--- uses: base
function log.devices(who)
  local known = redis.call("HGET", base .. "devices", who)
  return known and cmsgpack.unpack(known) or { "" }
end

--- (who: str, device: str) -> str
function log.name(who, device)
  return device == "" and who or who .. "\0" .. device
end

-- Returns the reader's name, and its cursor or nil if it is no member. A new device starts at the lowest cursor of its member.
-- The third value is then the list of devices to store; it omits the member itself if that has never pulled.
--- (who: str, device: str) -> str, int | nil, table | nil
--- uses: base
function log.reader(who, device)
  local name = log.name(who, device)
  local cursor = redis.call("ZSCORE", base .. "readers", name)
  if cursor then return name, tonumber(cursor) end
  if not log.is_member(who) then return name end
  local devices, low = log.devices(who), math.huge
  for i = 1, #devices do
    low = math.min(low, tonumber(redis.call("ZSCORE", base .. "readers", log.name(who, devices[i]))) or math.huge)
  end
  if #devices == 1 and devices[1] == "" and redis.call("HEXISTS", base .. "seen", who) == 0 then devices = {} end
  devices[#devices + 1] = device
  return name, low, devices
end

--- (who: str, name: str, cursor: int, devices: table)
--- uses: base
function log.enrol(who, name, cursor, devices)
  if devices[1] ~= "" then redis.call("ZREM", base .. "readers", who) end
  redis.call("ZADD", base .. "readers", cursor, name)
  redis.call("HSET", base .. "devices", who, cmsgpack.pack(devices))
end

--- (name: str)
--- uses: base
function log.remove(name)
  redis.call("ZREM", base .. "readers", name)
  redis.call("HDEL", base .. "seen", name)
  redis.call("ZREM", base .. "watching", name)
  if redis.call("HDEL", base .. "next", name) == 1 then redis.call("UNLINK", base .. "claimed:" .. name, base .. "leased:" .. name) end
end

-- Add a reader of the last so many messages; 0: only of new ones, -1: of every message that is there. A member keeps its cursor.
-- { "OK", cursor, 1 if it is new } or { "GONE" }
--- keys: base state
--- args: caller: str, number: int, who: str, last: int
--- flags: allow-oom
function script.join(base, state, caller, number, who, last)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l then return { "GONE" } end
  if log.is_member(who) then
    local _, cursor = log.reader(who, "")
    return idempotency.keep(caller, number, { "OK", cursor, 0 })
  end
  local cursor = l.first - 1
  if last >= 0 then cursor = math.max(cursor, l.top - last) end
  redis.call("ZADD", base .. "readers", cursor, who)
  return idempotency.keep(caller, number, { "OK", cursor, 1 })
end

-- Remove a member with all its devices; the last one frees the log. { "OK", 1 if it was a member, 1 if there is more to trim }
--- keys: base state
--- args: caller: str, number: int, given: int, who: str
--- flags: allow-oom
function script.leave(base, state, caller, number, given, who)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l or not log.is_member(who) then return idempotency.keep(caller, number, { "OK", 0, 0 }) end
  local devices = log.devices(who)
  for i = 1, #devices do log.remove(log.name(who, devices[i])) end
  redis.call("HDEL", base .. "devices", who)
  local more = 0
  if redis.call("ZCARD", base .. "readers") == 0 then log.free() else more = log.trim(l, clock.now(given)) end
  return idempotency.keep(caller, number, { "OK", 1, more })
end

-- Remove a device. The member keeps the cursor of its last one. { "OK", 1 if it was a reader, 1 if there is more to trim }
--- keys: base state
--- args: given: int, who: str, device: str
--- flags: allow-oom
function script.drop_device(base, state, given, who, device)
  local fault, l = log.open()
  if fault then return fault end
  if not l then return { "GONE" } end
  local name = log.name(who, device)
  local cursor = redis.call("ZSCORE", base .. "readers", name)
  if not cursor then return { "OK", 0, 0 } end
  local kept = {}
  for _, one in ipairs(log.devices(who)) do
    if one ~= device then kept[#kept + 1] = one end
  end
  log.remove(name)
  if #kept == 0 then redis.call("ZADD", base .. "readers", cursor, who) end
  if #kept == 0 or (#kept == 1 and kept[1] == "") then
    redis.call("HDEL", base .. "devices", who)
  else
    redis.call("HSET", base .. "devices", who, cmsgpack.pack(kept))
  end
  return { "OK", 1, log.trim(l, clock.now(given)) }
end

-- The state of a log and of one reader; for a device that has never pulled, the cursor it would start with. `watch` 1: if the
-- reader has read everything, the next sender is asked to notify its member.
-- { "OK", now, top, first, bytes, number of readers, cursor or -1, seen or 0, first unclaimed or 0, claimed } or { "GONE" }
--- keys: base state
--- args: given: int, who: str, device: str, watch: int
--- flags: allow-oom
function script.look(base, state, given, who, device, watch)
  local fault, l = log.open()
  if fault then return fault end
  if not l then return { "GONE" } end
  local name, cursor = log.reader(who, device)
  local answer = { "OK", clock.now(given), l.top, l.first, l.ended - l.begun, redis.call("ZCARD", base .. "readers") }
  if not cursor then
    answer[7], answer[8], answer[9], answer[10] = -1, 0, 0, 0
    return answer
  end
  if watch == 1 and cursor >= l.top then redis.call("ZADD", base .. "watching", l.top, name) end
  answer[7] = cursor
  answer[8] = tonumber(redis.call("HGET", base .. "seen", name) or 0)
  answer[9] = tonumber(redis.call("HGET", base .. "next", name) or 0)
  answer[10] = answer[9] > 0 and redis.call("ZCARD", base .. "claimed:" .. name) or 0
  return answer
end

-- A page of the readers; those that are furthest behind come first.
-- { "OK", top, first, reader, cursor, seen or 0, … } or { "GONE" }
--- keys: base state
--- args: offset: int, n: int
--- flags: no-writes
function script.roster(base, state, offset, n)
  local fault, l = log.open()
  if fault then return fault end
  if not l then return { "GONE" } end
  local rows = redis.call("ZRANGE", base .. "readers", offset, offset + n - 1, "WITHSCORES")
  local answer = { "OK", l.top, l.first }
  for i = 1, #rows, 2 do
    answer[#answer + 1] = rows[i]
    answer[#answer + 1] = tonumber(rows[i + 1])
    answer[#answer + 1] = tonumber(redis.call("HGET", base .. "seen", rows[i]) or 0)
  end
  return answer
end
