-- Idle workers, and those of them that watch the clock. A wake-up carries no job: the worker that gets it takes a turn.
-- So a lost wake-up costs time, but never a job. core/sleepers.lua chooses the worker that a ready job wakes.
--
--   sleepers         ZSET  address -> server ms until which the worker is idle
--   meta             HASH  woken, woken_deputy, woken_deputy_at (sleepers.lua)
--                          timekeeper, timekeeper_until, deputy, deputy_until: the workers that watch the clock,
--                          and until when they are idle
--                          watch_checked: ms at which an idle worker last checked that both are there
--                          alarm: ms at which the timekeeper takes a turn
--   row              (row.lua)  IDLE_UNTIL: after that time no worker is idle, and no script reads these keys
--
-- A worker is registered as idle by the turn that found nothing. One idle worker, the timekeeper, knows when the next
-- job is due or the next lease runs out. Its deputy (core/deputy.lua) becomes the timekeeper if it finds that the
-- timekeeper has not acted. If the process of either is gone, the script that finds it so appoints another worker at
-- once.

_delay = { CHECK = 1000 } -- ms

-- Wakes one idle worker, unless one was woken in the last 50 ms and has not taken its turn yet, or a batch lingers.
--- (r: table, now: int)
--- uses: base meta
function wake.one(r, now)
  if r[_row.IDLE_UNTIL] <= now then
    if r[_row.IDLE_UNTIL] > 0 then redis.call("DEL", base .. "sleepers") end
    r[_row.IDLE_UNTIL] = 0
    return
  end
  if r[_row.BATCH] and not linger.is_over(r, now) then return end
  wake.replace(sleepers.wake_one(base .. "sleepers", meta, "", now), r, now)
end

-- Wakes up to `n` idle workers, at most a hundred, because that many jobs became suspects. Each worker starts a process
-- that tries suspects.
--- (r: table, now: int, n: int)
--- uses: base meta
function wake.many(r, now, n)
  if r[_row.IDLE_UNTIL] <= now then return end
  wake.replace(sleepers.wake_many(base .. "sleepers", now, n), r, now)
end

-- Records that a turn has followed the last wake-up.
--- (r: table, now: int)
--- uses: meta
function wake.answered(r, now)
  if r[_row.IDLE_UNTIL] > now then sleepers.answered(meta, "") end
end

-- If one of the workers that are `gone` watched the clock, appoints another.
--- (gone: table, r: table, now: int)
--- uses: base meta
function wake.replace(gone, r, now)
  if #gone == 0 then return end
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy")
  for i = 1, #gone do
    if gone[i] == watch[1] or gone[i] == watch[2] then return wake.appoint(r, now) end
  end
end

-- Makes the timekeeper take a turn at `due`, when a job will be due or a lease will run out, and the deputy 300 ms
-- later. Sends nothing if the timekeeper takes a turn before `due` anyway.
--- (r: table, now: int, due: int)
--- uses: base meta
function wake.set_alarm(r, now, due)
  if r[_row.IDLE_UNTIL] <= now then return end
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy", "alarm")
  local alarm = watch[3] and tonumber(watch[3]) or 0
  if not watch[1] or (alarm > now and alarm <= due) then return end
  redis.call("HSET", meta, "alarm", due)
  local wait = math.max(0, due - now)
  local reached = deputy.ask(watch[1], wait)
  if watch[2] then reached = deputy.ask(watch[2], wait + _deputy.DUE) and reached end
  if not reached then wake.appoint(r, now) end
end

-- Milliseconds until the next job or tick is due, the next lease runs out, or results are to be removed; -1 if there is
-- nothing of the kind. Results are removed once a minute if nothing else happens, and faster while many are overdue.
--- (r: table, now: int) -> int
--- uses: base
function wake.next_event(r, now)
  local due = r[_row.NEXT_DUE] > 0 and redis.call("ZRANGE", base .. "delayed", 0, 0, "WITHSCORES") or {}
  local ends = redis.call("ZRANGE", base .. "leases", 0, 0, "WITHSCORES")
  -- If the row was lost, the turn at this time must find the lease, or workers would take turns without a pause.
  if ends[2] then row.not_after(r, _row.NEXT_LEASE, tonumber(ends[2])) end
  local at = math.min(tonumber(due[2]) or math.huge, tonumber(ends[2]) or math.huge)
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

-- Sets the alarm of the timekeeper to the next event. Returns the milliseconds until then, or -1.
--- (r: table, now: int) -> int
--- uses: base meta
function wake.timekeeper_wait(r, now)
  local event = wake.next_event(r, now)
  if event < 0 then redis.call("HDEL", meta, "alarm") else redis.call("HSET", meta, "alarm", now + event) end
  return event
end

-- Makes this worker the timekeeper, and sets its alarm as `timekeeper_wait` does. Returns what that returns.
--- (r: table, address: str, until_: int | str, now: int) -> int
--- uses: base meta
function wake.watch(r, address, until_, now)
  local event = wake.next_event(r, now)
  if event < 0 then
    redis.call("HSET", meta, "timekeeper", address, "timekeeper_until", until_)
    redis.call("HDEL", meta, "alarm")
  else
    redis.call("HSET", meta, "timekeeper", address, "timekeeper_until", until_, "alarm", now + event)
  end
  return event
end

