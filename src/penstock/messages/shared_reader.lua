-- A shared reader: several workers read for one reader of a log (log.lua), and each message is claimed by one of them.
--
--   next         HASH    reader -> the first number that no worker has claimed
--   claimed:<r>  ZSET    claim -> number                           what workers have claimed and not acknowledged
--   leased:<r>   ZSET    claim -> server ms at which its lease ends
--   claim:<t>    STRING  the claims that the call with this token made, so that a repeated call returns them again; PX
--                        its lease, a minute at most
--   idle         ZSET    reader with idle workers -> number of the last message that one of them knows of; PX
--                        "<r> NUL" -> -1 while idle:<r> NUL is there
--   idle:<r>     ZSET    address of an idle worker -> server ms until which it waits (sleepers.lua); PX
--                        idle:<r> NUL: the last workers of a reader that has ended, until all of them are woken
--   woken        HASH    "<r> NUL" and woken, woken_deputy, woken_deputy_at: `_woken` (sleepers.lua); PX a minute. And
--                          first, first_at  the idle worker that looks for messages when the first lease runs out,
--                                           and when
--                          deputy           its deputy (core/deputy.lua)
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
--
-- New messages wake one idle worker of each reader. If it leaves some of them, its claim wakes the next one. When a
-- lease may run out, an idle worker and its deputy look for its message.

-- DUE: its index in the reply to a claim. PASSED: how many dead, overdue or freed messages one claim passes over.
_reply = { DUE = 2, PASSED = 100 }
-- One call serves at most 64 readers, and stops after 300 workers that are gone. Those that look for the message of a
-- lease are chosen from the first 100 addresses.
_idle = { READERS = 64, GONE = 300, ADDRESSES = 100 }

-- Drops the claims up to `cursor`, because the reader has acknowledged everything up to there. Returns its cursor,
-- which is higher if workers have acknowledged the messages that follow.
--- (name: str, cursor: int) -> int
--- uses: base
--- seldom
function shared_reader.drop_below(name, cursor)
  local unclaimed = redis.call("HGET", base .. "next", name)
  if not unclaimed then return cursor end
  local old = redis.call("ZRANGE", base .. "claimed:" .. name, "-inf", cursor, "BYSCORE", "LIMIT", 0, 2000)
  for i = 1, #old do shared_reader.drop(name, old[i]) end
  return math.max(cursor, shared_reader.cursor(name, tonumber(unclaimed)))
end

--- (name: str, claim: str)
--- uses: base
function shared_reader.drop(name, claim)
  redis.call("ZREM", base .. "claimed:" .. name, claim)
  redis.call("ZREM", base .. "leased:" .. name, claim)
end

--- (name: str, number: int, claim: str, ends_at: int)
--- uses: base
function shared_reader.add(name, number, claim, ends_at)
  redis.call("ZADD", base .. "claimed:" .. name, number, claim)
  redis.call("ZADD", base .. "leased:" .. name, ends_at, claim)
end

-- Returns the cursor: one below the lowest claim or, without a claim, one below `unclaimed`, the first number that no
-- worker has claimed.
--- (name: str, unclaimed: int) -> int
--- uses: base
function shared_reader.cursor(name, unclaimed)
  local low = redis.call("ZRANGE", base .. "claimed:" .. name, 0, 0, "WITHSCORES")
  return (tonumber(low[2]) or unclaimed) - 1
end

-- Begins with the oldest message, because the log began again below the messages that the reader has claimed or
-- acknowledged. Ends the claims. Returns the cursor.
--- (l: table, name: str) -> int
--- uses: base
--- seldom
function shared_reader.begin_again(l, name)
  l.restarted = true
  redis.call("UNLINK", base .. "claimed:" .. name, base .. "leased:" .. name)
  redis.call("HDEL", base .. "next", name)
  redis.call("ZADD", base .. "readers", l.first - 1, name)
  return l.first - 1
