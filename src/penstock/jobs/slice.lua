-- A slice: what one call of a script may touch, so that no call holds the server for long. It is a number of jobs, and
-- a number of bytes in their records. A single record of any size always fits.

_slice = { BYTES = 1048576 }

--- (n: int) -> table
--- inline
function slice.of(n)
  return { left = n, bytes = _slice.BYTES, fresh = true }
end

-- Whether one more record of this size fits; if so it is taken off the slice. The slice ends with the first that does
-- not.
--- (rest: table, bytes: int) -> bool
function slice.take(rest, bytes)
  if rest.left > 0 and (bytes <= rest.bytes or rest.fresh) then
    rest.left, rest.bytes, rest.fresh = rest.left - 1, rest.bytes - bytes, false
    return true
  end
  rest.left = 0
  return false
end

-- The first of the entries, as many as fit.
--- (rest: table, entries: table) -> table
function slice.take_entries(rest, entries)
  local fit = {}
  for i = 1, #entries do
    if not slice.take(rest, record.entry_bytes(entries[i])) then break end
    fit[i] = entries[i]
  end
  return fit
end
