-- A channel of files: a log (log.lua) whose messages are records, such as one block of a file, and whose readers are
-- receivers. Senders, receivers and aggregates add further keys. upload.lua has the scripts of senders,
-- download.lua those of receivers, counts.lua those of aggregates.
--
--   state        HASH    the fields of log.lua, and
--                          end         number of the CLOSE record, once the channel is closed
--                          peak        the most bytes that the channel ever held
--                          patience    ms after which a receiver that is away is passed over when space is needed:
--                                      the records that it has not received are freed. Missing: never
--                          counted     1 if there are counts of an aggregate
--                          counts:<r>  1 if there are counts of the aggregate that receives as r
--   log          STREAM  by: the record's kind (see `kind` below), then its upload id; body: see records.py
--   owners       HASH    receiver -> "<ends at> <call> <fresh> <token>" of the process that receives alone: the server
--                        ms at which its lease ends, the number of its last call, 1 if that call made it the owner
--   marks        HASH    receiver -> its state in files that have begun (`ReceiverState` in download.py), as of its
--                        cursor
--   entries      HASH    id -> the facts about a file, see `SourceEntry` in bindings.py:
--                          of an upload in progress     { token, upload id, upload state, "", { name, … } }
--                          of a file that was sent      { "", "", upload state, outcome, { name, … } }
--   sources      HASH    name of such a file -> id of its entry; or for a name that several files may share (see
--                        `SourceNames` in recognition.py), a list of ids
--   sent_at      ZSET    id of the entry of a file that was sent -> server ms; the last 100,000
--   vanished     ZSET    receiver that was passed over -> its cursor
--   finished     ZSET    receiver that has received everything up to the CLOSE record -> server ms
--   dead_files: see dead_files.lua
--   totals:<r>, counts:<r>:<t>, rejected:<r>, …: see counts.lua · the other keys: see log.lua
--
--   open            put (BEGIN … END), …            close           the last receiver has acknowledged it
--   (none) ──────▶ open ──────────────────────────────────▶ closed ──────────────────────────────▶ finished
--                   ▲                          open: to send a file that was not sent before           │
--                   └──────────────────────────────────────────────────────────────────────────────────┘
--
-- A finished channel is kept for a day, so that a process that died in the meantime learns that it is finished; with
-- counts it is kept until it is deleted, and with dead files until somebody has decided about them.
--
-- Refusals are those of log.lua, and: CLOSED (the channel is closed), ENDED (the receiver has received everything),
-- HELD (another process owns the receiver), TAKEN (another process sends or has sent this file).

kind = { BEGIN = "B", DATA = "D", END = "E", ABORT = "A", CLOSE = "C" }

_kept = { MS = 86400000, LIMIT = 67108864 } -- a day; the limit of bytes if none is given

-- Returns the cursor of a receiver. A receiver that was passed over is registered again, and finds a gap.
--
-- If there is no cursor, returns nil and the reason: ENDED, NOT_A_MEMBER, or LATE if the receiver was passed over and
-- the channel has since been closed and has freed everything. With LATE, the third value is the cursor that it had. If
-- the channel began again below the cursor, `l.restarted` is set (see `log.present_cursor`).
--- (l: table, receiver: str) -> int | nil, str, int | nil
--- uses: base state
function channel.cursor(l, receiver)
  local cursor = redis.call("ZSCORE", base .. "readers", receiver)
  if cursor then
    cursor, l.restarted = log.present_cursor(l, tonumber(cursor))
    return cursor
  end
  cursor = redis.call("ZSCORE", base .. "vanished", receiver)
  if cursor and channel.close_number() > 0 and l.first > l.top then return nil, "LATE", tonumber(cursor) end
  if cursor then
    redis.call("ZREM", base .. "vanished", receiver)
    redis.call("ZADD", base .. "readers", cursor, receiver)
    cursor, l.restarted = log.present_cursor(l, tonumber(cursor))
    return cursor
  end
  return nil, redis.call("ZSCORE", base .. "finished", receiver) and "ENDED" or "NOT_A_MEMBER"
end

-- Returns the refusal of a receiver without a cursor. `why`: ENDED or NOT_A_MEMBER. Wakes the next slice of those that
-- wait, because they may wait for this receiver.
--- (why: str) -> table
--- uses: base
function channel.refuse(why)
  log.wake_changed()
  return { why }
end

-- Adds a receiver that receives everything after `cursor`, unless there is one of this name already.
--- (receiver: str, cursor: int, now: int)
--- uses: base
function channel.add_receiver(receiver, cursor, now)
  local known = redis.call("ZSCORE", base .. "readers", receiver) or redis.call("ZSCORE", base .. "vanished", receiver)
  if known then return end
  redis.call("ZREM", base .. "finished", receiver)
  redis.call("HDEL", base .. "marks", receiver)
  redis.call("ZADD", base .. "readers", cursor, receiver)
  redis.call("HSET", base .. "seen", receiver, string.format("%d", now))
end

