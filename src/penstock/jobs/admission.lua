-- Admission: parked jobs get the places that a script has freed. limits.lua explains places.

-- Admits parked jobs of the keys in which a place may be free: as many as there are places, the most urgent ones first,
-- at most some hundred in one script. Call it when all other transitions of the script are done.
--- (s: table)
--- uses: base
function admission.admit(s)
  if not s.places then return end
  local looks = _park.LOOKS
  while #s.dirty > 0 do
    local place = table.remove(s.dirty)
    place.is_dirty = nil
    looks = admission.admit_some(s, place, looks)
  end
end

-- Admits parked jobs of one key. Each entry that it examines uses up one of the `looks`, even if the job has expired or
-- was cancelled. Returns how many looks are left.
--- (s: table, place: table, looks: int) -> int
--- uses: base
--- seldom
function admission.admit_some(s, place, looks)
  limits.push(place)
  if place.is_rate and holds.until_(s, place.key) > 0 then return holds.close(s, place, looks) end
  while #place.r[_row.LEVELS] > 0 do
    if looks == 0 then
      limits.look_again(s, place.key, s.now)
      return 0
    end
    if place.is_scope and pauses.holds(s, place) then return looks end
    local room = place.parked > 0 and limits.room(s, place) or 1
    local needed = room > 0 and limits.needed_first(s, place) or 1
    looks = looks - 1
    if room >= needed then
      local entry = limits.pop(place)
      if entry then admission.admit_entry(s, place, entry) end
    elseif not admission.displace(s, place) then
      local at = limits.room_at(s, place, needed)
      if at then limits.look_again(s, place.key, at) end
      return looks + 1
    end
  end
  if place.is_scope then pauses.forget(s, place.key) end
  return looks
end

-- Admits the job of an entry that was taken from the parked lanes of a key, if it is still parked there and has not
-- expired.
--- (s: table, place: table, parked: str)
--- uses: base
function admission.admit_entry(s, place, parked)
  local id, body = entry.id(parked), limits.parked_job(parked)
  if not body then return end
  local was = record.fields(body)
  if was.expires > 0 and was.expires <= s.now then
    job.remove(s, id, body, ending.EXPIRED, "")
    s.row[_row.EXPIRED] = s.row[_row.EXPIRED] + 1
    return
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
    s, place.is_scope, record.entry(generation, #body, id), flags, was.priority, was.tenant, s.now, _count.PARKED,
    body)
  -- A job that another limit parks now has waited since it was parked first, and counts there already.
  local since = new_state == state.PARKED and was.since or s.now
  counters.add_parked_since(s, new_state == state.PARKED and s.now or was.since, -1)
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, since, flags))
end

-- Parks an admitted job again if a more urgent one of its key waits for a place. Returns whether it did.
--- (s: table, place: table) -> bool
--- uses: base
function admission.displace(s, place)
  local member = admitted.least_urgent(s, place)
  return member and admitted.level(member) > place.r[_row.LEVELS][1] and admission.park_again(s, place, member) or false
end

-- Parks admitted jobs of a rate again until the others fit into what is left of it, the least urgent ones.
--- (s: table, place: table)
--- uses: base
--- seldom
function admission.park_over(s, place)
  local over, n = -limits.room(s, place), 0
  local found = over > 0 and admitted.last_ones(s, place, _park.LOOKS) or {}
  while n < #found and over > 0 do
    n = n + 1
    local body = record.get(admitted.id(found[n]))
    for _, one in ipairs(body and record.limits(body) or {}) do
      if one[_limit.KEY] == place.key then over = over - one[_limit.COST] end
    end
  end
  for i = n, 1, -1 do admission.park_again(s, place, found[i]) end
end

-- Parks an admitted job again at one of its keys, ahead of the jobs that are parked there. `member`: what `admitted`
-- has of it. Returns whether it did: the job may be gone.
--- (s: table, place: table, member: str) -> bool
--- uses: base
function admission.park_again(s, place, member)
  local generation, id = admitted.generation(member), admitted.id(member)
  local body = record.get(id)
  if not body or record.state(body) ~= state.READY or record.generation(body) ~= generation then
    s.started[#s.started + 1] = member -- or it would hide the members behind it for ever
    return false
  end
  local was = record.fields(body)
  local list, at = record.limits(body), 1
  while list[at][_limit.KEY] ~= place.key do at = at + 1 end
  admitted.forget(s, list, was.priority, body, id)
  counters.add_ready_since(s, was.since, -1)
  generation = row.mint(s.row, 1) + 1
  local new, new_state, flags = record.entry(generation, #body, id), nil, nil
  if holds.any(s) and holds.until_(s, place.key) > 0 then
    new_state, flags = holds.park(s, list, at, new, was.flags, was.priority, was.tenant, was.since, body)
  else
    new_state, flags = limits.park_again(s, list, at, new, was.flags, was.priority, was.tenant, was.since)
  end
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, was.since, flags))
  return true
end
