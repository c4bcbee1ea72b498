-- Order and fairness: which job is next.
--
-- A job's *level* is its priority. A *turn* in this file is a tenant's: it hands out one job of that tenant. In the
-- other files it is a worker's: one round trip.
--
--   turns:<level>            ZSET  tenant -> virtual time of its next turn; of the tenants that have entries at this
--                                  level, in their lane or in their front list
--   lane:<level>:<tenant>    LIST  entries in order of arrival
--   front:<level>:<tenant>   LIST  entries that are claimed before those of the lane: jobs that a worker handed back,
--                                  and due jobs if `due_first` is set. Only RPUSH: LPUSH would reverse their order.
--   weights                  HASH  tenant -> weight, where it is not 1
--   meta                     HASH  v<level>: virtual time last served; front: entries in all front lists
--
-- This is start-time fair queueing: the tenant with the lowest virtual time is served next, and each turn advances its
-- time by 1/weight. A tenant that arrives or returns starts one turn after the time last served, minus a small head
-- start of 2^-16 of a turn. Without the head start it would tie with a tenant whose second turn is next. The order of
-- their names would decide the tie, and the newcomer could wait for two jobs of that tenant. A tenant that started at
-- the time last served, or at zero, could gain a larger share by leaving and returning. The head start is too small for
-- that.
--
-- Virtual times are whole numbers, 2^36 for each turn, because the server reads and writes an integer score several
-- times faster than a fraction such as 1.99998.

_turn = { COST = 68719476736, HEAD_START = 1048576 }

-- How far a turn advances the virtual time of a tenant with this weight.
--- (weight: str | false) -> int
function lane.cost(weight)
  return weight and math.floor(_turn.COST / weight) or _turn.COST
end

-- Gives a first turn to tenants that arrive or return, unless they have one because of their other list of this level.
--- (level: int, tenants: table)
--- uses: base meta
function lane.add_tenants(level, tenants)
  local last = tonumber(redis.call("HGET", meta, "v" .. level)) or 0
  local weighted = redis.call("EXISTS", base .. "weights") == 1
  local turns = {}
  for i = 1, #tenants do
    local cost = lane.cost(weighted and redis.call("HGET", base .. "weights", tenants[i]))
    turns[2 * i - 1], turns[2 * i] = last + cost - _turn.HEAD_START, tenants[i]
  end
  redis.call("ZADD", base .. "turns:" .. level, "NX", unpack(turns))
end

