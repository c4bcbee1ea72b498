-- How the run of a job ends: the transitions of running jobs. job.lua has the others.
--
-- recovery.lua describes what happens to a job whose process died. A release keeps the losses, crashes and host deaths
-- that a job has; any other run that ends by itself sets them to zero.

-- Completes jobs: four commands for all of them, and one or two for their results. `held`: their claims, as read from
-- the incarnation; `numbers`: the claim numbers, 6 bytes each; `staged`: the effects of those that have some. Appends
-- to `stale` the positions, the first of which is `at`, of jobs that the incarnation does not hold under their number.
--- (s: table, incarnation: str, ids: table, numbers: str, texts: table, held: table, stale: table, staged: table,
---  at: int)
--- uses: base meta
function job.complete(s, incarnation, ids, numbers, texts, held, stale, staged, at)
  -- One call for all numbers, because each call reads its format anew.
  local sent = #ids > 0 and { struct.unpack(">" .. string.rep("I6", #ids), numbers) }
  local done, seen, n, of_tenant, before, freed, freed_places = {}, {}, 0, 0, nil, nil, 0
  s.not_completed = s.not_completed or {}
  for i = 1, #ids do
    local id, of_job, is_held = ids[i], held[i], false
    if of_job and not seen[id] then
      local was = claim.fields(of_job)
      is_held = was.number == sent[i]
      seen[id] = is_held
      local refused = is_held and staged[i] and effects.apply(s, staged[i])
      if refused then
        s.not_completed[#s.not_completed + 1] = at + i - 1
        local why = cjson.encode({ reason = refused })
        job.settle(s, incarnation, "bury", token.pack({ number = was.number, id = id }), 0, why)
      elseif is_held then
        n = n + 1
        done[n] = id
        if was.tenant ~= before then
          if before then counters.move(s, before, _count.RUNNING, _count.NONE, of_tenant) end
          before, of_tenant = was.tenant, 0
        end
        of_tenant = of_tenant + 1
        local letter = ending.COMPLETED
        if was.flags > flag.CALL then -- most jobs have nothing more, and pay for one comparison
          if record.has(was.flags, flag.REASON) then
            slice.spend(s, 1)
            finished.note_attempts(s, _finished.ENDED, id, _finished.ROOM - _finished.TAGS)
          end
          if bit.band(was.flags, _mask.STORED) > 0 then letter = job.clear(s, id, was.flags, letter, was.ttl) end
          if was.flags >= flag.UNIQUE then unique.finish(s, id, of_job) end
          if record.has(was.flags, flag.LIMITED) then
            freed_places = freed_places + limits.passed(was.flags)
            freed = freed or { keys = {}, counts = {} }
            limited_runs.note_end(freed, of_job, was.tenant)
          end
        end
        if schedule.may_have(id) then
          schedule.note_end(s, id, ending.COMPLETED, redis.call("HGET", base .. "owners", id))
        end
        job.finish(s, id, letter, texts[i] or "null", was.ttl)
      end
    end
    if not is_held then
      stale[#stale + 1] = at + i - 1
      s.not_completed[#s.not_completed + 1] = at + i - 1
    end
  end
  if n == 0 then return end
  if freed then limited_runs.end_use(s, freed.keys, freed.counts) end
  slice.spend(s, n + freed_places)
  counters.move(s, before, _count.RUNNING, _count.NONE, of_tenant)
  if s.row[_row.WEIGHTED] >= _charge.BY_TIME then charging.charge(s, done, ids, held) end
  if s.row[_row.RESULT_CLASSES] >= _retention.SET then finished.note_completed(s, done) end
  batch.write("HDEL", base .. "held:" .. incarnation, done)
  batch.write("HDEL", base .. "owners", done)
  batch.write("HDEL", base .. "jobs", done)
  s.row[_row.COMPLETED] = s.row[_row.COMPLETED] + n
end

-- Completes the jobs of batches, which are in `ARGV[at]` and behind it, without results: as they are held, or one by
-- one if a batch was opened. Returns how many jobs there are, and appends to `stale` as `complete` does.
--- (s: table, incarnation: str, at: int, batches: int, stale: table) -> int
--- uses: base meta
--- seldom
function job.complete_batches(s, incarnation, at, batches, stale)
  local key, names, done, n = base .. "batches:" .. incarnation, {}, {}, 0
  for i = 1, batches do names[i] = string.sub(ARGV[at + i - 1], 1, _batched.BYTES) end
  local held = redis.call("HMGET", key, unpack(names))
  local is_whole = s.row[_row.WEIGHTED] < _charge.BY_TIME
  for i = 1, batches do is_whole = is_whole and held[i] end
  if not is_whole then lease.open(incarnation) end
  for i = 1, batches do
    local ids = cmsgpack.unpack(is_whole and claim.keys(held[i]) or string.sub(ARGV[at + i - 1], _batched.BYTES + 1))
    if is_whole then
      local its = claim.fields(held[i])
      counters.move(s, its.tenant, _count.RUNNING, _count.NONE, #ids)
      for j = 1, #ids do
        done[n + j] = ids[j]
        job.finish(s, ids[j], ending.COMPLETED, "null", its.ttl)
      end
    else
      local numbers, number = {}, _batched.number(names[i])
      for j = 1, #ids do numbers[j] = struct.pack(">I6", number + j - 1) end
      local claims = redis.call("HMGET", base .. "held:" .. incarnation, unpack(ids))
      job.complete(s, incarnation, ids, table.concat(numbers), {}, claims, stale, {}, n)
    end
    n = n + #ids
  end
  if not is_whole then return n end
  slice.spend(s, n)
  if s.row[_row.RESULT_CLASSES] >= _retention.SET then finished.note_completed(s, done) end
  redis.call("HDEL", key, unpack(names))
  batch.write("HDEL", base .. "owners", done)
  batch.write("HDEL", base .. "jobs", done)
  s.row[_row.COMPLETED] = s.row[_row.COMPLETED] + n
  return n
end

-- The kind of attempt (failures.lua) that ends with this verb of `job.settle`.
--- (verb: str) -> str
--- seldom
function job.outcome(verb)
  if recovery.is_death(verb) then return outcome.LOST end
  if string.find(verb, ":", 1, true) then return outcome.UNREAD end
  return (verb == "retry" or verb == "bury") and outcome.FAILED or outcome.POSTPONED
end

-- Ends a run that does not complete its job. Returns false if the incarnation no longer holds the job; and whether one
-- that the worker cannot read has become a dead letter. `verb`:
--
--   retry    runs again after `ms`; the attempt is counted      release  goes to the front of its lane, uncounted
--   later    runs again after `ms`; no attempt and no retry      bury     becomes a dead letter
--   until    like later, but `ms` is a date in server ms         drop     leaves the queue
--   unknown:ms, unread:ms, changed:ms  the worker cannot read it,  cancel   was cancelled while it ran
--            or continue it (see failures.hand_back): like later, or like bury
--   suspend  sleeps, or waits for a signal or for its children (durable.lua): like later, and gives up its places
--
-- and, when a process died (see recovery.lua):
--
--   crash      it ran alone in a supervised process             unseen     its worker's supervisor died as well
--   loss       others ran in the process as well                host       it was tried, and the whole host died
--   contained  it had a process of its own (isolate=True)
--- (s: table, incarnation: str, verb: str, token: str, ms: int, text: str) -> bool, bool
--- uses: base
--- seldom
function job.settle(s, incarnation, verb, token, ms, text)
  local held = lease.held(incarnation, token)
  if not held then return false end
  slice.spend(s, 3)
  local r, id = s.row, token.id(token)
  local body = record.get(id)
  if not body then
    verb, text = "drop", "its record was damaged"
  elseif claim.flags(held) >= flag.UNIQUE and verb ~= "drop" and verb ~= "bury" and verb ~= "cancel"
    and unique.is_succeeded(id, body) then
    verb, text = "cancel", "a later call with its key replaced it"
  end
  local kind, unknown_since, other = job.outcome(verb), 0, ""
  local cannot, limit = string.match(verb, "^(%a+):(%d+)$")
  if cannot then
    verb, ms, unknown_since, other = failures.hand_back(id, cannot, ms, tonumber(limit), incarnation, s.now)
  end
  if verb == "until" then verb, ms = "later", math.max(0, ms - s.now) end
  if verb == "suspend" and redis.call("SISMEMBER", base .. "cancels:" .. incarnation, token) == 1 then
    verb, text = "cancel", "" -- the request has not reached the run before it ended
  end
  local suspends = verb == "suspend" and body
  if suspends then ms, text = steps.suspend(s, incarnation, id, ms, text), "" end
  local scheduled = schedule.may_have(id)
  local owner = (scheduled or text ~= "") and redis.call("HGET", base .. "owners", id)
  local began = owner and lease.claimed_at(owner) or 0
  lease.end_claim(s, incarnation, id, held)
  if verb == "drop" or verb == "cancel" then
    local was = claim.fields(held)
    if was.flags >= flag.UNIQUE then unique.finish(s, id, held) end
    if record.has(was.flags, flag.LIMITED) then limited_runs.finish(s, held) end
    local total = verb == "drop" and _row.DROPPED or _row.CANCELLED
    redis.call("HDEL", base .. "jobs", id)
    r[total] = r[total] + 1
    counters.move(s, was.tenant, _count.RUNNING, _count.NONE, 1)
    local outcome = verb == "drop" and ending.DROPPED or ending.CANCELLED
    if scheduled and owner then schedule.note_end(s, id, outcome, owner) end
    if body then finished.note_job(s, id, body, outcome, text, record.attempts(body), claim.at(held), incarnation) end
    local letter = job.clear(s, id, was.flags, outcome, was.ttl)
    job.finish(s, id, letter, text, was.ttl)
    return true
  end
  local its, packed = record.fields(body), record.tail(body)
  local ran = tail.fields(packed)
  local flags = bit.bor(its.flags, suspends and flag.NOTES or bit.band(claim.flags(held), flag.NOTES))
  if text ~= "" then
    failures.add(id, unknown_since, other, kind, math.min(ran.attempts + 1, _most.SHORT), began, s.now, text)
    flags = bit.bor(flags, flag.REASON)
  end
  if verb ~= "release" then ran.deliveries = ran.deliveries + 1 end
  local dead, died = verb == "bury", recovery.is_death(verb)
  if died then
    r[_row.LOST] = r[_row.LOST] + 1
    flags, ran.losses, ran.crashes, ran.host_deaths, dead =
      recovery.count(verb, flags, ran.losses, ran.crashes, ran.host_deaths, ms)
    ms = 0
  elseif verb ~= "release" then
    flags, ran.losses, ran.crashes, ran.host_deaths = bit.band(flags, _mask.NO_SUSPECT), 0, 0, 0
  end
  if verb == "retry" or verb == "bury" then ran.attempts = ran.attempts + 1 end
  if verb == "retry" then r[_row.RETRIED] = r[_row.RETRIED] + 1 end
  if record.has(flags, flag.LIMITED) then
    local list, keep = record.limits(body), 0
    slice.spend(s, #list)
    if not dead and not suspends then keep = limits.kept(s, list, died or verb == "release") end
    limits.give_up(s, list, keep, limits.passed(flags), true)
    flags = limits.with_passed(flags, keep)
  end
  local generation, since = row.mint(r, 1) + 1, s.now
  local new_state
  local new = record.entry(generation, body, id)
  if dead then
    if flags >= flag.UNIQUE then unique.finish(s, id, held) end
    redis.call("ZADD", base .. "dead", s.now, id)
    finished.note_job(s, id, body, state.DEAD, text, ran.attempts, claim.at(held), incarnation)
    r[_row.FAILED] = r[_row.FAILED] + 1
    counters.move(s, its.tenant, _count.RUNNING, _count.DEAD, 1)
    s.finished[#s.finished + 1] = id
    if scheduled and owner then schedule.note_end(s, id, state.DEAD, owner) end
    flow.report(s, _event.DEAD, id, "")
    new_state = state.DEAD
  elseif ms > 0 then
    new_state, since = suspends and state.SLEEPING or state.DELAYED, s.now + ms
    counters.move(s, its.tenant, _count.RUNNING, counters.delayed_state(new_state), 1)
    job.delay(s, since, new)
  else
    new_state, flags = job.make_ready(
      s, verb == "release" or died, new, flags, its.priority, its.tenant, s.now, _count.RUNNING, body)
  end
  packed = tail.pack({
    enqueued = ran.enqueued,
    expires = 0, -- it was started in time
    attempts = math.min(ran.attempts, _most.SHORT), deliveries = math.min(ran.deliveries, _most.SHORT),
    losses = math.min(ran.losses, _most.BYTE), crashes = math.min(ran.crashes, _most.BYTE),
    host_deaths = math.min(ran.host_deaths, _most.BYTE),
  })
  redis.call("HSET", base .. "jobs", id, record.with_tail(body, new_state, generation, since, flags, packed))
  return true, cannot and dead
end
