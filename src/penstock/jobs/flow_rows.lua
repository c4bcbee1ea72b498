-- How jobs that wait for others enter a queue (see flow.lua). A program sends a flow in rows, the last jobs first. A
-- dependent is open until its last row has arrived. If the program dies before that, a worker cancels the dependent
-- after ten minutes.

_open_verb = layout { word = "c4", policy = "c1", wants = "c1", number = "*" }

-- Enqueues a piece of a flow, at most 250 rows: verb, id, draft, dependent, …
--
--   open…    a dependent, which is open; in the verb follow its policy, w if it wants results (else -), and its number
--            if it has predecessors in other queues
--   far      no job of this queue: one of the queue that the draft names
--   job      a job that may run at once
--   edge     no new job: one of this flow, which a later row enqueues
--   after    no new job: one that was enqueued before, in this call or earlier, and may have ended
--   close    the dependent has all of its predecessors
--
-- The job of a row becomes a predecessor of `dependent`, unless that is empty. If ">" follows job, edge or after,
-- `dependent` is an edge that leads to another queue. Returns { } or, if nothing was written, { word, position }.
-- `known`: the id is in the queue already. `gone`: the job does not exist and has no result; the reply also has the
-- queue to which it was moved. `split`: the result of this row's job is too large for this call, so the caller sends
-- the rows before it first.
--
-- `shards_table` is empty if the queue is not split. `moving` is the number of tenants that are to move, whose names
-- precede the rows. A shard may reply as `enqueue_in_shard` does.
--- keys: base meta
--- args: caller: str, number: int, given: int, shards_table: str, moving: int, rows: *
--- frame: once
function script.enqueue_flow(base, meta, caller, number, given, shards_table, moving, rows, ...)
  local other = shards_table ~= "" and shards.adopt(s, shards_table)
  if other then return { "TABLE", other } end
  if moving > 0 then
    local gone = shards.handed_over({ unpack(ARGV, rows, rows + moving - 1) }, s.now)
    if #gone > 0 then return { "MOVED", unpack(gone) } end
    rows = rows + moving
  end
  local r, args, ids, letters, ended, opened, closed, shared, new = s.row, ARGV, {}, {}, {}, {}, {}, {}, {}
  for i = rows, #args, 4 do
    local n, verb = #ids + 1, args[i]
    letters[n], ids[n] = verb == "job" and "j" or string.sub(verb, 1, 1), args[i + 1]
  end
  local old, bytes = redis.call("HMGET", base .. "jobs", unpack(ids)), 0
  for i = 1, #ids do
    local letter, id = letters[i], ids[i]
    if letter == "j" or letter == "o" then
      if new[id] or old[i] and not flow.is_free(s, id, old[i]) then return { "known", i - 1 } end
      new[id] = true
    elseif letter == "a" or letter == "e" then
      shared[#shared + 1] = id
    end
    if letter == "a" and not old[i] and not opened[id] then
      ended[i] = results.get(id, s.now)
      if not ended[i] then return { "gone", i - 1, "" } end
      bytes = bytes + #ended[i]
      if bytes > _flow.MOST and i > 1 then return { "split", i - 1 } end
      local moved = results.letter(ended[i]) == ending.CANCELLED and string.match(ended[i], "moved to queue (.*)$")
      if moved then return { "gone", i - 1, moved } end
    end
    if letter == "c" or letter == "j" and args[rows + 4 * i - 1] == "" then
      if not opened[id] then closed[#closed + 1] = id end
      opened[id] = nil
    elseif letter == "o" or letter == "e" and not old[i] then
      opened[id] = true
    end
  end
  flow.open(r)
  local set, generation, known_edges, new_edges = {}, row.mint(r, #ids), {}, {}
  s.touched, s.visits, s.known_edges, s.new_edges = {}, slice.within(s, _flow.VISITS), known_edges, new_edges
  if #shared > 0 then -- a new job with one dependent has no edge yet
    local edges = redis.call("HMGET", base .. "dependents", unpack(shared))
    for i = 1, #shared do known_edges[shared[i]] = edges[i] end
  end
  for i = 1, #ids do
    local at = rows + 4 * i - 4
    local verb, letter, id, body, dependent = args[at], letters[i], ids[i], args[at + 2], args[at + 3]
    if old[i] and (letter == "j" or letter == "o") then job.expire(s, id) end
    if letter == "j" then
      job.add_draft(s, id, body, generation + i, set)
    elseif letter == "o" then
      flow.add(s, id, body, generation + i, verb, set)
    elseif letter == "c" then
      local wait = flow.wait(s, id)
      if wait then
        wait.flags = bit.band(wait.flags, 255 - flow.OPEN)
        flow.touch(s, id, wait)
      end
    end
    local edge
    if letter == "f" then
      flow.link(s, string.char(#body) .. body .. id, dependent)
    elseif verb ~= "job" and string.byte(verb, -1) == 62 then
      edge = dependent
    elseif dependent ~= "" then
      edge = flow.link(s, "\0" .. id, dependent)
    end
    if edge and letter == "j" and not known_edges[id] then
      if #shared > 0 then known_edges[id] = edge end -- only those look for it
      new_edges[#new_edges + 1], new_edges[#new_edges + 2] = id, edge
    elseif edge and ended[i] then
      flow.visit(s, edge, results.letter(ended[i]), id, results.text(ended[i]))
    elseif edge then
      local is_dead = letter == "a" and old[i] and record.intact(old[i]) and record.state(old[i]) == state.DEAD
      if is_dead then edge = flow.visit(s, edge, _event.DEAD, id, "") end
      if edge then flow.store_edge(known_edges, new_edges, id, edge) end
    end
  end
  batch.add("HSET", base .. "jobs", set)
  if #new_edges > 0 then
    batch.add("HSET", base .. "dependents", new_edges)
    r[_row.FLOWS] = bit.bor(r[_row.FLOWS], _flow.EDGES)
  end
  flow.settle_touched(s, s.visits)
  flow.note_opened(s, opened, closed)
  return {}
end

-- Whether the job with this id is over, and no other waits for it, so that a job of a flow may have the id.
--- (s: table, id: str, body: str) -> bool
--- uses: base
--- seldom
function flow.is_free(s, id, body)
  return record.intact(body) and job.is_over(id, body, s.now) and record.state(body) ~= state.WAITING
    and redis.call("HEXISTS", base .. "dependents", id) == 0
end

-- Notes when the dependents that this script leaves open are given up, and forgets those that it has closed.
--- (s: table, opened: table, closed: table)
--- uses: base
--- seldom
function flow.note_opened(s, opened, closed)
  local until_, added = s.now + _flow.OPEN_FOR, {}
  for id in pairs(opened) do added[#added + 1], added[#added + 2] = until_, id end
  batch.add("ZADD", base .. "opened", added)
  batch.write("ZREM", base .. "opened", closed)
  if #added + #closed > 0 then flow.plan_opened(s) end
end

-- Has a worker call `give_up_open` when the first open dependent is to be given up.
--- (s: table)
--- uses: base
function flow.plan_opened(s)
  local first = redis.call("ZRANGE", base .. "opened", 0, 0, "WITHSCORES")
  if first[2] then
    redis.call("ZADD", base .. "ticks", first[2], flow.OVERDUE)
  else
    redis.call("ZREM", base .. "ticks", flow.OVERDUE)
  end
  schedule.refresh(s)
end

-- Cancels dependents that have been open for ten minutes, because the program that enqueued their flow has died, and
-- deletes the edges of jobs that the program did not get to enqueue. Returns how many jobs it examined, at most 100.
--- keys: base meta
--- args: given: int
--- flags: allow-oom
--- frame: change
function script.give_up_open(base, meta, given)
  local budget = slice.within(s, _offer.TICKS)
  local due = redis.call("ZRANGE", base .. "opened", "-inf", s.now, "BYSCORE", "LIMIT", 0, _offer.TICKS)
  local looked, missing = {}, {}
  for i = 1, #due do
    if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", due[i])) then break end
    looked[i] = due[i]
    local wait, body = flow.wait(s, due[i]), record.get(due[i])
    if not body then missing[#missing + 1] = due[i] end
    if wait and record.has(wait.flags, flow.OPEN) and body and record.state(body) == state.WAITING then
      s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + 1
      job.remove(s, due[i], body, ending.CANCELLED,
        "the program that enqueued its flow died before all of the flow was enqueued")
    end
  end
  batch.write("ZREM", base .. "opened", looked)
  if #missing > 0 then flow.drop_edges(s, missing) end
  flow.plan_opened(s)
  return #looked
end

-- Deletes the edges of jobs that are not in the queue. While `events` may contain the end of such a job, it only sets a
-- later time at which to try again.
--- (s: table, ids: table)
--- uses: base
--- seldom
function flow.drop_edges(s, ids)
  if s.row[_row.FLOWS] >= _flow.EVENTS then
    for i = 1, #ids do redis.call("ZADD", base .. "opened", s.now + _flow.OPEN_FOR, ids[i]) end
    return
  end
  batch.write("HDEL", base .. "dependents", ids)
  for i = 1, #ids do redis.call("UNLINK", base .. "dependents:" .. ids[i]) end
end

-- Enqueues a dependent, which is open.
--- (s: table, id: str, body: str, generation: int, verb: str, set: table)
--- uses: base
function flow.add(s, id, body, generation, verb, set)
  local drafted = draft.fields(body)
  local expires = drafted.expires
  if expires > 0 and not record.has(drafted.how, draft.EXPIRES_IS_DATE) then expires = s.now + expires end
  if record.has(drafted.how, draft.OWN_ID) then results.forget(id) end
  redis.call("DEL", base .. "predecessors:" .. id)
  counters.move(s, record.tenant(body), _count.NONE, _count.DEPENDENT, 1)
  s.waits = s.waits or {}
  s.waits[id] = {
    number = tonumber(_open_verb.number(verb)) or generation, total = 0, left = 0, dead = 0, bytes = 0,
    flags = flow.OPEN + (_open_verb.wants(verb) == "w" and flow.WANTS or 0),
    class = entry.class(record.entry(0, body, "")), policy = _open_verb.policy(verb), failed = "",
  }
  if expires > 0 then expiry.note(s, id, expires, false) end
  local flags = record.flags(body)
  set[#set + 1], set[#set + 2] = id, record.from_draft(body, state.WAITING, generation, s.now, s.now, expires, flags)
end

-- Adds `named`, a job in the form of `predecessors`, to the predecessors of a dependent. Returns the edge, or nil if
-- the dependent is not open any longer.
--- (s: table, named: str, dependent: str) -> str | nil
--- uses: base
function flow.link(s, named, dependent)
  local wait = s.waits and s.waits[dependent] or flow.wait(s, dependent)
  if not wait or wait.flags % 2 < flow.OPEN then return nil end -- OPEN is the lowest bit
  local added, total = wait.added or {}, wait.total
  wait.added, added[#added + 1] = added, named
  wait.total, wait.left = total + 1, wait.left + 1
  return _near_edge.pack({ number = wait.number, index = total, far_size = 0, dependent = dependent })
end

-- Collects the edge of a predecessor in `new`, or appends it to the list of those with several dependents.
--- (known: table, new: table, id: str, edge: str)
--- uses: base
function flow.store_edge(known, new, id, edge)
  local first = known[id]
  if not first then
    known[id] = edge
    new[#new + 1], new[#new + 2] = id, edge
  elseif first == "" then
    redis.call("RPUSH", base .. "dependents:" .. id, edge)
  else
    redis.call("RPUSH", base .. "dependents:" .. id, first, edge)
    known[id] = ""
    new[#new + 1], new[#new + 2] = id, ""
  end
end
