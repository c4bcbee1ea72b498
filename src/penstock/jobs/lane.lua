-- Order and fairness: who is next.
--
--   turns:<level>            ZSET  tenant -> virtual time of its next turn; a tenant is in it exactly while it
--                                  has entries in one of its two lists of that level
--   lane:<level>:<tenant>    LIST  entries in order of arrival
--   front:<level>:<tenant>   LIST  entries that go before the lane: handed back, and due ones where the
--                                  queue says so. Never LPUSH: it would turn their order round.
--   weights                  HASH  tenant -> weight, where it is not 1
--   meta                     HASH  v<level> -> virtual time last served; front -> entries in all front lists
--
-- Start-time fair queueing with a cost of 1/weight a turn. A tenant that comes (back) starts one turn after
-- the time last served, less a hair: had it the same time as a tenant whose next turn is its second, the
-- order of names would decide and it could wait for two jobs of the other. The hair (2^-16 turn) is too small to
-- earn a share by coming back again and again. Starting at the time last served, or at zero, would.
--
-- Times are whole numbers, 2^36 to a turn: a server reads and writes a whole score several times faster than 1.99998.

-- Of a turn.
--- (weight: str | false) -> int
function lane.cost(weight)
  return weight and math.floor(2 ^ 36 / weight) or 2 ^ 36
end

-- They come or come back: each gets its first turn, unless its other list of this level had given it one.
--- (level: int, tenants: table)
--- uses: base meta
function lane.line_up(level, tenants)
  local last = tonumber(redis.call("HGET", meta, "v" .. level)) or 0
  local weighed = redis.call("EXISTS", base .. "weights") == 1
  local turns = {}
  for i = 1, #tenants do
    local cost = lane.cost(weighed and redis.call("HGET", base .. "weights", tenants[i]))
    turns[2 * i - 1], turns[2 * i] = last + cost - 2 ^ 20, tenants[i]
  end
  redis.call("ZADD", base .. "turns:" .. level, "NX", unpack(turns))
end

