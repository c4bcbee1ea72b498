-- A token bucket: it holds `burst` units and gains one in each `interval` microseconds.
--
--   <key>  STRING  server microseconds at which the bucket is full again; TTL until then, and one interval
--
-- That one number is the whole state: taking units moves it (GCRA: the leaky bucket of Turner, ATM Forum 1994). If the
-- server's clock is set back, the bucket fills later by the difference.

_bucket = { LONGEST = 316224000000000 } -- ten years: a bucket that units were taken from is full again within that time

-- Returns the first moment at which `n` units are allowed. With more than `burst` units, that is the moment at which
-- the last unit is allowed, if each of the others is taken as soon as it is allowed.
--- (key: str, n: int, now: int, interval: int, burst: int) -> int
function bucket.allowed_at(key, n, now, interval, burst)
  local full = tonumber(redis.call("GET", key) or 0)
  return math.max(now, math.max(full, now) + (n - burst) * interval)
end

-- Takes `n` units. `late`: microseconds, below one interval, by which the first waiter may be late without delaying the
-- waiters behind it; 0 for other callers. Returns when the bucket is full again.
--- (key: str, n: int, now: int, interval: int, late: int) -> int
function bucket.take(key, n, now, interval, late)
  local full = math.max(tonumber(redis.call("GET", key) or 0), now - late) + n * interval
  full = math.min(full, now + _bucket.LONGEST)
  redis.call("SET", key, string.format("%.0f", full), "PX", math.max(1, math.ceil((full - now + interval) / 1000)))
  return full
end

-- Returns how many units are allowed now.
--- (key: str, now: int, interval: int, burst: int) -> int
function bucket.left(key, now, interval, burst)
  local full = tonumber(redis.call("GET", key) or 0)
  return math.max(0, math.floor((now + burst * interval - math.max(full, now)) / interval))
end

-- Gives back `n` of the `taken` units that were taken at `since` and not used, as far as time has not given them back.
-- Otherwise the bucket could get units for which it had room only earlier, and more than its rate would be used.
--- (key: str, n: int, taken: int, since: int, now: int, interval: int)
--- seldom
function bucket.refund(key, n, taken, since, now, interval)
  local full = tonumber(redis.call("GET", key) or 0)
  local back = math.min(n * interval, taken * interval - (now - since))
  if back <= 0 or full <= now then return end
  full = full - back
  redis.call("SET", key, string.format("%.0f", full), "PX", math.max(1, math.ceil((full - now + interval) / 1000)))
end

-- Gives back units that were not used. The bucket accepts them only if no unit was taken after them, because it may
-- have been full in between. `full`: what `bucket.take` returned for them. Returns whether it accepted them.
--- (key: str, n: int, full: int, now: int, interval: int) -> bool
function bucket.give_back(key, n, full, now, interval)
  if tonumber(redis.call("GET", key) or 0) ~= full then return false end
  full = full - n * interval
  redis.call("SET", key, string.format("%.0f", full), "PX", math.max(1, math.ceil((full - now + interval) / 1000)))
  return true
end
