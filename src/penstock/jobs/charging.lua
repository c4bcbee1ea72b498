-- Fairness by time: a queue may charge a tenant for the time that its jobs are held by workers, instead of one service
-- for each job.
--
--   row             (row.lua)  WEIGHTED has the bit BY_TIME
--   owners          (lease.lua)  the level of the job is added to its owner
--   owed:<level>    ZSET  tenant -> virtual time from which it may be served, of tenants that had no waiting job
--                         when one of their jobs ended; PX 60 s
--
-- A claim costs the tenant one service, as in any queue, which pays for the first MS milliseconds of the run. The end
-- of the run charges the rest, so a job of two seconds costs as much as two hundred jobs of ten milliseconds. A tenant
-- without waiting jobs keeps what it owes.

_charged = layout { level = "c1", tenant = "*" } -- the level as a digit

_charge = { BY_TIME = 2, MS = 10, MEMORY = 60000 }

-- Charges the tenants of runs that ended: `held` are the claims of `ids`, in their order.
--- (s: table, done: table, ids: table, held: table)
--- uses: base
--- seldom
function charging.charge(s, done, ids, held)
  local claims, owners, sums, order = {}, batch.read(base .. "owners", done), {}, {}
  for i = 1, #ids do claims[ids[i]] = held[i] or claims[ids[i]] end
  for i = 1, #done do
    local claimed_at, level = string.match(owners[i] or "", " (%d+) (%d)$")
    local services = claimed_at and (s.now - claimed_at) / _charge.MS - 1 or 0
    if services > 0 then
      local held_claim = claims[done[i]]
      local tenant = claim.tenant(held_claim)
      local key = level .. tenant
      if not sums[key] then order[#order + 1] = key end
      sums[key] = (sums[key] or 0) + services
    end
  end
  for i = 1, #order do
    charging.add(s, tonumber(_charged.level(order[i])), _charged.tenant(order[i]), sums[order[i]])
  end
end

-- Advances the virtual time of a tenant by `services` services, so that it is served later.
--- (s: table, level: int, tenant: str, services: int)
--- uses: base
function charging.add(s, level, tenant, services)
  local weight = s.row[_row.WEIGHTED] % 2 == 1 and redis.call("HGET", base .. "weights", tenant)
  local cost = math.floor(services * lane.cost(weight))
  local key, owed = base .. "rotation:" .. level, base .. "owed:" .. level
  local next_ = redis.call("ZSCORE", key, tenant)
  if next_ then
    redis.call("ZADD", key, "XX", string.format("%.0f", next_ + cost), tenant)
    return
  end
  local last = row.last_served(s.row, level)
  local begins = math.max(tonumber(redis.call("ZSCORE", owed, tenant) or 0), last) + cost
  redis.call("ZREMRANGEBYSCORE", owed, "-inf", last)
  redis.call("ZADD", owed, string.format("%.0f", begins), tenant)
  redis.call("PEXPIRE", owed, _charge.MEMORY)
end

-- Delays tenants that arrive or return, by what they owe. `arrivals`: virtual time, tenant, …
--- (level: int, arrivals: table)
--- uses: base
--- seldom
function charging.delay_arrivals(level, arrivals)
  for i = 1, #arrivals, 2 do
    local owed = tonumber(redis.call("ZSCORE", base .. "owed:" .. level, arrivals[i + 1]) or 0)
    if owed > arrivals[i] then arrivals[i] = string.format("%.0f", owed) end
  end
end
