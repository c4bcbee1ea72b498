-- A numbered log with readers. Mailboxes, chats and channels of files are such logs.
--
--            post                                ack by the last reader that had not acknowledged it
--   (none) ────────▶ kept for some readers ──────────────────────────────────────────────────────────▶ freed
--                          │ a limit is exceeded
--                          └───────────────────────────▶ freed; readers that had not read it find a gap
--
--   state        HASH    format; top: number of the last message; first: number of the oldest that is still there;
--                        begun, ended: bytes of all messages ever freed, and ever posted (ended - begun bytes are still
--                        there); messages, bytes, age (ms): the limits; refuse: 1 if a message that would exceed the
--                        first two is refused
--   log          STREAM  <number>-<server ms>, numbers without gaps: by (the sender; in a channel of files kind and
--                        upload id), end (bytes of all messages up to this one), body
--   ends         LIST    in a channel of files, whose bodies are large: `end` of each record that is there
--   readers      ZSET    reader -> its cursor: the last number that it acknowledged
--   seen         HASH    reader -> server ms at which it last pulled
--   devices      HASH    member -> its devices. A reader is a member, or a device: <member> NUL <device>
--   sent         ZSET    message id -> number; PX a day, the last 1000
--   waiting      ZSET    faces that wait for a message (waiting.lua)
--   standby      ZSET    in a channel of files: faces that wait for the end of a lease (waiting.lua)
--   wanting      ZSET    address of a sender that waits for space -> bytes, plus a fraction for its turn; PX
--   watching     ZSET    reader that has read everything and whose member waits for messages of all its chats -> top at
--                        that time. After `wake_rest` has returned it to a sender, which notifies the member, the
--                        score is the server ms from which it may be returned to another sender
--   next, claimed:, leased:, claim:, idle, idle:, woken: (shared_reader.lua) · replay: (idempotency)
--
-- Only acknowledging moves a cursor, reading never does. Messages up to the lowest cursor are freed in the same call.
--
-- A reply begins with OK or a refusal: GONE (the log does not exist), EXISTS, NOT_A_MEMBER, FULL (no space now), LARGE
-- (more than the limit), BEYOND (no message has this number), MANY (devices).
--
-- Scripts that take `caller` and `number` recognise a repeated call (idempotency.lua), and `claim` recognises its
-- token. A repeated call of another script changes nothing more.

log = { FORMAT = 1, MESSAGE_OVERHEAD = 32, MAX_DEVICES = 100 }

_fields = { BY = 2, BODY = 6 } -- names and values of an entry that `append` wrote

-- Returns two values: an error if the log has a newer format than this code, else nil; and the fields of `state`, or
-- nil if there is no log.
--- () -> error | nil, table | nil
--- uses: state
function log.open()
  local s = redis.call("HMGET", state, "format", "top", "first", "begun", "ended", "messages", "bytes", "age", "refuse")
  local format, top, first, begun, ended, messages, bytes, age, refuse = unpack(s)
  if not format then return nil, nil end
  if tonumber(format) > log.FORMAT then return redis.error_reply("PENSTOCKFORMAT " .. format) end
  return nil, {
    top = tonumber(top), first = tonumber(first), begun = tonumber(begun), ended = tonumber(ended),
    messages = tonumber(messages) or 0, bytes = tonumber(bytes) or 0, age = tonumber(age) or 0, refuse = refuse == "1",
  }
end

-- Creates a log without readers. Limits as in `set_limits`.
--- (messages: int, bytes: int, age: int, refuse: int)
--- uses: state
function log.create(messages, bytes, age, refuse)
  redis.call("HSET", state, "format", log.FORMAT, "top", 0, "first", 1, "begun", 0, "ended", 0)
  log.set_limits(messages, bytes, age, refuse)
end

-- Replaces the limits. 0 removes a limit and its field.
--- (messages: int, bytes: int, age: int, refuse: int)
--- uses: state
function log.set_limits(messages, bytes, age, refuse)
  for name, value in pairs({ messages = messages, bytes = bytes, age = age, refuse = refuse }) do
    if value > 0 then redis.call("HSET", state, name, value) else redis.call("HDEL", state, name) end
  end
