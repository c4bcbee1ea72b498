-- Order and fairness: which job is next.
--
-- A job's *level* is its priority. The tenants of a level are served in rotation: each service gives a worker one job.
--
--   rotation:<level>         ZSET  tenant -> virtual time at which it is served next; of the tenants that have entries
--                                  at this level, in any of the three lists below
--   heads:<level>            HASH  tenant -> the first entry of its lane
--   lane:<level>:<tenant>    LIST  the entries behind it, in order of arrival
--   front:<level>:<tenant>   LIST  entries that are claimed before those of the lane: jobs that came back, and due jobs
--                                  if `due_first` is set. Only RPUSH: LPUSH would reverse their order.
--   weights                  HASH  tenant -> weight, where it is not 1
--   row                      (row.lua)  entries in all front lists; for each level its entries and the time last served
--
-- A tenant with a single job has no list, and one command reads the first entries of a hundred tenants. An entry in
-- `heads` is marked if the lane behind it may have more.
--
-- This is start-time fair queueing: the tenant with the lowest virtual time is served next, and each service advances
-- its time by 1/weight. A tenant that arrives or returns starts one service after the time last served, minus a small
-- head start of 2^-16 of a service. Without the head start it would tie with a tenant that is to be served a second
-- time. The order of their names would decide the tie, and the newcomer could wait for two jobs of that tenant. A
-- tenant that started at the time last served, or at zero, could gain a larger share by leaving and returning. The head
-- start is too small for that.
--
-- Virtual times are whole numbers, 2^36 for each service, because the server reads and writes an integer score several
-- times faster than a fraction such as 1.99998.

_service = { COST = 68719476736, HEAD_START = 1048576 }

_read = { ENTRIES = 32 } -- the most entries of a tenant that are read ahead

-- By how much one service advances the virtual time of a tenant with this weight.
--- (weight: str | false) -> int
function lane.cost(weight)
  return weight and math.floor(_service.COST / weight) or _service.COST
end

-- Adds tenants that arrive or return to the rotation, unless their other list at this level already keeps them in it.
-- `r.weights`: the key of the weights, if the lanes have another base (limits.lua).
--- (r: table, level: int, tenants: table)
--- uses: base
function lane.add_tenants(r, level, tenants)
  local last, arrivals = row.last_served(r, level), {}
  local weights = r[_row.WEIGHTED] % 2 == 1 and batch.read(r.weights or base .. "weights", tenants) or {}
  for i = 1, #tenants do
    arrivals[2 * i - 1], arrivals[2 * i] = last + lane.cost(weights[i]) - _service.HEAD_START, tenants[i]
  end
  if r[_row.WEIGHTED] >= _charge.BY_TIME then charging.delay_arrivals(level, arrivals) end
  redis.call("ZADD", base .. "rotation:" .. level, "NX", unpack(arrivals))
end

