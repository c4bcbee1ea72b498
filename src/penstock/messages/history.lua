-- The history of a log: messages that are kept although every reader has acknowledged them. Also pages of messages, and
-- messages whose bodies were removed because they were redacted or edited.
--
--   removed  ZSET  "<number> <server ms> <end> <number of the event with the body, or 0> <bytes of the sender>:<sender>
--                  <note>" -> number; for each message that was taken out of the stream but not freed
--
--            redact, edit                 free
--   in the stream ───────────▶ removed ──────────▶ (none)
--
-- A message keeps its number, its time and its sender. `redact` and `edit` also post an event, a message with the field
-- `event`: "redact" or "edit", and the position of the message that it is about. A message that was edited is read with
-- the body of its last event.

_history = { SLICE = 1000, STEPS = 20 }

-- Returns the number up to which the history needs no messages, and 1 if a later call may return a higher number. Looks
-- no further than `upto`.
--- (l: table, now: int, upto: int) -> int, int
--- uses: base
--- seldom
function history.floor(l, now, upto)
  if l.history_messages > 0 then upto = math.min(upto, events.floor(l, l.history_messages)) end
  if l.history_age == 0 or upto < l.first then return upto, 0 end
  local to = l.first - 1
  while to < upto and to < l.first + _history.SLICE do
    local some = redis.call("XRANGE", base .. "log", to + 1, upto, "COUNT", 10)
    for i = 1, #some do
      local number, at = string.match(some[i][1], "^(%d+)-(%d+)$")
      if tonumber(at) > now - l.history_age then return to, 0 end
      to = tonumber(number)
    end
    if #some < 10 then return upto, 0 end
  end
  return math.min(to, upto), to < upto and 1 or 0
end

-- Returns the bytes up to the end of a message, which must be stored, or be the last that was freed.
--- (l: table, number: int) -> int
function history.ended(l, number)
  if number < l.first then return l.begun end
  local entry = log.entry(l, number)
  return entry and tonumber(log.field(entry, "end")) or 0
end

-- Frees messages that are kept only as history, because a post needs the space: at least `messages` and `bytes`.
-- Returns whether another call may free what is still missing.
--- (l: table, messages: int, bytes: int) -> bool
--- uses: base state
--- seldom
function history.make_space(l, messages, bytes)
  local low = redis.call("ZRANGE", base .. "readers", 0, 0, "WITHSCORES")
  local most, enough = log.present_cursor(l, tonumber(low[2]) or 0), l.begun + bytes
  local to = math.min(most, l.first - 1 + messages)
  if to >= l.first then log.free(l, to) end
  for _ = 1, _history.STEPS do
    if l.begun >= enough or l.first > most then return false end
    log.free(l, math.min(most, l.first + 9))
  end
  return l.begun < enough and l.first <= most
end

-- Returns a message whose body was removed, as an entry of the stream with the field `note`; or nil.
--- (l: table, number: int) -> table | nil
--- seldom
function log.missing(l, number)
  if not l.has_removed then return nil end
  local row = redis.call("ZRANGE", l.base .. "removed", number, number, "BYSCORE")[1]
  if not row then return nil end
  local at, ended, event, size, rest = string.match(row, "^%d+ (%d+) (%d+) (%d+) (%d+):(.*)$")
  local body = ""
  if event ~= "0" then
    local found = redis.call("XRANGE", l.stream, event, event, "COUNT", 1)[1]
    body = found and log.field(found, "body") or ""
  end
  local fields = { "by", string.sub(rest, 1, size), "end", ended, "body", body, "note", string.sub(rest, size + 2) }
  return { string.format("%d-%s", number, at), fields }
end

