-- The server's clock, by which every lease, delay and age is measured.

-- Milliseconds since 1970. A script calls this at most once. `given` is 0, or the time that a test has set.
--- (given: int) -> int
function clock.now(given)
  if given > 0 then return given end
  local time = redis.call("TIME")
  return math.floor(time[1] * 1000 + time[2] / 1000)
end

-- Microseconds since 1970.
--- () -> int
function clock.micros()
  local time = redis.call("TIME")
  return time[1] * 1000000 + time[2]
end
