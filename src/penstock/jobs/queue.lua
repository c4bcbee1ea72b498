-- The scripts of a queue. Only these and the scripts of dead_letters.lua change its state.
--
--            enqueue(delay)          promote                 claim                complete, drop
--   (none) ───────────────▶ delayed ─────────▶ ready ─────────────────▶ running ───────────────▶ (done)
--      │                      ▲   │              ▲ │ ▲                   │ │ │ │                    ▲
--      └──────────────────────┼───┼──────────────┘ │ │    retry(0)       │ │ │ │                    │
--                enqueue      │   │                │ ├───────────────────┘ │ │ │                    │
--                             │   │                │ ├── release ──────────┘ │ │                    │
--                             │   │                │ └── take back ──────────┘ │ lease ran out      │
--                             └───┼── retry(delay) ┼───────────────────────────┤                    │
--                                 │                │  expires                  │ bury               │
--                                 └─ cancel, purge ┴───────────────────────────┼───────────────────▶│
--                                                            requeue           ▼                    │
--                                                    ready ◀──────────────── dead ── remove ───────▶┘
--
-- All keys are in one slot. Each script declares two keys, `base` (`{penstock:mail}:`) and `meta`, and builds the names
-- of all others from `base`. `base` itself never exists, on purpose: while the slot moves to another node, a missing
-- declared key makes the server refuse the script before its first line. So a script never makes half of its changes.
-- The argument `given` is 0, or the time that a test sets (see core/clock.lua).
--
--   meta         HASH    row: counts, switches and times (row.lua); addresses of workers (wake.lua)
--   jobs         HASH    id -> record                              owner: the job, until it is finished or removed
--   delayed      ZSET    entry -> due, server ms
--   dead         ZSET    id -> died at, server ms                  owner: the operator
--   failures     HASH    id -> its last failed attempts (failures) owner: the job
--   notes        HASH    id -> progress and log (notes)            owner: the job
--   output:<id>  STREAM  what the job emits (output); PX
--   settled:<inc> SET    tokens that an incarnation settled outside of its turns; PX 60 s
--   cancels:<inc> SET    tokens of running jobs that an incarnation is to cancel (cancelling)
--   schedules, ticks, runs (schedule) · unique, throttle: (unique)
--   outbox:, inbox (outbox) · intake (intake) · rotation, heads, lane, front, weights (lane) · leases, held, owners,
--   batches:, workers, releases, tasks: (releases) · results, ends (results) · sleepers (wake) · suspects (recovery)
--   tenants, age, ages (counters)
--   history:10, history:60 (history)
--   listeners, unnotified (listeners) · replay: (idempotency) · receipts (receipts)
--
-- Every script but `take_in` has a frame (job.lua, row.lua): statements before its own and before its last `return`.
-- They read the row, empty the intake, and write what changed. A script that returns early has changed nothing.

_jobs_per_call = { PROMOTED = 100, TAKEN_BACK = 100, ABANDONED = 250 }

_late = { TIMEKEEPER = 250 } -- ms: a due job that is later than this shows that the timekeeper has failed

position = { BURIED = 32768 } -- of a settlement that has made a dead letter: added to its position in the turn's answer

_taken = { NO = 0, YES = 1 }

-- Accepts plain calls: they are due now, and the library chose their ids. Returns 1; or 0 if the intake is closed or
-- full, or a record is large. Then nothing was written, and the caller sends `enqueue` with the same number. This is
-- the shortest way into the queue, so it reads nothing, and takes a single call without any function. The calls have
-- consecutive numbers, and `number` is the last of them.
--- keys: base meta
--- args: caller: str, number: str, given: str, jobs: *
function script.take_in(base, meta, caller, number, given, jobs, ...)
  local now = given
  if now == "0" then
    local time = redis.call("TIME")
    now = time[1] * 1000 + time[2] / 1000 -- the fraction is not stored
  end
  if #ARGV == jobs + 1 and #ARGV[jobs + 1] <= intake.MOST_BYTES then
    local list = base .. "intake"
    local length = redis.call("RPUSHX", list, _call.pack({
      at = now, number = number, caller = caller, id = ARGV[jobs], draft = ARGV[jobs + 1],
    }))
    if length > _intake.VALUES then redis.call("RPOP", list) end
    return length > 0 and length <= _intake.VALUES and _taken.YES or _taken.NO
  end
  return intake.take(caller, tonumber(number), now, jobs)