-- Removes the body of a message that is in the stream, or that was edited before. `event`: the number of the event with
-- its new body, or 0. The caller must call `log.save` afterwards.
--- (l: table, entry: table, event: int, note: str)
--- uses: base
function history.remove_body(l, entry, event, note)
  local number, at = string.match(entry[1], "^(%d+)-(%d+)$")
  local by = log.field(entry, "by")
  redis.call("XDEL", base .. "log", entry[1])
  redis.call("ZREMRANGEBYSCORE", base .. "removed", number, number)
  local head = string.format("%s %s %s %d %d:", number, at, log.field(entry, "end"), event, #by)
  redis.call("ZADD", base .. "removed", number, head .. by .. " " .. note)
  l.has_removed = true
end

-- Removes the body of a message, or replaces it, and posts an event about that. `kind`: "redact" or "edit".
-- Returns { "OK", position of the event, how many are left to wake, { reader to notify, … } }; { "RESTARTED" } if the
-- log began again since; { "EVENT" } if this is an event; { "REDACTED" } if the message was redacted and cannot be
-- edited; { "EVENTS" } if there are too many events for one more edit; or { "GONE" | "VANISHED" | "NOT_A_MEMBER" }. A
-- message that was redacted is not redacted again: the position is that of the earlier event.
--- keys: base state
--- args: caller: str, number: int, given: int, by: str, position: str, kind: str, body: str
--- flags: allow-oom
--- frame: once
function script.change(base, state, caller, number, given, by, position, kind, body)
  if not l then return log.refuse_gone() end
  if not log.is_member(by) then return log.refuse_sender() end
  local target = log.locate(l, position)
  local entry = target and target >= l.first and log.entry(l, target)
  if l.is_lost then return { "VANISHED", "log" } end
  if not target then return { "RESTARTED" } end
  local note = entry and entry[2][7] == "note" and entry[2][8] or ""
  if entry and (entry[2][7] == "event" or string.find(note, "^edit ")) then return { "EVENT" } end
  local earlier = string.match(note, "^redacted (.*)$")
  if earlier and kind == "redact" then return idempotency.keep(caller, number, { "OK", earlier, 0, {} }) end
  if earlier then return { "REDACTED" } end
  local drops = l.messages > 0 and not l.refuse
  if kind == "edit" and not drops and events.overflow(l) >= l.first then return { "EVENTS" } end
  local now = clock.now(given)
  local event = log.append(l, now, by, body, "event", kind .. " " .. position)
  if not event then return { "VANISHED", "log" } end
  if entry then
    local before = string.match(note, "^edited (.*)$")
    local edit = before and log.entry(l, tonumber(string.match(before, "^%d+")))
    if edit then history.remove_body(l, edit, 0, edit[2][8]) end
    if kind == "edit" then
      history.remove_body(l, entry, l.top, "edited " .. event)
    else
      history.remove_body(l, entry, 0, "redacted " .. event)
    end
  end
  events.add(l)
  l.entry_number = nil
  log.save(l, now)
  local left, to_notify = log.report(l, now)
  return { "OK", event, left, to_notify }
end

-- Returns a page of messages in ascending order, without moving a cursor: the last ones before the position `before`,
-- or the first ones after `after`; with neither, the last messages of the log. Returns { "OK", 1 if the log began again
-- since the position, so that it was ignored; number before the first message, number, ms, by, body, note, … } or
-- { "GONE" | "VANISHED" | "NOT_A_MEMBER" }.
--- keys: base state
--- args: given: int, member: str, before: str, after: str, limit: int, room: int
--- flags: no-writes
--- frame: log
function script.page(base, state, given, member, before, after, limit, room)
  if not l then return log.refuse_gone() end
  if not log.is_member(member) then return log.refuse_sender() end
  local low, high = log.locate(l, after), log.locate(l, before)
  if l.is_lost then return { "VANISHED", "log" } end
  l.now = clock.now(given)
  local restarted = low and high and 0 or 1
  if after ~= "" then
    low = math.max(low or 0, l.first - 1)
    local answer = { "OK", restarted, low }
    log.deliver(l, low, limit, room, answer)
    if l.is_lost then return { "VANISHED", "log" } end
    return answer
  end
  if not high or before == "" then high = l.top + 1 end
  -- Numbers have no gaps, so the page begins at this one, unless it takes more than `room`.
  local from, to = math.max(l.first, high - limit), high - 1
  local last = history.ended(l, to)
  if from < to and last - history.ended(l, from - 1) <= room then to = from end
  while from < to and not l.is_lost do -- the first number from which on all fit
    local middle = math.floor((from + to) / 2)
    if last - history.ended(l, middle - 1) <= room then to = middle else from = middle + 1 end
  end
  if l.is_lost then return { "VANISHED", "log" } end
  local answer = { "OK", restarted, from - 1 }
  log.deliver(l, from - 1, high - from, math.huge, answer)
  if l.is_lost then return { "VANISHED", "log" } end
  return answer
end
