-- Idle workers, and those of them that watch the clock. A wake-up carries no job: the worker that gets it takes a turn.
-- So a lost wake-up costs time, but never a job. core/sleepers.lua chooses the worker that a ready job wakes.
--
--   sleepers   ZSET       address -> server ms until which the worker is idle; a single one is in the row instead
--   row        (row.lua)  IDLE_UNTIL: after that time no worker is idle. WAKE: a `_wake`, or false if no worker is idle
--
-- A worker is registered as idle by the turn that found nothing. One idle worker, the timekeeper, knows when the next
-- job is due or the next lease runs out. Its deputy (core/deputy.lua) becomes the timekeeper if it finds that the
-- timekeeper has not acted. If the process of either is gone, the script that finds it so appoints another worker at
-- once.

-- The idle workers; a value that is not known is false. The first three are a `_woken` of sleepers.lua.
_wake = {
  WOKEN = 1,
  TIMEKEEPER = 4, -- the workers that watch the clock, and until when they are idle
  TIMEKEEPER_UNTIL = 5,
  DEPUTY = 6,
  DEPUTY_UNTIL = 7,
  ALARM = 8, -- ms at which the timekeeper takes a turn
  CHECKED = 9, -- ms at which an idle worker last checked that both are there
  ALONE = 10, -- the only idle worker; then `sleepers` is empty
  ALONE_UNTIL = 11,
  LISTED = 12, -- true if `sleepers` may have workers
}

_delay = { CHECK = 1000 } -- ms

-- The `_wake` of the row.
--- (r: table) -> table
function wake.marks(r)
  local marks = r[_row.WAKE]
  if not marks then
    marks = { false, false, false, false, false, false, false, false, false, false, false, false }
    r[_row.WAKE] = marks
  end
  return marks
end

-- Wakes one idle worker, unless one was woken in the last 50 ms and has not taken its turn yet, or a batch lingers.
--- (r: table, now: int)
--- uses: base
function wake.one(r, now)
  if r[_row.IDLE_UNTIL] <= now then return wake.forget_all(r) end
  if r[_row.BATCH] and not linger.is_over(r, now) then return end
  local marks, gone = wake.marks(r), {}
  local alone = marks[_wake.ALONE]
  if not alone then
    local is_empty = true
    if marks[_wake.LISTED] then gone, is_empty = sleepers.wake_one(base .. "sleepers", marks, now) end
    if is_empty then marks[_wake.LISTED] = false end
  elseif not sleepers.was_woken(marks, now) then
    marks[_wake.ALONE] = false
    if marks[_wake.ALONE_UNTIL] > now and notify.send(alone, "0") then marks[_wake.WOKEN] = now else gone[1] = alone end
  end
  wake.replace(gone, r, now)
end

-- Wakes up to `n` idle workers, at most a hundred, because that many jobs became suspects. Each worker starts a process
-- that tries suspects.
--- (r: table, now: int, n: int)
--- uses: base
--- seldom
function wake.many(r, now, n)
  if r[_row.IDLE_UNTIL] <= now then return end
  local marks = wake.marks(r)
  local alone = marks[_wake.ALONE]
  if alone then
    marks[_wake.ALONE] = false
    if not notify.send(alone, "0") then wake.replace({ alone }, r, now) end
  elseif marks[_wake.LISTED] then
    wake.replace(sleepers.wake_many(base .. "sleepers", now, n), r, now)
  end
end

-- Records that a turn has followed the last wake-up.
--- (r: table)
function wake.answered(r)
  if r[_row.WAKE] then r[_row.WAKE][_wake.WOKEN] = false end
end

-- Forgets all idle workers: the time until which they were registered is over.
--- (r: table)
--- uses: base
--- seldom
function wake.forget_all(r)
  if r[_row.WAKE] and r[_row.WAKE][_wake.LISTED] then redis.call("DEL", base .. "sleepers") end
  r[_row.IDLE_UNTIL], r[_row.WAKE] = 0, false
end

-- If one of the workers that are `gone` watched the clock, appoints another.
--- (gone: table, r: table, now: int)
--- uses: base
function wake.replace(gone, r, now)
  local marks = r[_row.WAKE]
  for i = 1, #gone do
    if gone[i] == marks[_wake.TIMEKEEPER] or gone[i] == marks[_wake.DEPUTY] then return wake.appoint(r, now) end
  end
end

-- Makes the timekeeper take a turn at `due`, when a job will be due or a lease will run out, and the deputy 300 ms
-- later. Sends nothing if the timekeeper takes a turn before `due` anyway.
--- (r: table, now: int, due: int)
--- uses: base
--- seldom
function wake.set_alarm(r, now, due)
  if r[_row.IDLE_UNTIL] <= now then return end
  local marks = wake.marks(r)
  local timekeeper, second, alarm = marks[_wake.TIMEKEEPER], marks[_wake.DEPUTY], marks[_wake.ALARM] or 0
  if not timekeeper or (alarm > now and alarm <= due) then return end
  marks[_wake.ALARM] = due
  local wait = math.max(0, due - now)
  local reached = deputy.ask(timekeeper, wait)
  if second then reached = deputy.ask(second, wait + _deputy.DUE) and reached end
  if not reached then wake.appoint(r, now) end
