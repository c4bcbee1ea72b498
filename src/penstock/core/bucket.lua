-- A token bucket: it holds `burst` units and gains one in each `interval` microseconds.
--
--   <key>  STRING  server microseconds at which the bucket is full again, and the terms; TTL until then, and one
--                  interval
--
-- That one number is the whole state: taking units moves it (GCRA: the leaky bucket of Turner, ATM Forum 1994). If the
-- server's clock is set back, the bucket fills later by the difference. The terms say for readers what the numbers of
-- the limit are; no decision depends on them. They are empty, or begin with a space.

-- LONGEST: ten years. A bucket that units were taken from is full again within that time. KEYS: of one command.
_bucket = { LONGEST = 316224000000000, KEYS = 4000 }

-- Returns when the bucket is full again, 0 for one that is full, and the terms of the last taker.
--- (key: str) -> int, str
function bucket.read(key)
  local full, terms = string.match(redis.call("GET", key) or "0", "^(%d+)(.*)$")
  return tonumber(full), terms
end

-- When each of these buckets is full again: one command for all of them.
--- (keys: table) -> table
--- seldom
function bucket.read_many(keys)
  local found, all = {}, {}
  for i = 1, #keys, _bucket.KEYS do
    local some = redis.call("MGET", unpack(keys, i, math.min(#keys, i + _bucket.KEYS - 1)))
    for j = 1, #some do found[i + j - 1] = some[j] end
  end
  for i = 1, #keys do
    local one = found[i]
    all[i] = one and (tonumber(one) or tonumber(string.match(one, "^%d+"))) or 0 -- with terms it is no number
  end
  return all
end

--- (key: str, full: int, now: int, interval: int, terms: str)
function bucket.write(key, full, now, interval, terms)
  local ms = math.max(1, math.ceil((full - now + interval) / 1000))
  redis.call("SET", key, string.format("%.0f", full) .. terms, "PX", ms)
end

-- Returns the first moment at which `n` units are allowed. With more than `burst` units, that is the moment at which
-- the last unit is allowed, if each of the others is taken as soon as it is allowed.
--- (key: str, n: int, now: int, interval: int, burst: int) -> int
function bucket.allowed_at(key, n, now, interval, burst)
  local full = bucket.read(key)
  return math.max(now, math.max(full, now) + (n - burst) * interval)
end

-- Takes `n` units. `late`: microseconds, below one interval, by which the first waiter may be late without delaying the
-- waiters behind it; 0 for other callers. Returns when the bucket is full again.
--- (key: str, n: int, now: int, interval: int, late: int, terms: str) -> int
function bucket.take(key, n, now, interval, late, terms)
  return bucket.take_from(key, bucket.read(key), n, now, interval, late, terms)
end

-- The same, if it is known when the bucket is full.
--- (key: str, full: int, n: int, now: int, interval: int, late: int, terms: str) -> int
function bucket.take_from(key, full, n, now, interval, late, terms)
  full = math.min(math.max(full, now - late) + n * interval, now + _bucket.LONGEST)
  bucket.write(key, full, now, interval, terms)
  return full
end

-- Returns how many units are allowed now in a bucket that is full at `full`.
--- (full: int, now: int, interval: int, burst: int) -> int
function bucket.left(full, now, interval, burst)
  return math.max(0, math.floor((now + burst * interval - math.max(full, now)) / interval))
end

-- Gives back `n` of the `taken` units that were taken at `since` and not used, as far as time has not given them back.
-- Otherwise the bucket could get units for which it had room only earlier, and more than its rate would be used.
--- (key: str, n: int, taken: int, since: int, now: int, interval: int)
--- seldom
function bucket.refund(key, n, taken, since, now, interval)
  local full, terms = bucket.read(key)
  local back = math.min(n * interval, taken * interval - (now - since))
  if back <= 0 or full <= now then return end
  bucket.write(key, full - back, now, interval, terms)
end

-- Gives back units that were not used. The bucket accepts them only if no unit was taken after them, because it may
-- have been full in between. `full`: what `bucket.take` returned for them. Returns whether it accepted them.
--- (key: str, n: int, full: int, now: int, interval: int) -> bool
function bucket.give_back(key, n, full, now, interval)
  local last, terms = bucket.read(key)
  if last ~= full then return false end
  bucket.write(key, full - n * interval, now, interval, terms)
  return true
end
