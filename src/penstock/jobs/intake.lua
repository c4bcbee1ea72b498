-- The intake: single calls that were accepted and are in no lane yet.
--
--   intake   LIST   an empty text, and then a value for each call (`_call`)
--
-- The intake is open while this list exists. Then the script `take_in` (queue.lua) appends a plain call with two
-- commands, unless the intake is full. Every other script that reads or changes jobs first moves all calls of the
-- intake into lanes, so it need not know about the intake.
--
-- `queue.add_jobs` opens it when a call finds no idle worker. `row.store` closes it when a worker registers as idle, or
-- because of a bound (bounds.lua). So while a worker is idle the intake has no calls, which depends on no clock; and a
-- worker that waits for each job never finds it open. `take_in` does not look at the format of the queue: a release
-- that stores another one has to delete this list first.

intake = { MOST_BYTES = 2048 } -- of a record that may be taken in

_intake = { VALUES = 129 } -- of 128 calls and the first one

-- A call. Each value of a list costs the server more than a field of a value.
_call = layout {
  at = "I6", -- server ms
  number = "I6", -- of its caller
  caller = "Bc0",
  id = "Bc0",
  draft = "*",
}

-- Appends the calls from ARGV[first] on (id, draft, …), or nothing if one is large or the intake has no room for all.
-- They have consecutive numbers, of which `number` is the last. Returns the reply of `take_in`.
--- (caller: str, number: int, now: str | int, first: int) -> int
--- uses: base
function intake.take(caller, number, now, first)
  local calls, size = {}, (#ARGV - first + 1) / 2
  for i = 1, size do
    local at = first + 2 * i - 2
    if #ARGV[at + 1] > intake.MOST_BYTES then return _taken.NO end
    calls[i] = _call.pack({
      at = now, number = number - size + i, caller = caller, id = ARGV[at], draft = ARGV[at + 1],
    })
  end
  local length = redis.call("RPUSHX", base .. "intake", unpack(calls))
  if length > _intake.VALUES then redis.call("RPOP", base .. "intake", size) end
  return length > 0 and length <= _intake.VALUES and _taken.YES or _taken.NO
end

-- Has `row.store` open the intake, if it may be open. `was_idle`: whether a worker was idle when the script began.
--- (s: table, was_idle: bool)
function intake.open(s, was_idle)
  s.opens = not (s.is_open or was_idle or row.closes_intake(s.row))
  s.is_open = s.is_open or s.opens
end

-- Moves the calls of the intake into their lanes, and stores the row. A call that its caller had sent before is dropped
-- (core/idempotency.lua).
--- (s: table)
--- uses: base meta
function intake.empty(s)
  local found = redis.call("LRANGE", base .. "intake", 0, -1)
  s.is_open = #found > 0
  if #found <= 1 then return end
  local generation, taken, kinds, set, n = row.mint(s.row, #found - 1), {}, {}, {}, 0
  for i = 2, #found do
    local its = _call.fields(found[i])
    if its.number > (taken[its.caller] or idempotency.last(its.caller)) then
      taken[its.caller] = its.number
      n = n + 1
      set[2 * n - 1] = its.id
      set[2 * n] = plain.collect(s, kinds, its.id, its.draft, generation + i - 1, its.at)
        or job.enqueue(s, its.id, its.draft, generation + i - 1, its.at, its.at, 0)
    end
  end
  plain.count(s, kinds)
  batch.add("HSET", base .. "jobs", set)
  for caller, number in pairs(taken) do idempotency.keep(caller, number, {}) end
  redis.call("LTRIM", base .. "intake", 0, 0)
  if s.places then limits.write(s) end -- jobs of a paused scope were parked
  job.push_ready(s)
  counters.write(s)
  row.store(s)
end
