-- Rows of jobs that have ended. A queue keeps the last ones, bounded by number and age (retention.lua).
--
--   finished         STRING  the open block: segments, appended
--   finished:blocks  LIST    closed blocks, the latest last, each behind its `_block`
--   failed           STRING  \ the same for jobs that became dead letters. They have keys of their own, so that many
--   failed:blocks    LIST    / successes do not push out last night's errors
--   meta             HASH    finished, failed: `_closed`, by whose number a reader continues; purged: see
--                            `finished.add_purged`
--   arguments:<n>    HASH    id -> record, of jobs whose row is in block n of `finished`. Only if the queue keeps
--                            arguments, and not of large records. It leaves with its block
--
-- A *segment* is what one script has ended:
--
--   kind    behind `_segment`
--   TURN    how many rows it has, how many positions follow, the positions of rows that do not count, in 2 bytes each;
--           then the rows as a worker has sent them (finished.py). A row whose settlement was refused does not count
--   ROW     one job, as `_job`
--   FAILED_ATTEMPTS  the last failed attempts of a job, as `_attempts_of`. Its row is in the same block
--   LINKS   jobs that have ended, and one that waited for them, as `_links` in flow.lua. Their rows are in this block,
--           or in an earlier one; or in a later one, if the job died first and its dependents did not wait any longer
--   PURGE   how many jobs a purge has cancelled, in 4 bytes, and the tenant, empty for all
--
-- The rows of a small turn cost the server one APPEND, those of a large one become a closed block; it reads no record
-- for them. All keys expire with the age. A job ends even if an error prevents that its row is written.

-- KEPT_RECORD: the most bytes of a record that is kept.
finished = {
  TURN = "t", ROW = "r", PURGE = "p", FAILED_ATTEMPTS = "f", LINKS = "l", SEGMENT = 10, BLOCKS = 64,
  KEPT_RECORD = 4096,
}

_segment = layout { kind = "c1", size = "I3", at = "I6", body = "*" } -- size: of the body; at: server ms

_block = layout { number = "I4", rows = "I4", first = "I6", last = "I6", segments = "*" } -- server ms

_turn_rows = layout { rows = "H", refused = "H", rest = "*" }

_closed = layout { rows = "I4", number = "I4" } -- of the closed blocks: their rows, and the number of the last one

_attempts_of = layout { id = "Bc0", attempts = "*" } -- as in failures.lua, cut off; without the arguments of an edit

_purged = layout { jobs = "I4", tenant = "*" }

_job = layout {
  outcome = "c1", -- see `ending`; DEAD
  priority = "B",
  attempts = "H",
  deliveries = "H",
  enqueued = "I6", -- server ms
  due = "I6", -- ready since, or due at
  started = "I6", -- 0: it did not run
  id = "Bc0",
  tenant = "Bc0",
  task = "Bc0",
  worker = "Bc0",
  release = "Bc0",
  tags = "Hc0", -- as in the record
  reason = "Hc0",
}

-- Blocks are closed at BYTES. A script drops up to DROPPED of them, so that it stays short. REASON: bytes. ROOM: the
-- bytes of reason, tags and failed attempts together; TAGS: those of the most tags. SMALL: the bytes of the longest
-- segments that are kept. ROWS and AGE are kept unless the queue says otherwise. FEW: values of one command. FORGOTTEN:
-- blocks whose records one script deletes; those of others expire.
_finished = {
  ENDED = "finished", DIED = "failed", BYTES = 4096, DROPPED = 8, REASON = 272, ROOM = 1024, TAGS = 520,
  SMALL = 1048576, ROWS = 10000, AGE = 86400000, FEW = 500, FORGOTTEN = 5000,
}

-- How many rows the queue keeps, and for how many ms. Returns 0 if it keeps none.
--- (s: table) -> int, int
--- uses: meta
function finished.bounds(s)
  if s.row[_row.RESULT_CLASSES] < _retention.SET then return _finished.ROWS, _finished.AGE end
  if not s.kept_rows then
    local packed = redis.call("HGET", meta, "retention")
    local all = packed and cmsgpack.unpack(packed) or {}
    local most, age = all[4] or -1, all[5] or -1
    s.kept_rows, s.kept_ms = most >= 0 and most or _finished.ROWS, age >= 0 and age or _finished.AGE
    s.keeps_arguments = all[6] == 1 and s.kept_rows > 0
  end
  return s.kept_rows, s.kept_ms
end

