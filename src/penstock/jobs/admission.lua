-- Admission: parked jobs get the places that the other transitions of a script have freed. limits.lua explains places.

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

-- Admits parked jobs of one key. Expired ones, and entries of jobs that were cancelled, each use up one of the `looks`.
-- Returns how many of those are left.
--- (s: table, place: table, looks: int) -> int
--- uses: base
--- seldom
function admission.admit_some(s, place, looks)
  limits.push(place)
  while #place.r[_row.LEVELS] > 0 do
    if looks == 0 then
      limits.look_again(s, place.key, s.now)
      return 0
    end
    if place.is_part and pauses.holds(s, place) then return looks end
    if place.parked > 0 and limits.room(s, place) <= 0 and not admission.displace(s, place) then
      local at = limits.room_at(s, place)
      if at then limits.look_again(s, place.key, at) end
      return looks
    end
    looks = looks - 1
    local entry = limits.pop(place)
    if entry then admission.admit_entry(s, place, entry) end
  end
  if place.is_part then pauses.forget(s, place.key) end
  return looks
end

-- Admits the job of an entry that was taken from the parked lanes of a key, if it is still parked there and has not
-- expired.
--- (s: table, place: table, entry: str)
--- uses: base
function admission.admit_entry(s, place, entry)
  local id = record.entry_id(entry)
  local body = record.get(id)
  if not body or record.state(body) ~= state.PARKED or struct.unpack(">I6", body, 3) ~= struct.unpack(">I6", entry) then
    return
  end
  local _, _, _, _, expires, flags, priority, _, _, _, _, _, _, tenant = record.parse(body)
  if expires > 0 and expires <= s.now then
    job.remove(s, id, body, ending.EXPIRED, "")
    s.row[_row.EXPIRED] = s.row[_row.EXPIRED] + 1
    return
  end
  local generation = row.mint(s.row, 1) + 1
  local new_state
  if place.is_part then
    flags = limits.with_passed(flags, 0)
  else
    place.parked, place.used = math.max(0, place.parked - 1), place.used + 1
    flags = limits.with_passed(flags, limits.passed(flags) + 1)
  end
  new_state, flags = job.make_ready(
    s, place.is_part, record.entry(generation, #body, id), flags, priority, tenant, s.now, _count.PARKED, body)
  body = record.moved(body, new_state, generation, s.now)
  redis.call("HSET", base .. "jobs", id, record.flagged(body, flags))
end

-- Parks an admitted job again if a more urgent one of its key waits for a place. Returns whether it did.
--- (s: table, place: table) -> bool
--- uses: base
function admission.displace(s, place)
  local level, generation, id = admitted.least_urgent(s, place)
  if not level or level <= place.r[_row.LEVELS][1] then return false end
  local body = record.get(id)
  if not body or record.state(body) ~= state.READY or struct.unpack(">I6", body, 3) ~= generation then return false end
  local _, _, _, since, _, flags, _, _, _, _, _, _, _, tenant = record.parse(body)
  local list, at = record.limits(body), 1
  while limits.key(list[at]) ~= place.key do at = at + 1 end
  admitted.forget(s, list, level, body, id)
  limits.give_up(s, list, at - 1, #list, false)
  counters.move(s, tenant, _count.READY, _count.PARKED, 1)
  counters.add_ready_since(s, since, -1)
  generation = row.mint(s.row, 1) + 1
  limits.park(s, place, true, level, tenant, record.entry(generation, #body, id))
  limits.push(place)
  body = record.moved(body, state.PARKED, generation, s.now)
  redis.call("HSET", base .. "jobs", id, record.flagged(body, limits.with_passed(flags, at - 1)))
  return true
end
