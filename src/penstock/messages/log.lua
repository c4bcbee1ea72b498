-- A numbered log with readers. Mailboxes, chats and channels of files are such logs.
--
--            post                                ack by the last reader that had not acknowledged it
--   (none) ────────▶ kept for some readers ──────────────────────────────────────────────────────────▶ freed
--                          │ a limit is exceeded
--                          └───────────────────────────▶ freed; readers that had not read it find a gap
--
--   state        HASH    format: for releases that do not know `row`; row, in MessagePack:
--                          format
--                          top, first    numbers of the last message and of the oldest stored one
--                          start         number before the first message ever
--                          at, freed     server ms of message `top` and of message `first` - 1; false: unknown
--                          begun, ended  bytes of all messages ever freed, and ever posted: ended - begun bytes are
--                                        stored
--                          limits        { messages, bytes, ms, 1 if a message that would exceed the first two is
--                                        refused, messages of the history, its ms }; 0: no such limit, or no
--                                        history. false: no limits
--                          has_removed   bodies were removed (history.lua)
--                          has_shared    a reader is shared, or was (shared_reader.lua)
--                          ids           false, or an array: the ids that are kept (post.lua)
--   log          STREAM  <number>-<server ms>, numbers without gaps: by (the sender; in a channel of files kind and
--                        upload id), end (bytes of all messages up to this one), body; and until (server ms from which
--                        it is not delivered any more), if it was posted with a time to live
--   ends         LIST    in a channel of files, whose bodies are large: "<end> <server ms>" of each record that is
--                        there
--   before       STRING  top of the log that was deleted last; PX a day
--   readers      ZSET    reader -> its cursor: the last number that it acknowledged
--   seen         HASH    reader -> server ms at which it last pulled
--   devices      HASH    member -> its devices. A reader is a member, or a device: <member> NUL <device>
--   waiting      ZSET    faces that wait for a message (waiting.lua)
--   standby      ZSET    in a channel of files: faces that wait for the end of a lease (waiting.lua)
--   wanting      ZSET    address of a sender that waits for space -> bytes, plus a fraction for its position; PX
--   watching     ZSET    reader that has read everything and whose member waits for messages of all its chats -> top at
--                        that time. After `wake_rest` has returned it to a sender, which notifies the member, the
--                        score is the server ms from which it may be returned to another sender
--   sent, sent_order, sent_counts: (post.lua) · dead, letters: (dead_letters.lua) · own: (own.lua) · removed:
--   (history.lua) · next, claimed:, leased:, claim:, idle, idle:, woken: (shared_reader.lua) · replay: (idempotency)
--
-- Only acknowledging moves a cursor, reading never does. Messages up to the lowest cursor are freed in the same call.
--
-- A *position* is the id of an entry of the stream, held outside the server. Because it has the server's time, no other
-- message with this number has the same id. `log.locate` compares the two: they differ if the log began again since,
-- because it was deleted and created again, or because the server fell back to an older state.
--
-- A reply begins with OK or a refusal: GONE (the log does not exist), EXISTS, NOT_A_MEMBER, FULL (no space now), LARGE
-- (more than the limit), VANISHED (the key that is named next has vanished, though there must be one), MANY (devices).
--
-- Scripts that take `caller` and `number` recognise a repeated call (idempotency.lua), and `claim` recognises its
-- token. A repeated call of another script changes nothing more.

-- Formats 1 and 2 had a field of `state` for each number. Format 1 had neither `start`, `at` and `freed` nor the time
-- in `ends`: such a position is not compared. The first write of the row makes the format 3.
log = { FORMAT = 3, MESSAGE_OVERHEAD = 32, MAX_DEVICES = 100, OVERDUE = "overdue" }

_fields = { BY = 2, BODY = 6, NAME = 7, VALUE = 8 } -- names and values of an entry that `append` wrote
_before = { MS = 86400000 } -- a day
_pull = { CURSOR = 4, MORE = 7, UNREAD = 10 } -- indexes in the reply to a pull

-- Returns the refusal for a log without `state`: VANISHED if other keys of it are there, else GONE.
--- () -> table
--- uses: base
--- inline
function log.refuse_gone()
  return redis.call("EXISTS", base .. "log", base .. "readers") > 0 and { "VANISHED", "state" } or { "GONE" }
end

