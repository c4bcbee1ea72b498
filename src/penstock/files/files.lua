-- A channel of files: a log (log.lua) of what is sent, and what sender, receivers and aggregates note beside it.
--
--   state        HASH    as in log.lua, and: end: number of the CLOSE; peak: most bytes there ever were; patience: ms after
--                        which a receiver that was not seen is passed over where space is wanted; counted: 1 if anybody counts; counts:<r>: 1 if r does
--   log          STREAM  by: kind and file (B begin, D data, E end, A aborted, C closed), body: see components/blocks.py
--   readers, …           as in log.lua: a reader is a receiver
--   owners       HASH    receiver -> till, turn, 1 if fresh, token: the process that receives, the others stand by
--   marks        HASH    receiver -> where it is in the files it has begun; written in the step that moves its cursor
--   sources      HASH    path of a file on its way -> { token, file, mark, "" }; place (device and inode) of one that was sent whole
--                        -> { "", "", mark, what it then was }
--   sent_at      ZSET    place -> ms; the last 10,000 of them are remembered
--   vanished     ZSET    receiver that was passed over -> its cursor
--   finished     ZSET    receiver that has had all to the CLOSE -> ms
--   totals:<r>   HASH    lines, rejected; table:<t>: 1                     of the aggregate that receives as r
--   counts:<r>:<t> ZSET  key -> count
--   rejected:<r> LIST    the first thousand lines that were no good
--
--   send            put (BEGIN … END), …            close           the last receiver has acknowledged it
--   (none) ──────▶ open ──────────────────────────────────▶ closed ────────────────────────────────▶ over
--                   ▲                                                                                   │ a file that was
--                   └───────────────────────────────────────────────────────────────────────────────────┘ not sent before
--
-- What is over stays for a day, so that whoever died before it learned of that is told; with counts, until it is deleted.
--
-- Answers as in log.lua, and: CLOSED, ENDED (nothing more for this receiver), HELD (by another process), TAKEN (another
-- process sends this file).

-- "HELD", for how many ms and by whom; else "MINE", or "FRESH" if another had it since, and whether this very turn came before.
-- `instead`: the token of one who is known to be dead.
--- (who: str, token: str, instead: str, turn: int, now: int, lease_ms: int) -> str, int | bool, str
--- uses: base
function channel.own(who, token, instead, turn, now, lease_ms)
  local owned = redis.call("HGET", base .. "owners", who)
  local till, last, new, owner = string.match(owned or "", "^(%d+) (%d+) (%d) (.*)$")
  if owned and owner ~= token and owner ~= instead and tonumber(till) > now then return "HELD", tonumber(till) - now, owner end
  local again = owner == token and turn <= tonumber(last)  -- less: a copy that was under way for long
  local fresh = owner ~= token or (again and new == "1")
  redis.call("HSET", base .. "owners", who, string.format("%d %d %d %s", now + lease_ms, again and last or turn, fresh and 1 or 0, token))
  redis.call("HSET", base .. "seen", who, string.format("%d", now))
  return fresh and "FRESH" or "MINE", again
end

-- Its cursor, or why there is none. Who was passed over is there again, and finds a gap; LATE: when all was over already.
-- The third is where that one had been.
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

-- The answer to who has no cursor.
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

-- This receiver has had all.
--- (l: table, who: str, now: int)
--- uses: base state
function channel.over(l, who, now)
  channel.part(who)
  redis.call("ZADD", base .. "finished", now, who)
  log.rouse("waiting", "+inf")
  if redis.call("EXISTS", base .. "readers") == 0 then channel.finish(l) end
end

-- All have had all. The files go, and what only matters while they come.
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

