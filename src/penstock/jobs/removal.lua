-- Removal of an empty queue. queue.lua maps the keys.
--
-- A queue is empty if it has no job in any state, no schedule, nothing in its outbox, and no live worker: a worker
-- would bring it back. One script makes sure of that and deletes the keys, so a job that is enqueued meanwhile is
-- either seen or is the first one of a new queue.

_removal = { LEASES = 100 }

-- Ends incarnations whose lease ran out and that hold no job. Returns whether there may be more of them.
--- (s: table) -> bool
--- uses: base
--- seldom
function removal.end_leases(s)
  local ended = redis.call("ZRANGE", base .. "leases", "-inf", s.now, "BYSCORE", "LIMIT", 0, _removal.LEASES)
  for i = 1, #ended do
    if lease.count(ended[i]) == 0 then lease.remove(ended[i]) end
  end
  return #ended == _removal.LEASES
end

-- Deletes the keys whose names begin at ARGV[first].
--- (first: int)
--- uses: base
function removal.unlink(first)
  local names = {}
  for i = first, #ARGV do names[#names + 1] = base .. ARGV[i] end
  if #names > 0 then redis.call("UNLINK", unpack(names)) end
end

-- Deletes the queue if it is empty: the keys with the given names. Returns { } then; else what it has: name, number, …
-- `leftovers` are entries of cancelled jobs, which a purge removes, and what a second call of this script ends. Without
-- names it only looks.
--- keys: base meta
--- args: given: int, names: *
--- flags: allow-oom
--- frame: read
function script.remove_queue(base, meta, given, names, ...)
  local r, found = s.row, {}
  local function add(name, n)
    if n > 0 then
      found[#found + 1], found[#found + 2] = name, n
    end
  end
  add("ready", r[_row.READY])
  add("delayed", r[_row.DELAYED])
  add("sleeping", r[_row.SLEEPING] or 0)
  add("parked", r[_row.PARKED] or 0)
  add("running", r[_row.RUNNING])
  add("waiting for others", r[_row.DEPENDENT] or 0)
  add("dead", r[_row.DEAD])
  if #found == 0 then add("stored", redis.call("HLEN", base .. "jobs")) end
  add("schedules", redis.call("HLEN", base .. "schedules"))
  add("in its outbox", #outbox.lengths(s) / 3)
  add("being enqueued in a flow", redis.call("ZCARD", base .. "opened"))
  add("live workers", redis.call("ZCOUNT", base .. "leases", "(" .. string.format("%d", s.now), "+inf"))
  if #found > 0 then return found end
  local more = removal.end_leases(s)
  add("leftovers", #r[_row.LEVELS] / 3 + redis.call("ZCARD", base .. "parking") + r[_row.UNNOTIFIED]
    + redis.call("LLEN", base .. "events") + (more and 1 or 0))
  if #found > 0 then return found end
  if names <= #ARGV then finished.delete_records() end
  removal.unlink(names)
  return {}
end

-- Deletes further keys of a queue that was removed. Returns 0, and deletes nothing, if the queue is there again.
--- keys: base meta
--- args: names: *
--- flags: allow-oom
function script.sweep_queue(base, meta, names, ...)
  if redis.call("EXISTS", meta) == 1 then return 0 end
  removal.unlink(names)
  return 1
end
