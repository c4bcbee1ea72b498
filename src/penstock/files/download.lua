-- Scripts of a receiver of a channel (channel.lua), for one process that receives alone or for several that share the receiver.

-- Make a process the owner of a receiver, or renew its lease. Returns "HELD", the ms of the owner's lease, and the owner's token
-- if another process owns it; otherwise "MINE", or "FRESH" if another process has owned it since, and whether this turn is a
-- repeated one. `instead`: the token of a process that is known to be dead.
--- (who: str, token: str, instead: str, turn: int, now: int, lease_ms: int) -> str, int | bool, str
--- uses: base
function channel.own(who, token, instead, turn, now, lease_ms)
  local owned = redis.call("HGET", base .. "owners", who)
  local till, last, new, owner = string.match(owned or "", "^(%d+) (%d+) (%d) (.*)$")
  if owned and owner ~= token and owner ~= instead and tonumber(till) > now then return "HELD", tonumber(till) - now, owner end
  local again = owner == token and turn <= tonumber(last)  -- a lower turn is a late copy of an earlier call
  local fresh = owner ~= token or (again and new == "1")
  redis.call("HSET", base .. "owners", who, string.format("%d %d %d %s", now + lease_ms, again and last or turn, fresh and 1 or 0, token))
  redis.call("HSET", base .. "seen", who, string.format("%d", now))
  return fresh and "FRESH" or "MINE", again
end

-- How many records after `position` make up to `room` bytes: at least one if there are any, at most a thousand.
--- (l: table, position: int, room: int) -> int
--- uses: base
function channel.fit(l, position, room)
  local from, n = position + 1 - l.first, 0
  local before = from > 0 and tonumber(redis.call("LINDEX", base .. "ends", from - 1)) or l.begun
  while position + n < l.top and n < 1000 do
    local ends = redis.call("LRANGE", base .. "ends", from + n, from + n + 15)
    for i = 1, #ends do
      if n > 0 and ends[i] - before > room then return n end
      n = n + 1
    end
    if #ends == 0 then break end
  end
  return n
end

-- Settle for a process that receives alone: acknowledge up to `acked`, keep `mark`, and add the counts in `counted`; all of it
-- once, and only if the process still owns the receiver. The caller then reads `limit` records after `after` by an XRANGE of its
-- own, because a script would hash their large bodies. If there is nothing to read, `address` is notified within `stay_ms`.
-- { "OK", top, first, cursor, 1 if there is more to trim, 1 if it is a new owner, mark, how many records to read next time },
-- { "HELD", ms, owner }, { "SHARED" } while claims of processes that share are open, or { "ENDED" | "GONE" | "STRANGER" }
--- keys: base state
--- args: given: int, who: str, token: str, instead: str, turn: int, lease_ms: int, acked: int, mark: str, counted: str
--- args: after: int, limit: int, room: int, address: str, stay_ms: int
--- flags: allow-oom
function script.receive(base, state, given, who, token, instead, turn, lease_ms, acked, mark, counted, after, limit, room, address, stay_ms)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    log.wait("waiting", 0, address, stay_ms)
    return { "GONE" }
  end
  local now, found = clock.now(given), channel.counted(counted)
  local cursor, why, was = channel.reader(l, who)
  if why == "LATE" and acked < l.top then return { "OK", l.top, l.first, was, 0, 1, "", 0 } end
  if why == "LATE" then
    channel.over(l, who, now)
    return { "ENDED" }
  end
  if not cursor then return channel.none(why) end
  -- Records that sharing processes have claimed or settled above the cursor would be delivered a second time.
  if tonumber(redis.call("HGET", base .. "next", who) or 0) - 1 > cursor then return { "SHARED" } end
  local owned, again, by = channel.own(who, token, instead, turn, now, lease_ms)
  if owned == "HELD" then
    log.wait("waiting", 1e15, address, stay_ms)
    return { "HELD", again, by }
  end
  local more = 0
  if owned == "MINE" and not again and (acked > cursor or mark ~= "" or counted ~= "") then
    if mark ~= "" then redis.call("HSET", base .. "marks", who, mark) end
    channel.count(who, found)
    local over
    more, over = channel.acknowledge(l, who, cursor, acked, now)
    if over then return { "ENDED" } end
    cursor = math.max(cursor, acked)
  end
  local fresh = owned == "FRESH"
  local position = math.max(cursor, l.first - 1, fresh and 0 or after)
  if position < l.top then log.ring(l, now) end
  log.wait("waiting", l.top, address, position >= l.top and stay_ms or 0)
  if fresh then
    return { "OK", l.top, l.first, cursor, more, 1, redis.call("HGET", base .. "marks", who) or "", channel.fit(l, position, room) }
  end
  return { "OK", l.top, l.first, cursor, more, 0, "", position == after and channel.fit(l, after + limit, room) or 0 }
