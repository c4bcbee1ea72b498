-- The waiters for a lock or a semaphore, in order of arrival.
--
--   waiters       ZSET  request -> ticket: its time of arrival in server microseconds; the lowest is served first
--   checks        ZSET  request -> server ms at which it tries again if no message arrives
--   offers        ZSET  request -> server ms until which it can take what was handed over to it
--   unresponsive  ZSET  face that let an offer expire -> server ms of that; skipped until one of its waiters tries again
--
--            join             offer, by a release            taken
--   (none) ───────▶ waiting ───────────────────────▶ offered ───────▶ holder
--              ▲       │ leave, or silent             │ not taken within 2 s
--              └───────┴──────────────────────────────┘ may come back with its old ticket
--
-- A request is what one `acquire()` of a process asks for, with a pair of `base` and `key` for each lock or semaphore:
-- { token, lease ms, address, { base, key, … }, permits, limit } in MessagePack. Each attempt sends it again. A message
-- to its address (notify.lua) asks for an attempt in a given number of milliseconds. State is written before a message
-- is sent, so a lost message costs only time.
--
-- Waiters do not poll. When a lease or an offer may expire, one waiter tries again at that time, and a waiter of
-- another process a third of a second later. All other waiters together try again only once in 10 s. After an offer to
-- one process, a waiter of another process checks whether the offer was taken.

_request = { TOKEN = 1, LEASE_MS = 2, ADDRESS = 3, KEYS = 4, PERMITS = 5, LIMIT = 6 }

