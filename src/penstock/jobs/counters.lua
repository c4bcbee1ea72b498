-- Counts and ages, kept as jobs move instead of derived from lists that may hold stale entries.
--
--   meta     HASH   ready delayed running dead        in the queue
--   tenants  HASH   tenant -> the same four, packed     a tenant without jobs has no field
--   age      HASH   second -> jobs ready since then     ages ZSET: those seconds, in order
--
-- A script collects what changes and writes it once: a batch of one tenant costs the same as one job.

--- () -> table
function counters.new()
  return { tenants = {}, order = {}, seconds = {}, total = { 0, 0, 0, 0 } }
end

-- The four places: 1 ready, 2 delayed, 3 running, 4 dead; 0 is outside.
--- (t: table, tenant: str, from: int, to: int)
function counters.move(t, tenant, from, to)
  local row = t.tenants[tenant]
  if not row then
    row = { 0, 0, 0, 0 }
    t.tenants[tenant] = row
    t.order[#t.order + 1] = tenant
  end
  local total = t.total
  if from > 0 then
    row[from], total[from] = row[from] - 1, total[from] - 1
  end
  if to > 0 then
    row[to], total[to] = row[to] + 1, total[to] + 1
  end
end

--- (t: table, since: int, n: int)
function counters.age(t, since, n)
  local second = math.floor(since / 1000)
  t.seconds[second] = (t.seconds[second] or 0) + n
end

--- (t: table)
--- uses: base meta
function counters.write(t)
  local order, total = t.order, t.total
  if #order > 0 then
    local key = base .. "tenants"
    batch.index(key, #order)
    local old = batch.read(key, order)
    local set, del = {}, {}
    for i = 1, #order do
      local row = t.tenants[order[i]]
      local a, b, c, d = 0, 0, 0, 0
      if old[i] then a, b, c, d = struct.unpack(">I4I4I4I4", old[i]) end
      a, b, c, d = a + row[1], b + row[2], c + row[3], d + row[4]
      if a + b + c + d == 0 then
        if old[i] then del[#del + 1] = order[i] end
      else
        set[#set + 1] = order[i]
        set[#set + 1] = struct.pack(">I4I4I4I4", a, b, c, d)
      end
    end
    batch.write("HSET", key, set)
    batch.write("HDEL", key, del)
  end
  local names = { "ready", "delayed", "running", "dead" }
  for s = 1, 4 do
    if total[s] ~= 0 then redis.call("HINCRBY", meta, names[s], total[s]) end
  end
  for second, n in pairs(t.seconds) do
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