end

-- Appends a message to `into`, if it is still stored. Returns whether it is. If the stream has vanished, `l.is_lost` is
-- set.
--- (l: table, number: int, into: table) -> bool
function shared_reader.read(l, number, into)
  return number >= l.first and log.deliver(l, number - 1, 1, math.huge, into) == number
end

-- Returns the milliseconds until the first lease runs out, or -1 if there is no lease.
--- (name: str, now: int) -> int
--- uses: base
function shared_reader.due(name, now)
  local first = redis.call("ZRANGE", base .. "leased:" .. name, 0, 0, "WITHSCORES")
  return first[2] and math.max(0, first[2] - now) or -1
end

-- Registers a worker that has found no message, for `ms`. Returns the milliseconds after which it must look for
-- messages even if it is not woken, because a lease may run out; or -1.
--- (name: str, top: int, address: str, now: int, ms: int) -> int
--- uses: base
function shared_reader.register(name, top, address, now, ms)
  local list, marks = base .. "idle:" .. name, base .. "woken"
  redis.call("ZADD", list, now + ms, address)
  redis.call("ZADD", base .. "idle", top, name)
  for _, key in ipairs({ list, base .. "idle" }) do
    if redis.call("PTTL", key) < ms then redis.call("PEXPIRE", key, ms) end
  end
  local due = shared_reader.due(name, now)
  if due < 0 then return -1 end
  local known = redis.call("HMGET", marks, name .. "\0first", name .. "\0first_at", name .. "\0deputy")
  local first, first_at, second = unpack(known)
  if not first or first == address or not shared_reader.has_first(list, first, first_at, now, now + due) then
    redis.call("HSET", marks, name .. "\0first", address, name .. "\0first_at", now + due)
    redis.call("PEXPIRE", marks, 60000)
    return due
  end
  if not deputy.may_follow(first, address) then return -1 end
  if second and second ~= address and redis.call("ZSCORE", list, second) and notify.reaches(second) then return -1 end
  redis.call("HSET", marks, name .. "\0deputy", address)
  return due + _deputy.DUE
end

-- Whether a worker that is still idle looks for messages before `ends_at`.
--- (list: str, first: str | false, first_at: str | false, now: int, ends_at: int) -> bool
function shared_reader.has_first(list, first, first_at, now, ends_at)
  if not first or tonumber(first_at) <= now or tonumber(first_at) > ends_at then return false end
  return redis.call("ZSCORE", list, first)
end

-- Asks an idle worker and its deputy to look for messages when the first lease runs out, unless a worker does so
-- already. It chooses those that have been idle for longest, because they are the last to be woken for a new message.
--- (name: str, now: int)
--- uses: base
function shared_reader.appoint(name, now)
  local list, marks = base .. "idle:" .. name, base .. "woken"
  if redis.call("EXISTS", list) == 0 then return end
  local due = shared_reader.due(name, now)
  if due < 0 then return end
  local known, first_at = unpack(redis.call("HMGET", marks, name .. "\0first", name .. "\0first_at"))
  if shared_reader.has_first(list, known, first_at, now, now + due) then return end
  local first, second, gone =
    deputy.appoint(redis.call("ZRANGE", list, 0, _idle.ADDRESSES - 1), due, _deputy.DUE)
  if #gone > 0 then redis.call("ZREM", list, unpack(gone)) end
  if not first then return end
  redis.call("HSET", marks, name .. "\0first", first, name .. "\0first_at", now + due)
  redis.call("PEXPIRE", marks, 60000)
  if second then redis.call("HSET", marks, name .. "\0deputy", second) end
end

