-- The intake: single calls that were accepted and are in no lane yet.
--
--   intake   LIST   for each call: caller, number, id, draft, server ms
--
-- The script `take_in` (queue.lua) appends a plain call with four commands, as long as no worker is registered as idle
-- and the intake is not full. Every other script that reads or changes jobs first moves all calls of the intake into
-- lanes, so it need not know about the intake. No worker is registered while the intake has a call: the turn that
-- registers the first one empties the intake before, and until the last one is forgotten, `take_in` accepts nothing.
-- That depends on no clock, so the scripts do not look into the intake while the row has an idle worker.

intake = { MOST_BYTES = 2048 } -- of a record that may be taken in

_intake = { FIELDS = 5, VALUES = 640 } -- values of one call; of 128 calls

-- Appends the calls from ARGV[first] on (id, draft, …), or nothing if one is large or the intake has no room for all.
-- They have consecutive numbers, of which `number` is the last. Returns the reply of `take_in`.
--- (caller: str, number: int, now: int, first: int) -> int
--- uses: base
function intake.take(caller, number, now, first)
  local values, at, since = {}, 0, string.format("%d", now)
  number = number - (#ARGV - first - 1) / 2
  for i = first, #ARGV, 2 do
    if #ARGV[i + 1] > intake.MOST_BYTES then return _taken.NO end
    values[at + 1], values[at + 2], values[at + 3] = caller, string.format("%d", number), ARGV[i]
    values[at + 4], values[at + 5] = ARGV[i + 1], since
    at, number = at + _intake.FIELDS, number + 1
  end
  if redis.call("RPUSH", base .. "intake", unpack(values)) > _intake.VALUES then
    redis.call("RPOP", base .. "intake", at)
    return _taken.NO
  end
  return _taken.YES
end

-- Moves the calls of the intake into their lanes, and stores the row. A call that its caller had sent before is dropped
-- (core/idempotency.lua).
--- (s: table)
--- uses: base meta
function intake.empty(s)
  local found = redis.call("LRANGE", base .. "intake", 0, -1)
  if #found == 0 then return end
  local last, taken, drafts, kinds, since, since_text = {}, {}, {}, {}, 0, ""
  for i = 1, #found, _intake.FIELDS do
    local caller, number = found[i], tonumber(found[i + 1])
    last[caller] = last[caller] or idempotency.last(caller)
    if number > last[caller] then
      last[caller], taken[caller] = number, number
      drafts[#drafts + 1] = i
    end
  end
  local generation, set = row.mint(s.row, #drafts), {}
  for i = 1, #drafts do
    local at = drafts[i]
    local id, body = found[at + 2], found[at + 3]
    if since_text ~= found[at + 4] then since_text, since = found[at + 4], tonumber(found[at + 4]) end
    set[2 * i - 1] = id
    set[2 * i] = plain.collect(s, kinds, id, body, generation + i, since)
      or job.enqueue(s, id, body, generation + i, since, since, 0)
  end
  plain.count(s, kinds)
  batch.write("HSET", base .. "jobs", set)
  for caller, number in pairs(taken) do idempotency.keep(caller, number, {}) end
  redis.call("DEL", base .. "intake")
  if s.places then limits.write(s) end -- jobs of a paused scope were parked
  job.push_ready(s)
  counters.write(s)
  row.store(s)
end
