-- The waiters for a lock or a semaphore, in order of arrival.
--
--   line      ZSET    request -> ticket, its time of arrival in server microseconds; the lowest ticket is served first
--   looks     ZSET    request -> server ms at which it asks again if no message arrives
--   offers    ZSET    request -> server ms until which it must take what was handed over to it
--   gone      ZSET    face -> server ms at which it had not taken an offer; it is passed over until it sends something
--
--            join             offer, by a release            taken
--   (none) ───────▶ waiting ───────────────────────▶ offered ───────▶ holder
--              ▲       │ leave, or silent             │ not taken within 2 s
--              └───────┴──────────────────────────────┘ may come back with its old ticket
--
-- A request is one attempt of a process: { token, lease ms, address, { base, key, … }, permits, limit } in MessagePack.
-- It has a pair of `base` and `key` for each thing that it wants. A message to its address (notify.lua) asks it to try
-- again in so many milliseconds. State is written before a message is sent, so a lost message costs time only.
--
-- Waiters do not poll. When something may expire, one waiter tries again at that time, and one of another process a
-- third of a second later. The others try again so rarely that all of them together do it once in 10 s. After an offer
-- to one process a waiter of another process checks whether it was taken.

-- Removes a request from the waiters for all that it wants. `freed` collects these things, as pairs of base and key.
--- (request: str, r: table, freed: table | nil)
function waiters.leave(request, r, freed)
  for i = 1, #r[4], 2 do
    redis.call("ZREM", r[4][i] .. "line", request)
    redis.call("ZREM", r[4][i] .. "looks", request)
    if freed then
      freed[#freed + 1] = r[4][i]
      freed[#freed + 1] = r[4][i + 1]
    end
  end
end

-- Drops the offers that were not taken in time. Their faces are passed over from now on.
--- (base: str, now: int)
function waiters.lapse(base, now)
  local late = redis.call("ZRANGE", base .. "offers", "-inf", now, "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #late do
    redis.call("ZREM", base .. "offers", late[i])
    redis.call("ZADD", base .. "gone", now, notify.face(cmsgpack.unpack(late[i])[3]))
    redis.call("PEXPIRE", base .. "gone", 600000)
  end
end

-- The face of this request is alive: it is not passed over any longer.
--- (r: table, now: int)
function waiters.heard(r, now)
  for i = 1, #r[4], 2 do
    waiters.lapse(r[4][i], now)
    redis.call("ZREM", r[4][i] .. "gone", notify.face(r[3]))
  end
end

-- Whether to pass a waiter over: it is three seconds late, or its face did not take an offer.
--- (base: str, request: str, r: table, now: int) -> bool
function waiters.silent(base, request, r, now)
  local look = redis.call("ZSCORE", base .. "looks", request)
  return (look and look + 3000 < now) or redis.call("ZSCORE", base .. "gone", notify.face(r[3])) ~= false
end

-- Returns the first waiter that is alive, unpacked too, and its ticket. Removes the silent ones before it, at most 500.
--- (base: str, now: int, freed: table) -> str | nil, table, int
function waiters.head(base, now, freed)
  local looked = false
  for _ = 1, 500 do
    local found = redis.call("ZRANGE", base .. "line", 0, 0, "WITHSCORES")
    if not found[1] then return end
    if not looked then waiters.lapse(base, now) end
    looked = true
    local r = cmsgpack.unpack(found[1])
    if not waiters.silent(base, found[1], r, now) then return found[1], r, tonumber(found[2]) end
    waiters.leave(found[1], r, freed)
  end
end

-- Adds a request to the waiters: at the end, or with the ticket of an earlier attempt at its old place.
-- Returns the ticket.
--- (request: str, r: table, ticket: int, us: int) -> int
function waiters.join(request, r, ticket, us)
  if ticket == 0 then
    ticket = us
    for i = 1, #r[4], 2 do
      local last = redis.call("ZRANGE", r[4][i] .. "line", -1, -1, "WITHSCORES")
      if last[2] then ticket = math.max(ticket, last[2] + 1) end
    end
  end
  for i = 1, #r[4], 2 do
    redis.call("ZADD", r[4][i] .. "line", ticket, request)
    redis.call("PEXPIRE", r[4][i] .. "line", 86400000)
  end
  return ticket
end

-- Returns for how many ms a waiter may sleep, if something may expire at `due`.
--- (base: str, request: str, r: table, now: int, due: int) -> int
function waiters.sleep(base, request, r, now, due)
  local lookers = redis.call("ZRANGE", base .. "looks", "(" .. now, due + 300, "BYSCORE", "LIMIT", 0, 4)
  local others, mine = 0, notify.face(r[3])
  for i = 1, #lookers do
    if lookers[i] ~= request then
      others = others + (notify.face(cmsgpack.unpack(lookers[i])[3]) == mine and 2 or 1)
    end
  end
  local ms = math.min(14400000, 10000 * math.max(2, redis.call("ZCARD", base .. "line")))
  if others < 2 then ms = math.min(ms, math.max(1, due - now + 300 * others)) end
  redis.call("ZADD", base .. "looks", now + ms, request)
  redis.call("PEXPIRE", base .. "looks", 86400000)
  return ms
end

-- Ensures that a waiter of another face than `except` tries again at `at`. If no one does so yet, the last to arrive is
-- asked to.
--- (base: str, now: int, at: int, except: str)
function waiters.watch(base, now, at, except)
  local lookers = redis.call("ZRANGE", base .. "looks", "(" .. now, at + 300, "BYSCORE", "LIMIT", 0, 4)
  for i = 1, #lookers do
    if notify.face(cmsgpack.unpack(lookers[i])[3]) ~= except then return end
  end
  local last = redis.call("ZRANGE", base .. "line", 0, 7, "REV")
  for i = 1, #last do
    local r = cmsgpack.unpack(last[i])
    if notify.face(r[3]) ~= except then
      redis.call("ZADD", base .. "looks", at, last[i])
      notify.send_to_inbox(r[3], at - now)
      return
    end
  end
end

-- Makes an offer to a waiter, which was given what it wants for `ms`. Its next attempt takes that for its whole lease.
--- (request: str, r: table, now: int, ms: int)
function waiters.offer(request, r, now, ms)
  waiters.leave(request, r)
  for i = 1, #r[4], 2 do
    redis.call("ZADD", r[4][i] .. "offers", now + ms, request)
    redis.call("PEXPIRE", r[4][i] .. "offers", 600000)
  end
  notify.send_to_inbox(r[3], 0)
  for i = 1, #r[4], 2 do waiters.watch(r[4][i], now, now + ms, notify.face(r[3])) end
end

-- A waiter has taken its offer. Another one tries again when this lease may expire.
--- (request: str, r: table, now: int)
function waiters.taken(request, r, now)
  for i = 1, #r[4], 2 do
    redis.call("ZREM", r[4][i] .. "offers", request)
    waiters.watch(r[4][i], now, now + r[2], "")
  end
end

-- Returns { number of waiters, request, ticket, … } in the order in which they will be served.
--- (base: str, limit: int) -> table
function waiters.waiting(base, limit)
  local found = redis.call("ZRANGE", base .. "line", 0, limit - 1, "WITHSCORES")
  table.insert(found, 1, redis.call("ZCARD", base .. "line"))
  return found
end

-- Returns the server microseconds, by the clock that decides about these leases.
--- keys: base place
--- flags: no-writes
function script.now(base, place)
  return clock.micros()
end
