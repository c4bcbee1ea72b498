-- Children: jobs that a durable job runs. It sleeps until they have ended.
--
--   steps:<parent>     HASH  the step that runs a child: CHILD, and once that has ended ANSWER or FAILURE (durable.lua)
--   children:<parent>  SET   its children that have not ended, in the form of `predecessors`; owner: the parent
--   orphans:<number>   SET   those of a parent that has ended, which are to be cancelled; owner: an event (flow.lua)
--   predecessors:<parent>    all its children, after the jobs for which it waited before it ran (flow.lua)
--   dependents               child -> an edge (flow.lua) with the number 0, and step and id of the parent
--
-- The id of a child follows from its parent and the step, so a step runs one child, however often it is repeated. The
-- end of a child is recorded with the steps of its parent, whatever state the parent is in. If the parent sleeps until
-- all of its children have ended, the end of the last one makes it ready. A child that becomes a dead letter has
-- failed: what an operator does with it later does not change what was recorded.
--
-- A child may be of another queue. Then the outbox brings the child there, and its end back.

failure = { EXCEEDS = "L" } -- the letter of a child whose result does not fit; then its bytes. Else see `ending`

-- NUMBER: of such an edge. ROW: values of a row of `run_children`. SEALED: the name in a sealed text. The others are
-- verbs of the outbox.
_children = { NUMBER = 0, ROW = 5, RUN = "run", ANSWER = "answer", ABANDON = "abandon", SEALED = "*sealed" }

_child = layout { job = "Hc0", answer = "*" } -- the value of the step; `job` in the form of `predecessors`

_parent = layout { step = "Hc0", id = "*" } -- the end of such an edge

_draft_of_child = layout { parent = "Hc0", draft = "*" } -- what the outbox brings to the queue of a child

_answer = layout { letter = "c1", parent = "Hc0", text = "*" } -- and back