-- Collects an entry by its list (`lane:` or `front:`), so that a batch of jobs costs one push for each list.
--- (lists: table, list: str, level: int, tenant: str, entry: str)
function lane.collect(lists, list, level, tenant, entry)
  local name = list .. level .. ":" .. tenant
  local group = lists[name]
  if not group then
    group = { list = list, level = level, tenant = tenant, entries = {} }
    lists[name] = group
    lists[#lists + 1] = group
  end
  group.entries[#group.entries + 1] = entry
end

-- Appends the collected entries to their lists. A tenant whose list was empty gets a turn at its level.
--- (lists: table)
--- uses: base meta
function lane.push(lists)
  local arrived = {}
  for i = 1, #lists do
    local group = lists[i]
    local level, tenant, entries = group.level, group.tenant, group.entries
    local length = batch.write("RPUSH", base .. group.list .. level .. ":" .. tenant, entries)
    if group.list == "front:" then redis.call("HINCRBY", meta, "front", #entries) end
    if length == #entries then
      arrived[level] = arrived[level] or {}
      table.insert(arrived[level], tenant)
    end
  end
  for level, tenants in pairs(arrived) do lane.add_tenants(level, tenants) end
end

-- Cursors into the lists of the `n` tenants whose turns are first: the next `n` turns can serve no other tenant.
-- `fronts`: whether any front list has entries; if not, front lists are not read.
--- (level: int, n: int, fronts: bool) -> table
--- uses: base
function lane.open(level, n, fronts)
  local found = redis.call("ZRANGE", base .. "turns:" .. level, 0, n - 1, "WITHSCORES")
  local lane_of, front_of = base .. "lane:" .. level .. ":", base .. "front:" .. level .. ":"
  local names, cursors = {}, {}
  for i = 1, #found, 2 do
    local tenant = found[i]
    -- At most eight fields: a ninth would double the table.
    local cursor = {
      tenant = tenant, time = tonumber(found[i + 1]), cost = _turn.COST,
      lane = lane_of .. tenant, entries = {}, fetched = 0, taken = 0, ended = false,
    }
    if fronts then cursor.front, cursor.read_front = front_of .. tenant, 0 end
    names[#names + 1], cursors[#cursors + 1] = tenant, cursor
  end
  if #names > 0 and redis.call("EXISTS", base .. "weights") == 1 then
    local weights = redis.call("HMGET", base .. "weights", unpack(names))
    for i = 1, #names do cursors[i].cost = lane.cost(weights[i]) end
  end
  return cursors
end

-- Reads the next `n` entries of a tenant, those of the front list first; removes nothing yet. Sets `cursor.ended` if
-- there are no more.
--- (cursor: table, n: int)
function lane.read(cursor, n)
  local entries = cursor.entries
  if cursor.front then
    local got = redis.call("LRANGE", cursor.front, cursor.read_front, cursor.read_front + n - 1)
    cursor.read_front = cursor.read_front + #got
    for i = 1, #got do entries[#entries + 1] = got[i] end
    n = n - #got
  end
  if n > 0 then
    local from = #entries - (cursor.read_front or 0)
    local got = redis.call("LRANGE", cursor.lane, from, from + n - 1)
    cursor.ended = #got < n
    if #entries == 0 then
      cursor.entries = got
    else
      for i = 1, #got do entries[#entries + 1] = got[i] end
    end
  end
end

-- Reads with one command the records of the next `share` entries of each of these tenants, up to `bytes` in all.
--- (cursors: table, bodies: table, share: int, bytes: int)
--- uses: base
function lane.fetch(cursors, bodies, share, bytes)
  local ids, entries = {}, {}
  for i = 1, #cursors do
    local cursor = cursors[i]
    local last = math.min(#cursor.entries, cursor.taken + share)
    while cursor.fetched < last do
      local entry = cursor.entries[cursor.fetched + 1]
      bytes = bytes - record.entry_bytes(entry)
      if bytes < 0 and #ids > 0 then break end
      ids[#ids + 1] = record.entry_id(entry)
      entries[#entries + 1] = entry
      cursor.fetched = cursor.fetched + 1
    end
  end
  if #ids > 0 then
    local found = redis.call("HMGET", base .. "jobs", unpack(ids))
    for i = 1, #ids do bodies[entries[i]] = found[i] end
  end
end

-- The tenant's next entry that stands for a ready job, and its record. Entries of cancelled and purged jobs are
-- skipped, but each uses up one of the `room.look` entries that a claim may read. Sets `room.full` to end the claim.
-- The first record of a claim always fits, whatever its size.
--- (cursor: table, bodies: table, room: table) -> str | nil, str | nil
--- uses: base
function lane.next(cursor, bodies, room)
  while room.look > 0 do
    local share = math.min(room.want, 32)
    if cursor.taken == #cursor.entries and not cursor.ended then lane.read(cursor, share + 1) end
    local entry = cursor.entries[cursor.taken + 1]
    if not entry then return nil end
    if record.entry_bytes(entry) > room.bytes and room.bytes < room.max_bytes then
      room.full = true
      return nil
    end
    if cursor.fetched == cursor.taken then lane.fetch({ cursor }, bodies, share, room.bytes) end
    cursor.taken = cursor.taken + 1
    room.look = room.look - 1
    local body = bodies[entry]
    if body then room.bytes = room.bytes - #body end
    if record.is_ready(body, entry) then return entry, body end
  end
  room.full = true
end

-- Serves turns of the first `n` tenants of this level until `room` is used up: `want` jobs, `look` entries, `bytes` of
-- records. The turns are chosen in memory and written once. Returns whether tenants after the first `n` may be next,
-- which happens if some of the `n` had only entries of cancelled or expired jobs.
--- (level: int, n: int, room: table, fronts: bool, now: int) -> bool
--- uses: base meta
function lane.take(level, n, room, fronts, now)
  local cursors = lane.open(level, n, fronts)
  if #cursors == 0 then return false end
  local others = #cursors == n
  local horizon = others and cursors[n].time or math.huge
  local share, bodies = math.ceil(room.want / #cursors), {}
  -- One more than the share, so that the end of a list is known without another command.
  for i = 1, #cursors do lane.read(cursors[i], share + 1) end
  lane.fetch(cursors, bodies, share, room.bytes)
  -- `again`: tenants that were served and have a next turn, in its order. `first` and `back`: the next positions in
  -- `cursors` and `again`. From `horizon` on, a tenant that was not read may be next.
  local again, first, back, served = {}, 1, 1, nil
  while room.want > 0 and not room.full do
    local cursor, returned = cursors[first], again[back]
    if cursor and not (returned and returned.time < cursor.time) then
      first = first + 1
    elseif returned and returned.time < horizon then
      cursor, back = returned, back + 1
    else
      break
    end
    local entry, body = lane.next(cursor, bodies, room)
    if entry then
      local expires = record.expires(body)
      if expires > 0 and expires <= now then
        room.expired[#room.expired + 1] = { record.entry_id(entry), body }
      else
        room.picked[#room.picked + 1] = { record.entry_id(entry), body }
        room.want = room.want - 1
        served = cursor.time
        cursor.time = cursor.time + cursor.cost
      end
      local at = #again + 1
      while at > back and again[at - 1].time > cursor.time do
        again[at] = again[at - 1]
        at = at - 1
      end
      again[at] = cursor
    end
  end
  lane.close(level, cursors, served)
  return others
end

-- Removes the taken entries from the lists. Gives each tenant its next turn, or removes a tenant without entries.
--- (level: int, cursors: table, served: int | nil)
--- uses: base meta
function lane.close(level, cursors, served)
  local turns = base .. "turns:" .. level
  local again, gone, from_fronts = {}, {}, 0
  for i = 1, #cursors do
    local cursor = cursors[i]
    local known, taken = #cursor.entries, cursor.taken
    if taken > 0 or known == 0 then
      local from_front = cursor.front and math.min(taken, cursor.read_front) or 0
      if from_front > 0 then redis.call("LPOP", cursor.front, from_front) end
      if taken > from_front then redis.call("LPOP", cursor.lane, taken - from_front) end
      from_fronts = from_fronts + from_front
      local left = known > taken
        or (not cursor.ended and redis.call("EXISTS", cursor.lane, cursor.front or cursor.lane) > 0)
      if left then
        again[#again + 1] = cursor.time
        again[#again + 1] = cursor.tenant
      else
        gone[#gone + 1] = cursor.tenant
      end
    end
  end
  if #again > 0 then
    batch.leave_listpack(turns, #again)
    redis.call("ZADD", turns, unpack(again))
  end
  if #gone > 0 then redis.call("ZREM", turns, unpack(gone)) end
  if from_fronts > 0 then redis.call("HINCRBY", meta, "front", -from_fronts) end
  if #gone > 0 and redis.call("EXISTS", turns) == 0 then
    redis.call("HDEL", meta, "v" .. level)
  elseif served then
    -- The time always advances, even if the tenants served had equal times. So a tenant that returns now is placed
    -- behind those that returned before it.
    local last = tonumber(redis.call("HGET", meta, "v" .. level)) or 0
    served = math.max(served, last + math.max(1, last / 2 ^ 50))
    redis.call("HSET", meta, "v" .. level, math.floor(served))
  end
end