-- Returns the number of a position ("": 0), or nil if the log began again since. If the message must be there and the
-- stream has vanished, `l.lost` is set.
--- (l: table, position: str) -> int | nil
--- uses: base
function log.locate(l, position)
  if position == "" then return 0 end
  local number, at = string.match(position, "^(%d+)-(%d+)$")
  number, at = tonumber(number), tonumber(at)
  if number <= l.start or number > l.top then return nil end
  if number >= l.first then
    local found = number == l.top and l.at or log.time_of(l, number)
    return (not found or found == at) and number or nil
  end
  return (number < l.first - 1 or not l.freed or l.freed == at) and number or nil
end

-- Returns the position of the message with this number, or "" if that is unknown.
--- (l: table, number: int) -> str
--- uses: base
function log.position(l, number)
  local at
  if number == l.top then
    at = l.at
  elseif number == l.first - 1 then
    at = l.freed
  elseif number >= l.first then
    at = log.time_of(l, number)
  end
  return at and number > l.start and string.format("%d-%d", number, at) or ""
end

-- Returns the server ms of a message that is there, or nil if that is unknown. If the stream has vanished, `l.lost` is
-- set.
--- (l: table, number: int) -> int | nil
--- uses: base
function log.time_of(l, number)
  local ends = not l.is_messages and redis.call("LINDEX", base .. "ends", number - l.first)
  if ends then return tonumber(string.match(ends, " (%d+)$")) end
  local entry = log.entry(l, number)
  return entry and tonumber(string.match(entry[1], "%d+$"))
end

-- Returns the entry of a message that is there, or nil. If the stream has vanished, `l.lost` is set.
--- (l: table, number: int) -> table | nil
--- uses: base
function log.entry(l, number)
  if l.entry_number ~= number then
    l.entry, l.entry_number = redis.call("XRANGE", base .. "log", number, number, "COUNT", 1)[1], number
    if not l.entry then l.entry = history.removed(l, number) end
  end
  if not l.entry then l.lost = "log" end
  return l.entry
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
--- seldom
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
      to = tonumber(string.match(some[i][1], "^%d+"))
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
  -- Cursors above `top` are those of an earlier state of the log. Their readers have yet to learn that it began again.
  local to = tonumber(low[2]) or last
  to = to > l.top and last or math.max(last, to)
  if to > last and l.history_messages + l.history_age > 0 then
    local rest
    to, rest = history.floor(l, now, to)
    to, more = math.max(last, to), rest
  end
  if l.messages > 0 and not l.refuse then to = math.max(to, events.floor(l, l.messages), events.overflow(l)) end
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
    l.begun, l.freed = l.ended, l.at
  else
    local ends = not l.is_messages and redis.call("LINDEX", base .. "ends", to - l.first)
    if ends then
      redis.call("LTRIM", base .. "ends", to - l.first + 1, -1)
      local ended, at = string.match(ends, "^(%d+) ?(%d*)$")
      l.begun, l.freed = tonumber(ended), tonumber(at) or false
    else
      local entry = log.entry(l, to)
      l.begun = entry and tonumber(log.field(entry, "end")) or l.begun
      l.freed = entry and tonumber(string.match(entry[1], "%d+$")) or false
    end
    redis.call("XTRIM", base .. "log", "MINID", to + 1)
  end
  if l.has_removed then redis.call("ZREMRANGEBYSCORE", base .. "removed", "-inf", to) end
  l.first = to + 1
  log.store(l)
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

-- Deletes the log, and wakes a slice of those that wait: they ask again, and find that it is gone. Their lists remain,
-- so that the caller can wake the rest. Returns how many are left.
--- (l: table | nil) -> int
--- uses: base state
function log.delete(l)
  log.free_claims()
  if l then redis.call("SET", base .. "before", string.format("%d", l.top), "PX", _before.MS) end
  local left = log.report_change() + log.dismiss_senders()
  local keys = { state }
  local names = {
    "log", "ends", "readers", "seen", "devices", "watching", "next", "sent", "sent_order", "sent_counts", "dead",
    "letters", "own", "removed",
  }
  for i = 1, #names do keys[#keys + 1] = base .. names[i] end
  redis.call("UNLINK", unpack(keys))
  return left
end

