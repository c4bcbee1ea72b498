-- The scripts of a semaphore: at most `limit` permits are held at a time. A read-write lock is a semaphore without a
-- limit: each reader takes one permit, and a writer takes all of them.
--
--             acquire                               release
--   free ───────────────────▶ a holder ─────────────────────────▶ free
--     ▲                       │      ▲ taken                       │ the first waiter fits
--     └─── its lease expired ─┘      └────── a holder for 2 s ◀────┘
--
--   holders   ZSET    token/1, token/2, … -> server ms until which it is held; TTL the longest lease and a minute.
--                     All permits together are one member: token/all
--   limit     STRING  the limit that `set_limit` stored; it replaces the limit in a request
--   fence     STRING  the last fence; PX its lease and an hour. Only a holder of all permits gets one, a writer
--   notices   HASH    token -> the address at which the holder is notified when its permits are taken away; TTL as
--                     `holders`
--   broken    see breaking.lua
--   waiters, checks, offers, unresponsive: see core/waiters.lua
--
-- The number of free permits is not stored: it is the limit minus the permits whose lease is running. So a repeated
-- release cannot free too many. Waiters are served strictly in order: a small request does not overtake a large one.
--
-- All keys are made from the declared `base`, which never exists; the other declared key is `holders`.

_request = { LIMIT = 6, PERMITS = 7 } -- what a request has besides the values of core/waiters.lua
_most_offered = { WAITERS = 100, PERMITS = 1000 } -- in one call; the last waiter may get more
-- The number of permits of a writer; the limit of a read-write lock; the most permits of one request
permit = { ALL = 0, UNLIMITED = 0, MOST_PERMITS = 1000 }

-- Returns the limit that applies to a request. A limit that `set_limit` stored does not apply to a read-write lock.
--- (r: table) -> int
--- uses: base
function permit.limit(r)
  if r[_request.LIMIT] == permit.UNLIMITED then return math.huge end
  return tonumber(redis.call("GET", base .. "limit")) or r[_request.LIMIT]
end

-- Returns the members of `holders` for the permits of a request.
--- (r: table) -> table
function permit.members(r)
  if r[_request.PERMITS] == permit.ALL then return { r[_request.TOKEN] .. "/all" } end
  local members = {}
  for i = 1, r[_request.PERMITS] do members[i] = r[_request.TOKEN] .. "/" .. i end
  return members
end

-- Returns how many permits are held.
--- (now: int) -> int
--- uses: holders
function permit.live(now)
  return redis.call("ZCOUNT", holders, "(" .. now, "+inf")
end

-- Whether a request could take its permits now, and whether any request could take some.
--- (r: table, limit: int, now: int) -> bool, bool
--- uses: holders
function permit.fits(r, limit, now)
  if r[_request.LIMIT] ~= permit.UNLIMITED then
    local free = limit - permit.live(now)
    return r[_request.PERMITS] <= free, free > 0
  end
  -- Either one writer holds all permits, or readers hold one each, so any holder shows which of the two it is.
  local holder = redis.call("ZRANGE", holders, "(" .. now, "+inf", "BYSCORE", "LIMIT", 0, 1)[1]
  local is_open = not holder or string.sub(holder, -4) ~= "/all"
  return not holder or (is_open and r[_request.PERMITS] ~= permit.ALL), is_open
end

-- Whether a request holds all that it asks for, and how many of its permits it holds.
--- (r: table, now: int) -> bool, int
--- uses: holders
function permit.held(r, now)
  local members, n = permit.members(r), 0
  local tills = redis.call("ZMSCORE", holders, unpack(members))
  for i = 1, #members do
    if tills[i] and tonumber(tills[i]) > now then n = n + 1 end
  end
  return n == #members, n
end

