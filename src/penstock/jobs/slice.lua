-- A slice limits the work of one script call, so that no call blocks the server for long: a number of jobs, a number of
-- bytes in their records, and the effort that they cause. The first record always fits, whatever its size.
--
-- Effort is counted in ordinary jobs: to enqueue one, or to complete one, is 1, which is some microseconds. Functions
-- that cost several times as much add it (`slice.spend`): those of limits, unique keys, and ends of another kind; and a
-- claim adds 1 for each tenant that it serves. So a slice has fewer jobs with three limits than jobs without any. All
-- slices of a script share its effort, but each has some of its own, so that none is starved by those before it. A
-- client divides what it sends by the same unit (effort.py).

_slice = { BYTES = 1048576, EFFORT = 300, OWN = 40 }

--- (n: int) -> table
--- inline
function slice.of(n)
  return { left = n, bytes = _slice.BYTES, fresh = true }
end

-- A slice that ends as well when the script has done enough.
--- (s: table, n: int) -> table
--- seldom
function slice.within(s, n)
  local budget = slice.of(n)
  budget.s, budget.effort = s, slice.until_(s)
  return budget
end

-- The effort at which a part of the script that begins now has to end.
--- (s: table) -> int
function slice.until_(s)
  return math.max(_slice.EFFORT, s.effort + _slice.OWN)
end

--- (s: table, effort: int)
function slice.spend(s, effort)
  s.effort = s.effort + effort
end

-- Whether a slice that was taken before may not be worked on any further. The rest has to wait for the next script.
--- (budget: table) -> bool
--- seldom
function slice.is_spent(budget)
  return budget.s and budget.s.effort >= budget.effort
end

-- Returns whether one more record of this size fits, and deducts it if it does. The first record that does not fit ends
-- the slice.
--- (budget: table, bytes: int) -> bool
function slice.take(budget, bytes)
  if budget.left > 0 and (bytes <= budget.bytes and not slice.is_spent(budget) or budget.fresh) then
    budget.left, budget.bytes, budget.fresh = budget.left - 1, budget.bytes - bytes, false
    return true
  end
  budget.left = 0
  return false
end

-- The first of the entries, as many as fit.
--- (budget: table, entries: table) -> table
--- seldom
function slice.take_entries(budget, entries)
  local fit = {}
  for i = 1, #entries do
    if not slice.take(budget, record.entry_bytes(entries[i])) then break end
    fit[i] = entries[i]
  end
  return fit
end
