-- Batches: a lane is offered to workers when a batch of jobs is ready, or when its oldest job has waited for long
-- enough.
--
--   lingering   ZSET   level:tenant -> server ms at which the lane is offered, however few jobs it has
--   row         (row.lua)  BATCH, `_batch` below: the settings of the queue, and the next two times
--
-- The first turn of a worker declares whether its queue is one of batches. In such a queue either the whole queue
-- lingers, with one time for all of it, or (BY_TENANT) each lane does. A lane that lingers has the virtual time "inf"
-- in `rotation`: it is behind all lanes that are offered, so a claim finds those without looking at the others. A job
-- that came back into a front list has waited before, and is offered at once.

_batch = { SIZE = 1, LINGER = 2, BY_TENANT = 3, LANES_DUE = 4, QUEUE_DUE = 5 } -- the two times are 0 if nothing lingers

_lingering = layout { level = "c1", colon = "c1", tenant = "*" }

_offer = { MOST = 100 } -- lanes in one turn

-- Stores the batch settings of a worker that starts: size, ms and by tenant. A worker without them (nil) resets those
-- of the queue.
--- (s: table, settings: table | nil)
--- seldom
function linger.declare(s, settings)
  local r = s.row
  if not settings and not r[_row.BATCH] then return end
  local size, ms, by_tenant = unpack(settings or { 1, 0, 0 })
  for i = _row.NEXT_TICK, _row.BATCH - 1 do r[i] = r[i] or false end -- an array without gaps is packed as one
  local old = r[_row.BATCH] or { 1, 0, 0, 0, s.now }
  r[_row.BATCH] = {
    size, ms, by_tenant, old[_batch.LANES_DUE],
    old[_batch.QUEUE_DUE] > 0 and old[_batch.QUEUE_DUE] or s.now,
  }
end

-- How many jobs are in lanes.
--- (s: table) -> int
--- inline
function linger.in_lanes(s)
  return s.row[_row.READY] - s.row[_row.SUSPECTS] - #s.suspects / 2
end

