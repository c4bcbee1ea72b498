-- Sleepers, and who wakes them. A wake-up carries no job: who is woken asks, so a lost one costs time only.
--
--   sleepers         ZSET  address -> server ms until which it says it sleeps
--   inbox:<process>  LIST  "<number> <message>" for the waiters of one process, which blocks on it; PX
--   meta             HASH  rung: ms of a wake-up no turn followed yet; look, witness: ms at which who looks
--                          timekeeper, timekeeper_till, deputy, deputy_till: who watches the clock
--                          watch: ms at which the timekeeper looks next
--
-- An address is `process/number`. Messages to a sleeper: "0" take a turn now, "<n>" take one in n ms.
--
-- Going to sleep is recorded in the step that found nothing. A job that becomes ready wakes the sleeper that
-- lay down last, and tells a second one, the witness, to look 50 ms later: the first may be frozen. Of the
-- sleepers one, the timekeeper, is told when the next job is due (or a lease runs out); the deputy is told the same
-- and 300 ms more, and takes the office over when it finds that the timekeeper did not act. Witness and deputy are of
-- another process than the one they stand in for.

-- The sleeper that lay down last, and until when; not of the process of `than`, for what froze that one froze its
-- neighbours. Looks at a few, then at a hundred; when even the last is overdue, all are gone.
--- (now: int, than: str | nil) -> str | nil, str
--- uses: base
function wake.latest(now, than)
  local process = than and notify.face(than)
  local from = 0
  for _, till in ipairs({ 3, 100 }) do
    local found = redis.call("ZRANGE", base .. "sleepers", from, till, "REV", "WITHSCORES")
    for i = 1, #found, 2 do
      if tonumber(found[i + 1]) <= now then
        if from == 0 and i == 1 then redis.call("DEL", base .. "sleepers") end
        return
      end
      if notify.face(found[i]) ~= process then return found[i], found[i + 1] end
    end
    if #found < 2 * (till + 1 - from) then return end
    from = till + 1
  end
end

-- Wake one sleeper, unless one was woken within 50 ms and has not come yet.
--- (now: int)
--- uses: base meta
function wake.ring(now)
  local sleeper = wake.latest(now)
  if not sleeper then return end
  local marks = redis.call("HMGET", meta, "rung", "look", "witness")
  if marks[1] and math.abs(now - marks[1]) < 50 then return end
  redis.call("ZREM", base .. "sleepers", sleeper)
  notify.send(sleeper, "0")
  redis.call("HSET", meta, "rung", now)
  local looks = marks[2] and math.abs(marks[2] - now - 25) <= 25 and redis.call("ZSCORE", base .. "sleepers", marks[3])
  local witness = not looks and wake.latest(now, sleeper)
  if witness then
    notify.send(witness, "50")
    redis.call("HSET", meta, "look", now + 50, "witness", witness)
  end
end

-- A suspect came up. Each sleeper may take one, but not those who try one already, and who that is they know alone; so a
-- hundred are woken. It happens when a worker died.
--- (now: int)
--- uses: base
function wake.everyone(now)
  local found = redis.call("ZRANGE", base .. "sleepers", now, "+inf", "BYSCORE", "LIMIT", 0, 100)
  for i = 1, #found do notify.send(found[i], "0") end
  if #found > 0 then redis.call("ZREM", base .. "sleepers", unpack(found)) end
end

--- uses: meta
function wake.answered()
  redis.call("HDEL", meta, "rung")
end

-- A job will be due, or a lease run out: tell those who watch the clock, unless the timekeeper looks before then.
--- (now: int, due: int)
--- uses: base meta
function wake.arm(now, due)
  local office = redis.call("HMGET", meta, "timekeeper", "deputy", "watch")
  local watch = office[3] and tonumber(office[3]) or 0
  if not office[1] or (watch > now and watch <= due) then return end
  notify.send(office[1], string.format("%d", math.max(0, due - now)))
  if office[2] then notify.send(office[2], string.format("%d", math.max(0, due - now) + 300)) end
  redis.call("HSET", meta, "watch", due)
end

-- Milliseconds until a job is due or a lease runs out; -1 when nothing is planned.
--- (now: int) -> int
--- uses: base
function wake.next_event(now)
  local due = redis.call("ZRANGE", base .. "delayed", 0, 0, "WITHSCORES")
  local lease = redis.call("ZRANGE", base .. "leases", 0, 0, "WITHSCORES")
  local at = math.min(tonumber(due[2]) or math.huge, tonumber(lease[2]) or math.huge)
  return at < math.huge and math.max(0, at - now) or -1
