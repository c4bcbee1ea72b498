-- The scripts of a lock: one owner at a time, and a number that rises with each.
--
--             acquire                          release
--   free ───────────────────▶ held ─────────────────────────▶ free
--     ▲                       │  │ ▲                            │ somebody is in line
--     └── its lease ran out ──┘  └─┘ renew                      ▼
--                                       taken              held by the first in line, for 2 s
--                             held ◀───────────────────────────┘
--
--   <name>    STRING  the owner's token; PX its lease        what every other lock library writes, too
--   fence     STRING  the last fence                         PX the lease and an hour
--   line, looks, offers, gone: see waiters.lua
--
-- All keys but `<name>` are made from `base`, which has the slot of the name and never exists: while the slot moves,
-- the server refuses the whole script for it. Several locks at once are so many pairs of `base` and `<name>`; they
-- are granted all together or not at all, to who is first in all of their lines. Tickets are given out in the order
-- in which requests come to the server, so of all who wait the one with the lowest is first in all of its lines, and
-- no two wait for each other.
--
-- Any token that does not begin as ours is another library's. Its release tells nobody, so who waits for it looks
-- every five seconds.

-- Everything it wants, for `ms`. The fence rises across a failover that lost the last ones, because time does.
--- (r: table, us: int, ms: int) -> int
function lock.give(r, us, ms)
  local fence, places = us, r[4]
  for i = 1, #places, 2 do
    local last = redis.call("GET", places[i] .. "fence")
    if last then fence = math.max(fence, last + 1) end
  end
  for i = 1, #places, 2 do
    redis.call("SET", places[i + 1], r[1], "PX", ms)
    redis.call("SET", places[i] .. "fence", fence, "PX", ms + 3600000)
  end
  return fence
end

--- (r: table)
function lock.renew(r)
  for i = 1, #r[4], 2 do
    redis.call("PEXPIRE", r[4][i + 1], r[2])
    redis.call("PEXPIRE", r[4][i] .. "fence", r[2] + 3600000)
  end
end

-- All it wants is free, and it is the first in line for all of it.
--- (request: str, r: table, now: int, freed: table) -> bool
function lock.ripe(request, r, now, freed)
  for i = 1, #r[4], 2 do
    if redis.call("EXISTS", r[4][i + 1]) == 1 or waiters.head(r[4][i], now, freed) ~= request then return false end
  end
  return true
end

-- Hand what is free to who is first in line for it; `places` grows by what that sets free in turn.
--- (places: table, us: int)
function lock.pass(places, us)
  local now, i = math.floor(us / 1000), 1
  while i < #places and i < 2000 do
    if redis.call("EXISTS", places[i + 1]) == 0 then
      local head, r = waiters.head(places[i], now, places)
      if head and lock.ripe(head, r, now, places) then
        local ms = math.min(r[2], 2000)
        lock.give(r, us, ms)
        waiters.offer(head, r, now, ms)
      end
    end
    i = i + 2
  end
end

-- When the first of these runs out, or is to be looked at because nobody would tell.
--- (places: table, now: int) -> int
function lock.due(places, now)
  local due = now + 3600000
  for i = 1, #places, 2 do
    local left = redis.call("PTTL", places[i + 1])
    local ours = string.sub(redis.call("GET", places[i + 1]) or "", 1, 9) == "penstock/"
    if left < 0 or not ours then left = math.min(5000, left < 0 and 5000 or left) end
    due = math.min(due, now + left + 1)
  end
  return due
end

