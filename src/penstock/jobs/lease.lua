-- Ownership: which worker holds a job, and until when.
--
--   leases        ZSET   incarnation -> alive until, server ms
--   held:<inc>    HASH   id -> claim: its number, flags, ttl, tenant and keys, which completing the job needs
--                        "" -> the incarnation's own state, see below
--   batches:<inc> HASH   `_batched` -> the claim of the first job of a batch, with the ids of all (MessagePack) as keys
--   owners        HASH   id -> incarnation and server ms of the claim, of each job that is held (charging.lua adds the
--                        level); "" -> padding
--   workers       HASH   incarnation -> registration, only of workers (releases.lua)
--
-- An *incarnation* is one registered life of a worker process, or one claim of a program without a worker. Its own
-- state is: alive until, number of the last turn, number of the first claim of that turn, how many it claimed, whether
-- the worker was registered as idle, and the memory of its process, as it last reported it (0: not reported); then the
-- positions of the settlements that the turn refused, and padding.
-- The padding is longer than 64 bytes: the server keeps a hash of smaller values as a list, and would search through it
-- for every job.
--
-- A *batch* that a worker claims is held as one entry if its jobs differ in nothing but their ids and numbers, which
-- rise by one: a plain call of one tenant and one ttl. Nearly all batches end as a whole, and then nothing is read,
-- written or deleted for a single claim. Whatever concerns one job or all claims of the incarnation *opens* its batches
-- first: they become entries of `held`. An incarnation holds a few hundred jobs so, and what it claims beyond is stored
-- job by job, so that a script can open all of them.
--
-- A *token* names one claim: the claim number in 6 bytes, then the id of the job. A settlement is accepted if the
-- incarnation is alive and holds the job under this claim number. Once its lease has run out, an incarnation never
-- revives: a worker that continues later gets the answer STALE and registers a new incarnation.

claim = { NUMBER_BYTES = 6 }

claim = layout {
  number = "I6",
  at = "I6", -- server ms
  flags = "B", -- those of the record; NOTES may be set in the claim only
  ttl = "I5", -- of the result, ms
  tenant = "Bc0",
  keys = "*", -- of a limited job, the keys of its limits (limited_runs.lua); then that of a unique job (unique.lua)
}

token = layout { number = "I6", id = "*" }

_batched = layout { number = "I6", jobs = "H" } -- of the first job

-- MOST: an incarnation with as many jobs in batches gets no further one. LEAST: fewer jobs are no batch. BYTES: of the
-- name of a batch.
_batched = { MOST = 500, LEAST = 4, BYTES = 8 }

_own = layout {
  until_ = "I6", -- alive until, server ms
  turn = "I6", -- number of the last turn
  first = "I6", -- number of the first claim of that turn
  claimed = "H",
  idle = "B", -- 1: it was registered as idle
  memory = "I4", -- KiB
  refused = "H", -- how many settlements the turn refused, or made dead letters of (position.BURIED)
  stale = "*", -- their positions, in 2 bytes each; then padding
}

_own = { PADDING = "-----------------------------------------------------------------" }

-- The incarnation in a value of `owners`.
--- (owner: str) -> str
--- inline
function lease.incarnation(owner)
  return string.match(owner, "^%S+")
end

-- When the job was claimed, by a value of `owners`; 0 if an older release wrote it.
--- (owner: str) -> int
function lease.claimed_at(owner)
  return tonumber(string.match(owner, "^%S+ (%d+)")) or 0
end

