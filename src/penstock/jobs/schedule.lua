-- Schedules: calls that are enqueued again and again, at the times of a cron line or after a fixed interval.
--
--                declare, put                          tick: enqueue, and move on to the following tick
--       (none) ────────────────▶ active ──────────────────────────────────────────────────────────────▶ active
--          ▲                      │ ▲ │
--          │                pause │ │ │ no live worker has declared it for a day
--          │                      ▼ │ ▼
--          └────── remove ────── paused, orphaned ─── resume, declare (an orphaned one) ──────────────▶ active
--
--   schedules  HASH  name -> `_stored_schedule`
--   ticks      ZSET  name -> server ms at which the next tick is offered to a worker; of active schedules only. A name
--                    that begins with a colon is a queue that the outbox has entries for (outbox.lua)
--   runs       HASH  name -> how its last ten jobs ended, the latest first: `scheduled`, one after the other
--   row              NEXT_TICK (row.lua): the lowest score of `ticks`
--
-- A worker computes the times, because scripts know neither time zones nor cron lines. A turn offers due ticks to one
-- worker, and to another one after five seconds. That worker calls `tick`, which names the tick that it expects: of
-- several workers, and of several copies of a call, the first counts. Each change of a schedule gives it a new version,
-- so that a worker that computed with the old one changes nothing.
--
-- A tick whose task no live worker knows (releases.lua) is not offered: its jobs would wait for an hour and fail. The
-- tick stays due, so it is served as after any outage once a worker knows the task.

_stored_schedule = layout {
  format = "B",
  version = "I6",
  next_ = "I6", -- server ms of the next tick; 0: none will follow
  state = "c1",
  declared = "I6", -- server ms at which a worker declared it last; 0: it was put at run time
  released = "I6", -- ms of the release whose definition it has
  last = "I6", -- server ms of the last tick
  count = "I4", -- jobs so far
  hash = "c8", -- of the definition
  spec = "Hc0", -- JSON, which only Python reads
  draft = "*", -- of its jobs (record.lua)
}

scheduled = layout {
  ended = "I6", -- server ms
  started = "I6", -- server ms of the claim that ended so; 0: it was never claimed
  letter = "c1", -- see `ending`; or DEAD of `state`
  tick = "Bc0", -- the end of the job's id: schedule:name:tick
}

_scheduled = { MOST = 10, FIRST_BYTE = 115, LONGEST = 255 } -- "s", with which the ids of its jobs begin

-- UNSERVED: active, and at its last tick no live worker knew its task
_schedule = { FORMAT = 1, ACTIVE = "a", PAUSED = "p", ORPHANED = "o", UNSERVED = "u" }

_offer = { AGAIN = 5000, TICKS = 100, BYTES = 262144, BUSY = 100 } -- ms; most in one turn; ms for a busy worker

_unserved = { AGAIN = 60000 } -- ms after which such a tick is looked at again

_orphan = { AGE = 86400000 } -- ms

-- The fields of `_stored_schedule` as a table, but for the format.
--- (packed: str) -> table
function schedule.parse(packed)
  local its = _stored_schedule.fields(packed)
  return {
    version = its.version, next_ = its.next_, state = its.state, declared = its.declared, released = its.released,
    last = its.last, count = its.count, hash = its.hash, spec = its.spec,
    draft = _stored_schedule.draft(packed),
  }
end

--- (name: str, one: table)
--- uses: base
function schedule.write(name, one)
  redis.call("HSET", base .. "schedules", name,
    _stored_schedule.pack({
      format = _schedule.FORMAT, version = one.version, next_ = one.next_, state = one.state,
      declared = one.declared, released = one.released, last = one.last, count = one.count, hash = one.hash,
      spec = one.spec, draft = one.draft,
    }))
end

-- Whether a job may be one of a schedule, judged by the first byte of its id. So the end of any other job costs no more
-- than this.
--- (id: str) -> bool
--- inline
function schedule.may_have(id)
  return string.byte(id) == _scheduled.FIRST_BYTE
