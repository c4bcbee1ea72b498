-- Idle workers and their wake-ups. A wake-up carries no job: the worker that gets it takes a turn. So a lost wake-up
-- costs time, but never a job.
--
--   sleepers         ZSET  address -> server ms until which the worker is idle
--   inbox: (notify)
--   meta             HASH  woken: ms of the last wake-up, until a turn follows it
--                          witness, check_at: the worker that takes a turn in case the woken one does not, and when
--                          timekeeper, timekeeper_until, deputy, deputy_until: the workers that watch the clock,
--                          and until when they are idle
--                          alarm: ms at which the timekeeper takes a turn
--
-- Messages to an idle worker: "0": take a turn now; "<n>": take a turn in n ms.
--
-- A worker is registered as idle by the turn that found nothing. A job that becomes ready wakes the worker that became
-- idle last. That one may be frozen, so a second idle worker, the witness, takes a turn 50 ms later. One idle worker,
-- the timekeeper, knows when the next job is due or the next lease runs out. The deputy wakes 300 ms later, and becomes
-- the timekeeper if it finds that the timekeeper has not acted. Witness and deputy belong to other processes than the
-- worker that they replace.

_delay = { WITNESS = 50, DEPUTY = 300 } -- ms

-- The worker that became idle last, and until when it is idle. Skips workers in the process of `other`, because
-- whatever froze that worker froze them as well. Reads four sleepers and, if needed, up to a hundred. If even the
-- latest deadline has passed, all sleepers are gone, and the set is deleted.
--- (now: int, other: str | nil) -> str | nil, str
--- uses: base
function wake.last_idle(now, other)
  local process = other and notify.face(other)
  local from = 0
  for _, to in ipairs({ 3, 100 }) do
    local found = redis.call("ZRANGE", base .. "sleepers", from, to, "REV", "WITHSCORES")
    for i = 1, #found, 2 do
      if tonumber(found[i + 1]) <= now then
        if from == 0 and i == 1 then redis.call("DEL", base .. "sleepers") end
        return
      end
      if notify.face(found[i]) ~= process then return found[i], found[i + 1] end
    end
    if #found < 2 * (to + 1 - from) then return end
    from = to + 1
  end
end

-- Wakes one idle worker, unless one was woken in the last 50 ms and has not taken its turn yet.
--- (now: int)
--- uses: base meta
function wake.one(now)
  local worker = wake.last_idle(now)
  if not worker then return end
  local watch = redis.call("HMGET", meta, "woken", "check_at", "witness")
  if watch[1] and math.abs(now - watch[1]) < _delay.WITNESS then return end
  redis.call("ZREM", base .. "sleepers", worker)
  notify.send(worker, "0")
  redis.call("HSET", meta, "woken", now)
  -- No new witness is needed if one that is still idle takes its turn within the next 50 ms.
  local has_witness = watch[2] and math.abs(watch[2] - now - 25) <= 25
    and redis.call("ZSCORE", base .. "sleepers", watch[3])
  local witness = not has_witness and wake.last_idle(now, worker)
  if witness then
    notify.send(witness, string.format("%d", _delay.WITNESS))
    redis.call("HSET", meta, "check_at", now + _delay.WITNESS, "witness", witness)
  end
end

