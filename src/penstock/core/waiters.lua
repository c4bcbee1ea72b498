-- Requests that wait for one thing, such as a lock, and are served in order of arrival.
--
--   waiters       ZSET  request -> ticket: its time of arrival in server microseconds; the lowest is served first
--   checks        ZSET  request -> server ms at which it tries again if no message arrives
--   offers        ZSET  request -> server ms until which it can take what was handed over to it
--   unresponsive  ZSET  face that let an offer expire -> server ms of that; skipped until one of its waiters tries
--                       again
--   units         STRING  how many units the waiters want together, if requests have units; TTL a day after the last
--                       arrival
--
--            join             offer, by a release            taken
--   (none) ───────▶ waiting ───────────────────────▶ offered ───────▶ holder
--              ▲       │ leave, or silent             │ not taken within 2 s
--              └───────┴──────────────────────────────┘ may come back with its old ticket
--
-- A request is an array in MessagePack, which each attempt sends again. Its noun may append more values:
--
--   token     names the process that made it, see `core/ids.py`
--   lease ms  for how long it has what it is granted, unless it renews that
--   address   a message to it (notify.lua) asks for an attempt in a given number of milliseconds, or grants the
--             request; "": it does not wait
--   keys      { base, key, … }: a pair for each thing that it wants. The keys above are made from `base`
--   units     how many it wants of a thing that is used up. Such a request remains a waiter while it has an offer. 0:
--             it wants the thing itself, and an offer makes it the holder
--
-- A waiter whose process has gone is not subscribed to messages any longer. It is dropped when it would be served, or
-- when it blocks another waiter. If the process has only lost its connection, it asks again with its old ticket.
--
-- Waiters do not poll. When a lease or an offer may expire, one waiter tries again at that time, and its deputy
-- (deputy.lua) after that. After an offer to one process, a waiter of another process checks whether the offer was
-- taken. If all waiters that should check have died, some waiter of each process tries again within seconds
-- (`locks/last_tries.py`). If it finds that the holder has not renewed its lease, it tries once more when that lease
-- ends.

_request = { TOKEN = 1, LEASE_MS = 2, ADDRESS = 3, KEYS = 4, UNITS = 5 }
_most = { DROPPED = 300, ASKED = 8 } -- waiters that one call drops; waiters that it asks for a check
_sweep = { FROM = 64, WAITERS = 2 } -- a new waiter sweeps if there are this many; it looks at this many

-- What one call of a script knows about the waiters:
--
--   now    server ms
--   left   how many more waiters it may drop
--   freed  pairs of base and key for which another waiter may be the first one now
--   faces  face -> whether it is subscribed to messages
--   probe  whether some waiter was dropped; from then on each face is checked before its waiters are considered
--- (now: int) -> table
--- inline
function waiters.view(now)
  return { now = now, left = _most.DROPPED, freed = {}, faces = {}, probe = false }
end

-- The process of a request: host and process id from its token, or its face if another program made the token.
--- (r: table) -> str
function waiters.process(r)
  return string.match(r[_request.TOKEN], "^penstock/[^/]*/%d+/") or notify.face(r[_request.ADDRESS])
end

-- Whether the face of a request is subscribed to messages.
--- (view: table, r: table) -> bool
function waiters.is_reached(view, r)
  local face = notify.face(r[_request.ADDRESS])
  if view.faces[face] == nil then view.faces[face] = notify.reaches(r[_request.ADDRESS]) end
  return view.faces[face]
end

-- Drops a waiter if its process cannot be notified. Returns whether it did.
--- (view: table, request: str, r: table) -> bool
function waiters.drop_if_gone(view, request, r)
  if waiters.is_reached(view, r) then return false end
  waiters.drop(view, request, r)
  return true
end

-- Sends a message to a waiter: the milliseconds after which to try again, or, if `is_reached`, a grant. Returns false
-- if its process is gone, and drops the waiter.
--- (view: table, request: str, r: table, text: str) -> bool
function waiters.notify(view, request, r, text)
  local sent = notify.send(r[_request.ADDRESS], text)
  view.faces[notify.face(r[_request.ADDRESS])] = sent
  if not sent then waiters.drop(view, request, r) end
  return sent
end

-- Removes a request from the waiters for all that it wants.
--- (request: str, r: table)
function waiters.leave(request, r)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    local waited = redis.call("ZREM", keys[i] .. "waiters", request)
    redis.call("ZREM", keys[i] .. "checks", request)
    if r[_request.UNITS] > 0 then
      redis.call("ZREM", keys[i] .. "offers", request)
      if waited == 1 and redis.call("DECRBY", keys[i] .. "units", r[_request.UNITS]) <= 0 then
        redis.call("DEL", keys[i] .. "units")
      end
    end
  end
end

-- Notes that another waiter may be the first one now for all that this request wants.
--- (view: table, r: table)
function waiters.note_freed(view, r)
  local keys = r[_request.KEYS]
  for i = 1, #keys do view.freed[#view.freed + 1] = keys[i] end
