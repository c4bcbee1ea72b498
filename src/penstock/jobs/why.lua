-- Why a job does not run: facts that `why.py` makes one answer of. Nothing here writes.
--
-- How many jobs are claimed before a ready one follows from the rotation of the tenants (lane.lua). Its tenant is
-- served `own` times before, so each other tenant is served as often as its virtual time allows until then, and at most
-- once for each of its entries. Entries of cancelled jobs count too, and later arrivals do not, so the number is an
-- estimate.

_why = { WORKERS = 100, TENANTS = 64, EXACT = 10000, ROWS = 31, CHILDREN = 5 }

-- How many entries of a list have a lower generation. The generations of a list rise. In a long list this is an
-- estimate, because the server walks to an entry in its middle.
--- (key: str, n: int, generation: int) -> int
--- seldom
function why.before(key, n, generation)
  if n <= _why.EXACT then return listing.find_entry(key, n, generation - 1) end
  local first, last = redis.call("LINDEX", key, 0), redis.call("LINDEX", key, -1)
  if not first or not last then return 0 end
  local from, to = entry.generation(first), entry.generation(last)
  return math.max(0, math.min(n - 1, math.floor(n * (generation - from) / math.max(1, to - from))))
end

-- How many entries of its tenant precede an entry.
--- (r: table, level: int, tenant: str, generation: int) -> int
--- uses: base
--- seldom
function why.own(r, level, tenant, generation)
  local front, lane_ = base .. "front:" .. level .. ":" .. tenant, base .. "lane:" .. level .. ":" .. tenant
  local n = r[_row.FRONT] > 0 and redis.call("LLEN", front) or 0
  if n > 0 then
    local at = why.before(front, n, generation)
    local found = redis.call("LINDEX", front, at)
    if n > _why.EXACT or found and entry.generation(found) == generation then return at end
  end
  local head = redis.call("HGET", base .. "heads:" .. level, tenant)
  if not head or entry.generation(head) >= generation then return n end
  return n + 1 + why.before(lane_, redis.call("LLEN", lane_), generation)
end

-- About how many entries are taken before one: those of more urgent levels, those of its own tenant, those of other
-- tenants. The last number is an estimate from the first tenants if there are many.
--- (r: table, level: int, tenant: str, generation: int) -> int, int, int
--- uses: base
--- seldom
function why.ahead(r, level, tenant, generation)
  local urgent, entries, levels = 0, 0, r[_row.LEVELS]
  for i = 1, #levels, 3 do
    if levels[i] < level then urgent = urgent + levels[i + 1] end
    if levels[i] == level then entries = levels[i + 1] end
  end
  local rotation, own = base .. "rotation:" .. level, why.own(r, level, tenant, generation)
  local time = tonumber(redis.call("ZSCORE", rotation, tenant) or 0)
  local weights = r.weights or base .. "weights"
  local weighted = r[_row.WEIGHTED] % 2 == 1
  local until_ = time + own * lane.cost(weighted and redis.call("HGET", weights, tenant))
  local limit = string.format("(%.0f", until_)
  local found = redis.call("ZRANGE", rotation, "-inf", limit, "BYSCORE", "LIMIT", 0, _why.TENANTS, "WITHSCORES")
  local others, looked = 0, 0
  for i = 1, #found, 2 do
    if found[i] ~= tenant then
      local cost = lane.cost(weighted and redis.call("HGET", weights, found[i]))
      local services = math.floor((until_ - 1 - tonumber(found[i + 1])) / cost) + 1
      others, looked = others + math.min(services, linger.count(r, level, found[i])), looked + 1
    end
  end
  local all = redis.call("ZCOUNT", rotation, "-inf", limit) - (own > 0 and 1 or 0)
  if looked > 0 and all > looked then others = math.floor(others * all / looked) end
  return math.max(0, urgent), own, math.max(0, math.min(others, entries - own))
end

-- The entries before a parked job at this key.
--- (place: table, level: int, tenant: str, generation: int) -> int, int, int
--- uses: base
--- seldom
function why.parked_ahead(place, level, tenant, generation)
  local queue = base
  place.r.weights, base = base .. "weights", base .. "parked:" .. place.key .. ":"
  local urgent, own, others = why.ahead(place.r, level, tenant, generation)
  base = queue
  return urgent, own, others
end

