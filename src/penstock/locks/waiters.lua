-- The line before a lock or a semaphore: who waits, in order of arrival, and who looks when nobody tells.
--
--   line      ZSET    request -> ticket, server microseconds      who came first is served first
--   looks     ZSET    request -> server ms                        when it comes by itself, if nobody tells it to
--   offers    ZSET    request -> server ms                        what was handed to it, and until when it must take it
--   gone      ZSET    process -> server ms                        did not take it: passed over until heard of
--
--            join            offer (by who hands over)        taken
--   (none) ───────▶ in line ───────────────────────▶ offered ───────▶ holds
--              ▲       │ leave, or silent             │ not taken within 2 s
--              └───────┴──────────────────────────────┘ it may come back, with its old ticket
--
-- A request is what its process minted, in MessagePack: { token, lease ms, address, { base, key, … }, permits, limit }.
-- `base` and `key` stand for each thing it wants. An address is the key of an inbox, `/`, and a number; a message
-- is "<number> <ms>": come in so many milliseconds. State is written first, so a lost message costs time only.
--
-- Nobody polls. Of the requests in a line two look when something can run out (the second 300 ms later, from
-- another process), the others once in 10 s for all of them together. Who hands over to one process sees to it that
-- another looks whether it was taken.

-- Out of all its lines. `freed` collects what it stood before.
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

-- Offers that were not taken: their processes are passed over from here on.
--- (base: str, now: int)
function waiters.lapse(base, now)
  local late = redis.call("ZRANGE", base .. "offers", "-inf", now, "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #late do
    redis.call("ZREM", base .. "offers", late[i])
    redis.call("ZADD", base .. "gone", now, notify.face(cmsgpack.unpack(late[i])[3]))
    redis.call("PEXPIRE", base .. "gone", 600000)
  end
end

-- Its process is alive.
--- (r: table, now: int)
function waiters.heard(r, now)
  for i = 1, #r[4], 2 do
    waiters.lapse(r[4][i], now)
    redis.call("ZREM", r[4][i] .. "gone", notify.face(r[3]))
  end
end

-- It should have come three seconds ago, or its process does not take what is handed to it.
--- (base: str, request: str, r: table, now: int) -> bool
function waiters.silent(base, request, r, now)
  local look = redis.call("ZSCORE", base .. "looks", request)
  return (look and look + 3000 < now) or redis.call("ZSCORE", base .. "gone", notify.face(r[3])) ~= false
end

-- The first in line that is alive, and its ticket. At most 500 silent ones are passed over in one go.
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

-- To the end of the line; or, with the ticket of an earlier time, to its old place.
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

-- For how many ms it may sleep, when at `due` something can run out.
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

-- See to it that somebody looks at `at`, from another process than `except`: who came last, if nobody does by now.
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

-- It was given what it wants for `ms`, and is told; when it comes it gets it for its whole lease.
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

-- It holds what it wanted; somebody looks whether its lease runs out.
--- (request: str, r: table, now: int)
function waiters.taken(request, r, now)
  for i = 1, #r[4], 2 do
    redis.call("ZREM", r[4][i] .. "offers", request)
    waiters.watch(r[4][i], now, now + r[2], "")
  end
end

-- { how many, request, ticket, … } in the order in which they will be served.
--- (base: str, limit: int) -> table
function waiters.waiting(base, limit)
  local found = redis.call("ZRANGE", base .. "line", 0, limit - 1, "WITHSCORES")
  table.insert(found, 1, redis.call("ZCARD", base .. "line"))
  return found
end

-- Server microseconds, by the clock that decides about this line.
--- keys: base place
--- flags: no-writes
function script.now(base, place)
  return clock.micros()
end
