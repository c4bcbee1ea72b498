-- The transitions of a job, as functions: each moves a job from one state to another with the nouns of record, counters,
-- lane, lease and wake. `queue.lua` has the drawing of the states, the key map, and the scripts that call these.
--
-- `s` is what one script collects: the time, counts, lanes to push to, suspects, and jobs whose waiters are to be told;
-- `job.commit` writes it.
--
-- A job whose worker died is charged with the crash only if it ran alone in its process. If it was one of several, or
-- nobody knows, it becomes a *suspect*: it stands not in a lane but in
--
--   suspects     ZSET    entry -> ready since, server ms
--
-- and is handed out one at a time to each worker, which runs it in a process of its own. A suspect whose worker died
-- beside it may have killed the whole host, or not: that is a quarter of a crash. What speaks against a job is its
-- *doubt*, in quarters; twelve, three crashes, make it a dead letter. A run that ends in any other way clears it.

--- (given: int) -> table
function job.begin(given)
  return { now = clock.now(given), counters = counters.new(), lanes = {}, suspects = {}, ready = false, told = {} }
end

-- Put the jobs that became ready where claims find them.
--- (s: table)
--- uses: base meta
function job.place(s)
  lane.push_all(s.lanes)
  batch.write("ZADD", base .. "suspects", s.suspects)
  s.lanes, s.suspects = {}, {}
end

-- Write what the steps of this script collected.
--- (s: table)
--- uses: base meta
function job.commit(s)
  job.place(s)
  counters.write(s.counters)
  if #s.told > 0 and redis.call("EXISTS", base .. "waiters") == 1 then
    local found = batch.read(base .. "waiters", s.told)
    for i = 1, #s.told do
      if found[i] then
        for address in string.gmatch(found[i], "%S+") do notify.send(address, "done") end
        redis.call("HDEL", base .. "waiters", s.told[i])
      end
    end
  end
end

