-- Retention: how many dead letters and results a queue keeps, and for how long it keeps dead letters.
--
--   meta   HASH   retention: most dead letters, their age in ms, most results, most rows of ended jobs, their age in
--                 ms, 1 if arguments are kept as well (finished.lua); -1: no limit; for rows, the default
--   row    (row.lua)  RESULT_CLASSES has the bit SET while any of them is set
--
-- The scripts that settle jobs remove dead letters and results beyond these limits, the oldest first, at most some
-- hundred at a time. The time for which a result is kept belongs to its job (results.lua).

_retention = { SET = 281474976710656, SLICE = 100, RESULTS = 500 } -- SET: 2^48, above the bits of the classes

-- Removes dead letters and results beyond the limits. Call it before the other changes of the script are written.
--- (s: table)
--- uses: base meta
--- seldom
function retention.apply(s)
  local packed = redis.call("HGET", meta, "retention")
  if not packed then return end
  local most_dead, dead_ms, most_results = unpack(cmsgpack.unpack(packed))
  if s.row[_row.DEAD] > 0 and (most_dead >= 0 or dead_ms >= 0) then retention.remove_dead(s, most_dead, dead_ms) end
  if most_results >= 0 then
    local over = redis.call("HLEN", base .. "results") + #s.results / 2 - most_results
    if over > 0 then results.drop(s, math.min(over, _retention.RESULTS)) end
  end
end

--- (s: table, most: int, age: int)
--- uses: base meta
function retention.remove_dead(s, most, age)
  local over = most >= 0 and s.row[_row.DEAD] - most or 0
  local oldest = redis.call("ZRANGE", base .. "dead", 0, _retention.SLICE - 1, "WITHSCORES")
  local budget = slice.within(s, _retention.SLICE)
  for i = 1, #oldest, 2 do
    local too_many, id = (i + 1) / 2 <= over, oldest[i]
    if not too_many and (age < 0 or tonumber(oldest[i + 1]) > s.now - age) then break end
    if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", id)) then break end
    local body = record.get(id)
    local why = too_many and "removed: the queue had too many dead letters" or "removed: the dead letter was too old"
    if body then job.remove(s, id, body, ending.CANCELLED, why) end
  end
end

-- Sets how much is kept, in the order of `retention`. Rows and arguments that are not kept any more are deleted at
-- once, which is how an operator frees their memory on a full server.
--- keys: base meta
--- args: given: int, most_dead: int, dead_ms: int, most_results: int, most_finished: int, finished_ms: int
--- args: arguments: int
--- flags: allow-oom
--- frame: change
function script.set_retention(base, meta, given, most_dead, dead_ms, most_results, most_finished, finished_ms,
  arguments)
  local r = s.row
  local classes = r[_row.RESULT_CLASSES] % _retention.SET
  if arguments ~= 1 and finished.keeps_arguments(s) then finished.delete_records() end
  s.kept_rows, s.has_ttl = nil, 0 -- both are of the time before the change
  if math.max(most_dead, dead_ms, most_results, most_finished, finished_ms, arguments) < 0 then
    redis.call("HDEL", meta, "retention")
  else
    redis.call("HSET", meta, "retention", cmsgpack.pack({
      most_dead, dead_ms, most_results, most_finished, finished_ms, arguments,
    }))
    classes = classes + _retention.SET
  end
  r[_row.RESULT_CLASSES] = classes
  if most_finished == 0 then finished.delete() end
end

-- The numbers as `set_retention` takes them; an empty reply means that there is no limit.
--- keys: base meta
--- flags: no-writes
--- frame: format
function script.show_retention(base, meta)
  local packed = redis.call("HGET", meta, "retention")
  return packed and cmsgpack.unpack(packed) or {}
end