end

-- Drops a waiter whose process is silent or gone.
--- (view: table, request: str, r: table)
function waiters.drop(view, request, r)
  view.left, view.probe = view.left - #r[_request.KEYS] / 2, true
  waiters.leave(request, r)
  waiters.note_freed(view, r)
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

-- Records that the face of a request is alive, so that its waiters are no longer skipped. Those that were dropped
-- meanwhile are asked to try again.
--- (r: table, now: int)
function waiters.mark_alive(r, now)
  local keys, face = r[_request.KEYS], notify.face(r[_request.ADDRESS])
  for i = 1, #keys, 2 do
    waiters.expire_offers(keys[i], now)
    if redis.call("ZREM", keys[i] .. "unresponsive", face) == 1 then notify.send_all(face, "0") end
  end
end

-- Whether to skip a waiter: its process is gone, its check is three seconds overdue, or its face did not take an offer.
-- `passes_over`: whether some face did not take an offer.
--- (view: table, base: str, request: str, r: table, passes_over: bool) -> bool
function waiters.is_silent(view, base, request, r, passes_over)
  local face = notify.face(r[_request.ADDRESS])
  if (view.probe or view.faces[face] == false) and not waiters.is_reached(view, r) then return true end
  local check = redis.call("ZSCORE", base .. "checks", request)
  if check and check + 3000 < view.now then return true end
  return passes_over and redis.call("ZSCORE", base .. "unresponsive", face) ~= false
end

-- Returns the first waiter: packed, unpacked, and its ticket. Drops the silent ones before it. If it may not drop any
-- more of them (`view.left`), it returns the first that it did not look at.
--- (view: table, base: str) -> str | nil, table, int
function waiters.head(view, base)
  local found = redis.call("ZRANGE", base .. "waiters", 0, 0, "WITHSCORES")
  local passes_over = found[1] and redis.call("EXISTS", base .. "offers", base .. "unresponsive") > 0
  if passes_over then waiters.expire_offers(base, view.now) end
  while found[1] do
    for i = 1, #found, 2 do
      local r = cmsgpack.unpack(found[i])
      if view.left <= 0 or not waiters.is_silent(view, base, found[i], r, passes_over) then
        return found[i], r, tonumber(found[i + 1])
      end
      waiters.drop(view, found[i], r)
    end
    found = redis.call("ZRANGE", base .. "waiters", 0, 31, "WITHSCORES")
  end
end

-- Whether no live waiter is before a request. `ticket`: its ticket, or 0 if it does not wait yet.
--- (view: table, base: str, request: str, ticket: int) -> bool
function waiters.is_first(view, base, request, ticket)
  repeat
    local head, r, before = waiters.head(view, base)
    if not head or head == request or (ticket > 0 and ticket < before) then return true end
  until view.left <= 0 or not waiters.drop_if_gone(view, head, r)
  return false
end

-- Drops some of the waiters that are gone. Without this they would accumulate while one holder keeps the thing.
--- (view: table, base: str)
function waiters.sweep(view, base)
  if redis.call("ZCARD", base .. "waiters") < _sweep.FROM then return end
  for _, request in ipairs(redis.call("ZRANDMEMBER", base .. "waiters", _sweep.WAITERS)) do
    waiters.drop_if_gone(view, request, cmsgpack.unpack(request))
  end
end

-- Adds a request to the waiters: at the end, or, with the ticket of an earlier attempt, at its old position.
-- Returns the ticket.
--- (view: table, request: str, r: table, ticket: int, us: int) -> int
function waiters.join(view, request, r, ticket, us)
  local keys = r[_request.KEYS]
  if ticket == 0 then
    ticket = us
    for i = 1, #keys, 2 do
      waiters.sweep(view, keys[i])
      local last = redis.call("ZRANGE", keys[i] .. "waiters", -1, -1, "WITHSCORES")
      if last[2] then ticket = math.max(ticket, last[2] + 1) end
    end
  end
  for i = 1, #keys, 2 do
    local added = redis.call("ZADD", keys[i] .. "waiters", ticket, request)
    redis.call("PEXPIRE", keys[i] .. "waiters", 86400000)
    if r[_request.UNITS] > 0 then
      if added == 1 then redis.call("INCRBY", keys[i] .. "units", r[_request.UNITS]) end
      redis.call("PEXPIRE", keys[i] .. "units", 86400000)
    end
  end
  return ticket
end