-- Whether the queue keeps the arguments of its ended jobs.
--- (s: table) -> bool
--- uses: meta
function finished.keeps_arguments(s)
  if s.row[_row.RESULT_CLASSES] < _retention.SET then return false end
  finished.bounds(s)
  return s.keeps_arguments
end

-- Appends segments. A key that another program has damaged loses its rows. The block of the jobs that did not die gets
-- its TTL once in each interval of the history, and keeps it for that much longer.
--- (s: table, list: str, text: str)
--- uses: base meta
function finished.append(s, list, text)
  local rows, age = finished.bounds(s)
  if #text > _finished.SMALL then return end
  -- A turn of many jobs makes a block of its own: appended first, its rows would be copied twice more.
  if #text >= _finished.BYTES then return finished.close(s, list, text, rows, age) end
  local key = base .. list
  local size = redis.pcall("APPEND", key, text)
  if type(size) ~= "number" then
    redis.call("UNLINK", key)
    return
  end
  if s.has_ttl == 0 or s.now >= s.next_history or size == #text or list == _finished.DIED then
    redis.call("PEXPIRE", key, age + _history.INTERVAL)
    if list == _finished.ENDED then s.has_ttl = 1 end
  end
  if size >= _finished.BYTES then finished.close(s, list, "", rows, age) end
end

-- How many rows of a segment count.
--- (kind: str, body: str) -> int
function finished.count(kind, body)
  if kind == finished.FAILED_ATTEMPTS or kind == finished.LINKS then return 0 end
  if kind ~= finished.TURN then return 1 end
  local its = _turn_rows.fields(body)
  return its.rows - its.refused
end

-- Moves the open block and the segments `text` behind it to the closed ones, and drops those beyond the bounds from the
-- head.
--- (s: table, list: str, text: str, most: int, age: int)
--- uses: base meta
--- seldom
function finished.close(s, list, text, most, age)
  local open, blocks = redis.pcall("GET", base .. list), base .. list .. ":blocks"
  if open then redis.call("UNLINK", base .. list) end
  if type(open) == "string" then text = open .. text end
  local at, rows, first = 1, 0, s.now
  while at + finished.SEGMENT - 1 <= #text do
    local kind, size, when = struct.unpack(">c1I3I6", text, at)
    rows = rows + finished.count(kind, string.sub(text, at + finished.SEGMENT, at + finished.SEGMENT + 3))
    if at == 1 then first = when end
    at = at + finished.SEGMENT + size
  end
  rows = math.max(rows, math.floor(#text / _finished.BYTES)) -- also links take room, and there may be many for a row
  local known = redis.call("HGET", meta, list)
  local kept = known and _closed.rows(known) or 0
  local number = (known and _closed.number(known) or 0) + 1
  local length = redis.pcall("RPUSH", blocks, _block.pack({
    number = number, rows = rows, first = first, last = s.now, segments = text,
  }))
  if type(length) ~= "number" then
    redis.call("UNLINK", blocks)
    return
  end
  kept = length == 1 and rows or kept + rows -- the closed blocks may have expired
  redis.call("PEXPIRE", blocks, age)
  for _ = 1, _finished.DROPPED do
    local oldest = redis.call("LINDEX", blocks, 0)
    if not oldest then break end
    local its = _block.fields(oldest)
    local is_young = its.last > s.now - age
    if is_young and kept - its.rows < most then break end
    redis.call("LTRIM", blocks, 1, -1) -- the reply to LPOP would be the block
    if s.keeps_arguments and list == _finished.ENDED then redis.call("UNLINK", base .. "arguments:" .. its.number) end
    kept = kept - its.rows
    if is_young and kept <= most then break end -- those behind it are younger, and one more would be too many
  end
  redis.call("HSET", meta, list, _closed.pack({ rows = math.max(0, kept), number = number }))
end

-- Collects what a turn has completed. `rows`: as the worker sent them; `refused`: positions of those that do not count.
--- (s: table, rows: str, n: int, refused: table)
function finished.note_turn(s, rows, n, refused)
  if rows == "" or n == #refused then return end
  local positions = {}
  for i = 1, #refused do positions[i] = struct.pack(">H", refused[i]) end
  -- Not `finished.note`: here `pack` in `pack` copies the rows once.
  finished.add(s, _finished.ENDED, _segment.pack({
    kind = finished.TURN, size = _turn_rows.AT_REST - 1 + 2 * #refused + #rows, at = s.now, body = _turn_rows.pack({
      rows = n, refused = #refused, rest = table.concat(positions) .. rows,
    }),
  }))
