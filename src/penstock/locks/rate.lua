-- The scripts of a rate limit: at most `limit` units in `per`, across all hosts, granted in order of arrival.
--
--   bucket      STRING  see core/bucket.lua; the terms are " capacity per interval", for those who look
--   window      ZSET    unit -> server microseconds at which it was used; TTL until the last one is older than `per`. A
--                       unit begins with the terms
--   waiters, checks, offers, unresponsive, units: see core/waiters.lua. replay: see core/idempotency.lua
--
--   acquire ──────────────────────────────────────────▶ granted, if the units are allowed now and nobody waits for some
--      │                                                   ▲
--      ▼ join                                              │ it tries again then
--   waiting ── one of the first: gets its moment ──▶ offered
--      ▲                                                   │ not taken within 2 s: its process is passed over
--      └───────────────────────────────────────────────────┘
--
-- A window (a sliding log) stores each unit, so that any span of `per` microseconds has at most `limit` of them.
--
-- A waiter has a position, but no units: it takes them only when it tries again and they are allowed. So a process that
-- dies while it waits uses none. Each call sends the first waiters the milliseconds until their units are allowed; they
-- sleep until then by their own clock. A waiter of another process checks two seconds later whether the first one tried
-- again. No other messages are sent while requests wait. Each reply says when the offer to the first waiter ends, and a
-- process looks on its own only after that (`last_tries.py`).
--
-- A request (core/waiters.lua) has four more values: the number of units that a full bucket holds or a window allows,
-- the kind, `per`, and the interval of a bucket, both in microseconds. The declared keys are `base`, which never
-- exists, and `stored`, the bucket or the window. Other keys are made from `base`.

_request = { LIMIT = 6, KIND = 7, PER = 8, INTERVAL = 9 }

rate = { MOST_WAITERS = 10000 } -- the most requests that wait at a time
_rate = {
  AHEAD = 8, -- waiters that know their moments in advance
  HORIZON = 50000, -- microseconds; a later moment is sent only to the first waiter
  LOOK = 300, -- waiters that one sweep looks at
  FACES = 8, -- faces that one sweep checks
  PATIENCE = 2000, -- milliseconds after which an offer goes to the next waiter
}

-- Returns the first moment at which `n` units are allowed. With more units than a window allows, that is the moment at
-- which the last unit is allowed, if each of the others is used as soon as it is allowed.
--- (n: int, now: int, per: int, limit: int) -> int
--- uses: stored
function window.allowed_at(n, now, per, limit)
  local windows = math.floor((n - 1) / limit)
  local rank = n - windows * limit - limit - 1
  local before = redis.call("ZRANGE", stored, rank, rank, "WITHSCORES")
  return math.max(now, before[2] and before[2] + per or 0) + windows * per
end

--- (id: str, n: int, now: int, per: int)
--- uses: stored
function window.take(id, n, now, per)
  local old = redis.call("ZRANGE", stored, "-inf", now - per, "BYSCORE", "LIMIT", 0, 1000)
  if #old > 0 then redis.call("ZREM", stored, unpack(old)) end
  for i = 1, n do redis.call("ZADD", stored, now, id .. "/" .. i) end
  redis.call("PEXPIRE", stored, math.ceil(per / 1000) + 1)
end

-- Returns how many units are allowed now.
--- (now: int, per: int, limit: int) -> int
--- uses: stored
function window.left(now, per, limit)
  return math.max(0, limit - redis.call("ZCOUNT", stored, string.format("(%.0f", now - per), "+inf"))
end

-- Returns the first moment at which `n` units are allowed, by the limit in a request.
--- (r: table, n: int, us: int) -> int
--- uses: stored
function rate.allowed_at(r, n, us)
  if r[_request.KIND] == "window" then return window.allowed_at(n, us, r[_request.PER], r[_request.LIMIT]) end
  return bucket.allowed_at(stored, n, us, r[_request.INTERVAL], r[_request.LIMIT])
