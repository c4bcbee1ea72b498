-- The questions of an operator to a queue: counts, tenants, workers. Nothing here writes. queue.lua has the key map.

-- A page of incarnations: { now, next cursor, incarnation, alive until, claims held, since and registration or false,
-- … }. With an empty cursor: all incarnations, the longest lease first. With any other cursor: workers only; the first
-- and the last cursor are 0.
--- keys: base meta
--- args: given: int, limit: int, cursor: str
--- flags: no-writes
function script.scan_workers(base, meta, given, limit, cursor)
  local newer = record.check()
  if newer then return newer end
  local list = { clock.now(given), "0" }
  local function add(incarnation, alive)
    list[#list + 1] = incarnation
    list[#list + 1] = alive
    list[#list + 1] = redis.call("HLEN", base .. "held:" .. incarnation)
    list[#list + 1] = redis.call("HGET", base .. "workers", incarnation)
  end
  if cursor == "" then
    local found = redis.call("ZRANGE", base .. "leases", 0, limit - 1, "REV", "WITHSCORES")
    for i = 1, #found, 2 do add(found[i], found[i + 1]) end
    return list
  end
  local page = redis.call("HSCAN", base .. "workers", cursor, "COUNT", limit)
  list[2] = page[1]
  for i = 1, #page[2], 2 do
    add(page[2][i], redis.call("ZSCORE", base .. "leases", page[2][i]) or "0")
  end
  return list
end

-- { now, second in which the oldest ready job became ready (false: none is), ready, delayed, running, dead, completed,
-- retried, failed, … }
--- keys: base meta
--- args: given: int
--- flags: no-writes
function script.counts(base, meta, given)
  local newer = record.check()
  if newer then return newer end
  local oldest = redis.call("ZRANGE", base .. "ages", 0, 0)[1] or false
  return { clock.now(given), oldest, unpack(redis.call("HMGET", meta, "ready", "delayed", "running", "dead",
    "completed", "retried", "failed", "dropped", "cancelled", "expired", "lost", "paused", "due_first")) }
end

-- { 1 if the queue was ever used, tenants with jobs, ms until the next delayed job is due or -1, how many delayed jobs
-- were searched, id, reason, … }. The ids are those of jobs that a worker handed back because it does not know their
-- task. Such jobs are due within a minute, so that they are among the first delayed jobs.
--- keys: base meta
--- args: given: int, scan: int
--- flags: no-writes
function script.overview(base, meta, given, scan)
  local newer = record.check()
  if newer then return newer end
  local head = redis.call("ZRANGE", base .. "delayed", 0, scan - 1, "WITHSCORES")
  local due = head[2] and math.max(0, tonumber(head[2]) - clock.now(given)) or -1
  local reply = { redis.call("EXISTS", meta), redis.call("HLEN", base .. "tenants"), due, #head / 2 }
  local ids = {}
  for i = 1, #head, 2 do ids[#ids + 1] = record.entry_id(head[i]) end
  local reasons = #ids > 0 and redis.call("HMGET", base .. "reasons", unpack(ids)) or {}
  for i = 1, #ids do
    if reasons[i] and string.find(reasons[i], ',"unknown_since":%d+}$') then
      reply[#reply + 1] = ids[i]
      reply[#reply + 1] = reasons[i]
    end
  end
  return reply
end

-- { entries in `jobs`, `delayed` and `dead`; then the counters ready, delayed, running and dead }
--- keys: base meta
--- flags: no-writes
function script.entries_and_counters(base, meta)
  local newer = record.check()
  if newer then return newer end
  return {
    redis.call("HLEN", base .. "jobs"), redis.call("ZCARD", base .. "delayed"), redis.call("ZCARD", base .. "dead"),
    unpack(redis.call("HMGET", meta, "ready", "delayed", "running", "dead")),
  }
end

-- A page of the tenants with jobs: { next cursor, { tenant, packed counts, … } }. The first and the last cursor is 0.
--- keys: base meta
--- args: cursor: str, count: int
--- flags: no-writes
function script.scan_tenants(base, meta, cursor, count)
  local newer = record.check()
  if newer then return newer end
  return redis.call("HSCAN", base .. "tenants", cursor, "COUNT", count)
end

-- { now, ms at which the oldest ready job became ready (false: none found), ready, delayed, running, dead, weight or
-- false }. The oldest is searched for among the first eight entries of each of the tenant's lists: entries of cancelled
-- jobs may precede it.
--- keys: base meta
--- args: given: int, tenant: str
--- flags: no-writes
function script.tenant_counts(base, meta, given, tenant)
  local newer = record.check()
  if newer then return newer end
  local oldest = math.huge
  for level = 0, 9 do
    for _, list in ipairs({ "front:", "lane:" }) do
      local entries = redis.call("LRANGE", base .. list .. level .. ":" .. tenant, 0, 7)
      for i = 1, #entries do
        local body = record.get(record.entry_id(entries[i]))
        if record.is_ready(body, entries[i]) then
          oldest = math.min(oldest, record.since(body))
          break
        end
      end
    end
  end
  local ready, delayed, running, dead = counters.unpack(redis.call("HGET", base .. "tenants", tenant))
  local weight = redis.call("HGET", base .. "weights", tenant)
  return { clock.now(given), oldest < math.huge and oldest or false, ready, delayed, running, dead, weight }
end
