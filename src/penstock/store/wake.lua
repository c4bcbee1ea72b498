-- Sleepers, and who wakes them. A wake-up carries no job: who is woken asks, so a lost one costs time only.
--
--   sleepers         ZSET  address -> server ms until which it says it sleeps
--   inbox:<process>  LIST  "<number> <message>" for the waiters of one process, which blocks on it; PX
--   meta             HASH  rung: ms of a wake-up no turn followed yet; look: ms at which a witness looks
--                          keeper, keeper_till, deputy, deputy_till: who watches the clock
--
-- An address is `process/number`. Messages to a sleeper: "0" take a turn now, "<n>" take one in n ms.
--
-- Going to sleep is recorded in the step that found nothing. A job that becomes ready wakes the sleeper that
-- lay down last, and tells a second one, the witness, to look 50 ms later: the first may be frozen. Of the
-- sleepers one, the keeper, is told when the next job is due (or a lease runs out); the deputy is told the same
-- and 300 ms more, and takes the office over when it finds that the keeper did not act.

--- function clock.now(given: int) -> int
-- The server's clock, read once a script; a test may pass a time of its own.
if given > 0 then return given end
local time = redis.call("TIME")
return math.floor(time[1] * 1000 + time[2] / 1000)

--- function wake.send(address: str, message: str)
local process, number = string.match(address, "^(.*)/(.-)$")
local inbox = base .. "inbox:" .. process
redis.call("RPUSH", inbox, number .. " " .. message)
redis.call("PEXPIRE", inbox, 60000)

--- function wake.ring(now: int)
-- Wake one sleeper, unless one was woken within 50 ms and has not come yet.
local latest = redis.call("ZRANGE", base .. "sleepers", 0, 1, "REV", "WITHSCORES")
if #latest == 0 then return end
local marks = redis.call("HMGET", meta, "rung", "look")
if marks[1] and now - tonumber(marks[1]) < 50 then return end
redis.call("ZREM", base .. "sleepers", latest[1])
if tonumber(latest[2]) <= now then
  redis.call("DEL", base .. "sleepers")
  return
end
wake.send(latest[1], "0")
redis.call("HSET", meta, "rung", now)
if latest[3] and not (marks[2] and tonumber(marks[2]) > now) then
  wake.send(latest[3], "50")
  redis.call("HSET", meta, "look", now + 50)
end

--- function wake.answered()
redis.call("HDEL", meta, "rung")

--- function wake.arm(now: int, due: int)
-- A time earlier than all others was set: tell those who watch the clock.
local office = redis.call("HMGET", meta, "keeper", "deputy")
if office[1] then wake.send(office[1], string.format("%d", math.max(0, due - now))) end
if office[2] then wake.send(office[2], string.format("%d", math.max(0, due - now) + 300)) end

--- function wake.next_event(now: int) -> int
-- Milliseconds until a job is due or a lease runs out; -1 when nothing is planned.
local due = redis.call("ZRANGE", base .. "schedule", 0, 0, "WITHSCORES")
local lease = redis.call("ZRANGE", base .. "leases", 0, 0, "WITHSCORES")
local at = math.min(tonumber(due[2]) or math.huge, tonumber(lease[2]) or math.huge)
return at < math.huge and math.max(0, at - now) or -1

--- function wake.appoint(now: int)
-- Fill the vacant offices from those who lay down last, and tell them when to act.
local office = redis.call("HMGET", meta, "keeper", "deputy")
if office[1] and office[2] then return end
local latest = redis.call("ZRANGE", base .. "sleepers", 0, 2, "REV", "WITHSCORES")
local event = wake.next_event(now)
for place, role in ipairs({ "keeper", "deputy" }) do
  for i = 1, #latest, 2 do
    local address = latest[i]
    if not office[place] and address ~= office[1] and address ~= office[2] and tonumber(latest[i + 1]) > now then
      office[place] = address
      redis.call("HSET", meta, role, address, role .. "_till", latest[i + 1])
      if event >= 0 then wake.send(address, string.format("%d", event + (place - 1) * 300)) end
    end
  end
end

--- function wake.sleep(address: str, now: int, till: int, late: bool) -> int
-- Lie down; returns after how many ms to take a turn unasked, -1 for none. `late`: this turn found work
-- that the keeper should have found before, so this sleeper takes the office over.
redis.call("ZADD", base .. "sleepers", till, address)
local office = redis.call("HMGET", meta, "keeper", "keeper_till", "deputy", "deputy_till")
local keeper = office[1] and tonumber(office[2]) > now and office[1]
local deputy = office[3] and tonumber(office[4]) > now and office[3]
if keeper == address or not keeper or late then
  redis.call("HSET", meta, "keeper", address, "keeper_till", till)
  if office[3] == address then redis.call("HDEL", meta, "deputy", "deputy_till") end
  if keeper and keeper ~= address then
    redis.call("ZREM", base .. "sleepers", keeper)
    wake.appoint(now)
  end
  return wake.next_event(now)
end
if deputy == address or not deputy then
  redis.call("HSET", meta, "deputy", address, "deputy_till", till)
  local event = wake.next_event(now)
  return event < 0 and event or event + 300
end
return -1

--- function wake.rise(address: str, now: int)
-- No longer asleep: hand an office on to those who sleep.
redis.call("ZREM", base .. "sleepers", address)
local office = redis.call("HMGET", meta, "keeper", "deputy", "deputy_till")
if office[1] == address then
  redis.call("HDEL", meta, "keeper", "keeper_till", "deputy", "deputy_till")
  if office[2] and office[2] ~= address then
    redis.call("HSET", meta, "keeper", office[2], "keeper_till", office[3])
    local event = wake.next_event(now)
    if event >= 0 then wake.send(office[2], string.format("%d", event)) end
  end
elseif office[2] == address then
  redis.call("HDEL", meta, "deputy", "deputy_till")
else
  return
end
wake.appoint(now)