end

-- Returns the numbers of the limit in a request, in the form in which they are stored with the units that it takes.
--- (r: table) -> str
function rate.terms(r)
  return string.format(" %.0f %.0f %.0f", r[_request.LIMIT], r[_request.PER], r[_request.INTERVAL])
end

-- Returns how many units are allowed now to a request that does not wait.
--- (r: table, us: int) -> int
--- uses: base stored
function rate.left(r, us)
  if redis.call("EXISTS", base .. "waiters") == 1 then return 0 end
  if r[_request.KIND] == "window" then return window.left(us, r[_request.PER], r[_request.LIMIT]) end
  return bucket.left(bucket.read(stored), us, r[_request.INTERVAL], r[_request.LIMIT])
end

-- Whether the units of a request are allowed now, after those of all waiters before it. Drops waiters before it whose
-- process is gone or silent, but stops looking when no units are left.
--- (view: table, request: str, r: table, us: int) -> bool
--- uses: base stored
function rate.may_pass(view, request, r, us)
  local units, i, found = 0, 1, redis.call("ZRANGE", base .. "waiters", 0, 63)
  while found[i] do
    if rate.allowed_at(r, units + r[_request.UNITS], us) > us then return false end
    if found[i] == request then return true end
    local other = cmsgpack.unpack(found[i])
    if waiters.is_silent(view, base, found[i], other, true) then
      waiters.drop(view, found[i], other)
    elseif not waiters.drop_if_gone(view, found[i], other) then
      units = units + other[_request.UNITS]
    end
    i = i + 1
  end
  return i <= 64 and rate.allowed_at(r, units + r[_request.UNITS], us) <= us
end

--- () -> bool
--- uses: base
function rate.is_full()
  return redis.call("ZCARD", base .. "waiters") >= rate.MOST_WAITERS
end

-- Drops waiters whose process is gone, so that no request is refused because of them. Looks only at the first waiters.
-- Returns 1 if all of these were gone, so that the call must be repeated because there may be more. `must`: whether to
-- sweep even if the last sweep was less than a second ago.
--- (view: table, must: bool) -> int
--- uses: base
function rate.sweep(view, must)
  if not redis.call("SET", base .. "swept", "", "NX", "PX", 1000) and not must then return 0 end
  local found, faces = redis.call("ZRANGE", base .. "waiters", 0, _rate.LOOK - 1), 0
  local dropped = 0
  for i = 1, #found do
    local r = cmsgpack.unpack(found[i])
    if view.faces[notify.face(r[_request.ADDRESS])] == nil then faces = faces + 1 end
    if faces > _rate.FACES then return 0 end
    if waiters.drop_if_gone(view, found[i], r) then dropped = dropped + 1 end
  end
  if dropped < _rate.LOOK then return 0 end
  redis.call("DEL", base .. "swept")
  return 1
end