end

-- The bytes that a message counts against a limit: its own, and about what the server needs to store it.
--- (by: str, body: str) -> int
--- inline
function log.size(by, body)
  return #by + #body + log.MESSAGE_OVERHEAD
end

-- Returns a field of an entry of the stream, or "".
--- (entry: table, name: str) -> str
function log.field(entry, name)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return ""
end

-- Returns the number of the last message that exceeds the limit of age or bytes, or `from` - 1. Examines at most a
-- thousand messages, beginning at `from`; the second value is whether later ones may exceed a limit, too.
--- (l: table, now: int, from: int) -> int, bool
--- uses: base
function log.last_exceeding(l, now, from)
  local to, most = from - 1, from + 999
  while to < most do
    local some = redis.call("XRANGE", base .. "log", to + 1, "+", "COUNT", 10)
    for i = 1, #some do
      local at = tonumber(string.match(some[i][1], "%d+$"))
      local by, body = log.field(some[i], "by"), log.field(some[i], "body")
      local kept = l.ended - tonumber(log.field(some[i], "end")) + log.size(by, body)
      local exceeds = (l.age > 0 and at <= now - l.age) or (l.bytes > 0 and not l.refuse and kept > l.bytes)
      if not exceeds then return to, false end
      to = to + 1
    end
    if #some < 10 then return to, false end
  end
  return to, true
end

-- Frees messages that every reader has acknowledged or that exceed a limit: one slice of them, so that other calls need
-- not wait long. Returns 1 if there are more.
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
    to, rest = log.last_exceeding(l, now, to + 1)
    if rest then more = 1 end
  end
  if to > last then log.free_to(l, to) end
  return more
end

-- Frees all messages up to this number, and wakes senders that wait for the space.
--- (l: table, to: int)
--- uses: base state
function log.free_to(l, to)
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
  log.wake_senders(l)
end

-- Deletes the claims of all shared readers, which have ended.
--- uses: base
function log.free_claims()
  local shared = redis.call("HKEYS", base .. "next")
  for i = 1, #shared do
    redis.call("UNLINK", base .. "claimed:" .. shared[i], base .. "leased:" .. shared[i])
    shared_reader.dismiss(shared[i])
  end
end

