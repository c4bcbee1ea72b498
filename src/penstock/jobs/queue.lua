-- The scripts of a queue. Only these and the scripts of dead_letters.lua change its state.
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
-- All keys are in one slot. Each script declares two keys, `base` (`{penstock:mail}:`) and `meta`, and builds the names
-- of all others from `base`. `base` itself never exists, on purpose: while the slot moves to another node, a missing
-- declared key makes the server refuse the script before its first line. So a script never makes half of its changes.
-- The argument `given` is 0, or the time that a test sets (see core/clock.lua).
--
--   meta         HASH    format, seq, switches (paused, due_first), totals; see counters, lane and wake
--   jobs         HASH    id -> record                              owner: the job, until it is finished or removed
--   delayed      ZSET    entry -> due, server ms
--   dead         ZSET    id -> died at, server ms                  owner: the operator
--   reasons      HASH    id -> why it failed last                  owner: the job
--   done:<id>    STRING  how it ended, a letter (see `ending` in job.lua) and a text; PX ttl
--   settled:<inc> SET    tokens that an incarnation settled outside of its turns; PX 60 s
--   turns, lane, front, weights (lane) · leases, held, turn, workers (lease) · sleepers (wake) · suspects (recovery)
--   tenants, age, ages (counters) · listeners, unnotified (listeners) · replay: (idempotency)

_jobs_per_call = { PROMOTED = 100, TAKEN_BACK = 100, ABANDONED = 250 }

_late = { TIMEKEEPER = 250 } -- ms: a due job that is later than this shows that the timekeeper has failed

