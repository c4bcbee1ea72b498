-- The transitions of a job as functions: each moves a job from one state to another. `queue.lua` draws the states, maps
-- the keys, and has the scripts that call these functions.
--
-- `s` collects the changes of one script: time, counters, lists to push to, suspects, and finished jobs whose listeners
-- are to be notified. `job.commit` writes them.
--
-- recovery.lua says what follows for a job whose process died. A release keeps what is counted there; a run that ends in
-- any other way clears it.

-- The first letter of `done:<id>`. None of them is the letter of a state.
ending = { COMPLETED = "c", CANCELLED = "n", EXPIRED = "e", DROPPED = "o" }

--- (given: int) -> table
function job.begin(given)
  return {
    now = clock.now(given), counters = counters.new(), lists = {}, suspects = {}, ready = false, finished = {},
    part = listeners.slice(),
  }
end

-- Adds the jobs that became ready to their lists and to the suspects, where claims find them.
--- (s: table)
--- uses: base meta
function job.push_ready(s)
  lane.push(s.lists)
  batch.write("ZADD", base .. "suspects", s.suspects)
  s.lists, s.suspects = {}, {}
end

-- Writes what `s` has collected, and notifies the listeners of finished jobs (see listeners.lua).
--- (s: table)
--- uses: base meta
function job.commit(s)
  job.push_ready(s)
  counters.write(s.counters)
  listeners.notify(s.finished, s.part)
end