end

-- The next event, which the timekeeper is told now.
--- (now: int) -> int
--- uses: base meta
function wake.watch(now)
  local event = wake.next_event(now)
  if event < 0 then redis.call("HDEL", meta, "watch") else redis.call("HSET", meta, "watch", now + event) end
  return event
end

-- The same for the deputy: 300 ms after the timekeeper should have looked.
--- (now: int) -> int
--- uses: base meta
function wake.deputy_event(now)
  local event = wake.next_event(now)
  local watch = redis.call("HGET", meta, "watch")
  if watch and tonumber(watch) > now then event = event < 0 and watch - now or math.min(event, watch - now) end
  return event < 0 and event or event + 300
end

-- Fill the vacant offices from those who lay down last, and tell them when to act.
--- (now: int)
--- uses: base meta
function wake.appoint(now)
  local office = redis.call("HMGET", meta, "timekeeper", "deputy")
  local timekeeper = office[1]
  if not timekeeper then
    local till
    timekeeper, till = wake.latest(now)
    if not timekeeper then return end
    redis.call("HSET", meta, "timekeeper", timekeeper, "timekeeper_till", till)
    local event = wake.watch(now)
    if event >= 0 then notify.send(timekeeper, string.format("%d", event)) end
  end
  if not office[2] then
    local deputy, till = wake.latest(now, timekeeper)
    if not deputy then return end
    redis.call("HSET", meta, "deputy", deputy, "deputy_till", till)
    local event = wake.deputy_event(now)
    if event >= 0 then notify.send(deputy, string.format("%d", event)) end
  end
end

-- `address` found work that the timekeeper should have found before. Returns whether the office is vacant now; who held
-- it is told to come, and lies down again if it can.
--- (address: str) -> bool
--- uses: base meta
function wake.depose(address)
  local timekeeper = redis.call("HGET", meta, "timekeeper")
  if not timekeeper or timekeeper == address then return false end
  redis.call("ZREM", base .. "sleepers", timekeeper)
  redis.call("HDEL", meta, "timekeeper", "timekeeper_till")
  notify.send(timekeeper, "0")
  return true
end

-- Lie down; returns after how many ms to take a turn unasked, -1 for none.
--- (address: str, now: int, till: int) -> int
--- uses: base meta
function wake.sleep(address, now, till)
  redis.call("ZADD", base .. "sleepers", till, address)
  local office = redis.call("HMGET", meta, "timekeeper", "timekeeper_till", "deputy", "deputy_till")
  local timekeeper = office[1] and tonumber(office[2]) > now and office[1]
  local deputy = office[3] and tonumber(office[4]) > now and office[3]
  if timekeeper == address or not timekeeper then
    redis.call("HSET", meta, "timekeeper", address, "timekeeper_till", till)
    if not timekeeper then
      if not deputy or notify.face(deputy) == notify.face(address) then
        redis.call("HDEL", meta, "deputy", "deputy_till")
      end
      wake.appoint(now)
    end
    return wake.watch(now)
  end
  if deputy == address or (not deputy and notify.face(timekeeper) ~= notify.face(address)) then
    redis.call("HSET", meta, "deputy", address, "deputy_till", till)
    return wake.deputy_event(now)
  end
  return -1
end

-- No longer asleep: hand an office on to those who sleep.
--- (address: str, now: int)
--- uses: base meta
function wake.rise(address, now)
  redis.call("ZREM", base .. "sleepers", address)
  local office = redis.call("HMGET", meta, "timekeeper", "deputy", "deputy_till")
  if office[1] == address then
    redis.call("HDEL", meta, "timekeeper", "timekeeper_till", "deputy", "deputy_till")
    if office[2] and tonumber(office[3]) > now then
      redis.call("HSET", meta, "timekeeper", office[2], "timekeeper_till", office[3])
      local event = wake.watch(now)
      if event >= 0 then notify.send(office[2], string.format("%d", event)) end
    end
  elseif office[2] == address then
    redis.call("HDEL", meta, "deputy", "deputy_till")
  else
    return
  end
  wake.appoint(now)
end
