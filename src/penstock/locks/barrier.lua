-- The scripts of a barrier. Its parties wait until all of them have arrived, and then continue together.
--
--               arrive                        all are here, and alive
--   (none) ──────────────▶ generation g ───────────────────────────────▶ g has passed; generation g + 1
--                              │  a party died or left, or a process aborted it
--                              └─────────────────────────────────────▶ g is broken; generation g + 1
--
--   state    HASH  generation: the number of the present one; the first number is the server ms of the first arrival;
--                  parties: how many it needs; arrived: how many have arrived; complete: 1 if all are here
--   present  ZSET  party -> server ms until which it counts as alive
--   unproven ZSET  once all are here: party that was not probed yet -> as in `present`
--   asked    ZSET  party that seems to be dead -> server ms until which it can still call `look` to show that it is not
--   ended    HASH  generation -> "" if it has passed, else why it broke; the last 1000
--   waiting  ZSET  faces that wait (waiting.lua)
--   replay:  (idempotency.lua)
--
-- Each `wait()` of a process is one party: { token, address } in MessagePack. A waiting party calls `look` twice in
-- each lease, which proves that it is alive. Each call also probes the parties whose last call was longest ago: if the
-- lease of one has ended, or its process receives no messages, it is asked to look. If it does not within 2 s, it
-- counts as dead, and the generation is broken. A party that no message reaches may only have lost its connection, so
-- it has a whole lease for that, and at least 5 s. When the last party has arrived, all are probed, a slice in each
-- call. So a generation never passes if one of its parties is known to have died.
--
-- A party that arrives while the parties of a complete generation are still being probed waits for the next generation.
--
-- The keys expire `ttl` ms after the last call.

barrier = {
  WAIT = 0, PASSED = 1, BROKEN = 2, MISMATCH = 3, LATER = 4, -- what a reply says
  DIED = "d", LEFT = "l", TIMED_OUT = "t", ABORTED = "a", FORGOTTEN = "f", -- why a generation broke
}
_party = { TOKEN = 1, ADDRESS = 2 }
_proof = { REACHED = 2000, UNREACHED = 5000 } -- ms for a party to look; if no message reaches it, at least the second
_most_barrier = { PROBED = 4, SLICE = 150, ENDED = 1000, SHOWN = 100 }

-- Keeps all keys for at least `ttl` ms from now on.
--- (ttl: int)
--- uses: base state
function barrier.keep(ttl)
  for _, key in ipairs({ state, base .. "present", base .. "unproven", base .. "asked", base .. "ended" }) do
    if redis.call("PTTL", key) < ttl then redis.call("PEXPIRE", key, ttl) end
  end
end

-- Ends a generation, and wakes all that wait for it. `why`: "" if it has passed.
--- (generation: int, why: str)
--- uses: base state
function barrier.finish(generation, why)
  redis.call("HSET", base .. "ended", string.format("%d", generation), why)
  redis.call("HDEL", base .. "ended", string.format("%d", generation - _most_barrier.ENDED))
  redis.call("PEXPIRE", base .. "ended", math.max(60000, redis.call("PTTL", state)))
  redis.call("HSET", state, "generation", string.format("%d", generation + 1), "arrived", 0)
  redis.call("HDEL", state, "complete")
  redis.call("UNLINK", base .. "present", base .. "unproven", base .. "asked")
  waiting.report("waiting")
end

-- The reply to a party of a generation that has ended. Wakes the next slice of those that wait for it.
--- (generation: int) -> table
--- uses: base
function barrier.outcome(generation)
  waiting.wake("waiting")
  local why = redis.call("HGET", base .. "ended", string.format("%d", generation))
  if why == "" then return { barrier.PASSED } end
  return { barrier.BROKEN, why or barrier.FORGOTTEN }
end

-- Asks a party to look, if it seems to be dead and was not asked before. `reached`: what this call already knows: face
-- -> whether messages reach it.
--- (party: str, till: int, lease: int, now: int, reached: table)
--- uses: base
function barrier.probe(party, till, lease, now, reached)
  local address = cmsgpack.unpack(party)[_party.ADDRESS]
  local face = notify.face(address)
  if reached[face] == nil then reached[face] = notify.reaches(address) end
  if till > now and reached[face] then return end
  local ms = reached[face] and _proof.REACHED or math.max(lease, _proof.UNREACHED)
  if redis.call("ZADD", base .. "asked", "NX", now + ms, party) == 1 then notify.send(address, "0") end
