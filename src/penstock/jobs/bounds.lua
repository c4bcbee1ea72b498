-- Bounds: how many unfinished jobs a queue has at most, and how many of each tenant.
--
--   row   (row.lua)  BOUND: the most jobs, the most jobs of a tenant (0: no bound), how many calls were refused; absent
--                    until the queue has its first bound
--
-- A job is unfinished while it waits or runs. A retry, a lost worker and a resumed pause change nothing about that. A
-- dead letter does not count, and neither does a durable job that sleeps or waits for a signal.
--
-- Only `enqueue` and `enqueue_in_shard` refuse calls. They do not refuse what was accepted already: calls that a job
-- stages, calls from the outbox of another queue or of a database, flows, schedules, and requeued dead letters. So a
-- queue may have more jobs than its bound, but then no enqueue adds one.
--
-- `take_in` accepts calls without counting them. So the intake is closed while the calls that fit into it might exceed
-- the bound of the queue, and always if there is a bound for each tenant.
--
-- `s.bounded` has the counts of the tenants of a call before that call, as `tenants` stores them.

_bound = { JOBS = 1, TENANT = 2, REFUSED = 3 }

_bounds = { INTAKE = 128 } -- calls that the intake takes

-- The unfinished jobs of the queue.
--- (r: table) -> int
function bounds.unfinished(r)
  return r[_row.READY] + r[_row.DELAYED] + r[_row.RUNNING] + (r[_row.PARKED] or 0) + (r[_row.DEPENDENT] or 0)
end

-- The unfinished jobs of a tenant, with those that this script has added so far.
--- (s: table, tenant: str) -> int
function bounds.unfinished_of(s, tenant)
  local ready, delayed, running, _, parked, dependent = counters.unpack(s.bounded[tenant])
  local change, n = s.tenants[tenant], ready + delayed + running + parked + dependent
  if not change then return n end
  return n + change[_count.READY] + change[_count.DELAYED] + change[_count.RUNNING] + (change[_count.PARKED] or 0)
    + (change[_count.DEPENDENT] or 0)
end

-- Prepares `s` to refuse calls, if the queue has a bound. `jobs`: id, draft, … from `first` on.
--- (s: table, jobs: table, first: int)
--- uses: base
function bounds.open(s, jobs, first)
  local its = s.row[_row.BOUND]
  if not its then return end
  s.bounded = {}
  if its[_bound.TENANT] == 0 then return end
  local tenants, seen = {}, {}
  for i = first + 1, #jobs, 2 do
    local tenant = record.tenant(jobs[i])
    if not seen[tenant] then
      seen[tenant] = true
      tenants[#tenants + 1] = tenant
    end
  end
  local found = batch.read(base .. "tenants", tenants)
  for i = 1, #tenants do s.bounded[tenants[i]] = found[i] end
end

-- Returns nil if there is room for one more job of this tenant. Else: how many jobs count, the bound, and, if that is
-- the bound of the tenant, the tenant.
--- (s: table, tenant: str) -> table | nil
function bounds.refuse(s, tenant)
  local its = s.row[_row.BOUND]
  local n = bounds.unfinished(s.row)
  if its[_bound.JOBS] > 0 and n >= its[_bound.JOBS] then
    its[_bound.REFUSED] = its[_bound.REFUSED] + 1
    return { n, its[_bound.JOBS] }
  end
  if its[_bound.TENANT] == 0 then return nil end
  n = bounds.unfinished_of(s, tenant)
  if n < its[_bound.TENANT] then return nil end
  its[_bound.REFUSED] = its[_bound.REFUSED] + 1
  return { n, its[_bound.TENANT], tenant }
end

-- Whether the intake may not be open, because its calls would have to be counted for a bound.
--- (r: table) -> bool
--- seldom
function bounds.closes(r)
  local its = r[_row.BOUND]
  return its[_bound.TENANT] > 0 or its[_bound.JOBS] > 0 and bounds.unfinished(r) + _bounds.INTAKE > its[_bound.JOBS]
end

-- The error for a call in a pipeline of the user, whose reply the library does not read. Such a call has one job.
--- (refused: table) -> error
--- uses: base
--- seldom
function bounds.error(refused)
  local who = refused[3] and "its tenant has" or "the queue has"
  return redis.error_reply(
    string.format("QUEUEFULL %s refused a job: %s %d unfinished jobs, and the bound is %d", base, who,
      refused[1], refused[2]))
end

-- Sets the bounds; 0: no bound. Jobs beyond a new bound stay. Returns the unfinished jobs of the queue.
--- keys: base meta
--- args: given: int, most: int, of_tenant: int
--- flags: allow-oom
--- frame: row
function script.set_bound(base, meta, given, most, of_tenant)
  local r = s.row
  if most + of_tenant > 0 then
    row.widen(r, _row.BOUND)
    r[_row.BOUND] = { most, of_tenant, r[_row.BOUND] and r[_row.BOUND][_bound.REFUSED] or 0 }
  elseif r[_row.BOUND] then
    r[_row.BOUND] = false
  end
  return bounds.unfinished(r)
end
