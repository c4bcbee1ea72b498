-- The scripts of a rate limit: at most `limit` units in `per`, across all hosts, granted in order of arrival.
--
--   bucket      STRING  server microseconds at which the bucket is full again; TTL until then
--   window      ZSET    unit -> the moment from which it may be used; TTL until the last one is older than `per`
--   free:<kind> ZSET    caller/number/n -> the future moment of a reservation of n units that was handed back
--   replay: see core/idempotency.lua
--
-- A bucket holds `burst` units and gains one in each `interval` microseconds. A request moves the time at which the
-- bucket is full again, and this time is all that is stored (GCRA: the leaky bucket of Turner, ATM Forum 1994). A
-- window (a sliding log) stores each unit, so that any span of `per` microseconds has at most `limit` of them.
--
-- Both kinds know in advance at which moment a request will be allowed. The script reserves the units for that moment
-- and returns it, and the caller sleeps until then by its own clock. Requests are served in order of arrival. A
-- reservation that is handed back goes to the next request of the same size; the other reservations do not change.
--
-- If the server's clock is set back, all waits last longer by the difference.
--
-- The declared keys are `base`, which never exists, and `stored`, the bucket or the window. Other keys are made from
-- `base`.

-- Returns the first moment at which `n` units are allowed.
--- (n: int, now: int, interval: int, burst: int) -> int
--- uses: stored
function bucket.allowed_at(n, now, interval, burst)
  local full = tonumber(redis.call("GET", stored) or 0)
  return math.max(now, math.max(full, now) + (n - burst) * interval)
end

-- Takes `n` units. Returns when the bucket is full again.
--- (n: int, now: int, interval: int)
--- uses: stored
function bucket.take(n, now, interval)
  local full = math.max(tonumber(redis.call("GET", stored) or 0), now) + n * interval
  redis.call("SET", stored, full, "PX", math.ceil((full - now) / 1000) + 1)
  return full
end

-- Returns how many units are allowed now.
--- (now: int, interval: int, burst: int) -> int
--- uses: stored
function bucket.left(now, interval, burst)
  local full = tonumber(redis.call("GET", stored) or 0)
  return math.floor((now + burst * interval - math.max(full, now)) / interval)
end

-- Undoes a reservation if it was the last one. Returns false for an earlier one, which cannot be undone, because the
-- moments of later ones depend on it. `full`: what `bucket.take` returned for it.
--- (n: int, full: int, now: int, interval: int) -> bool
--- uses: stored
function bucket.drop(n, full, now, interval)
  if tonumber(redis.call("GET", stored) or 0) ~= full then return false end
  full = full - n * interval
  if full > now then
    redis.call("SET", stored, full, "PX", math.ceil((full - now) / 1000) + 1)
  else
    redis.call("DEL", stored)
  end
  return true
end

-- Returns the first moment at which `n` units are allowed. Counts from the end, so that units with a future moment are
-- included.
--- (n: int, now: int, per: int, limit: int) -> int
--- uses: stored
function window.allowed_at(n, now, per, limit)
  local rank = n - limit - 1
  local before = redis.call("ZRANGE", stored, rank, rank, "WITHSCORES")
  return math.max(now, before[2] and before[2] + per or 0)
end

-- Takes `n` units for the moment `at`.
--- (id: str, n: int, at: int, now: int, per: int)
--- uses: stored
function window.take(id, n, at, now, per)
  local old = redis.call("ZRANGE", stored, "-inf", now - per, "BYSCORE", "LIMIT", 0, 1000)
  if #old > 0 then redis.call("ZREM", stored, unpack(old)) end
  for i = 1, n do redis.call("ZADD", stored, at, id .. "/" .. i) end
  redis.call("PEXPIRE", stored, math.ceil((at + per - now) / 1000) + 1)
end

-- Returns how many units are allowed now.
--- (now: int, per: int, limit: int) -> int
--- uses: stored
function window.left(now, per, limit)
  return limit - redis.call("ZCOUNT", stored, string.format("(%.0f", now - per), "+inf")
end

-- Undoes a reservation. But if its moment is in the future and others have a later one, keeps it and returns false, so
-- that another request can use the moment.
--- (id: str, n: int, at: int, now: int) -> bool
--- uses: stored
function window.drop(id, n, at, now)
  local last = redis.call("ZRANGE", stored, -1, -1, "WITHSCORES")
  if at > now and last[2] and tonumber(last[2]) > at then return false end
  for i = 1, n do redis.call("ZREM", stored, id .. "/" .. i) end
  return true
end

-- Returns the earliest reservation of `n` units that was handed back, if its moment is before `before`: its entry in
-- `free:`, and the moment.
--- (kind: str, n: int, now: int, before: int) -> str | nil, int
--- uses: base
function free.first(kind, n, now, before)
  local till = string.format("(%.0f", before)
  local found = redis.call("ZRANGE", base .. "free:" .. kind, now, till, "BYSCORE", "LIMIT", 0, 8, "WITHSCORES")
  for i = 1, #found, 2 do
    if tonumber(string.match(found[i], "%d+$")) == n then return found[i], tonumber(found[i + 1]) end
  end