-- KEYS: base, name for each lock wanted, as in the request. `stay`: join the line, or stay in it. `ticket`: what the
-- last answer said, 0 at first. A request that has the locks gets their whole lease again.
-- Returns { 1, fence }, { 0, ticket, ms until it should come by itself }, or { -1, which name is of another type }.
--- keys: base name
--- args: request: str, ticket: int, stay: int
function script.acquire(base, name, request, ticket, stay)
  local us = clock.micros()
  local now = math.floor(us / 1000)
  local r = cmsgpack.unpack(request)
  local mine, busy = {}, false
  for i = 2, #KEYS, 2 do
    local token = redis.pcall("GET", KEYS[i])
    if type(token) == "table" then return { -1, i / 2 } end
    if token == r[1] then mine[#mine + 1] = KEYS[i] elseif token then busy = true end
  end
  if #mine == #KEYS / 2 then
    lock.renew(r)
    if r[3] ~= "" then waiters.taken(request, r, now) end
    return { 1, tonumber(redis.call("GET", base .. "fence")) or lock.give(r, us, r[2]) }
  end
  if #mine > 0 then redis.call("DEL", unpack(mine)) end
  if r[3] ~= "" then waiters.heard(r, now) end

  local first, freed = true, {}
  for i = 1, #KEYS, 2 do
    local head, _, before = waiters.head(KEYS[i], now, freed)
    if head and head ~= request and (ticket == 0 or ticket > before) then first = false end
  end
  local answer
  if first and not busy then
    answer = { 1, lock.give(r, us, r[2]) }
    if ticket > 0 then
      waiters.leave(request, r)
      waiters.taken(request, r, now)
    end
  else
    for i = 1, #KEYS do freed[#freed + 1] = KEYS[i] end
    if stay == 1 then
      local due = lock.due(r[4], now)
      -- At first it looks soon, for somebody has to see whether what is handed over just now is taken.
      if ticket == 0 then due = math.min(due, now + 2000) end
      ticket = waiters.join(request, r, ticket, us)
      local ms = math.huge
      for i = 1, #KEYS, 2 do ms = math.min(ms, waiters.sleep(KEYS[i], request, r, now, due)) end
      answer = { 0, ticket, ms }
    else
      if ticket > 0 then waiters.leave(request, r) end
      answer = { 0, ticket, -1 }
    end
  end
  lock.pass(freed, us)
  return answer
end

-- Give back what the request holds, leave the line, and hand over to the next in the same step. Returns 1 if it held
-- all it wanted.
--- keys: base name
--- args: request: str
--- flags: allow-oom
function script.release(base, name, request)
  local us = clock.micros()
  local r = cmsgpack.unpack(request)
  local held, freed = 0, {}
  for i = 2, #KEYS, 2 do
    if redis.pcall("GET", KEYS[i]) == r[1] then
      redis.call("DEL", KEYS[i])
      held = held + 1
      freed[#freed + 1] = KEYS[i - 1]
      freed[#freed + 1] = KEYS[i]
    end
  end
  if r[3] ~= "" then
    for i = 1, #KEYS, 2 do redis.call("ZREM", KEYS[i] .. "offers", request) end
    if redis.call("ZSCORE", base .. "line", request) then
      local now = math.floor(us / 1000)
      waiters.leave(request, r, freed)
      for i = 1, #KEYS, 2 do waiters.watch(KEYS[i], now, lock.due({ KEYS[i], KEYS[i + 1] }, now), "") end
    end
  end
  lock.pass(freed, us)
  return held == #KEYS / 2 and 1 or 0
end

-- The whole lease again. Returns 0 when one of them is not held any more: nothing is written then.
--- keys: base name
--- args: request: str
--- flags: allow-oom
function script.renew(base, name, request)
  local r = cmsgpack.unpack(request)
  for i = 2, #KEYS, 2 do
    if redis.pcall("GET", KEYS[i]) ~= r[1] then return 0 end
  end
  lock.renew(r)
  return 1
end

-- { server microseconds, token or false, ms left, fence or false, how many wait, request, ticket, … }
--- keys: base name
--- args: limit: int
--- flags: no-writes
function script.show(base, name, limit)
  local shown = { clock.micros(), redis.call("GET", name), redis.call("PTTL", name), redis.call("GET", base .. "fence") }
  local waiting = waiters.waiting(base, limit)
  for i = 1, #waiting do shown[4 + i] = waiting[i] end
  return shown
end
