-- A log (core/log.lua) with readers. Mailboxes, chats and channels of files are such logs.
--
--            post                                ack by the last reader that had not acknowledged it
--   (none) ────────▶ kept for some readers ──────────────────────────────────────────────────────────▶ freed
--                          │ a limit is exceeded
--                          └───────────────────────────▶ freed; readers that had not read it find a gap
--
--   state        HASH    row, in MessagePack:
--                          format        log.FORMAT
--                          top, first, start, at, freed, begun, ended: the numbers of the log (core/log.lua)
--                          limits        { messages, bytes, ms, 1 if a message that would exceed the first two is
--                                        refused, messages of the history, its ms }, with 0 for no such limit or no
--                                        history; or false if there are no limits
--                          has_removed   bodies were removed (history.lua)
--                          has_shared    a reader is shared, or was (shared_reader.lua)
--                          ids           false, or an array: the ids that are kept (post.lua)
--                          has_ends      it has the key `ends`: a channel of files, whose bodies are large
--   log          STREAM  the messages. `by` is the sender; in a channel of files, kind and upload id. Some messages
--                        have a further field: until (server ms from which it is not delivered any more, if it was
--                        posted with a time to live) or event (history.lua)
--   ends         LIST    see core/log.lua
--   before       STRING  top of the log that was deleted last; PX a day
--   readers      ZSET    reader -> its cursor: the last number that it acknowledged
--   seen         HASH    reader -> server ms at which it last pulled
--   devices      HASH    member -> its devices. A reader is a member, or a device: <member> NUL <device>
--   waiting      ZSET    faces that wait for a message (waiting.lua)
--   standby      ZSET    in a channel of files: faces that wait for the end of a lease (waiting.lua)
--   wanting      ZSET    address of a sender that waits for space -> the bytes that it wants, plus a fraction that is
--                        greater the later it came; PX
--   watching     ZSET    reader that has read everything and whose member waits for messages of all its chats -> top at
--                        that time. After `wake_rest` has returned it to a sender, which notifies the member, the
--                        score is the server ms from which it may be returned to another sender
--   sent, sent_order, sent_counts: (post.lua) · dead, letters: (dead_letters.lua) · own: (own.lua) · removed:
--   (history.lua) · next, claimed:, leased:, claim:, idle, idle:, woken: (shared_reader.lua) · replay: (idempotency)
--
-- Only acknowledging moves a cursor, reading never does. Messages up to the lowest cursor are freed in the same call.
--
-- A reply begins with OK or a refusal: GONE (the log does not exist), EXISTS, NOT_A_MEMBER, FULL (no space now), LARGE
-- (more than the limit), VANISHED (the key that is named next has vanished, though there must be one), MANY (devices).
--
-- Scripts that take `caller` and `number` recognise a repeated call (idempotency.lua), and `claim` recognises it by its
-- token. Any other script may be called again: the second call changes nothing that the first has not changed.

log = { FORMAT = 4, MAX_DEVICES = 100, OVERDUE = "overdue" }

_before = { MS = 86400000 } -- a day
_message = { VALUES = 5 } -- values of a message in a reply
_pull = { CURSOR = 4, MORE = 7, UNREAD = 10 } -- indexes in the reply to a pull

-- Returns the refusal for a log without `state`: VANISHED if other keys of it are there, else GONE.
--- () -> table
--- uses: base
--- inline
function log.refuse_gone()
  return redis.call("EXISTS", base .. "log", base .. "readers") > 0 and { "VANISHED", "state" } or { "GONE" }
end

-- Frees messages that every reader has acknowledged or that exceed a limit: one slice of them, so that other calls need
-- not wait long. Returns 1 if there are more, else 0.
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
    to, rest = log.last_exceeding(l, to + 1, l.refuse and 0 or l.bytes, l.age > 0 and now - l.age or 0)
    if rest then more = 1 end
  end
  if to > last then log.free(l, to) end
  return more
end

-- Frees all messages up to this number, and wakes senders that wait for the space.
--- (l: table, to: int)
--- uses: base state
function log.free(l, to)
  log.free_to(l, to)
  if l.has_removed then redis.call("ZREMRANGEBYSCORE", base .. "removed", "-inf", to) end
  log.store(l)
  log.wake_senders(l)
end

-- Deletes the claims of all shared readers, because the log ends.
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

-- Stores the numbers that `log.append` has changed, and trims the log. Call it after the last message.
--- (l: table, now: int)
--- uses: base state
function log.save(l, now)
  log.store(l)
  if l.has_limits then log.trim(l, now) end
