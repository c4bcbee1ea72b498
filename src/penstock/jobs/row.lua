-- The numbers that nearly every script of a queue needs, packed into one value: one command reads all of them, another
-- writes them. `_row` below lists them in order.
--
--   meta   HASH   row: format, 1 if the intake is open, an array of numbers, when the next row of the history is due
--                      (server ms), how many jobs have entered the queue, and 1 if the open block of ended jobs got its
--                      TTL since the last row of the history (finished.lua), in MessagePack
--
-- The last three may be missing.
--
-- Scripts count the jobs in each state; the lengths of lists would include entries of cancelled jobs. The times NEXT_…
-- are lower bounds: no entry is due earlier, and 0 means that there is no entry. A mark is 1 if its key may hold
-- something, else 0. `LEVELS` is a flat array with three numbers for each level that has entries, the most urgent
-- first: the level, its entries in all lists, and the virtual time that was served last (lane.lua).

_row = {
  IDLE_UNTIL = 1, -- the end of the last sleep; 0: no worker is idle. Only then may the intake be open
  PAUSED = 2, -- 1: no job is claimed
  DUE_FIRST = 3, -- 1: due jobs are claimed before those of their lane
  SEQUENCE = 4, -- the last generation or claim number: one sequence for both, so that no number is used twice
  READY = 5, -- jobs by state, in the order of `_count` in counters.lua
  DELAYED = 6,
  RUNNING = 7,
  DEAD = 8,
  COMPLETED = 9, -- totals
  RETRIED = 10,
  FAILED = 11,
  DROPPED = 12,
  CANCELLED = 13,
  EXPIRED = 14,
  LOST = 15,
  FRONT = 16, -- entries in all front lists
  SUSPECTS = 17, -- entries in `suspects`
  NEXT_DUE = 18, -- server ms: the earliest entry in `delayed`
  NEXT_LEASE = 19, -- the earliest end of a lease
  NEXT_RESULT = 20, -- the earliest end of a result
  RESULT_CLASSES = 21, -- a bit for each list of ends (results.lua)
  SECOND = 22, -- the newest second in which a job became ready
  SECOND_READY = 23, -- how many jobs have been ready since that second
  LISTENED = 24, -- mark: `listeners`
  UNNOTIFIED = 25, -- mark: `unnotified`
  WEIGHTED = 26, -- mark: `weights`; plus 2 if tenants are charged by time (charging.lua)
  LEVELS = 27,
  NEXT_TICK = 28, -- server ms: the earliest entry in `ticks` (schedule.lua)
  WAKE = 29, -- what is known of the idle workers (wake.lua); false while no worker is idle
  -- parked jobs; this number and the next two are absent until the queue has a limit or a pause (limits.lua)
  PARKED = 30,
  NEXT_ADMISSION = 31, -- server ms: the earliest in `admissions`
  LIMITED = 32, -- mark: the queue has limits; from its first hold on, the end of the last one, server ms (holds.lua)
  PAUSES = 33, -- fields of `pauses`; absent until the first one (pauses.lua)
  BATCH = 34, -- settings and times of a queue of batches (linger.lua); absent in others
  -- marks: `dependents`, `events`; this number and the next are absent until the queue has a flow (flow.lua)
  FLOWS = 35,
  DEPENDENT = 36, -- jobs that wait for other jobs
  SLEEPING = 37, -- durable jobs that sleep or wait for a signal; absent until the first one
  NEXT_EXPIRY = 38, -- server ms: the earliest entry in `expiring` (expiry.lua); absent until the first one
  BOUND = 39, -- the most jobs (bounds.lua); absent until the first bound
}

-- The error for a queue that another version has written.
--- (format: str | int) -> error
--- seldom
function row.wrong_format(format)
  local is_older = tonumber(format) and tonumber(format) < record.FORMAT
  local advice = is_older and "an older Penstock has stored the queue: let that finish its jobs, then delete the keys"
    or "a newer Penstock has stored the queue: update this one"
  return redis.error_reply(
    string.format("PENSTOCKFORMAT %s, this Penstock reads %d: %s", tostring(format), record.FORMAT, advice))
end

