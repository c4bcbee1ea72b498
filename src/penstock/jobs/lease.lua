-- Ownership: which worker holds a job, and until when.
--
--   leases        ZSET    incarnation -> server ms until which it counts as alive
--   held:<inc>    HASH    id -> claim number, the header of the job's record, and padding
--   turn:<inc>    STRING  the last turn: its number, which settlements were stale, which tokens it was given; PX
--   workers       HASH    incarnation -> server ms of its first turn, and its registration; only of workers
--
-- An *incarnation* is one registered life of a worker process, or one claim of a program without a worker. A *token*
-- names one claim: the claim number in hexadecimal digits, then the id of the job. A settlement is accepted if the
-- incarnation is alive and holds the job under this claim number. Once its lease has run out, an incarnation never
-- revives: a worker that continues later gets the answer STALE and registers a new incarnation.

claim = { CLAIM_DIGITS = 12 }

--- (token: str) -> str
--- inline
function lease.claim_number(token)
  return string.sub(token, 1, claim.CLAIM_DIGITS)
end

--- (token: str) -> str
--- inline
function lease.job_id(token)
  return string.sub(token, claim.CLAIM_DIGITS + 1)
end

-- The value in `held` for a claim. The padding makes it longer than 64 bytes: the server keeps a hash of smaller values
-- as a list, and would search through it for every job.
--- (number: str, body: str) -> str
function lease.held_claim(number, body)
  return number .. record.header(body) .. "             "
end

--- (held: str) -> str
--- inline
function lease.held_header(held)
  return string.sub(held, claim.CLAIM_DIGITS + 1)
end

--- (incarnation: str, now: int) -> bool
--- uses: base
function lease.alive(incarnation, now)
  local until_ = redis.call("ZSCORE", base .. "leases", incarnation)
  return until_ and tonumber(until_) > now
end

-- Returns the stored answer if this turn was taken before, else nil; and whether it is the incarnation's next turn.
--- (incarnation: str, number: int) -> table | nil, bool
--- uses: base
function lease.replay(incarnation, number)
  local last = redis.call("GET", base .. "turn:" .. incarnation)
  if not last then return nil, number == 1 end
  local past = cmsgpack.unpack(last)
  if past[1] ~= number then return nil, past[1] + 1 == number end
  return past, false
end

--- (incarnation: str, number: int, stale: table, tokens: table, ms: int)
--- uses: base
function lease.keep_turn(incarnation, number, stale, tokens, ms)
  redis.call("SET", base .. "turn:" .. incarnation, cmsgpack.pack({ number, stale, tokens }), "PX", ms)
end

-- For each token the header of the job, or false if the incarnation does not hold the job under this claim number.
--- (incarnation: str, tokens: table) -> table
--- uses: base
function lease.headers(incarnation, tokens)
  local ids = {}
  for i = 1, #tokens do ids[i] = lease.job_id(tokens[i]) end
  local found = batch.read(base .. "held:" .. incarnation, ids)
  for i = 1, #tokens do
    local held = found[i]
    found[i] = held and lease.claim_number(held) == lease.claim_number(tokens[i]) and lease.held_header(held)
  end
  return found
end

-- Ends an incarnation.
--- (incarnation: str)
--- uses: base
function lease.remove(incarnation)
  redis.call("ZREM", base .. "leases", incarnation)
  redis.call("HDEL", base .. "workers", incarnation)
  redis.call("DEL", base .. "held:" .. incarnation, base .. "turn:" .. incarnation)
end

-- Returns three values: incarnations whose lease ran out; claims of theirs as { incarnation, token, header }, sorted by
-- claim number, at most `limit` and at most 1 MiB of records; and whether there may be more.
--- (now: int, limit: int) -> table, table, bool
--- uses: base
function lease.overdue(now, limit)
  local claims, bytes = {}, _slice.BYTES
  local ended = redis.call("ZRANGE", base .. "leases", "-inf", now, "BYSCORE", "LIMIT", 0, 8)
  for i = 1, #ended do
    local held = base .. "held:" .. ended[i]
    local found = #claims < limit and redis.call("HRANDFIELD", held, limit - #claims, "WITHVALUES") or {}
    for j = 1, #found, 2 do
      bytes = bytes - redis.call("HSTRLEN", base .. "jobs", found[j])
      if bytes < 0 and #claims > 0 then
        limit = #claims
        break
      end
      local token = lease.claim_number(found[j + 1]) .. found[j]
      claims[#claims + 1] = { ended[i], token, lease.held_header(found[j + 1]) }
    end
  end
  table.sort(claims, function(a, b) return a[2] < b[2] end)
  return ended, claims, #ended == 8 or #claims == limit
end

-- Ends those of the incarnations that hold no job.
--- (incarnations: table)
--- uses: base
function lease.remove_empty(incarnations)
  for i = 1, #incarnations do
    if redis.call("EXISTS", base .. "held:" .. incarnations[i]) == 0 then lease.remove(incarnations[i]) end
  end
end