end

-- Enqueues the jobs from jobs[first] on (id, draft, …), and writes everything. `begun`: `idempotency.begin` has stored
-- the call. Returns the reply of `enqueue`.
--- (s: table, caller: str, number: int, jobs: table, first: int, begun: bool) -> any
--- uses: base meta
function queue.add_jobs(s, caller, number, jobs, first, begun)
  if s.now >= s.next_history then history.add(s) end
  local r = s.row
  local was_idle = r[_row.IDLE_UNTIL] > 0
  if #jobs == first + 1 and plain.add(s, jobs[first], jobs[first + 1]) then
    if r[_row.PAUSED] == 0 then wake.one(r, s.now) end
    intake.open(s, was_idle)
    row.store(s)
    if not begun then idempotency.keep(caller, number, {}) end
    return s.is_open and _taken.YES or _taken.NO
  end
  local known, ids, seen, set = {}, {}, {}, {}
  local unique_ones, limited_ones, first_refused
  for i = first, #jobs, 2 do
    local flags = record.flags(jobs[i + 1])
    ids[#ids + 1] = jobs[i]
    if flags >= flag.UNIQUE then
      unique_ones = unique_ones or {}
      unique_ones[#unique_ones + 1] = jobs[i + 1]
    end
    if flags >= flag.LIMITED and record.has(flags, flag.LIMITED) then
      limited_ones = limited_ones or {}
      limited_ones[#limited_ones + 1] = jobs[i + 1]
    end
  end
  if unique_ones then unique.read(s, unique_ones) end
  if limited_ones then admission.read_drafts(s, limited_ones) end
  local old = redis.call("HMGET", base .. "jobs", unpack(ids))
  -- Most calls have jobs of one kind. Behind a first one that is not plain, no other one is looked at as such.
  local generation, kinds = row.mint(r, #ids), plain.is_one(r, jobs[first + 1]) and {}
  for i = 1, #ids do
    local id, body = ids[i], jobs[first + 2 * i - 1]
    if not seen[id] and old[i] and job.expire(s, id) then
      for j = i, #ids do
        if ids[j] == id then old[j] = false end
      end
    end
    if old[i] or seen[id] then
      known[#known + 1] = i - 1
    else
      local stored, holder, refused = kinds and plain.collect(s, kinds, id, body, generation + i, s.now), nil, nil
      if stored then
        set[#set + 1], set[#set + 2] = id, stored
      else
        holder, refused = job.add_draft(s, id, body, generation + i, set)
      end
      if refused then
        first_refused = first_refused or refused
        known[#known + 1] = { i - 1, id, unpack(refused) }
      elseif holder then
        known[#known + 1] = { i - 1, holder }
      else
        seen[id] = true
      end
    end
  end
  batch.add("HSET", base .. "jobs", set)
  if kinds then plain.count(s, kinds) end
  job.commit(s)
  if s.ready and r[_row.PAUSED] == 0 then wake.one(r, s.now) end
  intake.open(s, was_idle)
  row.store(s)
  if caller == "" and first_refused then return bounds.error(first_refused) end
  if #known > 0 or not begun then idempotency.keep(caller, number, known) end
  if #known > 0 then return known end
  return s.is_open and _taken.YES or _taken.NO
end

-- Enqueues `jobs`: id, draft (see record.lua), id, draft, … Send at most a few hundred per call. Returns the positions,
-- from 0, of ids that are already in the queue; those jobs are not changed. For a double of a unique job (unique.lua)
-- it returns the position and the id of that job, in an array. For a job that a bound refuses (bounds.lua), the array
-- has the position, the id and what `bounds.refuse` returns. If all ids are new, it may return a number instead: 1 if
-- the caller should try `take_in` for its next call, because the intake is open, else 0.
--- keys: base meta
--- args: caller: str, number: int, given: int, jobs: *
--- frame: read
function script.enqueue(base, meta, caller, number, given, jobs, ...)
  local known = idempotency.begin(caller, number)
  if known then return known end
  bounds.open(s, ARGV, jobs)
  return queue.add_jobs(s, caller, number, ARGV, jobs, true)
end

-- One round trip of a worker. It settles finished jobs, promotes due jobs, takes back jobs whose lease ran out, and
-- claims the next jobs.
--
--   number        counts the turns of the incarnation from 1. Repeating a turn with the same number returns the same
--                 answer and settles nothing twice
--   trial         whether suspects are claimed: "", "alone" or "only" (see job.claim)
--   idle_ms       above 0: if fewer than `want` jobs were claimed, the worker at `address` is registered as idle
--   once          1: the claim of a program without a worker. It is registered as idle only if it got no job, and its
--                 incarnation ends as soon as it holds no job
--   memory        KiB that the process of a worker has in RAM; 0: as it last reported, or unknown
--   registration  of a worker, in its first turn (see releases.join); else empty
--   numbers       the claim numbers of the completed jobs, 6 bytes each; without those in batches
--   rows          of the completed jobs (finished.lua); may be empty
--   settlements   for each of the `batches` that are completed without results, its name (`_batched`) and the ids of
--                 its jobs (MessagePack); then ids of `completed` jobs without a result; then `with_result` pairs of id
--                 and result; then `staged` triples of id, result and effects (effects.lua); then for each other job:
--                 verb, token, delay in ms, text. The first of these may have the verbs `note` and `emit`, which settle
--                 nothing (see notes.lua and output.lua)
--
-- Returns { "OK", positions of stale settlements and, plus position.BURIED, of those that have made a dead letter of a
-- job that the worker cannot read, ms after which to take a turn even without a message (-1: wait for one), 1 if more
-- jobs can be claimed at once, ms for which a suspect has waited (-1: none waits), due ticks (see `schedule.offer`),
-- number of the first claim, now, id, record, … }. The claims are numbered in their order. A repeated turn has an empty
-- id and record where it no longer holds the job. Returns { "STALE" } if the incarnation has ended; then nothing was
-- written.
--- keys: base meta
--- args: given: int, incarnation: str, number: int, lease_ms: int, want: int, trial: str, address: str, idle_ms: int
--- args: once: int, memory: int, registration: str, numbers: str, rows: str, batches: int, completed: int
--- args: with_result: int, staged: int, settlements: *
--- flags: allow-oom
--- frame: read
function script.turn(base, meta, given, incarnation, number, lease_ms, want, trial, address, idle_ms,
  once, memory, registration, numbers, rows, batches, completed, with_result, staged, settlements, ...)
  local r, now = s.row, s.now
  local ids, texts, effects_of, at = {}, {}, {}, settlements + batches
  for i = 1, completed do
    ids[i] = ARGV[at]
    at = at + 1
  end
  for i = completed + 1, completed + with_result do
    ids[i], texts[i] = ARGV[at], ARGV[at + 1]
    at = at + 2
  end
  for i = #ids + 1, #ids + staged do
    ids[i], texts[i], effects_of[i] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    at = at + 3
  end
  ids[#ids + 1] = ""
  local held = redis.call("HMGET", base .. "held:" .. incarnation, unpack(ids))
  ids[#ids] = nil
  local own = lease.own(held[#ids + 1])
  if own and own.until_ <= now or not own and number > 1 then return { "STALE" } end
  if now >= s.next_history and r[_row.SEQUENCE] > 0 then history.add(s) end
  own = own or { turn = 0, idle = 1, memory = 0 } -- an earlier incarnation of this worker may be registered as idle
  if own.turn == number then
    return { "OK", own.stale, -1, 1, -1, {}, own.first, now, unpack(lease.repeated(incarnation, own)) }
  end
  if own.turn + 1 ~= number then return { "STALE" } end

  local registered = registration ~= "" and releases.join(incarnation, registration, now)
  if registered then linger.declare(s, registered.batch) end
  local stale = {}
  if ARGV[at] == "note" or ARGV[at] == "emit" then
    repeat
      if ARGV[at] == "note" then
        job.note(s, incarnation, ARGV[at + 1], ARGV[at + 3])
      else
        output.append(s, incarnation, ARGV[at + 1], ARGV[at + 3])
      end
      at = at + 4
    until ARGV[at] ~= "note" and ARGV[at] ~= "emit"
    if #ids > 0 then held = redis.call("HMGET", base .. "held:" .. incarnation, unpack(ids)) end
  end
  local is_missing = false
  for i = 1, #ids do is_missing = is_missing or not held[i] end
  if is_missing and lease.open(incarnation) then
    held = redis.call("HMGET", base .. "held:" .. incarnation, unpack(ids))
  end
  local in_batches = batches > 0 and job.complete_batches(s, incarnation, settlements, batches, stale) or 0
  job.complete(s, incarnation, ids, numbers, texts, held, stale, effects_of, in_batches)
  finished.note_turn(s, rows, in_batches + #ids, s.not_completed)
  for i = at, #ARGV, 4 do
    local is_held, is_buried = job.settle(s, incarnation, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3])
    if not is_held or is_buried then
      stale[#stale + 1] = in_batches + #ids + (i - at) / 4 + (is_buried and position.BURIED or 0)
    end
  end
  local more_due, late = job.promote(s, _jobs_per_call.PROMOTED)
  local more_over = expiry.is_due(s) and expiry.sweep(s)
  local more_lost = recovery.take_back(s, _jobs_per_call.TAKEN_BACK)
  if #s.suspects > 0 then wake.many(r, now, #s.suspects / 2) end
  local more_places = r[_row.LIMITED] and admission.mark_due(s)
  local more_batches = r[_row.BATCH] and linger.offer_due(s)
  if r[_row.FLOWS] and r[_row.FLOWS] > 0 then flow.advance(s) end
  admission.admit(s)
  job.push_ready(s)

  -- Claims are stored with the state in which the turn probably ends. So if an error ends it sooner, the same turn,
  -- sent again, returns them.
  local mine = {
    until_ = now + lease_ms, turn = number, first = 0, claimed = 0, idle = idle_ms > 0 and once == 0 and 1 or 0,
    memory = memory > 0 and memory or own.memory, stale = stale,
  }
  local room = { want = want, claimed = 0, reply = {}, number = 0 }
  if want > 0 and r[_row.PAUSED] == 0 and s.looks_over ~= 0 then
    s.holds_batches = once == 0 and trial == "" and lease.has_room(r, incarnation)
    s.takes_all = idle_ms == 0 -- a program that does not wait, as in a burst, gets what there is of a batch
    room = job.claim(s, incarnation, want, trial, mine)
    if r[_row.BATCH] and trial ~= "only" then more_batches = linger.claimed(s, room) or more_batches end
  end
  admission.admit(s)
  local more_ready = next(s.lists) ~= nil
  job.commit(s)
  local suspects = r[_row.PAUSED] == 0 and recovery.waiting(r, now) or -1
  local more_listeners = listeners.notify_rest(r, s.budget)
  local ticks = r[_row.NEXT_TICK] > 0 and address ~= "" and once == 0 and trial ~= "only" and schedule.offer(s) or {}

  local more = room.want > 0 and (room.full or more_due or more_over or more_lost or more_listeners or more_places
    or more_batches or more_ready or r[_row.FLOWS] and r[_row.FLOWS] >= _flow.EVENTS)
  local idle = idle_ms > 0 and room.want > 0 and not more and (once == 0 or room.claimed == 0)
  local empty = room.claimed == 0 and (once == 0 and r[_row.RUNNING] == 0
    or redis.call("HLEN", base .. "held:" .. incarnation) == (own.until_ and 1 or 0)
      and redis.call("EXISTS", base .. "batches:" .. incarnation) == 0)
  if once == 1 and empty and not idle then
    lease.remove(incarnation)
  else
    local foreseen = mine.idle
    mine.idle = idle and 1 or 0
    if idle and empty then mine.until_ = now + math.max(idle_ms, lease_ms) end
    if room.claimed == 0 or mine.idle ~= foreseen then lease.extend(r, incarnation, mine, {}) end
  end
  if address ~= "" or once == 1 then wake.answered(r) end
  local due_in, watches = -1, false
  local vacant = late > _late.TIMEKEEPER and address ~= "" and wake.remove_timekeeper(r, address)
  if idle then
    results.trim(s, _trim.IDLE)
    due_in, watches = wake.register(r, address, now, now + idle_ms)
  elseif address ~= "" then
    if own.idle == 1 then wake.deregister(r, address, now) end
    if vacant then wake.appoint(r, now) end
  end
  if not idle and address ~= "" then due_in = schedule.busy_wait(r, now) end
  if not empty and not watches then wake.set_alarm(r, now, now + lease_ms) end
  if not idle and r[_row.PAUSED] == 0 and r[_row.READY] > 0 then wake.one(r, now) end
  row.store(s)
  return { "OK", stale, due_in, more and 1 or 0, suspects, ticks, room.number, now, unpack(room.reply) }
end

-- Settles one claim outside of a turn: complete, or a verb of job.settle. Returns 1, or 0 if the incarnation no longer
-- holds the job. The token is remembered for a minute, so that the call may be sent again.
--- keys: base meta
--- args: given: int, incarnation: str, verb: str, token: str, ms: int, text: str, rows: str
--- flags: allow-oom
--- frame: change
function script.settle(base, meta, given, incarnation, verb, token, ms, text, rows)
  local memory = base .. "settled:" .. incarnation
  local held = lease.held_alive(incarnation, token, s.now)
  if not held then return redis.call("SISMEMBER", memory, token) end
  if verb == "complete" then
    job.complete(s, incarnation, { token.id(token) }, token, { text }, { held }, {}, {}, 0)
    finished.note_turn(s, rows, 1, s.not_completed)
  else
    job.settle(s, incarnation, verb, token, ms, text)
  end
  redis.call("SADD", memory, token)
  redis.call("PEXPIRE", memory, 60000)
  if lease.count(incarnation) == 0 then lease.remove(incarnation) end
  return 1
end

-- Extends all claims of an incarnation at once, however many it has. Returns { 1, what it is asked to do … }
-- (cancelling.lua), or { 0 } if its lease had already run out. The lease of an idle worker does not become shorter.
-- `memory`: as in a turn.
--- keys: base meta
--- args: given: int, incarnation: str, lease_ms: int, memory: int
--- flags: allow-oom
--- frame: row
function script.heartbeat(base, meta, given, incarnation, lease_ms, memory)
  local own = lease.alive(incarnation, s.now)
  if not own then return { 0 } end
  own.until_ = math.max(s.now + lease_ms, own.idle == 1 and own.until_ or 0)
  if memory > 0 then own.memory = memory end
  lease.extend(s.row, incarnation, own, {})
  wake.set_alarm(s.row, s.now, own.until_)
  return { 1, unpack(cancelling.tokens(incarnation)) }
end

-- Ends one slice of the claims of an incarnation that takes no more turns. The caller repeats it until none is left.
-- `started` lists tokens of jobs that were running; they are settled with `verb` (crash, loss or release) and the
-- reason `text`. All other claims are released, unless `more` is 1, which means that a later call lists further started
-- jobs. Returns { how many claims are left, 1 if all of `started` are settled, ms for which a suspect has waited or -1
-- }.
--- keys: base meta
--- args: given: int, incarnation: str, verb: str, text: str, more: int, started: *
--- flags: allow-oom
--- frame: change
function script.abandon(base, meta, given, incarnation, verb, text, more, started, ...)
  if not redis.call("ZSCORE", base .. "leases", incarnation) then return { 0, 1, recovery.waiting(s.row, s.now) } end
  local budget, done = slice.within(s, _jobs_per_call.ABANDONED), 1
  for i = started, #ARGV do
    if lease.held(incarnation, ARGV[i]) then
      if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", token.id(ARGV[i]))) then
        done = 0
        break
      end
      job.settle(s, incarnation, verb, ARGV[i], 0, text)
    end
  end
  if more == 0 and done == 1 then
    local tokens = lease.some_tokens(incarnation, budget)
    for i = 1, #tokens do
      if i > 1 and slice.is_spent(budget) then break end
      job.settle(s, incarnation, "release", tokens[i], 0, "")
    end
  end
  if #s.suspects > 0 then wake.many(s.row, s.now, #s.suspects / 2) end
  local left = lease.count(incarnation)
  if left == 0 then lease.remove(incarnation) end
  return { left, done, recovery.waiting(s.row, s.now) }
end

-- Cancels a slice of the waiting jobs of one tenant, or of `all`: first those in lanes, then those in `source`, which
-- is `delayed` or `suspects`. `offset` counts from the end of `source`, because promotions remove entries at its start.
-- With a limit of 0 it only notifies listeners that are left. Returns { how many were cancelled, the next offset, 1
-- when done, 1 if listeners are left to be notified }.
--- keys: base meta
--- args: given: int, tenant: str, all: int, source: str, offset: int, limit: int
--- flags: allow-oom
--- frame: change
function script.purge(base, meta, given, tenant, all, source, offset, limit)
  listeners.notify_rest(s.row, s.budget)
  local budget = slice.within(s, limit)
  s.purged, s.purged_tenant = 0, tenant
  for level = 0, 9 do
    local rotation = base .. "rotation:" .. level
    while budget.left > 0 do
      local one = tenant
      if all == 1 then one = redis.call("ZRANGE", rotation, 0, 0)[1] end
      if not one or not redis.call("ZSCORE", rotation, one) then break end
      job.cancel_tenant(s, level, one, budget)
    end
  end
  local last = offset + budget.left - 1
  local entries = budget.left > 0 and redis.call("ZRANGE", base .. source, offset, last, "REV") or {}
  local fit = slice.take_entries(budget, entries)
  for i = 1, #fit do
    if i > 1 and slice.is_spent(budget) then
      budget.left = 0
      break
    end
    local id = entry.id(fit[i])
    local body = record.get(id)
    if not body then
      local gone = redis.call("ZREM", base .. source, fit[i])
      if source == "suspects" then s.row[_row.SUSPECTS] = s.row[_row.SUSPECTS] - gone end
    elseif all == 1 or record.tenant(body) == tenant then
      job.remove(s, id, body, ending.CANCELLED, "")
    else
      offset = offset + 1
    end
  end
  local cancelled = #s.finished
  s.purged = cancelled
  s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + cancelled
  return { cancelled, offset, budget.left > 0 and 1 or 0, s.row[_row.UNNOTIFIED] }
end

-- Returns what `inspect.job` does, and the registration of the worker that runs the job, or false.
--- keys: base meta
--- args: given: int, id: str
--- flags: allow-oom
--- frame: look
function script.show(base, meta, given, id)
  local found = inspect.job(id, s.now)
  found[8] = found[4] and redis.call("HGET", base .. "workers", lease.incarnation(found[4]))
  return found
end

-- Returns what `inspect.job` does. If the job is not finished, the listener at `address` is notified when it is. Also
-- notifies listeners of finished jobs that earlier calls have left.
--- keys: base meta
--- args: given: int, id: str, address: str
--- flags: allow-oom
--- frame: row
function script.result(base, meta, given, id, address)
  if expiry.is_due(s) then expiry.look(s) end
  local found = inspect.job(id, s.now)
  if found[1] and record.state(found[1]) ~= state.DEAD and address ~= "" then listeners.add(s.row, id, address) end
  listeners.notify_rest(s.row, s.budget)
  return found
end

-- Deregisters a listener that waits for a result no longer.
--- keys: base meta
--- args: id: str, address: str
--- flags: allow-oom
--- frame: format
function script.forget(base, meta, id, address)
  listeners.remove(id, address)
end

-- Sets a switch. `paused`: no job is claimed, running jobs continue; `by` is the author. `due_first`: due jobs are
-- claimed before the lane of their tenant and level. `by_time`: tenants are charged for the time of workers
-- (charging.lua).
--- keys: base meta
--- args: given: int, name: str, on: int, by: str
--- flags: allow-oom
--- frame: row
function script.set_switch(base, meta, given, name, on, by)
  if name == "by_time" then
    s.row[_row.WEIGHTED] = s.row[_row.WEIGHTED] % 2 + on * _charge.BY_TIME
  elseif name == "paused" then
    pauses.switch(s, on, by)
  else
    s.row[_row.DUE_FIRST] = on
  end
  if s.row[_row.PAUSED] == 0 and s.row[_row.READY] > 0 then wake.one(s.row, s.now) end
end

-- Sets the weight of a tenant. A tenant of weight 3 is served three times where others are served once.
--- keys: base meta
--- args: given: int, tenant: str, weight: str
--- flags: allow-oom
--- frame: row
function script.set_weight(base, meta, given, tenant, weight)
  if tonumber(weight) == 1 then
    redis.call("HDEL", base .. "weights", tenant)
  else
    redis.call("HSET", base .. "weights", tenant, weight)
  end
  local by_time = s.row[_row.WEIGHTED] >= _charge.BY_TIME and _charge.BY_TIME or 0
  s.row[_row.WEIGHTED] = redis.call("EXISTS", base .. "weights") + by_time
end
