-- Counts and ages, updated as jobs move. They are not derived from lists, which may hold entries of cancelled jobs.
--
--   row      (row.lua)    ready, delayed, running, dead, parked, dependent, sleeping: how many jobs of the queue are in
--                         each state
--   tenants  HASH         tenant -> the same numbers, packed; a tenant without jobs has no field
--   age      HASH         second -> how many jobs have been ready since then, except for the newest second
--   ages     ZSET         those seconds, in order
--   parked_age, parked_ages   the same for the seconds since which parked jobs have waited
--
-- A script collects the changes and writes them once: a batch of jobs of one tenant costs as much as a single job. The
-- newest second is counted in the row, so that a job that is claimed in the second of its enqueue costs nothing here.

-- The states as `move` takes them; BEFORE_READY plus a state is the index of its count in the row.
_count = {
  NONE = 0, READY = 1, DELAYED = 2, RUNNING = 3, DEAD = 4, PARKED = 26, DEPENDENT = 32, SLEEPING = 33, BEFORE_READY = 4,
}

-- Counts the change of state of `n` jobs. `from` NONE: they enter the queue; `to` NONE: they leave.
--- (s: table, tenant: str, from: int, to: int, n: int)
function counters.move(s, tenant, from, to, n)
  local change, r = s.tenants[tenant], s.row
  if not change then
    change = { 0, 0, 0, 0 }
    s.tenants[tenant] = change
    s.order[#s.order + 1] = tenant
  end
  if from > _count.NONE then
    change[from] = (change[from] or 0) - n
    r[_count.BEFORE_READY + from] = r[_count.BEFORE_READY + from] - n
  else
    s.entered = s.entered + n
  end
  if to > _count.NONE then
    change[to] = (change[to] or 0) + n
    r[_count.BEFORE_READY + to] = r[_count.BEFORE_READY + to] + n
  end
end

-- Adds `n`, which may be negative, to the number of jobs that have been ready since `since`.
--- (s: table, since: int, n: int)
function counters.add_ready_since(s, since, n)
  local r, second = s.row, math.floor(since / 1000)
  if second > r[_row.SECOND] and n > 0 then
    s.seconds[r[_row.SECOND]] = (s.seconds[r[_row.SECOND]] or 0) + r[_row.SECOND_READY]
    r[_row.SECOND], r[_row.SECOND_READY] = second, n
  elseif second == r[_row.SECOND] then
    r[_row.SECOND_READY] = r[_row.SECOND_READY] + n
  else
    s.seconds[second] = (s.seconds[second] or 0) + n
  end
end

-- Counts that ready jobs begin to run. Consecutive jobs of one tenant, or of one second, are counted together.
--- (s: table, tenants: table, sinces: table)
function counters.begin_runs(s, tenants, sinces)
  local first, second, n = 1, 0, 0
  for i = 1, #tenants do
    local tenant, since = tenants[i], sinces[i]
    if tenant ~= tenants[i + 1] then
      counters.move(s, tenant, _count.READY, _count.RUNNING, i + 1 - first)
      first = i + 1
    end
    if since < second or since >= second + 1000 then
      if n > 0 then counters.add_ready_since(s, second, -n) end
      second, n = since - since % 1000, 0
    end
    n = n + 1
  end
  if n > 0 then counters.add_ready_since(s, second, -n) end
end

-- Adds `n`, which may be negative, to the number of parked jobs that have waited since `since`.
--- (s: table, since: int, n: int)
--- seldom
function counters.add_parked_since(s, since, n)
  local second = math.floor(since / 1000)
  s.parked_seconds = s.parked_seconds or {}
  s.parked_seconds[second] = (s.parked_seconds[second] or 0) + n
end

-- The second since which the oldest parked job has waited; false if no job is parked.
--- (r: table) -> int | false
--- uses: base
function counters.oldest_parked_second(r)
  if (r[_row.PARKED] or 0) == 0 then return false end
  local oldest = redis.call("ZRANGE", base .. "parked_ages", 0, 0)[1]
  return oldest and tonumber(oldest) or false
end

-- The second in which the oldest ready job became ready; false if no job is ready.
--- (r: table) -> int | false
--- uses: base
function counters.oldest_second(r)
  local oldest = redis.call("ZRANGE", base .. "ages", 0, 0)[1]
  return oldest and tonumber(oldest) or r[_row.SECOND_READY] > 0 and r[_row.SECOND]
end

-- The state in which a job is counted that has an entry in `delayed`.
--- (of: str) -> int
--- inline
function counters.delayed_state(of)
  return of == state.SLEEPING and _count.SLEEPING or _count.DELAYED
end

-- A tenant's numbers of ready, delayed, running, dead, parked, dependent and sleeping jobs. Zeros at the end of the
-- last three are not stored. Python unpacks them as well: see `scan_tenants` in inspect.lua.
--- (packed: str | false) -> int, int, int, int, int, int, int
function counters.unpack(packed)
  if not packed then return 0, 0, 0, 0, 0, 0, 0 end
  if #packed == 16 then
    local ready, delayed, running, dead = struct.unpack(">I4I4I4I4", packed)
    return ready, delayed, running, dead, 0, 0, 0
  end
  return struct.unpack(">I4I4I4I4I4I4I4", packed .. string.rep("\0", 28 - #packed))
end

-- The fifth, sixth and seventh number of a tenant after a change, packed as `counters.unpack` reads them.
--- (packed: str | false, change: table) -> str
--- seldom
function counters.rest(packed, change)
  local _, _, _, _, parked, dependent, sleeping = counters.unpack(packed)
  parked, dependent = parked + (change[_count.PARKED] or 0), dependent + (change[_count.DEPENDENT] or 0)
  sleeping = sleeping + (change[_count.SLEEPING] or 0)
  if sleeping > 0 then return struct.pack(">I4I4I4", parked, dependent, sleeping) end
  if dependent > 0 then return struct.pack(">I4I4", parked, dependent) end
  return parked > 0 and struct.pack(">I4", parked) or ""
end

-- Adds the changes of some seconds to the hash at `key` and to its sorted set.
--- (seconds: table, key: str)
function counters.write_seconds(seconds, key)
  for second, n in pairs(seconds) do
    if n ~= 0 then
      local left = redis.call("HINCRBY", key, second, n)
      if left == 0 then
        redis.call("HDEL", key, second)
        redis.call("ZREM", key .. "s", second)
      elseif left == n then
        redis.call("ZADD", key .. "s", second, second)
      end
    end
  end
end

-- Writes the counts of a tenant without reading them, if all jobs of the queue are its own: the row has the same
-- counts. Returns whether they are.
--- (r: table, tenant: str, change: table) -> bool
--- uses: base
function counters.write_alone(r, tenant, change)
  local now, added, before = 0, 0, 0
  for state = _count.READY, _count.DEAD do
    now, added = now + r[_count.BEFORE_READY + state], added + change[state]
    before = before + math.max(0, -change[state])
  end
  -- If the jobs that have left a state are all that the queue had, the tenant had all of them.
  if now - added ~= before or (r[_row.PARKED] or 0) + (r[_row.DEPENDENT] or 0) + (r[_row.SLEEPING] or 0) > 0
    or change[_count.PARKED] or change[_count.DEPENDENT] or change[_count.SLEEPING] then return false end
  if now > 0 then
    redis.call("HSET", base .. "tenants", tenant, struct.pack(
      ">I4I4I4I4", r[_row.READY], r[_row.DELAYED], r[_row.RUNNING], r[_row.DEAD]))
  elseif before > 0 then
    redis.call("HDEL", base .. "tenants", tenant)
  end
  return true
end

-- Writes the collected changes, except those in the row.
--- (s: table)
--- uses: base
function counters.write(s)
  local order = s.order
  if #order == 1 and counters.write_alone(s.row, order[1], s.tenants[order[1]]) then
    s.tenants, s.order = {}, {}
  elseif #order > 0 then
    local key = base .. "tenants"
    local old = batch.read(key, order)
    local set, del, n, tenants = {}, {}, 0, s.tenants
    for i = 1, #order do
      local tenant, packed = order[i], old[i]
      local change, ready, delayed, running, dead = tenants[tenant], 0, 0, 0, 0
      if packed then ready, delayed, running, dead = struct.unpack(">I4I4I4I4", packed) end
      ready, delayed = ready + change[_count.READY], delayed + change[_count.DELAYED]
      running, dead = running + change[_count.RUNNING], dead + change[_count.DEAD]
      local rest = ""
      if packed and #packed > 16 or change[_count.PARKED] or change[_count.DEPENDENT] or change[_count.SLEEPING] then
        rest = counters.rest(packed, change)
      end
      if ready + delayed + running + dead > 0 or rest ~= "" then
        n = n + 2
        set[n - 1], set[n] = tenant, struct.pack(">I4I4I4I4", ready, delayed, running, dead) .. rest
      elseif packed then
        del[#del + 1] = tenant
      end
    end
    batch.add("HSET", key, set)
    batch.write("HDEL", key, del)
    s.tenants, s.order = {}, {}
  end
  counters.write_seconds(s.seconds, base .. "age")
  s.seconds = {}
  if s.parked_seconds then
    counters.write_seconds(s.parked_seconds, base .. "parked_age")
    s.parked_seconds = nil
  end
end