end

-- Collects the failed attempts of a job that ends, each cut off so that all of them fit into `room` bytes.
--- (s: table, list: str, id: str, room: int)
--- uses: base
--- seldom
function finished.note_attempts(s, list, id, room)
  local _, _, packed = failures.get(id)
  local kept, most = {}, math.max(0, math.floor(room / _failures.MOST) - _attempt.AT_TEXT - 1)
  local one, rest = failures.first(packed)
  while one do
    local text = _attempt.kind(one) == outcome.EDITED and 0 or most
    local cut = string.sub(one, 1, _attempt.AT_TEXT - 1 + text)
    kept[#kept + 1] = struct.pack(">H", #cut) .. cut
    one, rest = failures.first(rest)
  end
  if #kept == 0 then return end
  local named = string.sub(id, 1, _most.BYTE)
  finished.note(s, list, finished.FAILED_ATTEMPTS, _attempts_of.pack({ id = named, attempts = table.concat(kept) }))
end

-- Collects the end of one job, from its record. `attempts`: failed runs; `started`: server ms of its claim, or 0;
-- `owner`: the incarnation that ran it, or "".
--- (s: table, id: str, body: str, outcome: str, reason: str, attempts: int, started: int, owner: str)
--- uses: base
--- seldom
function finished.note_job(s, id, body, outcome, reason, attempts, started, owner)
  local was, packed, worker = record.fields(body), record.tail(body), owner ~= "" and releases.of(owner) or {}
  local its = tail.fields(packed)
  local list = outcome == state.DEAD and _finished.DIED or _finished.ENDED
  local ran = started > 0 and 1 or 0
  finished.note(s, list, finished.ROW, _job.pack({
    outcome = outcome, priority = was.priority, attempts = math.min(attempts, _most.SHORT),
    deliveries = math.min(its.deliveries + ran, _most.SHORT), enqueued = its.enqueued, due = was.since,
    started = started, id = string.sub(id, 1, _most.BYTE), tenant = was.tenant, task = record.task(body),
    worker = string.sub(worker.name or "", 1, _most.BYTE), release = string.sub(worker.release or "", 1, _most.BYTE),
    tags = record.tags(body), reason = string.sub(reason, 1, _finished.REASON),
  }))
  if list == _finished.ENDED then finished.note_record(s, id, body) end
  if outcome == state.DEAD or record.has(was.flags, flag.REASON) then
    local used = #record.tags(body) + math.min(#reason, _finished.REASON)
    finished.note_attempts(s, list, id, _finished.ROOM - used)
  end
end

-- Collects the record of a job that ends. `finished.write` stores it if the queue keeps arguments.
--- (s: table, id: str, body: str)
function finished.note_record(s, id, body)
  if s.row[_row.RESULT_CLASSES] < _retention.SET or #body > finished.KEPT_RECORD then return end
  local kept = s.kept_records or {}
  s.kept_records, kept[#kept + 1], kept[#kept + 2] = kept, id, body
end

-- Collects the records of jobs that are completed, if the queue keeps arguments. Call it while they have their records.
--- (s: table, ids: table)
--- uses: base meta
--- seldom
function finished.note_completed(s, ids)
  if not finished.keeps_arguments(s) then return end
  for i = 1, #ids do
    if redis.call("HSTRLEN", base .. "jobs", ids[i]) <= finished.KEPT_RECORD then
      local body = record.get(ids[i])
      if body then finished.note_record(s, ids[i], body) end
    end
  end
end

-- Stores the collected records beside the open block, to which their rows are appended next. Like rows, they never keep
-- a job from ending.
--- (s: table)
--- uses: base meta
--- seldom
function finished.write_records(s)
  local _, age = finished.bounds(s)
  local known, kept = redis.call("HGET", meta, _finished.ENDED), s.kept_records
  local key = base .. "arguments:" .. (known and _closed.number(known) or 0) + 1
  for at = 1, #kept, _finished.FEW do
    local added = redis.pcall("HSET", key, unpack(kept, at, math.min(at + _finished.FEW - 1, #kept)))
    if type(added) ~= "number" then
      redis.call("UNLINK", key)
      break
    end
  end
  redis.call("PEXPIRE", key, age)
end

-- Collects a segment. `finished.write` appends it.
--- (s: table, list: str, kind: str, body: str)
function finished.note(s, list, kind, body)
  finished.add(s, list, _segment.pack({ kind = kind, size = #body, at = s.now, body = body }))
end

--- (s: table, list: str, segment: str)
function finished.add(s, list, segment)
  s.segments = s.segments or {}
  local some = s.segments[list] or {}
  s.segments[list], some[#some + 1] = some, segment
end

-- Notes jobs that a purge has cancelled. A purge takes many scripts: those that follow each other make one row. `meta`
-- has the last one, and only a block that ends with the same bytes is changed.
--- (s: table, jobs: int, tenant: str)
--- uses: base meta
--- seldom
function finished.add_purged(s, jobs, tenant)
  if jobs == 0 or finished.bounds(s) == 0 then return end
  local key = base .. _finished.ENDED
  local size, mine = redis.pcall("STRLEN", key), #tenant + finished.SEGMENT + 4
  if type(size) ~= "number" then size = 0 end
  local before = size >= mine and redis.call("GETRANGE", key, size - mine, size - 1)
  local known = before and before == redis.call("HGET", meta, "purged") and string.sub(before, finished.SEGMENT + 1)
  if known and _purged.tenant(known) ~= tenant then known = false end
  local body = _purged.pack({ jobs = jobs + (known and _purged.jobs(known) or 0), tenant = tenant })
  local segment = _segment.pack({ kind = finished.PURGE, size = #body, at = s.now, body = body })
  if known then
    redis.call("SETRANGE", key, size - mine, segment)
  else
    finished.append(s, _finished.ENDED, segment)
  end
  redis.call("HSET", meta, "purged", segment)
end

-- Appends what the script has collected.
--- (s: table)
--- uses: base meta
--- seldom
function finished.write(s)
  if finished.bounds(s) > 0 then
    for _, ended in pairs(s.links or {}) do
      while ended do
        local length = string.char(ended.size)
        finished.note(s, _finished.ENDED, finished.LINKS, _links.pack({
          dependent = ended.dependent, ended = length .. table.concat(ended, length),
        }))
        ended = ended.before
      end
    end
    if s.kept_records and s.keeps_arguments then finished.write_records(s) end
    for list, some in pairs(s.segments or {}) do finished.append(s, list, some[2] and table.concat(some) or some[1]) end
  end
  if s.purged then finished.add_purged(s, s.purged, s.purged_tenant) end
  s.segments, s.links, s.purged, s.kept_records = nil, nil, nil, nil
end

-- Deletes the records of ended jobs. Their rows stay.
--- uses: base meta
--- seldom
function finished.delete_records()
  local known, blocks = redis.call("HGET", meta, _finished.ENDED), redis.pcall("LLEN", base .. "finished:blocks")
  local last = (known and _closed.number(known) or 0) + 1
  local first = last - math.min(type(blocks) == "number" and blocks or 0, _finished.FORGOTTEN)
  for at = first, last, _finished.FEW do
    local keys = {}
    for number = at, math.min(at + _finished.FEW - 1, last) do keys[#keys + 1] = base .. "arguments:" .. number end
    redis.call("UNLINK", unpack(keys))
  end
end

-- Deletes all rows. The numbers of blocks continue.
--- uses: base
--- seldom
function finished.delete()
  for _, list in ipairs({ _finished.ENDED, _finished.DIED }) do
    redis.call("UNLINK", base .. list, base .. list .. ":blocks")
  end
end

-- Some blocks before the one with the number `before` (0: from the open block on), the latest first: { now, number of
-- the open block, block, … }. A block that is open has no `_block`. `limit`: how many blocks, up to 64.
--- keys: base meta
--- args: given: int, list: str, before: int, limit: int
--- flags: allow-oom
--- frame: read
function script.read_finished(base, meta, given, list, before, limit)
  local known = redis.call("HGET", meta, list)
  local last = known and _closed.number(known) or 0
  local reply = { s.now, last + 1 }
  if before == 0 or before > last + 1 then
    reply[3] = redis.call("GET", base .. list) or ""
    before, limit = last + 1, limit - 1
  end
  local skip = last + 1 - before
  local found = limit > 0 and redis.call("LRANGE", base .. list .. ":blocks", -skip - limit, -skip - 1) or {}
  for i = #found, 1, -1 do reply[#reply + 1] = found[i] end
  return reply
end

-- The record that is kept of a job whose row is in the block with this number, or false.
--- keys: base meta
--- args: number: int, id: str
--- flags: no-writes
--- frame: format
function script.read_kept_record(base, meta, number, id)
  return redis.call("HGET", base .. "arguments:" .. number, id)
end