--- (s: table, id: str, letter: str, text: str, ttl: int)
--- uses: base
function job.done(s, id, letter, text, ttl)
  if ttl > 0 then redis.call("SET", base .. "done:" .. id, letter .. text, "PX", ttl) end
  s.told[#s.told + 1] = id
end

-- Take a job that is not running out of the queue; its entry in a lane stays behind and is passed over.
--- (s: table, id: str, body: str, letter: str, text: str)
--- uses: base
function job.remove(s, id, body, letter, text)
  local state, priority, flags, generation, enqueued, since, expires, attempts, deliveries, doubt, ttl, tenant = record.parse(body)
  redis.call("HDEL", base .. "jobs", id)
  if bit.band(flags, 32) > 0 then redis.call("HDEL", base .. "reasons", id) end
  if state == "r" then
    counters.move(s.counters, tenant, 1, 0)
    counters.age(s.counters, since, -1)
    if bit.band(flags, 16) > 0 then redis.call("ZREM", base .. "suspects", record.entry(generation, #body, id)) end
  elseif state == "s" then
    redis.call("ZREM", base .. "delayed", record.entry(generation, #body, id))
    counters.move(s.counters, tenant, 2, 0)
  else
    redis.call("ZREM", base .. "dead", id)
    counters.move(s.counters, tenant, 4, 0)
  end
  job.done(s, id, letter, text, ttl)
end

-- All of them in three commands, however many, beside a SET for each result that is kept.
--- (s: table, me: str, tokens: table, results: table, stale: table)
--- uses: base meta
function job.complete(s, me, tokens, results, stale)
  if #tokens == 0 then return end
  local headers = lease.holds(me, tokens)
  local ids, seen = {}, {}
  for i = 1, #tokens do
    local header, id = headers[i], string.sub(tokens[i], 13)
    if not header or seen[id] then
      stale[#stale + 1] = i - 1
    else
      seen[id] = true
      counters.move(s.counters, record.tenant(header), 3, 0)
      if bit.band(string.byte(header, 4), 32) > 0 then redis.call("HDEL", base .. "reasons", id) end
      job.done(s, id, "c", results[i] or "null", record.ttl(header))
      ids[#ids + 1] = id
    end
  end
  if #ids == 0 then return end
  batch.write("HDEL", base .. "held:" .. me, ids)
  batch.write("HDEL", base .. "jobs", ids)
  redis.call("HINCRBY", meta, "completed", #ids)
end

-- A worker that does not know the task hands the job back: how it ends, after how many ms, and the reason with the
-- time since when nobody knew it, which doubles the delay each time. `text`, a JSON object, says when to give up.
--- (s: table, id: str, delay: int, text: str) -> str, int, str
--- uses: base
function job.stranger(s, id, delay, text)
  local old = redis.call("HGET", base .. "reasons", id)
  local since = tonumber(old and string.match(old, '"unknown_since":(%d+)')) or s.now
  local limit = tonumber(string.match(text, '"unknown_limit":(%d+)')) or 0
  local waited = s.now - since
  text = string.sub(text, 1, -2) .. string.format(',"unknown_since":%d}', since)
  return waited >= limit and "bury" or "later", math.min(60000, waited + delay), text
end

-- Every end of a run but completion: retry (charged), later (a retry that is not), unknown (later, and in the end
-- bury), release, bury, drop; crash (its process died while it ran alone there) and suspect (or it was one of several).
--- (s: table, me: str, verb: str, token: str, delay: int, text: str) -> bool
--- uses: base meta
function job.settle(s, me, verb, token, delay, text)
  local header = lease.holds(me, { token })[1]
  if not header then return false end
  local id = string.sub(token, 13)
  local body = record.get(id)
  if not body then verb, text = "drop", "its record was damaged" end
  if verb == "unknown" then verb, delay, text = job.stranger(s, id, delay, text) end
  local state, priority, flags, generation, enqueued, since, expires, attempts, deliveries, doubt, ttl, tenant = record.parse(header)
  redis.call("HDEL", base .. "held:" .. me, id)
  if verb == "drop" then
    redis.call("HDEL", base .. "jobs", id)
    if bit.band(flags, 32) > 0 then redis.call("HDEL", base .. "reasons", id) end
    redis.call("HINCRBY", meta, "dropped", 1)
    counters.move(s.counters, tenant, 3, 0)
    job.done(s, id, "d", text, ttl)
    return true
  end
  if text ~= "" then
    redis.call("HSET", base .. "reasons", id, text)
    flags = bit.bor(flags, 32)
  end
  if verb == "crash" or verb == "suspect" then
    redis.call("HINCRBY", meta, "lost", 1)
    if verb == "crash" then doubt = doubt + 4 elseif bit.band(flags, 16) > 0 then doubt = doubt + 1 end
    flags = bit.bor(flags, 16)
  elseif verb ~= "release" then
    flags, doubt = bit.band(flags, 239), 0
  end
  if verb == "retry" or verb == "bury" then attempts = math.min(attempts + 1, 65535) end
  if verb == "bury" or doubt >= 12 then
    redis.call("ZADD", base .. "dead", s.now, id)
    redis.call("HINCRBY", meta, "buried", 1)
    counters.move(s.counters, tenant, 3, 4)
    s.told[#s.told + 1] = id
    body = record.with(body, "d", flags, generation, s.now, attempts, deliveries, doubt)
  elseif delay > 0 then
    redis.call("HINCRBY", meta, "retried", 1)
    counters.move(s.counters, tenant, 3, 2)
    job.plan(s, { s.now + delay, record.entry(generation, #body, id) })
    body = record.with(body, "s", flags, generation, s.now + delay, attempts, deliveries, doubt)
  else
    if verb == "release" then
      deliveries = math.max(0, deliveries - 1)
    elseif verb == "retry" or verb == "later" then
      redis.call("HINCRBY", meta, "retried", 1)
    end
    job.ready(s, verb == "release" and "front:" or "lane:", id, #body, flags, priority, tenant, generation, s.now, 3)
    body = record.with(body, "r", flags, generation, s.now, attempts, deliveries, doubt)
  end
  redis.call("HSET", base .. "jobs", id, body)
  return true
end

-- Delay jobs: { due, entry, due, entry, … }.
--- (s: table, pairs_: table)
--- uses: base meta
function job.plan(s, pairs_)
  local earliest = math.huge
  for i = 1, #pairs_, 2 do earliest = math.min(earliest, pairs_[i]) end
  for i = 1, #pairs_, 2 do pairs_[i] = string.format("%d", pairs_[i]) end
  redis.call("ZADD", base .. "delayed", unpack(pairs_))
  wake.arm(s.now, earliest)
end

--- (s: table, list: str, id: str, size: int, flags: int, priority: int, tenant: str, generation: int, since: int, from: int)
function job.ready(s, list, id, size, flags, priority, tenant, generation, since, from)
  local entry = record.entry(generation, size, id)
  if bit.band(flags, 16) > 0 then
    s.suspects[#s.suspects + 1], s.suspects[#s.suspects + 2] = since, entry
  else
    lane.sort(s.lanes, list, priority, tenant, entry)
  end
  s.ready = true
  counters.move(s.counters, tenant, from, 1)
  counters.age(s.counters, since, 1)
end

-- Due jobs become ready, at most `limit`: a claim after a long outage must not hold the server.
-- Returns whether there may be more, and how late the first was.
--- (s: table, limit: int) -> bool, int
--- uses: base meta
function job.promote(s, limit)
  local slice = lane.slice(limit)
  local due = lane.fitting(slice, redis.call("ZRANGE", base .. "delayed", "-inf", s.now, "BYSCORE", "LIMIT", 0, limit))
  if #due == 0 then return false, 0 end
  local list = redis.call("HGET", meta, "due_first") and "front:" or "lane:"
  local ids = {}
  for i = 1, #due do ids[i] = string.sub(due[i], 12) end
  local bodies = redis.call("HMGET", base .. "jobs", unpack(ids))
  local set, late = {}, 0
  for i = 1, #due do
    if record.sound(bodies[i]) then
      local state, priority, flags, generation, enqueued, since, expires, attempts, deliveries, doubt, ttl, tenant = record.parse(bodies[i])
      late = math.max(late, s.now - since)
      job.ready(s, list, ids[i], #bodies[i], flags, priority, tenant, generation, since, 2)
      set[#set + 1] = ids[i]
      set[#set + 1] = record.with(bodies[i], "r", flags, generation, since, attempts, deliveries, doubt)
    end
  end
  redis.call("ZREM", base .. "delayed", unpack(due))
  if #set > 0 then redis.call("HSET", base .. "jobs", unpack(set)) end
  return slice.left == 0, late
end

-- Jobs of incarnations whose lease ran out become suspects. Those that were suspects already are charged if they were
-- all that a program without a worker had. Returns whether there may be more of them.
--- (s: table, limit: int) -> bool
--- uses: base meta
function job.take_back(s, limit)
  local ended, claims, more = lease.overdue(s.now, limit)
  for i = 1, #claims do
    local me, token, header = unpack(claims[i])
    local tried = bit.band(string.byte(header, 4), 16) > 0
    local verb = tried and redis.call("HEXISTS", base .. "workers", me) == 0 and "crash" or "suspect"
    job.settle(s, me, verb, token, 0, '{"reason":"its worker was gone when the lease ran out"}')
  end
  lease.bury(ended)
  return more
end

-- One suspect, the one that waits longest, comes along with a claim.
--- (room: table)
--- uses: base
function job.try(room)
  local entries = redis.call("ZRANGE", base .. "suspects", 0, 7)
  for i = 1, #entries do
    redis.call("ZREM", base .. "suspects", entries[i])
    local id = string.sub(entries[i], 12)
    local body = record.get(id)
    if record.is_ready(body, entries[i]) then
      room.picked[1] = { id, body }
      room.want, room.bytes, room.tried = room.want - 1, room.bytes - #body, true
      return
    end
  end
end

-- Serve turns from the most urgent level down, and write the jobs taken as running and held. `trial`: "beside" others
-- a suspect may be taken, or only "alone", or (empty) none.
--- (s: table, me: str, want: int, fronts: bool, trial: str) -> table
--- uses: base meta
function job.claim(s, me, want, fronts, trial)
  local room = { want = want, look = math.max(4 * want, 64), bytes = 1048576, most = 1048576, picked = {}, expired = {}, full = false }
  if trial ~= "" and redis.call("EXISTS", base .. "suspects") == 1 then
    job.try(room)
    if trial == "alone" and room.tried then room.want = 0 end
  end
  for level = 0, 9 do
    local n, others = room.want, true
    while others and room.want > 0 and not room.full do
      others = lane.take(level, n, room, fronts, s.now)
      n = want
    end
  end
  for i = 1, #room.expired do
    job.remove(s, room.expired[i][1], room.expired[i][2], "e", "")
    redis.call("HINCRBY", meta, "expired", 1)
  end
  room.tokens, room.reply = {}, {}
  if #room.picked == 0 then return room end
  local number = record.mint(#room.picked)
  local jobs, held = {}, {}
  for i = 1, #room.picked do
    local id, body = room.picked[i][1], room.picked[i][2]
    counters.move(s.counters, record.tenant(body), 1, 3)
    counters.age(s.counters, record.since(body), -1)
    body = record.claimed(body)
    local claim = string.format("%012x", number + i)
    local token = claim .. id
    jobs[2 * i - 1], jobs[2 * i] = id, body
    held[2 * i - 1], held[2 * i] = id, lease.claim(claim, body)
    room.tokens[i] = token
    room.reply[2 * i - 1], room.reply[2 * i] = token, body
  end
  redis.call("HSET", base .. "jobs", unpack(jobs))
  redis.call("HSET", base .. "held:" .. me, unpack(held))
  return room
end

-- Cancel what stands first in a tenant's two lists, as far as the slice goes.
--- (s: table, level: int, tenant: str, slice: table)
--- uses: base meta
function job.drain(s, level, tenant, slice)
  for _, list in ipairs({ "front:", "lane:" }) do
    local key = base .. list .. level .. ":" .. tenant
    local entries = slice.left > 0 and lane.fitting(slice, redis.call("LRANGE", key, 0, slice.left - 1)) or {}
    for i = 1, #entries do
      local id = string.sub(entries[i], 12)
      local body = record.get(id)
      if record.is_ready(body, entries[i]) then job.remove(s, id, body, "x", "") end
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
