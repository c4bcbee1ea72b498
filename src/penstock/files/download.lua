-- The scripts of receivers: a process that receives alone, or several that share the work. channel.lua has the key map.

_share = { DUE = 2 } -- its index in the reply to a share

-- Makes this process the owner of the receiver, unless another process holds a lease on it.
--   number      the number of this call, which rises with each call of the process
--   dead_token  the token of a process that is known to be dead; its lease is ignored
--   refusal     a function. If this call may settle, `refusal` is called before anything is written, so that a repeated
--               call is refused, too
-- Returns one of:
--   "REFUSED" and what `refusal` returned, if it returned something
--   "HELD", the ms until the other lease ends, and the token of its owner
--   "FRESH" if this call made the process the owner, and whether this is a repeated call
--   "MINE" if the process was the owner before, and whether this is a repeated call
--- (receiver: str, token: str, dead_token: str, number: int, now: int, lease_ms: int, refusal: any) -> str, any, str
--- uses: base
function download.own(receiver, token, dead_token, number, now, lease_ms, refusal)
  local owned = redis.call("HGET", base .. "owners", receiver)
  local ends_at, last, new, owner = string.match(owned or "", "^(%d+) (%d+) (%d) (.*)$")
  if owned and owner ~= token and owner ~= dead_token and tonumber(ends_at) > now then
    return "HELD", tonumber(ends_at) - now, owner
  end
  local again = owner == token and number <= tonumber(last) -- lower if the repeated call was delayed
  local fresh = owner ~= token or (again and new == "1")
  local refused = not fresh and not again and refusal()
  if refused then return "REFUSED", refused end
  local entry = string.format("%d %d %d %s", now + lease_ms, again and last or number, fresh and 1 or 0, token)
  redis.call("HSET", base .. "owners", receiver, entry)
  redis.call("HSET", base .. "seen", receiver, string.format("%d", now))
  return fresh and "FRESH" or "MINE", again
end

-- Registers, for `ms`, a process that waits until it can be the owner of a receiver; with 0 removes it. Also wakes the
-- next slice of those that do not know yet that a lease has ended.
--- (address: str, ms: int)
--- uses: base
function download.await_owner(address, ms)
  waiting.wake("standby")
  if ms > 0 then waiting.add("standby", address, ms) else download.stop_waiting(address) end
end

-- Removes a process from those that wait for a record or for the end of a lease.
--- (address: str)
--- uses: base
function download.stop_waiting(address)
  waiting.remove("waiting", address)
  waiting.remove("standby", address)
end

-- The bytes up to the end of a record, from an element of `ends`; nil if there is no such element.
--- (element: str | false) -> int | nil
function download.bytes_up_to(element)
  return element and tonumber(string.match(element, "^%d+"))
end

-- Returns how many records after `position` make up to `room` bytes: at least one if there is one, at most a thousand.
--- (l: table, position: int, room: int) -> int
--- uses: base
function download.records_within(l, position, room)
  local from, n = position + 1 - l.first, 0
  local before = from > 0 and download.bytes_up_to(redis.call("LINDEX", base .. "ends", from - 1)) or l.begun
  while position + n < l.top and n < 1000 do
    local ends = redis.call("LRANGE", base .. "ends", from + n, from + n + 15)
    for i = 1, #ends do
      if n > 0 and download.bytes_up_to(ends[i]) - before > room then return n end
      n = n + 1
    end
    if #ends == 0 then break end
  end
  return n
end