-- Wakes one idle worker of this reader. Returns how many were found to be gone.
--- (name: str, now: int) -> int
--- uses: base
function shared_reader.wake_one(name, now)
  local list, key, first = base .. "idle:" .. name, base .. "woken", name .. "\0woken"
  if redis.call("EXISTS", list) == 0 then return 0 end
  local marks = redis.call("HMGET", key, first, first .. "_deputy", first .. "_deputy_at")
  local before = marks[_woken.AT]
  local gone = sleepers.wake_one(list, marks, now)
  if marks[_woken.AT] ~= before then
    redis.call("HSET", key, first, now)
    if marks[_woken.DEPUTY] then
      redis.call("HSET", key, first .. "_deputy", marks[_woken.DEPUTY], first .. "_deputy_at", marks[_woken.DEPUTY_AT])
    end
  end
  redis.call("PEXPIRE", key, 60000)
  return #gone
end

-- Records that a worker of this reader looks for work, so that new work wakes the next one at once.
--- (name: str)
--- uses: base
function shared_reader.answered(name)
  redis.call("HDEL", base .. "woken", name .. "\0woken")
end

-- Serves a slice of the readers that have idle workers but none that knows of message `top`: wakes one idle worker of
-- each. Returns how many readers are left.
--- (top: int, now: int) -> int
--- uses: base
function shared_reader.wake(top, now)
  local before, gone = "(" .. top, 0
  local found = redis.call("ZRANGE", base .. "idle", "0", before, "BYSCORE", "LIMIT", 0, _idle.READERS)
  for i = 1, #found do
    gone = gone + shared_reader.wake_one(found[i], now)
    if redis.call("EXISTS", base .. "idle:" .. found[i]) == 0 then
      redis.call("ZREM", base .. "idle", found[i])
    elseif gone == 0 or redis.call("HEXISTS", base .. "woken", found[i] .. "\0woken") == 1 then
      redis.call("ZADD", base .. "idle", top, found[i])
    end -- else there may be a worker in the list after those that are gone
    if gone >= _idle.GONE then break end
  end
  if gone < _idle.GONE and #found < _idle.READERS then return 0 end
  return redis.call("ZCOUNT", base .. "idle", "0", before)
end

-- For a worker that stops waiting without another call. If it was woken already, wakes another worker instead.
--- (name: str, address: str, now: int)
--- uses: base
function shared_reader.leave(name, address, now)
  if redis.call("ZREM", base .. "idle:" .. name, address) == 0 then
    shared_reader.answered(name)
    shared_reader.wake_one(name, now)
  end
end

-- For a reader that has ended: puts its idle workers into a list whose members `wake_ended` wakes.
--- (name: str)
--- uses: base
function shared_reader.dismiss(name)
  local list = base .. "idle:" .. name
  redis.call("ZREM", base .. "idle", name)
  if redis.call("EXISTS", list) == 0 then return end
  -- Under another name, so that a worker that registers again is not one of them.
  repeat name = name .. "\0" until redis.call("RENAMENX", list, base .. "idle:" .. name) == 1
  redis.call("ZADD", base .. "idle", -1, name)
  local ttl = redis.call("PTTL", base .. "idle:" .. name)
  if redis.call("PTTL", base .. "idle") < ttl then redis.call("PEXPIRE", base .. "idle", ttl) end
end

-- Wakes a slice of the workers of readers that have ended. Returns how many are left.
--- () -> int
--- uses: base
function shared_reader.wake_ended()
  local name = redis.call("ZRANGE", base .. "idle", -1, -1, "BYSCORE", "LIMIT", 0, 1)[1]
  if not name then return 0 end
  local left = waiting.wake_below("idle:" .. name, "+inf")
  if left > 0 then return left end
  redis.call("ZREM", base .. "idle", name)
  return redis.call("ZCOUNT", base .. "idle", -1, -1)
end

