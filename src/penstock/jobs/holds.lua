-- Holds: a key of a rate is closed until a time. A running job closes its own key, when the service that it calls has
-- answered "too many requests", or an operator does.
--
--   holds   ZSET   name=key -> until when it is closed, server ms; TTL until the last one ends
--   row     (row.lua)  LIMITED: when the last hold ends, if that is more than 1; until then scripts look for holds
--
-- A closed key has no room (`limits.room`), so its jobs are parked there. Jobs that were admitted before and have not
-- started are parked again: some by the script that closes the key, the others by the next turns, or by a claim that
-- meets one of them. So no job of the key starts.
--
-- While a job is parked at a closed key, it keeps its places in earlier limits only if one of them is a limit of 1,
-- whose jobs keep their order. Otherwise it is parked in the lanes of a scope, p:hold=name=key, as if the key were
-- paused (pauses.lua), and has no place. When the hold has ended, it passes its limits again.

-- LONGEST_HOLD: ms, 366 days. UNKNOWN_RATE, OUT_OF_RANGE: replies of `hold_limit`.
hold = { LONGEST_HOLD = 31622400000, UNKNOWN_RATE = -1, OUT_OF_RANGE = -2 }

_hold = { PARKED = 100, SCOPE = "p:hold=" }

-- Whether a key of the queue may be closed.
--- (s: table) -> bool
--- inline
function holds.any(s)
  return (s.row[_row.LIMITED] or 0) > s.now
end

-- Until when a key is closed, server ms; 0: it is open.
--- (s: table, key: str) -> int
--- uses: base
function holds.until_(s, key)
  if not holds.any(s) then return 0 end
  s.holds = s.holds or {}
  if not s.holds[key] then s.holds[key] = tonumber(redis.call("ZSCORE", base .. "holds", key) or 0) end
  return s.holds[key] > s.now and s.holds[key] or 0
end

-- The position of the first limit of a job whose key is closed, or nil.
--- (s: table, list: table) -> int | nil
--- uses: base
--- seldom
function holds.at(s, list)
  for i = 1, #list do
    local key = list[i][_limit.KEY]
    if limits.is_rate(key) and holds.until_(s, key) > 0 then return i end
  end
end

-- Whether a job in a lane may not start because one of its keys is closed.
--- (s: table, body: str) -> bool
--- uses: base
--- seldom
function holds.meets(s, body)
  return holds.any(s) and record.has(record.flags(body), flag.LIMITED) and holds.at(s, record.limits(body)) ~= nil
end

-- The scope in which a job with a closed key is parked; nil if no key of it is closed, or if it is parked at that key.
--- (s: table, list: table) -> str | nil
--- uses: base
--- seldom
function holds.scope(s, list)
  local at = holds.at(s, list)
  if at and at > 1 and limits.kept(s, list, false) == 0 then
    return _hold.SCOPE .. list[at][_limit.KEY]
  end
end

-- The key whose hold a scope stands for, or nil.
--- (scope: str) -> str | nil
function holds.key_of(scope)
  return string.sub(scope, 1, #_hold.SCOPE) == _hold.SCOPE and string.sub(scope, #_hold.SCOPE + 1) or nil
end

-- How many entries the lanes of a hold have.
--- (s: table, key: str) -> int
--- uses: base
--- seldom
function holds.parked(s, key)
  if holds.until_(s, key) == 0 then return 0 end
  local levels, n = limits.place(s, _hold.SCOPE .. key).r[_row.LEVELS], 0
  for i = 2, #levels, 3 do n = n + levels[i] end
  return n
end

-- Parks a ready job, which has all of its places, because the key at this position is closed. Returns its state and its
-- flags.
--- (s: table, list: table, at: int, entry: str, flags: int, priority: int, tenant: str, since: int, body: str)
---  -> str, int
--- uses: base
--- seldom
function holds.park(s, list, at, entry, flags, priority, tenant, since, body)
  local scope = holds.scope(s, list)
  if scope then return pauses.park(s, scope, true, entry, flags, priority, tenant, since, _count.READY, body) end
  return limits.park_again(s, list, at, entry, flags, priority, tenant, since)
end

-- Parks some jobs of a closed key that were admitted and have not started, and lets jobs that are parked there give up
-- their places: at most PARKED in one script, and the next turn continues. Each uses up some of the `looks`; returns
-- how many are left.
--- (s: table, place: table, looks: int) -> int
--- uses: base
--- seldom
function holds.close(s, place, looks)
  local most = math.min(looks, _hold.PARKED - (place.admitted or 0))
  local found = most > 0 and admitted.first_ones(s, place, most) or {}
  local n = 0
  for i = 1, #found do
    if n >= most then break end
    n = n + admission.looks(admission.park_again(s, place, found[i]) or 0)
  end
  limits.push(place)
  while n < most and #place.r[_row.LEVELS] > 0 do
    local bytes = holds.give_up_places(s, place)
    if not bytes then break end
    n = n + admission.looks(bytes)
  end
  place.admitted = (place.admitted or 0) + n
  if n >= most then
    limits.look_again(s, place.key, s.now)
  elseif #place.r[_row.LEVELS] > 0 then
    limits.look_again(s, place.key, holds.until_(s, place.key))
  end
  return math.max(0, looks - n)
end

-- Moves the first job that is parked at a closed key into the scope of the hold, so that it gives up its places, unless
-- it may keep them. Returns the bytes of its record; nil if it moved none.
--- (s: table, place: table) -> int | nil
--- uses: base
--- seldom
function holds.give_up_places(s, place)
  local cursor = limits.first(place)
  if not cursor or not cursor.entries[1] then return nil end
  local id, body = entry.id(cursor.entries[1]), limits.parked_job(cursor.entries[1])
  local scope = body and holds.scope(s, record.limits(body))
  if not body or not scope then return nil end
  limits.pop(place)
  local was, generation = record.fields(body), row.mint(s.row, 1) + 1
  place.parked = math.max(0, place.parked - 1)
  counters.add_parked_since(s, was.since, -1)
  local new_state, flags = pauses.park(s, scope, false, record.entry(generation, body, id), was.flags, was.priority,
    was.tenant, was.since, _count.PARKED, body)
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, was.since, flags))
  return #body