-- Collect entries by lane, so that a batch costs one push a lane.
--- (lanes: table, list: str, level: int, tenant: str, entry: str)
function lane.sort(lanes, list, level, tenant, entry)
  local name = list .. level .. ":" .. tenant
  local lot = lanes[name]
  if not lot then
    lot = { list = list, level = level, tenant = tenant, entries = {} }
    lanes[name] = lot
    lanes[#lanes + 1] = lot
  end
  lot.entries[#lot.entries + 1] = entry
end

-- Append what was collected; tenants that had nothing at a level get a turn there.
--- (lanes: table)
--- uses: base meta
function lane.push_all(lanes)
  local came = {}
  for i = 1, #lanes do
    local lot = lanes[i]
    local length = batch.write("RPUSH", base .. lot.list .. lot.level .. ":" .. lot.tenant, lot.entries)
    if lot.list == "front:" then redis.call("HINCRBY", meta, "front", #lot.entries) end
    if length == #lot.entries then
      came[lot.level] = came[lot.level] or {}
      table.insert(came[lot.level], lot.tenant)
    end
  end
  for level, tenants in pairs(came) do lane.line_up(level, tenants) end
end

-- The `n` tenants whose turns come first: no other can be served by the next `n` turns.
--- (level: int, n: int, fronts: bool) -> table
--- uses: base
function lane.open(level, n, fronts)
  local found = redis.call("ZRANGE", base .. "turns:" .. level, 0, n - 1, "WITHSCORES")
  local lane_of, front_of = base .. "lane:" .. level .. ":", base .. "front:" .. level .. ":"
  local names, queues = {}, {}
  for i = 1, #found, 2 do
    local tenant = found[i]
    -- Eight fields and no more: a ninth would double the table.
    local queue = {
      tenant = tenant, time = tonumber(found[i + 1]), cost = 2 ^ 36,
      lane = lane_of .. tenant, entries = {}, fetched = 0, taken = 0, ended = false,
    }
    if fronts then queue.front, queue.read_front = front_of .. tenant, 0 end
    names[#names + 1], queues[#queues + 1] = tenant, queue
  end
  if #names > 0 and redis.call("EXISTS", base .. "weights") == 1 then
    local weights = redis.call("HMGET", base .. "weights", unpack(names))
    for i = 1, #names do queues[i].cost = lane.cost(weights[i]) end
  end
  return queues
end

-- Read the next `n` entries of a tenant, the front list's before the lane's; nothing is removed yet. `ended`: there
-- are no more.
--- (queue: table, n: int)
function lane.read(queue, n)
  local entries = queue.entries
  if queue.front then
    local got = redis.call("LRANGE", queue.front, queue.read_front, queue.read_front + n - 1)
    queue.read_front = queue.read_front + #got
    for i = 1, #got do entries[#entries + 1] = got[i] end
    n = n - #got
  end
  if n > 0 then
    local from = #entries - (queue.read_front or 0)
    local got = redis.call("LRANGE", queue.lane, from, from + n - 1)
    queue.ended = #got < n
    if #entries == 0 then
      queue.entries = got
    else
      for i = 1, #got do entries[#entries + 1] = got[i] end
    end
  end
end

-- Upper bound of the record's bytes, told by the entry's letter.
--- (entry: str) -> int
function lane.size(entry)
  local letter = string.byte(entry, 11)
  return letter == 97 and 1024 or 1024 * 2 ^ (letter - 97)
end

-- What a step that goes in slices may touch: `left` entries, `bytes` of records, but at least one of any size.
--- (n: int) -> table
function lane.slice(n)
  return { left = n, bytes = 1048576, fresh = true }
end

-- Whether one more record of this size fits, which it takes up; the slice ends where one did not.
--- (slice: table, size: int) -> bool
function lane.fits(slice, size)
  if slice.left > 0 and (size <= slice.bytes or slice.fresh) then
    slice.left, slice.bytes, slice.fresh = slice.left - 1, slice.bytes - size, false
    return true
  end
  slice.left = 0
  return false
end

-- The first of the entries that fit into what is left of `slice`.
--- (slice: table, entries: table) -> table
function lane.fitting(slice, entries)
  local fit = {}
  for i = 1, #entries do
    if not lane.fits(slice, lane.size(entries[i])) then break end
    fit[i] = entries[i]
  end
  return fit
end

-- Read the records of the next `share` entries of all these tenants in one command, within `budget` bytes.
--- (queues: table, bodies: table, share: int, budget: int)
--- uses: base
function lane.fetch(queues, bodies, share, budget)
  local ids, entries = {}, {}
  for i = 1, #queues do
    local queue = queues[i]
    local last = math.min(#queue.entries, queue.taken + share)
    while queue.fetched < last do
      local entry = queue.entries[queue.fetched + 1]
      budget = budget - lane.size(entry)
      if budget < 0 and #ids > 0 then break end
      ids[#ids + 1] = string.sub(entry, 12)
      entries[#entries + 1] = entry
      queue.fetched = queue.fetched + 1
    end
  end
  if #ids > 0 then
    local found = redis.call("HMGET", base .. "jobs", unpack(ids))
    for i = 1, #ids do bodies[entries[i]] = found[i] end
  end
end

-- The tenant's next entry that still stands for a ready job, and its record. Entries whose job was cancelled
-- or purged are passed over, and count against what this turn may look at. `room.full` ends the turn.
--- (queue: table, bodies: table, room: table) -> str | nil, str | nil
--- uses: base
function lane.next(queue, bodies, room)
  while room.look > 0 do
    local share = math.min(room.want, 32)
    if queue.taken == #queue.entries and not queue.ended then lane.read(queue, share + 1) end
    local entry = queue.entries[queue.taken + 1]
    if not entry then return nil end
    if lane.size(entry) > room.bytes and room.bytes < room.most then
      room.full = true
      return nil
    end
    if queue.fetched == queue.taken then lane.fetch({ queue }, bodies, share, room.bytes) end
    queue.taken = queue.taken + 1
    room.look = room.look - 1
    local body = bodies[entry]
    if body then room.bytes = room.bytes - #body end
    if record.is_ready(body, entry) then return entry, body end
  end
  room.full = true
end

-- Serve turns of the first `n` tenants of this level until `room` is used up: `want` jobs, `look` entries, `bytes`
-- of records. Done in memory, then written once. Returns whether others may come next: that is so where some of
-- the `n` had nothing but entries of cancelled or expired jobs.
--- (level: int, n: int, room: table, fronts: bool, now: int) -> bool
--- uses: base meta
function lane.take(level, n, room, fronts, now)
  local queues = lane.open(level, n, fronts)
  if #queues == 0 then return false end
  local others = #queues == n
  local horizon = others and queues[n].time or math.huge
  local share, bodies = math.ceil(room.want / #queues), {}
  -- One more than the share: so the end of a list is known without asking.
  for i = 1, #queues do lane.read(queues[i], share + 1) end
  lane.fetch(queues, bodies, share, room.bytes)
  local again, first, back, served = {}, 1, 1, nil
  while room.want > 0 and not room.full do
    local queue, returned = queues[first], again[back]
    if queue and not (returned and returned.time < queue.time) then
      first = first + 1
    elseif returned and returned.time < horizon then
      queue, back = returned, back + 1
    else
      break
    end
    local entry, body = lane.next(queue, bodies, room)
    if entry then
      local expires = struct.unpack(">I6", body, 23)
      if expires > 0 and expires <= now then
        room.expired[#room.expired + 1] = { string.sub(entry, 12), body }
      else
        room.picked[#room.picked + 1] = { string.sub(entry, 12), body }
        room.want = room.want - 1
        served = queue.time
        queue.time = queue.time + queue.cost
      end
      local at = #again + 1
      while at > back and again[at - 1].time > queue.time do
        again[at] = again[at - 1]
        at = at - 1
      end
      again[at] = queue
    end
  end
  lane.close(level, queues, served)
  return others
end

-- Remove what was taken from the lists, and give each tenant its next turn or take it out.
--- (level: int, queues: table, served: int | nil)
--- uses: base meta
function lane.close(level, queues, served)
  local turns = base .. "turns:" .. level
  local again, gone, from_fronts = {}, {}, 0
  for i = 1, #queues do
    local queue = queues[i]
    local known, taken = #queue.entries, queue.taken
    if taken > 0 or known == 0 then
      local from_front = queue.front and math.min(taken, queue.read_front) or 0
      if from_front > 0 then redis.call("LPOP", queue.front, from_front) end
      if taken > from_front then redis.call("LPOP", queue.lane, taken - from_front) end
      from_fronts = from_fronts + from_front
      local left = known > taken or (not queue.ended and redis.call("EXISTS", queue.lane, queue.front or queue.lane) > 0)
      if left then
        again[#again + 1] = queue.time
        again[#again + 1] = queue.tenant
      else
        gone[#gone + 1] = queue.tenant
      end
    end
  end
  if #again > 0 then
    batch.index(turns, #again)
    redis.call("ZADD", turns, unpack(again))
  end
  if #gone > 0 then redis.call("ZREM", turns, unpack(gone)) end
  if from_fronts > 0 then redis.call("HINCRBY", meta, "front", -from_fronts) end
  if #gone > 0 and redis.call("EXISTS", turns) == 0 then
    redis.call("HDEL", meta, "v" .. level)
  elseif served then
    -- Later than before, even among tenants of one time: who comes back now comes behind those who came before.
    local last = tonumber(redis.call("HGET", meta, "v" .. level)) or 0
    served = math.max(served, last + math.max(1, last / 2 ^ 50))
    redis.call("HSET", meta, "v" .. level, math.floor(served))
  end
end
