-- For settlements with more keys than one script may add without holding the server up. Their counts are deposited in
-- pieces, which changes nothing that can be read. Then the settlement commits the deposit in the same script that moves
-- the cursor. From then on, any process may add the pieces, one with each script. Whoever reads the counts adds the
-- pieces first, so nobody sees half of them.
--
--   deposited:<r>       LIST  packed counts (counts.lua) that were not added yet; with a TTL until they are committed
--   deposited_sums:<r>  HASH  what deposited pieces will add: sum:<t> magnitudes, key:<t>:<k> for a key of "uniques"
--
-- In totals:<r>: `deposit` is "<id> <number of pieces> <server ms>": a deposit that was not committed, and the time
-- until which no other settlement may add counts, so that the checks of the pieces stay valid. `committed` is 1 until
-- all pieces of a committed deposit are added; meanwhile no other settlement may add counts either.

_deposit = { HELD_MS = 2000, KEPT_MS = 60000 }

-- Returns { "PENDING" } if there are pieces to be added first, { "BUSY", ms } while another settlement has a deposit,
-- else nil. `id`: the id of the caller's deposit, or "".
--- (receiver: str, id: str, now: int) -> table | nil
--- uses: base
function deposits.refusal(receiver, id, now)
  local found = redis.call("HMGET", base .. "totals:" .. receiver, "committed", "deposit")
  if found[1] then return { "PENDING" } end
  if not found[2] then return nil end
  local other, _, held_until = string.match(found[2], "^(%S+) (%d+) (%d+)$")
  if other ~= id and tonumber(held_until) > now then return { "BUSY", tonumber(held_until) - now } end
end

-- Returns how many pieces the deposit with this id has; nil if there is no such deposit.
--- (receiver: str, id: str) -> int | nil
--- uses: base
--- seldom
function deposits.count(receiver, id)
  local other, n = string.match(redis.call("HGET", base .. "totals:" .. receiver, "deposit") or "", "^(%S+) (%d+) ")
  if other ~= id or redis.call("LLEN", base .. "deposited:" .. receiver) ~= tonumber(n) then return nil end
  return tonumber(n)
end

-- Removes pieces that were not committed.
--- (receiver: str)
--- uses: base
--- seldom
function deposits.drop(receiver)
  redis.call("UNLINK", base .. "deposited:" .. receiver, base .. "deposited_sums:" .. receiver)
  redis.call("HDEL", base .. "totals:" .. receiver, "deposit")
end

-- Commits a deposit, which must be whole.
--- (receiver: str)
--- uses: base
--- seldom
function deposits.commit(receiver)
  local totals = base .. "totals:" .. receiver
  redis.call("HDEL", totals, "deposit")
  redis.call("HSET", totals, "committed", 1)
  redis.call("PERSIST", base .. "deposited:" .. receiver)
  redis.call("UNLINK", base .. "deposited_sums:" .. receiver)
end

-- Deposits piece number `index`, from 0, of a settlement. The settlement that commits it cannot be refused because of
-- its counts any more. Returns { "OK" }, also if this piece is there already; { "LOST" } if the pieces before it are
-- not there, so that the caller must begin again with another id; or a refusal of `deposits.refusal` or
-- `counts.refusal`.
--- keys: base state
--- args: given: int, receiver: str, id: str, index: int, packed_counts: str
--- flags: allow-oom
--- frame: log
function script.deposit(base, state, given, receiver, id, index, packed_counts)
  if not l then return { "GONE" } end
  local now, totals, sums = clock.now(given), base .. "totals:" .. receiver, base .. "deposited_sums:" .. receiver
  local refusal = deposits.refusal(receiver, id, now)
  if refusal then return refusal end
  local n = deposits.count(receiver, id)
  if n and index < n then return { "OK" } end
  if index ~= (n or 0) then return { "LOST" } end
  if not n then deposits.drop(receiver) end
  local found = counts.decode(packed_counts)
  refusal = counts.refusal(receiver, { found }, now, sums)
  if refusal then
    deposits.drop(receiver)
    return refusal
  end
  redis.call("HSET", state, "counted", 1, "counts:" .. receiver, 1)
  redis.call("RPUSH", base .. "deposited:" .. receiver, packed_counts)
  redis.call("HSET", totals, "deposit", string.format("%s %d %d", id, index + 1, now + _deposit.HELD_MS))
  redis.call("PEXPIRE", base .. "deposited:" .. receiver, _deposit.KEPT_MS)
  redis.call("PEXPIRE", sums, _deposit.KEPT_MS)
  return { "OK" }
end

-- Adds the next piece of a committed deposit. Without one, removes the deposit with this id, whose settlement was
-- refused. Returns how many pieces are left to be added.
--- keys: base state
--- args: given: int, receiver: str, id: str
--- flags: allow-oom
--- frame: format
function script.add_piece(base, state, given, receiver, id)
  local totals, list = base .. "totals:" .. receiver, base .. "deposited:" .. receiver
  if not redis.call("HGET", totals, "committed") then
    if id ~= "" and deposits.count(receiver, id) then deposits.drop(receiver) end
    return 0
  end
  local packed = redis.call("LPOP", list)
  if packed then counts.add(receiver, counts.decode(packed), clock.now(given)) end
  local left = redis.call("LLEN", list)
  if left == 0 then redis.call("HDEL", totals, "committed") end
  return left
end