-- Appends a message and returns its position; or nil, if the stream has vanished, and nothing was written. `field` and
-- `value`: a further field, or nil. Call `log.save` after the last one.
--- (l: table, now: int, by: str, body: str, field: str | nil, value: str | nil) -> str | nil
--- uses: base
function log.append(l, now, by, body, field, value)
  local position, ended = string.format("%d-%d", l.top + 1, now), l.ended + log.size(by, body)
  local entry = { position, "by", by, "end", ended, "body", body, field, value }
  if l.first > l.top then
    redis.call("XADD", base .. "log", unpack(entry))
  elseif not redis.call("XADD", base .. "log", "NOMKSTREAM", unpack(entry)) then
    return nil
  end
  l.top, l.ended, l.at = l.top + 1, ended, now
  return position
end

-- Stores what `append` has changed, and trims the log.
--- (l: table, now: int)
--- uses: base state
function log.save(l, now)
  log.store(l)
  if l.has_limits then log.trim(l, now) end
end

-- Returns what a reader must know about a message with a further field: OVERDUE if it is not delivered any more; "edit"
-- or "redact" and a position for an event (history.lua); "edited" or "redacted" and the position of the event.
--- (l: table, name: str, value: str) -> str
function log.note(l, name, value)
  if name == "until" then return l.now and tonumber(value) <= l.now and log.OVERDUE or "" end
  return value
end

