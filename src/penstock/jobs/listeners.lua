-- The listeners of a job: processes that wait for its result, and are notified when it is done.
--
--   listeners        HASH  id -> addresses (core/notify.lua), up to 4 KiB; begins with "+" if the job has further ones
--   listeners:<id>   SET   the further addresses
--   unnotified       LIST  ids of finished jobs whose listeners have not all been notified
--   row              (row.lua)  a mark for the HASH, and one for the LIST
--
-- All calls of one process that wait for one job share an address. A script notifies at most 200 processes, or finds
-- 500 that are gone; either takes about a millisecond. Each later turn, and each later request for a result, notifies
-- up to 200 of the others. Each process that was notified makes such a request.

_listeners = { BYTES = 4096 }
_cost = { SLICE = 1000, NOTIFIED = 5, GONE = 2 } -- most in one script; of notifying a process; of one that is gone

-- How much the script may still spend on notifications.
--- () -> table
--- inline
function listeners.slice()
  return { left = _cost.SLICE }
end

--- (r: table, id: str, address: str)
--- uses: base
function listeners.add(r, id, address)
  r[_row.LISTENED] = 1
  local old = redis.call("HGET", base .. "listeners", id)
  if not old then
    redis.call("HSET", base .. "listeners", id, address)
  elseif not string.find(" " .. old .. " ", " " .. address .. " ", 1, true) then
    if #old < _listeners.BYTES then
      redis.call("HSET", base .. "listeners", id, old .. " " .. address)
    else
      redis.call("SADD", base .. "listeners:" .. id, address)
      if _signed.sign(old) ~= "+" then redis.call("HSET", base .. "listeners", id, "+ " .. old) end
    end
  end
end

--- (id: str, address: str)
--- uses: base
function listeners.remove(id, address)
  local old = redis.call("HGET", base .. "listeners", id)
  if not old then return end
  local left = {}
  for other in string.gmatch(old, "%S+") do
    if other == "+" then
      redis.call("SREM", base .. "listeners:" .. id, address)
      if redis.call("EXISTS", base .. "listeners:" .. id) == 1 then left[#left + 1] = other end
    elseif other ~= address then
      left[#left + 1] = other
    end
  end
  if #left == 0 then
    redis.call("HDEL", base .. "listeners", id)
  else
    redis.call("HSET", base .. "listeners", id, table.concat(left, " "))
  end
end

-- Notifies the listeners of these finished jobs, as many as `budget` (from `slice`) allows. The others are left to
-- later calls.
--- (r: table, ids: table, budget: table)
--- uses: base
function listeners.notify(r, ids, budget)
  if #ids == 0 or r[_row.LISTENED] == 0 then return end
  if redis.call("EXISTS", base .. "listeners") == 0 then
    r[_row.LISTENED] = 0
    return
  end
  local found = batch.read(base .. "listeners", ids)
  local later = {}
  for i = 1, #ids do
    if found[i] and not listeners.notify_job(ids[i], found[i], budget) then later[#later + 1] = ids[i] end
  end
  batch.write("RPUSH", base .. "unnotified", later)
  if #later > 0 then r[_row.UNNOTIFIED] = 1 end
end

-- Sends a text about an unfinished job to its listeners, which stay registered. Half of `budget` limits how many
-- listeners get it; the others have to wait for the next text.
--- (r: table, id: str, text: str, budget: table)
--- uses: base
function listeners.report(r, id, text, budget)
  local addresses = r[_row.LISTENED] == 1 and redis.call("HGET", base .. "listeners", id)
  if not addresses then return end
  for address in string.gmatch(addresses, "%S+") do
    if budget.left <= _cost.SLICE / 2 then return end
    if address ~= "+" then budget.left = budget.left - (notify.send(address, text) and _cost.NOTIFIED or _cost.GONE) end
  end
end

-- Registers a listener of a job that `lives`, or deregisters it. Does neither for the address "".
--- (s: table, id: str, address: str, is_to_register: bool, lives: bool)
--- uses: base
function listeners.set(s, id, address, is_to_register, lives)
  if address ~= "" and not is_to_register then
    listeners.remove(id, address)
  elseif address ~= "" and lives then
    listeners.add(s.row, id, address)
  end
  listeners.notify_rest(s.row, s.budget)
end

-- Notifies listeners that earlier scripts have left. Returns whether some are still left.
--- (r: table, budget: table) -> bool
--- uses: base
function listeners.notify_rest(r, budget)
  if r[_row.UNNOTIFIED] == 0 then return false end
  local id = redis.call("LINDEX", base .. "unnotified", 0)
  while id do
    local found = redis.call("HGET", base .. "listeners", id)
    if found and not listeners.notify_job(id, found, budget) then return true end
    redis.call("LPOP", base .. "unnotified")
    id = redis.call("LINDEX", base .. "unnotified", 0)
  end
  r[_row.UNNOTIFIED] = 0
  return false
end

-- Notifies the listeners of one job. Returns whether none is left.
--- (id: str, addresses: str, budget: table) -> bool
--- uses: base
--- seldom
function listeners.notify_job(id, addresses, budget)
  if budget.left <= 0 then return false end
  for address in string.gmatch(addresses, "%S+") do
    if address ~= "+" then
      budget.left = budget.left - (notify.send(address, "done") and _cost.NOTIFIED or _cost.GONE)
    end
  end
  if _signed.sign(addresses) == "+" then
    local further = { id }
    while budget.left > 0 and #further > 0 do
      further = redis.call("SPOP", base .. "listeners:" .. id, math.ceil(budget.left / _cost.NOTIFIED))
      for i = 1, #further do
        budget.left = budget.left - (notify.send(further[i], "done") and _cost.NOTIFIED or _cost.GONE)
      end
    end
    if #further > 0 and redis.call("EXISTS", base .. "listeners:" .. id) == 1 then
      redis.call("HSET", base .. "listeners", id, "+")
      return false
    end
  end
  redis.call("HDEL", base .. "listeners", id)
  return true
end
