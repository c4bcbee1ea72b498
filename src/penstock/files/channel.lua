-- A channel of files: a log (log.lua) of records, and the keys of senders, receivers and aggregates beside it.
--
--   state        HASH    as in log.lua, and: end: number of the CLOSE; peak: the most bytes ever held; patience: ms after which
--                        a receiver that was not heard of is passed over where space is needed; counted: 1 if there are
--                        counts; counts:<r>: 1 if receiver r has counts
--   log          STREAM  by: kind (B begin, D data, E end, A abort, C close) and file; body: see files/records.py
--   readers, …           as in log.lua: a reader is a receiver
--   owners       HASH    receiver -> lease end, turn, 1 if new, token: the process that receives alone; others wait
--   marks        HASH    receiver -> its state (files/download.py), written in the step that moves its cursor
--   sources      HASH    path of an upload in progress -> { token, file, state, "" }
--                        inode of a file that was sent -> { "", "", state, outcome }: see SourceEntry in files/bindings.py
--   sent_at      ZSET    inode of a file that was sent -> ms; the last 10,000
--   vanished     ZSET    receiver that was passed over -> its cursor
--   finished     ZSET    receiver that has received everything up to the CLOSE -> ms
--   totals:<r>   HASH    lines, rejected; table:<t>: 1 for each table; of the aggregate that receives as r
--   counts:<r>:<t> ZSET  key -> count
--   rejected:<r> LIST    the first thousand rejected lines
--
--   send            put (BEGIN … END), …            close           the last receiver has acknowledged it
--   (none) ──────▶ open ──────────────────────────────────▶ closed ────────────────────────────────▶ over
--                   ▲                                                                                   │ open, for a file
--                   └───────────────────────────────────────────────────────────────────────────────────┘ not sent before
--
-- The keys of a channel that is over are kept for a day, so that a process which died before can still learn of the end. With
-- counts they are kept until the channel is deleted.
--
-- Refusals are those of log.lua and: "CLOSED", "ENDED" (nothing more for this receiver), "HELD" (another process receives),
-- "SHARED" (several processes share the receiver), "TAKEN" (another process sends this file).

-- The cursor of a receiver; or nil and the reason: "STRANGER", "ENDED" or "LATE". A receiver that was passed over is a reader again,
-- and finds a gap. "LATE": it was passed over, and the channel is over by now; the third value is the cursor that it had.
--- (l: table, who: str) -> int | nil, str, int | nil
--- uses: base state
function channel.reader(l, who)
  local cursor = redis.call("ZSCORE", base .. "readers", who)
  if cursor then return tonumber(cursor) end
  cursor = redis.call("ZSCORE", base .. "vanished", who)
  if cursor and channel.ended() > 0 and l.first > l.top then return nil, "LATE", tonumber(cursor) end
  if cursor then
    redis.call("ZREM", base .. "vanished", who)
    redis.call("ZADD", base .. "readers", cursor, who)
    return tonumber(cursor)
  end
  return nil, redis.call("ZSCORE", base .. "finished", who) and "ENDED" or "STRANGER"
end

-- The reply to a receiver without a cursor.
--- (why: str) -> table
--- uses: base
function channel.none(why)
  if why == "ENDED" then log.rouse("waiting", "+inf") end
  return { why }
end

--- (who: str, cursor: int, now: int)
--- uses: base
function channel.join(who, cursor, now)
  if redis.call("ZSCORE", base .. "readers", who) or redis.call("ZSCORE", base .. "vanished", who) then return end
  redis.call("ZREM", base .. "finished", who)
  redis.call("HDEL", base .. "marks", who)
  redis.call("ZADD", base .. "readers", cursor, who)
  redis.call("HSET", base .. "seen", who, string.format("%d", now))
end

--- (who: str)
--- uses: base
function channel.part(who)
  log.remove(who)
  redis.call("HDEL", base .. "owners", who)
  redis.call("HDEL", base .. "marks", who)
  redis.call("ZREM", base .. "vanished", who)
end

-- The number of the CLOSE, or 0.
--- () -> int
--- uses: state
function channel.ended()
  return tonumber(redis.call("HGET", state, "end") or 0)
end

-- This receiver has received everything.
--- (l: table, who: str, now: int)
--- uses: base state
function channel.over(l, who, now)
  channel.part(who)
  redis.call("ZADD", base .. "finished", now, who)
  log.rouse("waiting", "+inf")
  if redis.call("EXISTS", base .. "readers") == 0 then channel.finish(l) end
end