end

-- Appends messages to `into` as a reader gets them: as `log.read` does, with a note instead of the further field. The
-- note is OVERDUE, without the body, if the message is not delivered any more; "edit" or "redact" and a position, for
-- an event (history.lua); "edited" or "redacted" and the position of the event. Returns the number of the last message.
--- (l: table, position: int, limit: int, room: int, into: table) -> int
function log.deliver(l, position, limit, room, into)
  local head = #into
  position = log.read(l, position, limit, room, into)
  for i = head + _message.VALUES, #into, _message.VALUES do
    local until_ms = into[i] ~= "" and tonumber(into[i])
    if until_ms then
      local is_overdue = l.now and until_ms <= l.now
      into[i] = is_overdue and log.OVERDUE or ""
      if is_overdue then into[i - 1] = "" end
    end
  end
  return position
end

-- Creates a log with its members, which read it from the start, and with its first message if `first` is 1.
-- Returns { "OK", 1 or 0 } or { "EXISTS" }.
--- keys: base state
--- args: caller: str, number: int, given: int, messages: int, bytes: int, age_ms: int, refuse: int
--- args: history_messages: int, history_ms: int, by: str, first: int, body: str, members: *
--- frame: once
function script.create(base, state, caller, number, given, messages, bytes, age_ms, refuse,
  history_messages, history_ms, by, first, body, members, ...)
  if l then return { "EXISTS" } end
  local gone = log.refuse_gone()
  if gone[1] == "VANISHED" then return gone end
  local now = clock.now(given)
  local made = log.create({ messages, bytes, age_ms, refuse, history_messages, history_ms }, false)
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
  return { "OK", first }
end

-- Acknowledges everything up to the position `acked`. Then returns up to `limit` messages after the position `after`,
-- or after the cursor if that is ""; with `limit` 0 it only acknowledges. A position that the log does not have,
-- because it began again, is ignored and reported.
--
--   address, wait_ms  if there is no message, the address is registered for `wait_ms`, and notified of the next one
--   watch             1: if there is no message, the next sender is asked to notify the reader's member (`watching`)
--
-- With a `wait_ms` of 0, the address is removed from those that wait.
--
-- Returns { "OK", top, first, cursor, number after which it read, 1 if the log began again, 1 if there is more to trim,
-- how many are left to wake, { reader to notify, … }, unread, number, ms, by, body, note, … }, or { "GONE" | "VANISHED"
-- | "NOT_A_MEMBER" | "MANY" }.
--- keys: base state
--- args: given: int, member: str, device: str, acked: str, after: str, limit: int, room: int, address: str
--- args: wait_ms: int, watch: int
--- flags: allow-oom
--- frame: log
function script.pull(base, state, given, member, device, acked, after, limit, room, address, wait_ms, watch)
  if not l then
    log.wake_changed()
    log.await_message(address, member == "" and wait_ms or 0)
    return log.refuse_gone()
  end
  local name, cursor, devices = log.reader(l, member, device)
  if not cursor then return log.refuse() end
  if devices and #devices > log.MAX_DEVICES then return { "MANY" } end
  local acked_number, position = log.locate(l, acked), log.locate(l, after)
  if l.is_lost then return { "VANISHED", "log" } end
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
  log.deliver(l, math.max(position, l.first - 1), limit, room, answer)
  if l.is_lost then return { "VANISHED", "log" } end
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
--- frame: log
function script.trim(base, state, given)
  return { "OK", l and log.trim(l, clock.now(given)) or 0 }
end

-- Replaces the limits, unless `messages` is -1, and those of the history, unless `history_messages` is. `create` 1:
-- creates a log that does not exist, with the reader "". Returns { "OK", 1 if there is more to trim } or { "GONE" }.
--- keys: base state
--- args: given: int, create: int, messages: int, bytes: int, age_ms: int, refuse: int, history_messages: int
--- args: history_ms: int
--- frame: log
function script.limit(base, state, given, create, messages, bytes, age_ms, refuse, history_messages, history_ms)
  if not l then
    local gone = log.refuse_gone()
    if create == 0 or gone[1] == "VANISHED" then return gone end
    l = log.create({ 0, 0, 0, 0, 0, 0 }, false)
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
--- frame: once
function script.delete(base, state, caller, number)
  local exists = l or log.refuse_gone()[1] == "VANISHED"
  local left = exists and log.delete(l) or 0
  return { "OK", exists and 1 or 0, left }
end
