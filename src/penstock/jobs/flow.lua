-- Flows: jobs that wait until other jobs have ended.
--
--              all of its predecessors have ended
--   waiting ─────────────────────────────────────▶ ready
--     │ ▲  │
--     │ │  └─ one failed, and it stops ───────────▶ (cancelled)
--     │ └──── the dead one is requeued ──┐
--     └────── one is a dead letter ──▶ blocked
--
-- The job that waits is a *dependent*, and those that it waits for are its *predecessors*. A predecessor fails if it is
-- cancelled or dropped, if it expires, or if its dead letter is removed. What a dependent does then depends on its
-- policy. With STOP, it is cancelled, which its own dependents count as a failure in turn; while a predecessor is a
-- dead letter, it is blocked. With CONTINUE, it counts a failed or dead predecessor as one that has ended. With
-- INSTEAD, a failed or dead predecessor turns it into another call at once.
--
--   waiting            HASH    dependent -> its number; how many predecessors it has and still waits for, and how many
--                              of them are dead; bytes of its inputs; marks (OPEN …), size class, policy; one that
--                              failed
--   predecessors:<id>  LIST    the predecessors of a dependent: length of a queue's name, name (empty: this queue), id;
--                              PX when the dependent does not wait any longer
--   opened             ZSET    dependent that is open, or job that has edges and is not enqueued yet -> server ms at
--                              which it is given up
--   inputs:<id>        STRING  results that a dependent wants, as [index,result],…
--   dependents         HASH    predecessor -> its dependent as an *edge*, or empty if it has several
--   dependents:<id>    LIST    the edges of a predecessor with several dependents
--   events             LIST    letter, id, text, edges to visit: ends of predecessors that later scripts report
--   row                (row.lua)  FLOWS has a mark for `dependents` and one for `events`. Until the queue has its first
--                              flow it is absent, and nothing here is called
--
-- An edge has the number of the dependent, so that a later job with the same id is not mistaken for it; the index of
-- the predecessor; and the id of the dependent. A dependent that is *open* may still get predecessors, so it does not
-- become ready. If the program that enqueues the flow dies meanwhile, the dependent stays open, and is cancelled after
-- ten minutes. While the dependent counts the predecessor as a dead letter, the index has a mark, so that the same
-- death is not counted twice.
--
-- If the dependent is in another queue, perhaps in another slot, the edge also has the name of that queue, the policy,
-- and whether the dependent wants results. The outbox reports to that queue what happens to the predecessor, and that
-- queue counts each report once. The client chooses the number of such a dependent, because both queues need it: the
-- client first enqueues the dependent there, together with its predecessors in that queue, then it sends the edges to
-- the other queues, and last it closes the dependent.
--
-- A script visits a limited number of edges and releases a limited number of dependents. It leaves the rest in
-- `events`, which the next turns process in order.

-- OVERDUE: the member of `ticks` for the end of open dependents.
flow = { STOP = "s", CONTINUE = "c", INSTEAD = "i", OPEN = 1, WANTS = 2, TOO_LARGE = 4, OVERDUE = "overdue:" }

_wait = layout {
  number = "I6", -- of the dependent
  total = "I4", -- predecessors
  left = "I4", -- predecessors that it waits for
  dead = "I4", -- predecessors that are dead letters
  bytes = "I4", -- of its inputs
  flags = "B", -- marks (OPEN …)
  class = "B", -- the size class of its record
  policy = "c1",
  failed = "Bc0", -- the id of a predecessor that failed
}

_edge = layout {
  number = "I6", -- of the dependent
  index = "I4", -- of the predecessor among those of the dependent; with the mark DEAD
  far = "Bc0", -- of a dependent in another queue: see `_far`
  dependent = "*",
}

_near_edge = layout { number = "I6", index = "I4", far_size = "B", dependent = "*" } -- an edge whose `far` is empty

_far = layout { policy = "c1", wants = "c1", queue = "*" } -- wants: w if it wants results

_arrival = layout { letter = "c1", edge = "Hc0", text = "*" } -- what the outbox reports

_predecessor = layout { queue = "Bc0", id = "*" }

-- A job that has waited, as `_predecessor`, and jobs that have ended for which it waited: each id after its length in
-- 1 byte.
_links = layout { dependent = "Hc0", ended = "*" }

_flow = {
  EDGES = 1, EVENTS = 2, VISITS = 128, KEEP = 3600000, MOST = 1048576, FAILED = 255,
  OPEN_FOR = 600000, DEAD = 2147483648, -- DEAD: the mark in an index
}