-- For a process that receives alone: makes it the owner of the receiver, or extends its lease, and settles the records
-- that it has processed. To settle is to acknowledge everything up to `acked`, to store `receiver_state` ("" leaves it
-- unchanged) and to add the counts. These calls settle nothing:
--   a repeated call
--   a call that makes the process the owner: another process may have received and settled since its last call
--   a call after which the channel has begun again: its `position`, that of record `after` ("": unknown), is not one of
--     this channel
--   a call whose receiver had settled everything up to record `reached`, when its cursor is before that: the server
--     has lost its latest writes, and with them these settlements and their counts
-- In the last three cases the process resumes from the cursor and the receiver state in the reply.
--
-- The caller reads the records itself, with an XRANGE that it sends together with this script: `limit` records after
-- number `after`. Their bodies are too large to pass through a script. If there is no record, `address` is registered
-- for `wait_ms`, and notified of the next one.
--
-- Returns one of:
--   { "OK", top, first, cursor, 1 if there is more to trim, news, receiver state, `limit` for the next call or 0 if
--     that is unknown, position of the cursor }. `news` is 1 if this call made the process the owner, 2 if the channel
--     began again, else 0; with 0 the state and the position are "", and the position is also "" if it is unknown
--   { "HELD", ms until the lease of the owner ends, its token }
--   a refusal of `counts.refusal`: the counts cannot be added, and nothing was settled
--   { "SHARED" }: several processes share the receiver
--   { "ENDED" | "GONE" | "VANISHED" | "NOT_A_MEMBER" }
--- keys: base state
--- args: given: int, receiver: str, token: str, dead_token: str, number: int, lease_ms: int, reached: int, acked: int
--- args: receiver_state: str, packed_counts: str, after: int, position: str, limit: int, room: int, address: str
--- args: wait_ms: int
--- flags: allow-oom
--- frame: log
function script.receive(base, state, given, receiver, token, dead_token, number, lease_ms, reached, acked,
  receiver_state, packed_counts, after, position, limit, room, address, wait_ms)
  if not l then
    log.wake_changed()
    log.await_message(address, wait_ms)
    return { "GONE" }
  end
  local now, found = clock.now(given), counts.decode(packed_counts)
  local cursor, why, was = channel.cursor(l, receiver)
  if why == "LATE" and acked < l.top then return { "OK", l.top, l.first, was, 0, 1, "", 0, "" } end
  if why == "LATE" then
    channel.finish_receiver(l, receiver, now)
    return { "ENDED" }
  end
  if not cursor then return channel.refuse(why) end
  if l.restarted then download.begin_again(l, receiver) end
  -- Records that other processes have claimed, or settled above the cursor, would be received once more.
  if tonumber(redis.call("HGET", base .. "next", receiver) or 0) - 1 > cursor then return { "SHARED" } end
  local restarted = l.restarted or cursor < reached or after > l.top or acked > l.top or not log.locate(l, position)
  if l.is_lost or (cursor < l.top and redis.call("EXISTS", base .. "log") == 0) then return { "VANISHED", "log" } end
  local function refusal() return not restarted and counts.refusal(receiver, { found }, now) or nil end
  local owned, again, by = download.own(receiver, token, dead_token, number, now, lease_ms, refusal)
  if owned == "REFUSED" then return again end
  if owned == "HELD" then
    download.await_owner(address, wait_ms)
    return { "HELD", again, by }
  end
  local more = 0
  if restarted then owned = "FRESH" end
  if owned == "MINE" and not again and (acked > cursor or receiver_state ~= "" or packed_counts ~= "") then
    if receiver_state ~= "" then redis.call("HSET", base .. "marks", receiver, receiver_state) end
    counts.add(receiver, found, now)
    local finished
    more, finished = channel.acknowledge(l, receiver, cursor, acked, now)
    if finished then return { "ENDED" } end
    cursor = math.max(cursor, acked)
  end
  local fresh = owned == "FRESH"
  local read_to = math.max(cursor, l.first - 1, fresh and 0 or after)
  waiting.wake("standby")
  if read_to < l.top then log.wake_rest(l, now) end
  if wait_ms == 0 then
    download.stop_waiting(address)
  elseif read_to >= l.top then
    -- With a record, the address stays registered: another stream of this face may wait for a later one.
    log.await_message(address, wait_ms)
  end
  if fresh then
    local kept = redis.call("HGET", base .. "marks", receiver) or ""
    local fresh_limit, known = download.records_within(l, read_to, room), log.position(l, cursor)
    return { "OK", l.top, l.first, cursor, more, restarted and 2 or 1, kept, fresh_limit, known }
  end
  local next_limit = read_to == after and download.records_within(l, after + limit, room) or 0
  return { "OK", l.top, l.first, cursor, more, 0, "", next_limit, "" }
end

-- Extends the lease of the process that owns the receiver, or with a `lease_ms` of 0 ends it, so that another process
-- can become the owner. Returns 1 if the process was the owner, else 0.
--- keys: base state
--- args: given: int, receiver: str, token: str, lease_ms: int
--- flags: allow-oom
--- frame: log
function script.renew(base, state, given, receiver, token, lease_ms)
  local call, owner = string.match(redis.call("HGET", base .. "owners", receiver) or "", "^%d+ (%d+ %d) (.*)$")
  if not l or owner ~= token then return 0 end
  local now = clock.now(given)
  if lease_ms > 0 then
    redis.call("HSET", base .. "owners", receiver, string.format("%d %s %s", now + lease_ms, call, token))
    redis.call("HSET", base .. "seen", receiver, string.format("%d", now))
  else
    redis.call("HDEL", base .. "owners", receiver)
    waiting.report("standby")
  end
  return 1
end

