-- A slice limits the work of one script call, so that no call blocks the server for long: a number of jobs, and a
-- number of bytes in their records. The first record always fits, whatever its size.

_slice = { BYTES = 1048576 }

--- (n: int) -> table
--- inline
function slice.of(n)
  return { left = n, bytes = _slice.BYTES, fresh = true }
end

-- Returns whether one more record of this size fits, and deducts it if it does. The first record that does not fit ends
-- the slice.
--- (budget: table, bytes: int) -> bool
function slice.take(budget, bytes)
  if budget.left > 0 and (bytes <= budget.bytes or budget.fresh) then
    budget.left, budget.bytes, budget.fresh = budget.left - 1, budget.bytes - bytes, false
    return true
  end
  budget.left = 0
  return false
end

-- The first of the entries, as many as fit.
--- (budget: table, entries: table) -> table
function slice.take_entries(budget, entries)
  local fit = {}
  for i = 1, #entries do
    if not slice.take(budget, record.entry_bytes(entries[i])) then break end
    fit[i] = entries[i]
  end
  return fit
end