end

-- Milliseconds until the next job or tick is due, the next lease runs out, or results are to be removed; -1 if there is
-- nothing of the kind. Results are removed once a minute if nothing else happens, and faster while many are overdue.
--- (r: table, now: int) -> int
--- uses: base
function wake.next_event(r, now)
  local due = r[_row.NEXT_DUE] > 0 and redis.call("ZRANGE", base .. "delayed", 0, 0, "WITHSCORES") or {}
  local marks, ends = wake.marks(r), r[_row.NEXT_LEASE]
  if ends <= now or not marks[_wake.ALONE] then
    -- If the row was lost, the turn at this time must find the lease, or workers would take turns without a pause.
    ends = tonumber(redis.call("ZRANGE", base .. "leases", 0, 0, "WITHSCORES")[2]) or 0
    r[_row.NEXT_LEASE] = ends
  elseif r[_row.RUNNING] == 0 then
    ends = marks[_wake.ALONE_UNTIL] -- no job is lost with a lease, and the only idle worker takes a turn by then
  end
  local at = math.min(tonumber(due[2]) or math.huge, ends > 0 and ends or math.huge)
  if r[_row.NEXT_TICK] > 0 then at = math.min(at, r[_row.NEXT_TICK]) end
  local admission = r[_row.NEXT_ADMISSION]
  if admission and admission > 0 then at = math.min(at, admission) end
  if r[_row.BATCH] then at = math.min(at, linger.due(r, now)) end
  if (r[_row.NEXT_EXPIRY] or 0) > 0 then
    at = math.min(at, tonumber(redis.call("ZRANGE", base .. "expiring", 0, 0, "WITHSCORES")[2]) or math.huge)
  end
  local result = r[_row.NEXT_RESULT]
  if result > 0 then at = math.min(at, math.max(result, now + (result > now and _trim.PAUSE or _trim.BUSY_PAUSE))) end
  return at < math.huge and math.max(0, at - now) or -1
end

-- Makes this worker the timekeeper, and sets its alarm to the next event. Returns the milliseconds until then, or -1.
--- (r: table, address: str, until_: int, now: int) -> int
--- uses: base
function wake.watch(r, address, until_, now)
  local marks, event = wake.marks(r), wake.next_event(r, now)
  marks[_wake.TIMEKEEPER], marks[_wake.TIMEKEEPER_UNTIL] = address, until_
  marks[_wake.ALARM] = event >= 0 and now + event
  return event
end

-- The milliseconds after which the deputy acts, or -1. It acts 300 ms after the timekeeper.
--- (r: table, now: int) -> int
--- uses: base
--- seldom
function wake.deputy_wait(r, now)
  local event, alarm = wake.next_event(r, now), wake.marks(r)[_wake.ALARM]
  if alarm and alarm > now then event = event < 0 and alarm - now or math.min(event, alarm - now) end
  return event < 0 and event or event + _deputy.DUE
end

-- Appoints a timekeeper and a deputy if they are missing or gone, and notifies them. The deputy replaces the
-- timekeeper. Otherwise they are the workers that became idle last.
--- (r: table, now: int)
--- uses: base
--- seldom
function wake.appoint(r, now)
  local marks = wake.marks(r)
  local timekeeper, second = wake.present(r, marks[_wake.TIMEKEEPER]), wake.present(r, marks[_wake.DEPUTY])
  local until_ = marks[_wake.DEPUTY_UNTIL]
  if not timekeeper then
    marks[_wake.TIMEKEEPER] = false
    local event = wake.next_event(r, now)
    local text = wake.message(event)
    if second and until_ > now then
      timekeeper, second = second, false
      if text then notify.send(timekeeper, text) end
    else
      timekeeper, until_ = wake.notify_last(r, now, nil, text)
    end
    if timekeeper then wake.watch(r, timekeeper, until_, now) end
  end
  if not second then
    marks[_wake.DEPUTY] = false
    if not timekeeper then return end
    local event = wake.deputy_wait(r, now)
    second, until_ = wake.notify_last(r, now, timekeeper, wake.message(event))
    if second then marks[_wake.DEPUTY], marks[_wake.DEPUTY_UNTIL] = second, until_ end
  end
end

-- Sends `text` to the worker that became idle last, as `sleepers.notify_last` does. Returns its address and until when
-- it is idle; nil if no worker is idle.
--- (r: table, now: int, other: str | nil, text: str | nil) -> str | nil, int
--- uses: base
function wake.notify_last(r, now, other, text)
  local marks = wake.marks(r)
  local alone, until_ = marks[_wake.ALONE], marks[_wake.ALONE_UNTIL]
  if alone then
    if until_ <= now or other and not deputy.may_follow(other, alone) then return nil end
    if text and notify.send(alone, text) or not text and notify.reaches(alone) then return alone, until_ end
    marks[_wake.ALONE] = false
  elseif marks[_wake.LISTED] then
    local address, till = sleepers.notify_last(base .. "sleepers", now, other, text, {})
    return address, tonumber(till)
  end
