-- The scripts of a queue: every change of its state is one of these.
--
--            enqueue(delay)          promote                 claim                complete, drop
--   (none) ───────────────▶ delayed ─────────▶ ready ─────────────────▶ running ───────────────▶ (done)
--      │                      ▲   │              ▲ │ ▲                   │ │ │ │                    ▲
--      └──────────────────────┼───┼──────────────┘ │ │    retry(0)       │ │ │ │                    │
--                enqueue      │   │                │ ├───────────────────┘ │ │ │                    │
--                             │   │                │ ├── release ──────────┘ │ │                    │
--                             │   │                │ └── take back ──────────┘ │ lease ran out      │
--                             └───┼── retry(delay) ┼───────────────────────────┤                    │
--                                 │                │  expires                  │ bury               │
--                                 └─ cancel, purge ┴───────────────────────────┼───────────────────▶│
--                                                            requeue           ▼                    │
--                                                    ready ◀──────────────── dead ── remove ───────▶┘
--
-- Keys, all in one slot, made from the declared prefix `base` (`{penstock:mail}:`); the other declared key is
-- `meta`. `base` itself never exists: while the slot moves to another node, a declared key that is missing
-- makes the server refuse the whole script before its first line, so nothing is ever half-written.
--
--   meta         HASH    format, seq, counts, switches (paused, due_first), see counters, lane and wake
--   jobs         HASH    id -> record                              owner: the job, until it is done or removed
--   delayed      ZSET    entry -> due, server ms
--   dead         ZSET    id -> died at, server ms                  owner: the operator
--   reasons      HASH    id -> why it failed last                  owner: the job
--   done:<id>    STRING  one letter and a text; PX ttl             c result, x cancelled, e expired, d dropped
--   waiters      HASH    id -> addresses to tell when it is done   owner: the job
--   settled:<inc> SET    tokens settled one by one; PX 60 s
--   turns, lane, front, weights (lane) · leases, held, turn, workers (lease) · sleepers, inbox (wake) · suspects (job)
--   tenants, age, ages (counters) · replay: (idempotency)