end

-- Ends the generation if all its parties are here and alive, or if one has died. Returns whether it has ended.
--- (generation: int, party: str, lease: int, now: int) -> bool
--- uses: base state
function barrier.judge(generation, party, lease, now)
  local present, asked, reached = base .. "present", base .. "asked", {}
  local dead = redis.call("ZRANGE", asked, "-inf", now, "BYSCORE", "LIMIT", 0, 1)[1]
  if dead then
    barrier.finish(generation, barrier.DIED .. cmsgpack.unpack(dead)[_party.TOKEN])
    return true
  end
  local needed, complete = unpack(redis.call("HMGET", state, "parties", "complete"))
  local found
  if redis.call("ZCARD", present) < tonumber(needed) then
    found = redis.call("ZRANGE", present, 0, _most_barrier.PROBED, "WITHSCORES")
  else
    if not complete then
      redis.call("ZUNIONSTORE", base .. "unproven", 1, present)
      redis.call("HSET", state, "complete", 1)
    end
    found = redis.call("ZPOPMIN", base .. "unproven", _most_barrier.SLICE)
    complete = true
  end
  for i = 1, #found, 2 do
    if found[i] ~= party then barrier.probe(found[i], tonumber(found[i + 1]), lease, now, reached) end
  end
  if not complete or redis.call("EXISTS", base .. "unproven", asked) > 0 then return false end
  barrier.finish(generation, "")
  return true
end

-- Records that a party is present and alive. Returns { WAIT, ms until it should look again }, { PASSED }, or { BROKEN,
-- why }. 0 ms: not all parties were probed yet.
--- (party: str, generation: int, lease: int, ttl: int, now: int) -> table
--- uses: base state
function barrier.stay(party, generation, lease, ttl, now)
  redis.call("ZADD", base .. "present", now + lease, party)
  redis.call("ZREM", base .. "asked", party)
  redis.call("ZREM", base .. "unproven", party)
  if barrier.judge(generation, party, lease, now) then
    barrier.keep(ttl)
    return barrier.outcome(generation)
  end
  waiting.add("waiting", cmsgpack.unpack(party)[_party.ADDRESS], lease * 3)
  barrier.keep(ttl)
  if redis.call("EXISTS", base .. "unproven") == 1 then return { barrier.WAIT, 0 } end
  local ms = lease / 2
  local first = redis.call("ZRANGE", base .. "asked", 0, 0, "WITHSCORES")[2]
  if first then ms = math.min(ms, math.max(1, first - now)) end
  return { barrier.WAIT, math.ceil(ms) }
end

-- A party arrives. Returns { generation, number of the arrival from 0, and what `barrier.stay` returns }; { 0, parties,
-- MISMATCH } if those that wait need another number of parties; or { 0, 0, LATER, ms } if the generation is complete,
-- so that this party should arrive again after a message or in `ms`. If all that wait have been silent for a lease,
-- they belong to a run that has ended: their generation is broken, and this party begins the next one.
--- keys: base state
--- args: caller: str, number: int, party: str, parties: int, lease: int, ttl: int
--- flags: allow-oom
function script.arrive(base, state, caller, number, party, parties, lease, ttl)
  local past = idempotency.replay(caller, number)
  if past then return past end
  local now = clock.now(0)
  local generation, needed, arrived = unpack(redis.call("HMGET", state, "generation", "parties", "arrived"))
  generation, needed, arrived = tonumber(generation) or now, tonumber(needed), tonumber(arrived) or 0
  local latest = redis.call("ZRANGE", base .. "present", -1, -1, "WITHSCORES")
  if latest[1] and tonumber(latest[2]) <= now then
    barrier.finish(generation, barrier.DIED .. cmsgpack.unpack(latest[1])[_party.TOKEN])
    generation, latest, arrived = generation + 1, {}, 0
  end
  if latest[1] and needed ~= parties then return { 0, needed, barrier.MISMATCH } end
  if latest[1] and redis.call("ZCARD", base .. "present") >= needed then
    waiting.add("waiting", cmsgpack.unpack(party)[_party.ADDRESS], lease * 3)
    return idempotency.keep(caller, number, { 0, 0, barrier.LATER, lease / 2 })
  end
  redis.call("HSET", state, "generation", string.format("%d", generation), "parties", parties, "arrived", arrived + 1)
  local answer = barrier.stay(party, generation, lease, ttl, now)
  return idempotency.keep(caller, number, { generation, arrived, unpack(answer) })
