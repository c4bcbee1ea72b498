-- Limits: how many jobs with the same key run at a time (concurrency), or start within an interval (rate).
--
--             no place is free                  a place is free
--   (enters) ──────────────────▶ parked ───────────────────────────▶ ready ── claim ──▶ running
--      │                           ▲                                 │ ▲                  │
--      │                           └─── a more urgent one of its ────┘ │                  │
--      └──────────────────────────────  key takes its place  ──────────┴── (see below) ───┘
--
-- A job has a *place* in each of its limits from its admission on, so a claim meets no job that may not run. It passes
-- its limits in the order of its record, concurrency by name and then rates by name. While it is parked at one limit,
-- it keeps its places in the limits before. Because all jobs have the same order, no two jobs wait for each other.
--
--   limits      HASH  name -> its numbers. A name begins with c: or r:, for concurrency and rate
--   places      HASH  name=key -> places in use (of a rate, units), jobs parked, entries in the front lists of its
--                     lanes, levels (as in the row)
--   parked:<name=key>:rotation:, heads:, lane:, front:   the lanes of the jobs parked there, as in lane.lua
--   parking     ZSET  name=key of each that has such lanes; all scores are 0
--   admitted    ZSET  jobs in a lane that have a place and were never claimed (admitted.lua)
--   admissions  ZSET  name=key, =name (all of its keys), !name=key (`admission.park_over`) -> when to look, server ms
--   rate:<name=key>   STRING  a bucket (core/bucket.lua) from which starts take units; TTL until it is full
--   row         (row.lua)  LIMITED is absent until the queue has its first limit or pause; until then nothing here is
--                          called
--
-- In a rate only jobs that were admitted and have not started use places; the claim takes units from the bucket. A job
-- uses as many as it costs. The first of the parked jobs waits until that many units are free, and no other one
-- overtakes it. If it costs more than the rate can have at a time, it waits for a full bucket and still takes its whole
-- cost, so that it does not block its key for ever. What happens to the places of a job when its run ends:
--
--                             concurrency                                      rate
--   taken back, handed back   kept                                             passed again, at the front
--   retried, postponed        kept up to the last limit of 1 (strict order)    passed again
--   done, dead, cancelled     given up                                         given up if it has not started
--
-- `s.places` holds what a script has read, and `limits.write` stores it. `s.dirty` lists the keys in which a place may
-- be free; `admission.admit` serves each of them once all transitions of a script are done.

_park = {
  LOOKS = 200, KEYS = 20, MICROS = 1000, REMOVAL = 5, PASSED = 32, PASSED_MASK = 96, NOT_PASSED = 159,
  RATE = 114, SCOPE = 112, -- the first letters of their names
  ONE = "\0\0\0\1", -- a cost of 1, as `_taken` has it
  BEFORE_COST = 20, -- the bytes of a limit in a record before its cost and its key, which are as in `_taken`
}

-- How many limits the job has passed.
--- (flags: int) -> int
--- inline
function limits.passed(flags)
  return bit.band(flags, _park.PASSED_MASK) / _park.PASSED
end

--- (flags: int, passed: int) -> int
--- inline
function limits.with_passed(flags, passed)
  return bit.band(flags, _park.NOT_PASSED) + passed * _park.PASSED
end

-- Prepares `s` for limits.
--- (s: table)
function limits.open(s)
  if s.places then return end
  s.places, s.place_list, s.dirty, s.definitions, s.admitted, s.started = {}, {}, {}, {}, {}, {}
  local r = s.row
  if not r[_row.LIMITED] then r[_row.PARKED], r[_row.NEXT_ADMISSION], r[_row.LIMITED] = 0, 0, 1 end
end

--- (key: str) -> bool
--- inline
function limits.is_rate(key)
  return string.byte(key) == _park.RATE
end

-- The places in use that a value of `places` says, if the key has no parked jobs; else false. Many keys have the same
-- value, so each is unpacked once.
--- (s: table, packed: str) -> int | false
function limits.plain_used(s, packed)
  s.plain_used = s.plain_used or {}
  local known = s.plain_used[packed]
  if known == nil then
    local used, parked, front, levels = cmsgpack.unpack(packed)
    known = parked == 0 and front == 0 and #levels == 0 and used
    s.plain_used[packed] = known
  end
  return known
