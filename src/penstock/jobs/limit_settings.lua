-- The limits of a queue for an operator: their numbers, the keys with parked jobs, and a purge of those. limits.lua has
-- the keys.

_shown = { KEYS = 150 } -- of all limits together: each costs the server about ten commands

-- Sets the numbers of a limit. They stay until a newer release of the code has other numbers. The script admits some
-- fifty parked jobs; the next turns admit the others. Returns 0 if no job has used the limit yet.
--- keys: base meta
--- args: given: int, name: str, most: int, interval: int, burst: int
--- flags: allow-oom
--- frame: change
function script.set_limit(base, meta, given, name, most, interval, burst)
  limits.open(s)
  local known = limits.definition(s, name)
  if not known then return 0 end
  local release = math.max(s.now, known.release) -- the clock of a release may be ahead
  limits.define(s, name, { most = most, interval = interval, burst = burst, release = release, cursor = "" })
  limits.look_at_all(s, name)
  admission.mark_due(s)
  return 1
end

-- Whether the record of the first job that is parked at a rate fits into the slice `budget`.
--- (place: table, budget: table) -> bool
--- uses: base
--- seldom
function limits.fits_first(place, budget)
  local cursor = place.is_rate and #place.r[_row.LEVELS] > 0 and limits.first(place)
  return cursor and cursor.entries[1] and slice.take(budget, record.entry_bytes(cursor.entries[1]))
end

-- Name, numbers (MessagePack) and some of the keys of each limit that have parked jobs or are closed: { name, numbers,
-- { key, places, jobs that it has room for, ms until a rate has room for the first one or -1, ms until it is open, jobs
-- that are parked for its hold, … }, … }. With many limits, each has fewer keys. The script reads at most 1 MiB of
-- records to learn what the first jobs cost; behind that, a first job counts as one unit.
--- keys: base meta
--- args: given: int, keys: int
--- flags: allow-oom
--- frame: read
function script.show_limits(base, meta, given, keys)
  local reply, stored, budget = {}, redis.call("HGETALL", base .. "limits"), slice.of(_shown.KEYS)
  keys = math.min(keys, math.max(1, math.floor(2 * _shown.KEYS / #stored)))
  local closed = redis.call("ZRANGE", base .. "holds", string.format("(%d", s.now), "+inf", "BYSCORE", "LIMIT", 0, keys)
  for i = 1, #stored, 2 do
    local name, page = stored[i], {}
    local found = redis.call("ZRANGE", base .. "parking", "[" .. name .. "=", "(" .. name .. ">", "BYLEX",
      "LIMIT", 0, keys)
    for j = 1, #closed do
      if limits.name_of(closed[j]) == name and not redis.call("ZSCORE", base .. "parking", closed[j]) then
        found[#found + 1] = closed[j]
      end
    end
    if #found > 0 then limits.read_places(s, found) end
    for j = 1, #found do
      local place = s.places[found[j]]
      local needed = limits.fits_first(place, budget) and limits.needed_first(s, place) or 1
      local at, until_, n = limits.room_at(s, place, needed), holds.until_(s, found[j]), #page
      page[n + 1], page[n + 2] = string.sub(found[j], #name + 2), place.is_stored or ""
      page[n + 3], page[n + 4] = math.max(0, limits.room(s, place)), at and at - s.now or -1
      page[n + 5], page[n + 6] = math.max(0, until_ - s.now), holds.parked(s, found[j])
    end
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = name, stored[i + 1], page
  end
  return reply
end

-- Cancels a slice of the parked jobs of one tenant, or of `all`. `offset`: how many keys with parked jobs to skip; a
-- key whose last parked job was cancelled no longer counts among them. Returns as `purge` does.
--- keys: base meta
--- args: given: int, tenant: str, all: int, offset: int, limit: int
--- flags: allow-oom
--- frame: change
function script.purge_parked(base, meta, given, tenant, all, offset, limit)
  listeners.notify_rest(s.row, s.budget)
  local budget, done, looked = slice.within(s, limit), 0, 0
  limits.open(s)
  s.purged, s.purged_tenant = 0, tenant
  while budget.left > 0 and looked < _park.KEYS do
    looked = looked + 1
    local key = redis.call("ZRANGE", base .. "parking", offset, offset)[1]
    if not key then
      done = 1
      break
    end
    local place = limits.place(s, key)
    local entries = limits.take_tenant(s, place, tenant, all == 1, budget)
    for i = 1, #entries do
      local id = entry.id(entries[i])
      local body = record.get(id)
      if body and record.state(body) == state.PARKED
        and record.generation(body) == entry.generation(entries[i]) then
        job.remove(s, id, body, ending.CANCELLED, "")
      end
    end
    if place.is_scope then limits.mark(s, place) end
    limits.write(s)
    if #place.r[_row.LEVELS] > 0 and budget.left > 0 then offset = offset + 1 end
  end
  s.purged = #s.finished
  s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + s.purged
  return { #s.finished, offset, done, s.row[_row.UNNOTIFIED] }
end