-- Notifies the first waiters of the moments at which their units are allowed. Drops those that are gone or silent.
-- `request`: the one that tries now, which is not notified, or "". Returns two numbers: the ms until the moment of
-- `request` if it is one of the first, else -1; and the server ms until which the first waiter can take its units, 0
-- without waiters. If this call has dropped as many waiters as it may, it asks a waiter to try again in a second.
--- (view: table, us: int, request: str) -> int, int
--- uses: base stored
function rate.announce(view, us, request)
  waiters.expire_offers(base, view.now)
  local units, known, mine, till, first = 0, 0, -1, 0, nil
  while known < _rate.AHEAD and view.left > 0 do
    local packed = redis.call("ZRANGE", base .. "waiters", known, known)[1]
    local r = packed and cmsgpack.unpack(packed)
    if not packed then break end
    if waiters.is_silent(view, base, packed, r, true) then
      waiters.drop(view, packed, r)
    else
      local ms = math.ceil((rate.allowed_at(r, units + r[_request.UNITS], us) - us) / 1000)
      if known > 0 and ms * 1000 > _rate.HORIZON then break end
      local offer, ends = tonumber(redis.call("ZSCORE", base .. "offers", packed) or 0), view.now + ms + _rate.PATIENCE
      local is_known = offer > 0 and offer <= ends + 20
      if is_known or packed == request or waiters.notify(view, packed, r, tostring(ms)) then
        if not is_known or packed == request then
          offer = ends
          redis.call("ZADD", base .. "offers", ends, packed)
          redis.call("PEXPIRE", base .. "offers", ms + 600000)
          redis.call("ZADD", base .. "checks", view.now + ms, packed)
          redis.call("PEXPIRE", base .. "checks", ms + 86400000)
        end
        if packed == request then mine = ms end
        if not first then first, till = r, offer end
        units, known = units + r[_request.UNITS], known + 1
      end
    end
  end
  if first then waiters.ensure_check(view, base, till, waiters.process(first)) end
  if view.left <= 0 then waiters.ask_last(view, base, view.now + 1000, "") end
  return mine, till
end

-- One attempt to use the units of a request. `ticket`: from the reply to the last attempt; 0 for the first. `join`: 1
-- to join the waiters, or keep its position, if the units are not allowed now. `max_wait`: a new request that would
-- wait for more than these microseconds is refused; -1: none is. All attempts of one request have the same number.
-- Returns { 1, 0, units that are allowed beyond these, E, D } if the units are granted;
-- { 0, microseconds until they would be allowed, units that are allowed now } if it is refused;
-- { 2, microseconds until it should try again, ticket, E, D } if it waits;
-- { -1, microseconds until they would be allowed, 0 } if too many requests wait already;
-- { 3, 0, 0 } if it is to be repeated at once, because this call dropped as many dead waiters as one call may.
-- E: ms until the offer to the first waiter ends, 0 if it is not known. D: 1 if this call dropped waiters, else 0.
--- keys: base stored
--- args: caller: str, number: int, request: str, ticket: int, join: int, max_wait: int
function script.acquire(base, stored, caller, number, request, ticket, join, max_wait)
  local past = idempotency.replay(caller, number)
  if past then return { past[1], 0, past[2], 0, 0 } end
  local r, us = cmsgpack.unpack(request), clock.micros()
  local view, n, interval = waiters.view(math.floor(us / 1000)), r[_request.UNITS], r[_request.INTERVAL]
  if r[_request.ADDRESS] ~= "" then waiters.mark_alive(r, view.now) end

  if rate.may_pass(view, request, r, us) then
    local terms = rate.terms(r)
    local id, full = terms .. "/" .. caller .. "/" .. number, 0
    if r[_request.KIND] == "window" then
      window.take(id, n, us, r[_request.PER])
    else
      full = bucket.take(stored, n, us, interval, ticket > 0 and interval - 1 or 0, terms)
    end
    if ticket > 0 then waiters.leave(request, r) end
    local till = 0
    if redis.call("EXISTS", base .. "waiters") == 1 then till = select(2, rate.announce(view, us, "")) end
    local left = rate.left(r, us)
    idempotency.keep(caller, number, { 1, left, id, us, full })
    return { 1, 0, left, math.max(0, till - view.now), view.probe and 1 or 0 }
  end

  local units = tonumber(redis.call("GET", base .. "units") or 0)
  local wait = rate.allowed_at(r, units + n, us) - us
  local is_late = max_wait >= 0 and wait > max_wait
  if ticket == 0 and units > 0 and (join == 0 or is_late or rate.is_full()) then
    if rate.sweep(view, max_wait > 0) == 1 then return { 3, 0, 0 } end
    units = tonumber(redis.call("GET", base .. "units") or 0)
    wait = rate.allowed_at(r, units + n, us) - us
    is_late = max_wait >= 0 and wait > max_wait
  end
  if join == 0 or (ticket == 0 and is_late) then
    if ticket > 0 then waiters.leave(request, r) end
    rate.announce(view, us, "")
    return { 0, wait, rate.left(r, us) }
  end
  if ticket == 0 and rate.is_full() and not redis.call("ZSCORE", base .. "waiters", request) then
    return { -1, wait, 0 }
  end
  ticket = waiters.join(view, request, r, ticket, us)
  local ms, till = rate.announce(view, us, request)
  if ms < 0 then ms = waiters.schedule_check(view, base, request, r, till, false) end
  return { 2, ms * 1000, ticket, math.max(0, till - view.now), view.probe and 1 or 0 }
