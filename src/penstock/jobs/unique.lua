-- Unique jobs: of the calls with one key, only the first is enqueued as long as its job holds the key. A further call,
-- a *double*, gets the id of that job.
--
--   unique          HASH    key -> id of the job that holds it
--   throttle:<key>  STRING  end of the window in 6 bytes, and the id of its first job; PX
--
-- The record says for how long a job holds the key (`record.unique`):
--
--   mode            the key is held                      a double
--   DONE            until the job ends                   changes nothing
--   START           until it is claimed                  changes nothing
--   LATEST          until the job ends                   as REPLACE, if it has not begun; else cancels it, and runs
--                                                        when it has ended (`unique.succeed`)
--   REPLACE         until it is claimed                  gives it the new arguments; it keeps id, position, due time
--   DEBOUNCE        until it is claimed                  does that, and delays a job that is not due by the time again
--   THROTTLE        for a time, also after the run       changes nothing
--
-- Tasks may share a key. A double changes the first job only if both have one of the modes LATEST, REPLACE and
-- DEBOUNCE, and cancels it only if both have the mode LATEST.
--
--                    cancelled, expired,   claimed    retried, released,   completed, dropped,   requeued
--                    purged                           taken back           dead
--   DONE, LATEST     given up              kept       kept                 given up              taken, or refused
--   START and so on  given up              given up   not taken again      -                     taken, or refused
--   THROTTLE         given up              kept       kept                 kept                  -
--
-- `s.holders` has the holders that `unique.read` has read; `s.taken` collects key, id, key, id, …, and `s.given_up`
-- keys and ids. `unique.write` stores the taken keys, and removes those that were given up if the ids still hold them.

_window = layout { ends = "I6", id = "*" } -- of a throttle

keeping = { DONE = "d", LATEST = "l", START = "s", REPLACE = "r", DEBOUNCE = "b", THROTTLE = "t" }

