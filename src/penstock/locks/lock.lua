-- The scripts of a lock: one owner at a time, and a fence that is higher for each owner.
--
--             acquire                          release
--   free ───────────────────▶ held ─────────────────────────▶ free
--     ▲                       │  │ ▲                            │ there is a waiter
--     └─── its lease expired ─┘  └─┘ renew                      ▼
--                                       taken              held by the first waiter, for 2 s
--                             held ◀───────────────────────────┘
--
--   <name>    STRING  the token of the owner; PX its lease. Other lock libraries use the same format
--   fence     STRING  the last fence; PX the lease and an hour
--   holder    STRING  the address at which the owner is notified when the lock is broken; PX its lease
--   broken    see breaking.lua
--   waiters, checks, offers, unresponsive: see core/waiters.lua
--
-- All keys but `<name>` are made from `base`, a key that has the slot of the name and never exists. Because it is
-- missing, the server refuses the whole script while the slot is being migrated.
--
-- Several locks can be acquired together: the request then has a pair of `base` and `<name>` for each. It gets all of
-- them or none, and only when it is the first waiter of each. This cannot deadlock: tickets follow the order in which
-- requests reach the server, so of all waiters the one with the lowest ticket is the first at each of its locks.
--
-- A token that does not begin with `penstock/` is from another library, whose release sends no message. Therefore a
-- waiter for such a lock tries again every five seconds.

_reserve = { MS = 2000 } -- a waiter must confirm a lock that was handed over to it within this time

-- Stores the next fence of these locks, and returns it. `ms`: the lease of their owner. The fence comes from the clock,
-- so it is higher than all earlier ones even if a failover lost the last of them.
--- (keys: table, us: int, ms: int) -> int
function lock.mint_fence(keys, us, ms)
  local fence, keep = us, ms + 3600000
  if #keys == 2 then
    local last = redis.call("SET", keys[1] .. "fence", us, "PX", keep, "GET")
    if not last or tonumber(last) < us then return us end
    fence = last + 1
  else
    for i = 1, #keys, 2 do fence = math.max(fence, (redis.call("GET", keys[i] .. "fence") or 0) + 1) end
  end
  for i = 1, #keys, 2 do redis.call("SET", keys[i] .. "fence", fence, "PX", keep) end
  return fence
end

-- Makes a request the owner of all its locks, for `ms`.
--- (r: table, ms: int)
function lock.give(r, ms)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do redis.call("SET", keys[i + 1], r[_request.TOKEN], "PX", ms) end
end

-- Grants a request all its locks, for its lease. Returns the reply to it.
--- (r: table, us: int) -> table
function lock.grant(r, us)
  local fence = lock.mint_fence(r[_request.KEYS], us, r[_request.LEASE_MS])
  lock.give(r, r[_request.LEASE_MS])
  return { 1, fence, 0, us }
end

-- Extends the leases of a request to `ms` from now, unless they last longer already.
--- (r: table, ms: int)
function lock.extend(r, ms)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    redis.call("PEXPIRE", keys[i + 1], ms, "GT")
    redis.call("PEXPIRE", keys[i] .. "fence", ms + 3600000, "GT")
  end
end

-- Whether all the locks that a waiter wants are free, and it is the first waiter of each.
--- (view: table, request: str, r: table, ticket: int) -> bool
function lock.can_give(view, request, r, ticket)
  local keys = r[_request.KEYS]
  for i = 1, #keys, 2 do
    if redis.call("EXISTS", keys[i + 1]) == 1 then return false end
    if not waiters.is_first(view, keys[i], request, ticket) then return false end
  end
  return true
end

