-- The end of waiting jobs whose `expires` has passed: such a job is *over*.
--
--   expiring   ZSET   id -> expires, server ms; of the jobs that wait and have `expires`
--   row        (row.lua)  NEXT_EXPIRY: the earliest of them
--
-- The next turn of a worker removes jobs that are over, and so do the scripts that count, list or show jobs. So
-- everybody that asks, or that waits for such a job, learns of its end. One script removes a slice of them. A claim
-- that meets a job that is over, and a call that needs its id or its unique key, removes it by itself (`job.expire`).
-- A claimed job leaves `expiring`, because it was started in time.

_expiry = { JOBS = 100 }

-- Prepares the row of a queue for jobs with `expires`.
--- (r: table)
--- seldom
function expiry.open(r)
  if r[_row.NEXT_EXPIRY] then return end
  row.widen(r, _row.NEXT_EXPIRY)
  r[_row.NEXT_EXPIRY] = 0
end

-- Notes when a waiting job is over; 0: never. `commit` writes it. `is_ready`: a worker that is idle claims it at once.
--- (s: table, id: str, expires: int, is_ready: bool)
--- seldom
function expiry.note(s, id, expires, is_ready)
  local noted = s.expiring or {}
  s.expiring, noted[#noted + 1] = noted, { id, expires }
  if expires > 0 and (not is_ready or s.row[_row.PAUSED] == 1) then s.alarm = math.min(s.alarm or expires, expires) end
end

-- Writes what the script has noted.
--- (s: table)
--- uses: base
--- seldom
function expiry.write(s)
  local added, removed, known = {}, {}, {}
  expiry.open(s.row)
  for i = #s.expiring, 1, -1 do -- the last note of a job counts: a call may have several doubles of it
    local one = s.expiring[i]
    local id, is_last = one[1], not known[one[1]]
    known[id] = true
    if is_last and one[2] > 0 then
      added[#added + 1], added[#added + 2] = string.format("%d", one[2]), id
      row.not_after(s.row, _row.NEXT_EXPIRY, one[2])
    elseif is_last then
      removed[#removed + 1] = id
    end
  end
  batch.add("ZADD", base .. "expiring", added)
  batch.write("ZREM", base .. "expiring", removed)
  s.expiring = nil
end

-- Whether the queue may still have a job that is over.
--- (s: table) -> bool
--- inline
function expiry.is_due(s)
  return (s.row[_row.NEXT_EXPIRY] or 0) > 0 and s.row[_row.NEXT_EXPIRY] <= s.now
end

-- Removes a slice of the jobs that are over. Returns whether there may be more.
--- (s: table) -> bool
--- uses: base
--- seldom
function expiry.sweep(s)
  local key, budget, looked = base .. "expiring", slice.within(s, _expiry.JOBS), {}
  local due = redis.call("ZRANGE", key, "-inf", s.now, "BYSCORE", "LIMIT", 0, _expiry.JOBS)
  for i = 1, #due do
    if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", due[i])) then break end
    looked[i] = due[i]
    local body = record.get(due[i])
    if body and job.is_over(due[i], body, s.now) then
      job.remove(s, due[i], body, ending.EXPIRED, "")
      s.row[_row.EXPIRED] = s.row[_row.EXPIRED] + 1
    end
  end
  batch.write("ZREM", key, looked)
  local first = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")[2]
  s.row[_row.NEXT_EXPIRY] = first and tonumber(first) or 0
  return budget.left == 0
end

-- Removes a slice of the jobs that are over, and writes what follows from that.
--- (s: table)
--- uses: base meta
--- seldom
function expiry.look(s)
  if s.now >= s.next_history then history.add(s) end
  expiry.sweep(s)
  job.commit(s)
  if s.ready and s.row[_row.PAUSED] == 0 then wake.one(s.row, s.now) end
  row.store(s)
end

-- The frame of a script that reads what depends on jobs that may be over.
--- uses: base meta given
function frame.look()
  local s, newer = job.begin(given)
  if newer then return newer end
  if expiry.is_due(s) then expiry.look(s) end
  -- …
end
