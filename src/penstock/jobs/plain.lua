-- Plain calls: they are due now, the library chose their ids, and they have no power that a script reads. In a queue
-- without a bound, without batches and without a pause, such a call goes straight into the lane of its tenant.

-- Whether a draft is a plain call, and the queue takes it as one.
--- (r: table, body: str) -> bool
function plain.is_one(r, body)
  local flags = record.flags(body)
  local when = draft.fields(body)
  return when.how + when.due + when.expires == 0 and flags <= flag.CALL and record.is_plain(body)
    and not record.has_tail(body) and not (r[_row.BOUND] or r[_row.BATCH] or (r[_row.PAUSES] or 0) > 0)
end

-- Enqueues a plain call, if its id is new. Returns whether it did. An idle worker waits for such a call, so it takes
-- few commands and few functions.
--- (s: table, id: str, body: str) -> bool
--- uses: base
function plain.add(s, id, body)
  local r = s.row
  if not plain.is_one(r, body) then return false end
  local its = record.fields(body)
  local generation, now = row.mint(r, 1) + 1, s.now
  local stored = record.of_plain(body, generation, now)
  if redis.call("HSETNX", base .. "jobs", id, stored) == 0 then return false end
  lane.collect(s.lists, false, its.priority, its.tenant, record.entry(generation, body, id))
  lane.push(r, s.lists)
  counters.move(s, its.tenant, _count.NONE, _count.READY, 1)
  counters.add_ready_since(s, now, 1)
  counters.write(s)
  return true
end

-- Collects the entry of one of many drafts, and returns its record, if it is a plain call; `plain.count` must follow.
-- The drafts of one kind begin alike, up to the end of their tenant, so each kind is checked once, and counted once a
-- second. `kinds` is an empty table at first.
--- (s: table, kinds: table, id: str, body: str, generation: int, since: int) -> str | nil
function plain.collect(s, kinds, id, body, generation, since)
  local start = string.sub(body, 1, record.AT_TENANT + record.tenant_size(body))
  local kind = kinds[start]
  if not kind then
    if kind == false or not plain.is_one(s.row, body) then
      kinds[start] = false
      return nil
    end
    local its = record.fields(body)
    kind = { tenant = its.tenant, priority = its.priority, second = 0, jobs = 0, entries = false }
    kinds[start], kinds[#kinds + 1] = kind, kind
  end
  if since < kind.second or since >= kind.second + 1000 then
    plain.count_kind(s, kind)
    kind.second, kind.jobs = since - since % 1000, 0
  end
  kind.jobs = kind.jobs + 1
  local entries, new = kind.entries, record.entry(generation, body, id)
  if entries then
    entries[#entries + 1] = new
  else
    kind.entries = lane.collect(s.lists, false, kind.priority, kind.tenant, new)
  end
  return record.of_plain(body, generation, since)
end

-- Counts the jobs of a kind that were collected in one second.
--- (s: table, kind: table)
function plain.count_kind(s, kind)
  if kind.jobs == 0 then return end
  s.ready = true
  counters.move(s, kind.tenant, _count.NONE, _count.READY, kind.jobs)
  counters.add_ready_since(s, kind.second, kind.jobs)
end

-- Counts the calls that were collected.
--- (s: table, kinds: table)
function plain.count(s, kinds)
  for i = 1, #kinds do plain.count_kind(s, kinds[i]) end
end