-- Hands each free lock in `view.freed` over to its first waiter. The list grows when a waiter is dropped. `is_free`:
-- whether the first lock is known to be free. Returns 1 if it dropped as many dead waiters as one call may and has not
-- finished; then the caller repeats the call. In case the caller dies, a waiter is asked to try again in a second.
--- (view: table, us: int, is_free: bool) -> int
function lock.hand_over(view, us, is_free)
  local freed, i = view.freed, 1
  while i < #freed and i < 2000 and view.left > 0 do
    if (is_free and i == 1) or redis.call("EXISTS", freed[i + 1]) == 0 then
      local head, r, ticket = waiters.head(view, freed[i])
      if head and #r[_request.KEYS] > 2 and not lock.can_give(view, head, r, ticket) then
        waiters.drop_if_gone(view, head, r) -- so that it does not block the next one
      elseif head and not waiters.drop_if_gone(view, head, r) then
        -- The waiter was probed first. A grant must not be the probe: even if it finds no subscriber at this node, it
        -- might reach the waiter at another one, and the waiter would rely on a lock that the next waiter gets.
        local ms = math.min(r[_request.LEASE_MS], _reserve.MS)
        local fence = lock.mint_fence(r[_request.KEYS], us, ms)
        waiters.notify(view, head, r, string.format("grant %.0f %.0f %d", fence, us, ms))
        lock.give(r, ms)
        waiters.offer(view, head, r, ms)
      end
    end
    i = i + 2
  end
  if view.left > 0 and i > #freed then return 0 end
  for j = math.max(1, i - 2), math.min(#freed, i + 18), 2 do
    waiters.ask_last(view, freed[j], view.now + 1000, "")
  end
  return 1
end

-- Returns when to try again: when the first of these leases expires, but within five seconds if another library holds
-- one of the locks.
--- (keys: table, now: int) -> int
function lock.due(keys, now)
  local due = now + 3600000
  for i = 1, #keys, 2 do
    local left = redis.call("PTTL", keys[i + 1])
    local ours = string.sub(redis.call("GET", keys[i + 1]) or "", 1, 9) == "penstock/"
    if left < 0 or not ours then left = math.min(5000, left < 0 and 5000 or left) end
    due = math.min(due, now + left + 1)
  end
  return due
end

-- The first attempt to acquire one lock, in two frequent cases: the lock has no waiters, or it is held and the request
-- does not want to wait. Returns the reply; false in all other cases.
--- (r: table, us: int, join: int) -> table | bool
--- uses: base name
function lock.try_at_once(r, us, join)
  local token
  if redis.call("EXISTS", base .. "waiters") == 0 then
    token = redis.pcall("SET", name, r[_request.TOKEN], "NX", "GET", "PX", r[_request.LEASE_MS])
    if not token then return { 1, lock.mint_fence(r[_request.KEYS], us, r[_request.LEASE_MS]), 0, us } end
  elseif join == 0 then
    token = redis.pcall("GET", name)
  end
  return join == 0 and type(token) == "string" and token ~= r[_request.TOKEN] and { 0, 0, -1, us }
end

-- One attempt to acquire the locks of a request. If it holds them already, their leases start again.
-- KEYS: base and name of each lock, as in the request. `ticket`: from the reply to the last attempt; 0 for the first.
-- `join`: 1 to join the waiters, or keep the position among them, if the locks are not granted.
-- Returns { 1, fence, 0, now }, { 0, ticket, ms until it should try again, now }, or { -1, number of a name that holds
-- other data }. `now` is in microseconds. 0 ms: this call dropped as many dead waiters as one call may, and does not
-- know yet whether the locks can be granted; it is to be repeated at once.
--- keys: base name
--- args: request: str, ticket: int, join: int
function script.acquire(base, name, request, ticket, join)
  local us = clock.micros()
  local now = math.floor(us / 1000)
  local r = cmsgpack.unpack(request)
  if r[_request.ADDRESS] ~= "" then waiters.mark_alive(r, now) end
  local answer = ticket == 0 and #KEYS == 2 and lock.try_at_once(r, us, join)
  if answer then return answer end
  local mine, busy = {}, false
  for i = 2, #KEYS, 2 do
    local token = redis.pcall("GET", KEYS[i])
    if type(token) == "table" then return { -1, i / 2 } end
    if token == r[_request.TOKEN] then mine[#mine + 1] = KEYS[i] elseif token then busy = true end
  end
  if #mine == #KEYS / 2 then
    lock.extend(r, r[_request.LEASE_MS])
    if r[_request.ADDRESS] ~= "" then waiters.mark_taken(waiters.view(now), request, r) end
    local fence = tonumber(redis.call("GET", base .. "fence"))
    return fence and { 1, fence, 0, us } or lock.grant(r, us)
  end
  if #mine > 0 then redis.call("DEL", unpack(mine)) end

  local view, first = waiters.view(now), not busy
  for i = 1, #KEYS, 2 do first = first and waiters.is_first(view, KEYS[i], request, ticket) end
  if first then
    answer = lock.grant(r, us)
    waiters.stop_waiting(view, request, r, ticket)
  else
    waiters.note_freed(view, r)
    local ms = -1
    if join == 1 then
      ticket, ms = waiters.wait(view, request, r, ticket, us, lock.due(r[_request.KEYS], now))
    elseif ticket > 0 then
      waiters.leave(request, r)
    end
    answer = { 0, ticket, ms, us }
  end
  if lock.hand_over(view, us, false) == 1 and answer[1] == 0 then answer[3] = 0 end
  return answer
end

-- Releases what the request holds, removes it from the waiters, and hands free locks over to the next ones.
-- Returns { 1 if the request held all its locks, 1 if the call must be repeated because there are more waiters to look
-- at, the reason if an operator broke the lock }.
--- keys: base name
--- args: request: str
--- flags: allow-oom
function script.release(base, name, request)
  local r, held = cmsgpack.unpack(request), 0
  for i = 2, #KEYS, 2 do
    if redis.pcall("GET", KEYS[i]) == r[_request.TOKEN] then
      redis.call("DEL", KEYS[i], KEYS[i - 1] .. "holder")
      held = held + 1
    end
  end
  local whole = held == #KEYS / 2
  local is_free = whole and #KEYS == 2
  local waited = waiters.withdraw(request, r)
  if is_free and redis.call("EXISTS", base .. "waiters") == 0 then return { 1, 0, false } end
  local us = clock.micros()
  local view = waiters.view(math.floor(us / 1000))
  waiters.note_freed(view, r)
  for i = 1, waited and #KEYS or 0, 2 do
    waiters.ensure_check(view, KEYS[i], lock.due({ KEYS[i], KEYS[i + 1] }, view.now), "")
  end
  return {
    whole and 1 or 0, lock.hand_over(view, us, is_free), not whole and breaking.reason(base, r[_request.TOKEN]),
  }
end

-- Extends the lease to `ms` from now; never shortens it. `ends`: server microseconds at which the holding ends at the
-- latest, 0 for never. `confirms`: 1 if a message granted the request and this is its first renewal. `address`: where
-- the owner is notified when the lock is broken, or "".
-- Returns { 1, ms that are left }, or { 0, the reason if an operator broke it } if one of the locks is not held any
-- longer.
--- keys: base name
--- args: request: str, ms: int, ends: int, confirms: int, address: str
--- flags: allow-oom
function script.renew(base, name, request, ms, ends, confirms, address)
  local r, us = cmsgpack.unpack(request), clock.micros()
  local now = math.floor(us / 1000)
  if confirms == 1 then waiters.mark_alive(r, now) end
  for i = 2, #KEYS, 2 do
    if redis.pcall("GET", KEYS[i]) ~= r[_request.TOKEN] then
      return { 0, breaking.reason(KEYS[i - 1], r[_request.TOKEN]) }
    end
  end
  if ends > 0 then ms = math.min(ms, math.floor((ends - us) / 1000)) end
  if ms > 0 then lock.extend(r, ms) end
  if confirms == 1 then waiters.mark_taken(waiters.view(now), request, r) end
  local left = redis.call("PTTL", name)
  if address ~= "" then
    for i = 1, #KEYS, 2 do redis.call("SET", KEYS[i] .. "holder", address, "PX", math.max(1, left)) end
  end
  return { 1, left }
end

-- Takes the lock from the owner with this token, "" for any owner; notifies the owner, and hands the lock over to the
-- first waiter. Returns { 1 if an operator took it from that owner, in this call or an earlier one, 1 if the caller
-- must call `release` because there are more waiters to look at }.
--- keys: base name
--- args: token: str, reason: str
--- flags: allow-oom
function script.end_holding(base, name, token, reason)
  local us = clock.micros()
  local held = redis.pcall("GET", name)
  if type(held) ~= "string" or (token ~= "" and held ~= token) then
    return { breaking.reason(base, token) and 1 or 0, 0 }
  end
  local address = redis.call("GET", base .. "holder")
  lock.mint_fence({ base, name }, us, 0)
  breaking.note(base, held, reason)
  redis.call("DEL", name, base .. "holder")
  if address then notify.send(address, held .. " " .. reason) end
  local view = waiters.view(math.floor(us / 1000))
  view.freed = { base, name }
  return { 1, lock.hand_over(view, us, true) }
end

-- Returns { server microseconds, token or false, ms left, fence or false, number of waiters, request, ticket, … }
--- keys: base name
--- args: limit: int
--- flags: no-writes
function script.show(base, name, limit)
  local fence = redis.call("GET", base .. "fence")
  local shown = { clock.micros(), redis.call("GET", name), redis.call("PTTL", name), fence }
  local waiting = waiters.list(base, limit)
  for i = 1, #waiting do shown[4 + i] = waiting[i] end
  return shown
end
