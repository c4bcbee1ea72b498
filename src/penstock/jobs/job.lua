-- The transitions of a job as functions: each moves a job from one state to another. `queue.lua` draws the states, maps
-- the keys, and has the scripts that call these functions.
--
-- `s` collects the changes of one script: the row, counts, entries to push, suspects, results, and finished jobs whose
-- listeners are to be notified. `job.commit` writes them.
--
-- settling.lua has the transitions of running jobs.

-- Reads the row, and empties the intake. Returns an error as second value if the queue has another format.
--- (given: int) -> table, error | nil
--- uses: base meta
function job.begin(given)
  local s = {
    now = clock.now(given), tenants = {}, order = {}, seconds = {}, lists = {}, suspects = {}, ready = false,
    finished = {}, results = {}, ends = {}, budget = listeners.slice(), effort = 0,
  }
  local newer = row.load(s)
  if not newer and s.is_open then intake.empty(s) end
  return s, newer
end

-- The frame of a script that reads jobs, or that stores by itself what it changes.
--- uses: base meta given
function frame.read()
  local s, newer = job.begin(given)
  if newer then return newer end
  -- …
end

-- The frame of a script that changes the row and moves no job.
--- uses: base meta given
function frame.row()
  local s, newer = job.begin(given)
  if newer then return newer end
  -- …
  row.store(s)
end

-- The frame of a script that moves jobs.
--- uses: base meta given
function frame.change()
  local s, newer = job.begin(given)
  if newer then return newer end
  if s.now >= s.next_history and s.row[_row.SEQUENCE] > 0 then history.add(s) end
  -- …
  job.commit(s)
  if s.ready and s.row[_row.PAUSED] == 0 then wake.one(s.row, s.now) end
  row.store(s)
end

-- The frame of a script that moves jobs once, however often the call is sent.
--- uses: base meta caller number given
function frame.once(...)
  local s, newer = job.begin(given)
  if newer then return newer end
  local answer = idempotency.replay(caller, number)
  if answer then return answer end
  if s.now >= s.next_history and s.row[_row.SEQUENCE] > 0 then history.add(s) end
  -- …
  job.commit(s)
  if s.ready and s.row[_row.PAUSED] == 0 then wake.one(s.row, s.now) end
  row.store(s)
  return idempotency.keep(caller, number, ...)
end

-- Adds the jobs that became ready to their lists and to the suspects, where claims find them.
--- (s: table)
--- uses: base
function job.push_ready(s)
  if s.row[_row.BATCH] then linger.push(s) else lane.push(s.row, s.lists) end
  if #s.suspects > 0 then
    batch.write("ZADD", base .. "suspects", s.suspects)
    s.row[_row.SUSPECTS] = s.row[_row.SUSPECTS] + #s.suspects / 2
  end
  s.lists, s.suspects = {}, {}
end

-- Writes what `s` has collected, except for the row, and notifies the listeners of finished jobs (see listeners.lua).
--- (s: table)
--- uses: base meta
function job.commit(s)
  if s.row[_row.RESULT_CLASSES] >= _retention.SET then retention.apply(s) end
  repeat
    if s.row[_row.FLOWS] and s.row[_row.FLOWS] > 0 then flow.advance(s) end
    admission.admit(s)
  until not s.events
  if s.waits then flow.write(s) end
  if s.outbox then outbox.write(s) end
  limits.write(s)
  job.push_ready(s)
  counters.write(s)
  if s.taken or s.given_up then unique.write(s) end
  local n = #s.results / 2
  results.write(s)
  results.trim(s, math.max(_trim.LEAST, 2 * n))
  if s.segments or s.links or s.purged then finished.write(s) end
  if s.expiring then expiry.write(s) end
  listeners.notify(s.row, s.finished, s.budget)
  if s.alarm then wake.set_alarm(s.row, s.now, s.alarm) end
end

