-- Changes one waiting job (when it is due, its priority, its arguments) or a dead letter (its arguments). queue.lua
-- draws the states and maps the keys.
--
-- The job gets a new generation, so its old entry no longer represents it. It enters its lane as if it were enqueued
-- now: it gives up its places in limits, and passes the limits again.

-- Changes a waiting job. `due`: ms from now, or a date if `due_is_date` is 1; -1 leaves the due time. `priority`: -1
-- leaves it. If `replace` is 1, `task` and `payload` replace the arguments; the job must belong to that task (empty:
-- to no task). `tags` is the section that replaces its tags; empty: it keeps them. `key`: the id of the key with which
-- `payload` is sealed; empty: it is not. Returns `edited`, or why nothing changed: `fixed` (the arguments of this job
-- cannot change), `waits` (a job that waits for others has no due time), `task` (it belongs to another task), `sealed`
-- (its arguments are sealed, and the new ones are not), `running`, `dead`, `done` or `none`.
--- keys: base meta
--- args: caller: str, number: int, given: int, id: str, due: int, due_is_date: int, priority: int, replace: int
--- args: task: str, tags: str, key: str, payload: str
--- flags: allow-oom
--- frame: once
function script.edit(base, meta, caller, number, given, id, due, due_is_date, priority, replace, task, tags,
  key, payload)
  local body = record.get(id)
  if not body then return results.get(id, s.now) and "done" or "none" end
  if record.state(body) == state.DEAD then return "dead" end
  if redis.call("HEXISTS", base .. "owners", id) == 1 then return "running" end
  if job.is_over(id, body, s.now) then return "done" end
  if due >= 0 and due_is_date == 0 then due = s.now + due end
  local was = record.state(body)
  local is_due = was == state.READY or was == state.PARKED
  -- it stays where it is
  if is_due and due >= 0 and due <= s.now and priority < 0 and replace == 0 then return "edited" end
  if replace == 1 and not record.is_plain(body) then return "fixed" end -- its keys follow from its arguments
  if was == state.WAITING and due >= 0 then return "waits" end
  if replace == 1 and record.task(body) ~= task then return "task" end
  if replace == 1 and key == "" and record.has(record.powers(body), power.SEALED) then return "sealed" end

  local start = record.start(body)
  if replace == 0 then
    payload = string.sub(body, #start + 1)
  else
    local powers = 0
    if tags == "" then tags = record.tags(body) end
    if key ~= "" then powers, payload = power.SEALED, struct.pack(">Hc0", #key, key) .. payload end
    if tags ~= "" then powers, payload = powers + power.TAGS, struct.pack(">Hc0", #tags, tags) .. payload end
    start, payload = record.with(start, { powers = powers }), payload .. record.own_tail(body)
  end
  if priority < 0 then priority = record.priority(body) end
  local changed = record.with(start, { priority = priority }) .. payload
  if was == state.WAITING then
    redis.call("HSET", base .. "jobs", id, changed) -- it has no entry yet
  else
    editing.enter_again(s, id, body, changed, due)
  end
  return "edited"
end

-- Gives a dead letter the arguments of another call of its task, with the unique key and the limits that follow from
-- them, and makes it ready again. The arguments until then become an attempt. `drafted`: the call. Returns `requeued`;
-- or why nothing changed: `task` (it is of another task), `fixed` (it has results of other jobs among its arguments),
-- `sealed` (its arguments are sealed, and the new ones are not), `alive` (it is in the queue and not dead), `done`,
-- `none`, or { id of the job that holds the new key }.
--- keys: base meta
--- args: caller: str, number: int, given: int, id: str, drafted: str
--- frame: once
function script.requeue_edited(base, meta, caller, number, given, id, drafted)
  local body = record.get(id)
  if not body then return results.get(id, s.now) and "done" or "none" end
  if record.state(body) ~= state.DEAD then return "alive" end
  if record.has(record.powers(body), power.AFTER_OTHERS) then return "fixed" end
  if record.task(body) ~= record.task(drafted) then return "task" end
  if editing.loses_seal(body, drafted) then return "sealed" end
  local old, attempts, changed = record.payload(body), record.attempts(body), record.edited(body, drafted)
  if record.has(record.flags(changed), flag.LIMITED) then
    limits.open(s)
    admission.read_drafts(s, { changed })
  end
  local holder = dead_letters.requeue(s, id, changed)
  if holder then return { holder } end
  failures.add(id, 0, "", outcome.EDITED, attempts, 0, s.now, string.sub(old, 1, failure.ARGUMENTS))
  return "requeued"
end

-- Whether only the older of two records is sealed.
--- (body: str, drafted: str) -> bool
function editing.loses_seal(body, drafted)
  return record.has(record.powers(body), power.SEALED) and not record.has(record.powers(drafted), power.SEALED)
end

-- Takes a waiting job out of its list, and puts it into one again as `changed`. `due`: -1 keeps its due time.
--- (s: table, id: str, body: str, changed: str, due: int)
--- uses: base
function editing.enter_again(s, id, body, changed, due)
  local was, r = record.fields(body), s.row
  local old, from, flags = record.entry(was.generation, body, id), editing.counted(was.state), was.flags
  if record.is_delayed(was.state) then
    redis.call("ZREM", base .. "delayed", old)
  else
    if record.has(flags, flag.LIMITED) then
      limits.leave(s, id, body, was.state, flags, was.priority)
      flags = limits.with_passed(flags, 0)
    end
    if was.state == state.READY then
      counters.add_ready_since(s, was.since, -1)
      if record.has(flags, flag.SUSPECT) then
        r[_row.SUSPECTS] = r[_row.SUSPECTS] - redis.call("ZREM", base .. "suspects", old)
      end
    else
      counters.add_parked_since(s, was.since, -1)
    end
  end
  if due < 0 then due = was.since end
  local generation = row.mint(r, 1) + 1
  local new, new_state = record.entry(generation, changed, id), state.DELAYED
  if due > s.now then
    if was.state == state.SLEEPING then new_state = was.state end -- the signal still wakes it
    counters.move(s, was.tenant, from, counters.delayed_state(new_state), 1)
    job.delay(s, due, new)
  else
    due = was.state == state.READY and was.since or s.now
    new_state, flags = job.make_ready(s, false, new, flags, record.priority(changed), was.tenant, due, from, changed)
  end
  redis.call("HSET", base .. "jobs", id, record.moved(changed, new_state, generation, due, flags))
end

-- The counter in which a waiting job of this state is counted.
--- (was: str) -> int
function editing.counted(was)
  return was == state.READY and _count.READY or was == state.PARKED and _count.PARKED or counters.delayed_state(was)
end
