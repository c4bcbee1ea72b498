-- A numbered log with readers: mailboxes, chats and channels of files are all built on it.
--
--            post                                ack by the last reader that had not acknowledged it
--   (none) ────────▶ kept for some readers ──────────────────────────────────────────────────────────▶ freed
--                          │ a limit of `keep` drops it
--                          └───────────────────────────▶ freed; readers that had not read it get a gap reported
--
--   state        HASH    format; top: number of the last message; first: of the first that is still there; begun, ended:
--                        bytes that were ever freed, and ever added; messages, bytes, age (ms), refuse: the limits
--   log          STREAM  <number>-<server ms>, numbers without holes: by (the sender; in a channel of files kind and file),
--                        end (bytes added up to here), body
--   ends         LIST    only of a channel of files, whose bodies are large: `end` of each record that is there
--   readers      ZSET    reader -> its cursor: the last number that it acknowledged
--   seen         HASH    reader -> server ms at which it last pulled
--   devices      HASH    member -> its devices. A reader is a member, or a device: <member> NUL <device>
--   sent         ZSET    message id -> number; PX a day, the last 1000
--   waiting      ZSET    address of a reader that waits for a message -> top when it registered; PX
--   wanting      ZSET    address of a sender that waits for space -> bytes; PX
--   watching     ZSET    reader whose member waits for news of all its chats -> top when it had read everything, or the ms
--                        from which on it is notified again. The sender notifies it.
--   next, claimed:, leased:, claim: (shared_reader.lua)                     of readers with several workers
--   replay: (idempotency), inbox: (wake)
--
-- Only acknowledging moves a cursor, reading never does. Messages up to the lowest cursor are freed in the same step.
--
-- Every reply begins with "OK" or a refusal: "GONE" (no log), "STRANGER" (no member), "EXISTS", "FULL", "LARGE", "BEYOND", "MANY".
-- A repeated `pull`, `look` or `hand_in` does no harm; the other scripts recognise a repeated call.

-- Returns the fields of `state`, or nil if there is no log.
--- () -> error | nil, table | nil
--- uses: state
function log.open()
  local s = redis.call("HMGET", state, "format", "top", "first", "begun", "ended", "messages", "bytes", "age", "refuse")
  if not s[1] then return nil, nil end
  if tonumber(s[1]) > 1 then return redis.error_reply("PENSTOCKFORMAT " .. s[1]) end
  return nil, {
    top = tonumber(s[2]), first = tonumber(s[3]), begun = tonumber(s[4]), ended = tonumber(s[5]),
    messages = tonumber(s[6]) or 0, bytes = tonumber(s[7]) or 0, age = tonumber(s[8]) or 0, refuse = s[9] == "1",
  }
end

--- (messages: int, bytes: int, age: int, refuse: int)
--- uses: state
function log.make(messages, bytes, age, refuse)
  redis.call("HSET", state, "format", 1, "top", 0, "first", 1, "begun", 0, "ended", 0)
  log.keep(messages, bytes, age, refuse)
end

-- Set the limits. 0 means no limit, and stores no field.
--- (messages: int, bytes: int, age: int, refuse: int)
--- uses: state
function log.keep(messages, bytes, age, refuse)
  for name, value in pairs({ messages = messages, bytes = bytes, age = age, refuse = refuse }) do
    if value > 0 then redis.call("HSET", state, name, value) else redis.call("HDEL", state, name) end
  end
end

-- The bytes that a message counts for against a limit: its own, and about what the server needs beside them.
--- (by: str, body: str) -> int
function log.size(by, body)
  return #by + #body + 32
end

-- Register a waiter at this address for so many ms; 0 deregisters it.
--- (list: str, score: int, address: str, ms: int)
--- uses: base
function log.wait(list, score, address, ms)
  local key = base .. list
  if ms > 0 then
    redis.call("ZADD", key, score, address)
    if redis.call("PTTL", key) < ms then redis.call("PEXPIRE", key, ms) end
  elseif address ~= "" then
    redis.call("ZREM", key, address)
  end
end

