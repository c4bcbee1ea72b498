-- Several workers that share one reader of a log (log.lua): each message goes to one of them, under a lease.
--
--   next         HASH    reader -> the first number that none of its workers has claimed
--   claimed:<r>  ZSET    claim, which is number:deliveries:token -> number
--   leased:<r>   ZSET    claim -> server ms until which its lease lasts
--   claim:<t>    STRING  the claims that the call with this token returned, so that a repeated call returns them; PX its lease
--
--             claim               ack
--   (new) ──────────▶ claimed ──────────▶ (done)
--            ▲           │ lease ran out, release
--            └───────────┘ claimed by another worker
--
-- The cursor is right below the lowest claimed number, or without claims right below `next`. A number above the cursor that is
-- below `next` and not claimed was acknowledged.

-- The reader has acknowledged everything up to the cursor: claims up to there end.
--- (name: str, cursor: int)
--- uses: base
function shared_reader.pass_over(name, cursor)
  if redis.call("HEXISTS", base .. "next", name) == 0 then return end
  local old = redis.call("ZRANGE", base .. "claimed:" .. name, "-inf", cursor, "BYSCORE", "LIMIT", 0, 2000)
  for i = 1, #old do shared_reader.drop(name, old[i]) end
end

--- (name: str, one: str)
--- uses: base
function shared_reader.drop(name, one)
  redis.call("ZREM", base .. "claimed:" .. name, one)
  redis.call("ZREM", base .. "leased:" .. name, one)
end

--- (name: str, number: int, deliveries: int, token: str, till: int) -> str
--- uses: base
function shared_reader.take(name, number, deliveries, token, till)
  local one = string.format("%d:%d:", number, deliveries) .. token
  redis.call("ZADD", base .. "claimed:" .. name, number, one)
  redis.call("ZADD", base .. "leased:" .. name, till, one)
  return one
end

-- The number right below the lowest claimed one, or without claims right below the first that was not claimed yet.
--- (name: str, following: int) -> int
--- uses: base
function shared_reader.cursor(name, following)
  local low = redis.call("ZRANGE", base .. "claimed:" .. name, 0, 0, "WITHSCORES")
  return (tonumber(low[2]) or following) - 1
end

-- Append a message to `into`. Returns whether it is still there.
--- (l: table, number: int, into: table) -> bool
--- uses: base
function shared_reader.read(l, number, into)
  return number >= l.first and log.read(l, number - 1, 1, math.huge, into) == number
end

-- The ms until the first lease runs out, or -1.
--- (name: str, now: int) -> int
--- uses: base
function shared_reader.due(name, now)
  local first = redis.call("ZRANGE", base .. "leased:" .. name, 0, 0, "WITHSCORES")
  return first[2] and math.max(0, first[2] - now) or -1
end

-- Claim messages, first those whose lease ran out, then new ones, and append each claim with its message to `into`. `said`: the
-- claims that an earlier call with this token returned, packed.
--- (l: table, name: str, cursor: int, now: int, token: str, said: str, lease_ms: int, limit: int, room: int, into: table)
--- uses: base
function shared_reader.hand_out(l, name, cursor, now, token, said, lease_ms, limit, room, into)
  local leased, taken = base .. "leased:" .. name, {}

  local function hand(one, number)
    into[#into + 1] = one
    if shared_reader.read(l, number, into) then
      room = room - #into[#into]
      taken[#taken + 1] = one
      return true
    end
    into[#into] = nil
  end

  if said then
    for _, one in ipairs(cmsgpack.unpack(said)) do
      if redis.call("ZSCORE", leased, one) then hand(one, tonumber(string.match(one, "^%d+"))) end
    end
    return
  end
  local following = math.max(cursor + 1, l.first, tonumber(redis.call("HGET", base .. "next", name) or 0))
  local late = redis.call("ZRANGE", leased, "-inf", now, "BYSCORE", "LIMIT", 0, limit)
  for i = 1, #late do
    if #taken == 0 or room > 0 then
      local number, deliveries = string.match(late[i], "^(%d+):(%d+):")
      shared_reader.drop(name, late[i])
      local one = shared_reader.take(name, tonumber(number), deliveries + 1, token, now + lease_ms)
      if not hand(one, tonumber(number)) then shared_reader.drop(name, one) end  -- a limit has dropped the message
    end
  end
  while #taken < limit and following <= l.top and (#taken == 0 or room > 0) do
    local one = shared_reader.take(name, following, 1, token, now + lease_ms)
    if not hand(one, following) then shared_reader.drop(name, one) end
    following = following + 1
  end
  redis.call("HSET", base .. "next", name, following)
  if #taken > 0 then redis.call("SET", base .. "claim:" .. token, cmsgpack.pack(taken), "PX", math.min(lease_ms, 60000)) end
  redis.call("ZADD", base .. "readers", math.max(cursor, shared_reader.cursor(name, following)), name)
end

-- Claim messages for one of several workers. The caller mints `token`; a second call with it returns the same messages. If there
-- is nothing to claim, `address` is notified of a new message.
-- { "OK", ms until a lease runs out or -1, { reader to notify, … }, claim, number, ms, by, body, … } or { "GONE" | "STRANGER" }
--- keys: base state
--- args: given: int, who: str, token: str, lease_ms: int, limit: int, room: int, address: str, stay_ms: int
--- flags: allow-oom
function script.claim(base, state, given, who, token, lease_ms, limit, room, address, stay_ms)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    if who == "" then log.wait("waiting", 0, address, stay_ms) end
    return { "GONE" }
  end
  local name, cursor = log.reader(who, "")
  if not cursor then return { "STRANGER" } end
  local now = clock.now(given)
  redis.call("HSET", base .. "seen", name, string.format("%d", now))
  local answer = { "OK", -1, {} }
  shared_reader.hand_out(l, name, cursor, now, token, redis.call("GET", base .. "claim:" .. token), lease_ms, limit, room, answer)
  answer[3] = log.ring(l, now)
  if #answer > 3 then stay_ms = 0 end
  log.wait("waiting", l.top, address, stay_ms)
  if stay_ms > 0 then answer[2] = shared_reader.due(name, now) end
  return answer
end

-- Settle claims: `ack`; `release`, so that another worker may have the message at once; or `extend` to `ms` from now. A claim
-- that was lost to another worker is left alone.
-- { "OK", 1 if there is more to trim, { index of a lost claim, … } } or { "GONE" | "STRANGER" }
--- keys: base state
--- args: given: int, who: str, verb: str, ms: int, claims: *
--- flags: allow-oom
function script.hand_in(base, state, given, who, verb, ms, claims, ...)
  local fault, l = log.open()
  if fault then return fault end
  if not l then return { "GONE" } end
  local now, lost, more = clock.now(given), {}, 0
  local name, cursor = log.reader(who, "")
  if not cursor then return { "STRANGER" } end
  local leased = base .. "leased:" .. name
  for i = claims, #ARGV do
    if not redis.call("ZSCORE", leased, ARGV[i]) then
      lost[#lost + 1] = i - claims
    elseif verb == "ack" then
      shared_reader.drop(name, ARGV[i])
    else
      redis.call("ZADD", leased, verb == "extend" and now + ms or 0, ARGV[i])
    end
  end
  if verb == "ack" then
    local low = shared_reader.cursor(name, tonumber(redis.call("HGET", base .. "next", name) or cursor + 1))
    if low > cursor then
      redis.call("ZADD", base .. "readers", low, name)
      more = log.trim(l, now)
    end
  elseif verb == "release" then
    log.rouse("waiting", "+inf")
  end
  return { "OK", more, lost }
end
