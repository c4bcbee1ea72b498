-- Pauses: an operator pauses a scope, which means all jobs of one task or of one tenant. The jobs are parked as if the
-- scope were a limit without a free place.
--
--   pauses   HASH   scope -> PAUSED, or RESUMED as long as jobs are parked there; its time, and its author. A
--                   scope is p:task=name or p:tenant=name
--   meta     HASH   pause: the same for the whole queue, while that is paused
--   row      (row.lua)  PAUSED: whether the whole queue is paused. PAUSES: how many fields `pauses` has; absent until
--                       the first pause of a scope
--
-- The jobs of a scope wait in its parked lanes (limits.lua), and hold no place in a limit. A job that becomes ready
-- during the pause is parked at once. A job that was ready before is parked by the claim that meets it, ahead of those.
-- After the end of a pause each script admits some jobs to the front of their lanes; until no job is left there, new
-- jobs of the scope are parked behind the others.

pause = layout { status = "c1", at = "I6", by = "*" } -- at: server ms; by: who did it, for people

pause = { PAUSED = "1", RESUMED = "2" }

_pause = { MET = 100, ADMITTED = 100, SCOPES = 1000 }

-- PAUSED, RESUMED or false.
--- (s: table, scope: str) -> str | false
--- uses: base
function pauses.status(s, scope)
  s.scopes = s.scopes or {}
  local known = s.scopes[scope]
  if known == nil then
    local stored = redis.call("HGET", base .. "pauses", scope)
    known = stored and pause.status(stored)
    s.scopes[scope] = known
  end
  return known
end

-- The paused scope to which a job belongs, or nil. With `behind`, a scope that was resumed but still has parked jobs
-- counts as paused.
--- (s: table, tenant: str, body: str, behind: bool) -> str | nil
--- uses: base
function pauses.scope(s, tenant, body, behind)
  local r = s.row
  if not r[_row.PAUSES] or r[_row.PAUSES] == 0 then return nil end
  local scope = "p:tenant=" .. tenant
  local status = pauses.status(s, scope)
  if status == pause.PAUSED or behind and status then return scope end
  local task = record.task(body)
  if task == "" then return nil end
  scope = "p:task=" .. task
  status = pauses.status(s, scope)
  return (status == pause.PAUSED or behind and status) and scope or nil
end

-- Parks a job that would be ready, and gives up its places. Its record then says that it has passed all of its limits,
-- which shows `limits.leave` that the job is parked at a pause and not at a limit. Returns its state and its flags.
--- (s: table, scope: str, is_front: bool, entry: str, flags: int, priority: int, tenant: str, since: int, from: int,
---  body: str) -> str, int
--- uses: base
--- seldom
function pauses.park(s, scope, is_front, entry, flags, priority, tenant, since, from, body)
  if record.has(flags, flag.LIMITED) then
    local list = record.limits(body)
    limits.give_up(s, list, 0, limits.passed(flags), false)
    flags = limits.with_passed(flags, #list)
  end
  limits.park(s, limits.place(s, scope), is_front, priority, tenant, entry)
  counters.move(s, tenant, from, _count.PARKED, 1)
  counters.add_parked_since(s, since, 1)
  return state.PARKED, flags
end

-- Parks the jobs of paused scopes and of closed keys that a claim has met: id, record, …
--- (s: table, met: table)
--- uses: base
--- seldom
function pauses.park_met(s, met)
  local set = {}
  for i = 1, #met, 2 do
    local id, body = met[i], met[i + 1]
    local was, generation = record.fields(body), row.mint(s.row, 1) + 1
    if record.has(was.flags, flag.LIMITED) then
      admitted.forget(s, record.limits(body), was.priority, body, id)
    end
    counters.add_ready_since(s, was.since, -1)
    local scope, new = pauses.scope(s, was.tenant, body, false), record.entry(generation, body, id)
    local new_state, flags
    if scope then
      new_state, flags =
        pauses.park(s, scope, true, new, was.flags, was.priority, was.tenant, was.since, _count.READY, body)
    else
      local list = record.limits(body)
      new_state, flags =
        holds.park(s, list, holds.at(s, list), new, was.flags, was.priority, was.tenant, was.since, body)
    end
    set[i], set[i + 1] = id, record.moved(body, new_state, generation, was.since, flags)
  end
  batch.write("HSET", base .. "jobs", set)
end

-- Whether no more jobs of a scope are to be admitted in this script.
--- (s: table, place: table) -> bool
--- uses: base
--- seldom
function pauses.holds(s, place)
  local key = holds.key_of(place.key)
  if key and holds.until_(s, key) > 0 then
    limits.look_again(s, place.key, holds.until_(s, key))
    return true
  end
  if pauses.status(s, place.key) == pause.PAUSED then return true end
  if (place.admitted or 0) < _pause.ADMITTED then
    place.admitted = (place.admitted or 0) + 1
    return false
  end
  limits.look_again(s, place.key, s.now)
  return true
end

-- Forgets a scope that was resumed and has no parked jobs.
--- (s: table, scope: str)
--- uses: base
function pauses.forget(s, scope)
  if pauses.status(s, scope) ~= pause.RESUMED then return end
  redis.call("HDEL", base .. "pauses", scope)
  s.scopes[scope], s.row[_row.PAUSES] = false, s.row[_row.PAUSES] - 1
end

-- Pauses or resumes a scope. `by`: its author. Returns 1; 0 if nothing changed; -1 if too many scopes are paused.
--- keys: base meta
--- args: given: int, scope: str, on: int, by: str
--- flags: allow-oom
--- frame: change
function script.pause_scope(base, meta, given, scope, on, by)
  limits.open(s)
  local r = s.row
  r[_row.PAUSES] = r[_row.PAUSES] or 0
  local status = pauses.status(s, scope)
  if on == 1 and status == pause.PAUSED or on == 0 and status ~= pause.PAUSED then return 0 end
  if not status then
    if r[_row.PAUSES] >= _pause.SCOPES then return -1 end
    r[_row.PAUSES] = r[_row.PAUSES] + 1
  end
  s.scopes[scope] = on == 1 and pause.PAUSED or pause.RESUMED
  redis.call("HSET", base .. "pauses", scope, pause.pack({ status = s.scopes[scope], at = s.now, by = by }))
  if on == 0 then limits.mark(s, limits.place(s, scope)) end
  return 1
end

-- Pauses or resumes the whole queue: workers claim nothing. A pause of a paused queue keeps its time and its author.
--- (s: table, on: int, by: str)
--- uses: meta
--- seldom
function pauses.switch(s, on, by)
  if on == s.row[_row.PAUSED] then return end
  s.row[_row.PAUSED] = on
  if on == 1 then
    redis.call("HSET", meta, "pause", pause.pack({ status = pause.PAUSED, at = s.now, by = by }))
  else
    redis.call("HDEL", meta, "pause")
  end
end

-- The pause of the whole queue, or false; then the scopes: name, pause, places of its parked jobs or false, …
--- keys: base meta
--- args: given: int
--- flags: allow-oom
--- frame: read
function script.show_pauses(base, meta, given)
  local found, scopes = redis.call("HGETALL", base .. "pauses"), {}
  local reply = { s.row[_row.PAUSED] == 1 and redis.call("HGET", meta, "pause") }
  for i = 1, #found, 2 do scopes[#scopes + 1] = found[i] end
  local places = #scopes > 0 and batch.read(base .. "places", scopes) or {}
  for i = 1, #scopes do
    reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = scopes[i], found[2 * i], places[i]
  end
  return reply
end