end

-- The value in `places` of a key without parked jobs.
--- (s: table, used: int) -> str
--- seldom
function limits.plain(s, used)
  s.plain = s.plain or {}
  local known = s.plain[used]
  if not known then
    known = cmsgpack.pack(used, 0, 0, {})
    s.plain[used] = known
  end
  return known
end

-- The places of one key. `packed`: its value in `places`. A ninth field would double the size of the table, so it
-- has no field for a value that is false.
--- (s: table, key: str, packed: str | false) -> table
function limits.add(s, key, packed)
  local used, parked, front, levels = 0, 0, 0, nil
  if packed then
    used = limits.plain_used(s, packed)
    if not used then used, parked, front, levels = cmsgpack.unpack(packed) end
  end
  levels = levels or {}
  local place = {
    key = key, used = used, parked = parked, is_stored = packed, stored_used = used, stored_parked = parked,
    r = { [_row.FRONT] = front, [_row.WEIGHTED] = s.row[_row.WEIGHTED] % 2, [_row.LEVELS] = levels },
  }
  if #levels > 0 then place.had_lanes = true end
  local kind = string.byte(key)
  if kind == _park.RATE then
    place.is_rate = true
  elseif kind == _park.SCOPE then
    place.is_scope = true
  end
  s.places[key] = place
  s.place_list[#s.place_list + 1] = place
  return place
end

-- The name of the limit of a key.
--- (key: str) -> str
--- inline
function limits.name_of(key)
  return string.match(key, "^[^=]*")
end

-- The name of its limit.
--- (place: table) -> str
function limits.name(place)
  local name = place.name
  if not name then
    name = limits.name_of(place.key)
    place.name = name
  end
  return name
end

--- (s: table, key: str) -> table
--- uses: base
function limits.place(s, key)
  limits.open(s)
  return s.places[key] or limits.add(s, key, redis.call("HGET", base .. "places", key))
end

-- Reads the places of many keys with one command.
--- (s: table, keys: table)
--- uses: base
function limits.read_places(s, keys)
  limits.open(s)
  local missing, seen = {}, {}
  for i = 1, #keys do
    if not s.places[keys[i]] and not seen[keys[i]] then
      seen[keys[i]] = true
      missing[#missing + 1] = keys[i]
    end
  end
  if #missing == 0 then return end
  local found = batch.read(base .. "places", missing)
  for i = 1, #missing do limits.add(s, missing[i], found[i]) end
end

-- Has `admission.admit` look for a free place.
--- (s: table, place: table)
function limits.mark(s, place)
  if not place.is_dirty then
    place.is_dirty = true
    s.dirty[#s.dirty + 1] = place
  end
end

--- (s: table, name: str, definition: table)
--- uses: base
function limits.define(s, name, definition)
  s.definitions[name] = definition
  redis.call("HSET", base .. "limits", name, cmsgpack.pack(definition.most, definition.interval, definition.burst,
    definition.release, definition.cursor))
end

-- The stored numbers of a limit, or nil.
--- (s: table, name: str) -> table | nil
--- uses: base
function limits.definition(s, name)
  local found = s.definitions[name]
  if found then return found end
  local packed = redis.call("HGET", base .. "limits", name)
  if not packed then return nil end
  local most, interval, burst, release, cursor = cmsgpack.unpack(packed)
  found = { most = most, interval = interval, burst = burst, release = release, cursor = cursor }
  s.definitions[name] = found
  return found
end

-- Has the next turns look at all keys of a limit whose numbers changed.
--- (s: table, name: str)
--- uses: base
function limits.look_at_all(s, name)
  limits.look_again(s, "=" .. name, s.now)
end

-- Stores the numbers of a limit that a job brings, if they are from a newer release than the stored ones. Returns the
-- numbers that count now.
--- (s: table, name: str, one: table) -> table
--- uses: base
function limits.learn(s, name, one)
  local known, release = limits.definition(s, name), one[_limit.RELEASE]
  if known and known.release >= release then return known end
  limits.define(s, name, {
    most = one[_limit.MOST], interval = one[_limit.INTERVAL], burst = one[_limit.BURST], release = release, cursor = "",
  })
  if known then limits.look_at_all(s, name) end
  for _, place in ipairs(s.place_list or {}) do if limits.name(place) == name then place.left = nil end end
  return s.definitions[name]
end

-- Has a turn look for a free place once `at` has passed. `key`: a name=key; or =name, for all keys of that limit.
--- (s: table, key: str, at: int)
--- uses: base
function limits.look_again(s, key, at)
  redis.call("ZADD", base .. "admissions", string.format("%d", at), key)
  row.not_after(s.row, _row.NEXT_ADMISSION, at)
  s.alarm = math.min(s.alarm or at, at)
end

-- How many more places of this key may be taken.
--- (s: table, place: table) -> int
--- uses: base
function limits.room(s, place)
  local definition = limits.definition(s, limits.name(place))
  if not place.is_rate then return definition.most - place.used end
  if holds.any(s) and holds.until_(s, place.key) > 0 then return -1 end
  if not place.left then
    local full = place.full or bucket.read(base .. "rate:" .. place.key)
    place.left, place.full = bucket.left(full, s.now * _park.MICROS, definition.interval, definition.burst), nil
  end
  return place.left - place.used
end

-- How many places must be free before a job that takes `cost` of them is admitted. A job that costs nothing waits like
-- one that costs 1.
--- (s: table, place: table, cost: int) -> int
--- uses: base
function limits.needed(s, place, cost)
  if cost <= 1 then return 1 end
  return math.min(cost, limits.definition(s, limits.name(place)).burst)
end

-- When a rate has room for `needed` more units, ms; nil if it has none before admitted jobs have started. For a closed
-- key, that is the end of the hold.
--- (s: table, place: table, needed: int) -> int | nil
--- uses: base
function limits.room_at(s, place, needed)
  local definition, closed = limits.definition(s, limits.name(place)), place.is_rate and holds.until_(s, place.key) or 0
  if closed > 0 then return closed end
  if not place.is_rate or place.used + needed > definition.burst then return nil end
  local at = bucket.allowed_at(base .. "rate:" .. place.key, place.used + needed, s.now * _park.MICROS,
    definition.interval, definition.burst)
  return math.max(s.now + 1, math.ceil(at / _park.MICROS))
end

-- Takes places in each limit after the first `passed` ones, up to a limit with too few free places or with parked jobs.
-- Returns how many limits the job has passed then, and the key at which it has to be parked, or nil.
--- (s: table, list: table, passed: int) -> int, table | nil
--- uses: base
--- seldom
function limits.pass(s, list, passed)
  if not s.places then limits.open(s) end -- a job that has kept all of its places reads none
  for i = passed + 1, #list do
    local one = list[i]
    local place = s.places[one[_limit.KEY]] or limits.place(s, one[_limit.KEY])
    local name, cost = place.name or limits.name(place), one[_limit.COST]
    local definition = s.definitions[name]
    if not definition or definition.release < one[_limit.RELEASE] then definition = limits.learn(s, name, one) end
    local room = place.parked > 0 and 0 or place.is_rate and limits.room(s, place) or definition.most - place.used
    if room < 1 or room < cost and room < limits.needed(s, place, cost) then return i - 1, place end
    place.used = place.used + cost
  end
  return #list, nil
end

-- Collects an entry for the parked lanes of a key.
--- (s: table, place: table, is_front: bool, level: int, tenant: str, entry: str)
--- seldom
function limits.park(s, place, is_front, level, tenant, entry)
  if not place.is_scope then place.parked = place.parked + 1 end
  place.lists = place.lists or {}
  lane.collect(place.lists, is_front, level, tenant, entry)
  limits.mark(s, place)
end

-- Parks a ready job again at its limit of this position, ahead of the jobs that are parked there. Returns its state and
-- its flags.
--- (s: table, list: table, at: int, entry: str, flags: int, priority: int, tenant: str, since: int) -> str, int
--- uses: base
--- seldom
function limits.park_again(s, list, at, entry, flags, priority, tenant, since)
  limits.give_up(s, list, at - 1, #list, false)
  counters.move(s, tenant, _count.READY, _count.PARKED, 1)
  counters.add_parked_since(s, since, 1)
  local place = limits.place(s, list[at][_limit.KEY])
  limits.park(s, place, true, priority, tenant, entry)
  limits.push(place)
  return state.PARKED, limits.with_passed(flags, at - 1)
end

-- Adds the collected entries to the parked lanes of a key, which are lanes as in lane.lua under another base.
--- (place: table)
--- uses: base
--- seldom
function limits.push(place)
  if not place.lists then return end
  local queue = base
  place.r.weights, base = base .. "weights", base .. "parked:" .. place.key .. ":"
  lane.push(place.r, place.lists)
  base = queue
  place.lists, place.lanes_changed, place.first = false, true, nil
end

-- A cursor whose only entry is the first one: that of the tenant that is served next, at the most urgent level. Returns
-- nil if no entry is left.
--- (place: table) -> table | nil
--- uses: base
function limits.first(place)
  if place.first then return place.first end
  local level, queue = place.r[_row.LEVELS][1], base
  place.r.weights, base = base .. "weights", base .. "parked:" .. place.key .. ":"
  place.first = lane.open(place.r, level, 1)[1]
  if place.first then lane.read(place.first, lane.names(level), 1) end
  base = queue
  return place.first
end

-- Takes the first entry. Returns nil if no entry is left.
--- (place: table) -> str | nil
--- uses: base
function limits.pop(place)
  local cursor, level, queue = limits.first(place), place.r[_row.LEVELS][1], base
  if cursor then
    base = base .. "parked:" .. place.key .. ":"
    cursor.taken, cursor.time = #cursor.entries, cursor.time + cursor.cost
    lane.close(place.r, level, { cursor }, cursor.time - cursor.cost)
    base = queue
  else
    place.r[_row.LEVELS] = {}
  end
  place.lanes_changed, place.first = true, nil
  return cursor and cursor.entries[1]
end

-- The record of the job of an entry from the parked lanes, if it is still parked there; else nil.
--- (parked: str) -> str | nil
--- uses: base
function limits.parked_job(parked)
  local body = record.get(entry.id(parked))
  if body and record.state(body) == state.PARKED and record.generation(body) == entry.generation(parked) then
    return body
  end
end

-- How many places the first parked job takes at its admission.
--- (place: table, body: str) -> int
function limits.cost(place, body)
  return place.is_rate and record.limits(body)[limits.passed(record.flags(body)) + 1][_limit.COST] or 1
end

-- How many places must be free before the first parked job is admitted; 1 if it was cancelled or has expired.
--- (s: table, place: table) -> int
--- uses: base
function limits.needed_first(s, place)
  if not place.is_rate or #place.r[_row.LEVELS] == 0 then return 1 end
  local cursor = limits.first(place)
  local body = cursor and cursor.entries[1] and limits.parked_job(cursor.entries[1])
  if not body or record.expires(body) > 0 and record.expires(body) <= s.now then return 1 end
  return limits.needed(s, place, limits.cost(place, body))
end

-- Takes parked entries of one tenant, or of `all`, as many as fit into the slice `budget`. What their removal will cost
-- is spent here, because all of them have to be removed.
--- (s: table, place: table, tenant: str, all: bool, budget: table) -> table
--- uses: base
function limits.take_tenant(s, place, tenant, all, budget)
  local taken, queue, levels = {}, base, {}
  for i = 1, #place.r[_row.LEVELS], 3 do levels[#levels + 1] = place.r[_row.LEVELS][i] end
  base = base .. "parked:" .. place.key .. ":"
  for i = 1, #levels do
    local rotation, one = base .. "rotation:" .. levels[i], tenant
    while budget.left > 0 do
      if all then one = redis.call("ZRANGE", rotation, 0, 0)[1] end
      if not one or not redis.call("ZSCORE", rotation, one) then break end
      local cursor = lane.open_tenant(place.r, levels[i], one)
      lane.read(cursor, lane.names(levels[i]), budget.left)
      for j = 1, #cursor.entries do
        if not slice.take(budget, record.entry_bytes(cursor.entries[j])) then break end
        cursor.taken, taken[#taken + 1] = j, cursor.entries[j]
        slice.spend(s, _park.REMOVAL)
      end
      lane.close(place.r, levels[i], { cursor }, nil)
    end
  end
  base, place.lanes_changed = queue, true
  return taken
end

-- Has `admission.admit` look at the first `kept` limits of a job that was just admitted. While the job was parked at a
-- later one, or delayed, it could not give these places to more urgent jobs.
--- (s: table, list: table, kept: int)
--- uses: base
function limits.mark_kept(s, list, kept)
  for i = 1, kept do
    local place = limits.place(s, list[i][_limit.KEY])
    if place.parked > 0 then limits.mark(s, place) end
  end
end

-- Gives up the places in the limits from `keep` + 1 to `passed`. A job that has started uses no place in a rate.
--- (s: table, list: table, keep: int, passed: int, started: bool)
--- uses: base
function limits.give_up(s, list, keep, passed, started)
  for i = keep + 1, passed do
    local place = limits.place(s, list[i][_limit.KEY])
    if not (started and place.is_rate) then
      place.used = math.max(0, place.used - list[i][_limit.COST])
      limits.mark(s, place)
    end
  end
end

-- Gives up the places of a job that is not running and leaves the queue.
--- (s: table, id: str, body: str, was: str, flags: int, priority: int)
--- uses: base
function limits.leave(s, id, body, was, flags, priority)
  local list, passed = record.limits(body), limits.passed(flags)
  slice.spend(s, #list)
  if was == state.PARKED and passed == #list then return end -- parked by a pause
  limits.give_up(s, list, 0, passed, false)
  if was == state.READY then
    admitted.forget(s, list, priority, body, id)
  elseif was == state.PARKED then
    local place = limits.place(s, list[passed + 1][_limit.KEY])
    place.parked = math.max(0, place.parked - 1)
    limits.mark(s, place)
  end
end

-- How many of its first limits a job keeps when it will run again. If it was `interrupted`, it keeps all limits of
-- concurrency. Otherwise it keeps those up to its last limit of 1, because the jobs of such a key keep their order.
--- (s: table, list: table, interrupted: bool) -> int
--- uses: base
function limits.kept(s, list, interrupted)
  limits.open(s)
  local keep = 0
  for i = 1, #list do
    if not limits.is_rate(list[i][_limit.KEY]) then
      local known = limits.definition(s, limits.name_of(list[i][_limit.KEY]))
      if interrupted or (known and known.most or list[i][_limit.MOST]) == 1 then keep = i end
    end
  end
  return keep
end

-- Writes the places that a script has changed.
--- (s: table)
--- uses: base
function limits.write(s)
  if not s.places then return end
  admitted.write(s)
  local set, gone, lanes, no_lanes = {}, {}, {}, {}
  for i = 1, #s.place_list do
    local place = s.place_list[i]
    if place.lists then limits.push(place) end
    if place.used ~= place.stored_used or place.parked ~= place.stored_parked or place.lanes_changed then
      local levels = place.r[_row.LEVELS]
      if place.used > 0 or #levels > 0 then
        local used, parked, front = place.used, place.parked, place.r[_row.FRONT]
        local is_plain = parked == 0 and front == 0 and #levels == 0
        set[#set + 1], set[#set + 2] = place.key,
          is_plain and limits.plain(s, used) or cmsgpack.pack(used, parked, front, levels)
      elseif place.is_stored then
        gone[#gone + 1] = place.key
      end
      if #levels > 0 and not place.had_lanes then
        lanes[#lanes + 1], lanes[#lanes + 2] = 0, place.key
      elseif #levels == 0 and place.had_lanes then
        no_lanes[#no_lanes + 1] = place.key
      end
      place.is_stored, place.stored_used, place.stored_parked = place.used > 0 or #levels > 0, place.used, place.parked
      if place.lanes_changed then place.had_lanes, place.lanes_changed = #levels > 0, false end
    end
  end
  batch.add("HSET", base .. "places", set)
  batch.write("HDEL", base .. "places", gone)
  batch.write("ZADD", base .. "parking", lanes)
  batch.write("ZREM", base .. "parking", no_lanes)
  if #no_lanes > 0 and s.row[_row.NEXT_ADMISSION] > 0 then batch.write("ZREM", base .. "admissions", no_lanes) end
end