-- Notify a hundred of the waiters; those notify the others.
--- (list: str, below: str)
--- uses: base
function log.rouse(list, below)
  local found = redis.call("ZRANGE", base .. list, "-inf", below, "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #found do notify.send(found[i], "0") end
  if #found > 0 then redis.call("ZREM", base .. list, unpack(found)) end
end

-- A message has arrived: notify the waiting readers. Returns readers whose members wait for news of all their chats, so that
-- the caller notifies them. A member that has not read an hour later is returned again, for the caller may have died.
--- (l: table, now: int) -> table
--- uses: base
function log.ring(l, now)
  if redis.call("EXISTS", base .. "waiting", base .. "watching") == 0 then return {} end
  log.rouse("waiting", "(" .. l.top)
  local told = redis.call("ZRANGE", base .. "watching", "-inf", "(" .. l.top, "BYSCORE", "LIMIT", 0, 20)
  if #told == 0 then told = redis.call("ZRANGE", base .. "watching", 1e12, now, "BYSCORE", "LIMIT", 0, 20) end
  for i = 1, #told do redis.call("ZADD", base .. "watching", now + 3600000, told[i]) end
  return told
end

--- (entry: table, name: str) -> str
function log.field(entry, name)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return ""
end

-- Find the messages from `from` on that the limits of age or bytes drop. Returns the number of the last one, and whether the
-- search stopped at a thousand.
--- (l: table, now: int, from: int) -> int, bool
--- uses: base
function log.outlived(l, now, from)
  local to, till = from - 1, from + 999
  while to < till do
    local some = redis.call("XRANGE", base .. "log", to + 1, "+", "COUNT", 10)
    for i = 1, #some do
      local at = tonumber(string.match(some[i][1], "%d+$"))
      local size = log.size(log.field(some[i], "by"), log.field(some[i], "body"))
      local kept = l.ended - tonumber(log.field(some[i], "end")) + size
      local goes = (l.age > 0 and at <= now - l.age) or (l.bytes > 0 and not l.refuse and kept > l.bytes)
      if not goes then return to, false end
      to = to + 1
    end
    if #some < 10 then return to, false end
  end
  return to, true
end

-- Free the messages that every reader has acknowledged or that a limit drops, at most a slice of them. Returns 1 if more are left.
--- (l: table, now: int) -> int
--- uses: base state
function log.trim(l, now)
  local last, more = l.first - 1, 0
  local low = redis.call("ZRANGE", base .. "readers", 0, 0, "WITHSCORES")
  local to = math.max(last, tonumber(low[2]) or last)
  if l.messages > 0 and not l.refuse then to = math.max(to, l.top - l.messages) end
  if to > last + 2000 then
    to, more = last + 2000, 1
  elseif to < l.top and (l.age > 0 or (l.bytes > 0 and not l.refuse)) then
    local rest
    to, rest = log.outlived(l, now, to + 1)
    if rest then more = 1 end
  end
  if to > last then log.cut(l, to) end
  return more
end

-- Free every message up to this number.
--- (l: table, to: int)
--- uses: base state
function log.cut(l, to)
  if to >= l.top then
    redis.call("UNLINK", base .. "log", base .. "ends")
    l.begun = l.ended
  else
    local ended = redis.call("LINDEX", base .. "ends", to - l.first)
    if ended then
      redis.call("LTRIM", base .. "ends", to - l.first + 1, -1)
    else
      local at = redis.call("XRANGE", base .. "log", to, to, "COUNT", 1)
      ended = at[1] and log.field(at[1], "end") or l.begun
    end
    l.begun = tonumber(ended)
    redis.call("XTRIM", base .. "log", "MINID", to + 1)
  end
  l.first = to + 1
  redis.call("HSET", state, "first", l.first, "begun", l.begun)
  local space = l.bytes > 0 and string.format("%d", math.max(0, l.bytes - l.ended + l.begun)) or "+inf"
  if redis.call("EXISTS", base .. "wanting") == 1 then log.rouse("wanting", space) end
end

--- uses: base
function log.free_claims()
  local workers = redis.call("HKEYS", base .. "next")
  for i = 1, #workers do redis.call("UNLINK", base .. "claimed:" .. workers[i], base .. "leased:" .. workers[i]) end
end

-- Free the whole log, and notify all waiters, which then find it gone.
--- uses: base state
function log.free()
  for _ = 1, 10 do
    log.rouse("waiting", "+inf")
    log.rouse("wanting", "+inf")
  end
  log.free_claims()
  for _, key in ipairs({ "log", "ends", "readers", "seen", "devices", "sent", "waiting", "wanting", "watching", "next" }) do
    redis.call("UNLINK", base .. key)
  end
  redis.call("UNLINK", state)
end

--- (l: table, now: int, by: str, id: str, body: str) -> int
--- uses: base
function log.append(l, now, by, id, body)
  l.top = l.top + 1
  l.ended = l.ended + log.size(by, body)
  redis.call("XADD", base .. "log", string.format("%d-%d", l.top, now), "by", by, "end", l.ended, "body", body)
  if id ~= "" then redis.call("ZADD", base .. "sent", l.top, id) end
  return l.top
end

--- (l: table, now: int, ids: bool)
--- uses: base state
function log.appended(l, now, ids)
  redis.call("HSET", state, "top", l.top, "ended", l.ended)
  if ids then
    redis.call("ZREMRANGEBYSCORE", base .. "sent", "-inf", l.top - 1000)
    redis.call("PEXPIRE", base .. "sent", 86400000)
  end
  if l.messages + l.bytes + l.age > 0 then log.trim(l, now) end
end

-- Append messages after `position` to `into` as number, ms, by, body: up to `limit` of them, and up to `room` bytes but at
-- least one. Reads ten at a time, so that few large bodies are read in vain. Returns the number of the last one.
--- (l: table, position: int, limit: int, room: int, into: table) -> int
--- uses: base
function log.read(l, position, limit, room, into)
  while limit > 0 and position < l.top do
    local some = redis.call("XRANGE", base .. "log", position + 1, "+", "COUNT", math.min(limit, 10))
    if #some == 0 then break end
    for i = 1, #some do
      local fields = some[i][2]
      room = room - #fields[6]
      if room < 0 and #into > 0 and type(into[#into]) == "string" then return position end
      local number, at = string.match(some[i][1], "^(%d+)-(%d+)$")
      position = tonumber(number)
      into[#into + 1] = position
      into[#into + 1] = tonumber(at)
      into[#into + 1] = fields[2]
      into[#into + 1] = fields[6]
    end
    limit = limit - #some
  end
  return position
end

-- Make a log with its members, which read from the start, and with its first message if `first` is 1.
-- { "OK", 1 or 0 } or { "EXISTS" }
--- keys: base state
--- args: caller: str, number: int, given: int, messages: int, bytes: int, age_ms: int, refuse: int, by: str, first: int, body: str, members: *
function script.create(base, state, caller, number, given, messages, bytes, age_ms, refuse, by, first, body, members, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if l then return { "EXISTS" } end
  local now = clock.now(given)
  log.make(messages, bytes, age_ms, refuse)
  for i = members, #ARGV, 1000 do
    local some = {}
    for j = i, math.min(#ARGV, i + 999) do
      some[#some + 1] = 0
      some[#some + 1] = ARGV[j]
    end
    redis.call("ZADD", base .. "readers", unpack(some))
  end
  if first == 1 then
    local _, made = log.open()
    log.append(made, now, by, "", body)
    log.appended(made, now, false)
  end
  return idempotency.keep(caller, number, { "OK", first })
end

-- Append messages, given as id, body, …. A message whose id is in `sent` is not appended again; "" is no id. `make` 1: every
-- sender may post, and a log that does not exist is made, with the reader ""; 0: only members may. `stay_ms` > 0: if the log is
-- full, `address` is notified when there is space.
-- { "OK", { number, … }, { reader to notify, … } } or { "GONE" | "STRANGER" | "FULL" | "LARGE" }
--- keys: base state
--- args: caller: str, number: int, given: int, make: int, by: str, address: str, stay_ms: int, rest: *
function script.post(base, state, caller, number, given, make, by, address, stay_ms, rest, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l and make == 0 then return { "GONE" } end
  if l and make == 0 and not log.is_member(by) then return { "STRANGER" } end
  local now = clock.now(given)
  local known, ids, fresh, size = {}, false, 0, 0
  for i = rest, #ARGV, 2 do
    local id = ARGV[i]
    if id ~= "" then
      ids = true
      if known[id] == nil then known[id] = redis.call("ZSCORE", base .. "sent", id) end
    end
    if id == "" or not known[id] then
      fresh = fresh + 1
      size = size + log.size(by, ARGV[i + 1])
      if id ~= "" then known[id] = true end
    end
  end
  if l and l.refuse and fresh > 0 then
    if l.bytes > 0 and size > l.bytes or l.messages > 0 and fresh > l.messages then return { "LARGE" } end
    if l.age > 0 then log.trim(l, now) end
    if l.bytes > 0 and l.ended - l.begun + size > l.bytes or l.messages > 0 and l.top - l.first + 1 + fresh > l.messages then
      log.wait("wanting", 0, address, stay_ms)
      return { "FULL" }
    end
  end
  if not l then
    log.make(0, 0, 0, 0)
    redis.call("ZADD", base .. "readers", 0, "")
    fault, l = log.open()
  end
  local numbers = {}
  for i = rest, #ARGV, 2 do
    local id = ARGV[i]
    if id == "" then
      numbers[#numbers + 1] = log.append(l, now, by, id, ARGV[i + 1])
    else
      if known[id] == true then known[id] = log.append(l, now, by, id, ARGV[i + 1]) end
      numbers[#numbers + 1] = tonumber(known[id])
    end
  end
  local told = {}
  if fresh > 0 then
    log.appended(l, now, ids)
    told = log.ring(l, now)
  end
  log.wait("wanting", 0, address, 0)
  return idempotency.keep(caller, number, { "OK", numbers, told })
end

-- Acknowledge every message up to `acked`, then read after the cursor, or after `after` if that is higher. `limit` 0: only
-- acknowledge. If there is nothing to read, `address` is notified within `stay_ms`; `watch` 1: the next sender is asked to
-- notify the reader's member.
-- { "OK", top, first, cursor, 1 if there is more to trim, { reader to notify, … }, number, ms, by, body, … },
-- { "BEYOND", top } or { "GONE" | "STRANGER" | "MANY" }
--- keys: base state
--- args: given: int, who: str, device: str, acked: int, after: int, limit: int, room: int, address: str, stay_ms: int, watch: int
--- flags: allow-oom
function script.pull(base, state, given, who, device, acked, after, limit, room, address, stay_ms, watch)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    if who == "" then log.wait("waiting", 0, address, stay_ms) end
    return { "GONE" }
  end
  local name, cursor, devices = log.reader(who, device)
  if not cursor then return { "STRANGER" } end
  if devices and #devices > 100 then return { "MANY" } end
  if acked > l.top then return { "BEYOND", l.top } end
  local now, more = clock.now(given), 0
  if devices then log.enrol(who, name, cursor, devices) end
  redis.call("HSET", base .. "seen", name, string.format("%d", now))
  if acked > cursor then
    cursor = acked
    redis.call("ZADD", base .. "readers", cursor, name)
    shared_reader.pass_over(name, cursor)
    more = log.trim(l, now)
  elseif l.age > 0 or acked > 0 then
    more = log.trim(l, now)
  end
  local answer = { "OK", l.top, l.first, cursor, more, {} }
  local position = math.max(cursor, after, l.first - 1)
  log.read(l, position, limit, room, answer)
  if limit > 0 then
    answer[6] = log.ring(l, now)
    log.wait("waiting", l.top, address, #answer == 6 and stay_ms or 0)
    if watch == 1 and #answer == 6 then redis.call("ZADD", base .. "watching", l.top, name) end
  end
  return answer
end

-- Deregister the waiter at this address.
--- keys: base state
--- args: address: str
--- flags: allow-oom
function script.stay(base, state, address)
  return redis.call("ZREM", base .. "waiting", address) + redis.call("ZREM", base .. "wanting", address)
end

-- Free the next slice. { "OK", 1 if there is more }
--- keys: base state
--- args: given: int
--- flags: allow-oom
function script.trim(base, state, given)
  local fault, l = log.open()
  if fault then return fault end
  return { "OK", l and log.trim(l, clock.now(given)) or 0 }
end

-- Set the limits. `make` 1: make a log that does not exist. { "OK", 1 if there is more to trim } or { "GONE" }
--- keys: base state
--- args: given: int, make: int, messages: int, bytes: int, age_ms: int, refuse: int
function script.limit(base, state, given, make, messages, bytes, age_ms, refuse)
  local fault, l = log.open()
  if fault then return fault end
  if not l and make == 0 then return { "GONE" } end
  if not l then
    log.make(messages, bytes, age_ms, refuse)
    redis.call("ZADD", base .. "readers", 0, "")
    return { "OK", 0 }
  end
  log.keep(messages, bytes, age_ms, refuse)
  fault, l = log.open()
  return { "OK", log.trim(l, clock.now(given)) }
end

-- Delete the log. { "OK", 1 if there was one }
--- keys: base state
--- args: caller: str, number: int
--- flags: allow-oom
function script.delete(base, state, caller, number)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if l then log.free() end
  return idempotency.keep(caller, number, { "OK", l and 1 or 0 })
end