--- (receiver: str)
--- uses: base
function channel.remove_receiver(receiver)
  log.remove_reader(receiver)
  redis.call("HDEL", base .. "owners", receiver)
  redis.call("HDEL", base .. "marks", receiver)
  redis.call("ZREM", base .. "vanished", receiver)
end

-- Returns the number of the CLOSE record, or 0 if the channel is open.
--- () -> int
--- uses: state
function channel.close_number()
  return tonumber(redis.call("HGET", state, "end") or 0)
end

-- Marks a receiver of a closed channel as finished: it has received everything. The last one finishes the channel.
-- Wakes a slice of those that wait. Returns how many are left.
--- (l: table, receiver: str, now: int) -> int
--- uses: base state
function channel.finish_receiver(l, receiver, now)
  channel.remove_receiver(receiver)
  redis.call("ZADD", base .. "finished", now, receiver)
  if redis.call("EXISTS", base .. "readers") == 0 then return channel.finish(l) end
  return log.report_change()
end

-- Marks a channel as finished: frees its records, and the keys that are needed only while records arrive. Wakes a slice
-- of those that wait. Returns how many are left.
--- (l: table) -> int
--- uses: base state
function channel.finish(l)
  log.free_claims()
  local left = log.report_change() + log.dismiss_senders()
  redis.call("UNLINK", base .. "log", base .. "ends", base .. "readers", base .. "seen", base .. "next")
  l.begun, l.first = l.ended, l.top + 1
  log.store(l)
  channel.expire()
  return left
end

-- Sets the TTL of a finished channel, unless it has counts or dead files.
--- ()
--- uses: base state
function channel.expire()
  if redis.call("HGET", state, "counted") or redis.call("EXISTS", base .. "dead_files") == 1 then return end
  for _, key in ipairs(channel.kept_keys()) do redis.call("PEXPIRE", key, _kept.MS) end
end