-- Wakes up to a hundred idle workers, because a job became a suspect. A worker runs only one suspect at a time, and
-- only the worker itself knows whether it is running one, so many are asked. This happens only after a worker died.
--- (now: int)
--- uses: base
function wake.many(now)
  local found = redis.call("ZRANGE", base .. "sleepers", now, "+inf", "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #found do notify.send(found[i], "0") end
  if #found > 0 then redis.call("ZREM", base .. "sleepers", unpack(found)) end
end

-- Records that a turn has followed the last wake-up.
--- uses: meta
function wake.answered()
  redis.call("HDEL", meta, "woken")
end

-- Makes the timekeeper take a turn at `due`, when a job will be due or a lease will run out, and the deputy 300 ms
-- later. Sends nothing if the timekeeper takes a turn before `due` anyway.
--- (now: int, due: int)
--- uses: base meta
function wake.set_alarm(now, due)
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy", "alarm")
  local alarm = watch[3] and tonumber(watch[3]) or 0
  if not watch[1] or (alarm > now and alarm <= due) then return end
  notify.send(watch[1], string.format("%d", math.max(0, due - now)))
  if watch[2] then notify.send(watch[2], string.format("%d", math.max(0, due - now) + _delay.DEPUTY)) end
  redis.call("HSET", meta, "alarm", due)
end

-- Milliseconds until a job is due or a lease runs out; -1 if neither will be.
--- (now: int) -> int
--- uses: base
function wake.next_event(now)
  local due = redis.call("ZRANGE", base .. "delayed", 0, 0, "WITHSCORES")
  local ends = redis.call("ZRANGE", base .. "leases", 0, 0, "WITHSCORES")
  local at = math.min(tonumber(due[2]) or math.huge, tonumber(ends[2]) or math.huge)
  return at < math.huge and math.max(0, at - now) or -1
end

-- Sets the alarm of the timekeeper to the next event. Returns the milliseconds until then, or -1.
--- (now: int) -> int
--- uses: base meta
function wake.timekeeper_wait(now)
  local event = wake.next_event(now)
  if event < 0 then redis.call("HDEL", meta, "alarm") else redis.call("HSET", meta, "alarm", now + event) end
  return event
end

-- The milliseconds after which the deputy acts, or -1. It acts 300 ms after the timekeeper.
--- (now: int) -> int
--- uses: base meta
function wake.deputy_wait(now)
  local event = wake.next_event(now)
  local alarm = redis.call("HGET", meta, "alarm")
  if alarm and tonumber(alarm) > now then event = event < 0 and alarm - now or math.min(event, alarm - now) end
  return event < 0 and event or event + _delay.DEPUTY
end

-- Appoints a timekeeper and a deputy if they are missing, from the workers that became idle last, and notifies them.
--- (now: int)
--- uses: base meta
function wake.appoint(now)
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy")
  local timekeeper = watch[1]
  if not timekeeper then
    local until_
    timekeeper, until_ = wake.last_idle(now)
    if not timekeeper then return end
    redis.call("HSET", meta, "timekeeper", timekeeper, "timekeeper_until", until_)
    local event = wake.timekeeper_wait(now)
    if event >= 0 then notify.send(timekeeper, string.format("%d", event)) end
  end
  if not watch[2] then
    local deputy, until_ = wake.last_idle(now, timekeeper)
    if not deputy then return end
    redis.call("HSET", meta, "deputy", deputy, "deputy_until", until_)
    local event = wake.deputy_wait(now)
    if event >= 0 then notify.send(deputy, string.format("%d", event)) end
  end
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
-- which it takes a turn without a message, or -1.
--- (address: str, now: int, until_: int) -> int
--- uses: base meta
function wake.register(address, now, until_)
  redis.call("ZADD", base .. "sleepers", until_, address)
  local watch = redis.call("HMGET", meta, "timekeeper", "timekeeper_until", "deputy", "deputy_until")
  local timekeeper = watch[1] and tonumber(watch[2]) > now and watch[1]
  local deputy = watch[3] and tonumber(watch[4]) > now and watch[3]
  if timekeeper == address or not timekeeper then
    redis.call("HSET", meta, "timekeeper", address, "timekeeper_until", until_)
    if not timekeeper then
      if not deputy or notify.face(deputy) == notify.face(address) then
        redis.call("HDEL", meta, "deputy", "deputy_until")
      end
      wake.appoint(now)
    end
    return wake.timekeeper_wait(now)
  end
  if deputy == address or (not deputy and notify.face(timekeeper) ~= notify.face(address)) then
    redis.call("HSET", meta, "deputy", address, "deputy_until", until_)
    return wake.deputy_wait(now)
  end
  return -1
end

-- Removes a worker from the idle ones. If it was the timekeeper, the deputy replaces it. Other idle workers take the
-- duties that become vacant.
--- (address: str, now: int)
--- uses: base meta
function wake.deregister(address, now)
  redis.call("ZREM", base .. "sleepers", address)
  local watch = redis.call("HMGET", meta, "timekeeper", "deputy", "deputy_until")
  if watch[1] == address then
    redis.call("HDEL", meta, "timekeeper", "timekeeper_until", "deputy", "deputy_until")
    if watch[2] and tonumber(watch[3]) > now then
      redis.call("HSET", meta, "timekeeper", watch[2], "timekeeper_until", watch[3])
      local event = wake.timekeeper_wait(now)
      if event >= 0 then notify.send(watch[2], string.format("%d", event)) end
    end
  elseif watch[2] == address then
    redis.call("HDEL", meta, "deputy", "deputy_until")
  else
    return
  end
  wake.appoint(now)
end