end

-- Stores a reservation that was handed back, for the next request of `n` units.
--- (kind: str, id: str, n: int, at: int, now: int)
--- uses: base
function free.keep(kind, id, n, at, now)
  local key = base .. "free:" .. kind
  local old = redis.call("ZRANGE", key, "-inf", now, "BYSCORE", "LIMIT", 0, 1000)
  if #old > 0 then redis.call("ZREM", key, unpack(old)) end
  redis.call("ZADD", key, at, id .. "/" .. n)
  local last = redis.call("ZRANGE", key, -1, -1, "WITHSCORES")
  redis.call("PEXPIRE", key, math.ceil((last[2] - now) / 1000) + 1)
end

-- Returns the reply of `reserve`.
--- (allowed: int, wait: int, kind: str, now: int, capacity: int, per: int, interval: int) -> table
--- uses: stored
function rate.answer(allowed, wait, kind, now, capacity, per, interval)
  local left = kind == "bucket" and bucket.left(now, interval, capacity) or window.left(now, per, capacity)
  return { allowed, wait, math.max(0, left) }
end

--- (kind: str, id: str, n: int, at: int, full: int, now: int, interval: int) -> bool
--- uses: stored
function rate.drop(kind, id, n, at, full, now, interval)
  if kind == "bucket" then return bucket.drop(n, full, now, interval) end
  return window.drop(id, n, at, now)
end

-- Reserves `n` units, for now or for the first moment at which they are allowed. `capacity`: units that a full bucket
-- holds, or that a window allows. `max_wait`: -1 for any. `per`, `interval` and `max_wait` are in microseconds.
-- Returns { 1, microseconds until they may be used, how many more are allowed now }. If the wait would be longer than
-- `max_wait`, reserves nothing, and the first value is 0.
--- keys: base stored
--- args: caller: str, number: int, kind: str, n: int, capacity: int, per: int, interval: int, max_wait: int
function script.reserve(base, stored, caller, number, kind, n, capacity, per, interval, max_wait)
  local now = clock.micros()
  local past = idempotency.replay(caller, number)
  if past then
    local allowed, _, left, _, moment = unpack(past)
    return { allowed, math.max(0, moment - now), left }
  end
  local at = kind == "bucket" and bucket.allowed_at(n, now, interval, capacity)
    or window.allowed_at(n, now, per, capacity)
  local reused, earlier
  if at > now then reused, earlier = free.first(kind, n, now, at) end
  at = earlier or at
  if max_wait >= 0 and at - now > max_wait then
    return rate.answer(0, at - now, kind, now, capacity, per, interval)
  end
  local id, full = caller .. "/" .. number, at + capacity * interval
  if reused then
    id = string.match(reused, "^(.*)/")
    redis.call("ZREM", base .. "free:" .. kind, reused)
  elseif kind == "window" then
    window.take(id, n, at, now, per)
  else
    full = bucket.take(n, now, interval)
  end
  local answer = rate.answer(1, at - now, kind, now, capacity, per, interval)
  -- Kept for as long as the caller may hand it back: allowed, wait, left, id, moment, when the bucket is full.
  idempotency.keep(caller, number, { 1, at - now, answer[3], id, at, full }, 60000 + math.ceil((at - now) / 1000))
  return answer
end

-- Hands back what the call of `reserve` with this number reserved. If that call arrives later, it reserves nothing.
--- keys: base stored
--- args: caller: str, number: int, kind: str, n: int, capacity: int, interval: int
--- flags: allow-oom
function script.hand_back(base, stored, caller, number, kind, n, capacity, interval)
  local now = clock.micros()
  local past = idempotency.replay(caller, number)
  idempotency.keep(caller, number, { 0, 0, 0, "", 0, 0 })
  if not past then return 0 end
  local allowed, _, _, id, at, full = unpack(past)
  if allowed == 0 then return 0 end
  if not rate.drop(kind, id, n, at, full, now, interval) then
    if at > now then free.keep(kind, id, n, at, now) end
    return 1
  end
  -- A reservation that was handed back earlier may be the last one now. Then it can be undone too.
  for _ = 1, 1000 do
    local last = redis.call("ZRANGE", base .. "free:" .. kind, -1, -1, "WITHSCORES")
    if not last[1] then return 1 end
    id, n, at = string.match(last[1], "^(.*)/(%d+)$"), tonumber(string.match(last[1], "%d+$")), tonumber(last[2])
    if at <= now or not rate.drop(kind, id, n, at, at + capacity * interval, now, interval) then return 1 end
    redis.call("ZREM", base .. "free:" .. kind, last[1])
  end
  return 1
end