-- Appends to `into` the messages after `position`, each as number, ms, by, body, note: up to `limit` messages and
-- `room` bytes of bodies, but at least one message if there is one. Returns the number of the last one. Reads ten at a
-- time, so that it reads few large bodies that do not fit. If the stream has vanished, `l.lost` is set.
--- (l: table, position: int, limit: int, room: int, into: table) -> int
--- uses: base
function log.read(l, position, limit, room, into)
  while limit > 0 and position < l.top do
    local some = redis.call("XRANGE", base .. "log", position + 1, "+", "COUNT", math.min(limit, 10))
    if #some == 0 then l.lost = "log" end
    for i = 1, #some do
      local fields = some[i][2]
      local number, at = string.match(some[i][1], "^(%d+)-(%d+)$")
      number = tonumber(number)
      if number ~= position + 1 then
        position, limit, room = history.read_removed(l, position, number, limit, room, into)
        if l.lost or limit == 0 or room < 0 then return position end
      end
      room = room - #fields[_fields.BODY]
      if room < 0 and #into > 0 and type(into[#into]) == "string" then return position end
      local note = fields[_fields.NAME] and log.note(l, fields[_fields.NAME], fields[_fields.VALUE]) or ""
      position, limit = number, limit - 1
      into[#into + 1] = number
      into[#into + 1] = tonumber(at)
      into[#into + 1] = fields[_fields.BY]
      into[#into + 1] = note == log.OVERDUE and "" or fields[_fields.BODY]
      into[#into + 1] = note
    end
    if l.lost then break end
  end
  return position
end

-- Creates a log with its members, which read it from the start, and with its first message if `first` is 1.
-- Returns { "OK", 1 or 0 } or { "EXISTS" }.
--- keys: base state
--- args: caller: str, number: int, given: int, messages: int, bytes: int, age_ms: int, refuse: int
--- args: history_messages: int, history_ms: int, by: str, first: int, body: str, members: *
function script.create(base, state, caller, number, given, messages, bytes, age_ms, refuse,
  history_messages, history_ms, by, first, body, members, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if l then return { "EXISTS" } end
  local gone = log.refuse_gone()
  if gone[1] == "VANISHED" then return gone end
  local now = clock.now(given)
  local made = log.create({ messages, bytes, age_ms, refuse, history_messages, history_ms })
  for i = members, #ARGV, 1000 do
    local some = {}
    for j = i, math.min(#ARGV, i + 999) do
      some[#some + 1] = made.start
      some[#some + 1] = ARGV[j]
    end
    redis.call("ZADD", base .. "readers", unpack(some))
  end
  if first == 1 then
    log.append(made, now, by, body)
    own.add(by, made.top, made.top)
    log.save(made, now)
  end
  return idempotency.keep(caller, number, { "OK", first })
end

-- Acknowledges everything up to the position `acked`. Then returns up to `limit` messages after the position `after`,
-- or after the cursor if that is ""; with `limit` 0 it only acknowledges. A position of a log that began again since is
-- ignored and reported.
--
--   address, wait_ms  if there is no message, the address is registered for `wait_ms`, and notified of the next one
--   watch             1: if there is no message, the next sender is asked to notify the reader's member (`watching`)
--
-- Without wait_ms, an address is removed from those that wait.
--
-- Returns { "OK", top, first, cursor, number after which it read, 1 if the log began again, 1 if there is more to trim,
-- how many are left to wake, { reader to notify, … }, unread, number, ms, by, body, note, … }, or { "GONE" | "VANISHED"
-- | "NOT_A_MEMBER" | "MANY" }.
--- keys: base state
--- args: given: int, member: str, device: str, acked: str, after: str, limit: int, room: int, address: str
--- args: wait_ms: int, watch: int
--- flags: allow-oom
function script.pull(base, state, given, member, device, acked, after, limit, room, address, wait_ms, watch)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    log.wake_changed()
    log.await_message(address, member == "" and wait_ms or 0)
    return log.refuse_gone()
  end
  l.is_messages = true
  local name, cursor, devices = log.reader(l, member, device)
  if not cursor then return log.refuse() end
  if devices and #devices > log.MAX_DEVICES then return { "MANY" } end
  local acked_number, position = log.locate(l, acked), log.locate(l, after)
  if l.lost then return { "VANISHED", l.lost } end
  local restarted = acked_number and position and not (l.restarted and limit > 0) and 0 or 1
  local now, more = clock.now(given), 0
  if devices then log.add_device(member, name, cursor, devices) end
  redis.call("HSET", base .. "seen", name, string.format("%d", now))
  if acked_number and acked_number > cursor then
    cursor = acked_number
    if l.has_shared then cursor = shared_reader.drop_below(name, cursor) end
    redis.call("ZADD", base .. "readers", cursor, name)
    more = log.trim(l, now)
    if member ~= "" then own.drop(member, l.first - 1) end
  else
    if l.restarted and limit > 0 then redis.call("ZADD", base .. "readers", cursor, name) end
    if l.age + l.history_age > 0 or acked ~= "" then more = log.trim(l, now) end
  end
  local left, to_notify = 0, {}
  if limit > 0 then left, to_notify = log.wake_rest(l, now) end
  position = after ~= "" and position or cursor
  local unread = l.top - math.max(cursor, l.first - 1)
  if limit > 0 and unread > 0 and member ~= "" then unread = unread - log.uncounted(l, member, l.top - unread) end
  local answer = { "OK", l.top, l.first, cursor, position, restarted, more, left, to_notify, unread }
  local head = #answer
  l.now = now
  log.read(l, math.max(position, l.first - 1), limit, room, answer)
  if l.lost then return { "VANISHED", l.lost } end
  if position == cursor and answer[head + 5] == log.OVERDUE then
    -- Overdue messages count as acknowledged when they are the next ones.
    local i = head + 1
    while answer[i + 4] == log.OVERDUE do
      cursor, i = answer[i], i + 5
    end
    if l.has_shared then cursor = shared_reader.drop_below(name, cursor) end
    redis.call("ZADD", base .. "readers", cursor, name)
    answer[_pull.CURSOR], answer[_pull.MORE] = cursor, log.trim(l, now)
    answer[_pull.UNREAD] = l.top - cursor
  end
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

-- Replaces the limits, unless `messages` is -1, and those of the history, unless `history_messages` is. `create` 1:
-- creates a log that does not exist, with the reader "". Returns { "OK", 1 if there is more to trim } or { "GONE" }.
--- keys: base state
--- args: given: int, create: int, messages: int, bytes: int, age_ms: int, refuse: int, history_messages: int
--- args: history_ms: int
function script.limit(base, state, given, create, messages, bytes, age_ms, refuse, history_messages, history_ms)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    local gone = log.refuse_gone()
    if create == 0 or gone[1] == "VANISHED" then return gone end
    l = log.create({ 0, 0, 0, 0, 0, 0 })
    redis.call("ZADD", base .. "readers", l.start, "")
  end
  if messages < 0 then
    messages, bytes, age_ms, refuse = l.messages, l.bytes, l.age, l.refuse and 1 or 0
  end
  if history_messages < 0 then
    history_messages, history_ms = l.history_messages, l.history_age
  end
  log.set_limits(l, { messages, bytes, age_ms, refuse, history_messages, history_ms })
  log.store(l)
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
  local exists = l or log.refuse_gone()[1] == "VANISHED"
  local left = exists and log.delete(l) or 0
  return idempotency.keep(caller, number, { "OK", exists and 1 or 0, left })
end