-- Removes a request from the waiters for all that it wants. Appends its pairs of base and key to `freed`: the request
-- that was behind it may be the first one now.
--- (request: str, r: table, freed: table | nil)
function waiters.leave(request, r, freed)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    redis.call("ZREM", keys[i] .. "waiters", request)
    redis.call("ZREM", keys[i] .. "checks", request)
    if freed then
      freed[#freed + 1] = keys[i]
      freed[#freed + 1] = keys[i + 1]
    end
  end
end

-- Drops the offers that were not taken in time. The waiters of these faces are skipped from now on.
--- (base: str, now: int)
function waiters.expire_offers(base, now)
  local late = redis.call("ZRANGE", base .. "offers", "-inf", now, "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #late do
    redis.call("ZREM", base .. "offers", late[i])
    redis.call("ZADD", base .. "unresponsive", now, notify.face(cmsgpack.unpack(late[i])[_request.ADDRESS]))
    redis.call("PEXPIRE", base .. "unresponsive", 600000)
  end
end

-- Records that the face of a request is alive, so that its waiters are no longer skipped.
--- (r: table, now: int)
function waiters.mark_alive(r, now)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    waiters.expire_offers(keys[i], now)
    redis.call("ZREM", keys[i] .. "unresponsive", notify.face(r[_request.ADDRESS]))
  end
end

-- Whether to skip a waiter: its check is three seconds overdue, or its face did not take an offer.
--- (base: str, request: str, r: table, now: int) -> bool
function waiters.is_silent(base, request, r, now)
  local check = redis.call("ZSCORE", base .. "checks", request)
  if check and check + 3000 < now then return true end
  return redis.call("ZSCORE", base .. "unresponsive", notify.face(r[_request.ADDRESS])) ~= false
end

-- Returns the first live waiter: packed, unpacked, and its ticket. Removes the silent ones before it, at most 500.
--- (base: str, now: int, freed: table) -> str | nil, table, int
function waiters.head(base, now, freed)
  local checked = false
  for _ = 1, 500 do
    local found = redis.call("ZRANGE", base .. "waiters", 0, 0, "WITHSCORES")
    if not found[1] then return end
    if not checked then waiters.expire_offers(base, now) end
    checked = true
    local r = cmsgpack.unpack(found[1])
    if not waiters.is_silent(base, found[1], r, now) then return found[1], r, tonumber(found[2]) end
    waiters.leave(found[1], r, freed)
  end
end

-- Adds a request to the waiters: at the end, or, with the ticket of an earlier attempt, at its old place.
-- Returns the ticket.
--- (request: str, r: table, ticket: int, us: int) -> int
function waiters.join(request, r, ticket, us)
  local keys = r[_request.KEYS]
  if ticket == 0 then
    ticket = us
    for i = 1, #keys, 2 do
      local last = redis.call("ZRANGE", keys[i] .. "waiters", -1, -1, "WITHSCORES")
      if last[2] then ticket = math.max(ticket, last[2] + 1) end
    end
  end
  for i = 1, #keys, 2 do
    redis.call("ZADD", keys[i] .. "waiters", ticket, request)
    redis.call("PEXPIRE", keys[i] .. "waiters", 86400000)
  end
  return ticket
end

-- Schedules the next check of a waiter. Returns the ms until then. `due`: when a lease or an offer may expire. Two
-- waiters of different faces check at that time, and the others later.
--- (base: str, request: str, r: table, now: int, due: int) -> int
function waiters.schedule_check(base, request, r, now, due)
  local checks = redis.call("ZRANGE", base .. "checks", "(" .. now, due + 300, "BYSCORE", "LIMIT", 0, 4)
  local others, mine = 0, notify.face(r[_request.ADDRESS])
  for i = 1, #checks do
    if checks[i] ~= request then
      -- A waiter of the same face counts as two, because this one would not check if the face died.
      others = others + (notify.face(cmsgpack.unpack(checks[i])[_request.ADDRESS]) == mine and 2 or 1)
    end
  end
  local ms = math.min(14400000, 10000 * math.max(2, redis.call("ZCARD", base .. "waiters")))
  if others < 2 then ms = math.min(ms, math.max(1, due - now + 300 * others)) end
  redis.call("ZADD", base .. "checks", now + ms, request)
  redis.call("PEXPIRE", base .. "checks", 86400000)
  return ms
end

-- Ensures that a waiter of some face other than `except` tries again at `at`. If no such check is scheduled, asks the
-- waiter that arrived last for it.
--- (base: str, now: int, at: int, except: str)
function waiters.ensure_check(base, now, at, except)
  local checks = redis.call("ZRANGE", base .. "checks", "(" .. now, at + 300, "BYSCORE", "LIMIT", 0, 4)
  for i = 1, #checks do
    if notify.face(cmsgpack.unpack(checks[i])[_request.ADDRESS]) ~= except then return end
  end
  local last = redis.call("ZRANGE", base .. "waiters", 0, 7, "REV")
  for i = 1, #last do
    local r = cmsgpack.unpack(last[i])
    if notify.face(r[_request.ADDRESS]) ~= except then
      redis.call("ZADD", base .. "checks", at, last[i])
      notify.send_to_inbox(r[_request.ADDRESS], at - now)
      return
    end
  end
end

-- Offers a waiter what it was just granted for `ms`. Its next attempt takes the offer and gets the whole lease.
--- (request: str, r: table, now: int, ms: int)
function waiters.offer(request, r, now, ms)
  local keys = r[_request.KEYS]
  waiters.leave(request, r)
  for i = 1, #keys, 2 do
    redis.call("ZADD", keys[i] .. "offers", now + ms, request)
    redis.call("PEXPIRE", keys[i] .. "offers", 600000)
  end
  notify.send_to_inbox(r[_request.ADDRESS], 0)
  local face = notify.face(r[_request.ADDRESS])
  for i = 1, #keys, 2 do waiters.ensure_check(keys[i], now, now + ms, face) end
end

-- Ends the offer of a request that now holds what it wants. Another waiter tries again when this lease may expire.
--- (request: str, r: table, now: int)
function waiters.mark_taken(request, r, now)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    redis.call("ZREM", keys[i] .. "offers", request)
    waiters.ensure_check(keys[i], now, now + r[_request.LEASE_MS], "")
  end
end

-- Returns { number of waiters, request, ticket, … } in the order in which they will be served.
--- (base: str, limit: int) -> table
function waiters.list(base, limit)
  local found = redis.call("ZRANGE", base .. "waiters", 0, limit - 1, "WITHSCORES")
  table.insert(found, 1, redis.call("ZCARD", base .. "waiters"))
  return found
end

-- Returns the server's time in microseconds, by the clock that these leases run on.
--- keys: base key
--- flags: no-writes
function script.now(base, key)
  return clock.micros()
end
