-- A shared reader: several workers read for one reader of a log (log.lua), and each message is claimed by one of them.
--
--   next         HASH    reader -> the first number that no worker has claimed
--   claimed:<r>  ZSET    claim -> number                           what workers have claimed and not acknowledged
--   leased:<r>   ZSET    claim -> server ms at which its lease ends
--   claim:<t>    STRING  the claims that the call with this token made, so that a repeated call returns them again; PX
--                        its lease, a minute at most
--
--             claim                ack
--   (new) ──────────▶ claimed ──────────▶ (done)
--            ▲           │ lease ran out, release
--            └───────────┘ claimed by another worker
--
-- The cursor is one below the lowest claim or, without a claim, one below `next`. A message between the cursor and
-- `next` that is not claimed was acknowledged.
--
-- A claim is "number:deliveries:token", with the token of the call that made it.

_reply = { DUE = 2 } -- its place in the reply to a claim

-- Drops the claims up to `cursor`, because the reader has acknowledged everything up to there.
--- (name: str, cursor: int)
--- uses: base
function shared_reader.drop_below(name, cursor)
  if redis.call("HEXISTS", base .. "next", name) == 0 then return end
  local old = redis.call("ZRANGE", base .. "claimed:" .. name, "-inf", cursor, "BYSCORE", "LIMIT", 0, 2000)
  for i = 1, #old do shared_reader.drop(name, old[i]) end
end

--- (name: str, claim: str)
--- uses: base
function shared_reader.drop(name, claim)
  redis.call("ZREM", base .. "claimed:" .. name, claim)
  redis.call("ZREM", base .. "leased:" .. name, claim)
end

--- (name: str, number: int, deliveries: int, token: str, ends_at: int) -> str
--- uses: base
function shared_reader.add(name, number, deliveries, token, ends_at)
  local claim = string.format("%d:%d:", number, deliveries) .. token
  redis.call("ZADD", base .. "claimed:" .. name, number, claim)
  redis.call("ZADD", base .. "leased:" .. name, ends_at, claim)
  return claim
end

-- Returns the cursor: one below the lowest claim or, without a claim, one below `unclaimed`, the first number that no
-- worker has claimed.
--- (name: str, unclaimed: int) -> int
--- uses: base
function shared_reader.cursor(name, unclaimed)
  local low = redis.call("ZRANGE", base .. "claimed:" .. name, 0, 0, "WITHSCORES")
  return (tonumber(low[2]) or unclaimed) - 1
end

-- Appends a message to `into`, if it is still there. Returns whether it is.
--- (l: table, number: int, into: table) -> bool
--- uses: base
function shared_reader.read(l, number, into)
  return number >= l.first and log.read(l, number - 1, 1, math.huge, into) == number
end

-- Returns the milliseconds until the first lease runs out, or -1 if there is no lease.
--- (name: str, now: int) -> int
--- uses: base
function shared_reader.due(name, now)
  local first = redis.call("ZRANGE", base .. "leased:" .. name, 0, 0, "WITHSCORES")
  return first[2] and math.max(0, first[2] - now) or -1
end