end

-- Stores until when a key is closed; 0 opens it. Marks the key, so that `admission.admit` parks or admits its jobs.
--- (s: table, key: str, until_: int)
--- uses: base
function holds.set(s, key, until_)
  limits.open(s)
  local stored = base .. "holds"
  local over = redis.call("ZRANGE", stored, "-inf", s.now, "BYSCORE", "LIMIT", 0, _hold.PARKED)
  if #over > 0 then redis.call("ZREM", stored, unpack(over)) end
  s.holds = s.holds or {}
  s.holds[key] = until_
  if until_ > 0 then
    redis.call("ZADD", stored, string.format("%d", until_), key)
    s.row[_row.LIMITED] = math.max(s.row[_row.LIMITED], until_)
    redis.call("PEXPIRE", stored, math.max(1000, redis.call("PTTL", stored), until_ - s.now + 1000))
  else
    redis.call("ZREM", stored, key)
  end
  limits.mark(s, limits.place(s, key))
  limits.mark(s, limits.place(s, _hold.SCOPE .. key))
end

-- Whether jobs of this name=key may have used its limit.
--- (key: str) -> bool
--- uses: base
--- seldom
function limits.is_known(key)
  return redis.call("HEXISTS", base .. "limits", limits.name_of(key)) == 1
end

-- Closes a key for all of its jobs, or opens it. `at`: ms from now, or a date if `is_date` is 1; 0 opens it. Returns
-- until when it is closed, server ms; 0 if it is open now; UNKNOWN_RATE if `must_exist` is 1 and no job has used this
-- limit; OUT_OF_RANGE if the date is past or more than a year away.
--- keys: base meta
--- args: caller: str, number: int, given: int, key: str, at: int, is_date: int, must_exist: int
--- flags: allow-oom
--- frame: once
function script.hold_limit(base, meta, caller, number, given, key, at, is_date, must_exist)
  if must_exist == 1 and not limits.is_known(key) then return hold.UNKNOWN_RATE end
  if at > 0 and is_date == 0 then at = s.now + at end
  if at > 0 and (at <= s.now or at > s.now + hold.LONGEST_HOLD) then return hold.OUT_OF_RANGE end
  holds.set(s, key, at)
  return at
end

-- Closes a key of a running job for `ms`, unless it is closed for longer. Returns until when, server ms; -1 if the
-- incarnation no longer holds the job.
--- keys: base meta
--- args: caller: str, number: int, given: int, incarnation: str, token: str, key: str, ms: int
--- flags: allow-oom
--- frame: once
function script.hold(base, meta, caller, number, given, incarnation, token, key, ms)
  local held = lease.held_alive(incarnation, token, s.now)
  local body = held and record.get(token.id(token))
  if not body then return -1 end
  local until_ = math.max(s.now + ms, holds.until_(s, key))
  holds.set(s, key, until_)
  if record.powers(body) >= power.IN_SHARDS then shards.keep(record.tenant(body), s.now, until_) end
  return until_
end