-- Makes a receiver begin with the oldest record, because the channel began again below its cursor. Drops its state,
-- which is about files in the records before that.
--- (l: table, receiver: str)
--- uses: base
--- seldom
function download.begin_again(l, receiver)
  shared_reader.begin_again(l, receiver)
  redis.call("HDEL", base .. "marks", receiver)
end

-- For one of several processes that share a receiver: settles claims, then claims up to `limit` records. The claims are
-- given as claim, packed counts, …, and each is settled separately, together with its counts: a claim that another
-- process has taken over is skipped, and its counts are dropped. A second call with this `token` settles nothing, and
-- returns the same records. If there is no record, `address` is registered for `wait_ms`, and notified of the next one.
--
-- Returns { "OK", ms after which to ask again even without a record or -1, claim, number, ms, by, body, "", … } or
-- { "ENDED" }. Or, if nothing was settled, one of:
--   { "RESTARTED", the cursor }: the channel began again below the cursor that the receiver had; all claims have ended
--   { "MISSED", how many records, number of the next one }: the receiver was passed over; only one process gets this
--   { "HELD", ms until its lease ends }: a process receives alone
--   a refusal of `counts.refusal`: the counts cannot be added
--   { "GONE" | "VANISHED" | "NOT_A_MEMBER" }
--- keys: base state
--- args: given: int, receiver: str, token: str, lease_ms: int, limit: int, room: int, address: str, wait_ms: int
--- args: claims: *
--- flags: allow-oom
--- frame: log
function script.share(base, state, given, receiver, token, lease_ms, limit, room, address, wait_ms, claims, ...)
  if not l then
    log.wake_changed()
    log.await_message(address, wait_ms)
    return { "GONE" }
  end
  local now, leased, settled = clock.now(given), base .. "leased:" .. receiver, {}
  for i = claims, #ARGV, 2 do
    if redis.call("ZSCORE", leased, ARGV[i]) then settled[#settled + 1] = { ARGV[i], counts.decode(ARGV[i + 1]) } end
  end
  local cursor, why, was = channel.cursor(l, receiver)
  local earlier = redis.call("GET", base .. "claim:" .. token)
  local missed = earlier and cmsgpack.unpack(earlier).missed
  if not missed and (cursor or was) and l.first - 1 > (cursor or was) then
    missed = { l.first - 1 - (cursor or was), l.first }
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack({ missed = missed }), "PX", 60000)
    if was then
      channel.finish_receiver(l, receiver, now)
    else
      -- Records that were freed count as received.
      redis.call("ZADD", base .. "readers", l.first - 1, receiver)
      shared_reader.drop_below(receiver, l.first - 1)
    end
  end
  if missed then return { "MISSED", unpack(missed) } end
  if not cursor then return channel.refuse(why) end
  local unclaimed = tonumber(redis.call("HGET", base .. "next", receiver) or cursor + 1)
  if l.restarted or unclaimed > l.top + 1 then
    download.begin_again(l, receiver)
    return { "RESTARTED", l.first - 1 }
  end
  local ends_at = tonumber(string.match(redis.call("HGET", base .. "owners", receiver) or "0", "^%d+"))
  if ends_at > now then
    waiting.remove("idle:" .. receiver, address)
    download.await_owner(address, wait_ms)
    return { "HELD", ends_at - now }
  end
  if #ARGV >= claims and not earlier then
    local all = {}
    for i, one in ipairs(settled) do all[i] = one[2] end
    local refusal = counts.refusal(receiver, all, now)
    if refusal then return refusal end
    for _, one in ipairs(settled) do
      shared_reader.drop(receiver, one[1])
      counts.add(receiver, one[2], now)
    end
    redis.call("SET", base .. "claim:" .. token, cmsgpack.pack({}), "PX", 60000)
    local low = shared_reader.cursor(receiver, unclaimed)
    local _, finished = channel.acknowledge(l, receiver, cursor, low, now)
    if finished then return { "ENDED" } end
    cursor = math.max(cursor, low)
  end
  redis.call("HSET", base .. "seen", receiver, string.format("%d", now))
  if limit > 0 then shared_reader.answered(receiver) end
  waiting.remove("idle:" .. receiver, address) -- before `claim`, which may wake one of the others
  download.stop_waiting(address)
  local answer = { "OK", -1 }
  local head = #answer
  shared_reader.claim(l, receiver, cursor, now, token, earlier, lease_ms, limit, room, 0, answer)
  if l.is_lost then return { "VANISHED", "log" } end
  if #answer > head then
    log.wake_rest(l, now)
  elseif wait_ms > 0 then
    answer[_share.DUE] = shared_reader.register(receiver, l.top, address, now, wait_ms)
  end
  return answer
end