-- Gives a request its permits until `till`, unless it holds them for longer already.
--- (r: table, till: int, now: int)
--- uses: holders
function permit.give(r, till, now)
  local members, set = permit.members(r), {}
  for i = 1, #members do set[2 * i - 1], set[2 * i] = till, members[i] end
  redis.call("ZADD", holders, "GT", unpack(set))
  local keep = till - now + 60000
  if redis.call("PTTL", holders) < keep then redis.call("PEXPIRE", holders, keep) end
end

-- Mints a fence for a holder of all permits; returns 0 for other holders. A repeated call gets a higher fence, which is
-- harmless: no other holder can have got one in between.
--- (r: table, us: int) -> int
--- uses: base
function permit.mint(r, us)
  if r[_request.PERMITS] ~= permit.ALL then return 0 end
  local last = redis.call("GET", base .. "fence")
  local fence = last and math.max(us, last + 1) or us
  redis.call("SET", base .. "fence", fence, "PX", r[_request.LEASE_MS] + 3600000)
  return fence
end

-- Takes the permits of a request away.
--- (r: table)
--- uses: holders
function permit.drop(r)
  redis.call("ZREM", holders, unpack(permit.members(r)))
end

-- Removes permits whose lease has expired, at most 200. Expired permits no longer count anyway.
--- (now: int)
--- uses: base holders
function permit.remove_expired(now)
  local dead = redis.call("ZRANGE", holders, "-inf", now, "BYSCORE", "LIMIT", 0, 200)
  if #dead == 0 then return end
  redis.call("ZREM", holders, unpack(dead))
  for i = 1, #dead do dead[i] = string.match(dead[i], "^(.*)/") end
  redis.call("HDEL", base .. "notices", unpack(dead))
end

-- Takes all permits of a token away. Returns whether their lease was running.
--- (token: str, now: int) -> bool
--- uses: base holders
function permit.take(token, now)
  local till = redis.call("ZSCORE", holders, token .. "/all") or redis.call("ZSCORE", holders, token .. "/1")
  redis.call("ZREM", holders, token .. "/all")
  for first = 1, permit.MOST_PERMITS, 100 do
    local members = {}
    for i = 1, 100 do members[i] = token .. "/" .. first + i - 1 end
    if redis.call("ZREM", holders, unpack(members)) < 100 then break end
  end
  redis.call("HDEL", base .. "notices", token)
  return till and tonumber(till) > now or false
end

-- Hands free permits over to the first waiters, as many as one call may. Each waiter that takes its permits calls this
-- again.
-- Returns 1 if it dropped as many dead waiters as one call may, and has not finished; then the caller repeats the call.
-- In case the caller dies, a waiter is asked to try again in a second.
--- (view: table) -> int
--- uses: base holders
function permit.hand_over(view)
  local offered, n = 0, 0
  while offered < _most_offered.WAITERS and n < _most_offered.PERMITS do
    local head, r = waiters.head(view, base)
    if not head then return 0 end
    if view.left <= 0 then
      waiters.ask_last(view, base, view.now + 1000, "")
      return 1
    end
    local limit = permit.limit(r)
    local fits, is_open = permit.fits(r, limit, view.now)
    if r[_request.PERMITS] > limit then
      if waiters.notify(view, head, r, "0") then waiters.leave(head, r) end -- its next attempt is refused
    elseif not fits then
      -- If the waiter is gone, it must not be in the way of a smaller request.
      if not is_open or not waiters.drop_if_gone(view, head, r) then return 0 end
    elseif waiters.notify(view, head, r, "0") then
      local ms = math.min(r[_request.LEASE_MS], 2000)
      permit.give(r, view.now + ms, view.now)
      waiters.offer(view, head, r, ms)
      offered, n = offered + 1, n + r[_request.PERMITS]
    end
  end
  return 0
end