-- Restores what a few commands show of a row that was deleted: so delayed jobs become due, ticks are offered, and
-- jobs of dead workers are taken back. `penstock doctor` finds the rest.
--- (r: table)
--- uses: base
--- seldom
function row.recover(r)
  for key, field in pairs({ delayed = _row.NEXT_DUE, leases = _row.NEXT_LEASE, ticks = _row.NEXT_TICK }) do
    r[field] = tonumber(redis.call("ZRANGE", base .. key, 0, 0, "WITHSCORES")[2]) or 0
  end
  r[_row.RUNNING] = redis.call("HLEN", base .. "owners") - redis.call("HEXISTS", base .. "owners", "")
end

-- Reads the row into `s`. Returns an error if the queue has another format than this code.
--- (s: table) -> error | nil
--- uses: base meta
function row.load(s)
  local packed = redis.call("HGET", meta, "row")
  if not packed then
    s.row = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, 0, false }
    s.next_history, s.entered, s.has_ttl, s.is_open = 0, 0, 0, true -- perhaps
    s.packed = cmsgpack.pack(record.FORMAT, 0, s.row, 0, 0, 0)
    if redis.call("EXISTS", base .. "jobs", base .. "ticks", base .. "leases") > 0 then row.recover(s.row) end
    local first = redis.call("HGET", meta, "format") -- where the first format stored its number
    return first and row.wrong_format(first) or nil
  end
  local format, open, r, next_history, entered, has_ttl = cmsgpack.unpack(packed)
  if format ~= record.FORMAT then return row.wrong_format(format) end
  s.row, s.packed, s.next_history, s.entered, s.has_ttl = r, packed, next_history or 0, entered or 0, has_ttl or 0
  s.is_open = open == 1
end

-- The frame of a script that reads what does not depend on waiting jobs: it refuses a queue of another format.
--- uses: base meta
function frame.format()
  local newer = row.load({})
  if newer then return newer end
  -- …
end

-- Writes the row if it changed, and the rows of the history that are due. Closes the intake if it has to be closed. If
-- an error ends the script in between, the row may say that the intake is open while it is closed, never the reverse.
--- (s: table)
--- uses: base meta
function row.store(s)
  if s.is_open and row.closes_intake(s.row) then
    redis.call("DEL", base .. "intake")
    s.is_open = false
  end
  local packed = cmsgpack.pack(record.FORMAT, s.is_open and 1 or 0, s.row, s.next_history, s.entered, s.has_ttl)
  if s.counted then history.write(s) end
  if packed ~= s.packed then
    redis.call("HSET", meta, "row", packed)
    s.packed = packed
  end
  if s.opens then
    redis.call("RPUSH", base .. "intake", "")
    s.opens = false
  end
end

-- Gives a value to each field before `field` that has none, because only an array without gaps is packed as an array.
--- (r: table, field: int)
--- seldom
function row.widen(r, field)
  for at = _row.PARKED, field - 1 do r[at] = r[at] or false end
end

-- Whether the intake may not be open: a worker is registered as idle, or a bound may be near.
--- (r: table) -> bool
--- inline
function row.closes_intake(r)
  return r[_row.IDLE_UNTIL] > 0 or r[_row.BOUND] and bounds.closes(r)
end

-- Reserves `n` numbers and returns the one before them.
--- (r: table, n: int) -> int
function row.mint(r, n)
  local last = r[_row.SEQUENCE]
  r[_row.SEQUENCE] = last + n
  return last
end

-- Lowers the lower bound `field` to `at`.
--- (r: table, field: int, at: int)
function row.not_after(r, field, at)
  if r[field] == 0 or at < r[field] then r[field] = at end
end

-- The position in LEVELS of a level; nil if it has no entries.
--- (r: table, level: int) -> int | nil
function row.find_level(r, level)
  local levels = r[_row.LEVELS]
  for i = 1, #levels, 3 do
    if levels[i] == level then return i end
  end
end

-- Adds `n`, which may be negative, to the entries of a level. A level without entries is forgotten, with its time.
--- (r: table, level: int, n: int)
function row.count_entries(r, level, n)
  local levels, at = r[_row.LEVELS], row.find_level(r, level)
  if at then
    levels[at + 1] = levels[at + 1] + n
    if levels[at + 1] <= 0 then
      for _ = 1, 3 do table.remove(levels, at) end
    end
    return
  end
  at = 1
  while levels[at] and levels[at] < level do at = at + 3 end
  table.insert(levels, at, 0)
  table.insert(levels, at, n)
  table.insert(levels, at, level)
end

-- The virtual time that this level served last.
--- (r: table, level: int) -> int
function row.last_served(r, level)
  local at = row.find_level(r, level)
  return at and r[_row.LEVELS][at + 2] or 0
end