end

-- Notes how a job of a schedule ended, unless the schedule was removed. `owner`: what `owners` had of its last run.
--- (s: table, id: str, letter: str, owner: str | false)
--- uses: base
--- seldom
function schedule.note_end(s, id, letter, owner)
  local name, tick = string.match(id, "^schedule:([^:]+):(.+)$")
  if not name or #tick > _scheduled.LONGEST or redis.call("HEXISTS", base .. "schedules", name) == 0 then return end
  local before = redis.call("HGET", base .. "runs", name) or ""
  local at, n = 1, 1
  while n < _scheduled.MOST and at <= #before do
    at, n = at + scheduled.AT_TICK + string.byte(before, at + scheduled.AT_TICK - 1), n + 1
  end
  local one = scheduled.pack({
    ended = s.now, started = owner and lease.claimed_at(owner) or 0, letter = letter, tick = tick,
  })
  redis.call("HSET", base .. "runs", name, one .. string.sub(before, 1, at - 1))
end

-- Has the next tick offered when it is due, if the schedule is active and there is one. `refresh` must follow.
--- (name: str, one: table)
--- uses: base
function schedule.plan(name, one)
  if (one.state == _schedule.ACTIVE or one.state == _schedule.UNSERVED) and one.next_ > 0 then
    redis.call("ZADD", base .. "ticks", one.next_, name)
  else
    redis.call("ZREM", base .. "ticks", name)
  end
end

-- Notes the earliest offer in the row, and has the timekeeper take a turn then.
--- (s: table)
--- uses: base
function schedule.refresh(s)
  local first = redis.call("ZRANGE", base .. "ticks", 0, 0, "WITHSCORES")
  s.row[_row.NEXT_TICK] = first[2] and tonumber(first[2]) or 0
  if first[2] then s.alarm = math.min(s.alarm or math.huge, tonumber(first[2])) end
end

-- Whether a schedule from the code of an app was declared by no live worker for a day.
--- (one: table, now: int) -> bool
--- inline
function schedule.is_orphaned(one, now)
  return one.declared > 0 and now - one.declared > _orphan.AGE
end

-- Whether a live worker knows the task of a schedule. A worker that has just declared it takes its first turn soon.
-- Workers that do not say what they know may know it, and a bare value has no task.
--- (one: table, now: int) -> bool
--- uses: base
--- seldom
function schedule.is_served(one, now)
  if one.declared > 0 and now - one.declared <= _unserved.AGAIN then return true end
  local drafted = one.draft
  local task = record.task(drafted)
  return task == "" or redis.call("EXISTS", base .. "releases") == 0 or releases.know(task)
end