-- Letters of events, besides those of `ending`. WAKE: the children of a job have ended; ORPHANS: those of a job that
-- has ended are to be cancelled (children.lua).
_event = { DEAD = "d", REQUEUED = "r", RELEASE = "!", WAKE = "w", ORPHANS = "-" }

-- Prepares the row of a queue for flows.
--- (r: table)
function flow.open(r)
  if r[_row.FLOWS] then return end
  row.widen(r, _row.FLOWS)
  r[_row.FLOWS], r[_row.DEPENDENT] = 0, 0
end

-- Notes an end, or another event, of a job, which `flow.advance` reports to the jobs that wait for it.
--- (s: table, letter: str, id: str, text: str)
function flow.report(s, letter, id, text)
  local flows = s.row[_row.FLOWS]
  if flows and flows > 0 then flow.note(s, letter, id, text) end
end

--- (s: table, letter: str, id: str, text: str)
--- seldom
function flow.note(s, letter, id, text)
  local events = s.events
  if not events then
    events = { ids = {}, letters = {}, texts = {} }
    s.events = events
  end
  local n = #events.ids + 1
  events.ids[n], events.letters[n], events.texts[n] = id, letter, text
  if letter ~= ending.COMPLETED then events.may_repeat = true end -- a job may die and be requeued in one script
end

-- The state of the wait of a dependent, or false. Changes to the table are stored by `flow.write`.
--- (s: table, id: str) -> table | false
--- uses: base
function flow.wait(s, id)
  s.waits = s.waits or {}
  local wait = s.waits[id]
  if wait == nil then
    local packed = redis.call("HGET", base .. "waiting", id)
    wait = false
    if packed then
      local its = _wait.fields(packed)
      wait = {
        number = its.number, total = its.total, left = its.left, dead = its.dead, bytes = its.bytes,
        flags = its.flags, class = its.class, policy = its.policy, failed = its.failed, stored = packed,
      }
    end
    s.waits[id] = wait
  end
  return wait
end