-- What stays for a day where all is over, some of it of receivers that were passed over.
--- () -> table
--- uses: base state
function channel.outlasting()
  local keys = { state }
  for _, name in ipairs({ "sources", "sent_at", "finished", "vanished", "owners", "marks" }) do keys[#keys + 1] = base .. name end
  return keys
end

-- What was over begins anew; numbers go on.
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

-- A receiver has gone. Returns 1 if there is more to trim.
--- (l: table, now: int) -> int
--- uses: base state
function channel.free(l, now)
  if redis.call("EXISTS", base .. "readers") == 1 then return log.trim(l, now) end
  log.cut(l, l.top)
  return 0
end

-- Returns 1 if there is more to trim, and whether that was all for this receiver.
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

-- What is not there any more counts as received.
--- (l: table, who: str)
--- uses: base
function channel.skip(l, who)
  redis.call("ZADD", base .. "readers", l.first - 1, who)
  claim.pass_over(who, l.first - 1)
end

-- So much space is wanted: what somebody left to be trimmed goes, then receivers that hold it and were not seen for too long are
-- passed over, counted from when there was something for them. Returns the ms after which the next one will be, or -1.
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

-- How many records behind `position` make up to `room` bytes: at least one if there is any, at most a thousand.
--- (l: table, position: int, room: int) -> int
--- uses: base
function channel.fit(l, position, room)
  local from, n = position + 1 - l.first, 0
  local before = from > 0 and tonumber(redis.call("LINDEX", base .. "ends", from - 1)) or l.begun
  while position + n < l.top and n < 1000 do
    local ends = redis.call("LRANGE", base .. "ends", from + n, from + n + 15)
    for i = 1, #ends do
      if n > 0 and ends[i] - before > room then return n end
      n = n + 1
    end
    if #ends == 0 then break end
  end
  return n
end

-- The answer to who wants so much space where there is less, though receivers were passed over.
--- (l: table, space: int, now: int) -> table | nil
--- uses: base state
function channel.lacking(l, space, now)
  local low = redis.call("ZRANGE", base .. "readers", 0, 0)[1] or ""
  if l.ended - l.begun + space <= l.bytes then return nil end
  local left = channel.pass_over(l, now, space)
  if l.ended - l.begun + space > l.bytes then return { "FULL", left, l.ended - l.begun, low } end
end

-- { lines, how many rejected, { table = { key = n } }, { what was rejected, … } }; {} for "".
--- (packed: str) -> table
function channel.counted(packed)
  return packed == "" and {} or cmsgpack.unpack(packed)
end

--- (who: str, found: table)
--- uses: base state
function channel.count(who, found)
  local lines, bad, tables, rejected = unpack(found)
  if not lines then return end
  local totals, list = base .. "totals:" .. who, base .. "rejected:" .. who
  redis.call("HSET", state, "counted", 1, "counts:" .. who, 1)
  redis.call("HINCRBY", totals, "lines", lines)
  redis.call("HINCRBY", totals, "rejected", bad)
  for name, keys in pairs(tables) do
    redis.call("HSET", totals, "table:" .. name, 1)
    for key, n in pairs(keys) do redis.call("ZINCRBY", base .. "counts:" .. who .. ":" .. name, n, key) end
  end
  for i = 1, math.min(#rejected, 1000 - redis.call("LLEN", list)) do redis.call("RPUSH", list, rejected[i]) end
end

--- (who: str)
--- uses: base state
function channel.forget_counts(who)
  local totals = base .. "totals:" .. who
  for _, field in ipairs(redis.call("HKEYS", totals)) do
    local name = string.match(field, "^table:(.*)$")
    if name then redis.call("UNLINK", base .. "counts:" .. who .. ":" .. name) end
  end
  redis.call("UNLINK", totals, base .. "rejected:" .. who)
  redis.call("HDEL", state, "counts:" .. who)
end

-- A channel that takes files, for these receivers; who is new begins here. `limit`, `patience`: as they are if 0; -1: none.
-- { "OK" } or { "CLOSED", how many receivers have not had all yet } or { "STRANGER" } where there is no receiver at all
--- keys: base state
--- args: producer: str, number: str, given: int, limit: int, patience: int, receivers: *
function script.open(base, state, producer, number, given, limit, patience, receivers, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = repeated.answer(producer, number)
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
  return repeated.keep(producer, number, { "OK" })
end

-- What is known of these: { "OK", { entry or "", … } }
--- keys: base state
--- args: sources: *
--- flags: no-writes
function script.known(base, state, sources, ...)
  local fault = log.open()
  if fault then return fault end
  local answer = {}
  for i = sources, #ARGV do answer[#answer + 1] = redis.call("HGET", base .. "sources", ARGV[i]) or "" end
  return { "OK", answer }
end

-- Go on with a file that another process began: that one is refused from now on. { "OK", entry } or { "TAKEN" } if it is over
--- keys: base state
--- args: source: str, file: str, token: str
--- flags: allow-oom
function script.take_source(base, state, source, file, token)
  local fault = log.open()
  if fault then return fault end
  local entry = redis.call("HGET", base .. "sources", source)
  if not entry then return { "TAKEN" } end
  local found = cmsgpack.unpack(entry)
  if found[2] ~= file then return { "TAKEN" } end
  found[1] = token
  redis.call("HSET", base .. "sources", source, cmsgpack.pack(found))
  return { "OK", cmsgpack.pack(found) }
end

-- Records as kind, body, …; all of them or none. `fresh`: if the file begins here, what is known at `place` ("" nothing), "-" if it
-- goes on. `ending`: what is remembered of it, at `place`, when it ends here; "" if it does not, "-" if nothing is.
-- { "OK", bytes there, slowest receiver }, { "FULL", ms after which to try again or -1, bytes there, slowest receiver } or
-- { "GONE" | "CLOSED" | "TAKEN" | "LARGE" | "STRANGER" }
--- keys: base state
--- args: producer: str, number: str, given: int, source: str, file: str, token: str, fresh: str, mark: str, place: str
--- args: ending: str, rest: *
function script.put(base, state, producer, number, given, source, file, token, fresh, mark, place, ending, rest, ...)
  local fault, l = log.open()
  if fault then return fault end
  local past = repeated.answer(producer, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.ended() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  local entry = redis.call("HGET", base .. "sources", source) or ""
  if fresh == "-" then
    local found = entry ~= "" and cmsgpack.unpack(entry) or { "", "" }
    if found[1] ~= token or found[2] ~= file then return { "TAKEN" } end
  elseif entry ~= "" or (redis.call("HGET", base .. "sources", place) or "") ~= fresh then
    return { "TAKEN" }
  end
  if not channel.has_receivers() then return { "STRANGER" } end
  local size, now = 0, clock.now(given)
  for i = rest, #ARGV, 2 do size = size + log.size(ARGV[i] .. file, ARGV[i + 1]) end
  if size > l.bytes then return { "LARGE" } end
  local full = channel.lacking(l, size, now)
  if full then return full end
  for i = rest, #ARGV, 2 do channel.append(l, now, ARGV[i] .. file, ARGV[i + 1]) end
  log.appended(l, now, false)
  if l.ended - l.begun > tonumber(redis.call("HGET", state, "peak") or 0) then redis.call("HSET", state, "peak", l.ended - l.begun) end
  if ending == "" then
    redis.call("HSET", base .. "sources", source, cmsgpack.pack({ token, file, mark, "" }))
  else
    redis.call("HDEL", base .. "sources", source)
  end
  if ending ~= "" and ending ~= "-" then
    redis.call("HSET", base .. "sources", place, cmsgpack.pack({ "", "", mark, ending }))
    redis.call("ZADD", base .. "sent_at", now, place)
    local old = redis.call("ZRANGE", base .. "sent_at", 0, -10001)
    for i = 1, #old do
      redis.call("ZREM", base .. "sent_at", old[i])
      redis.call("HDEL", base .. "sources", old[i])
    end
  end
  log.ring(l, now)
  return repeated.keep(producer, number, { "OK", l.ended - l.begun, redis.call("ZRANGE", base .. "readers", 0, 0)[1] or "" })
end

-- For who was refused: told at `address` when there is space for this, and for a quarter of all: else it would be refused, and
-- send in vain, at every megabyte. Answers as `put`.
--- keys: base state
--- args: given: int, size: int, address: str, stay_ms: int
--- flags: allow-oom
function script.await_space(base, state, given, size, address, stay_ms)
  local fault, l = log.open()
  if fault then return fault end
  local space = l and math.min(l.bytes, math.max(size, math.floor(l.bytes / 4)))
  local full = l and channel.ended() == 0 and channel.lacking(l, space, clock.now(given))
  log.wait("wanting", space or 0, address, full and stay_ms or 0)
  return full or { "OK", l and l.ended - l.begun or 0, "" }
end

-- Nothing comes any more. { "OK", 1 if it was open } or { "GONE" }
--- keys: base state
--- args: producer: str, number: str, given: int
--- flags: allow-oom
function script.close(base, state, producer, number, given)
  local fault, l = log.open()
  if fault then return fault end
  local past = repeated.answer(producer, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.ended() > 0 then return { "OK", 0 } end
  local now = clock.now(given)
  channel.append(l, now, "C", "")
  log.appended(l, now, false)
  redis.call("HSET", state, "end", l.top)
  log.rouse("wanting", "+inf")
  if redis.call("EXISTS", base .. "readers") == 0 then channel.finish(l) else log.ring(l, now) end
  return repeated.keep(producer, number, { "OK", 1 })
end

-- First settle: acknowledge up to `acked`, keep `mark`, add what was `counted`; all of it once, if this process still is the one that
-- receives. It then reads `limit` records behind `after` by itself, for bodies are too large to be touched here. If there is nothing:
-- told at `address` within `stay_ms`.
-- { "OK", top, first, cursor, 1 if there is more to trim, 1 if another received since, mark, how many to read next time }
-- or { "HELD", ms, by whom }, { "SHARED" }: several workers are not through, { "ENDED" | "GONE" | "STRANGER" }
--- keys: base state
--- args: given: int, who: str, token: str, instead: str, turn: int, lease_ms: int, acked: int, mark: str, counted: str
--- args: after: int, limit: int, room: int, address: str, stay_ms: int
--- flags: allow-oom
function script.receive(base, state, given, who, token, instead, turn, lease_ms, acked, mark, counted, after, limit, room, address, stay_ms)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    log.wait("waiting", 0, address, stay_ms)
    return { "GONE" }
  end
  local now, found = clock.now(given), channel.counted(counted)
  local cursor, why, was = channel.reader(l, who)
  if why == "LATE" and acked < l.top then return { "OK", l.top, l.first, was, 0, 1, "", 0 } end
  if why == "LATE" then
    channel.over(l, who, now)
    return { "ENDED" }
  end
  if not cursor then return channel.none(why) end
  -- What workers have in hand, or settled above the cursor, would come once more.
  if tonumber(redis.call("HGET", base .. "next", who) or 0) - 1 > cursor then return { "SHARED" } end
  local owned, again, by = channel.own(who, token, instead, turn, now, lease_ms)
  if owned == "HELD" then
    log.wait("waiting", 1e15, address, stay_ms)
    return { "HELD", again, by }
  end
  local more = 0
  if owned == "MINE" and not again and (acked > cursor or mark ~= "" or counted ~= "") then
    if mark ~= "" then redis.call("HSET", base .. "marks", who, mark) end
    channel.count(who, found)
    local over
    more, over = channel.acknowledge(l, who, cursor, acked, now)
    if over then return { "ENDED" } end
    cursor = math.max(cursor, acked)
  end
  local fresh = owned == "FRESH"
  local position = math.max(cursor, l.first - 1, fresh and 0 or after)
  if position < l.top then log.ring(l, now) end
  log.wait("waiting", l.top, address, position >= l.top and stay_ms or 0)
  if fresh then
    return { "OK", l.top, l.first, cursor, more, 1, redis.call("HGET", base .. "marks", who) or "", channel.fit(l, position, room) }
  end
  return { "OK", l.top, l.first, cursor, more, 0, "", position == after and channel.fit(l, after + limit, room) or 0 }
end

-- The process that receives is busy, and alive. 0 at the end: it receives no more, another may. Returns 1 if it was the one.
--- keys: base state
--- args: given: int, who: str, token: str, lease_ms: int
--- flags: allow-oom
function script.hold(base, state, given, who, token, lease_ms)
  local fault, l = log.open()
  if fault then return fault end
  local turn, owner = string.match(redis.call("HGET", base .. "owners", who) or "", "^%d+ (%d+ %d) (.*)$")
  if not l or owner ~= token then return 0 end
  local now = clock.now(given)
  if lease_ms > 0 then
    redis.call("HSET", base .. "owners", who, string.format("%d %s %s", now + lease_ms, turn, token))
    redis.call("HSET", base .. "seen", who, string.format("%d", now))
  else
    redis.call("HDEL", base .. "owners", who)
    log.rouse("waiting", "+inf")
  end
  return 1
end

-- For one of several workers of a receiver: first settle these claims with what was `counted` in them, all or none; then claim
-- more. A second call with this `token` gets the same again.
-- { "OK", ms until a lease runs out or -1, claim, number, ms, by, body, … } or { "LOST" }: another has one of the claims, and
-- nothing was done; { "MISSED", how many, number of the next }: this receiver was passed over, which one worker is told, and
-- nothing else was done; { "HELD", ms }: one process receives alone; or { "ENDED" | "GONE" | "STRANGER" }
--- keys: base state
--- args: given: int, who: str, token: str, lease_ms: int, limit: int, room: int, counted: str, address: str, stay_ms: int, claims: *
--- flags: allow-oom
function script.share(base, state, given, who, token, lease_ms, limit, room, counted, address, stay_ms, claims, ...)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    log.wait("waiting", 0, address, stay_ms)
    return { "GONE" }
  end
  local now, found = clock.now(given), channel.counted(counted)
  local cursor, why, was = channel.reader(l, who)
  local said = redis.call("GET", base .. "claim:" .. token)
  local missed = said and cmsgpack.unpack(said).missed
  if not missed and (cursor or was) and l.first - 1 > (cursor or was) then
    missed = { l.first - 1 - (cursor or was), l.first }
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack({ missed = missed }), "PX", 60000)
    if was then channel.over(l, who, now) else channel.skip(l, who) end
  end
  if missed then return { "MISSED", missed[1], missed[2] } end
  if not cursor then return channel.none(why) end
  local till = tonumber(string.match(redis.call("HGET", base .. "owners", who) or "0", "^%d+"))
  if till > now then
    log.wait("waiting", 1e15, address, stay_ms)
    return { "HELD", till - now }
  end
  if #ARGV >= claims and not said then
    local leased = base .. "leased:" .. who
    for i = claims, #ARGV do
      if not redis.call("ZSCORE", leased, ARGV[i]) then return { "LOST" } end
    end
    for i = claims, #ARGV do claim.drop(who, ARGV[i]) end
    channel.count(who, found)
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack({}), "PX", 60000)
    local low = claim.cursor(who, tonumber(redis.call("HGET", base .. "next", who) or cursor + 1))
    local _, over = channel.acknowledge(l, who, cursor, low, now)
    if over then return { "ENDED" } end
    cursor = math.max(cursor, low)
  end
  redis.call("HSET", base .. "seen", who, string.format("%d", now))
  local answer = { "OK", -1 }
  claim.hand_out(l, who, cursor, now, token, said, lease_ms, limit, room, answer)
  if #answer > 2 then
    stay_ms = 0
    log.ring(l, now)
  end
  log.wait("waiting", l.top, address, stay_ms)
  if stay_ms > 0 then answer[2] = claim.due(who, now) end
  return answer
end

-- A receiver of what is begun from now on. { "OK", 1 if it is new } or { "GONE" | "CLOSED" }
--- keys: base state
--- args: producer: str, number: str, given: int, who: str
--- flags: allow-oom
function script.join_channel(base, state, producer, number, given, who)
  local fault, l = log.open()
  if fault then return fault end
  local past = repeated.answer(producer, number)
  if past then return past end
  if not l then return { "GONE" } end
  if channel.reader(l, who) then return { "OK", 0 } end
  if channel.ended() > 0 then return { "CLOSED", redis.call("ZCARD", base .. "readers") } end
  channel.join(who, l.top, clock.now(given))
  return repeated.keep(producer, number, { "OK", 1 })
end

-- A receiver that receives no more: nothing is kept for it. { "OK", 1 if it was one, 1 if there is more to trim }
--- keys: base state
--- args: producer: str, number: str, given: int, who: str
--- flags: allow-oom
function script.part(base, state, producer, number, given, who)
  local fault, l = log.open()
  if fault then return fault end
  local past = repeated.answer(producer, number)
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
  return repeated.keep(producer, number, { "OK", 1, more })
end

-- { "OK", now, top, first, bytes, limit, peak, patience or 0, number of the CLOSE or 0, files being sent, { receiver, cursor, seen,
-- owner or "", … } } or { "GONE" }. A receiver that has had all has the cursor -1, one that was passed over is at -2 - its cursor.
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

-- { lines, rejected, { table, … } }
--- keys: base state
--- args: who: str
--- flags: no-writes
function script.totals(base, state, who)
  local fault = log.open()
  if fault then return fault end
  local found = redis.call("HGETALL", base .. "totals:" .. who)
  local answer = { 0, 0, {} }
  for i = 1, #found, 2 do
    local name = string.match(found[i], "^table:(.*)$")
    if name then
      answer[3][#answer[3] + 1] = name
    elseif found[i] == "lines" then
      answer[1] = tonumber(found[i + 1])
    else
      answer[2] = tonumber(found[i + 1])
    end
  end
  return answer
end

-- { key, count, … }, the highest first
--- keys: base state
--- args: who: str, name: str, offset: int, n: int
--- flags: no-writes
function script.top(base, state, who, name, offset, n)
  local fault = log.open()
  if fault then return fault end
  return redis.call("ZRANGE", base .. "counts:" .. who .. ":" .. name, offset, offset + n - 1, "REV", "WITHSCORES")
end

-- { count or nothing, … }
--- keys: base state
--- args: who: str, name: str, wanted: *
--- flags: no-writes
function script.of_keys(base, state, who, name, wanted, ...)
  local fault = log.open()
  if fault then return fault end
  return redis.call("ZMSCORE", base .. "counts:" .. who .. ":" .. name, unpack(ARGV, wanted))
end

--- keys: base state
--- args: who: str, offset: int, n: int
--- flags: no-writes
function script.rejected(base, state, who, offset, n)
  local fault = log.open()
  if fault then return fault end
  return redis.call("LRANGE", base .. "rejected:" .. who, offset, offset + n - 1)
end

--- keys: base state
--- args: who: str
--- flags: allow-oom
function script.forget_counts(base, state, who)
  local fault = log.open()
  if fault then return fault end
  channel.forget_counts(who)
  return 1
end

-- All of it, the counts too. { "OK", 1 if there was one }
--- keys: base state
--- args: producer: str, number: str
--- flags: allow-oom
function script.delete_channel(base, state, producer, number)
  local fault, l = log.open()
  if fault then return fault end
  local past = repeated.answer(producer, number)
  if past then return past end
  if not l then return repeated.keep(producer, number, { "OK", 0 }) end
  for _, field in ipairs(redis.call("HKEYS", state)) do
    local who = string.match(field, "^counts:(.*)$")
    if who then channel.forget_counts(who) end
  end
  log.free()
  redis.call("UNLINK", unpack(channel.outlasting()))
  return repeated.keep(producer, number, { "OK", 1 })
end