end

-- Renew the lease of the process that receives; `lease_ms` 0: give the receiver back. Returns 1 if the process owned it.
--- keys: base state
--- args: given: int, who: str, token: str, lease_ms: int
--- flags: allow-oom
function script.hold(base, state, given, who, token, lease_ms)
  local fault, l = log.open()
  if fault then return fault end
  local turn, owner = string.match(redis.call("HGET", base .. "owners", who) or "", "^%d+ (%d+ %d) (.*)$")
  if not l or owner ~= token then return 0 end
  local now = clock.now(given)
  if lease_ms > 0 then
    redis.call("HSET", base .. "owners", who, string.format("%d %s %s", now + lease_ms, turn, token))
    redis.call("HSET", base .. "seen", who, string.format("%d", now))
  else
    redis.call("HDEL", base .. "owners", who)
    log.rouse("waiting", "+inf")
  end
  return 1
end

-- For one of several processes that share a receiver: settle these claims and the counts in `counted`, all or none; then claim
-- more records. A second call with this `token` returns the same records.
-- { "OK", ms until a lease runs out or -1, claim, number, ms, by, body, … }
-- { "LOST" }: another process has one of the claims, and nothing was settled
-- { "MISSED", how many, number of the next }: the receiver was passed over, and nothing was settled; one of the processes gets this
-- { "HELD", ms }: one process receives alone
-- { "ENDED" | "GONE" | "STRANGER" }
--- keys: base state
--- args: given: int, who: str, token: str, lease_ms: int, limit: int, room: int, counted: str, address: str, stay_ms: int, claims: *
--- flags: allow-oom
function script.share(base, state, given, who, token, lease_ms, limit, room, counted, address, stay_ms, claims, ...)
  local fault, l = log.open()
  if fault then return fault end
  if not l then
    log.wait("waiting", 0, address, stay_ms)
    return { "GONE" }
  end
  local now, found = clock.now(given), channel.counted(counted)
  local cursor, why, was = channel.reader(l, who)
  local said = redis.call("GET", base .. "claim:" .. token)
  local missed = said and cmsgpack.unpack(said).missed
  if not missed and (cursor or was) and l.first - 1 > (cursor or was) then
    missed = { l.first - 1 - (cursor or was), l.first }
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack({ missed = missed }), "PX", 60000)
    if was then channel.over(l, who, now) else channel.skip(l, who) end
  end
  if missed then return { "MISSED", missed[1], missed[2] } end
  if not cursor then return channel.none(why) end
  local till = tonumber(string.match(redis.call("HGET", base .. "owners", who) or "0", "^%d+"))
  if till > now then
    log.wait("waiting", 1e15, address, stay_ms)
    return { "HELD", till - now }
  end
  if #ARGV >= claims and not said then
    local leased = base .. "leased:" .. who
    for i = claims, #ARGV do
      if not redis.call("ZSCORE", leased, ARGV[i]) then return { "LOST" } end
    end
    for i = claims, #ARGV do shared_reader.drop(who, ARGV[i]) end
    channel.count(who, found)
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack({}), "PX", 60000)
    local low = shared_reader.cursor(who, tonumber(redis.call("HGET", base .. "next", who) or cursor + 1))
    local _, over = channel.acknowledge(l, who, cursor, low, now)
    if over then return { "ENDED" } end
    cursor = math.max(cursor, low)
  end
  redis.call("HSET", base .. "seen", who, string.format("%d", now))
  local answer = { "OK", -1 }
  shared_reader.hand_out(l, who, cursor, now, token, said, lease_ms, limit, room, answer)
  if #answer > 2 then
    stay_ms = 0
    log.ring(l, now)
  end
  log.wait("waiting", l.top, address, stay_ms)
  if stay_ms > 0 then answer[2] = shared_reader.due(who, now) end
  return answer
end
