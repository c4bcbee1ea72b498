-- Ownership: who holds a job, and until when.
--
--   leases        ZSET    incarnation -> server ms until which it is believed alive
--   held:<inc>    HASH    id -> claim number (12 hex digits), the header of the job's record, and filling
--   turn:<inc>    STRING  number of its last turn, which settlements were stale, which claims it was given; PX
--   workers       HASH    incarnation -> server ms of its first turn and what it says of itself; not for claims
--                         without a worker
--
-- A worker, or one claim of a program without a worker, is an incarnation. A *token* names one claim: its
-- number and the job's id. To settle, the incarnation must be alive and the token must be the one it holds.
-- A lease that ran out ends the incarnation for ever: who comes back gets STALE and begins a new one.

--- (me: str, now: int) -> bool
--- uses: base
function lease.alive(me, now)
  local till = redis.call("ZSCORE", base .. "leases", me)
  return till and tonumber(till) > now
end

-- The answer of this very turn, if it was given before; and whether the turn may be taken now.
--- (me: str, number: int) -> table | nil, bool
--- uses: base
function lease.replay(me, number)
  local last = redis.call("GET", base .. "turn:" .. me)
  if not last then return nil, number == 1 end
  local past = cmsgpack.unpack(last)
  if past[1] ~= number then return nil, past[1] + 1 == number end
  return past, false
end

--- (me: str, number: int, stale: table, tokens: table, ms: int)
--- uses: base
function lease.remember(me, number, stale, tokens, ms)
  redis.call("SET", base .. "turn:" .. me, cmsgpack.pack({ number, stale, tokens }), "PX", ms)
end

-- What `held` keeps of a claim. The filling makes it longer than 64 bytes: a hash with smaller values would be a list
-- that the server searches through for every job held.
--- (number: str, body: str) -> str
function lease.claim(number, body)
  return number .. string.sub(body, 1, 40 + string.byte(body, 39)) .. "             "
end

-- For each token the header of the job it claims, or false where another holds it now, or nobody.
--- (me: str, tokens: table) -> table
--- uses: base
function lease.holds(me, tokens)
  local ids = {}
  for i = 1, #tokens do ids[i] = string.sub(tokens[i], 13) end
  local found = batch.read(base .. "held:" .. me, ids)
  for i = 1, #tokens do
    local claim = found[i]
    found[i] = claim and string.sub(claim, 1, 12) == string.sub(tokens[i], 1, 12) and string.sub(claim, 13)
  end
  return found
end

--- (me: str)
--- uses: base
function lease.leave(me)
  redis.call("ZREM", base .. "leases", me)
  redis.call("HDEL", base .. "workers", me)
  redis.call("DEL", base .. "held:" .. me, base .. "turn:" .. me)
end

-- Incarnations whose lease ran out; of them at most `limit` claims, and 1 MiB of records: { incarnation, token, header },
-- in the order they were given; and whether there may be more.
--- (now: int, limit: int) -> table, table, bool
--- uses: base
function lease.overdue(now, limit)
  local claims, bytes = {}, 1048576
  local ended = redis.call("ZRANGE", base .. "leases", "-inf", now, "BYSCORE", "LIMIT", 0, 8)
  for i = 1, #ended do
    local found = #claims < limit and redis.call("HRANDFIELD", base .. "held:" .. ended[i], limit - #claims, "WITHVALUES") or {}
    for j = 1, #found, 2 do
      bytes = bytes - redis.call("HSTRLEN", base .. "jobs", found[j])
      if bytes < 0 and #claims > 0 then
        limit = #claims
        break
      end
      local claim = string.sub(found[j + 1], 1, 12)
      claims[#claims + 1] = { ended[i], claim .. found[j], string.sub(found[j + 1], 13) }
    end
  end
  table.sort(claims, function(a, b) return a[2] < b[2] end)
  return ended, claims, #ended == 8 or #claims == limit
end

-- Those of them that hold nothing any more are gone.
--- (incarnations: table)
--- uses: base
function lease.bury(incarnations)
  for i = 1, #incarnations do
    if redis.call("EXISTS", base .. "held:" .. incarnations[i]) == 0 then lease.leave(incarnations[i]) end
  end
end