-- Every receiver has received everything: free the records and the keys that only transfers need.
--- (l: table)
--- uses: base state
function channel.finish(l)
  log.rouse("waiting", "+inf")
  log.free_claims()
  redis.call("UNLINK", base .. "log", base .. "ends", base .. "readers", base .. "seen", base .. "next", base .. "wanting")
  l.begun, l.first = l.ended, l.top + 1
  redis.call("HSET", state, "first", l.first, "begun", l.begun)
  if redis.call("HGET", state, "counted") then return end
  for _, key in ipairs(channel.outlasting()) do redis.call("PEXPIRE", key, 86400000) end
end

-- The keys that are kept for a day when the channel is over. Some belong to receivers that were passed over.
--- () -> table
--- uses: base state
function channel.outlasting()
  local keys = { state }
  for _, name in ipairs({ "sources", "sent_at", "finished", "vanished", "owners", "marks" }) do keys[#keys + 1] = base .. name end
  return keys
end

-- Open a channel that is over; numbers continue.
--- uses: base state
function channel.reopen()
  redis.call("HDEL", state, "end")
  redis.call("UNLINK", base .. "finished")
  for _, key in ipairs(channel.outlasting()) do redis.call("PERSIST", key) end
end

--- () -> bool
--- uses: base
function channel.has_receivers()
  return redis.call("EXISTS", base .. "readers", base .. "vanished") > 0
end

-- A receiver was removed: free records that only it had not acknowledged. Returns 1 if there is more to trim.
--- (l: table, now: int) -> int
--- uses: base state
function channel.free(l, now)
  if redis.call("EXISTS", base .. "readers") == 1 then return log.trim(l, now) end
  log.cut(l, l.top)
  return 0
end

-- Move the cursor of a receiver. Returns 1 if there is more to trim, and whether it has received everything.
--- (l: table, who: str, cursor: int, acked: int, now: int) -> int, bool
--- uses: base state
function channel.acknowledge(l, who, cursor, acked, now)
  if acked > cursor then
    redis.call("ZADD", base .. "readers", acked, who)
    local last = channel.ended()
    if last > 0 and acked >= last then
      channel.over(l, who, now)
      return 0, true
    end
  end
  return log.trim(l, now), false
end

-- Count records that were dropped as received.
--- (l: table, who: str)
--- uses: base
function channel.skip(l, who)
  redis.call("ZADD", base .. "readers", l.first - 1, who)
  shared_reader.pass_over(who, l.first - 1)
end

-- Make space of `size` bytes: trim records that another process left untrimmed, then pass over receivers that hold the space
-- and were not heard of for longer than the patience, counted from when there was something for them to receive. Returns the ms
-- after which the next one will be passed over, or -1.
--- (l: table, now: int, size: int) -> int
--- uses: base state
function channel.pass_over(l, now, size)
  if log.trim(l, now) == 1 or l.ended - l.begun + size <= l.bytes then return 0 end
  local patience = tonumber(redis.call("HGET", state, "patience") or 0)
  for _ = 1, 10 do
    local low = redis.call("ZRANGE", base .. "readers", 0, 0, "WITHSCORES")
    if low[1] then
      local unread = redis.call("XRANGE", base .. "log", low[2] + 1, "+", "COUNT", 1)[1]
      if patience == 0 or not unread then return -1 end
      local seen = tonumber(redis.call("HGET", base .. "seen", low[1]) or 0)
      local till = math.max(seen, tonumber(string.match(unread[1], "%d+$"))) + patience
      if till > now then return till - now end
      redis.call("ZREM", base .. "readers", low[1])
      redis.call("ZADD", base .. "vanished", low[2], low[1])
    end
    if channel.free(l, now) == 1 or l.ended - l.begun + size <= l.bytes then return 0 end
  end
  return 0
end

--- (l: table, now: int, by: str, body: str)
--- uses: base
function channel.append(l, now, by, body)
  log.append(l, now, by, "", body)
  redis.call("RPUSH", base .. "ends", l.ended)
end

-- Open a channel for these receivers; new ones begin at its end. `limit`, `patience`: 0 leaves them unchanged; patience -1: none.
-- { "OK" }, { "CLOSED", number of receivers that have not received everything } or { "STRANGER" } if there is no receiver at all
--- keys: base state
--- args: caller: str, number: int, given: int, limit: int, patience: int, receivers: *
function script.open(base, state, caller, number, given, limit, patience, receivers, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local closed = l and channel.ended() > 0
  local left = closed and redis.call("ZCARD", base .. "readers") or 0
  if left > 0 then return { "CLOSED", left } end
  if #ARGV < receivers and not (l and channel.has_receivers()) then return { "STRANGER" } end
  local now = clock.now(given)
  if closed then channel.reopen() end
  if not l then
    log.make(0, limit > 0 and limit or 67108864, 0, 1)
    fault, l = log.open()
  elseif limit > 0 then
    log.keep(0, limit, 0, 1)
  end
  log.rouse("wanting", "+inf")
  if patience > 0 then redis.call("HSET", state, "patience", patience) elseif patience < 0 then redis.call("HDEL", state, "patience") end
  for i = receivers, #ARGV do channel.join(ARGV[i], l.top, now) end
  return idempotency.keep(caller, number, { "OK" })
end

-- Close the channel: it takes no more records. { "OK", 1 if it was open } or { "GONE" }
--- keys: base state
--- args: caller: str, number: int, given: int
--- flags: allow-oom
function script.close(base, state, caller, number, given)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.ended() > 0 then return { "OK", 0 } end
  local now = clock.now(given)
  channel.append(l, now, "C", "")
  log.appended(l, now, false)
  redis.call("HSET", state, "end", l.top)
  log.rouse("wanting", "+inf")
  if redis.call("EXISTS", base .. "readers") == 0 then channel.finish(l) else log.ring(l, now) end
  return idempotency.keep(caller, number, { "OK", 1 })
end

-- Add a receiver of files that begin from now on. { "OK", 1 if it is new } or { "GONE" | "CLOSED" }
--- keys: base state
--- args: caller: str, number: int, given: int, who: str
--- flags: allow-oom
function script.join_channel(base, state, caller, number, given, who)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.reader(l, who) then return { "OK", 0 } end
  if channel.ended() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  channel.join(who, l.top, clock.now(given))
  return idempotency.keep(caller, number, { "OK", 1 })
end

-- Remove a receiver: nothing is kept for it. { "OK", 1 if it was one, 1 if there is more to trim }
--- keys: base state
--- args: caller: str, number: int, given: int, who: str
--- flags: allow-oom
function script.part(base, state, caller, number, given, who)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local now, cursor, why = clock.now(given), nil, "GONE"
  if l then cursor, why = channel.reader(l, who) end
  if not cursor and why ~= "LATE" then return { "OK", 0, 0 } end
  local more = 0
  if channel.ended() > 0 then
    channel.over(l, who, now)
  else
    channel.part(who)
    more = channel.free(l, now)
  end
  return idempotency.keep(caller, number, { "OK", 1, more })
end

-- The size of a channel, its settings, and its receivers. The cursor of a receiver that has received everything is -1, of one
-- that was passed over -2 - cursor.
-- { "OK", now, top, first, bytes, limit, peak, patience or 0, number of the CLOSE or 0, uploads in progress, { receiver, cursor,
-- seen, owner or "", … } } or { "GONE" }
--- keys: base state
--- args: given: int
--- flags: no-writes
function script.channel(base, state, given)
  local fault, l = log.open()
  if fault then return fault end
  if not l then return { "GONE" } end
  local rows = {}
  local function add(name, cursor)
    rows[#rows + 1] = name
    rows[#rows + 1] = cursor
    rows[#rows + 1] = tonumber(redis.call("HGET", base .. "seen", name) or 0)
    rows[#rows + 1] = redis.call("HGET", base .. "owners", name) or ""
  end
  local function list(key, place)
    local found = redis.call("ZRANGE", base .. key, 0, 999, "WITHSCORES")
    for i = 1, #found, 2 do add(found[i], place(tonumber(found[i + 1]))) end
  end
  list("readers", function(cursor) return cursor end)
  list("vanished", function(cursor) return -2 - cursor end)
  list("finished", function() return -1 end)
  local s = redis.call("HMGET", state, "peak", "patience")
  local sending = redis.call("HLEN", base .. "sources") - redis.call("ZCARD", base .. "sent_at")
  return {
    "OK", clock.now(given), l.top, l.first, l.ended - l.begun, l.bytes, tonumber(s[1] or 0), tonumber(s[2] or 0),
    channel.ended(), sending, rows,
  }
end

-- Delete the channel and its counts. { "OK", 1 if there was one }
--- keys: base state
--- args: caller: str, number: int
--- flags: allow-oom
function script.delete_channel(base, state, caller, number)
  local fault, l = log.open()
  if fault then return fault end
  local past = idempotency.replay(caller, number)
  if past then return past end
  if not l then return idempotency.keep(caller, number, { "OK", 0 }) end
  for _, field in ipairs(redis.call("HKEYS", state)) do
    local who = string.match(field, "^counts:(.*)$")
    if who then channel.forget_counts(who) end
  end
  log.free()
  redis.call("UNLINK", unpack(channel.outlasting()))
  return idempotency.keep(caller, number, { "OK", 1 })
end
