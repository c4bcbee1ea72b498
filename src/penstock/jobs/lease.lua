-- Ownership: which worker holds a job, and until when.
--
--   leases        ZSET   incarnation -> alive until, server ms
--   held:<inc>    HASH   id -> claim: its number, flags, ttl, tenant and keys, which completing the job needs
--                        "" -> the incarnation's own state, see below
--   owners        HASH   id -> incarnation and server ms of the claim, of each job that is held (charging.lua adds the
--                        level); "" -> padding
--   workers       HASH   incarnation -> server ms of its first turn, and its registration; only of workers
--
-- An *incarnation* is one registered life of a worker process, or one claim of a program without a worker. Its own
-- state is: alive until, number of the last turn, number of the first claim of that turn, how many it claimed, and
-- whether the worker was registered as idle; then the positions of the settlements that the turn refused, and padding.
-- The padding is longer than 64 bytes: the server keeps a hash of smaller values as a list, and would search through it
-- for every job.
--
-- A *token* names one claim: the claim number in 6 bytes, then the id of the job. A settlement is accepted if the
-- incarnation is alive and holds the job under this claim number. Once its lease has run out, an incarnation never
-- revives: a worker that continues later gets the answer STALE and registers a new incarnation.

claim = { NUMBER_BYTES = 6 }

_own = {
  FORMAT = ">I6I6I6I2B",
  BYTES = 21,
  PADDING = "-----------------------------------------------------------------",
}

--- (token: str) -> int
--- inline
function lease.claim_number(token)
  return struct.unpack(">I6", token)
end

--- (token: str) -> str
--- inline
function lease.job_id(token)
  return string.sub(token, 7)
end

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

-- The value in `held` for a claim.
--- (number: int, flags: int, ttl: int, tenant: str) -> str
--- inline
function lease.held_claim(number, flags, ttl, tenant)
  return struct.pack(">I6BI5Bc0", number, flags, ttl, #tenant, tenant)
end

-- Collects a job in the `room` of a claim: in the reply, and in what `claim` writes.
--- (room: table, id: str, body: str, tenant: str, since: int, flags: int, ttl: int)
function lease.collect(room, id, body, tenant, since, flags, ttl)
  local n = room.claimed + 1
  local at = 2 * n
  room.claimed, room.want = n, room.want - 1
  room.reply[at - 1], room.reply[at] = id, body
  room.held[at - 1], room.held[at] = id, lease.held_claim(room.number + n - 1, flags, ttl, tenant)
  room.owners[at - 1], room.owners[at] = id, room.owner
  room.tenants[n], room.sinces[n] = tenant, since
  if flags >= flag.UNIQUE then room.unique = true end
end

-- Where the keys of the powers of a claim begin.
--- (held: str) -> int
--- inline
function lease.rest(held)
  return 14 + string.byte(held, 13)
end

-- Claim number, flags, ttl, tenant, and where the keys of its powers begin.
--- (held: str) -> int, int, int, str, int
function lease.parse(held)
  return struct.unpack(">I6BI5Bc0", held)
end

-- The state of an incarnation as a table; nil if it has ended or was never registered.
--- (packed: str | false) -> table | nil
function lease.own(packed)
  if not packed or #packed < _own.BYTES then return nil end
  local until_, turn, first, claimed, idle = struct.unpack(_own.FORMAT, packed)
  local stale = {}
  local refused = struct.unpack(">I2", packed, _own.BYTES + 1)
  for i = 1, refused do stale[i] = struct.unpack(">I2", packed, _own.BYTES + 1 + 2 * i) end
  return { until_ = until_, turn = turn, first = first, claimed = claimed, idle = idle, stale = stale }
end

--- (own: table) -> str
function lease.packed(own)
  local stale = own.stale
  local text = struct.pack(_own.FORMAT, own.until_, own.turn, own.first, own.claimed, own.idle)
    .. struct.pack(">I2", #stale)
  for i = 1, #stale do text = text .. struct.pack(">I2", stale[i]) end
  return text .. _own.PADDING
end

-- The state of an incarnation that is alive, else nil.
--- (incarnation: str, now: int) -> table | nil
--- uses: base
function lease.alive(incarnation, now)
  local own = lease.own(redis.call("HGET", base .. "held:" .. incarnation, ""))
  return own and own.until_ > now and own or nil
end

-- Extends a lease, and stores the state of its incarnation.
--- (r: table, incarnation: str, own: table)
--- uses: base
function lease.extend(r, incarnation, own)
  redis.call("ZADD", base .. "leases", own.until_, incarnation)
  redis.call("HSET", base .. "held:" .. incarnation, "", lease.packed(own))
  row.not_after(r, _row.NEXT_LEASE, own.until_)
end

-- The claim behind a token, or false if the incarnation does not hold the job under this claim number.
--- (incarnation: str, token: str) -> str | false
--- uses: base
function lease.held(incarnation, token)
  local held = redis.call("HGET", base .. "held:" .. incarnation, lease.job_id(token))
  return held and struct.unpack(">I6", held) == lease.claim_number(token) and held
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
function lease.count(incarnation)
  return math.max(0, redis.call("HLEN", base .. "held:" .. incarnation) - 1)
end

-- Ends an incarnation that holds no job.
--- (incarnation: str)
--- uses: base
function lease.remove(incarnation)
  redis.call("ZREM", base .. "leases", incarnation)
  redis.call("HDEL", base .. "workers", incarnation)
  redis.call("DEL", base .. "held:" .. incarnation, base .. "cancels:" .. incarnation)
end

-- Tokens of jobs that an incarnation holds, in the order in which they were claimed: at most as many as fit into the
-- slice `part` (slice.lua).
--- (incarnation: str, part: table) -> table
--- uses: base
function lease.some_tokens(incarnation, part)
  local found = part.left > 0
    and redis.call("HRANDFIELD", base .. "held:" .. incarnation, part.left + 1, "WITHVALUES") or {}
  local tokens = {}
  for i = 1, #found, 2 do
    if found[i] ~= "" then
      if not slice.take(part, redis.call("HSTRLEN", base .. "jobs", found[i])) then break end
      tokens[#tokens + 1] = string.sub(found[i + 1], 1, claim.NUMBER_BYTES) .. found[i]
    end
  end
  table.sort(tokens)
  return tokens
end

-- The jobs that a turn claimed, for its repetition: id, record, …, in the order of the claims. A claim that is no
-- longer held has an empty id and record.
--- (incarnation: str, own: table) -> table
--- uses: base
--- seldom
function lease.repeated(incarnation, own)
  local reply, ids, places = {}, {}, {}
  for i = 1, 2 * own.claimed do reply[i] = "" end
  local held = redis.call("HGETALL", base .. "held:" .. incarnation)
  for i = 1, #held, 2 do
    local place = held[i] ~= "" and struct.unpack(">I6", held[i + 1]) - own.first or -1
    if place >= 0 and place < own.claimed then
      ids[#ids + 1], places[#places + 1] = held[i], place
    end
  end
  local bodies = #ids > 0 and redis.call("HMGET", base .. "jobs", unpack(ids)) or {}
  for i = 1, #ids do
    if record.intact(bodies[i]) then reply[2 * places[i] + 1], reply[2 * places[i] + 2] = ids[i], bodies[i] end
  end
  return reply
end