-- Returns when the first lease expires, or the time five seconds from now if no permit is held.
--- (now: int) -> int
--- uses: holders
function permit.due(now)
  local next_ = redis.call("ZRANGE", holders, "(" .. now, "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
  return next_[2] and next_[2] + 1 or now + 5000
end

-- The first attempt to acquire permits, in the frequent case: no waiters, and free permits. Returns the reply;
-- false in all other cases, and for a request that already holds some of its permits.
--- (r: table, us: int) -> table | bool
--- uses: base holders
function permit.try_at_once(r, us)
  if redis.call("EXISTS", base .. "waiters") == 1 then return false end
  local now = math.floor(us / 1000)
  if not permit.fits(r, permit.limit(r), now) then return false end
  local tills = redis.call("ZMSCORE", holders, unpack(permit.members(r)))
  for i = 1, #tills do
    if tills[i] then return false end
  end
  permit.give(r, now + r[_request.LEASE_MS], now)
  return { 1, permit.mint(r, us), 0, us }
end

-- One attempt to acquire the permits of a request. If it holds them already, their lease starts again.
-- `ticket`: from the reply to the last attempt; 0 for the first. `join`: 1 to join the waiters, or keep its position,
-- if the permits are not granted.
-- Returns { 1, fence or 0, 0, now }, { 0, ticket, ms until it should try again, now, the limit or 0 for a read-write
-- lock }, or { -1, the limit } if it wants more permits than the limit. `now` is in microseconds. 0 ms: this call
-- dropped as many dead waiters as one call may, and does not know yet whether the permits can be granted; it is to be
-- repeated at once.
--- keys: base holders
--- args: request: str, ticket: int, join: int
function script.acquire(base, holders, request, ticket, join)
  local us = clock.micros()
  local now = math.floor(us / 1000)
  local r, view = cmsgpack.unpack(request), waiters.view(now)
  permit.remove_expired(now)
  if r[_request.ADDRESS] ~= "" then waiters.mark_alive(r, now) end
  local answer = ticket == 0 and permit.try_at_once(r, us)
  if answer then return answer end
  local holds_all, held = permit.held(r, now)
  if holds_all then
    permit.give(r, now + r[_request.LEASE_MS], now)
    if r[_request.ADDRESS] ~= "" then waiters.mark_taken(view, request, r) end
    permit.hand_over(view)
    return { 1, permit.mint(r, us), 0, us }
  end
  if held > 0 then permit.drop(r) end

  local limit = permit.limit(r)
  local first = permit.fits(r, limit, now) and waiters.is_first(view, base, request, ticket)
  if r[_request.PERMITS] > limit then
    waiters.leave(request, r)
    answer = { -1, limit }
  elseif first then
    permit.give(r, now + r[_request.LEASE_MS], now)
    waiters.stop_waiting(view, request, r, ticket)
    answer = { 1, permit.mint(r, us), 0, us }
  else
    local ms = -1
    if join == 1 then
      ticket, ms = waiters.wait(view, request, r, ticket, us, permit.due(now))
    elseif ticket > 0 then
      waiters.leave(request, r)
    end
    answer = { 0, ticket, ms, us, limit < math.huge and limit or 0 }
  end
  if permit.hand_over(view) == 1 and answer[1] == 0 then answer[3] = 0 end
  return answer
end

-- Releases what the request holds, removes it from the waiters, and hands free permits over to the next ones.
-- Returns { 1 if the request held all its permits, 1 if the call must be repeated because there are more waiters to
-- look at, the reason if an operator took the permits away }.
--- keys: base holders
--- args: request: str
--- flags: allow-oom
function script.release(base, holders, request)
  local now = math.floor(clock.micros() / 1000)
  local r, view = cmsgpack.unpack(request), waiters.view(now)
  local whole = permit.held(r, now)
  permit.drop(r)
  local waited = waiters.withdraw(request, r)
  local reason = not whole and breaking.reason(base, r[_request.TOKEN])
  if redis.call("EXISTS", base .. "waiters", base .. "notices") == 0 then return { whole and 1 or 0, 0, reason } end
  redis.call("HDEL", base .. "notices", r[_request.TOKEN])
  permit.remove_expired(now)
  if waited then waiters.ensure_check(view, base, permit.due(now), "") end
  return { whole and 1 or 0, permit.hand_over(view), reason }
end

-- Extends the lease to `ms` from now; never shortens it. `ends`: server microseconds at which the holding ends at the
-- latest, 0 for never. `address`: where the holder is notified when an operator takes the permits away, or "".
-- Returns { 1, ms that are left }. If a permit is not held any longer, writes nothing and returns { 0, the reason if an
-- operator took it away }.
--- keys: base holders
--- args: request: str, ms: int, ends: int, address: str
--- flags: allow-oom
function script.renew(base, holders, request, ms, ends, address)
  local us = clock.micros()
  local now = math.floor(us / 1000)
  local r = cmsgpack.unpack(request)
  if not permit.held(r, now) then return { 0, breaking.reason(base, r[_request.TOKEN]) } end
  if ends > 0 then ms = math.min(ms, math.floor((ends - us) / 1000)) end
  if ms > 0 then permit.give(r, now + ms, now) end
  if address ~= "" then
    redis.call("HSET", base .. "notices", r[_request.TOKEN], address)
    redis.call("PEXPIRE", base .. "notices", redis.call("PTTL", holders))
  end
  return { 1, math.max(0, redis.call("ZSCORE", holders, permit.members(r)[1]) - now) }
end

-- Takes the permits of this token from their holder, notifies the holder, and hands the permits over to the first
-- waiters. Returns what the script of a lock returns.
--- keys: base holders
--- args: token: str, reason: str
--- flags: allow-oom
function script.end_holding(base, holders, token, reason)
  local now = math.floor(clock.micros() / 1000)
  local address = redis.call("HGET", base .. "notices", token)
  if not permit.take(token, now) then return { breaking.reason(base, token) and 1 or 0, 0 } end
  breaking.note(base, token, reason)
  if address then notify.send(address, token .. " " .. reason) end
  return { 1, permit.hand_over(waiters.view(now)) }
end

-- Stores a limit; 0 removes it, so that the limit in each request applies again. Hands over the permits that are free
-- then. Holders keep theirs. Returns 1 if the call must be repeated because there are more waiters to look at.
--- keys: base holders
--- args: limit: int
--- flags: allow-oom
function script.set_limit(base, holders, limit)
  if limit > 0 then redis.call("SET", base .. "limit", limit) else redis.call("DEL", base .. "limit") end
  return permit.hand_over(waiters.view(math.floor(clock.micros() / 1000)))
end

-- Returns { server microseconds, stored limit or false, permits held, { permit, till, … }, last fence or false, number
-- of waiters, request, ticket, … }
--- keys: base holders
--- args: limit: int
--- flags: no-writes
function script.show(base, holders, limit)
  local us = clock.micros()
  local now = math.floor(us / 1000)
  local alive = redis.call("ZRANGE", holders, "(" .. now, "+inf", "BYSCORE", "LIMIT", 0, limit, "WITHSCORES")
  local shown = { us, redis.call("GET", base .. "limit"), permit.live(now), alive, redis.call("GET", base .. "fence") }
  local waiting = waiters.list(base, limit)
  for i = 1, #waiting do shown[5 + i] = waiting[i] end
  return shown
end

-- The permits that are held until `from` (server ms) or longer, without the first `skip` of them, at most `limit`:
-- { server microseconds, permit, till, … }
--- keys: base holders
--- args: from: int, skip: int, limit: int
--- flags: no-writes
function script.list_permits(base, holders, from, skip, limit)
  local us = clock.micros()
  local first = from > 0 and from or "(" .. math.floor(us / 1000)
  local found = redis.call("ZRANGE", holders, first, "+inf", "BYSCORE", "LIMIT", skip, limit, "WITHSCORES")
  table.insert(found, 1, us)
  return found
end