-- Collects an entry for the lane of a tenant, or for its front list, so that a batch of jobs costs few commands.
-- Returns the tenant's collected entries, to which the caller may append others. `lists` maps the number of a list,
-- which is the level or, for a front list, the level plus 10, to tenants and their entries.
--- (lists: table, is_front: bool, level: int, tenant: str, entry: str) -> table
function lane.collect(lists, is_front, level, tenant, entry)
  local number = is_front and level + 10 or level
  local list = lists[number]
  if not list then
    list = { tenants = {}, entries = {} }
    lists[number] = list
  end
  local entries = list.entries[tenant]
  if entries then
    entries[#entries + 1] = entry
    return entries
  end
  entries = { entry }
  list.entries[tenant] = entries
  list.tenants[#list.tenants + 1] = tenant
  return entries
end

-- Adds the collected entries to their lists. A tenant without entries at that level joins the rotation.
--- (r: table, lists: table)
--- uses: base
function lane.push(r, lists)
  for number, list in pairs(lists) do
    if number < 10 then lane.push_lanes(r, number, list) else lane.push_fronts(r, number - 10, list) end
  end
end

--- (r: table, level: int, list: table)
--- uses: base
function lane.push_lanes(r, level, list)
  local heads, tenants, arrived, changed, n = base .. "heads:" .. level, list.tenants, {}, {}, 0
  if #tenants == 1 and not row.find_level(r, level) and #list.entries[tenants[1]] == 1
    and redis.call("HSETNX", heads, tenants[1], list.entries[tenants[1]][1]) == 1 then
    lane.add_tenants(r, level, tenants)
    return row.count_entries(r, level, 1)
  end
  local found = batch.read(heads, tenants)
  for i = 1, #tenants do
    local tenant, head, entries = tenants[i], found[i], list.entries[tenants[i]]
    n = n + #entries
    if not head then
      head = table.remove(entries, 1)
      arrived[#arrived + 1] = tenant
      changed[#changed + 1], changed[#changed + 2] = tenant, #entries > 0 and lane.marked(head) or head
    elseif entry.class(head) < _size_class.MORE then
      changed[#changed + 1], changed[#changed + 2] = tenant, lane.marked(head)
    end
    if #entries > 0 then batch.write("RPUSH", base .. "lane:" .. level .. ":" .. tenant, entries) end
  end
  batch.add("HSET", heads, changed)
  if #arrived > 0 then lane.add_tenants(r, level, arrived) end
  row.count_entries(r, level, n)
end

--- (r: table, level: int, list: table)
--- uses: base
--- seldom
function lane.push_fronts(r, level, list)
  local n = 0
  for i = 1, #list.tenants do
    local tenant = list.tenants[i]
    n = n + #list.entries[tenant]
    batch.write("RPUSH", base .. "front:" .. level .. ":" .. tenant, list.entries[tenant])
  end
  lane.add_tenants(r, level, list.tenants)
  r[_row.FRONT] = r[_row.FRONT] + n
  row.count_entries(r, level, n)
end

-- The entry with the mark of a first entry that others follow.
--- (head: str) -> str
--- seldom
function lane.marked(head)
  local class = entry.class(head)
  if class >= _size_class.MORE then return head end
  return entry.with(head, { class = class + _size_class.MORE })
end

-- The common beginning of the names of a level's lanes. To append a number to a text costs as much as a short command,
-- so a claim does it once.
--- (level: int) -> str
--- uses: base
--- inline
function lane.names(level)
  return base .. "lane:" .. level .. ":"
end

-- A cursor into the entries of one tenant. `head`: its first entry, or false.
--- (r: table, level: int, tenant: str, time: str | int, cost: int, head: str | false) -> table
--- uses: base
function lane.cursor(r, level, tenant, time, cost, head)
  -- At most eight fields: a ninth would double the table. `head` and `more`: what the lane holds beyond `entries`.
  -- `records`: id and record of each entry for which they were read, in the order of `entries`. Both have room for what
  -- one service of the tenant needs, so that they need not grow.
  local cursor = {
    tenant = tenant, time = tonumber(time), cost = cost, entries = { nil, nil }, records = { nil, nil }, taken = 0,
    head = head, more = head and entry.class(head) >= _size_class.MORE,
  }
  if r[_row.FRONT] > 0 then cursor.front, cursor.in_front = base .. "front:" .. level .. ":" .. tenant, 0 end
  return cursor
end

-- Cursors into the entries of the `n` tenants that are served first: no other tenant can get one of the next `n`
-- services. `left` of the result is true if its only tenant has left the rotation already.
--- (r: table, level: int, n: int) -> table
--- uses: base
function lane.open(r, level, n)
  local at, names, cursors = row.find_level(r, level), {}, {}
  local found
  if at and r[_row.LEVELS][at + 1] == 1 and r[_row.WEIGHTED] == 0 and not r.weights then
    -- The level has one entry, so its tenant leaves the rotation with it, or `close` adds it again.
    found, cursors.left = redis.call("ZPOPMIN", base .. "rotation:" .. level), true
  else
    found = redis.call("ZRANGE", base .. "rotation:" .. level, 0, n - 1, "WITHSCORES")
  end
  for i = 1, #found / 2 do names[i] = found[2 * i - 1] end
  if #names == 0 then return cursors end
  local heads = redis.call("HMGET", base .. "heads:" .. level, unpack(names))
  local weights = r[_row.WEIGHTED] % 2 == 1 and redis.call("HMGET", r.weights or base .. "weights", unpack(names)) or {}
  for i = 1, #names do
    cursors[i] = lane.cursor(r, level, names[i], found[2 * i], lane.cost(weights[i]), heads[i])
  end
  return cursors
end

-- A cursor into the entries of one tenant.
--- (r: table, level: int, tenant: str) -> table
--- uses: base
function lane.open_tenant(r, level, tenant)
  local time = redis.call("ZSCORE", base .. "rotation:" .. level, tenant)
  return lane.cursor(r, level, tenant, time, _service.COST, redis.call("HGET", base .. "heads:" .. level, tenant))
end

-- Reads the next `n` entries of a tenant: those of its front list, then its first entry, then those of its lane. Only
-- the entries of the lane are removed, and `lane.close` puts back those that were not taken. `lanes`: see `lane.names`.
--- (cursor: table, lanes: str, n: int)
function lane.read(cursor, lanes, n)
  local entries, have = cursor.entries, #cursor.entries
  if cursor.front then
    local got = redis.call("LRANGE", cursor.front, cursor.in_front, cursor.in_front + n - 1)
    for i = 1, #got do entries[have + i] = got[i] end
    have, cursor.in_front = have + #got, cursor.in_front + #got
    if #got == n then return end
    n, cursor.front = n - #got, nil
  end
  if cursor.head then
    have, n = have + 1, n - 1
    entries[have], cursor.head = cursor.head, nil
  end
  if not cursor.more or n == 0 then return end
  if n == 1 then
    local got = redis.call("LPOP", lanes .. cursor.tenant)
    cursor.more = got and true
    entries[have + 1] = got or nil
    return
  end
  local got = redis.call("LPOP", lanes .. cursor.tenant, n) or {}
  for i = 1, #got do entries[have + i] = got[i] end
  cursor.more = #got == n
end

-- Reads with one command the records of the next `share` entries of each of these tenants, as many as fit into `room`.
-- The first record of a claim always fits, whatever its size.
--- (cursors: table, share: int, room: table)
--- uses: base
function lane.fetch(cursors, share, room)
  local ids, n, bytes, firsts = {}, 0, room.bytes, {}
  for i = 1, #cursors do
    local cursor = cursors[i]
    local entries, records, first = cursor.entries, cursor.records, #cursor.records / 2 + 1
    firsts[i] = first
    for at = first, cursor.taken + share do
      local found = entries[at]
      if not found then break end
      bytes = bytes - record.entry_bytes(found)
      if bytes < 0 and (n > 0 or room.bytes < room.max_bytes) then break end
      n = n + 1
      local id = entry.id(found)
      ids[n], records[2 * at - 1] = id, id
    end
  end
  if n == 0 then return end
  local bodies = redis.call("HMGET", base .. "jobs", unpack(ids))
  n = 0
  for i = 1, #cursors do
    local records, at = cursors[i].records, firsts[i]
    while records[2 * at - 1] do
      n = n + 1
      records[2 * at] = bodies[n]
      at = at + 1
    end
  end
end

-- Takes the tenant's entries up to the first one that represents a ready job. Returns the id of that job, its record,
-- and what `record.is_ready` returns of it. Entries of cancelled and purged jobs are skipped, but each uses up one of
-- the `room.look` entries that a claim may read. Sets `room.full` to end the claim.
--- (cursor: table, lanes: str, room: table) -> str | nil, str, int, int, int, int
--- uses: base
function lane.next(cursor, lanes, room)
  while room.look > 0 do
    local at, records = cursor.taken + 1, cursor.records
    local next_, id = cursor.entries[at], records[2 * at - 1]
    if not id then
      local share = math.min(room.want, _read.ENTRIES)
      if not next_ then
        lane.read(cursor, lanes, share + 1)
        next_ = cursor.entries[at]
        if not next_ then return nil end
      end
      lane.fetch({ cursor }, share, room)
      id = records[2 * at - 1]
      if not id then break end
    end
    local body = records[2 * at]
    local bytes = body and #body or 0
    if bytes > room.bytes and room.bytes < room.max_bytes then break end
    cursor.taken, room.look, room.bytes = at, room.look - 1, room.bytes - bytes
    local is_ready, expires, since, flags, ttl = record.is_ready(body, entry.generation(next_))
    if is_ready then return id, body, expires, since, flags, ttl end
  end
  room.full = true
end

-- Returns whether the job belongs to a paused scope (pauses.lua) or to a closed key (holds.lua). Collects such a job,
-- and ends the claim once it has met many of them. The job counts as a service of its tenant, so that other tenants
-- need not wait until all of them are parked.
--- (room: table, tenant: str, id: str, body: str) -> bool
--- uses: base
--- seldom
function lane.met_paused(room, tenant, id, body)
  if not pauses.scope(room.pausing, tenant, body, false) and not holds.meets(room.pausing, body) then return false end
  local met = room.met
  met[#met + 1], met[#met + 2] = id, body
  slice.spend(room.s, record.has(record.flags(body), flag.LIMITED) and 8 or 3)
  if #met >= 2 * _pause.MET then room.full = true end
  return true
end

-- The virtual time at which another tenant is served next. That is `unread`, the next cursor that was not served yet;
-- or `returned`, the next one that was; or, from `horizon` on, a tenant that was not read.
--- (unread: table | nil, returned: table | nil, horizon: int) -> int
function lane.earliest(unread, returned, horizon)
  if unread and unread.time < horizon then horizon = unread.time end
  if returned and returned.time < horizon then horizon = returned.time end
  return horizon
end

-- Serves the first `n` tenants of this level until `room` is used up: `want` jobs, `look` entries, `bytes` of
-- records. The order is decided in memory and written once. Returns whether tenants after the first `n` may be
-- next, which happens if some of the `n` had only entries of cancelled or expired jobs.
--- (r: table, level: int, n: int, room: table, now: int) -> bool
--- uses: base
function lane.take(r, level, n, room, now)
  local cursors = lane.open(r, level, n)
  if #cursors == 0 then return false end
  if r[_row.WEIGHTED] >= _charge.BY_TIME then room.owner = string.match(room.owner, "^%S+ %d+") .. " " .. level end
  local lanes, others = lane.names(level), #cursors == n
  local horizon = others and cursors[n].time or math.huge
  local share, s, effort = others and 1 or math.ceil(room.want / #cursors), room.s, room.effort
  -- One more than the share, so that the next first entry is known without another command.
  for i = 1, #cursors do lane.read(cursors[i], lanes, share + 1) end
  lane.fetch(cursors, share, room)
  -- `again`: tenants that were served and will be again, in that order. `first` and `back`: the next positions in
  -- `cursors` and `again`. From `horizon` on, a tenant that was not read may be next.
  local again, first, back, last, served = {}, 1, 1, 0, nil
  while room.want > 0 and not room.full do
    local cursor, returned = cursors[first], again[back]
    if cursor and not (returned and returned.time < cursor.time) then
      first = first + 1
      slice.spend(s, 1) -- each tenant costs several commands
    elseif returned and returned.time < horizon then
      cursor, back = returned, back + 1
    else
      break
    end
    local other = lane.earliest(cursors[first], again[back], horizon)
    local id, body, expires, since, flags, ttl
    repeat
      id, body, expires, since, flags, ttl = lane.next(cursor, lanes, room)
      if id and expires > 0 and expires <= now then
        room.expired[#room.expired + 1] = { id, body }
        slice.spend(s, 8)
      elseif id then
        if not room.pausing or not lane.met_paused(room, cursor.tenant, id, body) then
          lease.collect(room, id, body, cursor.tenant, expires, since, flags, ttl)
        end
        served = cursor.time
        cursor.time = cursor.time + cursor.cost
      end
      if s.effort >= effort then room.full = true end
    until not id or room.want == 0 or room.full or cursor.time >= other
    if id then
      last = last + 1
      local at = last
      while at > back and again[at - 1].time > cursor.time do
        again[at] = again[at - 1]
        at = at - 1
      end
      again[at] = cursor
    end
  end
  lane.close(r, level, cursors, served)
  return others
end

-- Makes the first entry that was not taken the first of its tenant, and puts back the entries of the lane behind it.
-- Returns it, or nil if the lane is empty.
--- (cursor: table, lanes: str) -> str | nil
function lane.next_head(cursor, lanes)
  local entries, at = cursor.entries, math.max(cursor.taken, cursor.in_front or 0) + 1
  local head, more = entries[at] or cursor.head, #entries > at
  if not head and cursor.more then head = redis.call("LPOP", lanes .. cursor.tenant) end
  if more then
    local back = {}
    for i = #entries, at + 1, -1 do back[#back + 1] = entries[i] end
    redis.call("LPUSH", lanes .. cursor.tenant, unpack(back))
  end
  return head and (more or cursor.more) and lane.marked(head) or head
end

-- Removes the taken entries from the lists. Puts each tenant where it is served next, or removes a tenant without
-- entries.
--- (r: table, level: int, cursors: table, served: int | nil)
--- uses: base
function lane.close(r, level, cursors, served)
  local rotation, heads, lanes = base .. "rotation:" .. level, base .. "heads:" .. level, lane.names(level)
  local again, gone, new_heads, headless, taken, from_fronts, kept, back = {}, {}, {}, {}, 0, 0, 0, 0
  for i = 1, #cursors do
    local cursor = cursors[i]
    local tenant, from_front, more_in_front = cursor.tenant, 0, false
    if cursor.in_front then
      local front = base .. "front:" .. level .. ":" .. tenant
      from_front = math.min(cursor.taken, cursor.in_front)
      if from_front > 0 then redis.call("LPOP", front, from_front) end
      -- A front list that was not read to its end may have more.
      more_in_front = cursor.in_front > from_front or cursor.front and redis.call("EXISTS", front) == 1
    end
    local head = lane.next_head(cursor, lanes)
    if head then
      kept = kept + 2
      new_heads[kept - 1], new_heads[kept] = tenant, head
    elseif cursor.taken > from_front then
      headless[#headless + 1] = tenant
    end
    if head or more_in_front then
      back = back + 2
      again[back - 1], again[back] = cursor.time, tenant
    else
      gone[#gone + 1] = tenant
    end
    taken, from_fronts = taken + cursor.taken, from_fronts + from_front
  end
  batch.add("HSET", heads, new_heads)
  if #headless > 0 then redis.call("HDEL", heads, unpack(headless)) end
  batch.add("ZADD", rotation, again)
  if #gone > 0 then
    if not cursors.left then redis.call("ZREM", rotation, unpack(gone)) end
    if r[_row.BATCH] then linger.forget(level, gone) end
  end
  r[_row.FRONT] = r[_row.FRONT] - from_fronts
  if served then
    -- The time always advances, even if the tenants served had equal times. So a tenant that returns now is placed
    -- behind those that returned before it.
    local at = row.find_level(r, level)
    local last = r[_row.LEVELS][at + 2]
    r[_row.LEVELS][at + 2] = math.floor(math.max(served, last + math.max(1, last / 2 ^ 50)))
  end
  row.count_entries(r, level, -taken)
end