-- Adds a name and a value.
--- (facts: table, name: str, value: any)
function why.add(facts, name, value)
  facts[#facts + 1], facts[#facts + 2] = name, value
end

-- The facts about a ready job.
--- (s: table, facts: table, id: str, body: str)
--- uses: base
--- seldom
function why.of_ready(s, facts, id, body)
  local its, r = record.fields(body), s.row
  if record.has(its.flags, flag.SUSPECT) then
    local rank = redis.call("ZRANK", base .. "suspects", record.entry(its.generation, body, id))
    why.add(facts, "suspects", { rank or 0, r[_row.SUSPECTS] })
    return
  end
  if r[_row.BATCH] then
    local of_lane = redis.call("ZSCORE", base .. "lingering", its.priority .. ":" .. its.tenant)
    local due = r[_row.BATCH][_batch.BY_TENANT] == 1 and tonumber(of_lane or 0)
      or not linger.is_over(r, s.now) and r[_row.BATCH][_batch.QUEUE_DUE] or 0
    if due > s.now then why.add(facts, "batch", { due, r[_row.BATCH][_batch.SIZE] }) end
  end
  why.add(facts, "ahead", { why.ahead(r, its.priority, its.tenant, its.generation) })
end

-- The facts about a parked job.
--- (s: table, facts: table, body: str)
--- uses: base
--- seldom
function why.of_parked(s, facts, body)
  local its = record.fields(body)
  local list = record.has(its.flags, flag.LIMITED) and record.limits(body) or {}
  local one = list[limits.passed(its.flags) + 1]
  if not one and not pauses.scope(s, its.tenant, body, true) then one = list[holds.at(s, list) or 0] end
  if not one then return end
  local place = limits.place(s, one[_limit.KEY])
  local definition = limits.definition(s, limits.name(place))
  if not definition then return end
  local lanes = list[limits.passed(its.flags) + 1] and place or limits.place(s, _hold.SCOPE .. place.key)
  why.add(facts, "limit", {
    one[_limit.KEY], definition.most, definition.interval, place.used, place.parked,
    limits.room_at(s, place, limits.needed(s, place, one[_limit.COST])) or -1, one[_limit.COST],
    holds.until_(s, place.key), why.parked_ahead(lanes, its.priority, its.tenant, its.generation),
  })
end

-- What the server knows about the reason why a job does not run: { what `show` returns, server ms, name, value, … }.
-- The record has no payload.
--- keys: base meta
--- args: given: int, id: str
--- flags: allow-oom
--- frame: look
function script.why(base, meta, given, id)
  local found, facts = inspect.job(id, s.now), { false, s.now }
  local body, owner = record.intact(found[1]), found[4]
  found[8] = owner and redis.call("HGET", base .. "workers", lease.incarnation(owner))
  facts[1] = found
  if not body then return facts end
  found[1] = record.head(body)
  local alive = redis.call("ZRANGE", base .. "leases", string.format("(%d", s.now), "+inf", "BYSCORE", "LIMIT", 0,
    _why.WORKERS)
  local registered = #alive > 0 and redis.call("HMGET", base .. "workers", unpack(alive)) or {}
  local workers, asked = 0, 0
  for i = 1, #alive do
    if registered[i] then
      if #cancelling.words(alive[i]) > 0 then asked = asked + 1 else workers = workers + 1 end
    end
  end
  why.add(facts, "workers", { workers, #alive - workers - asked, asked })
  if owner then
    local until_ = redis.call("ZSCORE", base .. "leases", lease.incarnation(owner))
    why.add(facts, "lease", tonumber(until_ or 0))
    return facts
  end
  if s.row[_row.PAUSED] == 1 then why.add(facts, "pause", redis.call("HGET", meta, "pause")) end
  local is = record.state(body)
  local scope = pauses.scope(s, record.tenant(body), body, is == state.PARKED)
  if scope then why.add(facts, "scope", { scope, redis.call("HGET", base .. "pauses", scope) }) end
  local task = record.task(body)
  if task ~= "" and redis.call("EXISTS", base .. "releases") == 1 then
    why.add(facts, "knows", releases.know(task) and 1 or 0)
  end
  if is == state.READY then
    why.of_ready(s, facts, id, body)
  elseif is == state.PARKED then
    why.of_parked(s, facts, body)
  elseif record.has(record.flags(body), flag.NOTES) then
    local _, waits_for, awaits = steps.own(base .. "steps:" .. id)
    why.add(facts, "signal", waits_for)
    if awaits == 1 then
      local key = base .. "children:" .. id
      why.add(facts, "children", { redis.call("SCARD", key), unpack(redis.call("SRANDMEMBER", key, _why.CHILDREN)) })
    end
  end
  why.add(facts, "history", redis.call("LRANGE", base .. "history:10", -_why.ROWS, -1))
  return facts
end
