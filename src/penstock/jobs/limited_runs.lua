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
  for i = 1, room.claimed do
    local id, body = room.reply[2 * i - 1], room.reply[2 * i]
    if record.has(record.flags(body), flag.LIMITED) then
      limits.open(s)
      local at, last = record.section(body, power.LIMITS)
      local keys, packed = 0, ""
      local in_shards = record.powers(body) >= power.IN_SHARDS
      local of_job = admitted.of_job(record.priority(body), record.generation_bytes(body), id)
      while at < last do
        local next_, named, cost = record.limit_at(body, at)
        at, s.started[#s.started + 1] = next_, named .. of_job
        if string.byte(named, 3) ~= _park.RATE then
          keys, packed = keys + 1, packed .. _park.ONE .. named
        else
          local key = string.sub(named, 3)
          if not starts[key] then rates[#rates + 1] = key end
          starts[key] = (starts[key] or 0) + cost
          if in_shards then spread[#spread + 1], spread[#spread + 2] = key, record.tenant(body) end
        end
      end
      room.held[2 * i] = room.held[2 * i] .. string.char(keys) .. packed
    end
  end
  if #rates == 0 then return end
  limits.read_places(s, rates)
  local full = {}
  for i = 1, #rates do full[rates[i]] = limited_runs.take(s, s.places[rates[i]], starts[rates[i]]) end
  for i = 1, #spread, 2 do shards.keep(spread[i + 1], s.now, full[spread[i]]) end
end

-- Counts that admitted jobs of a rate start, which cost `n` units. Returns when all of its units are free again, ms.
--- (s: table, place: table, n: int) -> int
--- uses: base
function limited_runs.take(s, place, n)
  place.used, place.left = math.max(0, place.used - n), nil
  if place.parked > 0 then limits.mark(s, place) end
  local interval = limits.definition(s, limits.name(place)).interval
  return math.ceil(bucket.take(base .. "rate:" .. place.key, n, s.now * _park.MICROS, interval, 0, "") / _park.MICROS)
end

-- The keys of concurrency in the keys of a claim, and the position of the first byte behind them.
--- (packed: str) -> table, int
function limited_runs.keys(packed)
  local keys, at = {}, 2
  for _ = 1, string.byte(packed) do
    local _, key, next_ = struct.unpack(">I4Hc0", packed, at)
    if not limits.is_rate(key) then keys[#keys + 1] = key end
    at = next_
  end
  return keys, at
end

-- Frees the places of a claim that ended.
--- (s: table, held: str)
--- uses: base
--- seldom
function limited_runs.finish(s, held)
  local keys = s.freed and s.freed[held]
  if not keys then
    local packed = claim.keys(held)
    keys = limited_runs.keys(packed)
  end
  for i = 1, #keys do
    local place = limits.place(s, keys[i])
    place.used = math.max(0, place.used - 1)
    if place.lists or #place.r[_row.LEVELS] > 0 then limits.mark(s, place) end
  end
end

-- Reads with one command the places of the claims that a turn completes. `s.freed` has their keys, by the claim.
--- (s: table, ids: table, held: table)
--- uses: base
--- seldom
function limited_runs.read(s, ids, held)
  local all = {}
  s.freed = {}
  for i = 1, #ids do
    local was = held[i]
    if was and record.has(claim.flags(was), flag.LIMITED) then
      local packed = claim.keys(was)
      local keys = limited_runs.keys(packed)
      s.freed[was] = keys
      for j = 1, #keys do all[#all + 1] = keys[j] end
    end
  end
  limits.read_places(s, all)
end
