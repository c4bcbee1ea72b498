-- Admission: parked jobs get the places that a script has freed. limits.lua explains places.

-- For each 6000 bytes of a record, a script looks at one job fewer. PARKED, ADMITTED: the effort of parking a job, and
-- of admitting one, which reads and writes the lanes of its key.
_look = { BYTES = 6000, PARKED = 2, ADMITTED = 6 }

-- Reads with one command the places of the jobs in these drafts, and with another one the buckets of their rates.
--- (s: table, drafts: table)
--- uses: base
--- seldom
function admission.read_drafts(s, drafts)
  local keys, lists, known = {}, {}, {} -- many drafts have the same limits
  for i = 1, #drafts do
    local body = drafts[i]
    local at, last = record.section(body, power.LIMITS)
    local section = string.sub(body, at, last)
    local list = known[section]
    if not list then
      list = record.limits_in(section)
      known[section] = list
      for j = 1, #list do keys[#keys + 1] = list[j][_limit.KEY] end
    end
    lists[body] = list
  end
  s.drafted_limits = lists
  local before = s.place_list and #s.place_list or 0
  limits.read_places(s, keys)
  local rates, buckets = {}, {}
  for i = before + 1, #s.place_list do
    local place = s.place_list[i]
    if place.is_rate then rates[#rates + 1], buckets[#buckets + 1] = place, base .. "rate:" .. place.key end
  end
  local full = bucket.read_many(buckets)
  for i = 1, #rates do rates[i].full = full[i] end
end

-- The limits of a job, or of a draft.
--- (s: table, body: str) -> table
--- inline
function admission.limits_of(s, body)
  return s.drafted_limits and s.drafted_limits[body] or record.limits(body)
end

-- Admits parked jobs of the keys in which a place may be free: as many as there are places, the most urgent ones first,
-- at most some fifty in one script, and fewer if their records are large. Call it when all other transitions of the
-- script are done.
--- (s: table)
--- uses: base
function admission.admit(s)
  if not s.places then return end
  local looks = _park.LOOKS
  s.admits_until = s.admits_until or slice.until_(s)
  while #s.dirty > 0 do
    local place = table.remove(s.dirty)
    place.is_dirty = nil
    looks = admission.admit_some(s, place, looks)
  end
end

-- How many looks a job uses up if its record has this many bytes.
--- (bytes: int) -> int
function admission.looks(bytes)
  return 1 + math.floor(bytes / _look.BYTES)
end

-- Marks the keys whose time in `admissions` has come. Returns whether there may be more of them.
--- (s: table) -> bool
--- uses: base
--- seldom
function admission.mark_due(s)
  local r = s.row
  if r[_row.NEXT_ADMISSION] == 0 or r[_row.NEXT_ADMISSION] > s.now then return false end
  limits.open(s)
  local key = base .. "admissions"
  local due = redis.call("ZRANGE", key, "-inf", s.now, "BYSCORE", "LIMIT", 0, _park.KEYS)
  if #due > 0 then redis.call("ZREM", key, unpack(due)) end
  local again = {}
  for i = 1, #due do
    if _signed.sign(due[i]) == "=" then
      if admission.mark_all(s, _signed.name(due[i])) then again[#again + 1] = due[i] end
    else
      admission.look(s, due[i])
    end
  end
  local next_ = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
  r[_row.NEXT_ADMISSION] = next_[2] and tonumber(next_[2]) or 0
  for i = 1, #again do limits.look_again(s, again[i], s.now) end
  return #again > 0 or #due == _park.KEYS or s.looks_over == 0
end

-- Marks some keys of a limit that have parked jobs. Returns whether there may be more of them.
--- (s: table, name: str) -> bool
--- uses: base
function admission.mark_all(s, name)
  local definition = limits.definition(s, name)
  if not definition then return false end
  local from = definition.cursor == "" and "[" .. name .. "=" or "(" .. definition.cursor
  local keys = redis.call("ZRANGE", base .. "parking", from, "(" .. name .. ">", "BYLEX", "LIMIT", 0, _park.KEYS)
  for i = 1, #keys do limits.mark(s, limits.place(s, keys[i])) end
  local more = #keys == _park.KEYS
  definition.cursor = more and keys[#keys] or ""
  limits.define(s, name, definition)
  return more
end

-- Examines a member of `admissions` whose time has come.
--- (s: table, member: str)
--- uses: base
--- seldom
function admission.look(s, member)
  if _signed.sign(member) == "!" then
    admission.park_over(s, limits.place(s, _signed.name(member)))
  else
    limits.mark(s, limits.place(s, member))
  end
end

-- Admits parked jobs of one key. Each entry that it examines uses up some of the `looks`, even if the job has expired
-- or was cancelled. Returns how many looks are left.
--- (s: table, place: table, looks: int) -> int
--- uses: base
--- seldom
function admission.admit_some(s, place, looks)
  limits.push(place)
  if place.is_rate and holds.until_(s, place.key) > 0 then return holds.close(s, place, looks) end
  while #place.r[_row.LEVELS] > 0 do
    if looks == 0 or s.effort >= s.admits_until then
      limits.look_again(s, place.key, s.now)
      return 0
    end
    if place.is_scope and pauses.holds(s, place) then return looks end
    local room = place.parked > 0 and limits.room(s, place) or 1
    local needed = room > 0 and limits.needed_first(s, place) or 1
    local bytes
    if room >= needed then
      local entry = limits.pop(place)
      bytes = entry and admission.admit_entry(s, place, entry) or 0
    else
      bytes = admission.displace(s, place)
      if not bytes then
        local at = limits.room_at(s, place, needed)
        if at then limits.look_again(s, place.key, at) end
        return looks
      end
    end
    looks = math.max(0, looks - admission.looks(bytes))
  end
  if place.is_scope then pauses.forget(s, place.key) end
  return looks
end

-- Admits the job of an entry that was taken from the parked lanes of a key, if it is still parked there and has not
-- expired. Returns the bytes of its record.
--- (s: table, place: table, parked: str) -> int
--- uses: base
function admission.admit_entry(s, place, parked)
  local id, body = entry.id(parked), limits.parked_job(parked)
  if not body then return 0 end
  slice.spend(s, _look.ADMITTED)
  local was = record.fields(body)
  local expires = record.expires(body)
  if expires > 0 and expires <= s.now then
    job.remove(s, id, body, ending.EXPIRED, "")
    s.row[_row.EXPIRED] = s.row[_row.EXPIRED] + 1
    return #body
  end
  local generation = row.mint(s.row, 1) + 1
  local flags, new_state = was.flags
  if place.is_scope then
    flags = limits.with_passed(flags, 0)
  else
    place.parked, place.used = math.max(0, place.parked - 1), place.used + limits.cost(place, body)
    flags = limits.with_passed(flags, limits.passed(flags) + 1)
  end
  new_state, flags = job.make_ready(
    s, place.is_scope, record.entry(generation, body, id), flags, was.priority, was.tenant, s.now, _count.PARKED,
    body)
  -- A job that another limit parks now has waited since it was parked first, and counts there already.
  local since = new_state == state.PARKED and was.since or s.now
  counters.add_parked_since(s, new_state == state.PARKED and s.now or was.since, -1)
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, since, flags))
  return #body
end

-- Parks an admitted job again if a more urgent one of its key waits for a place. Returns the bytes of its record, or
-- nil if it parked none.
--- (s: table, place: table) -> int | nil
--- uses: base
function admission.displace(s, place)
  local member = admitted.least_urgent(s, place)
  if member and admitted.level(member) > place.r[_row.LEVELS][1] then return admission.park_again(s, place, member) end
end

-- Parks admitted jobs of a rate again until the others fit into what is left of it: the least urgent ones, or all from
-- the most urgent one on. If they are many, the next turn continues. A turn in which `s.looks_over` has become 0 claims
-- nothing, because a job that no longer fits may still be in its lane.
--- (s: table, place: table)
--- uses: base
--- seldom
function admission.park_over(s, place)
  local over, looks, n = -limits.room(s, place), s.looks_over or _park.LOOKS, 0
  local effort, until_ = s.effort, slice.until_(s)
  local all, found = over >= place.used, {}
  if over > 0 then found = all and admitted.first_ones(s, place, looks) or admitted.last_ones(s, place, looks) end
  while n < #found and over > 0 and looks > 0 and effort < until_ do
    n = n + 1
    local body = record.get(admitted.id(found[n])) or ""
    local list = body ~= "" and record.limits(body) or {}
    local at = record.find_limit(list, place.key)
    if at then over = over - list[at][_limit.COST] end
    looks, effort = looks - admission.looks(#body), effort + _look.PARKED + #list
  end
  if effort >= until_ then looks = 0 end
  for i = 1, n do admission.park_again(s, place, found[all and i or n + 1 - i]) end
  s.looks_over = math.max(0, looks) -- for all keys of a script
  if over > 0 and looks <= 0 then limits.look_again(s, "!" .. place.key, s.now) end
end

-- Parks an admitted job again at one of its keys, ahead of the jobs that are parked there. `member`: what `admitted`
-- has of it. Returns the bytes of its record; nil if the job is gone.
--- (s: table, place: table, member: str) -> int | nil
--- uses: base
function admission.park_again(s, place, member)
  local generation, id = admitted.generation(member), admitted.id(member)
  local body = record.get(id)
  if not body or record.state(body) ~= state.READY or record.generation(body) ~= generation then
    s.started[#s.started + 1] = member -- or it would hide the members behind it for ever
    return nil
  end
  local was = record.fields(body)
  local list = record.limits(body)
  slice.spend(s, _look.PARKED + #list)
  local at = record.find_limit(list, place.key)
  admitted.forget(s, list, was.priority, body, id)
  counters.add_ready_since(s, was.since, -1)
  generation = row.mint(s.row, 1) + 1
  local new, new_state, flags = record.entry(generation, body, id)
  if holds.any(s) and holds.until_(s, place.key) > 0 then
    new_state, flags = holds.park(s, list, at, new, was.flags, was.priority, was.tenant, was.since, body)
  else
    new_state, flags = limits.park_again(s, list, at, new, was.flags, was.priority, was.tenant, was.since)
  end
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, was.since, flags))
  return #body
end