-- Claims messages: first those whose lease ran out, then new ones. Appends each claim and its message to `into`.
-- `earlier`: the claims of an earlier call with this token, or false. If given, those that still exist are appended,
-- and no others are made.
--- (l: table, name: str, cursor: int, now: int, token: str, earlier: str | false, lease_ms: int, limit: int, room: int,
---  into: table)
--- uses: base
function shared_reader.claim(l, name, cursor, now, token, earlier, lease_ms, limit, room, into)
  local leased, taken = base .. "leased:" .. name, {}

  local function add(claim, number)
    into[#into + 1] = claim
    if shared_reader.read(l, number, into) then
      room = room - #into[#into]
      taken[#taken + 1] = claim
      return true
    end
    into[#into] = nil
  end

  if earlier then
    for _, claim in ipairs(cmsgpack.unpack(earlier)) do
      if redis.call("ZSCORE", leased, claim) then add(claim, tonumber(string.match(claim, "^%d+"))) end
    end
    return
  end
  local unclaimed = math.max(cursor + 1, l.first, tonumber(redis.call("HGET", base .. "next", name) or 0))
  local late = redis.call("ZRANGE", leased, "-inf", now, "BYSCORE", "LIMIT", 0, limit)
  for i = 1, #late do
    if #taken == 0 or room > 0 then
      local number, deliveries = string.match(late[i], "^(%d+):(%d+):")
      shared_reader.drop(name, late[i])
      local claim = shared_reader.add(name, tonumber(number), deliveries + 1, token, now + lease_ms)
      if not add(claim, tonumber(number)) then shared_reader.drop(name, claim) end -- freed by a limit
    end
  end
  while #taken < limit and unclaimed <= l.top and (#taken == 0 or room > 0) do
    local claim = shared_reader.add(name, unclaimed, 1, token, now + lease_ms)
    if not add(claim, unclaimed) then shared_reader.drop(name, claim) end
    unclaimed = unclaimed + 1
  end
  redis.call("HSET", base .. "next", name, unclaimed)
  if #taken > 0 then
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack(taken), "PX", math.min(lease_ms, 60000))
  end
  redis.call("ZADD", base .. "readers", math.max(cursor, shared_reader.cursor(name, unclaimed)), name)
end

-- Claims up to `limit` messages for one of several workers. `token` is minted by the caller; a second call with it
-- returns the same messages. If there is no message, `address` is registered for `wait_ms`, and notified of the next
-- one. Returns { "OK", ms until the first lease runs out or -1, { reader to notify, … }, claim, number, ms, by, body,
-- … } or { "GONE" | "NOT_A_MEMBER" }.
--- keys: base state
--- args: given: int, member: str, token: str, lease_ms: int, limit: int, room: int, address: str, wait_ms: int
--- flags: allow-oom
function script.claim(base, state, given, member, token, lease_ms, limit, room, address, wait_ms)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    if member == "" then log.wait("waiting", 0, address, wait_ms) end
    return { "GONE" }
  end
  local name, cursor = log.reader(member, "")
  if not cursor then return { "NOT_A_MEMBER" } end
  local now = clock.now(given)
  redis.call("HSET", base .. "seen", name, string.format("%d", now))
  local answer = { "OK", -1, log.wake_readers(l, now) }
  local head = #answer
  local earlier = redis.call("GET", base .. "claim:" .. token)
  shared_reader.claim(l, name, cursor, now, token, earlier, lease_ms, limit, room, answer)
  if #answer > head then wait_ms = 0 end
  log.wait("waiting", l.top, address, wait_ms)
  if wait_ms > 0 then answer[_reply.DUE] = shared_reader.due(name, now) end
  return answer
end

-- Settles claims. `action`: "ack"; "release": another worker may have the message at once; "extend": the lease runs out
-- `ms` from now. A claim that does not exist is skipped and reported as lost: usually another worker has taken over its
-- message. Returns { "OK", 1 if there is more to trim, { index of a lost claim, … } } or a refusal, GONE or
-- NOT_A_MEMBER.
--- keys: base state
--- args: given: int, member: str, action: str, ms: int, claims: *
--- flags: allow-oom
function script.settle_claims(base, state, given, member, action, ms, claims, ...)
  local fault, l = log.open()
  if fault then return fault end
  if not l then return { "GONE" } end
  local now, lost, more = clock.now(given), {}, 0
  local name, cursor = log.reader(member, "")
  if not cursor then return { "NOT_A_MEMBER" } end
  local leased = base .. "leased:" .. name
  for i = claims, #ARGV do
    if not redis.call("ZSCORE", leased, ARGV[i]) then
      lost[#lost + 1] = i - claims
    elseif action == "ack" then
      shared_reader.drop(name, ARGV[i])
    else
      redis.call("ZADD", leased, action == "extend" and now + ms or 0, ARGV[i])
    end
  end
  if action == "ack" then
    local unclaimed = tonumber(redis.call("HGET", base .. "next", name) or cursor + 1)
    local low = shared_reader.cursor(name, unclaimed)
    if low > cursor then
      redis.call("ZADD", base .. "readers", low, name)
      more = log.trim(l, now)
    end
  elseif action == "release" then
    log.wake("waiting", "+inf")
  end
  return { "OK", more, lost }
end