-- Reads with one command who holds the keys of these drafts.
--- (s: table, drafts: table)
--- uses: base
--- seldom
function unique.read(s, drafts)
  local keys = {}
  s.fields, s.holders = {}, {}
  for i = 1, #drafts do
    local one = record.unique(drafts[i])
    s.fields[drafts[i]] = one
    if one[2] ~= keeping.THROTTLE then keys[#keys + 1] = one[1] end
  end
  if #keys == 0 then return end
  local found = batch.read(base .. "unique", keys)
  for i = 1, #keys do s.holders[keys[i]] = found[i] end
end

-- Key, mode and milliseconds of a draft.
--- (s: table, drafted: str) -> table
function unique.field(s, drafted)
  return s.fields and s.fields[drafted] or record.unique(drafted)
end

-- The id of the job that holds a key, or nil.
--- (s: table, one: table) -> str | nil
--- uses: base
function unique.holder(s, one)
  if one[2] == keeping.THROTTLE then
    local window = redis.call("GET", base .. "throttle:" .. one[1])
    return window and _window.ends(window) > s.now and _window.id(window) or nil
  end
  local known = s.holders and s.holders[one[1]]
  if known == nil then known = redis.call("HGET", base .. "unique", one[1]) end
  return known or nil
end

-- The same, after the holder was removed if it is over. A job that it was to succeed holds the key then.
--- (s: table, one: table) -> str | nil
--- uses: base
function unique.live_holder(s, one)
  if s.holders and s.holders[one[1]] == false and one[2] ~= keeping.THROTTLE then return nil end
  local holder = unique.holder(s, one)
  if holder and job.expire(s, holder) then return unique.holder(s, one) end
  return holder
end

--- (s: table, one: table, id: str, body: str)
--- uses: base
function unique.hold(s, one, id, body)
  if one[2] == keeping.THROTTLE then
    if record.powers(body) >= power.IN_SHARDS then shards.keep(record.tenant(body), s.now, s.now + one[3]) end
    redis.call("SET", base .. "throttle:" .. one[1], _window.pack({ ends = s.now + one[3], id = id }),
      "PX", one[3])
  else
    s.taken, s.holders = s.taken or {}, s.holders or {}
    s.taken[#s.taken + 1], s.taken[#s.taken + 2] = one[1], id
    s.holders[one[1]] = id
  end
end

-- Whether a double of this mode may give its arguments to a job, and a job of this mode may get those of a double.
--- (mode: str) -> bool
function unique.replaces(mode)
  return mode == keeping.REPLACE or mode == keeping.DEBOUNCE or mode == keeping.LATEST
end

-- Whether a double may give its arguments to this job.
--- (body: str) -> bool
function unique.is_replaced(body)
  return record.flags(body) >= flag.UNIQUE and unique.replaces(record.unique(body)[2])
end

-- Whether the holder of a key was started before, so that it has used its arguments. Only a holder of the mode LATEST
-- keeps its key then.
--- (id: str, body: str) -> bool
--- uses: base
--- seldom
function unique.has_begun(id, body)
  if record.flags(body) < flag.UNIQUE or record.unique(body)[2] ~= keeping.LATEST then return false end
  return record.deliveries(body) > 0 or record.has(record.flags(body), flag.NOTES)
    or redis.call("HEXISTS", base .. "owners", id) == 1
end

-- Enqueues a double as the successor of a job that runs, and has that cancelled. The successor waits for its end,
-- however it ends, as a dependent does (flow.lua), and holds the key from now on. So a further double finds a job that
-- has not begun, and replaces its arguments. Appends id and record of the successor to `set`.
--- (s: table, before: str, id: str, body: str, generation: int, set: table)
--- uses: base
--- seldom
function unique.succeed(s, before, id, body, generation, set)
  slice.spend(s, 5)
  cancelling.ask(before)
  flow.open(s.row)
  local open = _open_verb.pack({ word = "open", policy = flow.CONTINUE, wants = "-", number = "" })
  flow.add(s, id, body, generation, open, set)
  local edge, known, new = flow.link(s, "\0" .. before, id), s.known_edges or {}, s.new_edges or {}
  if known[before] == nil then known[before] = redis.call("HGET", base .. "dependents", before) end
  flow.store_edge(known, new, before, edge)
  if not s.new_edges then batch.write("HSET", base .. "dependents", new) end -- `enqueue_flow` writes its edges itself
  s.row[_row.FLOWS] = bit.bor(s.row[_row.FLOWS], _flow.EDGES)
  local wait = flow.wait(s, id)
  wait.flags = bit.band(wait.flags, 255 - flow.OPEN)
end

-- Whether a running job has a successor, so that it must not run again.
--- (id: str, body: str) -> bool
--- uses: base
--- seldom
function unique.is_succeeded(id, body)
  local one = record.unique(body)
  return one[2] == keeping.LATEST and redis.call("HGET", base .. "unique", one[1]) ~= id
end

-- The running job that this job, which leaves the queue, was to succeed, or nil.
--- (s: table, id: str, one: table) -> str | nil
--- uses: base
--- seldom
function unique.predecessor(s, id, one)
  local wait = flow.wait(s, id)
  local named = wait and wait.added and wait.added[1] or redis.call("LINDEX", base .. "predecessors:" .. id, 0)
  if not named or _predecessor.queue_size(named) > 0 then return nil end
  local before = _predecessor.id(named)
  local body = redis.call("HEXISTS", base .. "owners", before) == 1 and record.get(before)
  if not body or record.flags(body) < flag.UNIQUE then return nil end
  local its = record.unique(body)
  return its[1] == one[1] and its[2] == keeping.LATEST and before or nil
end

-- Has `write` remove a key, if the job holds it still.
--- (s: table, key: str, id: str)
function unique.give_up(s, key, id)
  local given_up = s.given_up or { keys = {}, ids = {} }
  local n = #given_up.keys + 1
  s.given_up, given_up.keys[n], given_up.ids[n] = given_up, key, id
end

-- Gives up the key of a job that is not running and leaves the queue.
--- (s: table, id: str, body: str, was: str)
--- uses: base
function unique.leave(s, id, body, was)
  local one = record.unique(body)
  slice.spend(s, 2)
  if was == state.DEAD then return end
  -- A double of another task may have given a successor its own mode.
  local before = was == state.WAITING and unique.replaces(one[2]) and unique.predecessor(s, id, one)
  if before then return unique.hold(s, one, before, body) end -- a later double must wait for it as well
  if one[2] ~= keeping.THROTTLE then return unique.give_up(s, one[1], id) end
  if unique.holder(s, one) == id then redis.call("DEL", base .. "throttle:" .. one[1]) end
end

-- Call it when a claim takes these jobs. Gives up the keys that are held until then, and adds to the claim those that
-- are held until the job ends.
--- (s: table, room: table)
--- seldom
function unique.start(s, room)
  for _, i in ipairs(room.unique) do
    local key, mode = record.unique_key(room.reply[2 * i])
    if mode == keeping.DONE or mode == keeping.LATEST then
      room.held[2 * i] = room.held[2 * i] .. key
    elseif mode ~= keeping.THROTTLE then
      unique.give_up(s, key, room.reply[2 * i - 1])
    end
  end
end

-- Gives up the key of a job whose run has ended for good. It is behind the keys of the limits in the claim.
--- (s: table, id: str, held: str)
--- seldom
function unique.finish(s, id, held)
  local key = claim.keys(held)
  if record.has(claim.flags(held), flag.LIMITED) then key = string.sub(key, limited_runs.behind_keys(key)) end
  if key ~= "" then unique.give_up(s, key, id) end
end

-- Stores the keys that were taken, and removes those that were given up.
--- (s: table)
--- uses: base
--- seldom
function unique.write(s)
  if s.taken then
    batch.add("HSET", base .. "unique", s.taken)
    s.taken = nil
  end
  if not s.given_up then return end
  local keys, ids, gone = s.given_up.keys, s.given_up.ids, {}
  local holders = batch.read(base .. "unique", keys)
  for i = 1, #keys do
    if holders[i] == ids[i] then
      gone[#gone + 1] = keys[i]
      if s.holders then s.holders[keys[i]] = nil end
    end
  end
  batch.write("HDEL", base .. "unique", gone)
  s.given_up = nil
end