-- Enqueues `jobs`: id, draft (see record.lua), id, draft, … Send at most a few hundred per call. Returns the positions,
-- from 0, of ids that are already in the queue; those jobs are not changed.
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
  local set, delayed = {}, {}
  for i = 1, #ids do
    local id, body = ids[i], ARGV[jobs + 2 * i - 1]
    if old[i] or seen[id] then
      known[#known + 1] = i - 1
    else
      seen[id] = true
      local _, priority, flags, _, _, due, expires, _, _, _, _, tenant = record.parse(body)
      if not record.has(flags, flag.DUE_IS_DATE) then due = s.now + due end
      if expires > 0 and not record.has(flags, flag.EXPIRES_IS_DATE) then expires = s.now + expires end
      if record.has(flags, flag.OWN_ID) then redis.call("DEL", base .. "done:" .. id) end
      local is_delayed = due > s.now
      local new_state, since = is_delayed and state.DELAYED or state.READY, is_delayed and due or s.now
      flags = bit.band(flags, _mask.NO_DATES)
      body = record.enqueued(body, new_state, flags, generation + i, s.now, since, expires)
      set[#set + 1], set[#set + 2] = id, body
      if is_delayed then
        counters.move(s.counters, tenant, nil, state.DELAYED)
        delayed[#delayed + 1], delayed[#delayed + 2] = due, record.entry(generation + i, #body, id)
      else
        job.make_ready(s, "lane:", id, #body, 0, priority, tenant, generation + i, s.now, nil)
      end
    end
  end
  if #set > 0 then redis.call("HSET", base .. "jobs", unpack(set)) end
  if generation == 0 then redis.call("HSET", meta, "format", record.FORMAT) end
  if #delayed > 0 then job.delay(s, delayed) end
  job.commit(s)
  if s.ready and not paused then wake.one(s.now) end
  return idempotency.keep(caller, number, known)
end

-- One round trip of a worker. It settles finished jobs, promotes due jobs, takes back jobs whose lease ran out, and
-- claims the next jobs.
--
--   number        counts the turns of the incarnation from 1. Repeating a turn with the same number returns the same
--                 answer and settles nothing twice
--   trial         whether suspects are claimed: "", "alone" or "only" (see job.claim)
--   idle_ms       above 0: if fewer than `want` jobs were claimed, the worker at `address` is registered as idle
--   once          1: the claim of a program without a worker. It is registered as idle only if it got no job, and its
--                 incarnation ends as soon as it holds no job
--   registration  of a worker, in its first turn; else empty
--   settlements   `completed` tokens of jobs without a result; then `with_result` pairs of token and result; then for
--                 each other job: verb, token, delay in ms, text
--
-- Returns { "OK", positions of stale settlements, ms after which to take a turn even without a message (-1: wait for
-- one), 1 if more jobs can be claimed at once, ms for which a suspect has waited (-1: none waits), token, record, … }.
-- Returns { "STALE" } if the incarnation has ended;
-- then nothing was written.
--- keys: base meta
--- args: given: int, incarnation: str, number: int, lease_ms: int, want: int, trial: str, address: str, idle_ms: int
--- args: once: int, registration: str, completed: int, with_result: int, settlements: *
--- flags: allow-oom
function script.turn(base, meta, given, incarnation, number, lease_ms, want, trial, address, idle_ms,
  once, registration, completed, with_result, settlements, ...)
  local newer = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local now = s.now
  local past, is_next = lease.replay(incarnation, number)
  if past then
    local reply = { "OK", past[2], -1, 1, -1 }
    if #past[3] > 0 then
      if not lease.alive(incarnation, now) then return { "STALE" } end
      local headers = lease.headers(incarnation, past[3])
      for i, token in ipairs(past[3]) do
        local body = headers[i] and record.get(lease.job_id(token))
        if body then
          reply[#reply + 1] = token
          reply[#reply + 1] = body
        end
      end
    end
    return reply
  end
  if not is_next or (number > 1 and not lease.alive(incarnation, now)) then return { "STALE" } end

  local stale, tokens, results = {}, {}, {}
  local at = settlements
  for i = 1, completed do
    tokens[i] = ARGV[at]
    at = at + 1
  end
  for i = completed + 1, completed + with_result do
    tokens[i], results[i] = ARGV[at], ARGV[at + 1]
    at = at + 2
  end
  job.complete(s, incarnation, tokens, results, stale)
  for i = at, #ARGV, 4 do
    if not job.settle(s, incarnation, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]) then
      stale[#stale + 1] = completed + with_result + (i - at) / 4
    end
  end
  local more_due, late = job.promote(s, _jobs_per_call.PROMOTED)
  local more_lost = job.take_back(s, _jobs_per_call.TAKEN_BACK)
  if #s.suspects > 0 then wake.many(now, #s.suspects / 2) end
  job.push_ready(s)

  local switches = redis.call("HMGET", meta, "paused", "front", "timekeeper")
  local room = { want = want, tokens = {}, reply = {} }
  if want > 0 and not switches[1] then
    room = job.claim(s, incarnation, want, (tonumber(switches[2]) or 0) > 0, trial)
  end
  job.commit(s)
  local suspects = switches[1] and -1 or recovery.waiting(now)
  local more_listeners = listeners.notify_rest(s.part)

  local more = room.want > 0 and (room.full or more_due or more_lost or more_listeners)
  local idle = idle_ms > 0 and room.want > 0 and not more and (once == 0 or #room.tokens == 0)
  local empty = redis.call("EXISTS", base .. "held:" .. incarnation) == 0
  if once == 1 and empty and not idle then
    lease.remove(incarnation)
  else
    local ms = idle and empty and math.max(idle_ms, lease_ms) or lease_ms
    redis.call("ZADD", base .. "leases", now + ms, incarnation)
    lease.keep_turn(incarnation, number, stale, room.tokens, lease_ms + idle_ms + 60000)
    if registration ~= "" then
      redis.call("HSET", base .. "workers", incarnation, string.format("%d %s", now, registration))
    end
  end
  if address ~= "" or once == 1 then wake.answered() end
  local due_in = -1
  local vacant = late > _late.TIMEKEEPER and address ~= "" and wake.remove_timekeeper(address)
  if idle then
    due_in = wake.register(address, now, now + idle_ms)
  elseif address ~= "" then
    wake.deregister(address, now)
    if vacant then wake.appoint(now) end
  end
  if not empty and switches[3] then wake.set_alarm(now, now + lease_ms) end
  if not idle and not switches[1] and (tonumber(redis.call("HGET", meta, "ready")) or 0) > 0 then wake.one(now) end
  return { "OK", stale, due_in, more and 1 or 0, suspects, unpack(room.reply) }
end

-- Settles one claim outside of a turn: complete, or a verb of job.settle. Returns 1, or 0 if the incarnation no longer
-- holds the job. The token is remembered for a minute, so that the call may be sent again.
--- keys: base meta
--- args: given: int, incarnation: str, verb: str, token: str, ms: int, text: str
--- flags: allow-oom
function script.settle(base, meta, given, incarnation, verb, token, ms, text)
  local newer, paused = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local memory = base .. "settled:" .. incarnation
  if not lease.alive(incarnation, s.now) or not lease.headers(incarnation, { token })[1] then
    return redis.call("SISMEMBER", memory, token)
  end
  if verb == "complete" then
    job.complete(s, incarnation, { token }, { text }, {})
  else
    job.settle(s, incarnation, verb, token, ms, text)
  end
  redis.call("SADD", memory, token)
  redis.call("PEXPIRE", memory, 60000)
  job.commit(s)
  if redis.call("EXISTS", base .. "held:" .. incarnation) == 0 then lease.remove(incarnation) end
  if s.ready and not paused then wake.one(s.now) end
  return 1
end

-- Extends all claims of an incarnation at once, however many it has. Returns 1, or 0 if its lease had already run out.
--- keys: base meta
--- args: given: int, incarnation: str, lease_ms: int
--- flags: allow-oom
function script.heartbeat(base, meta, given, incarnation, lease_ms)
  local newer = record.check()
  if newer then return newer end
  local now = clock.now(given)
  if not lease.alive(incarnation, now) then return 0 end
  redis.call("ZADD", base .. "leases", now + lease_ms, incarnation)
  redis.call("PEXPIRE", base .. "turn:" .. incarnation, lease_ms + 60000)
  wake.set_alarm(now, now + lease_ms)
  return 1
end

-- Ends one slice of the claims of an incarnation that takes no more turns. The caller repeats it until none is left.
-- `started` lists tokens of jobs that were running; they are settled with `verb` (crash, loss or release) and the
-- reason `text`. All other claims are released, unless `more` is 1, which means that a later call lists further started
-- jobs. Returns { how many claims are left, 1 if all of `started` are settled, ms for which a suspect has waited or -1 }.
--- keys: base meta
--- args: given: int, incarnation: str, verb: str, text: str, more: int, started: *
--- flags: allow-oom
function script.abandon(base, meta, given, incarnation, verb, text, more, started, ...)
  local newer = record.check()
  if newer then return newer end
  if not redis.call("ZSCORE", base .. "leases", incarnation) then
    return { 0, 1, recovery.waiting(clock.now(given)) }
  end
  local s = job.begin(given)
  local held, part, done = base .. "held:" .. incarnation, slice.of(_jobs_per_call.ABANDONED), 1
  for i = started, #ARGV do
    local id = lease.job_id(ARGV[i])
    if redis.call("HEXISTS", held, id) == 1 then
      if not slice.take(part, redis.call("HSTRLEN", base .. "jobs", id)) then
        done = 0
        break
      end
      job.settle(s, incarnation, verb, ARGV[i], 0, text)
    end
  end
  if more == 0 and done == 1 then
    local rest = redis.call("HRANDFIELD", held, part.left, "WITHVALUES")
    local tokens = {}
    for i = 1, #rest, 2 do
      if not slice.take(part, redis.call("HSTRLEN", base .. "jobs", rest[i])) then break end
      tokens[#tokens + 1] = lease.claim_number(rest[i + 1]) .. rest[i]
    end
    table.sort(tokens) -- in the order in which they were claimed
    for i = 1, #tokens do job.settle(s, incarnation, "release", tokens[i], 0, "") end
  end
  if #s.suspects > 0 then wake.many(s.now, #s.suspects / 2) end
  job.commit(s)
  local left = redis.call("HLEN", held)
  if left == 0 then lease.remove(incarnation) end
  if s.ready and not redis.call("HGET", meta, "paused") then wake.one(s.now) end
  return { left, done, recovery.waiting(s.now) }
end

-- Cancels waiting jobs. Returns for each id: cancelled, running (it was not cancelled), dead, done or none.
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
    local found = body and record.state(body)
    if not body then
      local done = redis.call("GETRANGE", base .. "done:" .. id, 0, 0)
      words[#words + 1] = done == ending.CANCELLED and "cancelled" or done ~= "" and "done" or "none"
    elseif found == state.READY or found == state.DELAYED then
      job.remove(s, id, body, ending.CANCELLED, "")
      redis.call("HINCRBY", meta, "cancelled", 1)
      words[#words + 1] = "cancelled"
    else
      words[#words + 1] = found == state.RUNNING and "running" or "dead"
    end
  end
  job.commit(s)
  return words
end

-- Cancels a slice of the waiting jobs of one tenant, or of `all`: first those in lanes, then those in `source`, which
-- is `delayed` or `suspects`. `offset` counts from the end of `source`, because promotions remove entries at its start.
-- With a limit of 0 it only notifies listeners that are left. Returns { how many were cancelled, the next offset, 1 when
-- done, 1 if listeners are left to be notified }.
--- keys: base meta
--- args: given: int, tenant: str, all: int, source: str, offset: int, limit: int
--- flags: allow-oom
function script.purge(base, meta, given, tenant, all, source, offset, limit)
  local newer = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local part = slice.of(limit)
  for level = 0, 9 do
    local turns = base .. "turns:" .. level
    while part.left > 0 do
      local one = tenant
      if all == 1 then one = redis.call("ZRANGE", turns, 0, 0)[1] end
      if not one or not redis.call("ZSCORE", turns, one) then break end
      job.cancel_tenant(s, level, one, part)
    end
  end
  local entries = part.left > 0 and redis.call("ZRANGE", base .. source, offset, offset + part.left - 1, "REV") or {}
  local fit = slice.take_entries(part, entries)
  for i = 1, #fit do
    local id = record.entry_id(fit[i])
    local body = record.get(id)
    if not body then
      redis.call("ZREM", base .. source, fit[i])
    elseif all == 1 or record.tenant(body) == tenant then
      job.remove(s, id, body, ending.CANCELLED, "")
    else
      offset = offset + 1
    end
  end
  job.commit(s)
  if #s.finished > 0 then redis.call("HINCRBY", meta, "cancelled", #s.finished) end
  return { #s.finished, offset, part.left > 0 and 1 or 0, listeners.notify_rest(s.part) and 1 or 0 }
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

-- Returns the same as `show`. If the job is not finished, the listener at `address` is notified when it is. Also
-- notifies listeners of finished jobs that earlier calls have left.
--- keys: base meta
--- args: id: str, address: str
--- flags: allow-oom
function script.result(base, meta, id, address)
  local newer = record.check()
  if newer then return newer end
  local body = redis.call("HGET", base .. "jobs", id)
  if body and record.state(body) ~= state.DEAD and address ~= "" then listeners.add(id, address) end
  listeners.notify_rest(listeners.slice())
  return { body, redis.call("HGET", base .. "reasons", id), redis.call("GET", base .. "done:" .. id) }
end

-- Deregisters a listener that waits for a result no longer.
--- keys: base meta
--- args: id: str, address: str
--- flags: allow-oom
function script.forget(base, meta, id, address)
  local newer = record.check()
  if newer then return newer end
  listeners.remove(id, address)
end

-- Sets a switch. `paused`: no job is claimed, running jobs continue. `due_first`: due jobs are claimed before the lane
-- of their tenant and level.
--- keys: base meta
--- args: given: int, name: str, on: int
--- flags: allow-oom
function script.set_switch(base, meta, given, name, on)
  local newer = record.check()
  if newer then return newer end
  if on == 1 then return redis.call("HSET", meta, name, 1) end
  redis.call("HDEL", meta, name)
  if (tonumber(redis.call("HGET", meta, "ready")) or 0) > 0 then wake.one(clock.now(given)) end
  return 0
end

-- Sets the weight of a tenant, from its next turn on. A tenant of weight 3 has three turns where others have one.
--- keys: base meta
--- args: tenant: str, weight: str
--- flags: allow-oom
function script.set_weight(base, meta, tenant, weight)
  local newer = record.check()
  if newer then return newer end
  if tonumber(weight) == 1 then return redis.call("HDEL", base .. "weights", tenant) end
  return redis.call("HSET", base .. "weights", tenant, weight)
end
