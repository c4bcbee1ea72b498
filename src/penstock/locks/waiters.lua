-- The waiters for a lock or a semaphore, in order of arrival.
--
--   waiters       ZSET  request -> ticket: its time of arrival in server microseconds; the lowest is served first
--   checks        ZSET  request -> server ms at which it tries again if no message arrives
--   offers        ZSET  request -> server ms until which it must take what was handed over to it
--   unresponsive  ZSET  face -> server ms at which its offer had expired; passed over until it sends something
--
--            join             offer, by a release            taken
--   (none) ───────▶ waiting ───────────────────────▶ offered ───────▶ holder
--              ▲       │ leave, or silent             │ not taken within 2 s
--              └───────┴──────────────────────────────┘ may come back with its old ticket
--
-- A request is one attempt of a process: { token, lease ms, address, { base, key, … }, permits, limit } in MessagePack.
-- It has a pair of `base` and `key` for each lock or semaphore that it wants. A message to its address (notify.lua)
-- asks it to try again after a given number of milliseconds. State is written before a message is sent, so a lost
-- message costs only time.
--
-- Waiters do not poll. When a lease or an offer may expire, one waiter tries again at that time, and a waiter of
-- another process a third of a second later. All other waiters together try again only once in 10 s. After an offer to
-- one process, a waiter of another process checks whether the offer was taken.

_request = { TOKEN = 1, LEASE_MS = 2, ADDRESS = 3, PLACES = 4, PERMITS = 5, LIMIT = 6 }

-- Removes a request from the waiters of each place that it waits for. `freed` collects these pairs of base and key.
--- (request: str, r: table, freed: table | nil)
function waiters.leave(request, r, freed)
  local places = r[_request.PLACES]
  for i = 1, #places, 2 do
    redis.call("ZREM", places[i] .. "waiters", request)
    redis.call("ZREM", places[i] .. "checks", request)
    if freed then
      freed[#freed + 1] = places[i]
      freed[#freed + 1] = places[i + 1]
    end
  end
end

-- Drops the offers that were not taken in time. Their faces are passed over from now on.
--- (base: str, now: int)
function waiters.expire_offers(base, now)
  local late = redis.call("ZRANGE", base .. "offers", "-inf", now, "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #late do
    redis.call("ZREM", base .. "offers", late[i])
    redis.call("ZADD", base .. "unresponsive", now, notify.face(cmsgpack.unpack(late[i])[_request.ADDRESS]))
    redis.call("PEXPIRE", base .. "unresponsive", 600000)
  end
end

-- The face of this request is alive: it is not passed over any longer.
--- (r: table, now: int)
function waiters.mark_alive(r, now)
  local places = r[_request.PLACES]
  for i = 1, #places, 2 do
    waiters.expire_offers(places[i], now)
    redis.call("ZREM", places[i] .. "unresponsive", notify.face(r[_request.ADDRESS]))
  end
end

-- Whether to pass a waiter over: its check is three seconds overdue, or its face did not take an offer.
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
  local places = r[_request.PLACES]
  if ticket == 0 then
    ticket = us
    for i = 1, #places, 2 do
      local last = redis.call("ZRANGE", places[i] .. "waiters", -1, -1, "WITHSCORES")
      if last[2] then ticket = math.max(ticket, last[2] + 1) end
    end
  end
  for i = 1, #places, 2 do
    redis.call("ZADD", places[i] .. "waiters", ticket, request)
    redis.call("PEXPIRE", places[i] .. "waiters", 86400000)
  end
  return ticket
end

-- Returns for how many ms a waiter may sleep, if something may expire at `due`.
--- (base: str, request: str, r: table, now: int, due: int) -> int
function waiters.sleep(base, request, r, now, due)
  local checks = redis.call("ZRANGE", base .. "checks", "(" .. now, due + 300, "BYSCORE", "LIMIT", 0, 4)
  local others, mine = 0, notify.face(r[_request.ADDRESS])
  for i = 1, #checks do
    if checks[i] ~= request then
      others = others + (notify.face(cmsgpack.unpack(checks[i])[_request.ADDRESS]) == mine and 2 or 1)
    end
  end
  local ms = math.min(14400000, 10000 * math.max(2, redis.call("ZCARD", base .. "waiters")))
  if others < 2 then ms = math.min(ms, math.max(1, due - now + 300 * others)) end
  redis.call("ZADD", base .. "checks", now + ms, request)
  redis.call("PEXPIRE", base .. "checks", 86400000)
  return ms
end

-- Ensures that a waiter of another face than `except` tries again at `at`. If none is going to, sends a message to the
-- one that arrived last.
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

-- Makes an offer to a waiter that was just granted its request for `ms`. Its next attempt takes the offer, for its
-- whole lease.
--- (request: str, r: table, now: int, ms: int)
function waiters.offer(request, r, now, ms)
  local places = r[_request.PLACES]
  waiters.leave(request, r)
  for i = 1, #places, 2 do
    redis.call("ZADD", places[i] .. "offers", now + ms, request)
    redis.call("PEXPIRE", places[i] .. "offers", 600000)
  end
  notify.send_to_inbox(r[_request.ADDRESS], 0)
  local face = notify.face(r[_request.ADDRESS])
  for i = 1, #places, 2 do waiters.ensure_check(places[i], now, now + ms, face) end
end

-- A waiter has taken its offer. Another one tries again when this lease may expire.
--- (request: str, r: table, now: int)
function waiters.taken(request, r, now)
  local places = r[_request.PLACES]
  for i = 1, #places, 2 do
    redis.call("ZREM", places[i] .. "offers", request)
    waiters.ensure_check(places[i], now, now + r[_request.LEASE_MS], "")
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
--- keys: base place
--- flags: no-writes
function script.now(base, place)
  return clock.micros()
end