end

-- The message that makes a worker take a turn after `ms` milliseconds; nil for -1.
--- (ms: int) -> str | nil
--- inline
function wake.message(ms)
  return ms >= 0 and string.format("%d", ms) or nil
end

-- The address, or false if its process is gone. Such a worker is removed from the idle ones.
--- (r: table, address: str | false) -> str | false
--- uses: base
--- seldom
function wake.present(r, address)
  if not address or notify.reaches(address) then return address end
  wake.remove(r, address)
  return false
end

-- Removes a worker from the idle ones, if it is one of them.
--- (r: table, address: str)
--- uses: base
function wake.remove(r, address)
  local marks = wake.marks(r)
  if marks[_wake.ALONE] == address then
    marks[_wake.ALONE] = false
  elseif marks[_wake.LISTED] then
    redis.call("ZREM", base .. "sleepers", address)
  end
end

-- Call it when the worker at `address` has found work that the timekeeper should have found earlier. Removes and wakes
-- the timekeeper; if it is alive, its next turn may register it as idle again. Returns false if there is no timekeeper,
-- or if it is this worker.
--- (r: table, address: str) -> bool
--- uses: base
--- seldom
function wake.remove_timekeeper(r, address)
  local marks = r[_row.WAKE]
  local timekeeper = marks and marks[_wake.TIMEKEEPER]
  if not timekeeper or timekeeper == address then return false end
  wake.remove(r, timekeeper)
  marks[_wake.TIMEKEEPER] = false
  notify.send(timekeeper, "0")
  return true
end

-- Adds a worker to the idle ones. The second one brings the first into the list.
--- (r: table, address: str, until_: int)
--- uses: base
function wake.add(r, address, until_)
  local marks = wake.marks(r)
  local alone = marks[_wake.ALONE]
  r[_row.IDLE_UNTIL] = math.max(r[_row.IDLE_UNTIL], until_)
  if not marks[_wake.LISTED] and (not alone or alone == address) then
    marks[_wake.ALONE], marks[_wake.ALONE_UNTIL] = address, until_
  elseif alone then
    redis.call("ZADD", base .. "sleepers", marks[_wake.ALONE_UNTIL], alone, until_, address)
    marks[_wake.ALONE], marks[_wake.LISTED] = false, true
  else
    redis.call("ZADD", base .. "sleepers", until_, address)
  end
end

-- Registers a worker as idle, and makes it timekeeper or deputy if that duty is vacant. Returns the milliseconds after
-- which it takes a turn without a message, or -1; and whether it is the timekeeper, whose alarm is then set.
--- (r: table, address: str, now: int, until_: int) -> int, bool
--- uses: base
function wake.register(r, address, now, until_)
  wake.add(r, address, until_)
  local marks = r[_row.WAKE]
  local timekeeper, second = marks[_wake.TIMEKEEPER], marks[_wake.DEPUTY]
  if timekeeper and marks[_wake.TIMEKEEPER_UNTIL] <= now then timekeeper = false end
  if second and marks[_wake.DEPUTY_UNTIL] <= now then second = false end
  if timekeeper and timekeeper ~= address and math.abs(now - (marks[_wake.CHECKED] or 0)) >= _delay.CHECK then
    marks[_wake.CHECKED] = now
    timekeeper, second = wake.present(r, timekeeper), wake.present(r, second)
  end
  if timekeeper == address then return wake.watch(r, address, until_, now), true end
  if not timekeeper then
    marks[_wake.TIMEKEEPER], marks[_wake.TIMEKEEPER_UNTIL] = address, until_
    if not second or not deputy.may_follow(second, address) then marks[_wake.DEPUTY] = false end
    wake.appoint(r, now)
    return wake.watch(r, address, until_, now), true
  end
  if second == address or (not second and deputy.may_follow(timekeeper, address)) then
    marks[_wake.DEPUTY], marks[_wake.DEPUTY_UNTIL] = address, until_
    return wake.deputy_wait(r, now), false
  end
  return -1, false
end

-- Removes a worker from the idle ones. If it was the timekeeper, the deputy replaces it. Other idle workers take the
-- duties that become vacant.
--- (r: table, address: str, now: int)
--- uses: base
--- seldom
function wake.deregister(r, address, now)
  if not r[_row.WAKE] then return end
  wake.remove(r, address)
  local marks = r[_row.WAKE]
  if marks[_wake.TIMEKEEPER] == address then
    marks[_wake.TIMEKEEPER] = false
    wake.appoint(r, now)
  elseif marks[_wake.DEPUTY] == address then
    marks[_wake.DEPUTY] = false
    wake.appoint(r, now)
  end
  if marks[_wake.LISTED] and redis.call("EXISTS", base .. "sleepers") == 0 then marks[_wake.LISTED] = false end
  if not marks[_wake.LISTED] and not marks[_wake.ALONE] then r[_row.IDLE_UNTIL], r[_row.WAKE] = 0, false end
end
