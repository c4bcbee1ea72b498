-- What an operator reads from a queue: counts, tenants, workers. A script whose answer depends on waiting jobs empties
-- the intake first; apart from that, nothing here writes. queue.lua has the key map.

-- A page of incarnations: { now, next cursor, incarnation, alive until, claims held, registration or false, the words
-- that it was sent (cancelling.lua), KiB of memory of its process or 0, … }. With an empty cursor: all incarnations,
-- the longest lease first. With any other cursor: workers only; the first and the last cursor are 0.
--- keys: base meta
--- args: given: int, limit: int, cursor: str
--- flags: no-writes
--- frame: format
function script.scan_workers(base, meta, given, limit, cursor)
  local list = { clock.now(given), "0" }
  local function add(incarnation, alive)
    list[#list + 1] = incarnation
    list[#list + 1] = alive
    list[#list + 1] = lease.count(incarnation)
    list[#list + 1] = redis.call("HGET", base .. "workers", incarnation)
    list[#list + 1] = table.concat(cancelling.words(incarnation), " ")
    local own = lease.own(redis.call("HGET", base .. "held:" .. incarnation, ""))
    list[#list + 1] = own and own.memory or 0
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
-- retried, failed, dropped, cancelled, expired, lost, paused, due first, parked, paused scopes, entered, dependent,
-- fair by time, sleeping, the most jobs and the most of a tenant (0: no bound), refused calls, second since which the
-- oldest parked job has waited (false: none is parked) }
--- keys: base meta
--- args: given: int
--- flags: allow-oom
--- frame: look
function script.counts(base, meta, given)
  local r = s.row
  local most, of_tenant, refused = unpack(r[_row.BOUND] or { 0, 0, 0 })
  return {
    s.now, counters.oldest_second(r), r[_row.READY], r[_row.DELAYED], r[_row.RUNNING], r[_row.DEAD], r[_row.COMPLETED],
    r[_row.RETRIED], r[_row.FAILED], r[_row.DROPPED], r[_row.CANCELLED], r[_row.EXPIRED], r[_row.LOST], r[_row.PAUSED],
    r[_row.DUE_FIRST], r[_row.PARKED] or 0, r[_row.PAUSES] or 0, s.entered, r[_row.DEPENDENT] or 0,
    r[_row.WEIGHTED] >= _charge.BY_TIME and 1 or 0, r[_row.SLEEPING] or 0, most, of_tenant, refused,
    counters.oldest_parked_second(r),
  }
end

-- { 1 if the queue was ever used, tenants with jobs, ms until the next delayed job is due or -1, how many delayed jobs
-- were searched, { queue, entries, ms for which the oldest one waits, … } of the outbox, id, failures, … }. The ids are
-- those of jobs that a worker handed back because it cannot read them. Such jobs are due within a minute, so they are
-- among the first delayed jobs.
--- keys: base meta
--- args: given: int, scan: int
--- flags: allow-oom
--- frame: look
function script.overview(base, meta, given, scan)
  local head = redis.call("ZRANGE", base .. "delayed", 0, scan - 1, "WITHSCORES")
  local first = tonumber(head[2] or _durable.FOREVER)
  local due = first < _durable.FOREVER and math.max(0, first - s.now) or -1
  local reply = { redis.call("EXISTS", meta), redis.call("HLEN", base .. "tenants"), due, #head / 2,
    outbox.lengths(s) }
  local ids = {}
  for i = 1, #head, 2 do ids[#ids + 1] = entry.id(head[i]) end
  local found = #ids > 0 and redis.call("HMGET", base .. "failures", unpack(ids)) or {}
  for i = 1, #ids do
    if found[i] and #found[i] >= 6 and _failures.since(found[i]) > 0 then
      reply[#reply + 1] = ids[i]
      reply[#reply + 1] = found[i]
    end
  end
  return reply
end

-- { entries in `jobs`, `delayed`, `owners` and `dead`; then the counters ready, delayed and sleeping, running, dead,
-- parked and dependent }
--- keys: base meta
--- args: given: int
--- flags: allow-oom
--- frame: look
function script.entries_and_counters(base, meta, given)
  return {
    redis.call("HLEN", base .. "jobs"), redis.call("ZCARD", base .. "delayed"),
    redis.call("HLEN", base .. "owners") - redis.call("HEXISTS", base .. "owners", ""),
    redis.call("ZCARD", base .. "dead"), s.row[_row.READY],
    s.row[_row.DELAYED] + (s.row[_row.SLEEPING] or 0), s.row[_row.RUNNING], s.row[_row.DEAD],
    s.row[_row.PARKED] or 0, s.row[_row.DEPENDENT] or 0,
  }
end

-- A page of the tenants with jobs: { next cursor, { tenant, packed counts, … } }. The first and the last cursor is 0.
--- keys: base meta
--- args: given: int, cursor: str, count: int
--- flags: allow-oom
--- frame: look
function script.scan_tenants(base, meta, given, cursor, count)
  return redis.call("HSCAN", base .. "tenants", cursor, "COUNT", count)
end

-- { now, ms at which the oldest ready job became ready (false: none found), ready, delayed, running, dead, weight or
-- false, parked, dependent, sleeping }. The script looks for the oldest job among the first eight entries of each of
-- the tenant's lists, because entries of cancelled jobs may precede it.
--- keys: base meta
--- args: given: int, tenant: str
--- flags: allow-oom
--- frame: look
function script.tenant_counts(base, meta, given, tenant)
  local oldest = math.huge
  for level = 0, 9 do
    local lane_ = level .. ":" .. tenant
    local behind = redis.call("LRANGE", base .. "lane:" .. lane_, 0, 7)
    table.insert(behind, 1, redis.call("HGET", base .. "heads:" .. level, tenant) or nil)
    for _, entries in ipairs({ redis.call("LRANGE", base .. "front:" .. lane_, 0, 7), behind }) do
      for i = 1, #entries do
        local body = record.get(entry.id(entries[i]))
        if record.is_ready(body, entry.generation(entries[i])) then
          oldest = math.min(oldest, record.since(body))
          break
        end
      end
    end
  end
  local ready, delayed, running, dead, parked, dependent, sleeping =
    counters.unpack(redis.call("HGET", base .. "tenants", tenant))
  local weight = redis.call("HGET", base .. "weights", tenant)
  return { s.now, oldest < math.huge and oldest or false, ready, delayed, running, dead, weight, parked, dependent,
    sleeping }
end

-- All data about a job: { record, failures, how it ended, owner (incarnation that runs it, and since when), notes, what
-- it waits for, ms until it expires }; each may be false. A job that is over counts as ended, also if it was not
-- removed yet.
--- (id: str, now: int) -> table
--- uses: base
function inspect.job(id, now)
  local body, owner = redis.call("HGET", base .. "jobs", id), redis.call("HGET", base .. "owners", id)
  local noted = owner or record.intact(body) and record.has(record.flags(body), flag.NOTES)
  local expires = not owner and record.intact(body) and record.expires(body) or 0
  if expires > 0 and job.is_over(id, body, now) then
    local kept = record.ttl(body) > 0 and ending.EXPIRED
    return {
      false, redis.call("HGET", base .. "failures", id), kept, false, noted and redis.call("HGET", base .. "notes", id),
      false, false,
    }
  end
  return {
    body, redis.call("HGET", base .. "failures", id), results.get(id, now), owner,
    noted and redis.call("HGET", base .. "notes", id),
    record.intact(body) and record.state(body) == state.WAITING and redis.call("HGET", base .. "waiting", id),
    expires > now and expires - now,
  }
end
