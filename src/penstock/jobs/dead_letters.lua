-- The dead letters of a queue: list them, make them ready again, remove them. queue.lua has the key map.

-- A page of dead letters, the latest first: { id, died at, record, failures, … }. At most 1 MiB of records, or a single
-- larger one.
--- keys: base meta
--- args: offset: int, limit: int
--- flags: no-writes
--- frame: format
function script.list_dead(base, meta, offset, limit)
  local page, budget = {}, slice.of(limit)
  local found = redis.call("ZRANGE", base .. "dead", offset, offset + limit - 1, "REV", "WITHSCORES")
  for i = 1, #found, 2 do
    if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", found[i])) then break end
    page[#page + 1] = found[i]
    page[#page + 1] = found[i + 1]
    page[#page + 1] = redis.call("HGET", base .. "jobs", found[i])
    page[#page + 1] = redis.call("HGET", base .. "failures", found[i])
  end
  return page
end

-- The ids of jobs that died up to `until_` (0: now), the oldest first: { until_, id, … }. An operation on all dead
-- letters passes that time to each call, so that it does not touch jobs that die while it runs.
--- keys: base meta
--- args: given: int, until_: int, limit: int
--- flags: no-writes
--- frame: format
function script.dead_until(base, meta, given, until_, limit)
  if until_ == 0 then until_ = clock.now(given) end
  return { until_, unpack(redis.call("ZRANGE", base .. "dead", "-inf", until_, "BYSCORE", "LIMIT", 0, limit)) }
end

-- Counts the jobs that died at least `age` ms ago: { server ms at that time, count }.
--- keys: base meta
--- args: given: int, age: int
--- flags: no-writes
--- frame: format
function script.count_dead(base, meta, given, age)
  local until_ = math.max(1, clock.now(given) - age)
  return { until_, redis.call("ZCOUNT", base .. "dead", "-inf", until_) }
end

-- Makes dead letters ready again, with their counts at zero; their attempts are kept. A dead letter stays dead if
-- another job holds its unique key. Returns { how many are ready again, id of a job that stays dead, id of the job that
-- holds its key, … }.
--- keys: base meta
--- args: caller: str, number: int, given: int, ids: *
--- frame: once
function script.requeue(base, meta, caller, number, given, ids, ...)
  local n, reply = 0, { 0 }
  for i = ids, #ARGV do
    local id = ARGV[i]
    local dead = redis.call("ZSCORE", base .. "dead", id)
    local body = dead and record.get(id)
    if dead and not body then redis.call("ZREM", base .. "dead", id) end -- its record is damaged
    if body then
      local holder = dead_letters.requeue(s, id, body)
      if holder then
        reply[#reply + 1], reply[#reply + 2] = id, holder
      else
        n = n + 1
      end
    end
  end
  reply[1] = n
  return reply
end

-- Makes a dead letter ready again. If another job holds its unique key, it stays dead, and the id of that job is
-- returned.
--- (s: table, id: str, body: str) -> str | nil
--- uses: base
function dead_letters.requeue(s, id, body)
  local one = record.flags(body) >= flag.UNIQUE and record.unique(body)
  if one and one[2] ~= keeping.THROTTLE then
    local holder = unique.live_holder(s, one)
    if holder then return holder end
    unique.hold(s, one, id, body)
  end
  redis.call("ZREM", base .. "dead", id)
  local was, generation = record.fields(body), row.mint(s.row, 1) + 1
  if record.has(was.flags, flag.REASON) then failures.reset(id) end
  local flags, new_state = bit.band(was.flags, _mask.NO_SUSPECT)
  new_state, flags = job.make_ready(
    s, false, record.entry(generation, body, id), flags, was.priority, was.tenant, s.now, _count.DEAD, body)
  local its = record.tail(body)
  its = tail.with(its, { expires = 0, attempts = 0, deliveries = 0, losses = 0, crashes = 0, host_deaths = 0 })
  redis.call("HSET", base .. "jobs", id, record.with_tail(body, new_state, generation, s.now, flags, its))
  flow.report(s, _event.REQUEUED, id, "")
end

-- Removes dead letters. Returns how many of the ids were dead.
--- keys: base meta
--- args: given: int, ids: *
--- flags: allow-oom
--- frame: change
function script.remove_dead(base, meta, given, ids, ...)
  local n = 0
  for i = ids, #ARGV do
    local id = ARGV[i]
    local dead = redis.call("ZSCORE", base .. "dead", id)
    local body = dead and record.get(id)
    if body then
      n = n + 1
      job.remove(s, id, body, ending.CANCELLED, "removed from the dead letters")
    elseif dead then -- its record is damaged, and with it the name of its tenant
      redis.call("ZREM", base .. "dead", id)
      redis.call("HDEL", base .. "jobs", id)
      redis.call("HDEL", base .. "failures", id)
      redis.call("HDEL", base .. "notes", id)
      redis.call("UNLINK", base .. "steps:" .. id, base .. "output:" .. id)
      redis.call("PEXPIRE", base .. "predecessors:" .. id, _flow.KEEP)
      children.orphan(s, id)
      s.row[_row.DEAD] = s.row[_row.DEAD] - 1
    end
  end
  return n
end
