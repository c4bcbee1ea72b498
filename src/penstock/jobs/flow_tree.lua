-- What an operator reads of a flow (see flow.lua): the predecessors of a job, and its dependents. Nothing here writes.

-- How many jobs wait for a job, and the first edge: empty if they are several, nil if no job waits.
--- (id: str) -> int, str | nil
--- uses: base
function flow.count_dependents(id)
  local first = redis.call("HGET", base .. "dependents", id)
  if not first then return 0 end
  return first == "" and redis.call("LLEN", base .. "dependents:" .. id) or 1, first
end

-- Appends to `page` what is known about a job: start of its record or false, whether it runs, how it ended or false,
-- its wait or false, how many predecessors it has, and how many jobs wait for it. Returns false if its record does not
-- fit into the slice.
--- (page: table, id: str, now: int, budget: table) -> bool
--- uses: base
function flow.describe(page, id, now, budget)
  if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", id)) then return false end
  local body, done, n = record.get(id), results.get(id, now), #page
  page[n + 1] = body and record.head(body)
  page[n + 2] = redis.call("HGET", base .. "owners", id)
  page[n + 3] = done and results.letter(done)
  page[n + 4] = body and record.state(body) == state.WAITING and redis.call("HGET", base .. "waiting", id)
  page[n + 5] = redis.call("LLEN", base .. "predecessors:" .. id)
  page[n + 6] = (flow.count_dependents(id))
  return true
end

-- Appends what `flow.describe` does about a job of which nothing is known here.
--- (page: table)
function flow.describe_none(page)
  local n = #page
  page[n + 1], page[n + 2], page[n + 3], page[n + 4], page[n + 5], page[n + 6] = false, false, false, false, 0, 0
end

-- A page of the predecessors of a job: { how many there are, entry, and what `flow.describe` appends, … }. This queue
-- knows nothing about predecessors in other queues. At most 1 MiB of records.
--- keys: base meta
--- args: given: int, id: str, offset: int, limit: int
--- flags: allow-oom
--- frame: read
function script.predecessors(base, meta, given, id, offset, limit)
  local key, budget = base .. "predecessors:" .. id, slice.of(limit)
  local page = { redis.call("LLEN", key) }
  local found = redis.call("LRANGE", key, offset, offset + limit - 1)
  for i = 1, #found do
    local n = #page
    page[n + 1] = found[i]
    if _predecessor.queue_size(found[i]) > 0 then
      flow.describe_none(page)
    elseif not flow.describe(page, _predecessor.id(found[i]), s.now, budget) then
      page[n + 1] = nil
      break
    end
  end
  return page
end

-- A page of the jobs that wait for a job, in the form of `predecessors`. A job that waits for it no longer, because it
-- was cancelled or has another wait by now, comes as one of which nothing is known.
--- keys: base meta
--- args: given: int, id: str, offset: int, limit: int
--- flags: allow-oom
--- frame: read
function script.dependents(base, meta, given, id, offset, limit)
  local total, first = flow.count_dependents(id)
  local edges, budget, page = { offset == 0 and first or nil }, slice.of(limit), { total }
  if first == "" then edges = redis.call("LRANGE", base .. "dependents:" .. id, offset, offset + limit - 1) end
  for i = 1, #edges do
    local its = _edge.fields(edges[i])
    local dependent, n = _edge.dependent(edges[i]), #page
    local is_child = its.number == _children.NUMBER -- then it is the parent that waits
    if is_child then dependent = _parent.id(dependent) end
    local far = its.far ~= "" and _far.queue(its.far) or ""
    page[n + 1] = _predecessor.pack({ queue = far, id = dependent })
    local wait = far == "" and not is_child and redis.call("HGET", base .. "waiting", dependent)
    if far ~= "" or not is_child and not (wait and _wait.number(wait) == its.number) then
      flow.describe_none(page)
    elseif not flow.describe(page, dependent, s.now, budget) then
      page[n + 1] = nil
      break
    end
  end
  return page
end

-- What `flow.describe` appends for each of these jobs, as many as fit into 1 MiB of records.
--- keys: base meta
--- args: given: int, ids: *
--- flags: allow-oom
--- frame: read
function script.flow_jobs(base, meta, given, ids, ...)
  local page, budget = {}, slice.of(#ARGV)
  for i = ids, #ARGV do
    if not flow.describe(page, ARGV[i], s.now, budget) then break end
  end
  return page
end