-- Schedules the next check of a waiter. Returns the ms until then. `due`: when a lease or an offer may expire. Two
-- waiters of different processes check at that time, and the others in an hour, unless the holder `is_late`.
--- (view: table, base: str, request: str, r: table, due: int, is_late: bool) -> int
function waiters.schedule_check(view, base, request, r, due, is_late)
  local checks = redis.call("ZRANGE", base .. "checks", "(" .. view.now, due + _deputy.DUE, "BYSCORE", "LIMIT", 0, 4)
  local others, seen = 0, {}
  for i = 1, #checks do
    local process = waiters.process(cmsgpack.unpack(checks[i]))
    if checks[i] ~= request and not seen[process] then
      -- A waiter of the same process counts as two: if that process died, this waiter would not check either.
      others = others + (process == waiters.process(r) and 2 or 1)
      seen[process] = true
    end
  end
  local ms = 3600000
  if others < 2 or is_late then ms = math.min(ms, math.max(1, due - view.now + _deputy.DUE * math.min(others, 2))) end
  redis.call("ZADD", base .. "checks", view.now + ms, request)
  redis.call("PEXPIRE", base .. "checks", 86400000)
  return ms
end

-- Adds a request to the waiters, or keeps its position, and schedules its next check. Returns the ticket and the ms
-- until the check. `due`: when a lease may expire.
--- (view: table, request: str, r: table, ticket: int, us: int, due: int) -> int, int
function waiters.wait(view, request, r, ticket, us, due)
  -- A holder that is alive has renewed its lease after a third of it.
  local is_late = ticket > 0 and due - view.now < 0.6 * r[_request.LEASE_MS]
  -- A new waiter tries again in 2 s, in case an offer that is open now is not taken.
  if ticket == 0 then due = math.min(due, view.now + 2000) end
  ticket = waiters.join(view, request, r, ticket, us)
  local keys, ms = r[_request.KEYS], math.huge
  for i = 1, #keys, 2 do ms = math.min(ms, waiters.schedule_check(view, keys[i], request, r, due, is_late)) end
  return ticket, ms
end

-- Asks the waiter that arrived last, of a process other than `except`, to try again at `at`.
--- (view: table, base: str, at: int, except: str)
function waiters.ask_last(view, base, at, except)
  local last = redis.call("ZRANGE", base .. "waiters", 0, _most.ASKED - 1, "REV")
  for i = 1, #last do
    local r = cmsgpack.unpack(last[i])
    if waiters.process(r) ~= except and waiters.notify(view, last[i], r, tostring(at - view.now)) then
      redis.call("ZADD", base .. "checks", at, last[i])
      return
    end
  end
end

-- Ensures that a waiter of some process other than `except` tries again at `at`.
--- (view: table, base: str, at: int, except: str)
function waiters.ensure_check(view, base, at, except)
  local checks = redis.call("ZRANGE", base .. "checks", "(" .. view.now, at + _deputy.DUE, "BYSCORE", "LIMIT", 0, 4)
  for i = 1, #checks do
    if waiters.process(cmsgpack.unpack(checks[i])) ~= except then return end
  end
  waiters.ask_last(view, base, at, except)
end

-- Records that a waiter, which was notified, can take what it wants within `ms`. When it tries again, or confirms the
-- grant, it takes the offer and gets the whole lease.
--- (view: table, request: str, r: table, ms: int)
function waiters.offer(view, request, r, ms)
  local keys = r[_request.KEYS]
  waiters.leave(request, r)
  for i = 1, #keys, 2 do
    redis.call("ZADD", keys[i] .. "offers", view.now + ms, request)
    redis.call("PEXPIRE", keys[i] .. "offers", 600000)
  end
  local process = waiters.process(r)
  for i = 1, #keys, 2 do waiters.ensure_check(view, keys[i], view.now + ms, process) end
end

-- Ends the offer of a request that now holds what it wants. Another waiter tries again when this lease may expire.
--- (view: table, request: str, r: table)
function waiters.mark_taken(view, request, r)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    redis.call("ZREM", keys[i] .. "offers", request)
    waiters.ensure_check(view, keys[i], view.now + r[_request.LEASE_MS], "")
  end
end

-- Removes a request that is granted now from the waiters, if it was one of them.
--- (view: table, request: str, r: table, ticket: int)
function waiters.stop_waiting(view, request, r, ticket)
  if ticket == 0 then return end
  waiters.leave(request, r)
  waiters.mark_taken(view, request, r)
end

-- Ends the offer and the wait of a request that is released. Returns whether it was waiting; then the caller has to
-- ensure that another waiter checks.
--- (request: str, r: table) -> bool
function waiters.withdraw(request, r)
  if r[_request.ADDRESS] == "" then return false end
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do redis.call("ZREM", keys[i] .. "offers", request) end
  if not redis.call("ZSCORE", keys[1] .. "waiters", request) then return false end
  waiters.leave(request, r)
  return true
end

-- Returns { number of waiters, request, ticket, … } in the order in which they will be served.
--- (base: str, limit: int) -> table
function waiters.list(base, limit)
  local found = redis.call("ZRANGE", base .. "waiters", 0, limit - 1, "WITHSCORES")
  table.insert(found, 1, redis.call("ZCARD", base .. "waiters"))
  return found
end
