-- The scripts of a latch, which opens once: when it was counted down to zero.
--
--              count_down                 the last count_down
--   closed ──────────────────▶ closed ─────────────────────────▶ open
--
--   state     HASH  count: the number with which the latch was created; left: how much is still to be counted down
--   counted   SET   ids that were counted; deleted when the latch opens
--   waiting   ZSET  faces that wait (waiting.lua)
--   replay:   (idempotency.lua)
--
-- The first call of any kind creates the latch. The keys expire `ttl` ms after the last call, and the latch is
-- forgotten.

-- Creates the latch if it does not exist. Returns how much is left, or nil if the latch was created with another count;
-- and the count of the latch.
--- (count: int, ttl: int) -> int | nil, int
--- uses: state
function latch.open(count, ttl)
  local created, left = unpack(redis.call("HMGET", state, "count", "left"))
  if not created then
    redis.call("HSET", state, "count", count, "left", count)
    created, left = count, count
  end
  if redis.call("PTTL", state) < ttl then redis.call("PEXPIRE", state, ttl) end
  return tonumber(created) == count and tonumber(left) or nil, tonumber(created)
end

-- Counts down by `n`. A call with an `id` that was counted before changes nothing.
-- Returns { how much is left, the count of the latch }. If the latch has another count, the first is -1, and nothing
-- changes.
--- keys: base state
--- args: caller: str, number: int, count: int, ttl: int, n: int, id: str
--- flags: allow-oom
function script.count_down(base, state, caller, number, count, ttl, n, id)
  local past = idempotency.replay(caller, number)
  if past then return past end
  local left, created = latch.open(count, ttl)
  if not left then return { -1, created } end
  local is_new = left > 0 and (id == "" or redis.call("SADD", base .. "counted", id) == 1)
  if is_new then
    left = math.max(0, left - n)
    redis.call("HSET", state, "left", left)
  end
  if left == 0 then
    redis.call("UNLINK", base .. "counted")
    if is_new then waiting.report("waiting") else waiting.wake("waiting") end
  elseif id ~= "" then
    if redis.call("PTTL", base .. "counted") < ttl then redis.call("PEXPIRE", base .. "counted", ttl) end
  end
  return idempotency.keep(caller, number, { left, created })
end

-- Registers an address for `ms` unless the latch is open; with 0 ms, removes it. Returns what `count_down` returns.
--- keys: base state
--- args: count: int, ttl: int, address: str, ms: int
--- flags: allow-oom
function script.look(base, state, count, ttl, address, ms)
  local left, created = latch.open(count, ttl)
  if not left then return { -1, created } end
  if left == 0 then
    waiting.wake("waiting") -- the others, slice by slice
  elseif ms > 0 then
    waiting.add("waiting", address, ms)
  else
    waiting.remove("waiting", address)
  end
  return { left, created }
end

-- Returns { how much is left, count, ms until it is forgotten, number of faces that wait }, or {} if it does not exist.
--- keys: base state
--- flags: no-writes
function script.show(base, state)
  local created, left = unpack(redis.call("HMGET", state, "count", "left"))
  if not created then return {} end
  local faces = redis.call("ZCARD", base .. "waiting")
  if redis.call("ZSCORE", base .. "waiting", "") then faces = faces - 1 end
  return { tonumber(left), tonumber(created), redis.call("PTTL", state), faces }
end