-- The milliseconds after which the deputy acts, or -1. It acts 300 ms after the timekeeper.
--- (r: table, now: int) -> int
--- uses: base meta
function wake.deputy_wait(r, now)
  local event = wake.next_event(r, now)
  local alarm = redis.call("HGET", meta, "alarm")
  if alarm and tonumber(alarm) > now then event = event < 0 and alarm - now or math.min(event, alarm - now) end
  return event < 0 and event or event + _deputy.DUE
end

-- Appoints a timekeeper and a deputy if they are missing or gone, and notifies them. The deputy replaces the
-- timekeeper. Otherwise they are the workers that became idle last.
--- (r: table, now: int)
--- uses: base meta
function wake.appoint(r, now)
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy", "deputy_until")
  local timekeeper, second, until_ = wake.present(watch[1]), wake.present(watch[2]), watch[3]
  if not timekeeper then
    redis.call("HDEL", meta, "timekeeper", "timekeeper_until")
    local event = wake.next_event(r, now)
    local text = wake.message(event)
    if second and tonumber(until_) > now then
      timekeeper, second = second, false
      if text then notify.send(timekeeper, text) end
    else
      timekeeper, until_ = sleepers.notify_last(base .. "sleepers", now, nil, text, {})
    end
    if timekeeper then
      wake.watch(r, timekeeper, until_, now)
    end
  end
  if not second then
    redis.call("HDEL", meta, "deputy", "deputy_until")
    if not timekeeper then return end
    local event = wake.deputy_wait(r, now)
    local text = wake.message(event)
    second, until_ = sleepers.notify_last(base .. "sleepers", now, timekeeper, text, {})
    if second then redis.call("HSET", meta, "deputy", second, "deputy_until", until_) end
  end
end

-- The message that makes a worker take a turn after `ms` milliseconds; nil for -1.
--- (ms: int) -> str | nil
--- inline
function wake.message(ms)
  return ms >= 0 and string.format("%d", ms) or nil
end

-- The address, or false if its process is gone. Such a worker is removed from the idle ones.
--- (address: str | false) -> str | false
--- uses: base
function wake.present(address)
  if not address or notify.reaches(address) then return address end
  redis.call("ZREM", base .. "sleepers", address)
  return false
end

-- Call it when the worker at `address` has found work that the timekeeper should have found earlier. Removes and wakes
-- the timekeeper; if it is alive, its next turn may register it as idle again. Returns false if there is no timekeeper,
-- or if it is this worker.
--- (address: str) -> bool
--- uses: base meta
function wake.remove_timekeeper(address)
  local timekeeper = redis.call("HGET", meta, "timekeeper")
  if not timekeeper or timekeeper == address then return false end
  redis.call("ZREM", base .. "sleepers", timekeeper)
  redis.call("HDEL", meta, "timekeeper", "timekeeper_until")
  notify.send(timekeeper, "0")
  return true
end

-- Registers a worker as idle, and makes it timekeeper or deputy if that duty is vacant. Returns the milliseconds after
-- which it takes a turn without a message, or -1; and whether it is the timekeeper, whose alarm is then set.
--- (r: table, address: str, now: int, until_: int) -> int, bool
--- uses: base meta
function wake.register(r, address, now, until_)
  r[_row.IDLE_UNTIL] = math.max(r[_row.IDLE_UNTIL], until_)
  redis.call("ZADD", base .. "sleepers", until_, address)
  local watch = redis.call("HMGET", meta, "timekeeper", "timekeeper_until", "deputy", "deputy_until",
    "watch_checked")
  local timekeeper = watch[1] and tonumber(watch[2]) > now and watch[1]
  local second = watch[3] and tonumber(watch[4]) > now and watch[3]
  if timekeeper and math.abs(now - (watch[5] or 0)) >= _delay.CHECK then
    redis.call("HSET", meta, "watch_checked", now)
    timekeeper, second = wake.present(timekeeper), wake.present(second)
  end
  if timekeeper == address then return wake.watch(r, address, until_, now), true end
  if not timekeeper then
    redis.call("HSET", meta, "timekeeper", address, "timekeeper_until", until_)
    if not second or not deputy.may_follow(second, address) then
      redis.call("HDEL", meta, "deputy", "deputy_until")
    end
    wake.appoint(r, now)
    return wake.timekeeper_wait(r, now), true
  end
  if second == address or (not second and deputy.may_follow(timekeeper, address)) then
    redis.call("HSET", meta, "deputy", address, "deputy_until", until_)
    return wake.deputy_wait(r, now), false
  end
  return -1, false
end

-- Removes a worker from the idle ones. If it was the timekeeper, the deputy replaces it. Other idle workers take the
-- duties that become vacant.
--- (r: table, address: str, now: int)
--- uses: base meta
function wake.deregister(r, address, now)
  redis.call("ZREM", base .. "sleepers", address)
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy")
  if watch[1] == address then
    redis.call("HDEL", meta, "timekeeper", "timekeeper_until")
  elseif watch[2] == address then
    redis.call("HDEL", meta, "deputy", "deputy_until")
  else
    wake.forget_sleep(r)
    return
  end
  wake.appoint(r, now)
  wake.forget_sleep(r)
end

-- Notes in the row that no worker is idle, if the last one is gone.
--- (r: table)
--- uses: base
function wake.forget_sleep(r)
  if redis.call("EXISTS", base .. "sleepers") == 0 then r[_row.IDLE_UNTIL] = 0 end
end
