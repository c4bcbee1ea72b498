-- Counts and ages, updated as jobs move. They are not derived from lists, which may hold entries of cancelled jobs.
--
--   meta     HASH   ready, delayed, running, dead: how many jobs of the queue are in each state
--   tenants  HASH   tenant -> the same four numbers, packed; a tenant without jobs has no field
--   age      HASH   second -> how many jobs have been ready since then
--   ages     ZSET   those seconds, in order
--
-- A script collects the changes and writes them once: a batch of jobs of one tenant costs as much as a single job.

--- () -> table
function counters.new()
  return { tenants = {}, order = {}, seconds = {}, total = counters.zeros() }
end

--- () -> table
--- inline
function counters.zeros()
  return { [state.READY] = 0, [state.DELAYED] = 0, [state.RUNNING] = 0, [state.DEAD] = 0 }
end

-- Counts a job's change of state. `from` nil: the job enters the queue; `to` nil: it leaves.
--- (c: table, tenant: str, from: str | nil, to: str | nil)
function counters.move(c, tenant, from, to)
  local row = c.tenants[tenant]
  if not row then
    row = counters.zeros()
    c.tenants[tenant] = row
    c.order[#c.order + 1] = tenant
  end
  local total = c.total
  if from then
    row[from], total[from] = row[from] - 1, total[from] - 1
  end
  if to then
    row[to], total[to] = row[to] + 1, total[to] + 1
  end
end

-- Adds `n`, which may be negative, to the number of jobs that have been ready since `since`.
--- (c: table, since: int, n: int)
function counters.add_ready_since(c, since, n)
  local second = math.floor(since / 1000)
  c.seconds[second] = (c.seconds[second] or 0) + n
end

-- The four numbers of a tenant. Python unpacks them as well: see `scan_tenants` in inspect.lua.
--- (packed: str | false) -> int, int, int, int
function counters.unpack(packed)
  if not packed then return 0, 0, 0, 0 end
  return struct.unpack(">I4I4I4I4", packed)
end

-- Writes the collected changes.
--- (c: table)
--- uses: base meta
function counters.write(c)
  local order, total = c.order, c.total
  if #order > 0 then
    local key = base .. "tenants"
    batch.leave_listpack(key, #order)
    local old = batch.read(key, order)
    local set, del = {}, {}
    for i = 1, #order do
      local row = c.tenants[order[i]]
      local ready, delayed, running, dead = counters.unpack(old[i])
      ready, delayed = ready + row[state.READY], delayed + row[state.DELAYED]
      running, dead = running + row[state.RUNNING], dead + row[state.DEAD]
      if ready + delayed + running + dead == 0 then
        if old[i] then del[#del + 1] = order[i] end
      else
        set[#set + 1] = order[i]
        set[#set + 1] = struct.pack(">I4I4I4I4", ready, delayed, running, dead)
      end
    end
    batch.write("HSET", key, set)
    batch.write("HDEL", key, del)
  end
  counters.add("ready", total[state.READY])
  counters.add("delayed", total[state.DELAYED])
  counters.add("running", total[state.RUNNING])
  counters.add("dead", total[state.DEAD])
  for second, n in pairs(c.seconds) do
    if n ~= 0 then
      local left = redis.call("HINCRBY", base .. "age", second, n)
      if left == 0 then
        redis.call("HDEL", base .. "age", second)
        redis.call("ZREM", base .. "ages", second)
      elseif left == n then
        redis.call("ZADD", base .. "ages", second, second)
      end
    end
  end
end

--- (name: str, n: int)
--- uses: meta
function counters.add(name, n)
  if n ~= 0 then redis.call("HINCRBY", meta, name, n) end
end
