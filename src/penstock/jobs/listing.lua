-- Pages of the jobs that match a filter, and changes to such jobs. queue.lua draws the states and maps the keys.
--
-- A page walks one source:
--
--   source       the jobs                       in the order of
--   records      all                            none: HSCAN of `jobs`
--   owners       those that run                 none: HSCAN of `owners`
--   held:<inc>   those of one incarnation       none: HSCAN of that key
--   lane         ready ones of one tenant       their claims: level, front list, lane
--   suspects     ready ones that run alone      ready since
--   delayed                                     due
--   dead                                        died at, the latest first
--
-- A script examines at most 1000 jobs and 1 MiB of records. No clock ends it: Redis before 7.4 and Valkey before 8 have
-- no `os.clock`, and `TIME` does not advance within a script. Its cursor is where the next one continues: a job that
-- stays in the source is found at least once, whatever happens to the others meanwhile.

_page = { LOOK = 1000, CHUNK = 100, FIRST = 4, CHUNK_BYTES = 131072, CHANGED = 100 }

-- A page of the jobs that match. A filter is empty, or "=" and the value; `state_` is a letter, or empty. `older`: only
-- jobs that have been in their state for that many ms (a delayed one since its enqueue). `text`: bytes in the payload.
-- With a `limit` of 0 matching jobs are only counted. Returns { next cursor (empty: the source is done), examined,
-- about how many jobs the source has, matching, now, { incarnation, registration of the worker or false, … }, id, owner
-- (empty: it does not run), record without payload, … }. It may have some more rows than `limit`, because an HSCAN
-- cannot continue in the middle of a reply.
--- keys: base meta
--- args: given: int, source: str, cursor: str, limit: int, state_: str, tenant: str, task: str, prefix: str, older: int
--- args: tag: str, text: str
--- flags: allow-oom
--- frame: look
function script.list_jobs(base, meta, given, source, cursor, limit, state_, tenant, task, prefix, older, tag, text)
  local page = {
    budget = slice.of(_page.LOOK), limit = limit, examined = 0,
    matched = 0, rows = {},
    incarnations = {},
    state = state_, tenant = tenant ~= "" and _signed.name(tenant), task = task ~= "" and _signed.name(task),
    prefix = prefix, tag = tag ~= "" and tag, text = text,
    before = older > 0 and s.now - older or math.huge, runs = s.row[_row.RUNNING] > 0,
  }
  local following, of
  if source == "records" then
    following, of = listing.walk_records(page, cursor), redis.call("HLEN", base .. "jobs")
  elseif source == "lane" then
    following = listing.walk_lanes(page, cursor)
    of = counters.unpack(redis.call("HGET", base .. "tenants", page.tenant))
  elseif source == "dead" or source == "delayed" or source == "suspects" then
    following, of = listing.walk_set(page, source, cursor), redis.call("ZCARD", base .. source)
  else
    if source ~= "owners" then lease.open(string.sub(source, #"held:" + 1)) end
    following, of = listing.walk_claims(page, base .. source, cursor), redis.call("HLEN", base .. source) - 1
  end
  local workers = {}
  local names = #page.incarnations > 0 and redis.call("HMGET", base .. "workers", unpack(page.incarnations))
  for i, incarnation in ipairs(page.incarnations) do
    workers[2 * i - 1], workers[2 * i] = incarnation, names[i]
  end
  return { following, page.examined, math.max(0, of), page.matched, s.now, workers, unpack(page.rows) }
end

-- Changes jobs that are still as a page has shown them. `verb`: cancel; remove (dead letters); move and the name of a
-- queue (jobs that this queue has as well, that do not run and that no other job waits for). `jobs`: id, generation,
-- owner, … Returns { how many of them were reached, position of one that was changed, … }; call again with the others.
--- keys: base meta
--- args: caller: str, number: int, given: int, verb: str, jobs: *
--- flags: allow-oom
--- frame: once
function script.change_jobs(base, meta, caller, number, given, verb, jobs, ...)
  local reply, target = { 0 }, string.match(verb, "^move (.*)$")
  for at, id, body, owner in listing.unchanged(s, reply, jobs) do
    local dead = record.state(body) == state.DEAD
    if verb == "remove" and dead then
      job.remove(s, id, body, ending.CANCELLED, "removed from the dead letters")
    elseif target and not owner and not listing.is_awaited(s, id) then
      job.remove(s, id, body, ending.CANCELLED, "moved to queue " .. target)
    elseif verb == "cancel" and owner then
      cancelling.ask(id)
    elseif verb == "cancel" and not dead then
      job.remove(s, id, body, ending.CANCELLED, "")
      s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + 1
    else
      at = nil
    end
    reply[#reply + 1] = at
  end
  return reply
end

-- Delays waiting jobs for at least `ms`, so that no worker claims them while they are enqueued elsewhere. It delays
-- only jobs that are unchanged since a page has shown them, that have no powers (unique keys and limits belong to their
-- queue), and that have no dependents (which would be cancelled). It returns a dead letter without delaying it, because
-- no worker claims it. Arguments as of `change_jobs`. Returns { how many of them were reached, id, ms at which it was
-- due (0: it was ready or dead), record, … }.
--- keys: base meta
--- args: caller: str, number: int, given: int, ms: int, jobs: *
--- flags: allow-oom
--- frame: once
function script.hold_jobs(base, meta, caller, number, given, ms, jobs, ...)
  local reply = { 0 }
  for _, id, body, owner in listing.unchanged(s, reply, jobs) do
    local is, due = record.state(body), 0
    local stays = not record.is_plain(body) or listing.is_awaited(s, id)
    if is == state.DELAYED then due = record.since(body) end
    if not owner and not stays and (is == state.READY or is == state.DELAYED) then
      body = listing.hold(s, id, body, math.max(due, s.now + ms))
    elseif is ~= state.DEAD or stays then
      id = nil
    end
    if id then
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, due, body
    end
  end
  return reply
end

-- Whether other jobs wait for this one, so that it cannot leave its queue.
--- (s: table, id: str) -> bool
--- uses: base
function listing.is_awaited(s, id)
  return (s.row[_row.FLOWS] or 0) ~= 0 and redis.call("HEXISTS", base .. "dependents", id) == 1
end

-- Delays a waiting job until `due`. Returns its new record.
--- (s: table, id: str, body: str, due: int) -> str
--- uses: base
function listing.hold(s, id, body, due)
  local was, generation = record.fields(body), row.mint(s.row, 1) + 1
  local old = record.entry(was.generation, body, id)
  if was.state == state.DELAYED then
    redis.call("ZREM", base .. "delayed", old)
  else
    counters.move(s, was.tenant, _count.READY, _count.DELAYED, 1)
    counters.add_ready_since(s, was.since, -1)
    if record.has(was.flags, flag.SUSPECT) then
      s.row[_row.SUSPECTS] = s.row[_row.SUSPECTS] - redis.call("ZREM", base .. "suspects", old)
    end
  end
  job.delay(s, due, record.entry(generation, body, id))
  body = record.moved(body, state.DELAYED, generation, due, was.flags)
  redis.call("HSET", base .. "jobs", id, body)
  return body
end

-- Makes dead letters ready again that are still as a page has shown them. Arguments and reply as of `change_jobs`.
--- keys: base meta
--- args: caller: str, number: int, given: int, jobs: *
--- frame: once
function script.requeue_jobs(base, meta, caller, number, given, jobs, ...)
  local reply = { 0 }
  for at, id, body in listing.unchanged(s, reply, jobs) do
    if record.state(body) == state.DEAD and not dead_letters.requeue(s, id, body) then reply[#reply + 1] = at end
  end
  return reply
end

-- Iterates over the jobs in ARGV that have not changed: position, id, record, owner or false. Counts in `reply[1]` how
-- many it reached: it ends after a slice.
--- (s: table, reply: table, first: int) -> …
--- uses: base
function listing.unchanged(s, reply, first)
  local budget, i = slice.within(s, _page.CHANGED), first - 3
  return function()
    while true do
      i = i + 3
      local id = ARGV[i]
      if not id or not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", id)) then return nil end
      reply[1] = reply[1] + 1
      local body = record.get(id)
      if body and record.generation_bytes(body) == ARGV[i + 1] then
        local owner = redis.call("HGET", base .. "owners", id)
        if (owner or "") == ARGV[i + 2] then return (i - first) / 3, id, body, owner end
      end
    end
  end
end

--- (page: table) -> bool
function listing.is_full(page)
  return page.budget.left <= 0 or page.limit > 0 and page.matched >= page.limit
end

-- How many jobs to read next. The last `n` had `bytes` together; if they were large, few jobs are read next.
--- (page: table, n: int, bytes: int) -> int
function listing.chunk(page, n, bytes)
  local most = math.min(_page.CHUNK, page.budget.left)
  if page.limit > 0 then most = math.min(most, page.limit - page.matched) end
  return math.max(1, math.min(most, math.floor(_page.CHUNK_BYTES * n / math.max(1, bytes))))
end

-- Walks all records. Returns the next cursor.
--- (page: table, cursor: str) -> str
--- uses: base
function listing.walk_records(page, cursor)
  local n = listing.chunk(page, _page.FIRST, _page.CHUNK_BYTES)
  if cursor == "" then cursor = "0" end
  repeat
    local found = redis.call("HSCAN", base .. "jobs", cursor, "COUNT", n)
    local ids, bodies, bytes, fields = {}, {}, 0, found[2]
    for i = 1, #fields, 2 do
      ids[#ids + 1], bodies[#bodies + 1] = fields[i], fields[i + 1]
      bytes = bytes + #fields[i + 1]
      slice.take(page.budget, #fields[i + 1])
    end
    listing.examine(page, ids, bodies)
    cursor, n = found[1], listing.chunk(page, #ids, bytes)
  until cursor == "0" or listing.is_full(page)
  return cursor == "0" and "" or cursor
end

-- Walks the claims in `owners` or of one incarnation. Returns the next cursor.
--- (page: table, key: str, cursor: str) -> str
--- uses: base
function listing.walk_claims(page, key, cursor)
  local n = listing.chunk(page, _page.FIRST, _page.CHUNK_BYTES)
  if cursor == "" then cursor = "0" end
  repeat
    local found = redis.call("HSCAN", key, cursor, "COUNT", n)
    local ids, bytes = {}, 0
    for i = 1, #found[2], 2 do
      if found[2][i] ~= "" then ids[#ids + 1] = found[2][i] end -- "" is no job: see lease.lua
    end
    local bodies = #ids > 0 and redis.call("HMGET", base .. "jobs", unpack(ids)) or {}
    for i = 1, #ids do
      bytes = bytes + #(bodies[i] or "")
      slice.take(page.budget, #(bodies[i] or ""))
    end
    listing.examine(page, ids, bodies)
    cursor, n = found[1], listing.chunk(page, #ids, bytes)
  until cursor == "0" or listing.is_full(page)
  return cursor == "0" and "" or cursor
end

-- Walks a sorted set of entries, or of ids (`dead`). A cursor is the last member and its score. Returns the next
-- cursor.
--- (page: table, source: str, cursor: str) -> str
--- uses: base
function listing.walk_set(page, source, cursor)
  local key, by_id, at, n = base .. source, source == "dead", 0, listing.chunk(page, _page.FIRST, _page.CHUNK_BYTES)
  if cursor ~= "" then
    local score, member = string.match(cursor, "^(%d+):(.*)$")
    at = redis.call(by_id and "ZREVRANK" or "ZRANK", key, member)
    if at then
      at = at + 1
    elseif by_id then
      at = redis.call("ZCOUNT", key, "(" .. score, "+inf")
    else
      at = redis.call("ZCOUNT", key, "-inf", "(" .. score)
    end
  end
  while true do
    local found = by_id and redis.call("ZRANGE", key, at, at + n - 1, "REV", "WITHSCORES")
      or redis.call("ZRANGE", key, at, at + n - 1, "WITHSCORES")
    if #found == 0 then return "" end
    local members = {}
    for i = 1, #found, 2 do members[#members + 1] = found[i] end
    local took, bytes = listing.read(page, members, not by_id)
    at = at + took
    if took > 0 then cursor = string.format("%d:", found[2 * took]) .. members[took] end
    if listing.is_full(page) then return cursor end
    n = listing.chunk(page, took, bytes)
  end
end

-- Walks the lanes of one tenant. A cursor is a level; "f" for its front list, or "l"; the generation of the last entry,
-- and how many entries of that list the pages have passed. Returns the next cursor.
--- (page: table, cursor: str) -> str
--- uses: base
function listing.walk_lanes(page, cursor)
  local level, list, generation, passed = string.match(cursor, "^(%d)([fl])(%d+):(%d+)$")
  level, generation, passed = tonumber(level or 0), tonumber(generation or 0), tonumber(passed or 0)
  local in_front = list ~= "l"
  while level <= 9 do
    local key = base .. (in_front and "front:" or "lane:") .. level .. ":" .. page.tenant
    local at, first = listing.find_entry(key, passed, generation), nil
    local n = listing.chunk(page, _page.FIRST, _page.CHUNK_BYTES)
    if not in_front then
      first = redis.call("HGET", base .. "heads:" .. level, page.tenant)
      if first and entry.generation(first) <= generation then first = nil end
    end
    while true do
      local entries = redis.call("LRANGE", key, at, at + n - 1)
      if first then table.insert(entries, 1, first) end
      if #entries == 0 then break end
      local took, bytes = listing.read(page, entries, true)
      if took > 0 then
        generation = entry.generation(entries[took])
        at = at + took - (first and 1 or 0)
        first = nil
      end
      if listing.is_full(page) then
        return string.format("%d%s%d:%d", level, in_front and "f" or "l", generation, at)
      end
      n = listing.chunk(page, took, bytes)
    end
    if not in_front then level = level + 1 end
    in_front, passed, generation = not in_front, 0, 0
  end
  return ""
end

-- The position of the first entry after this generation; the generations of a list rise. It was at most `passed`, and
-- claims may have moved it towards the start since then.
--- (key: str, passed: int, generation: int) -> int
function listing.find_entry(key, passed, generation)
  local low, high = 0, passed
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call("LINDEX", key, middle)
    if found and entry.generation(found) <= generation then low = middle + 1 else high = middle end
  end
  return low
end

-- Examines the jobs of these entries, or of these ids, as many as fit. Returns how many it passed, and their bytes.
--- (page: table, members: table, are_entries: bool) -> int, int
--- uses: base
function listing.read(page, members, are_entries)
  local ids, bytes = {}, 0
  for i = 1, #members do
    local id = are_entries and entry.id(members[i]) or members[i]
    local size = redis.call("HSTRLEN", base .. "jobs", id)
    if not slice.take(page.budget, size) then break end
    ids[i], bytes = id, bytes + size
  end
  if #ids == 0 then return 0, 0 end
  local bodies = redis.call("HMGET", base .. "jobs", unpack(ids))
  for i = 1, #ids do
    if are_entries and bodies[i] and record.generation_bytes(bodies[i]) ~= entry.generation_bytes(members[i]) then
      bodies[i] = false
    end
  end
  listing.examine(page, ids, bodies)
  return #ids, bytes
end

-- Counts the jobs that match, and adds them to the rows of the page.
--- (page: table, ids: table, bodies: table)
--- uses: base
function listing.examine(page, ids, bodies)
  local owners = page.runs and #ids > 0 and redis.call("HMGET", base .. "owners", unpack(ids)) or {}
  for i = 1, #ids do
    local body, owner = record.intact(bodies[i]), owners[i] or ""
    if body then
      page.examined = page.examined + 1
      if listing.matches(page, ids[i], body, owner) then
        page.matched = page.matched + 1
        if page.limit > 0 then
          local rows = page.rows
          local n = #rows
          rows[n + 1], rows[n + 2], rows[n + 3] = ids[i], owner, record.shown(body)
          if owner ~= "" then listing.note_worker(page.incarnations, lease.incarnation(owner)) end
        end
      end
    end
  end
end

-- Adds an incarnation to the list, once.
--- (list: table, incarnation: str)
function listing.note_worker(list, incarnation)
  if list[incarnation] then return end
  list[incarnation] = true
  list[#list + 1] = incarnation
end

--- (page: table, id: str, body: str, owner: str) -> bool
function listing.matches(page, id, body, owner)
  local its = record.fields(body)
  local is, since = its.state, its.since
  if owner ~= "" then
    is, since = state.RUNNING, lease.claimed_at(owner)
  elseif record.is_delayed(is) then
    since = record.enqueued(body)
  end
  return since <= page.before and (page.state == "" or is == page.state)
    and (page.prefix == "" or string.find(id, page.prefix, 1, true) == 1)
    and (not page.tenant or record.tenant(body) == page.tenant) and (not page.task or record.task(body) == page.task)
    and (not page.tag or record.has_tag(body, page.tag))
    and (page.text == "" or string.find(record.payload(body), page.text, 1, true) ~= nil)
end