-- Deletes the log, and wakes a slice of those that wait: they ask again, and find that it is gone. The lists of those
-- that wait stay, so that the caller can wake the rest. Returns how many are left.
--- () -> int
--- uses: base state
function log.delete()
  log.free_claims()
  local left = log.report_change() + log.dismiss_senders()
  local keys = { state }
  for _, name in ipairs({ "log", "ends", "readers", "seen", "devices", "sent", "watching", "next" }) do
    keys[#keys + 1] = base .. name
  end
  redis.call("UNLINK", unpack(keys))
  return left
end

-- Appends a message and returns its number. `id` may be "". Call `log.save` after the last one.
--- (l: table, now: int, by: str, id: str, body: str) -> int
--- uses: base
function log.append(l, now, by, id, body)
  l.top = l.top + 1
  l.ended = l.ended + log.size(by, body)
  redis.call("XADD", base .. "log", string.format("%d-%d", l.top, now), "by", by, "end", l.ended, "body", body)
  if id ~= "" then redis.call("ZADD", base .. "sent", l.top, id) end
  return l.top
end

-- Stores what `append` has changed, and trims the log. `ids`: some of the messages had ids.
--- (l: table, now: int, ids: bool)
--- uses: base state
function log.save(l, now, ids)
  redis.call("HSET", state, "top", l.top, "ended", l.ended)
  if ids then
    redis.call("ZREMRANGEBYSCORE", base .. "sent", "-inf", l.top - 1000)
    redis.call("PEXPIRE", base .. "sent", 86400000)
  end
  if l.messages + l.bytes + l.age > 0 then log.trim(l, now) end
end

-- Appends to `into` the messages after `position`, each as number, ms, by, body: up to `limit` messages and `room`
-- bytes of bodies, but at least one message if there is one. Returns the number of the last one. Reads ten at a time,
-- so that it reads few large bodies that do not fit.
--- (l: table, position: int, limit: int, room: int, into: table) -> int
--- uses: base
function log.read(l, position, limit, room, into)
  while limit > 0 and position < l.top do
    local some = redis.call("XRANGE", base .. "log", position + 1, "+", "COUNT", math.min(limit, 10))
    if #some == 0 then break end
    for i = 1, #some do
      local fields = some[i][2]
      room = room - #fields[_fields.BODY]
      if room < 0 and #into > 0 and type(into[#into]) == "string" then return position end
      local number, at = string.match(some[i][1], "^(%d+)-(%d+)$")
      position = tonumber(number)
      into[#into + 1] = position
      into[#into + 1] = tonumber(at)
      into[#into + 1] = fields[_fields.BY]
      into[#into + 1] = fields[_fields.BODY]
    end
    limit = limit - #some
  end
  return position
end

-- Creates a log with its members, which read from the start, and its first message if `first` is 1.
-- Returns { "OK", 1 or 0 } or { "EXISTS" }.
--- keys: base state
--- args: caller: str, number: int, given: int, messages: int, bytes: int, age_ms: int, refuse: int, by: str, first: int
--- args: body: str, members: *
function script.create(base, state, caller, number, given, messages, bytes, age_ms, refuse, by, first,
  body, members, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if l then return { "EXISTS" } end
  local now = clock.now(given)
  log.create(messages, bytes, age_ms, refuse)
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
    log.save(made, now, false)
  end
  return idempotency.keep(caller, number, { "OK", first })
end

-- Appends messages, given as id, body, …: all of them or none. A message whose id is in `sent` is not appended again,
-- and has the number of the first one; "" is no id.
--
--   create            0: only a member may post. 1: any sender may, and a log that does not exist is created, with the
--                     reader ""
--   address, wait_ms  if the reply is FULL, the address is registered for `wait_ms`, and notified when there is space
--
-- Returns { "OK", { number of each message, … }, how many are left to wake, { reader to notify, … } }, see `wake_rest`;
-- or { "GONE" | "NOT_A_MEMBER" | "FULL" | "LARGE" }.
--- keys: base state
--- args: caller: str, number: int, given: int, create: int, by: str, address: str, wait_ms: int, messages: *
function script.post(base, state, caller, number, given, create, by, address, wait_ms, messages, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l and create == 0 then return { "GONE" } end
  if l and create == 0 and not log.is_member(by) then return { "NOT_A_MEMBER" } end
  local now = clock.now(given)
  -- `known`: id -> its number, false if it was never sent, true if it is new in this call.
  local known, ids, fresh, size = {}, false, 0, 0
  for i = messages, #ARGV, 2 do
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
    local is_full = l.bytes > 0 and l.ended - l.begun + size > l.bytes
      or l.messages > 0 and l.top - l.first + 1 + fresh > l.messages
    if is_full then
      -- The fraction grows with time, so of senders that wait for the same space the earliest is woken first.
      log.await_space((l.bytes > 0 and size - 1 or 0) + now % 86400000 / 86400000, address, wait_ms)
      return { "FULL" }
    end
  end
  if not l then
    log.create(0, 0, 0, 0)
    redis.call("ZADD", base .. "readers", 0, "")
    fault, l = log.open()
  end
  local numbers = {}
  for i = messages, #ARGV, 2 do
    local id = ARGV[i]
    if id == "" then
      numbers[#numbers + 1] = log.append(l, now, by, id, ARGV[i + 1])
    else
      if known[id] == true then known[id] = log.append(l, now, by, id, ARGV[i + 1]) end
      numbers[#numbers + 1] = tonumber(known[id])
    end
  end
  local left, to_notify = 0, {}
  if fresh > 0 then
    log.save(l, now, ids)
    left, to_notify = log.report(l, now)
  end
  if address ~= "" then
    log.await_space(0, address, 0)
    log.wake_senders(l)
  end
  return idempotency.keep(caller, number, { "OK", numbers, left, to_notify })
end

-- Acknowledges everything up to `acked`. Then returns up to `limit` messages after the cursor, or after `after` if that
-- is higher; with `limit` 0 it only acknowledges.
--
--   address, wait_ms  if there is no message, the address is registered for `wait_ms`, and notified of the next one
--   watch             1: if there is no message, the next sender is asked to notify the reader's member (`watching`)
--
-- Without wait_ms, an address is removed from those that wait.
--
-- Returns { "OK", top, first, cursor, 1 if there is more to trim, how many are left to wake, { reader to notify, … },
-- number, ms, by, body, … }, { "BEYOND", top } or { "GONE" | "NOT_A_MEMBER" | "MANY" }.
--- keys: base state
--- args: given: int, member: str, device: str, acked: int, after: int, limit: int, room: int, address: str
--- args: wait_ms: int, watch: int
--- flags: allow-oom
function script.pull(base, state, given, member, device, acked, after, limit, room, address, wait_ms, watch)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    log.wake_changed()
    log.await_message(address, member == "" and wait_ms or 0)
    return { "GONE" }
  end
  local name, cursor, devices = log.reader(member, device)
  if not cursor then return log.refuse() end
  if devices and #devices > log.MAX_DEVICES then return { "MANY" } end
  if acked > l.top then return { "BEYOND", l.top } end
  local now, more = clock.now(given), 0
  if devices then log.add_device(member, name, cursor, devices) end
  redis.call("HSET", base .. "seen", name, string.format("%d", now))
  if acked > cursor then
    cursor = acked
    redis.call("ZADD", base .. "readers", cursor, name)
    shared_reader.drop_below(name, cursor)
    more = log.trim(l, now)
  elseif l.age > 0 or acked > 0 then
    more = log.trim(l, now)
  end
  local left, to_notify = 0, {}
  if limit > 0 then left, to_notify = log.wake_rest(l, now) end
  local answer = { "OK", l.top, l.first, cursor, more, left, to_notify }
  local head = #answer
  log.read(l, math.max(cursor, after, l.first - 1), limit, room, answer)
  if limit > 0 then
    local found = #answer > head
    -- With a message, the address stays: another listener of this face may wait for a later one.
    if not found or wait_ms == 0 then log.await_message(address, wait_ms) end
    if watch == 1 and not found then redis.call("ZADD", base .. "watching", l.top, name) end
  end
  return answer
end

-- Frees the next slice of messages. Returns { "OK", 1 if there are more }.
--- keys: base state
--- args: given: int
--- flags: allow-oom
function script.trim(base, state, given)
  local fault, l = log.open()
  if fault then return fault end
  return { "OK", l and log.trim(l, clock.now(given)) or 0 }
end

-- Replaces the limits. `create` 1: creates a log that does not exist, with the reader "". Returns { "OK", 1 if there is
-- more to trim } or { "GONE" }.
--- keys: base state
--- args: given: int, create: int, messages: int, bytes: int, age_ms: int, refuse: int
function script.limit(base, state, given, create, messages, bytes, age_ms, refuse)
  local fault, l = log.open()
  if fault then return fault end
  if not l and create == 0 then return { "GONE" } end
  if not l then
    log.create(messages, bytes, age_ms, refuse)
    redis.call("ZADD", base .. "readers", 0, "")
    return { "OK", 0 }
  end
  log.set_limits(messages, bytes, age_ms, refuse)
  fault, l = log.open()
  local more = log.trim(l, clock.now(given))
  log.wake_senders(l)
  return { "OK", more }
end

-- Deletes the log. Returns { "OK", 1 if there was one, how many of those that wait are left to wake }.
--- keys: base state
--- args: caller: str, number: int
--- flags: allow-oom
function script.delete(base, state, caller, number)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local left = l and log.delete() or 0
  return idempotency.keep(caller, number, { "OK", l and 1 or 0, left })
end
