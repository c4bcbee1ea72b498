-- The runs of limited jobs: what a claim takes from the limits (limits.lua), and what the end of a claim gives back.
--
-- The claim of a job names the keys of concurrency in which it has a place, so its end needs no record: their number in
-- 1 byte, then a `_taken` for each. A rate in which the job has booked units is there too (bookings.lua), and the end
-- ignores it.

_taken = layout { units = "I4", key = "Hc0" }

-- Call it when a claim takes these jobs. Counts their starts in their rates, and adds to each claim in `held` the keys
-- in which its end frees a place.
--- (s: table, room: table)
--- uses: base
--- seldom
function limited_runs.start(s, room)
  local starts, rates, spread = {}, {}, {}
  limits.open(s)
  local started, n = s.started, #s.started
  for _, i in ipairs(room.limited) do
    local body, id = room.reply[2 * i], room.reply[2 * i - 1]
    local at, last = record.section(body, power.LIMITS)
    local keys, packed = 0, nil
    local priority, generation = record.priority(body), record.generation_bytes(body)
    while at < last do
      local cost, size, letter = struct.unpack(">I4HB", body, at + _park.BEFORE_COST)
      local named = string.sub(body, at + _park.BEFORE_COST + 4, at + _park.BEFORE_COST + 5 + size)
      at, n = at + _park.BEFORE_COST + 6 + size, n + 1
      started[n] = named .. admitted.of_job(priority, generation, id)
      if letter ~= _park.RATE then
        local one = _park.ONE .. named
        keys, packed = keys + 1, packed and packed .. one or one
      else
        local key = string.sub(named, 3)
        if not starts[key] then rates[#rates + 1] = key end
        starts[key] = (starts[key] or 0) + cost
        if record.powers(body) >= power.IN_SHARDS then
          spread[#spread + 1], spread[#spread + 2] = key, record.tenant(body)
        end
      end
    end
    room.held[2 * i] = room.held[2 * i] .. (keys == 1 and "\1" or string.char(keys)) .. (packed or "")
  end
  if #rates == 0 then return end
  limited_runs.end_use(s, rates, starts)
  local full = limited_runs.take(s, rates, starts)
  for i = 1, #spread, 2 do shards.keep(spread[i + 1], s.now, full[spread[i]]) end
end

-- Takes places in use from keys, as many of each as `counts` says: with one command to read and one to write, and
-- without a table for each key, unless it has parked jobs. Those of a rate become units of its bucket.
--- (s: table, keys: table, counts: table)
--- uses: base
--- seldom
function limited_runs.end_use(s, keys, counts)
  local missing, known = keys, s.places
  if known then
    missing = {}
    for i = 1, #keys do
      if not known[keys[i]] then missing[#missing + 1] = keys[i] end
    end
  end
  local found, set, gone, n = #missing > 0 and batch.read(base .. "places", missing) or {}, {}, {}, 0
  for i = 1, #missing do
    local key, packed = missing[i], found[i]
    local used = packed and limits.plain_used(s, packed)
    if used and used > counts[key] then
      n = n + 2
      set[n - 1], set[n] = key, limits.plain(s, used - counts[key])
    elseif used then
      gone[#gone + 1] = key
    elseif packed then
      limits.open(s)
      limits.add(s, key, packed)
    end
  end
  batch.write("HSET", base .. "places", set)
  batch.write("HDEL", base .. "places", gone)
  if not s.places then return end
  for i = 1, #keys do
    local place = s.places[keys[i]]
    if place then
      place.used, place.left = math.max(0, place.used - counts[keys[i]]), nil
      if place.lists or #place.r[_row.LEVELS] > 0 then limits.mark(s, place) end
    end
  end
end

-- Takes units from the buckets of these rates. Returns when all units of each are free again, ms.
--- (s: table, rates: table, units: table) -> table
--- uses: base
function limited_runs.take(s, rates, units)
  local full, buckets, now = {}, {}, s.now * _park.MICROS
  for i = 1, #rates do buckets[i] = base .. "rate:" .. rates[i] end
  local found = bucket.read_many(buckets)
  for i = 1, #rates do
    local key = rates[i]
    local interval = limits.definition(s, limits.name_of(key)).interval
    local at = bucket.take_from(buckets[i], found[i], units[key], now, interval, 0, "")
    full[key] = math.ceil(at / _park.MICROS)
  end
  return full
end

-- The position of the first byte behind the keys of limits in the keys of a claim.
--- (packed: str) -> int
function limited_runs.behind_keys(packed)
  local at = 2
  for _ = 1, string.byte(packed) do at = at + 6 + struct.unpack(">H", packed, at + 4) end
  return at
end

-- Notes in `freed` the places of a claim that ended: keys, and how many of each. `tenant`: that of the claim, behind
-- which it has its keys.
--- (freed: table, held: str, tenant: str)
--- seldom
function limited_runs.note_end(freed, held, tenant)
  local at, keys, counts = claim.AT_TENANT + 2 + #tenant, freed.keys, freed.counts
  for _ = 1, string.byte(held, at - 1) do
    local _, key, next_ = struct.unpack(">I4Hc0", held, at)
    at = next_
    if counts[key] then
      counts[key] = counts[key] + 1
    elseif not limits.is_rate(key) then
      keys[#keys + 1], counts[key] = key, 1
    end
  end
end

-- Frees the places of a claim that ended.
--- (s: table, held: str)
--- uses: base
--- seldom
function limited_runs.finish(s, held)
  local freed = { keys = {}, counts = {} }
  limited_runs.note_end(freed, held, claim.tenant(held))
  limited_runs.end_use(s, freed.keys, freed.counts)
end