-- Collects a job in the `room` of a claim: in the reply, and in what `claim` writes. `expires` to `ttl`: those of its
-- record (`record.is_ready`).
--- (room: table, id: str, body: str, tenant: str, expires: int, since: int, flags: int, ttl: int)
function lease.collect(room, id, body, tenant, expires, since, flags, ttl)
  local n = room.claimed + 1
  local at = 2 * n
  room.claimed, room.want = n, room.want - 1
  room.reply[at - 1], room.reply[at] = id, body
  if room.batches and (flags > flag.CALL or schedule.may_have(id)) then lease.leave_batches(room) end
  if room.batches then
    lease.add_to_batch(room, id, tenant, ttl)
  else
    room.held[at - 1] = id
    room.held[at] = claim.pack({
      number = room.number + n - 1, at = room.now, flags = flags, ttl = ttl, tenant = tenant,
    })
  end
  room.owners[at - 1], room.owners[at] = id, room.owner
  room.tenants[n], room.sinces[n] = tenant, since
  if flags > flag.CALL then
    if flags >= flag.UNIQUE then
      room.unique = room.unique or {}
      room.unique[#room.unique + 1] = n
    end
    if record.has(flags, flag.LIMITED) then
      room.limited = room.limited or {}
      room.limited[#room.limited + 1] = n
      slice.spend(room.s, 2 * limits.passed(flags))
    end
  end
  if expires > 0 then
    room.timed = room.timed or {}
    room.timed[#room.timed + 1] = id
  end
end

-- Whether what the incarnation claims next may be held as batches. Charges by time are made by each claim.
--- (r: table, incarnation: str) -> bool
--- uses: base
--- inline
function lease.has_room(r, incarnation)
  return r[_row.BATCH] and r[_row.WEIGHTED] < _charge.BY_TIME
    and redis.call("HLEN", base .. "batches:" .. incarnation) * r[_row.BATCH][_batch.SIZE] < _batched.MOST
end

-- Adds a claimed job to the latest batch of the claim, or begins a batch.
--- (room: table, id: str, tenant: str, ttl: int)
--- seldom
function lease.add_to_batch(room, id, tenant, ttl)
  local last = room.batches[#room.batches]
  if not last or last.tenant ~= tenant or last.ttl ~= ttl or #last.ids == room.batch_size then
    last = {
      number = room.number + room.claimed - 1, at = room.now, flags = flag.CALL, ttl = ttl, tenant = tenant, ids = {},
    }
    room.batches[#room.batches + 1] = last
  end
  last.ids[#last.ids + 1] = id
end

-- Has all jobs of this claim stored one by one, those that were collected already too.
--- (room: table)
--- seldom
function lease.leave_batches(room)
  for i = 1, #room.batches do lease.add_each(room.held, room.batches[i].ids, room.batches[i]) end
  room.batches = nil
end

-- Stores the batches of a claim. Those of few jobs become claims in `room.held`, which the caller stores.
--- (room: table, incarnation: str)
--- uses: base
--- seldom
function lease.store_batches(room, incarnation)
  local batches = {}
  for i = 1, #room.batches do
    local its = room.batches[i]
    if #its.ids < _batched.LEAST then
      lease.add_each(room.held, its.ids, its)
    else
      batches[#batches + 1] = _batched.pack({ number = its.number, jobs = #its.ids })
      batches[#batches + 1] = claim.pack({
        number = its.number, at = its.at, flags = its.flags, ttl = its.ttl, tenant = its.tenant,
        keys = cmsgpack.pack(its.ids),
      })
    end
  end
  if #batches > 0 then redis.call("HSET", base .. "batches:" .. incarnation, unpack(batches)) end
end

-- Adds the claim of each job of a batch to `held`: id, claim, … `first`: the fields of the first claim.
--- (held: table, ids: table, first: table)
--- seldom
function lease.add_each(held, ids, first)
  for i = 1, #ids do
    held[#held + 1] = ids[i]
    held[#held + 1] = claim.pack({
      number = first.number + i - 1, at = first.at, flags = first.flags, ttl = first.ttl, tenant = first.tenant,
    })
  end
end

-- Opens the batches of an incarnation: each of their jobs gets an entry of its own. Returns whether there was a batch.
--- (incarnation: str) -> bool
--- uses: base
function lease.open(incarnation)
  local key = base .. "batches:" .. incarnation
  local batches, held = redis.call("HVALS", key), {}
  if #batches == 0 then return false end
  for i = 1, #batches do
    local its = claim.fields(batches[i])
    local first = { number = its.number, at = its.at, flags = its.flags, ttl = its.ttl, tenant = its.tenant }
    lease.add_each(held, cmsgpack.unpack(claim.keys(batches[i])), first)
  end
  batch.write("HSET", base .. "held:" .. incarnation, held)
  redis.call("DEL", key)
  return true
end

-- The claim of a job, or false if the incarnation does not hold it.
--- (incarnation: str, id: str) -> str | false
--- uses: base
function lease.claim(incarnation, id)
  local key = base .. "held:" .. incarnation
  local held = redis.call("HGET", key, id)
  if not held and lease.open(incarnation) then held = redis.call("HGET", key, id) end
  return held
end

-- The claim of a job that has notes, steps or signals (notes.lua, durable.lua).
--- (held: str) -> str
function lease.noted(held)
  local flags = claim.flags(held)
  return claim.with(held, { flags = bit.bor(flags, flag.NOTES) })
end

-- The state of an incarnation as a table; nil if it has ended or was never registered.
--- (packed: str | false) -> table | nil
function lease.own(packed)
  if not packed or #packed < _own.AT_STALE - 1 then return nil end
  local own, stale = _own.fields(packed), {}
  for i = 1, own.refused do stale[i] = struct.unpack(">H", packed, _own.AT_STALE - 2 + 2 * i) end
  return {
    until_ = own.until_, turn = own.turn, first = own.first, claimed = own.claimed, idle = own.idle,
    memory = own.memory, stale = stale,
  }
end

--- (own: table) -> str
function lease.packed(own)
  local positions = ""
  for i = 1, #own.stale do positions = positions .. struct.pack(">H", own.stale[i]) end
  return _own.pack({
    until_ = own.until_, turn = own.turn, first = own.first, claimed = own.claimed, idle = own.idle,
    memory = own.memory, refused = #own.stale, stale = positions .. _own.PADDING,
  })
end

-- The state of an incarnation that is alive, else nil.
--- (incarnation: str, now: int) -> table | nil
--- uses: base
function lease.alive(incarnation, now)
  local own = lease.own(redis.call("HGET", base .. "held:" .. incarnation, ""))
  return own and own.until_ > now and own or nil
end

-- Extends a lease, and stores the state of its incarnation behind `held`, its new claims: id, claim, …
--- (r: table, incarnation: str, own: table, held: table)
--- uses: base
function lease.extend(r, incarnation, own, held)
  held[#held + 1], held[#held + 2] = "", lease.packed(own)
  redis.call("HSET", base .. "held:" .. incarnation, unpack(held))
  redis.call("ZADD", base .. "leases", own.until_, incarnation)
  row.not_after(r, _row.NEXT_LEASE, own.until_)
end

-- The claim behind a token, or false if the incarnation does not hold the job under this claim number.
--- (incarnation: str, of: str) -> str | false
--- uses: base
--- seldom
function lease.held(incarnation, of)
  local held = lease.claim(incarnation, token.id(of))
  return held and claim.number(held) == token.number(of) and held
end

-- The same for an incarnation whose lease may have run out: its claims count for nothing then.
--- (incarnation: str, of: str, now: int) -> str | false | nil
--- uses: base
--- inline
function lease.held_alive(incarnation, of, now)
  return lease.alive(incarnation, now) and lease.held(incarnation, of)
end

-- Ends one claim.
--- (s: table, incarnation: str, id: str, held: str)
--- uses: base
function lease.end_claim(s, incarnation, id, held)
  if s.row[_row.WEIGHTED] >= _charge.BY_TIME then charging.charge(s, { id }, { id }, { held }) end
  redis.call("HDEL", base .. "held:" .. incarnation, id)
  redis.call("HDEL", base .. "owners", id)
end

-- How many jobs the incarnation holds, once its own state is stored.
--- (incarnation: str) -> int
--- uses: base
--- seldom
function lease.count(incarnation)
  local n = redis.call("HLEN", base .. "held:" .. incarnation) - 1
  local batches = redis.call("HKEYS", base .. "batches:" .. incarnation)
  for i = 1, #batches do n = n + _batched.jobs(batches[i]) end
  return math.max(0, n)
end

-- Ends an incarnation that holds no job.
--- (incarnation: str)
--- uses: base
--- seldom
function lease.remove(incarnation)
  redis.call("ZREM", base .. "leases", incarnation)
  local registration = redis.call("HGET", base .. "workers", incarnation)
  if registration then releases.leave(incarnation, registration) end
  local of = incarnation
  redis.call("DEL", base .. "held:" .. of, base .. "batches:" .. of, base .. "cancels:" .. of)
end

-- Tokens of jobs that an incarnation holds, in the order in which they were claimed: at most as many as fit into the
-- slice `budget` (slice.lua).
--- (incarnation: str, budget: table) -> table
--- uses: base
--- seldom
function lease.some_tokens(incarnation, budget)
  if budget.left > 0 then lease.open(incarnation) end
  local found = budget.left > 0
    and redis.call("HRANDFIELD", base .. "held:" .. incarnation, budget.left + 1, "WITHVALUES") or {}
  local tokens = {}
  for i = 1, #found, 2 do
    if found[i] ~= "" then
      if not slice.take(budget, redis.call("HSTRLEN", base .. "jobs", found[i])) then break end
      tokens[#tokens + 1] = claim.number_bytes(found[i + 1]) .. found[i]
    end
  end
  table.sort(tokens)
  return tokens
end

-- The jobs that a turn claimed, for the reply when the turn is repeated: id, record, …, in the order of the claims. Id
-- and record are empty where the incarnation no longer holds the job.
--- (incarnation: str, own: table) -> table
--- uses: base
--- seldom
function lease.repeated(incarnation, own)
  lease.open(incarnation)
  local reply, ids, positions = {}, {}, {}
  for i = 1, 2 * own.claimed do reply[i] = "" end
  local held = redis.call("HGETALL", base .. "held:" .. incarnation)
  for i = 1, #held, 2 do
    local position = held[i] ~= "" and claim.number(held[i + 1]) - own.first or -1
    if position >= 0 and position < own.claimed then
      ids[#ids + 1], positions[#positions + 1] = held[i], position
    end
  end
  local bodies = #ids > 0 and redis.call("HMGET", base .. "jobs", unpack(ids)) or {}
  for i = 1, #ids do
    local at = 2 * positions[i] + 1
    if record.intact(bodies[i]) then reply[at], reply[at + 1] = ids[i], bodies[i] end
  end
  return reply
end