-- Returns the keys that a finished channel keeps. `vanished`, `owners` and `marks` are there only if a receiver was
-- passed over.
--- () -> table
--- uses: base state
function channel.kept_keys()
  local keys = { state }
  for _, name in ipairs({ "entries", "sources", "sent_at", "finished", "vanished", "owners", "marks" }) do
    keys[#keys + 1] = base .. name
  end
  return keys
end

-- Opens a finished channel again. Its record numbers continue.
--- uses: base state
function channel.reopen()
  redis.call("HDEL", state, "end")
  redis.call("UNLINK", base .. "finished")
  for _, key in ipairs(channel.kept_keys()) do redis.call("PERSIST", key) end
end

--- () -> bool
--- uses: base
function channel.has_receivers()
  return redis.call("EXISTS", base .. "readers", base .. "vanished") > 0
end

-- Frees the records that were kept only for a receiver that was just removed. Returns 1 if there is more to trim.
--- (l: table, now: int) -> int
--- uses: base state
function channel.trim(l, now)
  if redis.call("EXISTS", base .. "readers") == 1 then return log.trim(l, now) end
  log.free(l, l.top)
  return 0
end

-- Moves the cursor of a receiver up to `acked`. Returns 1 if there is more to trim, and whether the receiver has
-- received everything of a closed channel.
--- (l: table, receiver: str, cursor: int, acked: int, now: int) -> int, bool
--- uses: base state
function channel.acknowledge(l, receiver, cursor, acked, now)
  if acked > cursor then
    redis.call("ZADD", base .. "readers", acked, receiver)
    local last = channel.close_number()
    if last > 0 and acked >= last then
      channel.finish_receiver(l, receiver, now)
      return 0, true
    end
  end
  return log.trim(l, now), false
end

-- Creates a channel, or opens a finished one again, and adds receivers; a new one receives what is sent from now on.
-- `limit`, `patience`: 0 leaves them unchanged; a patience of -1 removes it. Returns { "OK" }; { "CLOSED", number of
-- receivers that have not received everything } if the channel is closed and not finished; or { "NOT_A_MEMBER" } if
-- there would be no receiver.
--- keys: base state
--- args: caller: str, number: int, given: int, limit: int, patience: int, receivers: *
--- frame: once
function script.open(base, state, caller, number, given, limit, patience, receivers, ...)
  local closed = l and channel.close_number() > 0
  local left = closed and redis.call("ZCARD", base .. "readers") or 0
  if left > 0 then return { "CLOSED", left } end
  if #ARGV < receivers and not (l and channel.has_receivers()) then return { "NOT_A_MEMBER" } end
  local now = clock.now(given)
  if closed then channel.reopen() end
  if not l then
    l = log.create({ 0, limit > 0 and limit or _kept.LIMIT, 0, 1, 0, 0 }, true)
  elseif limit > 0 then
    log.set_limits(l, { 0, limit, 0, 1, 0, 0 })
    log.store(l)
  end
  log.wake_senders(l)
  if patience > 0 then
    redis.call("HSET", state, "patience", patience)
  elseif patience < 0 then
    redis.call("HDEL", state, "patience")
  end
  for i = receivers, #ARGV do channel.add_receiver(ARGV[i], l.top, now) end
  return { "OK" }
end

-- Closes the channel: appends the CLOSE record, after which nothing can be sent. Returns { "OK", 1 if it was open, how
-- many of those that wait are left to wake } or { "GONE" }.
--- keys: base state
--- args: caller: str, number: int, given: int
--- flags: allow-oom
--- frame: once
function script.close(base, state, caller, number, given)
  if not l then return { "GONE" } end
  if channel.close_number() > 0 then return { "OK", 0, 0 } end
  local now, left = clock.now(given)
  if not log.append(l, now, kind.CLOSE, "") then return { "VANISHED", "log" } end
  log.save(l, now)
  redis.call("HSET", state, "end", l.top)
  if redis.call("EXISTS", base .. "readers") == 0 then
    left = channel.finish(l)
  else
    left = log.report(l, now) + log.dismiss_senders()
  end
  return { "OK", 1, left }
end

-- Adds a receiver of what is sent from now on. Returns { "OK", 1 if it is new }, { "GONE" }, or { "CLOSED", number of
-- receivers that have not received everything }.
--- keys: base state
--- args: caller: str, number: int, given: int, receiver: str
--- flags: allow-oom
--- frame: once
function script.add_receiver(base, state, caller, number, given, receiver)
  if not l then return { "GONE" } end
  if channel.cursor(l, receiver) then return { "OK", 0 } end
  if channel.close_number() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  channel.add_receiver(receiver, l.top, clock.now(given))
  return { "OK", 1 }
end

-- Removes a receiver: nothing is kept for it. Wakes those that wait, because some of them may wait for it. Returns
-- { "OK", 1 if it was one, 1 if there is more to trim, how many of those that wait are left to wake }.
--- keys: base state
--- args: caller: str, number: int, given: int, receiver: str
--- flags: allow-oom
--- frame: once
function script.remove_receiver(base, state, caller, number, given, receiver)
  local now, cursor, why = clock.now(given), nil, "GONE"
  if l then cursor, why = channel.cursor(l, receiver) end
  dead_files.forget(receiver)
  if not cursor and why ~= "LATE" then return { "OK", 0, 0, 0 } end
  local more, left = 0
  if channel.close_number() > 0 then
    left = channel.finish_receiver(l, receiver, now)
  else
    channel.remove_receiver(receiver)
    more, left = channel.trim(l, now), log.report_change()
  end
  return { "OK", 1, more, left }
end

-- Returns { "OK", now, top, first, bytes, limit, peak, patience or 0, number of the CLOSE record or 0, number of
-- uploads in progress, { receiver, cursor, seen, owner or "", number of dead batches, of dead files, state, … } } or
-- { "GONE" }. A receiver that has received everything has the cursor -1; one that was passed over, -2 minus its cursor.
--- keys: base state
--- args: given: int
--- flags: no-writes
--- frame: log
function script.info(base, state, given)
  if not l then return { "GONE" } end
  local rows, dead = {}, dead_files.counts()
  local function add(name, cursor)
    rows[#rows + 1] = name
    rows[#rows + 1] = cursor
    rows[#rows + 1] = tonumber(redis.call("HGET", base .. "seen", name) or 0)
    rows[#rows + 1] = redis.call("HGET", base .. "owners", name) or ""
    rows[#rows + 1] = redis.call("HLEN", base .. "uncounted:" .. name)
    rows[#rows + 1] = dead[name] or 0
    rows[#rows + 1] = redis.call("HGET", base .. "marks", name) or ""
  end
  local function add_all(key, cursor_of)
    local found = redis.call("ZRANGE", base .. key, 0, 999, "WITHSCORES")
    for i = 1, #found, 2 do add(found[i], cursor_of(tonumber(found[i + 1]))) end
  end
  add_all("readers", function(cursor) return cursor end)
  add_all("vanished", function(cursor) return -2 - cursor end)
  add_all("finished", function() return -1 end)
  local peak, patience = redis.call("HGET", state, "peak"), redis.call("HGET", state, "patience")
  local sending = redis.call("HLEN", base .. "entries") - redis.call("ZCARD", base .. "sent_at")
  return {
    "OK", clock.now(given), l.top, l.first, l.ended - l.begun, l.bytes,
    math.max(tonumber(peak or 0), l.ended - l.begun), tonumber(patience or 0), channel.close_number(), sending, rows,
  }
end

-- Deletes the channel with its counts. Returns { "OK", 1 if there was one, how many of those that wait are left to wake
-- }.
--- keys: base state
--- args: caller: str, number: int
--- flags: allow-oom
--- frame: once
function script.delete_channel(base, state, caller, number)
  if not l then return idempotency.keep(caller, number, { "OK", 0, 0 }) end
  for _, field in ipairs(redis.call("HKEYS", state)) do
    local receiver = string.match(field, "^counts:(.*)$")
    if receiver then counts.delete(receiver) end
  end
  local left = log.delete(l)
  redis.call("UNLINK", base .. "dead_files", unpack(channel.kept_keys()))
  return { "OK", 1, left }
end