-- Offers due ticks to the worker that takes this turn: { now, name, schedule, … }, or an empty table. Removes an
-- orphaned schedule from `ticks` instead, and puts off an unserved one, whose tick stays due. In place of a name and a
-- schedule, there may be "outbox:<queue>" and entries for it (outbox.lua); or `flow.OVERDUE`, if dependents are to be
-- given up (flow.lua).
--- (s: table) -> table
--- uses: base
--- seldom
function schedule.offer(s)
  if s.row[_row.NEXT_TICK] == 0 or s.row[_row.NEXT_TICK] > s.now then return {} end
  local due = redis.call("ZRANGE", base .. "ticks", "-inf", s.now, "BYSCORE", "LIMIT", 0, _offer.TICKS)
  local packed, offers, bytes = redis.call("HMGET", base .. "schedules", unpack(due)), { s.now }, 0
  for i = 1, #due do
    local one = packed[i] and schedule.parse(packed[i])
    if one and schedule.is_orphaned(one, s.now) then
      one.state, one.version = _schedule.ORPHANED, row.mint(s.row, 1) + 1
      schedule.write(due[i], one)
      one = nil
    end
    if due[i] == flow.OVERDUE then
      if #offers > 1 then break end
      offers[2], offers[3] = due[i], ""
      redis.call("ZADD", base .. "ticks", s.now + _offer.AGAIN, due[i])
      break
    elseif outbox.queue_of(due[i]) then
      if #offers > 1 then break end -- entries for one queue are enough for a turn
      offers[2], offers[3] = due[i], outbox.oldest(outbox.queue_of(due[i]))
      redis.call("ZADD", base .. "ticks", s.now + _offer.AGAIN, due[i])
      break
    elseif one and not schedule.is_served(one, s.now) then
      if one.state ~= _schedule.UNSERVED then
        one.state = _schedule.UNSERVED
        schedule.write(due[i], one)
      end
      redis.call("ZADD", base .. "ticks", s.now + _unserved.AGAIN, due[i])
    elseif one then
      if one.state == _schedule.UNSERVED then
        one.state = _schedule.ACTIVE
        schedule.write(due[i], one)
      end
      bytes = bytes + #packed[i]
      if bytes > _offer.BYTES and #offers > 1 then break end
      offers[#offers + 1], offers[#offers + 2] = due[i], packed[i]
      redis.call("ZADD", base .. "ticks", s.now + _offer.AGAIN, due[i])
    else
      redis.call("ZREM", base .. "ticks", due[i])
    end
  end
  schedule.refresh(s)
  return #offers > 1 and offers or {}
end

-- Milliseconds after which a worker with no free runner takes a turn because of a tick, or of a job that is over; -1:
-- neither is planned. It waits a little longer than the idle workers.
--- (r: table, now: int) -> int
function schedule.busy_wait(r, now)
  local tick, over = r[_row.NEXT_TICK], r[_row.NEXT_EXPIRY] or 0
  local at = math.min(tick > 0 and tick or math.huge, over > 0 and over or math.huge)
  return at < math.huge and math.max(0, at - now) + _offer.BUSY or -1
end

-- Enqueues the jobs of ticks, and sets the next ticks of their schedules. `ticks` has for each schedule: its name; the
-- version and the tick that the worker expects; the last tick for which this call enqueues jobs; the tick that follows
-- (0: none); the number of jobs; and for each job its id and draft. Returns for each schedule 1, or 0 if it was changed
-- or another worker was first.
--- keys: base meta
--- args: given: int, ticks: *
--- frame: change
function script.tick(base, meta, given, ticks, ...)
  local answers, at, set = {}, ticks, {}
  while ARGV[at] do
    local name, version, expected = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local last, following, jobs = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
    local packed = redis.call("HGET", base .. "schedules", name)
    local one = packed and schedule.parse(packed)
    local counts = one and one.state == _schedule.ACTIVE and one.version == version and one.next_ == expected
    answers[#answers + 1] = counts and 1 or 0
    if counts then
      one.next_, one.last, one.count = following, last, one.count + jobs
      schedule.write(name, one)
      schedule.plan(name, one)
      for i = at + 6, at + 4 + 2 * jobs, 2 do job.accept(s, ARGV[i], ARGV[i + 1], row.mint(s.row, 1) + 1, set) end
    end
    at = at + 6 + 2 * jobs
  end
  batch.write("HSET", base .. "jobs", set)
  schedule.refresh(s)
  return answers
end

-- Writes schedules. `how`:
--
--   declare  A worker starts, and its code defines them. The definition of the latest release wins.
--   renew    The same worker is still alive. Schedules that were removed are not written again.
--   put      They are added at run time. A schedule that the code of live workers defines is not replaced.
--
-- For each schedule `defined` has: name, hash of the definition (8 bytes), ms of the release, the next tick (0: none),
-- spec, draft. Returns for each: created, replaced, kept, older, gone or declared.
--- keys: base meta
--- args: given: int, how: str, defined: *
--- frame: change
function script.define_schedules(base, meta, given, how, defined, ...)
  local words = {}
  for i = defined, #ARGV, 6 do
    local name, hash, released, next_ = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
    local packed = redis.call("HGET", base .. "schedules", name)
    local one = packed and schedule.parse(packed)
    local word, plans = "replaced", true
    if not one then
      one = { state = _schedule.ACTIVE, declared = 0, released = 0, last = 0, count = 0 }
      word = how == "renew" and "gone" or "created"
    elseif how == "put" and one.declared > 0 and not schedule.is_orphaned(one, s.now) then
      word = "declared"
    elseif one.hash == hash then
      word, plans = "kept", one.state == _schedule.ORPHANED
    elseif how ~= "put" and one.declared > 0
      and (released < one.released or released == one.released and hash < one.hash) then
      word, plans = "older", false
    end
    words[#words + 1] = word
    if word ~= "gone" and word ~= "declared" then
      if plans then
        one.version, one.next_ = row.mint(s.row, 1) + 1, next_
        if one.state == _schedule.ORPHANED then one.state = _schedule.ACTIVE end
      end
      if word == "created" or word == "replaced" then
        one.hash, one.spec, one.draft = hash, ARGV[i + 4], ARGV[i + 5]
      end
      if one.state == _schedule.UNSERVED then one.state, plans = _schedule.ACTIVE, true end
      one.declared = how ~= "put" and s.now or 0
      if word ~= "older" then one.released = math.max(released, one.released) end
      schedule.write(name, one)
      if plans then schedule.plan(name, one) end
    end
  end
  schedule.refresh(s)
  return words
end

-- Pauses a schedule (`on` 0), or resumes it with the next tick `next_`. Ticks that pass while it is paused are skipped.
-- An orphaned schedule that is resumed belongs to the operator, as one that was put at run time. Returns 1, or 0 if it
-- does not exist.
--- keys: base meta
--- args: given: int, name: str, on: int, next_: int
--- flags: allow-oom
--- frame: change
function script.switch_schedule(base, meta, given, name, on, next_)
  local packed = redis.call("HGET", base .. "schedules", name)
  if not packed then return 0 end
  local one = schedule.parse(packed)
  if on == 1 then
    if one.state == _schedule.ACTIVE and not schedule.is_orphaned(one, s.now) then return 1 end
    if one.state == _schedule.ORPHANED or schedule.is_orphaned(one, s.now) then one.declared = 0 end
    one.state, one.next_ = _schedule.ACTIVE, next_
  else
    one.state = _schedule.PAUSED
  end
  one.version = row.mint(s.row, 1) + 1
  schedule.write(name, one)
  schedule.plan(name, one)
  schedule.refresh(s)
  return 1
end

-- Removes a schedule. Its jobs stay. Returns 1, or 0 if it did not exist.
--- keys: base meta
--- args: given: int, name: str
--- flags: allow-oom
--- frame: change
function script.remove_schedule(base, meta, given, name)
  local removed = redis.call("HDEL", base .. "schedules", name)
  redis.call("HDEL", base .. "runs", name)
  redis.call("ZREM", base .. "ticks", name)
  schedule.refresh(s)
  return removed
end

-- One schedule: { now, schedule or false, its last runs or false }.
--- keys: base meta
--- args: given: int, name: str
--- flags: no-writes
--- frame: format
function script.show_schedule(base, meta, given, name)
  return { clock.now(given), redis.call("HGET", base .. "schedules", name), redis.call("HGET", base .. "runs", name) }
end

-- A page of schedules: { now, next cursor, { name, schedule, … }, { last runs or false, … } }. The first and the last
-- cursor is 0.
--- keys: base meta
--- args: given: int, cursor: str, count: int
--- flags: no-writes
--- frame: format
function script.scan_schedules(base, meta, given, cursor, count)
  local page = redis.call("HSCAN", base .. "schedules", cursor, "COUNT", count)
  local names = {}
  for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
  return { clock.now(given), page[1], page[2], #names > 0 and redis.call("HMGET", base .. "runs", unpack(names)) or {} }
end
