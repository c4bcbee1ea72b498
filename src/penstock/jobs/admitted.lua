-- Admitted jobs: those in a lane that have a place in a limit and were never claimed. The least urgent one of a key
-- gives its place to a more urgent job (`admission.displace`).
--
--   admitted    ZSET  length and text of name=key, level, generation, id. All scores are 0, so the last member of a key
--                     is its least urgent job
--
-- `s.admitted` collects scores and members that `admitted.write` adds, `s.started` members that it removes.

_digit = { ZERO = 48 }

_admitted = layout { key = "Hc0", of_job = "*" }

_of_job = layout { level = "c1", generation = "I6", id = "*" } -- the level as a digit

-- The end of a job's members, which is the same for all of its limits.
--- (level: int, generation: str, id: str) -> str
--- inline
function admitted.of_job(level, generation, id)
  return string.char(_digit.ZERO + level) .. generation .. id
end

-- Notes that a job was admitted, and may give its place to a more urgent job until it is claimed.
--- (s: table, list: table, level: int, ready: str)
function admitted.note(s, list, level, ready)
  local generation, id = entry.generation_bytes(ready), entry.id(ready)
  local scored, n = s.admitted, #s.admitted
  for i = 1, #list do
    scored[n + 1], scored[n + 2] = 0, list[i][_limit.NAMED] .. admitted.of_job(level, generation, id)
    n = n + 2
  end
end

-- Notes that an admitted job was removed or parked, so that it no longer has a place to give.
--- (s: table, list: table, level: int, body: str, id: str)
function admitted.forget(s, list, level, body, id)
  limits.open(s)
  local of_job = admitted.of_job(level, record.generation_bytes(body), id)
  for i = 1, #list do s.started[#s.started + 1] = list[i][_limit.NAMED] .. of_job end
end

-- Writes what was noted.
--- (s: table)
--- uses: base
--- seldom
function admitted.write(s)
  if #s.admitted > 0 then
    batch.add("ZADD", base .. "admitted", s.admitted)
    s.admitted = {}
  end
  batch.write("ZREM", base .. "admitted", s.started)
  s.started = {}
end

-- The members of a key, from its first or, in the reverse order, from its least urgent job on.
--- (place: table, n: int, order: str) -> table
--- uses: base
function admitted.members(place, n, order)
  local start = _admitted.pack({ key = place.key })
  if order == "" then
    return redis.call("ZRANGE", base .. "admitted", "[" .. start, "(" .. start .. ":", "BYLEX", "LIMIT", 0, n)
  end
  return redis.call("ZRANGE", base .. "admitted", "(" .. start .. ":", "[" .. start, "BYLEX", order, "LIMIT", 0, n)
end

-- The member of the least urgent admitted job of a key, or nil if it has no such job.
--- (s: table, place: table) -> str | nil
--- uses: base
function admitted.least_urgent(s, place)
  admitted.write(s)
  return admitted.members(place, 1, "REV")[1]
end

-- The members of the most urgent admitted jobs of a key, at most `n`.
--- (s: table, place: table, n: int) -> table
--- uses: base
--- seldom
function admitted.first_ones(s, place, n)
  admitted.write(s)
  return admitted.members(place, n, "")
end

-- The members of its least urgent ones, the least urgent first.
--- (s: table, place: table, n: int) -> table
--- uses: base
--- seldom
function admitted.last_ones(s, place, n)
  admitted.write(s)
  return admitted.members(place, n, "REV")
end

--- (member: str) -> int
function admitted.level(member)
  return tonumber(_of_job.level(_admitted.of_job(member)))
end

--- (member: str) -> int
function admitted.generation(member)
  return _of_job.generation(_admitted.of_job(member))
end

--- (member: str) -> str
function admitted.id(member)
  return _of_job.id(_admitted.of_job(member))
end