-- Enqueues children of a running job, at most 250 rows: step, queue (empty: this one), id, name of the task, draft, …
-- A step that has its child already is skipped. Returns { 1 }; { 0 } if the incarnation does not hold the job; { -1,
-- bytes } if the job, which has recorded that many bytes, has no room for them. May be sent again.
--- keys: base meta
--- args: given: int, incarnation: str, token: str, rows: *
--- flags: allow-oom
--- frame: change
function script.run_children(base, meta, given, incarnation, token, rows, ...)
  local held = lease.held_alive(incarnation, token, s.now)
  if not held then return { 0 } end
  local parent, fields = token.id(token), {}
  local key = base .. "steps:" .. parent
  for i = rows, #ARGV, _children.ROW do fields[#fields + 1] = "=" .. ARGV[i] end
  local known, bytes, set, members = redis.call("HMGET", key, unpack(fields)), steps.own(key), {}, {}
  local first = bytes == 0
  for i = 1, #fields do
    if not known[i] then
      local at = rows + _children.ROW * (i - 1)
      local member = _predecessor.pack({ queue = ARGV[at + 1], id = ARGV[at + 2] })
      local packed = steps.pack(recorded.CHILD, s.now, ARGV[at + 3], _child.pack({ job = member, answer = "" }))
      set[#set + 1], set[#set + 2], members[#members + 1] = fields[i], packed, member
      bytes = bytes + #packed + _durable.EACH
    end
  end
  if #set == 0 then return { 1 } end
  if bytes > _durable.BYTES then return { -1, (steps.own(key)) } end
  local new, edges, generation = {}, {}, row.mint(s.row, #members)
  for i = 1, #fields do
    if not known[i] then
      local at = rows + _children.ROW * (i - 1)
      local queue_, id, drafted = ARGV[at + 1], ARGV[at + 2], ARGV[at + 4]
      local to = _parent.pack({ step = ARGV[at], id = parent })
      generation = generation + 1
      if queue_ == "" then
        children.adopt(s, id, drafted, children.edge("", to), generation, new, edges)
      else
        outbox.put(s, queue_, _children.RUN, id, _draft_of_child.pack({ parent = to, draft = drafted }))
      end
    end
  end
  children.write(s, new, edges)
  set[#set + 1], set[#set + 2] = "", _steps.pack({ bytes = bytes, awaits = 0, waits_for = "" })
  batch.write("HSET", key, set)
  batch.write("SADD", base .. "children:" .. parent, members)
  batch.write("RPUSH", base .. "predecessors:" .. parent, members)
  redis.call("PERSIST", base .. "predecessors:" .. parent)
  steps.mark_claim(incarnation, parent, held)
  if first then steps.note_release(incarnation, parent) end
  return { 1 }
end

-- The edge of a child. `far`: the queue of its parent, if that is another one.
--- (far: str, to: str) -> str
function children.edge(far, to)
  if far ~= "" then far = _far.pack({ policy = flow.CONTINUE, wants = "w", queue = far }) end
  return _edge.pack({ number = _children.NUMBER, index = 0, far = far, dependent = to })
end

-- Enqueues a child, and appends its record to `new` and its edge to `edges`.
--- (s: table, id: str, drafted: str, edge: str, generation: int, new: table, edges: table)
--- uses: base
function children.adopt(s, id, drafted, edge, generation, new, edges)
  if job.accept(s, id, drafted, generation, new) then
    edges[#edges + 1], edges[#edges + 2] = id, edge
  end
end

-- Stores what `adopt` has collected.
--- (s: table, new: table, edges: table)
--- uses: base
function children.write(s, new, edges)
  if #edges == 0 then return end
  batch.write("HSET", base .. "jobs", new)
  flow.open(s.row)
  batch.add("HSET", base .. "dependents", edges)
  s.row[_row.FLOWS] = bit.bor(s.row[_row.FLOWS], _flow.EDGES)
end

-- Lets a parent sleep until its children have ended. Returns for how many ms; 0 if all have ended already.
--- (s: table, id: str) -> int
--- uses: base
--- seldom
function children.suspend(s, id)
  local key, awaits = base .. "steps:" .. id, redis.call("EXISTS", base .. "children:" .. id)
  redis.call("HSET", key, "", _steps.pack({ bytes = steps.own(key), awaits = awaits, waits_for = "" }))
  return awaits == 1 and _durable.FOREVER - s.now or 0
end

-- Reports to the parent that a child has ended, or has become a dead letter. Later events of the child do not matter.
--- (s: table, edge: str, letter: str, id: str, text: str)
--- uses: base
--- seldom
function children.report(s, edge, letter, id, text)
  if letter == _event.REQUEUED then return end
  if letter == _event.DEAD then text = children.reason(id) end
  local was = _edge.fields(edge)
  local to = _edge.dependent(edge)
  if was.far ~= "" then
    local packed = _answer.pack({ letter = letter, parent = to, text = text })
    outbox.put(s, _far.queue(was.far), _children.ANSWER, id, packed)
  else
    children.record(s, to, _predecessor.pack({ queue = "", id = id }), letter, text)
  end
end

-- Why a job failed last: the line for people in what its worker reported. If the report is sealed, all of it, because
-- only a client can open it.
--- (id: str) -> str
--- uses: base
--- seldom
function children.reason(id)
  local _, _, attempts = failures.get(id)
  local last = failures.first(attempts)
  if not last then return "" end
  local text = _attempt.text(last)
  local parsed, its = pcall(cjson.decode, text)
  if not parsed or type(its) ~= "table" or type(its.reason) ~= "string" then return text end
  local is_sealed = type(its.traceback) == "string" and string.find(its.traceback, _children.SEALED, 1, true) == 3
  if not is_sealed then text = its.reason end
  return text
end

-- Records how a child has ended. Makes the parent ready if it sleeps and this was the last child for which it waited.
--- (s: table, to: str, child: str, letter: str, text: str)
--- uses: base
--- seldom
function children.record(s, to, child, letter, text)
  local step, parent = _parent.step(to), _parent.id(to)
  local key = base .. "steps:" .. parent
  local known = redis.call("HGET", key, "=" .. step)
  if not known or _step.kind(known) ~= recorded.CHILD then return end
  local its = _step.fields(known)
  local value = _step.value(known)
  if _child.job(value) ~= child then return end
  local bytes, waits_for, awaits = steps.own(key)
  local kind = recorded.ANSWER
  if letter ~= ending.COMPLETED then kind, text = recorded.FAILURE, letter .. text end
  if bytes + #text > _durable.BYTES then
    text = kind == recorded.ANSWER and failure.EXCEEDS .. string.format("%d", #text) or letter
    kind = recorded.FAILURE
  end
  redis.call("SREM", base .. "children:" .. parent, child)
  local wakes = awaits == 1 and redis.call("EXISTS", base .. "children:" .. parent) == 0
  redis.call("HSET", key,
    "=" .. step, steps.pack(kind, s.now, its.name, _child.pack({ job = child, answer = text })),
    "", _steps.pack({ bytes = bytes + #text, awaits = wakes and 0 or awaits, waits_for = waits_for }))
  if not wakes then return end
  s.visits = s.visits or slice.within(s, _flow.VISITS)
  if not children.wake(s, parent, s.visits) then
    flow.open(s.row)
    flow.later(s, _event.WAKE, parent, "", 0)
  end
end

-- Makes a parent ready if it sleeps. Returns false if its record does not fit into the slice `budget`.
--- (s: table, id: str, budget: table) -> bool
--- uses: base
--- seldom
function children.wake(s, id, budget)
  if redis.call("HEXISTS", base .. "owners", id) == 1 then return true end
  if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", id)) then return false end
  local body = record.get(id)
  if body and record.state(body) == state.SLEEPING then steps.wake(s, id, body) end
  return true
end

-- A job leaves the queue: later scripts cancel those of its children for which no other job or caller waits.
--- (s: table, id: str)
--- uses: base
--- seldom
function children.orphan(s, id)
  local key = base .. "children:" .. id
  if redis.call("EXISTS", key) == 0 then return end
  local number = string.format("%d", row.mint(s.row, 1) + 1)
  redis.call("RENAME", key, base .. "orphans:" .. number)
  flow.open(s.row)
  flow.later(s, _event.ORPHANS, number, id, 0)
end

-- Cancels some of the orphans of a parent. Returns whether some are left.
--- (s: table, number: str, parent: str, budget: table) -> bool
--- uses: base
--- seldom
function children.cancel(s, number, parent, budget)
  local key = base .. "orphans:" .. number
  while true do
    local member = redis.call("SRANDMEMBER", key)
    if not member then return false end
    local queue_, id = _predecessor.queue(member), _predecessor.id(member)
    local size = queue_ == "" and redis.call("HSTRLEN", base .. "jobs", id) or #id
    if not slice.take(budget, size) then return true end
    redis.call("SREM", key, member)
    if queue_ == "" then
      children.abandon(s, id, "", parent)
    else
      outbox.put(s, queue_, _children.ABANDON, id, parent)
    end
  end
end

-- Cancels a child of a parent that has ended, unless another job or program waits for it.
--- (s: table, id: str, far: str, parent: str)
--- uses: base
--- seldom
function children.abandon(s, id, far, parent)
  local edge = redis.call("HGET", base .. "dependents", id)
  if not edge or edge == "" or _edge.number(edge) ~= _children.NUMBER then return end
  local was = _edge.fields(edge)
  local to = _edge.dependent(edge)
  local far_queue = was.far ~= "" and _far.queue(was.far) or ""
  if far_queue ~= far or _parent.id(to) ~= parent or redis.call("HEXISTS", base .. "listeners", id) == 1 then return end
  slice.spend(s, 3)
  local body = record.get(id)
  if not body or record.state(body) == state.DEAD or cancelling.ask(id) then return end
  s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + 1
  job.remove(s, id, body, ending.CANCELLED, "job " .. parent .. ", which ran it, has ended")
end

-- Receives a child of a job of the queue `sender`.
--- (s: table, sender: str, id: str, packed: str)
--- uses: base
--- seldom
function children.receive(s, sender, id, packed)
  local new, edges, to = {}, {}, _draft_of_child.parent(packed)
  local generation = row.mint(s.row, 1) + 1
  children.adopt(s, id, _draft_of_child.draft(packed), children.edge(sender, to), generation, new, edges)
  children.write(s, new, edges)
end

-- Receives the end of a child in the queue `sender`.
--- (s: table, sender: str, id: str, packed: str)
--- uses: base
--- seldom
function children.arrive(s, sender, id, packed)
  local child = _predecessor.pack({ queue = sender, id = id })
  children.record(s, _answer.parent(packed), child, _answer.letter(packed), _answer.text(packed))
end
