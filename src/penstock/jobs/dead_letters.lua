-- The dead letters of a queue (queue.lua): list them, make them ready again, remove them.

-- A page of the dead letters, latest first: { id, died at, record, reason, … }. At most 1 MiB of records, but one.
--- keys: base meta
--- args: offset: int, limit: int
--- flags: no-writes
function script.graves(base, meta, offset, limit)
  local newer = record.check()
  if newer then return newer end
  local page, slice = {}, lane.slice(limit)
  local found = redis.call("ZRANGE", base .. "dead", offset, offset + limit - 1, "REV", "WITHSCORES")
  for i = 1, #found, 2 do
    if not lane.fits(slice, redis.call("HSTRLEN", base .. "jobs", found[i])) then break end
    page[#page + 1] = found[i]
    page[#page + 1] = found[i + 1]
    page[#page + 1] = redis.call("HGET", base .. "jobs", found[i])
    page[#page + 1] = redis.call("HGET", base .. "reasons", found[i])
  end
  return page
end

-- The ids of dead letters that died until `till` (0: now), the oldest first: { till, id, … }. For who acts on all of
-- them: what dies meanwhile is not among them.
--- keys: base meta
--- args: given: int, till: int, limit: int
--- flags: no-writes
function script.buried(base, meta, given, till, limit)
  local newer = record.check()
  if newer then return newer end
  if till == 0 then till = clock.now(given) end
  return { till, unpack(redis.call("ZRANGE", base .. "dead", "-inf", till, "BYSCORE", "LIMIT", 0, limit)) }
end

-- Dead letters become ready again with their counts at zero. Returns how many of the ids were dead.
--- keys: base meta
--- args: given: int, ids: *
function script.requeue(base, meta, given, ids, ...)
  local newer, paused = record.check()
  if newer then return newer end
  local s = job.begin(given)
  local n = 0
  for i = ids, #ARGV do
    local id = ARGV[i]
    local body = redis.call("ZREM", base .. "dead", id) == 1 and record.get(id)
    if body then
      local state, priority, flags, generation, enqueued, since, expires, attempts, deliveries, doubt, ttl, tenant = record.parse(body)
      redis.call("HDEL", base .. "reasons", id)
      redis.call("HSET", base .. "jobs", id, record.with(body, "r", bit.band(flags, 207), generation, s.now, 0, 0, 0))
      job.ready(s, "lane:", id, #body, 0, priority, tenant, generation, s.now, 4)
      n = n + 1
    end
  end
  job.commit(s)
  if n > 0 and not paused then wake.ring(s.now) end
  return n
end

-- Remove dead letters. Returns how many of the ids were dead.
--- keys: base meta
--- args: given: int, ids: *
--- flags: allow-oom
function script.exhume(base, meta, given, ids, ...)
  local newer = record.check()
  if newer then return newer end
  local s = job.begin(given)
  for i = ids, #ARGV do
    local id = ARGV[i]
    local dead = redis.call("ZSCORE", base .. "dead", id)
    local body = dead and record.get(id)
    if body then
      job.remove(s, id, body, "x", "removed from the dead letters")
    elseif dead then -- somebody damaged it: it goes, though nobody knows whose it was
      redis.call("ZREM", base .. "dead", id)
      redis.call("HDEL", base .. "jobs", id)
      redis.call("HDEL", base .. "reasons", id)
      redis.call("HINCRBY", meta, "dead", -1)
    end
  end
  job.commit(s)
  return #s.told
end
