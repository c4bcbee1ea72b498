-- A deputy is a second process, which checks a little later whether the process that should act has acted. The process
-- that was woken may be frozen, and its other listeners with it, so a deputy always belongs to another process.
--
--   which is to act                                         its deputy                       after
--   the idle worker that ready work woke (sleepers.lua)     the worker that was idle before  READY
--   the timekeeper of a queue, for due work (jobs/wake.lua) another idle worker              DUE
--   an idle worker of a shared reader, for a lease that     another one                      DUE
--   may run out (messages/shared_reader.lua)
--   a waiter, for a lease or an offer that may run out      another waiter                   DUE
--   (waiters.lua)
--
-- A message to either is the number of milliseconds after which it looks at the state. Each acts on what it finds, so
-- it does no harm if both of them look.

_deputy = { READY = 50, DUE = 300 } -- ms

-- Asks a process to look at the state in `ms` milliseconds. Returns false if the process is gone.
--- (address: str, ms: int) -> bool
--- inline
function deputy.ask(address, ms)
  return notify.send(address, string.format("%d", ms))
end

-- Whether the listener at `address` may be the deputy of the one at `first`: their processes differ.
--- (first: str, address: str) -> bool
--- inline
function deputy.may_follow(first, address)
  return string.match(first, "^(.*)/") ~= string.match(address, "^(.*)/")
end

-- Asks the first of these listeners that can be reached to look at the state in `ms`, and the first one of another
-- process to look `delay` later. Returns both addresses (nil for one that was not found), and the addresses that are
-- gone.
--- (addresses: table, ms: int, delay: int) -> str | nil, str | nil, table
function deputy.appoint(addresses, ms, delay)
  local first, gone = nil, {}
  for i = 1, #addresses do
    local address = addresses[i]
    if not first or deputy.may_follow(first, address) then
      if not deputy.ask(address, ms + (first and delay or 0)) then
        gone[#gone + 1] = address
      elseif first then
        return first, address, gone
      else
        first = address
      end
    end
  end
  return first, nil, gone
end
