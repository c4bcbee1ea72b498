-- What an operator asks of a queue (queue.lua): counts, tenants, workers. Nothing here writes.

-- Incarnations: { now, next cursor, incarnation, alive until, claims held, since and text or false, … }. Without a cursor
-- by the end of their lease, latest first; with one a slice of those that said who they are, where 0 begins and ends.
--- keys: base meta
--- args: given: int, limit: int, cursor: str
--- flags: no-writes
function script.workers(base, meta, given, limit, cursor)
  local newer = record.check()
  if newer then return newer end
  local list = { clock.now(given), "0" }
  local function add(me, alive)
    list[#list + 1] = me
    list[#list + 1] = alive
    list[#list + 1] = redis.call("HLEN", base .. "held:" .. me)
    list[#list + 1] = redis.call("HGET", base .. "workers", me)
  end
  if cursor == "" then
    local found = redis.call("ZRANGE", base .. "leases", 0, limit - 1, "REV", "WITHSCORES")
    for i = 1, #found, 2 do add(found[i], found[i + 1]) end
    return list
  end
  local page = redis.call("HSCAN", base .. "workers", cursor, "COUNT", limit)
  list[2] = page[1]
  for i = 1, #page[2], 2 do
    local me = page[2][i]
    add(me, redis.call("ZSCORE", base .. "leases", me) or "0")
  end
  return list
end

-- { now, oldest ready second or false, ready, delayed, running, dead, completed, retried, buried, lost, … }
--- keys: base meta
--- args: given: int
--- flags: no-writes
function script.counts(base, meta, given)
  local newer = record.check()
  if newer then return newer end
  local oldest = redis.call("ZRANGE", base .. "ages", 0, 0)[1] or false
  return { clock.now(given), oldest, unpack(redis.call("HMGET", meta, "ready", "delayed", "running", "dead",
    "completed", "retried", "buried", "dropped", "cancelled", "expired", "lost", "paused", "due_first")) }
end

-- What an operator asks beside the counts: { 1 if the queue was ever used, tenants with jobs, ms until a job is due or -1, how
-- many delayed jobs, those due first, were looked at, id, reason, … }: those that a worker handed back because it
-- does not know their task. They come again within a minute, so they are near the head.
--- keys: base meta
--- args: given: int, look: int
--- flags: no-writes
function script.survey(base, meta, given, look)
  local newer = record.check()
  if newer then return newer end
  local head = redis.call("ZRANGE", base .. "delayed", 0, look - 1, "WITHSCORES")
  local due = head[2] and math.max(0, tonumber(head[2]) - clock.now(given)) or -1
  local reply = { redis.call("EXISTS", meta), redis.call("HLEN", base .. "tenants"), due, #head / 2 }
  local ids = {}
  for i = 1, #head, 2 do ids[#ids + 1] = string.sub(head[i], 12) end
  local reasons = #ids > 0 and redis.call("HMGET", base .. "reasons", unpack(ids)) or {}
  for i = 1, #ids do
    if reasons[i] and string.find(reasons[i], ',"unknown_since":%d+}$') then
      reply[#reply + 1] = ids[i]
      reply[#reply + 1] = reasons[i]
    end
  end
  return reply
end

-- What the counts count, then what they say: { jobs, delayed ones, dead letters, ready, delayed, running, dead }.
--- keys: base meta
--- flags: no-writes
function script.books(base, meta)
  local newer = record.check()
  if newer then return newer end
  return { redis.call("HLEN", base .. "jobs"), redis.call("ZCARD", base .. "delayed"), redis.call("ZCARD", base .. "dead"),
    unpack(redis.call("HMGET", meta, "ready", "delayed", "running", "dead")) }
end

-- A slice of the tenants with jobs: { cursor of the next slice, { tenant, packed counts, … } }; cursor 0 begins and ends.
--- keys: base meta
--- args: cursor: str, count: int
--- flags: no-writes
function script.some_tenants(base, meta, cursor, count)
  local newer = record.check()
  if newer then return newer end
  return redis.call("HSCAN", base .. "tenants", cursor, "COUNT", count)
end

-- { now, ready since of the oldest or false, ready, delayed, running, dead, weight or false }. The oldest is looked for at the
-- head of the tenant's lists, past at most eight entries of cancelled jobs in each.
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
        local body = record.get(string.sub(entries[i], 12))
        if record.is_ready(body, entries[i]) then
          oldest = math.min(oldest, (struct.unpack(">I6", body, 17)))
          break
        end
      end
    end
  end
  local packed = redis.call("HGET", base .. "tenants", tenant)
  local a, b, c, d = 0, 0, 0, 0
  if packed then a, b, c, d = struct.unpack(">I4I4I4I4", packed) end
  return { clock.now(given), oldest < math.huge and oldest or false, a, b, c, d, redis.call("HGET", base .. "weights", tenant) }
end