end

-- A party that has arrived looks whether its generation has ended. If the server lost its memory, the party arrives
-- once more, with its earlier number. Returns { generation, number of the arrival, and what `barrier.stay` returns }.
--- keys: base state
--- args: party: str, generation: int, index: int, parties: int, lease: int, ttl: int
--- flags: allow-oom
function script.look(base, state, party, generation, index, parties, lease, ttl)
  local current, arrived = unpack(redis.call("HMGET", state, "generation", "arrived"))
  current, arrived = tonumber(current), tonumber(arrived) or 0
  if current and current > generation then
    barrier.keep(ttl)
    return { generation, index, unpack(barrier.outcome(generation)) }
  end
  if current ~= generation then
    redis.call("UNLINK", base .. "present", base .. "unproven", base .. "asked")
    redis.call("HSET", state, "generation", string.format("%d", generation), "parties", parties)
    redis.call("HDEL", state, "complete")
    arrived = 0
  end
  if arrived <= index then redis.call("HSET", state, "arrived", index + 1) end
  return { generation, index, unpack(barrier.stay(party, generation, lease, ttl, clock.now(0))) }
end

-- A party stops waiting, which breaks its generation unless that has ended already. If the party's call of `arrive`,
-- which has the same number, reaches the server only afterwards, it has no effect. `generation`: 0 if it is not known
-- whether the party has arrived. `why`: LEFT or TIMED_OUT. Returns { generation, 0, PASSED or BROKEN, why }; this `why`
-- ends in the token of the party.
--- keys: base state
--- args: caller: str, number: int, party: str, generation: int, why: str
--- flags: allow-oom
function script.leave(base, state, caller, number, party, generation, why)
  local past = idempotency.replay(caller, number)
  if past and generation == 0 then generation = past[1] end
  idempotency.keep(caller, number, { generation, 0, barrier.BROKEN, why })
  local current = tonumber(redis.call("HGET", state, "generation"))
  why = why .. cmsgpack.unpack(party)[_party.TOKEN]
  if current and redis.call("ZSCORE", base .. "present", party) then
    generation = current
    barrier.finish(current, why)
  end
  if generation == 0 then return { 0, 0, barrier.BROKEN, why } end
  return { generation, 0, unpack(barrier.outcome(generation)) }
end

-- Breaks the present generation, if a party waits. Returns whether one did.
--- keys: base state
--- args: caller: str, number: int, reason: str
--- flags: allow-oom
function script.abort(base, state, caller, number, reason)
  local past = idempotency.replay(caller, number)
  if past then return past end
  local generation = tonumber(redis.call("HGET", state, "generation"))
  local is_waited_for = generation and redis.call("EXISTS", base .. "present") == 1
  if is_waited_for then barrier.finish(generation, barrier.ABORTED .. reason) end
  return idempotency.keep(caller, number, is_waited_for and 1 or 0)
end

-- Returns { generation, parties, number of parties that wait, { party, till, … }, server ms }, or {} if the barrier
-- does not exist.
--- keys: base state
--- flags: no-writes
function script.show(base, state)
  local generation, needed = unpack(redis.call("HMGET", state, "generation", "parties"))
  if not generation then return {} end
  local some = redis.call("ZRANGE", base .. "present", 0, _most_barrier.SHOWN - 1, "WITHSCORES")
  return { tonumber(generation), tonumber(needed), redis.call("ZCARD", base .. "present"), some, clock.now(0) }
end