-- Claims messages: first those whose lease ran out, then new ones. Appends each claim and its message to `into`.
-- `earlier`: the claims of an earlier call with this token, or false. If given, those that still exist are appended,
-- and no others are made. If the stream has vanished, `l.is_lost` is set and nothing is claimed. A message that was
-- delivered `most` times (0: any number) becomes a dead letter. Returns whether a second call may find more, because
-- this one has passed over as many dead or overdue messages as one call may.
--- (l: table, name: str, cursor: int, now: int, token: str, earlier: str | false, lease_ms: int, limit: int, room: int,
---  most: int, into: table) -> bool
--- uses: base state
function shared_reader.claim(l, name, cursor, now, token, earlier, lease_ms, limit, room, most, into)
  local leased, taken = base .. "leased:" .. name, {}

  local function read(number, deliveries)
    local at = #into + 1
    into[at] = string.format("%d:%d:", number, deliveries) .. token
    local found = shared_reader.read(l, number, into)
    if not found or into[#into] == log.OVERDUE then
      for i = #into, at, -1 do into[i] = nil end
      return nil
    end
    room = room - #into[#into - 1]
    taken[#taken + 1] = into[at]
    return into[at]
  end

  if earlier then
    for _, claim in ipairs(cmsgpack.unpack(earlier)) do
      local number, deliveries = string.match(claim, "^(%d+):(%d+):")
      if redis.call("ZSCORE", leased, claim) then read(tonumber(number), deliveries) end
    end
    return false
  end
  local unclaimed = tonumber(redis.call("HGET", base .. "next", name) or 0)
  if l.restarted or unclaimed > l.top + 1 then cursor, unclaimed = shared_reader.begin_again(l, name), 0 end
  unclaimed = math.max(cursor + 1, l.first, unclaimed)
  local late, passed = redis.call("ZRANGE", leased, "-inf", now, "BYSCORE", "LIMIT", 0, limit), 0
  for i = 1, #late do
    if (#taken + passed == 0 or room > 0) and passed < _reply.PASSED then
      local number, deliveries = string.match(late[i], "^(%d+):(%d+):")
      local found
      if most > 0 and tonumber(deliveries) >= most then
        local reason = string.format("delivered %d times, and never acknowledged", deliveries)
        room = room - letters.bury(l, tonumber(number), deliveries, reason, now)
      else
        found = read(tonumber(number), deliveries + 1)
      end
      if l.is_lost then return false end
      if not found then passed = passed + 1 end
      shared_reader.drop(name, late[i]) -- also if it was freed by a limit
      if found then shared_reader.add(name, tonumber(number), found, now + lease_ms) end
    end
  end
  while #taken < limit and unclaimed <= l.top and (#taken == 0 or room > 0) and passed < _reply.PASSED do
    local found = read(unclaimed, 1)
    if l.is_lost then return false end
    if not found then passed = passed + 1 end
    if found then shared_reader.add(name, unclaimed, found, now + lease_ms) end
    unclaimed = unclaimed + 1
  end
  redis.call("HSET", base .. "next", name, unclaimed)
  if not l.has_shared then
    l.has_shared = true
    log.store(l)
  end
  if #taken > 0 then
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack(taken), "PX", math.min(lease_ms, 60000))
  end
  redis.call("ZADD", base .. "readers", math.max(cursor, shared_reader.cursor(name, unclaimed)), name)
  if passed > 0 then log.trim(l, now) end
  if limit > 0 and (unclaimed <= l.top or #late == limit) then
    local gone = shared_reader.wake_one(name, now)
    -- There may be a worker in the list after those that are gone: the next call of `wake` wakes it.
    if gone > 0 then redis.call("ZADD", base .. "idle", "XX", l.top - 1, name) end
  end
  if #taken > 0 then shared_reader.appoint(name, now) end
  return passed > 0 and #taken < limit
end

-- Claims up to `limit` messages for one of several workers. `token` is minted by the caller; a second call with it
-- returns the same messages. If there is no message, `address` is registered for `wait_ms`, and notified of the next
-- one. Returns { "OK", or "AGAIN" if the log began again below the reader's cursor, ms after which to ask again even
-- without a message or -1, claim, number, ms, by, body, note, … } or { "GONE" | "VANISHED" | "NOT_A_MEMBER" }.
--- keys: base state
--- args: given: int, member: str, token: str, lease_ms: int, limit: int, room: int, most: int, address: str
--- args: wait_ms: int
--- flags: allow-oom
--- frame: log
function script.claim(base, state, given, member, token, lease_ms, limit, room, most, address, wait_ms)
  local now = clock.now(given)
  if not l then
    log.wake_changed()
    if member == "" and wait_ms > 0 then
      shared_reader.register("", 0, address, now, wait_ms)
    else
      waiting.remove("idle:" .. member, address)
    end
    return log.refuse_gone()
  end
  local name, cursor = log.reader(l, member, "")
  if not cursor then return log.refuse() end
  redis.call("HSET", base .. "seen", name, string.format("%d", now))
  shared_reader.answered(name)
  waiting.remove("idle:" .. name, address) -- before `claim`, which may wake one of the others
  local answer = { "OK", -1 }
  local head = #answer
  local earlier = redis.call("GET", base .. "claim:" .. token)
  l.now = now
  local again = shared_reader.claim(l, name, cursor, now, token, earlier, lease_ms, limit, room, most, answer)
  if l.is_lost then return { "VANISHED", "log" } end
  if l.restarted then answer[1] = "AGAIN" end
  if again and #answer == head then
    answer[_reply.DUE] = 0
  elseif #answer == head and wait_ms > 0 then
    answer[_reply.DUE] = shared_reader.register(name, l.top, address, now, wait_ms)
  end
  return answer
end

-- Settles claims. `action`: "ack"; "release": another worker may have the message `ms` from now; "extend": the lease
-- runs out `ms` from now; "bury": the message becomes a dead letter, with this reason. A claim that does not exist is
-- skipped and reported as lost: usually another worker has taken over its message. Returns { "OK", 1 if there is more
-- to trim, { index of a lost claim, … } } or a refusal, GONE, VANISHED or NOT_A_MEMBER.
--- keys: base state
--- args: caller: str, number: int, given: int, member: str, action: str, ms: int, reason: str, claims: *
--- flags: allow-oom
--- frame: once
function script.settle_claims(base, state, caller, number, given, member, action, ms, reason, claims, ...)
  if not l then return log.refuse_gone() end
  local now, lost, more = clock.now(given), {}, 0
  local name, cursor = log.reader(l, member, "")
  if cursor and l.restarted then shared_reader.begin_again(l, name) end
  -- A channel of files that is finished has no readers.
  if not cursor then return member == "" and log.refuse() or { "NOT_A_MEMBER" } end
  local leased = base .. "leased:" .. name
  for i = claims, #ARGV do
    if not redis.call("ZSCORE", leased, ARGV[i]) then
      lost[#lost + 1] = i - claims
    elseif action == "extend" then
      redis.call("ZADD", leased, now + ms, ARGV[i])
    else
      local at, deliveries = string.match(ARGV[i], "^(%d+):(%d+):")
      if action == "bury" then letters.bury(l, tonumber(at), deliveries, reason, now) end
      if l.is_lost then return { "VANISHED", "log" } end
      shared_reader.drop(name, ARGV[i])
      -- A claim without a token belongs to no worker.
      if action == "release" then
        shared_reader.add(name, tonumber(at), string.format("%d:%d:", at, deliveries), ms > 0 and now + ms or 0)
      end
    end
  end
  if action == "ack" or action == "bury" then
    local unclaimed = tonumber(redis.call("HGET", base .. "next", name) or cursor + 1)
    local low = shared_reader.cursor(name, unclaimed)
    if low > cursor then
      redis.call("ZADD", base .. "readers", low, name)
      more = log.trim(l, now)
    end
  elseif action == "release" and ms == 0 then
    shared_reader.wake_one(name, now)
  else
    shared_reader.appoint(name, now)
  end
  return { "OK", more, lost }
end