end

-- Withdraws a request: it leaves the waiters, and units that it got are given back if that is possible. If a copy of
-- its last attempt arrives later, the copy changes nothing. Always returns 1.
--- keys: base stored
--- args: caller: str, number: int, request: str
--- flags: allow-oom
function script.withdraw(base, stored, caller, number, request)
  local r, us = cmsgpack.unpack(request), clock.micros()
  local past = idempotency.replay(caller, number)
  idempotency.keep(caller, number, { 0, 0, "", 0, 0 })
  waiters.leave(request, r)
  if past and past[1] == 1 then
    if r[_request.KIND] == "window" then
      for i = 1, r[_request.UNITS] do redis.call("ZREM", stored, past[3] .. "/" .. i) end
    else
      bucket.give_back(stored, r[_request.UNITS], past[5], us, r[_request.INTERVAL])
    end
  end
  if redis.call("EXISTS", base .. "waiters") == 1 then
    rate.announce(waiters.view(math.floor(us / 1000)), us, "")
  end
  return 1
end

-- Forgets the units that were used, so that all are allowed now, first to the waiters, which are notified. While some
-- wait, a bucket is not deleted but filled: without it, a waiter that comes late for its units would be granted one
-- more than the limit. Returns 1 if units were used, else 0.
--- keys: base stored
--- args: kind: str
--- flags: allow-oom
function script.reset(base, stored, kind)
  local us, waits = clock.micros(), redis.call("EXISTS", base .. "waiters") == 1
  if redis.call("EXISTS", stored) == 0 then return 0 end
  if kind == "bucket" and waits then
    local full, terms = bucket.read(stored)
    local interval = tonumber(string.match(terms, "%d+$")) or 0
    bucket.write(stored, math.min(full, us), us, interval, terms)
  else
    redis.call("DEL", stored)
  end
  if waits then rate.announce(waiters.view(math.floor(us / 1000)), us, "") end
  return 1
end

-- Returns { server microseconds, the terms or false if no used units are stored, units that are allowed now,
-- microseconds until a new request is allowed one, sum of the units that waiters want, number of waiters, request,
-- ticket, … }.
--- keys: base stored
--- args: kind: str, limit: int
--- flags: no-writes
function script.show(base, stored, kind, limit)
  local us, terms, _ = clock.micros(), false, nil
  if kind == "window" then
    local last = redis.call("ZRANGE", stored, -1, -1)[1]
    terms = last and string.match(last, "^ %d+ %d+ %d+") or false
  elseif redis.call("EXISTS", stored) == 1 then
    _, terms = bucket.read(stored)
    if terms == "" then terms = false end
  end
  local units = tonumber(redis.call("GET", base .. "units") or 0)
  local shown = { us, terms, 0, 0, units }
  if terms then
    local capacity, per, interval = string.match(terms, "(%d+) (%d+) (%d+)")
    local r = { [_request.KIND] = kind, [_request.LIMIT] = tonumber(capacity), [_request.PER] = tonumber(per),
      [_request.INTERVAL] = tonumber(interval) }
    shown[3], shown[4] = rate.left(r, us), rate.allowed_at(r, units + 1, us) - us
  end
  local waiting = waiters.list(base, limit)
  for i = 1, #waiting do shown[5 + i] = waiting[i] end
  return shown
end