-- Stores what dependents wait for, and the results that arrived for them.
--- (s: table)
--- uses: base
--- seldom
function flow.write(s)
  if not s.waits then return end
  local set, gone = {}, {}
  for id, wait in pairs(s.waits) do
    if wait and wait.gone then
      if wait.stored then gone[#gone + 1] = id end
    elseif wait then
      if wait.added then batch.write("RPUSH", base .. "predecessors:" .. id, wait.added) end
      if wait.texts then redis.call("APPEND", base .. "inputs:" .. id, table.concat(wait.texts)) end
      local packed = _wait.pack({
        number = wait.number, total = wait.total, left = wait.left, dead = wait.dead, bytes = wait.bytes,
        flags = wait.flags, class = wait.class, policy = wait.policy, failed = wait.failed,
      })
      if packed ~= wait.stored then set[#set + 1], set[#set + 2] = id, packed end
    end
  end
  batch.write("HSET", base .. "waiting", set)
  batch.write("HDEL", base .. "waiting", gone)
  s.waits = nil
end

-- Ends the wait of a job. The list of its predecessors stays for an hour longer than its result.
--- (s: table, id: str, ttl: int)
--- uses: base
--- seldom
function flow.forget(s, id, ttl)
  local wait = flow.wait(s, id)
  if not wait or wait.gone then return end
  if wait.added then batch.write("RPUSH", base .. "predecessors:" .. id, wait.added) end
  redis.call("PEXPIRE", base .. "predecessors:" .. id, string.format("%d", ttl + _flow.KEEP))
  if record.has(wait.flags, flow.WANTS) then redis.call("UNLINK", base .. "inputs:" .. id) end
  if record.has(wait.flags, flow.OPEN) then redis.call("ZREM", base .. "opened", id) end
  wait.gone = true
end

-- Notes a dependent whose wait may be over, so that `flow.settle_touched` examines it.
--- (s: table, id: str, wait: table)
function flow.touch(s, id, wait)
  if not wait.touched then
    wait.touched = true
    s.touched[#s.touched + 1] = id
  end
end

-- Counts one event of a predecessor for the dependent of this edge. Returns the edge as it is to be stored, or nil if
-- no later event of the predecessor matters.
--- (s: table, edge: str, letter: str, id: str, text: str) -> str | nil
--- uses: base
function flow.visit(s, edge, letter, id, text)
  local was = _edge.fields(edge)
  if was.number == _children.NUMBER then return children.report(s, edge, letter, id, text) end
  local is_marked = was.index >= _flow.DEAD
  if is_marked and letter == _event.DEAD or not is_marked and letter == _event.REQUEUED then return edge end
  if is_marked then
    was.index = was.index - _flow.DEAD
    edge = _edge.with(edge, { index = was.index })
  end
  if was.far_size > 0 then return flow.send(s, edge, letter, id, text) end
  local dependent = string.sub(edge, _edge.AT_FAR + 1)
  local wait = s.waits and s.waits[dependent] or flow.wait(s, dependent)
  if not wait or wait.gone or wait.number ~= was.number then return nil end
  if not wait.touched then flow.touch(s, dependent, wait) end
  if letter == _event.REQUEUED then
    wait.dead = math.max(0, wait.dead - 1)
    return edge
  end
  if letter == _event.DEAD and wait.policy == flow.STOP then
    wait.dead = wait.dead + 1
    return _edge.with(edge, { index = was.index + _flow.DEAD })
  end
  wait.left = wait.left - 1
  if letter ~= ending.COMPLETED and wait.policy ~= flow.CONTINUE then
    if wait.failed == "" then
      wait.failed = #id > _flow.FAILED and (struct.unpack("c" .. _flow.FAILED, id)) or id
    end
  elseif record.has(wait.flags, flow.WANTS) and not record.has(wait.flags, flow.TOO_LARGE) then
    local input = string.format("[%d,", was.index) .. (letter == ending.COMPLETED and text or "null") .. "],"
    wait.bytes = wait.bytes + #input
    if wait.bytes > _flow.MOST then
      wait.flags, wait.texts = wait.flags + flow.TOO_LARGE, nil
      redis.call("UNLINK", base .. "inputs:" .. dependent)
    else
      wait.texts = wait.texts or {}
      wait.texts[#wait.texts + 1] = input
    end
  end
end

-- Does what `flow.visit` does for an edge of a job of this queue. If that was the last event of the edge, it is kept
-- beside the row of the job, so that people see what waited for a job that has ended.
--- (s: table, edge: str, letter: str, id: str, text: str) -> str | nil
--- uses: base
function flow.follow(s, edge, letter, id, text)
  local was, to, links = _edge.fields(edge), string.sub(edge, _edge.AT_FAR), s.links or {}
  local ended = links[to]
  local wait = ended and ended.wait
  if wait and wait.number == was.number and letter == ending.COMPLETED and was.index < _flow.DEAD and not wait.gone then
    -- Most edges lead to the same job as the one before, which counts them and wants no results.
    if not wait.touched then flow.touch(s, ended.id, wait) end
    wait.left = wait.left - 1
  else
    local kept = flow.visit(s, edge, letter, id, text)
    if kept or letter == _event.REQUEUED then return kept end
  end
  if #id > _most.BYTE then id = string.sub(id, 1, _most.BYTE) end
  if not ended or ended.size ~= #id then ended = flow.begin_link(s, edge, to, #id) end
  ended[#ended + 1] = id
end

-- Begins a list of jobs that have ended, for which the same one waited, and whose ids have the same length.
-- `finished.write` keeps it. `wait`: that of the job that waited, if it wants no results; `before`: another list.
--- (s: table, edge: str, to: str, size: int) -> table
--- uses: base
--- seldom
function flow.begin_link(s, edge, to, size)
  local was, dependent = _edge.fields(edge), _edge.dependent(edge)
  if was.number == _children.NUMBER then dependent = _parent.id(dependent) end
  local far = was.far ~= "" and _far.queue(was.far) or ""
  local ended, wait = { dependent = _predecessor.pack({ queue = far, id = dependent }), size = size }, nil
  if was.far == "" and was.number ~= _children.NUMBER then wait = flow.wait(s, dependent) end
  if wait and not record.has(wait.flags, flow.WANTS) then ended.wait, ended.id = wait, dependent end
  s.links = s.links or {}
  s.links[to], ended.before = ended, s.links[to]
  return ended
end

-- Has the outbox report an event to a dependent of another queue. Returns what `flow.visit` does.
--- (s: table, edge: str, letter: str, id: str, text: str) -> str | nil
function flow.send(s, edge, letter, id, text)
  local was = _edge.fields(edge)
  local index, far = was.index, was.far
  local there = _edge.pack({
    number = was.number, index = letter == _event.REQUEUED and index + _flow.DEAD or index, far = "",
    dependent = _edge.dependent(edge),
  })
  if letter ~= ending.COMPLETED or _far.wants(far) ~= "w" then text = "" end
  outbox.put(s, _far.queue(far), outbox.EVENT, id, _arrival.pack({ letter = letter, edge = there, text = text }))
  if letter == _event.REQUEUED then return edge end
  if letter == _event.DEAD and _far.policy(far) == flow.STOP then
    return _edge.with(edge, { index = index + _flow.DEAD })
  end
end

-- Counts an event that the queue `sender` has sent with `flow.send`. Call `flow.settle_touched` afterwards.
--- (s: table, sender: str, id: str, packed: str)
--- uses: base
function flow.arrive(s, sender, id, packed)
  flow.open(s.row)
  s.visits, s.touched = s.visits or slice.within(s, _flow.VISITS), s.touched or {}
  flow.visit(s, _arrival.edge(packed), _arrival.letter(packed), sender .. ":" .. id, _arrival.text(packed))
end

-- Visits some edges of a predecessor with several dependents, at least one. An edge that is still needed goes to the
-- end of the list. Returns how many of the `rest` are left to visit.
--- (s: table, letter: str, id: str, text: str, rest: int, budget: table) -> int
--- uses: base
function flow.visit_list(s, letter, id, text, rest, budget)
  local key, kept = base .. "dependents:" .. id, {}
  local most = math.max(1, math.floor(_flow.MOST / (#text + 1))) -- each dependent may get a copy of the result
  local edges = redis.call("LPOP", key, math.min(rest, math.max(1, budget.left), most)) or {}
  for i = 1, #edges do kept[#kept + 1] = flow.follow(s, edges[i], letter, id, text) end
  batch.write("RPUSH", key, kept)
  budget.left = #edges == most and 0 or math.max(0, budget.left - #edges)
  return #edges == 0 and 0 or rest - #edges
end

-- Ends the wait of a dependent that is not open, if all of its predecessors have ended or one has failed. Returns false
-- if the dependent does not fit into the slice `budget`.
--- (s: table, id: str, wait: table, budget: table) -> bool
--- uses: base
function flow.settle(s, id, wait, budget)
  if wait.gone or record.has(wait.flags, flow.OPEN) or wait.left > 0 and wait.failed == "" then return true end
  if not slice.take(budget, record.entry_bytes(entry.pack({ generation = 0, class = wait.class })) + wait.bytes) then
    budget.left = 0
    return false
  end
  local body = record.get(id)
  if not body or record.state(body) ~= state.WAITING then
    wait.gone = true
    return true
  end
  local too_large = record.has(wait.flags, flow.TOO_LARGE)
  if wait.failed ~= "" and wait.policy == flow.STOP then
    s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + 1
    job.remove(s, id, body, ending.CANCELLED, "it waited for job " .. wait.failed .. ", which failed")
    return true
  end
  local generation, ttl = row.mint(s.row, 1) + 1, record.ttl(body)
  if wait.failed ~= "" then
    body = record.replaced(body, record.substitute(body), generation, s.now, 0)
  elseif record.has(wait.flags, flow.WANTS) and not too_large then
    if wait.texts then redis.call("APPEND", base .. "inputs:" .. id, table.concat(wait.texts)) end
    local inputs = redis.call("GET", base .. "inputs:" .. id) or ""
    local its = record.own_tail(body)
    local open = struct.unpack("c" .. #body - #its - 1, body) -- the payload is an object, which the last byte closes
    body = open .. (string.find(open, "{$", -1) and "" or ",")
      .. '"*results":[' .. (string.match(inputs, "^(.*),$") or "") .. "]}" .. its
  end
  flow.forget(s, id, ttl)
  local was = record.fields(body)
  local flags, new_state = was.flags
  if too_large and wait.failed == "" then
    local why = '{"reason":"the results of the jobs that it waited for are larger than 1 MiB"}'
    failures.add(id, 0, "", outcome.FAILED, 1, 0, s.now, why)
    redis.call("ZADD", base .. "dead", s.now, id)
    s.row[_row.FAILED] = s.row[_row.FAILED] + 1
    counters.move(s, was.tenant, _count.DEPENDENT, _count.DEAD, 1)
    s.finished[#s.finished + 1] = id
    finished.note_job(s, id, body, state.DEAD, why, record.attempts(body), 0, "")
    flow.note(s, _event.DEAD, id, "")
    new_state, flags = state.DEAD, bit.bor(flags, flag.REASON)
  else
    new_state, flags = job.make_ready(
      s, false, record.entry(generation, body, id), flags, was.priority, was.tenant, s.now, _count.DEPENDENT, body)
  end
  redis.call("HSET", base .. "jobs", id, record.moved(body, new_state, generation, s.now, flags))
  return true
end

-- Settles the dependents that `flow.visit` has touched. Those that do not fit into `budget` become events.
--- (s: table, budget: table)
--- uses: base
function flow.settle_touched(s, budget)
  local touched = s.touched
  s.touched = {}
  for i = 1, #touched do
    local wait = s.waits[touched[i]]
    wait.touched = nil
    if not flow.settle(s, touched[i], wait, budget) then flow.later(s, _event.RELEASE, touched[i], "", 0) end
  end
end

-- Leaves an event to the next scripts.
--- (s: table, letter: str, id: str, text: str, rest: int)
--- uses: base
function flow.later(s, letter, id, text, rest)
  redis.call("RPUSH", base .. "events", letter, id, text, rest)
  s.row[_row.FLOWS] = bit.bor(s.row[_row.FLOWS], _flow.EVENTS)
  s.ready = true -- have a worker take a turn
end

-- Reports the events that earlier scripts have left, in order.
--- (s: table, budget: table)
--- uses: base
function flow.resume(s, budget)
  local key = base .. "events"
  while budget.left > 0 do
    local event = redis.call("LPOP", key, 4)
    if not event then
      s.row[_row.FLOWS] = _flow.EDGES
      return
    end
    local letter, id, text, rest = event[1], event[2], event[3], tonumber(event[4])
    budget.left = math.max(0, budget.left - 1)
    if letter == _event.RELEASE then
      local wait = flow.wait(s, id)
      if wait then flow.touch(s, id, wait) end
    elseif letter == _event.WAKE then
      if not children.wake(s, id, budget) then redis.call("LPUSH", key, rest, text, id, letter) end
    elseif letter == _event.ORPHANS then
      if children.cancel(s, id, text, budget) then redis.call("LPUSH", key, rest, text, id, letter) end
    else
      local value = redis.call("HGET", base .. "dependents", id)
      if value == "" then
        rest = flow.visit_list(s, letter, id, text, rest or redis.call("LLEN", base .. "dependents:" .. id), budget)
        if rest > 0 then
          redis.call("LPUSH", key, rest, text, id, letter)
        elseif redis.call("EXISTS", base .. "dependents:" .. id) == 0 then
          redis.call("HDEL", base .. "dependents", id)
        end
      elseif value then
        local kept = flow.follow(s, value, letter, id, text)
        if not kept then
          redis.call("HDEL", base .. "dependents", id)
        elseif kept ~= value then
          redis.call("HSET", base .. "dependents", id, kept)
        end
      end
    end
    flow.settle_touched(s, budget)
  end
end

-- Reports to dependents what happened to their predecessors in this script, and ends the waits that are over.
--- (s: table)
--- uses: base
--- seldom
function flow.advance(s)
  local r = s.row
  s.visits, s.touched = s.visits or slice.within(s, _flow.VISITS), s.touched or {}
  local visits = s.visits
  if r[_row.FLOWS] >= _flow.EVENTS then flow.resume(s, visits) end
  while s.events do
    local events = s.events
    local ids, letters, texts = events.ids, events.letters, events.texts
    s.events = nil
    local found = batch.read(base .. "dependents", ids)
    local visited, gone, changed = events.may_repeat and {}, {}, {} -- `visited`: id -> its edge, or false if it is gone
    local is_late = r[_row.FLOWS] >= _flow.EVENTS
    for i = 1, #ids do
      local id, edge = ids[i], found[i]
      if visited and visited[id] ~= nil then edge = visited[id] end
      if edge and not is_late and edge ~= "" and visits.left > 0 then
        local kept = flow.follow(s, edge, letters[i], id, texts[i])
        if not kept then
          gone[#gone + 1] = id
        elseif kept ~= edge then
          changed[#changed + 1], changed[#changed + 2] = id, kept
        end
        if visited then visited[id] = kept or false end
      elseif edge then
        flow.later(s, letters[i], id, texts[i], "")
      end
    end
    batch.write("HSET", base .. "dependents", changed)
    batch.write("HDEL", base .. "dependents", gone)
    flow.settle_touched(s, visits)
    if not is_late and visits.left > 0 and r[_row.FLOWS] >= _flow.EVENTS then flow.resume(s, visits) end
  end
  if r[_row.DEPENDENT] == 0 and r[_row.FLOWS] == _flow.EDGES and redis.call("EXISTS", base .. "dependents") == 0 then
    r[_row.FLOWS] = 0
  end
end
