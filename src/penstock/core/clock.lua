-- The server's clock, which decides about every lease, delay and age.

-- Milliseconds. A script reads them once. `given` is 0, or the time that a test wants the script to believe.
--- (given: int) -> int
function clock.now(given)
  if given > 0 then return given end
  local time = redis.call("TIME")
  return math.floor(time[1] * 1000 + time[2] / 1000)
end

-- Microseconds.
--- () -> int
function clock.micros()
  local time = redis.call("TIME")
  return time[1] * 1000000 + time[2]
end