-- Stores for `ttl` ms how the job ended (0: not at all), and has `commit` notify its listeners.
--- (s: table, id: str, letter: str, text: str, ttl: int)
function job.finish(s, id, letter, text, ttl)
  if ttl > 0 then results.keep(s, id, letter, text, ttl) end
  s.finished[#s.finished + 1] = id
  local flows = s.row[_row.FLOWS]
  if flows and flows > 0 then flow.note(s, #letter == 1 and letter or results.letter(letter), id, text) end
end

-- Deletes the failures, steps and notes of a job that leaves the queue, keeps its output for `ttl` ms, as its result,
-- and has its children cancelled. Returns the text that its result begins with: `letter`, or notes and then `letter`.
--- (s: table, id: str, flags: int, letter: str, ttl: int) -> str
--- uses: base
--- seldom
function job.clear(s, id, flags, letter, ttl)
  if record.has(flags, flag.REASON) then redis.call("HDEL", base .. "failures", id) end
  if not record.has(flags, flag.NOTES) then return letter end
  redis.call("UNLINK", base .. "steps:" .. id)
  local had_children = redis.call("PEXPIRE", base .. "predecessors:" .. id, string.format("%d", ttl + _flow.KEEP))
  if had_children == 1 then children.orphan(s, id) end
  output.close(id, ttl)
  return notes.close(id, letter)
end

-- Stores what a running job reports, sends its progress to the processes that wait for its result, and notifies those
-- that follow its log. Does nothing if the incarnation no longer holds the job.
--- (s: table, incarnation: str, token: str, text: str)
--- uses: base
--- seldom
function job.note(s, incarnation, token, text)
  local held = lease.held(incarnation, token)
  if not held then return end
  local id = token.id(token)
  local progress, has_lines = notes.add(id, text, s.now)
  if not record.has(claim.flags(held), flag.NOTES) then
    redis.call("HSET", base .. "held:" .. incarnation, id, lease.noted(held))
  end
  if progress ~= "" then listeners.report(s.row, id, string.format("progress %d %s", s.now, progress), s.budget) end
  if has_lines then listeners.report(s.row, id, "log", s.budget) end
end

-- Counts a new job and collects its entry. Returns its record.
--- (s: table, id: str, body: str, generation: int, now: int, since: int, expires: int) -> str
--- uses: base
--- seldom
function job.enqueue(s, id, body, generation, now, since, expires)
  local drafted = record.fields(body)
  local tenant = drafted.tenant
  if since > now then
    counters.move(s, tenant, _count.NONE, _count.DELAYED, 1)
    job.delay(s, since, record.entry(generation, body, id))
    return record.from_draft(body, state.DELAYED, generation, now, since, expires, drafted.flags)
  end
  local new_state, flags = job.make_ready(
    s, false, record.entry(generation, body, id), drafted.flags, drafted.priority, tenant, now, _count.NONE, body)
  if expires == 0 and drafted.format < record.TAILED then
    return record.fresh(body, new_state, generation, now, flags)
  end
  return record.from_draft(body, new_state, generation, now, now, expires, flags)
end

-- Enqueues a draft unless its id is in the queue already: appends id and record to `set`, which the caller writes. A
-- time in the draft is either ms from now or a date.
--- (s: table, id: str, body: str, generation: int, set: table) -> bool
--- uses: base
function job.accept(s, id, body, generation, set)
  if redis.call("HEXISTS", base .. "jobs", id) == 1 and not job.expire(s, id) then return false end
  return not job.add_draft(s, id, body, generation, set)
end

-- Enqueues a draft unless its id is in the queue already, and stores its record.
--- (s: table, id: str, body: str)
--- uses: base
function job.enqueue_now(s, id, body)
  local set = {}
  job.accept(s, id, body, row.mint(s.row, 1) + 1, set)
  batch.write("HSET", base .. "jobs", set)
end

-- Enqueues a draft whose id is new, and appends id and record to `set`. If another job holds its unique key, returns
-- the id of that job instead; if a bound refuses it, nil and what `bounds.refuse` returns.
--- (s: table, id: str, body: str, generation: int, set: table) -> str | nil, table | nil
--- uses: base
--- seldom
function job.add_draft(s, id, body, generation, set)
  local one = record.flags(body) >= flag.UNIQUE and unique.field(s, body)
  local replaced, before, is_running -- the id of a job that has begun, its record, whether it runs
  if one then
    local holder = unique.live_holder(s, one)
    if holder then
      if not unique.replaces(one[2]) then return holder end
      batch.write("HSET", base .. "jobs", set) -- the holder may be in the same call
      for i = #set, 1, -1 do set[i] = nil end
      before = record.get(holder)
      if not before or not unique.has_begun(holder, before) then
        job.replace(s, holder, body, generation, one)
        return holder
      end
      if one[2] ~= keeping.LATEST then return holder end
      is_running, replaced = redis.call("HEXISTS", base .. "owners", holder) == 1, holder
    end
  end
  local refused = s.bounded and bounds.refuse(s, record.tenant(body))
  if refused then return nil, refused end
  if replaced and not is_running then
    s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + 1
    job.remove(s, replaced, before, ending.CANCELLED, "replaced by job " .. id)
  end
  if one then unique.hold(s, one, id, body) end
  if is_running then return unique.succeed(s, replaced, id, body, generation, set) end
  local drafted = draft.fields(body)
  local due, expires = drafted.due, drafted.expires
  if not record.has(drafted.how, draft.DUE_IS_DATE) then due = s.now + due end
  if expires > 0 and not record.has(drafted.how, draft.EXPIRES_IS_DATE) then expires = s.now + expires end
  if record.has(drafted.how, draft.OWN_ID) then results.forget(id) end
  local stored = job.enqueue(s, id, body, generation, s.now, due, expires)
  if expires > 0 then expiry.note(s, id, expires, record.state(stored) == state.READY) end
  set[#set + 1], set[#set + 2] = id, stored
end

-- Gives a waiting job the arguments of another draft. With DEBOUNCE, a job that is not due is delayed again. If the job
-- is now due at another time, or its record has another size class, it gets a new entry with `generation`; a job that
-- is parked or waits for others gets one later. A job whose own key has a mode that does not replace stays unchanged:
-- tasks may share a key, so the job may be running, or have places in limits that follow from its arguments.
--- (s: table, id: str, drafted: str, generation: int, one: table)
--- uses: base
--- seldom
function job.replace(s, id, drafted, generation, one)
  local body = record.get(id)
  if not body or not unique.is_replaced(body) then return end
  slice.spend(s, 3)
  local was, expires = record.fields(body), draft.expires(drafted)
  if expires > 0 and not record.has(draft.how(drafted), draft.EXPIRES_IS_DATE) then expires = s.now + expires end
  local due = was.since
  if one[2] == keeping.DEBOUNCE and was.state == state.DELAYED then due = s.now + one[3] end
  local new = record.replaced(body, drafted, was.generation, due, expires)
  local old = record.entry(was.generation, body, id)
  if was.state == state.WAITING then
    local wait = flow.wait(s, id)
    if wait then wait.class = entry.class(record.entry(0, new, "")) end
  elseif was.state ~= state.PARKED and (due ~= was.since or record.entry(was.generation, new, id) ~= old) then
    new = record.replaced(body, drafted, generation, due, expires)
    local new_entry = record.entry(generation, new, id)
    if record.is_delayed(was.state) then
      redis.call("ZREM", base .. "delayed", old)
      job.delay(s, due, new_entry)
    else
      lane.collect(s.lists, false, was.priority, was.tenant, new_entry)
    end
  end
  redis.call("HSET", base .. "jobs", id, new)
  if expires ~= record.expires(body) then
    expiry.note(s, id, expires, record.state(new) == state.READY)
    listeners.report(s.row, id, "expires", s.budget)
  end
end

-- Whether a job waits that may not be started any more.
--- (id: str, body: str, now: int) -> bool
--- uses: base
function job.is_over(id, body, now)
  local expires = record.expires(body)
  return expires > 0 and expires <= now and record.state(body) ~= state.DEAD
    and redis.call("HEXISTS", base .. "owners", id) == 0
end

-- Removes a job that is over, and stores that it expired, so that its id and its key are free. Returns whether it did.
--- (s: table, id: str) -> bool
--- uses: base
--- seldom
function job.expire(s, id)
  local body = record.get(id)
  if not body or not job.is_over(id, body, s.now) then return false end
  job.remove(s, id, body, ending.EXPIRED, "")
  s.row[_row.EXPIRED] = s.row[_row.EXPIRED] + 1
  unique.write(s)
  results.write(s) -- a job that is enqueued with this id deletes the result
  return true
end

-- Removes a job that is not running. Its entry in a lane stays, and is skipped later.
--- (s: table, id: str, body: str, letter: str, text: str)
--- uses: base
--- seldom
function job.remove(s, id, body, letter, text)
  local was = record.fields(body)
  slice.spend(s, s.purged and 1 or 3)
  if record.has(was.flags, flag.LIMITED) then limits.leave(s, id, body, was.state, was.flags, was.priority) end
  redis.call("HDEL", base .. "jobs", id)
  if record.expires(body) > 0 then redis.call("ZREM", base .. "expiring", id) end
  if was.flags >= flag.UNIQUE then unique.leave(s, id, body, was.state) end
  if was.state ~= state.DEAD and schedule.may_have(id) then schedule.note_end(s, id, letter, false) end
  if was.state ~= state.DEAD and not s.purged then
    finished.note_job(s, id, body, letter, text, record.attempts(body), 0, "")
  end
  letter = job.clear(s, id, was.flags, letter, was.ttl)
  if was.state == state.READY then
    counters.move(s, was.tenant, _count.READY, _count.NONE, 1)
    counters.add_ready_since(s, was.since, -1)
    if record.has(was.flags, flag.SUSPECT) then
      s.row[_row.SUSPECTS] = s.row[_row.SUSPECTS]
        - redis.call("ZREM", base .. "suspects", record.entry(was.generation, body, id))
    end
  elseif record.is_delayed(was.state) then
    counters.move(s, was.tenant, counters.delayed_state(was.state), _count.NONE, 1)
    redis.call("ZREM", base .. "delayed", record.entry(was.generation, body, id))
  elseif was.state == state.PARKED then
    counters.move(s, was.tenant, _count.PARKED, _count.NONE, 1)
    counters.add_parked_since(s, was.since, -1)
  elseif was.state == state.WAITING then
    counters.move(s, was.tenant, _count.DEPENDENT, _count.NONE, 1)
    flow.forget(s, id, was.ttl)
  else
    counters.move(s, was.tenant, _count.DEAD, _count.NONE, 1)
    redis.call("ZREM", base .. "dead", id)
    flow.report(s, _event.REQUEUED, id, "")
  end
  job.finish(s, id, letter, text, was.ttl)
end

-- Delays a job until `due`.
--- (s: table, due: int, entry: str)
--- uses: base
function job.delay(s, due, entry)
  redis.call("ZADD", base .. "delayed", string.format("%d", due), entry)
  row.not_after(s.row, _row.NEXT_DUE, due)
  s.alarm = math.min(s.alarm or due, due)
end

-- Counts a job as ready and collects its entry: for the suspects if it is one, else for its lane or its front list. A
-- job that finds no place in one of its limits, or whose task or tenant is paused, is parked there instead. `from` is
-- its previous state. Returns the new state and the new flags.
--- (s: table, is_front: bool, entry: str, flags: int, priority: int, tenant: str, since: int, from: int, body: str)
---  -> str, int
--- uses: base
--- seldom
function job.make_ready(s, is_front, entry, flags, priority, tenant, since, from, body)
  local scope = s.row[_row.PAUSES] and pauses.scope(s, tenant, body, not is_front and from ~= _count.PARKED)
  if not scope and holds.any(s) and record.has(flags, flag.LIMITED) then
    scope = holds.scope(s, admission.limits_of(s, body))
  end
  if scope then return pauses.park(s, scope, is_front, entry, flags, priority, tenant, since, from, body) end
  if record.has(flags, flag.LIMITED) then
    local list = admission.limits_of(s, body)
    local kept = limits.passed(flags)
    slice.spend(s, 2 * (#list - kept))
    local passed, place = limits.pass(s, list, kept)
    flags = limits.with_passed(flags, passed)
    if place then
      limits.park(s, place, is_front, priority, tenant, entry)
      counters.move(s, tenant, from, _count.PARKED, 1)
      counters.add_parked_since(s, since, 1)
      return state.PARKED, flags
    end
    if from ~= _count.RUNNING or not is_front then
      admitted.note(s, list, priority, entry)
      if kept > 0 then limits.mark_kept(s, list, kept) end
    end
  end
  if record.has(flags, flag.SUSPECT) then
    s.suspects[#s.suspects + 1], s.suspects[#s.suspects + 2] = since, entry
  else
    lane.collect(s.lists, is_front, priority, tenant, entry)
  end
  s.ready = true
  if s.row[_row.BATCH] then s.oldest = math.min(s.oldest or since, since) end
  counters.move(s, tenant, from, _count.READY, 1)
  counters.add_ready_since(s, since, 1)
  return state.READY, flags
end

-- Makes due jobs ready, at most `limit`, so that the first claim after a long outage does not block the server. Returns
-- whether there may be more due jobs, and how many ms the most overdue one was late.
--- (s: table, limit: int) -> bool, int
--- uses: base
function job.promote(s, limit)
  local r = s.row
  if r[_row.NEXT_DUE] == 0 or r[_row.NEXT_DUE] > s.now then return false, 0 end
  local budget = slice.within(s, limit)
  local due = redis.call("ZRANGE", base .. "delayed", "-inf", s.now, "BYSCORE", "LIMIT", 0, limit)
  due = slice.take_entries(budget, due)
  local late, n = 0, 0
  if #due > 0 then
    local ids, set = {}, {}
    for i = 1, #due do ids[i] = entry.id(due[i]) end
    local bodies = redis.call("HMGET", base .. "jobs", unpack(ids))
    local generation = row.mint(r, #due)
    while n < #due and (n == 0 or not slice.is_spent(budget)) do
      local i = n + 1
      local body = bodies[i]
      n = i
      if record.intact(body) then
        local was = record.fields(body)
        late = math.max(late, s.now - was.since)
        local new = record.entry(generation + i, body, ids[i])
        local new_state, flags = job.make_ready(
          s, r[_row.DUE_FIRST] == 1, new, was.flags, was.priority, was.tenant, was.since,
          counters.delayed_state(was.state), body)
        set[#set + 1] = ids[i]
        set[#set + 1] = record.moved(body, new_state, generation + i, was.since, flags)
      end
    end
    redis.call("ZREM", base .. "delayed", unpack(due, 1, n))
    batch.write("HSET", base .. "jobs", set)
  end
  local next_ = redis.call("ZRANGE", base .. "delayed", 0, 0, "WITHSCORES")
  r[_row.NEXT_DUE] = next_[2] and tonumber(next_[2]) or 0
  return budget.left == 0 or n < #due, late
end

-- Serves tenants from the most urgent level down, and stores the picked jobs as held by the incarnation. `trial`
-- decides about suspects: with "only", the claim takes one suspect or nothing; with "alone", it takes one suspect and
-- no other job, or other jobs if no suspect waits; if empty, it takes no suspect. `own`: the state of the incarnation,
-- which is stored with the claims (lease.lua). Returns `room`: what the claim might still take; `claimed`, how many
-- jobs it took; and `reply`, id and record of each. The first of them has the claim number `number`.
--- (s: table, incarnation: str, want: int, trial: str, own: table) -> table
--- uses: base
function job.claim(s, incarnation, want, trial, own)
  local r = s.row
  local room = {
    want = want, look = math.max(4 * want, 64), bytes = _slice.BYTES, max_bytes = _slice.BYTES, full = false,
    now = s.now, owner = string.format("%s %d", incarnation, s.now), number = r[_row.SEQUENCE] + 1, claimed = 0,
    reply = {}, held = {}, owners = {}, s = s, effort = slice.until_(s),
    tenants = {}, sinces = {}, expired = {}, pausing = ((r[_row.PAUSES] or 0) > 0 or holds.any(s)) and s, met = {},
  }
  if s.holds_batches then room.batches, room.batch_size = {}, r[_row.BATCH][_batch.SIZE] end
  if trial ~= "" and r[_row.SUSPECTS] > 0 and recovery.pick_suspect(r, room) then room.want = 0 end
  -- A level that is left without entries is removed from the row, and the next one takes its position.
  local at = (trial == "only" or r[_row.BATCH] and not linger.serve(s, room)) and #r[_row.LEVELS] + 1 or 1
  while room.want > 0 and not room.full and r[_row.LEVELS][at] do
    local level, n, others = r[_row.LEVELS][at], math.min(room.want, room.effort - s.effort), true
    while others and room.want > 0 and not room.full do
      others = lane.take(r, level, n, room, s.now)
      n = want
    end
    if r[_row.LEVELS][at] == level then at = at + 3 end
  end
  for i = 1, #room.expired do
    job.remove(s, room.expired[i][1], room.expired[i][2], ending.EXPIRED, "")
    r[_row.EXPIRED] = r[_row.EXPIRED] + 1
  end
  row.mint(r, room.claimed)
  if #room.met > 0 then pauses.park_met(s, room.met) end
  if room.claimed == 0 then return room end
  if room.limited then limited_runs.start(s, room) end
  counters.begin_runs(s, room.tenants, room.sinces)
  if room.unique then unique.start(s, room) end
  if room.timed then redis.call("ZREM", base .. "expiring", unpack(room.timed)) end
  local owners = room.owners
  if r[_row.RUNNING] == room.claimed then owners[#owners + 1], owners[#owners + 2] = "", _own.PADDING end
  redis.call("HSET", base .. "owners", unpack(owners))
  if room.batches then lease.store_batches(room, incarnation) end
  own.first, own.claimed = room.number, room.claimed
  lease.extend(r, incarnation, own, room.held) -- what follows may have to find a claim
  return room
end

-- Cancels the first jobs of a tenant at this level, as many as fit into the slice `budget`.
--- (s: table, level: int, tenant: str, budget: table)
--- uses: base
function job.cancel_tenant(s, level, tenant, budget)
  slice.spend(s, 2) -- for the lanes of the tenant
  local cursor = lane.open_tenant(s.row, level, tenant)
  lane.read(cursor, lane.names(level), budget.left)
  for i = 1, #cursor.entries do
    local next_ = cursor.entries[i]
    if not slice.take(budget, record.entry_bytes(next_)) then break end
    cursor.taken = i
    local id = entry.id(next_)
    local body = record.get(id)
    if record.is_ready(body, entry.generation(next_)) then job.remove(s, id, body, ending.CANCELLED, "") end
  end
  lane.close(s.row, level, { cursor }, nil)
end