-- Adds the collected entries to their lists, as `lane.push` does, and decides for each lane whether it lingers.
--- (s: table)
--- uses: base
--- seldom
function linger.push(s)
  local r, pushed, n, came_back = s.row, {}, 0, false
  for number, list in pairs(s.lists) do
    for i = 1, #list.tenants do
      local entries = #list.entries[list.tenants[i]]
      pushed[#pushed + 1] = { number, list.tenants[i], entries }
      n = n + entries
    end
    came_back = came_back or number >= 10
  end
  if n == 0 then return end
  lane.push(r, s.lists)
  local b = r[_row.BATCH]
  local due = (s.oldest or s.now) + b[_batch.LINGER]
  s.oldest = nil
  if b[_batch.BY_TENANT] == 1 then
    for i = 1, #pushed do linger.pushed(r, pushed[i][1], pushed[i][2], pushed[i][3], due) end
    due = b[_batch.LANES_DUE]
  else
    if came_back then
      b[_batch.QUEUE_DUE] = s.now
    elseif b[_batch.QUEUE_DUE] == 0 or n >= linger.in_lanes(s) then
      b[_batch.QUEUE_DUE] = due
    end
    due = b[_batch.QUEUE_DUE]
  end
  if due > s.now then s.alarm = math.min(s.alarm or due, due) end
end

-- Has the lane of a tenant linger until `due` if it was empty before, or offers it if it has a whole batch now. `n`
-- entries were added to the list with this `number` (see `lane.collect`).
--- (r: table, number: int, tenant: str, n: int, due: int)
--- uses: base
--- seldom
function linger.pushed(r, number, tenant, n, due)
  local b, level = r[_row.BATCH], number % 10
  local count = linger.count(r, level, tenant)
  if number >= 10 or count >= b[_batch.SIZE] then
    linger.offer_lane(r, level, tenant)
  elseif count == n then
    linger.wait(r, level, tenant, due)
  end
end

-- How many entries a tenant has at this level.
--- (r: table, level: int, tenant: str) -> int
--- uses: base
--- seldom
function linger.count(r, level, tenant)
  local at = level .. ":" .. tenant
  return redis.call("HEXISTS", base .. "heads:" .. level, tenant) + redis.call("LLEN", base .. "lane:" .. at)
    + (r[_row.FRONT] > 0 and redis.call("LLEN", base .. "front:" .. at) or 0)
end

--- (r: table, level: int, tenant: str, due: int)
--- uses: base
--- seldom
function linger.wait(r, level, tenant, due)
  redis.call("ZADD", base .. "rotation:" .. level, "XX", "inf", tenant)
  redis.call("ZADD", base .. "lingering", due, level .. ":" .. tenant)
  local b = r[_row.BATCH]
  if b[_batch.LANES_DUE] == 0 or due < b[_batch.LANES_DUE] then b[_batch.LANES_DUE] = due end
end

-- Offers a lane that lingers, as if its tenant arrived now.
--- (r: table, level: int, tenant: str)
--- uses: base
--- seldom
function linger.offer_lane(r, level, tenant)
  if redis.call("ZREM", base .. "lingering", level .. ":" .. tenant) == 0 then return end
  redis.call("ZREM", base .. "rotation:" .. level, tenant)
  lane.add_tenants(r, level, { tenant })
end

-- Offers lanes whose time has come, at most a hundred. Returns whether there may be more.
--- (s: table) -> bool
--- uses: base
--- seldom
function linger.offer_due(s)
  local r, b = s.row, s.row[_row.BATCH]
  if b[_batch.LANES_DUE] == 0 or b[_batch.LANES_DUE] > s.now then return false end
  local due = redis.call("ZRANGE", base .. "lingering", "-inf", s.now, "BYSCORE", "LIMIT", 0, _offer.MOST)
  for i = 1, #due do linger.offer_lane(r, tonumber(_lingering.level(due[i])), _lingering.tenant(due[i])) end
  local next_ = redis.call("ZRANGE", base .. "lingering", 0, 0, "WITHSCORES")
  b[_batch.LANES_DUE] = next_[2] and tonumber(next_[2]) or 0
  return #due == _offer.MOST
end

-- Whether a claim would find a batch.
--- (r: table, now: int) -> bool
--- uses: base
--- seldom
function linger.is_over(r, now)
  local b, levels = r[_row.BATCH], r[_row.LEVELS]
  if b[_batch.BY_TENANT] == 0 then
    local n, due = r[_row.READY] - r[_row.SUSPECTS], b[_batch.QUEUE_DUE]
    return n >= b[_batch.SIZE] or n > 0 and due > 0 and due <= now
  end
  if b[_batch.LANES_DUE] > 0 and b[_batch.LANES_DUE] <= now then return true end
  for i = 1, #levels, 3 do
    local first = redis.call("ZRANGE", base .. "rotation:" .. levels[i], 0, 0, "WITHSCORES")
    if first[2] and first[2] ~= "inf" then return true end
  end
  return false
end

-- Serves batches of one tenant each, of the most urgent levels that offer some: as many as `want` jobs would fill, and
-- at least one. If the whole queue lingers, serves nothing, and returns whether the queue is offered now: the claim
-- serves it as any other queue, but leaves the piece that would follow the last whole batch (`room.spared`).
--- (s: table, room: table) -> bool
--- uses: base
--- seldom
function linger.serve(s, room)
  local r, at = s.row, 1
  local size, left = r[_row.BATCH][_batch.SIZE], room.want
  if r[_row.BATCH][_batch.BY_TENANT] == 0 then
    local n = linger.in_lanes(s)
    if n >= size then room.want = math.min(left, n - n % size) end
    room.spared = left - room.want
    return n == 0 or linger.is_open(s) -- without a job, the claim removes the entries of cancelled ones
  end
  local batches = math.max(1, math.floor(left / size))
  while batches > 0 and not room.full and r[_row.LEVELS][at] do
    local level, before = r[_row.LEVELS][at], room.claimed
    room.want = math.min(left, size)
    linger.take(s, level, room)
    left = left - (room.claimed - before)
    if room.claimed > before then
      batches = batches - 1
    elseif r[_row.LEVELS][at] == level then
      at = at + 3
    end
  end
  room.want = left
  return false
end

-- Serves the first tenant of this level once: a batch of its jobs. The batch costs as many services as it has jobs.
--- (s: table, level: int, room: table)
--- uses: base
--- seldom
function linger.take(s, level, room)
  local r, now = s.row, s.now
  while room.want > 0 and not room.full do
    local first = redis.call("ZRANGE", base .. "rotation:" .. level, 0, 0, "WITHSCORES")
    local tenant = first[1]
    if not tenant or first[2] == "inf" and not s.takes_all then return end
    if first[2] == "inf" then
      linger.offer_lane(r, level, tenant)
      first[2] = redis.call("ZSCORE", base .. "rotation:" .. level, tenant)
    end
    local cost = lane.cost(r[_row.WEIGHTED] % 2 == 1 and redis.call("HGET", base .. "weights", tenant))
    local head = redis.call("HGET", base .. "heads:" .. level, tenant)
    local cursor = lane.cursor(r, level, tenant, first[2], cost, head)
    lane.read(cursor, lane.names(level), room.want + 1)
    lane.fetch({ cursor }, room.want, room)
    local served, last
    repeat
      local id, body, expires, since, flags, ttl = lane.next(cursor, level, room)
      if id and expires > 0 and expires <= now then
        room.expired[#room.expired + 1] = { id, body }
      elseif id and not (room.pausing and lane.met_paused(room, tenant, id, body)) then
        lease.collect(room, id, body, tenant, expires, since, flags, ttl)
        served, last = served or cursor.time, since
        cursor.time = cursor.time + cost
      end
    until not id or room.want == 0 or room.full
    lane.close(r, level, { cursor }, served)
    if last then
      local due, left = last + r[_row.BATCH][_batch.LINGER], linger.count(r, level, tenant)
      if left > 0 and left < r[_row.BATCH][_batch.SIZE] and due > now then linger.wait(r, level, tenant, due) end
      return
    end
  end
end

-- Call it after a claim. If the whole queue lingers, sets when the jobs that the claim has left are offered. Their wait
-- counts from the latest claimed job, because apart from the rotation of tenants they came after it. Returns whether
-- another batch is offered now.
--- (s: table, room: table) -> bool
--- uses: base
--- seldom
function linger.claimed(s, room)
  local b, sinces, last = s.row[_row.BATCH], room.sinces, 0
  room.want = room.want + (room.spared or 0)
  if linger.in_lanes(s) == 0 then
    b[_batch.QUEUE_DUE] = 0
  elseif #sinces > 0 then
    for i = 1, #sinces do last = math.max(last, sinces[i]) end
    b[_batch.QUEUE_DUE] = last + b[_batch.LINGER]
  end
  return linger.is_open(s)
end

-- Whether this claim would find a batch, or a piece of one that it may take.
--- (s: table) -> bool
--- uses: base
--- seldom
function linger.is_open(s)
  return linger.is_over(s.row, s.now) or s.takes_all and linger.in_lanes(s) > 0
end

-- Forgets the lanes of tenants that have no entries left.
--- (level: int, tenants: table)
--- uses: base
--- seldom
function linger.forget(level, tenants)
  local members = {}
  for i = 1, #tenants do members[i] = level .. ":" .. tenants[i] end
  batch.write("ZREM", base .. "lingering", members)
end

-- The next time at which a batch is offered; math.huge if nothing lingers.
--- (r: table, now: int) -> int
--- seldom
function linger.due(r, now)
  local b = r[_row.BATCH]
  local due = b[_batch.BY_TENANT] == 1 and b[_batch.LANES_DUE] or b[_batch.QUEUE_DUE]
  return due > now and due or math.huge
end