-- Stores for `ttl` ms how the job ended (0: not at all), and has `commit` notify its listeners.
--- (s: table, id: str, letter: str, text: str, ttl: int)
--- uses: base
function job.finish(s, id, letter, text, ttl)
  if ttl > 0 then redis.call("SET", base .. "done:" .. id, letter .. text, "PX", ttl) end
  s.finished[#s.finished + 1] = id
end

-- Removes a job that is not running. Its entry in a lane stays, and is skipped later.
--- (s: table, id: str, body: str, letter: str, text: str)
--- uses: base
function job.remove(s, id, body, letter, text)
  local was, _, flags, generation, _, since, _, _, _, _, ttl, tenant = record.parse(body)
  redis.call("HDEL", base .. "jobs", id)
  if record.has(flags, flag.REASON) then redis.call("HDEL", base .. "reasons", id) end
  if was == state.READY then
    counters.move(s.counters, tenant, state.READY, nil)
    counters.add_ready_since(s.counters, since, -1)
    if record.has(flags, flag.SUSPECT) then
      redis.call("ZREM", base .. "suspects", record.entry(generation, #body, id))
    end
  elseif was == state.DELAYED then
    counters.move(s.counters, tenant, state.DELAYED, nil)
    redis.call("ZREM", base .. "delayed", record.entry(generation, #body, id))
  else
    counters.move(s.counters, tenant, state.DEAD, nil)
    redis.call("ZREM", base .. "dead", id)
  end
  job.finish(s, id, letter, text, ttl)
end

-- Completes jobs: three commands for all of them, and a SET for each result that is kept. Appends to `stale` the
-- positions of tokens that no longer hold their job.
--- (s: table, incarnation: str, tokens: table, results: table, stale: table)
--- uses: base meta
function job.complete(s, incarnation, tokens, results, stale)
  if #tokens == 0 then return end
  local headers = lease.headers(incarnation, tokens)
  local ids, seen = {}, {}
  for i = 1, #tokens do
    local header, id = headers[i], lease.job_id(tokens[i])
    if not header or seen[id] then
      stale[#stale + 1] = i - 1
    else
      seen[id] = true
      counters.move(s.counters, record.tenant(header), state.RUNNING, nil)
      if record.has(record.flags(header), flag.REASON) then redis.call("HDEL", base .. "reasons", id) end
      job.finish(s, id, ending.COMPLETED, results[i] or "null", record.ttl(header))
      ids[#ids + 1] = id
    end
  end
  if #ids == 0 then return end
  batch.write("HDEL", base .. "held:" .. incarnation, ids)
  batch.write("HDEL", base .. "jobs", ids)
  redis.call("HINCRBY", meta, "completed", #ids)
end

-- Decides what follows if a worker does not know the task of a job. Returns the verb to settle with, the delay in ms,
-- and the reason. The verb is `bury` once the task has been unknown for `unknown_limit` (ms, in the JSON of `text`),
-- else `later`. The reason records since when the task has been unknown. The delay is the time since then plus `ms`, at
-- most a minute, so it about doubles each time.
--- (s: table, id: str, ms: int, text: str) -> str, int, str
--- uses: base
function job.unknown_task(s, id, ms, text)
  local old = redis.call("HGET", base .. "reasons", id)
  local since = tonumber(old and string.match(old, '"unknown_since":(%d+)')) or s.now
  local limit = tonumber(string.match(text, '"unknown_limit":(%d+)')) or 0
  local waited = s.now - since
  text = string.sub(text, 1, -2) .. string.format(',"unknown_since":%d}', since)
  return waited >= limit and "bury" or "later", math.min(60000, waited + ms), text
end

-- Ends a run that does not complete its job. Returns false if the incarnation no longer holds the job. `verb`:
--
--   retry    runs again after `ms`; the attempt is counted      release  goes to the front of its lane, uncounted
--   later    runs again after `ms`; not counted as an attempt    bury     becomes a dead letter
--   unknown  like later; after its limit, like bury              drop     leaves the queue
--   cancel   was cancelled while it ran
--
-- and, when a process died (see recovery.lua):
--
--   crash      it ran alone in a supervised process             unseen     only the lease of its worker ran out
--   loss       others ran in the process as well                host       it was tried, and the whole host died
--   contained  it had a process of its own (isolate=True)
--- (s: table, incarnation: str, verb: str, token: str, ms: int, text: str) -> bool
--- uses: base meta
function job.settle(s, incarnation, verb, token, ms, text)
  local header = lease.headers(incarnation, { token })[1]
  if not header then return false end
  local id = lease.job_id(token)
  local body = record.get(id)
  if not body then verb, text = "drop", "its record was damaged" end
  if verb == "unknown" then verb, ms, text = job.unknown_task(s, id, ms, text) end
  local _, priority, flags, generation, _, _, _, attempts, deliveries, deaths, ttl, tenant = record.parse(header)
  redis.call("HDEL", base .. "held:" .. incarnation, id)
  if verb == "drop" or verb == "cancel" then
    redis.call("HDEL", base .. "jobs", id)
    if record.has(flags, flag.REASON) then redis.call("HDEL", base .. "reasons", id) end
    redis.call("HINCRBY", meta, verb == "drop" and "dropped" or "cancelled", 1)
    counters.move(s.counters, tenant, state.RUNNING, nil)
    job.finish(s, id, verb == "drop" and ending.DROPPED or ending.CANCELLED, text, ttl)
    return true
  end
  if text ~= "" then
    redis.call("HSET", base .. "reasons", id, text)
    flags = bit.bor(flags, flag.REASON)
  end
  local dead = verb == "bury"
  if recovery.is_death(verb) then
    redis.call("HINCRBY", meta, "lost", 1)
    flags, deaths, dead = recovery.count(verb, flags, deaths, ms)
    ms = 0
  elseif verb ~= "release" then
    flags, deaths = bit.band(flags, _mask.NO_SUSPECT), 0
  end
  if verb == "retry" or verb == "bury" then attempts = math.min(attempts + 1, 65535) end
  if dead then
    redis.call("ZADD", base .. "dead", s.now, id)
    redis.call("HINCRBY", meta, "failed", 1)
    counters.move(s.counters, tenant, state.RUNNING, state.DEAD)
    s.finished[#s.finished + 1] = id
    body = record.with(body, state.DEAD, flags, generation, s.now, attempts, deliveries, deaths)
  elseif ms > 0 then
    redis.call("HINCRBY", meta, "retried", 1)
    counters.move(s.counters, tenant, state.RUNNING, state.DELAYED)
    job.delay(s, { s.now + ms, record.entry(generation, #body, id) })
    body = record.with(body, state.DELAYED, flags, generation, s.now + ms, attempts, deliveries, deaths)
  else
    if verb == "release" then
      deliveries = math.max(0, deliveries - 1)
    elseif verb == "retry" or verb == "later" then
      redis.call("HINCRBY", meta, "retried", 1)
    end
    local list = (verb == "release" or recovery.is_death(verb)) and "front:" or "lane:"
    job.make_ready(s, list, id, #body, flags, priority, tenant, generation, s.now, state.RUNNING)
    body = record.with(body, state.READY, flags, generation, s.now, attempts, deliveries, deaths)
  end
  redis.call("HSET", base .. "jobs", id, body)
  return true
end

-- Delays jobs, given as { due, entry, due, entry, … }.
--- (s: table, due_entries: table)
--- uses: base meta
function job.delay(s, due_entries)
  local earliest = math.huge
  for i = 1, #due_entries, 2 do earliest = math.min(earliest, due_entries[i]) end
  for i = 1, #due_entries, 2 do due_entries[i] = string.format("%d", due_entries[i]) end
  redis.call("ZADD", base .. "delayed", unpack(due_entries))
  wake.set_alarm(s.now, earliest)
end

-- Counts a job as ready and collects its entry: for the suspects if it is one, else for `list` (`lane:` or `front:`).
-- `from` is the job's previous state; nil: it is new.
--- (s: table, list: str, id: str, bytes: int, flags: int, priority: int, tenant: str, generation: int, since: int,
---  from: str | nil)
function job.make_ready(s, list, id, bytes, flags, priority, tenant, generation, since, from)
  local entry = record.entry(generation, bytes, id)
  if record.has(flags, flag.SUSPECT) then
    s.suspects[#s.suspects + 1], s.suspects[#s.suspects + 2] = since, entry
  else
    lane.collect(s.lists, list, priority, tenant, entry)
  end
  s.ready = true
  counters.move(s.counters, tenant, from, state.READY)
  counters.add_ready_since(s.counters, since, 1)
end

-- Makes due jobs ready, at most `limit`, so that the first claim after a long outage does not block the server. Returns
-- whether there may be more due jobs, and how many ms the most overdue one was late.
--- (s: table, limit: int) -> bool, int
--- uses: base meta
function job.promote(s, limit)
  local part = slice.of(limit)
  local due = redis.call("ZRANGE", base .. "delayed", "-inf", s.now, "BYSCORE", "LIMIT", 0, limit)
  due = slice.take_entries(part, due)
  if #due == 0 then return false, 0 end
  local list = redis.call("HGET", meta, "due_first") and "front:" or "lane:"
  local ids = {}
  for i = 1, #due do ids[i] = record.entry_id(due[i]) end
  local bodies = redis.call("HMGET", base .. "jobs", unpack(ids))
  local set, late = {}, 0
  for i = 1, #due do
    if record.intact(bodies[i]) then
      local body = bodies[i]
      local _, priority, flags, generation, _, since, _, attempts, deliveries, deaths, _, tenant = record.parse(body)
      late = math.max(late, s.now - since)
      job.make_ready(s, list, ids[i], #body, flags, priority, tenant, generation, since, state.DELAYED)
      set[#set + 1] = ids[i]
      set[#set + 1] = record.with(body, state.READY, flags, generation, since, attempts, deliveries, deaths)
    end
  end
  redis.call("ZREM", base .. "delayed", unpack(due))
  if #set > 0 then redis.call("HSET", base .. "jobs", unpack(set)) end
  return part.left == 0, late
end

-- Takes jobs back from incarnations whose lease ran out. Returns whether there may be more jobs to take back.
--- (s: table, limit: int) -> bool
--- uses: base meta
function job.take_back(s, limit)
  local ended, claims, more = lease.overdue(s.now, limit)
  for i = 1, #claims do
    local incarnation, token, header = unpack(claims[i])
    local verb, host_deaths = recovery.verb(incarnation, record.flags(header))
    local why = '{"reason":"its worker was gone when the lease ran out"}'
    if verb == "host" then why = string.format(
      '{"reason":"its host died while the job ran alone in a trial; the limit is %d such trials"}', host_deaths) end
    job.settle(s, incarnation, verb, token, host_deaths, why)
  end
  lease.remove_empty(ended)
  return more
end

-- Picks one suspect, the one that has waited longest.
--- (room: table)
--- uses: base
function job.pick_suspect(room)
  local entries = redis.call("ZRANGE", base .. "suspects", 0, 7)
  for i = 1, #entries do
    redis.call("ZREM", base .. "suspects", entries[i])
    local id = record.entry_id(entries[i])
    local body = record.get(id)
    if record.is_ready(body, entries[i]) then
      room.picked[1] = { id, body }
      room.want, room.bytes, room.tried = room.want - 1, room.bytes - #body, true
      return
    end
  end
end

-- Serves turns from the most urgent level down, and writes the picked jobs as running and held. `fronts`: whether any
-- front list has entries. `trial`: "only" a suspect is claimed; a suspect may be claimed, but then "alone"; or (empty) not
-- at all. Returns `room`: what the claim might still take, and the `tokens` and the `reply` of what it took.
--- (s: table, incarnation: str, want: int, fronts: bool, trial: str) -> table
--- uses: base meta
function job.claim(s, incarnation, want, fronts, trial)
  local room = {
    want = want, look = math.max(4 * want, 64), bytes = _slice.BYTES, max_bytes = _slice.BYTES,
    picked = {}, expired = {}, full = false,
  }
  if trial ~= "" and redis.call("EXISTS", base .. "suspects") == 1 then
    job.pick_suspect(room)
    if room.tried then room.want = 0 end
  end
  for level = 0, trial == "only" and -1 or 9 do
    local n, others = room.want, true
    while others and room.want > 0 and not room.full do
      others = lane.take(level, n, room, fronts, s.now)
      n = want
    end
  end
  for i = 1, #room.expired do
    job.remove(s, room.expired[i][1], room.expired[i][2], ending.EXPIRED, "")
    redis.call("HINCRBY", meta, "expired", 1)
  end
  room.tokens, room.reply = {}, {}
  if #room.picked == 0 then return room end
  local number = record.mint(#room.picked)
  local jobs, held = {}, {}
  for i = 1, #room.picked do
    local id, body = room.picked[i][1], room.picked[i][2]
    counters.move(s.counters, record.tenant(body), state.READY, state.RUNNING)
    counters.add_ready_since(s.counters, record.since(body), -1)
    body = record.claimed(body)
    local claim_number = string.format("%012x", number + i)
    local token = claim_number .. id
    jobs[2 * i - 1], jobs[2 * i] = id, body
    held[2 * i - 1], held[2 * i] = id, lease.held_claim(claim_number, body)
    room.tokens[i] = token
    room.reply[2 * i - 1], room.reply[2 * i] = token, body
  end
  redis.call("HSET", base .. "jobs", unpack(jobs))
  redis.call("HSET", base .. "held:" .. incarnation, unpack(held))
  return room
end

-- Cancels the first jobs in both lists of a tenant, as many as fit into the slice `part`.
--- (s: table, level: int, tenant: str, part: table)
--- uses: base meta
function job.cancel_tenant(s, level, tenant, part)
  for _, list in ipairs({ "front:", "lane:" }) do
    local key = base .. list .. level .. ":" .. tenant
    local entries = part.left > 0 and slice.take_entries(part, redis.call("LRANGE", key, 0, part.left - 1)) or {}
    for i = 1, #entries do
      local id = record.entry_id(entries[i])
      local body = record.get(id)
      if record.is_ready(body, entries[i]) then job.remove(s, id, body, ending.CANCELLED, "") end
    end
    if #entries > 0 then
      redis.call("LPOP", key, #entries)
      if list == "front:" then redis.call("HINCRBY", meta, "front", -#entries) end
    end
  end
  local place = level .. ":" .. tenant
  if redis.call("EXISTS", base .. "lane:" .. place, base .. "front:" .. place) == 0 then
    redis.call("ZREM", base .. "turns:" .. level, tenant)
  end
end