-- jobs: id, record (as a client fills it, see record.lua), … At most some hundreds.
-- Returns the places (from 0) of ids that are in the queue already; those records are left as they are.
--- keys: base meta
--- args: caller: str, number: int, given: int, jobs: *
function script.enqueue(base, meta, caller, number, given, jobs, ...)
  local newer, paused = record.check()
  if newer then return newer end
  local known = idempotency.replay(caller, number)
  if known then return known end
  known = {}
  local s = job.begin(given)
  local ids, seen = {}, {}
  for i = jobs, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  local old = redis.call("HMGET", base .. "jobs", unpack(ids))
  local generation = record.mint(#ids)
  local set, plan = {}, {}
  for i = 1, #ids do
    local id, body = ids[i], ARGV[jobs + 2 * i - 1]
    if old[i] or seen[id] then
      known[#known + 1] = i - 1
    else
      seen[id] = true
      local state, priority, flags, _, _, due, expires, _, _, _, _, tenant = record.parse(body)
      if bit.band(flags, 2) == 0 then due = s.now + due end
      if expires > 0 and bit.band(flags, 4) == 0 then expires = s.now + expires end
      if bit.band(flags, 8) > 0 then redis.call("DEL", base .. "done:" .. id) end
      state = due > s.now and "s" or "r"
      local since = due > s.now and due or s.now
      body = string.sub(body, 1, 1) .. state .. string.sub(body, 3, 3)
        .. struct.pack(">BI6I6I6I6", bit.band(flags, 249), generation + i, s.now, since, expires) .. string.sub(body, 29)
      set[#set + 1], set[#set + 2] = id, body
      if state == "s" then
        counters.move(s.counters, tenant, 0, 2)
        plan[#plan + 1], plan[#plan + 2] = due, record.entry(generation + i, #body, id)
      else
        job.ready(s, "lane:", id, #body, 0, priority, tenant, generation + i, s.now, 0)
      end
    end
  end
  if #set > 0 then redis.call("HSET", base .. "jobs", unpack(set)) end
  if generation == 0 then redis.call("HSET", meta, "format", 1) end
  if #plan > 0 then job.plan(s, plan) end
  job.commit(s)
  if s.ready and not paused then wake.ring(s.now) end
  return idempotency.keep(caller, number, known)
end

-- One round trip of a worker: finished jobs go out, due ones are promoted, overdue leases taken back, and the
-- next batch comes in. `settled`: `plain` tokens completed with null; `kept` pairs of token, result; then
-- fours of verb, token, delay ms, text. `number` counts the turns of the incarnation `me` from 1; the same number again
-- gets the same answer and settles nothing twice. `sleep_ms` > 0: if it finds less than `want`, `address` is recorded as asleep.
-- `once` (a claim without a worker): it sleeps only when it got nothing, and ends when it holds nothing. `trial`: whether a
-- suspect may come along (see job.claim). `who`: what a worker says of itself, in the first turn.
-- Returns { "OK", places of stale settlements, ms until a turn is due or -1, 1 if more can be had at once, token, record, … }
-- or { "STALE" }: the incarnation has ended, nothing was written.
--- keys: base meta
--- args: given: int, me: str, number: int, lease_ms: int, want: int, trial: str, address: str, sleep_ms: int, once: int, who: str, plain: int, kept: int, settled: *
--- flags: allow-oom
function script.turn(base, meta, given, me, number, lease_ms, want, trial, address, sleep_ms, once, who, plain, kept, settled, ...)
  local newer = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local now = s.now
  local past, next_in_line = lease.replay(me, number)
  if past then
    local reply = { "OK", past[2], -1, 1 }
    if #past[3] > 0 then
      if not lease.alive(me, now) then return { "STALE" } end
      local headers = lease.holds(me, past[3])
      for i, token in ipairs(past[3]) do
        local body = headers[i] and record.get(string.sub(token, 13))
        if body then
          reply[#reply + 1] = token
          reply[#reply + 1] = body
        end
      end
    end
    return reply
  end
  if not next_in_line or (number > 1 and not lease.alive(me, now)) then return { "STALE" } end

  local stale, tokens, results = {}, {}, {}
  local at = settled
  for i = 1, plain do
    tokens[i] = ARGV[at]
    at = at + 1
  end
  for i = plain + 1, plain + kept do
    tokens[i], results[i] = ARGV[at], ARGV[at + 1]
    at = at + 2
  end
  job.complete(s, me, tokens, results, stale)
  for i = at, #ARGV, 4 do
    if not job.settle(s, me, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]) then
      stale[#stale + 1] = plain + kept + (i - at) / 4
    end
  end
  local more_due, late = job.promote(s, 100)
  local more_lost = job.take_back(s, 100)
  if #s.suspects > 0 then wake.everyone(now) end
  job.place(s)

  local switches = redis.call("HMGET", meta, "paused", "front", "timekeeper")
  local room = { want = want, tokens = {}, reply = {} }
  if want > 0 and not switches[1] then room = job.claim(s, me, want, (tonumber(switches[2]) or 0) > 0, trial) end
  job.commit(s)

  local more = room.want > 0 and (room.full or more_due or more_lost)
  local asleep = sleep_ms > 0 and room.want > 0 and not more and (once == 0 or #room.tokens == 0)
  local idle = redis.call("EXISTS", base .. "held:" .. me) == 0
  if once == 1 and idle and not asleep then
    lease.leave(me)
  else
    redis.call("ZADD", base .. "leases", now + (asleep and idle and math.max(sleep_ms, lease_ms) or lease_ms), me)
    lease.remember(me, number, stale, room.tokens, lease_ms + sleep_ms + 60000)
    if who ~= "" then redis.call("HSET", base .. "workers", me, string.format("%d %s", now, who)) end
  end
  if address ~= "" or once == 1 then wake.answered() end
  local due_in = -1
  local vacant = late > 250 and address ~= "" and wake.depose(address)
  if asleep then
    due_in = wake.sleep(address, now, now + sleep_ms)
  elseif address ~= "" then
    wake.rise(address, now)
    if vacant then wake.appoint(now) end
  end
  if not idle and switches[3] then wake.arm(now, now + lease_ms) end
  if not asleep and not switches[1] and (tonumber(redis.call("HGET", meta, "ready")) or 0) > 0 then wake.ring(now) end
  return { "OK", stale, due_in, more and 1 or 0, unpack(room.reply) }
end

-- One claim without a worker ends: complete, retry, later, release, bury, drop. Returns 1, or 0 when the claim
-- is not ours any more. What was settled is remembered for a minute, so that the call may be sent twice.
--- keys: base meta
--- args: given: int, me: str, verb: str, token: str, delay: int, text: str
--- flags: allow-oom
function script.settle(base, meta, given, me, verb, token, delay, text)
  local newer, paused = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local memory = base .. "settled:" .. me
  if not lease.alive(me, s.now) or not lease.holds(me, { token })[1] then
    return redis.call("SISMEMBER", memory, token)
  end
  if verb == "complete" then
    job.complete(s, me, { token }, { text }, {})
  else
    job.settle(s, me, verb, token, delay, text)
  end
  redis.call("SADD", memory, token)
  redis.call("PEXPIRE", memory, 60000)
  job.commit(s)
  if redis.call("EXISTS", base .. "held:" .. me) == 0 then lease.leave(me) end
  if s.ready and not paused then wake.ring(s.now) end
  return 1
end

-- One command keeps all claims of an incarnation, however many. Returns 1, or 0 when it has ended.
--- keys: base meta
--- args: given: int, me: str, lease_ms: int
--- flags: allow-oom
function script.beat(base, meta, given, me, lease_ms)
  local newer = record.check()
  if newer then return newer end
  local now = clock.now(given)
  if not lease.alive(me, now) then return 0 end
  redis.call("ZADD", base .. "leases", now + lease_ms, me)
  redis.call("PEXPIRE", base .. "turn:" .. me, lease_ms + 60000)
  wake.arm(now, now + lease_ms)
  return 1
end

-- The incarnation is dead. `started`: tokens of what ran, which ends as `verb` says (crash, suspect, release) for the
-- reason `text`; where `more` is 1 others follow. What was not started is handed back. Some hundreds a call, and 1 MiB of
-- records. Returns { how many claims are left, 1 when all of `started` are settled }: call again.
--- keys: base meta
--- args: given: int, me: str, verb: str, text: str, more: int, started: *
--- flags: allow-oom
function script.abandon(base, meta, given, me, verb, text, more, started, ...)
  local newer = record.check()
  if newer then return newer end
  if not redis.call("ZSCORE", base .. "leases", me) then return { 0, 1 } end
  local s = job.begin(given)
  local held, slice, done = base .. "held:" .. me, lane.slice(250), 1
  for i = started, #ARGV do
    local id = string.sub(ARGV[i], 13)
    if redis.call("HEXISTS", held, id) == 1 then
      if not lane.fits(slice, redis.call("HSTRLEN", base .. "jobs", id)) then
        done = 0
        break
      end
      job.settle(s, me, verb, ARGV[i], 0, text)
    end
  end
  if more == 0 and done == 1 then
    local rest = redis.call("HRANDFIELD", held, slice.left, "WITHVALUES")
    local tokens = {}
    for i = 1, #rest, 2 do
      if not lane.fits(slice, redis.call("HSTRLEN", base .. "jobs", rest[i])) then break end
      tokens[#tokens + 1] = string.sub(rest[i + 1], 1, 12) .. rest[i]
    end
    table.sort(tokens) -- in the order in which they were claimed
    for i = 1, #tokens do job.settle(s, me, "release", tokens[i], 0, "") end
  end
  if #s.suspects > 0 then wake.everyone(s.now) end
  job.commit(s)
  local left = redis.call("HLEN", held)
  if left == 0 then lease.leave(me) end
  if s.ready and not redis.call("HGET", meta, "paused") then wake.ring(s.now) end
  return { left, done }
end

-- Returns for each id: cancelled, running (it goes on), dead, done, or none.
--- keys: base meta
--- args: given: int, ids: *
--- flags: allow-oom
function script.cancel(base, meta, given, ids, ...)
  local newer = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local words = {}
  for i = ids, #ARGV do
    local id = ARGV[i]
    local body = record.get(id)
    local state = body and string.sub(body, 2, 2)
    if not body then
      local done = redis.call("GETRANGE", base .. "done:" .. id, 0, 0)
      words[#words + 1] = done == "x" and "cancelled" or done ~= "" and "done" or "none"
    elseif state == "r" or state == "s" then
      job.remove(s, id, body, "x", "")
      redis.call("HINCRBY", meta, "cancelled", 1)
      words[#words + 1] = "cancelled"
    else
      words[#words + 1] = state == "x" and "running" or "dead"
    end
  end
  job.commit(s)
  return words
end

-- Cancel a slice of the waiting jobs of one tenant (or of `all`): what is in lanes first, then what is in `list`, which is
-- `delayed` or `suspects`. `offset` goes through it from its end, where no promotion moves the places. Returns { cancelled,
-- next offset, 1 when done }.
--- keys: base meta
--- args: given: int, tenant: str, all: int, list: str, offset: int, limit: int
--- flags: allow-oom
function script.purge(base, meta, given, tenant, all, list, offset, limit)
  local newer = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local slice = lane.slice(limit)
  for level = 0, 9 do
    local turns = base .. "turns:" .. level
    while slice.left > 0 do
      local who = tenant
      if all == 1 then who = redis.call("ZRANGE", turns, 0, 0)[1] end
      if not who or not redis.call("ZSCORE", turns, who) then break end
      job.drain(s, level, who, slice)
    end
  end
  local entries = slice.left > 0 and redis.call("ZRANGE", base .. list, offset, offset + slice.left - 1, "REV") or {}
  local fit = lane.fitting(slice, entries)
  for i = 1, #fit do
    local id = string.sub(fit[i], 12)
    local body = record.get(id)
    if not body then
      redis.call("ZREM", base .. list, fit[i])
    elseif all == 1 or record.tenant(body) == tenant then
      job.remove(s, id, body, "x", "")
    else
      offset = offset + 1
    end
  end
  job.commit(s)
  if #s.told > 0 then redis.call("HINCRBY", meta, "cancelled", #s.told) end
  return { #s.told, offset, slice.left > 0 and 1 or 0 }
end

-- Returns { record or false, reason or false, done or false }.
--- keys: base meta
--- args: id: str
--- flags: no-writes
function script.show(base, meta, id)
  local newer = record.check()
  if newer then return newer end
  return {
    redis.call("HGET", base .. "jobs", id),
    redis.call("HGET", base .. "reasons", id),
    redis.call("GET", base .. "done:" .. id),
  }
end

-- What `show` returns; where the job is not finished, `address` is told when it is.
--- keys: base meta
--- args: id: str, address: str
--- flags: allow-oom
function script.result(base, meta, id, address)
  local newer = record.check()
  if newer then return newer end
  local body = redis.call("HGET", base .. "jobs", id)
  local state = body and string.sub(body, 2, 2)
  if state and state ~= "d" and address ~= "" then
    local old = redis.call("HGET", base .. "waiters", id) or ""
    if not string.find(" " .. old .. " ", " " .. address .. " ", 1, true) then
      redis.call("HSET", base .. "waiters", id, old == "" and address or old .. " " .. address)
    end
  end
  return { body, redis.call("HGET", base .. "reasons", id), redis.call("GET", base .. "done:" .. id) }
end

-- A waiter gave up.
--- keys: base meta
--- args: id: str, address: str
--- flags: allow-oom
function script.forget(base, meta, id, address)
  local newer = record.check()
  if newer then return newer end
  local old = redis.call("HGET", base .. "waiters", id)
  if not old then return 0 end
  local left = {}
  for other in string.gmatch(old, "%S+") do
    if other ~= address then left[#left + 1] = other end
  end
  if #left == 0 then return redis.call("HDEL", base .. "waiters", id) end
  return redis.call("HSET", base .. "waiters", id, table.concat(left, " "))
end

-- `paused`: no claims, running work goes on. `due_first`: due jobs go before the lane of their tenant and level.
--- keys: base meta
--- args: given: int, name: str, on: int
--- flags: allow-oom
function script.switch(base, meta, given, name, on)
  local newer = record.check()
  if newer then return newer end
  if on == 1 then return redis.call("HSET", meta, name, 1) end
  redis.call("HDEL", meta, name)
  if (tonumber(redis.call("HGET", meta, "ready")) or 0) > 0 then wake.ring(clock.now(given)) end
  return 0
end

-- A tenant of weight 3 has three turns where others have one; counts from its next turn.
--- keys: base meta
--- args: tenant: str, weight: str
--- flags: allow-oom
function script.weigh(base, meta, tenant, weight)
  local newer = record.check()
  if newer then return newer end
  if tonumber(weight) == 1 then return redis.call("HDEL", base .. "weights", tenant) end
  return redis.call("HSET", base .. "weights", tenant, weight)
end
