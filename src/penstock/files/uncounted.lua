-- Dead batches of the aggregate that receives as r: lines that its function could not count. They are stored with its
-- counts (counts.lua), until they are counted after all or removed.
--
--   uncounted:<r>        HASH  id -> "<server ms> <how many lines> <JSON>", see DeadBatch in dead_batches.py
--   uncounted_lines:<r>  HASH  id -> the lines, packed
--   retries:<r>          SET   ids of those that the next run tries again
--
-- In totals:<r>: `dead` is the number of their lines, `dead_id` the latest id.

_limit = { BATCHES = 256 } -- with blocks of 255 KiB, 64 MiB

-- Returns { "DEAD", "", how many } if there is no room for `more` further batches, else nil.
--- (receiver: str, more: int) -> table | nil
--- uses: base
function uncounted.refusal(receiver, more)
  if more == 0 then return nil end
  local stored = redis.call("HLEN", base .. "uncounted:" .. receiver)
  if stored + more > _limit.BATCHES then return { "DEAD", "", stored } end
end

-- Stores a batch: { how many lines, JSON, packed lines }.
--- (receiver: str, batch: table, now: int)
--- uses: base
function uncounted.add(receiver, batch, now)
  local totals = base .. "totals:" .. receiver
  local id = redis.call("HINCRBY", totals, "dead_id", 1)
  redis.call("HINCRBY", totals, "dead", batch[1])
  redis.call("HSET", base .. "uncounted:" .. receiver, id, string.format("%d %d ", now, batch[1]) .. batch[2])
  redis.call("HSET", base .. "uncounted_lines:" .. receiver, id, batch[3])
end

-- Returns whether there was such a batch.
--- (receiver: str, id: str) -> bool
--- uses: base
function uncounted.remove(receiver, id)
  local stored = redis.call("HGET", base .. "uncounted:" .. receiver, id)
  if not stored then return false end
  redis.call("HDEL", base .. "uncounted:" .. receiver, id)
  redis.call("HDEL", base .. "uncounted_lines:" .. receiver, id)
  redis.call("SREM", base .. "retries:" .. receiver, id)
  redis.call("HINCRBY", base .. "totals:" .. receiver, "dead", -tonumber(string.match(stored, "^%d+ (%d+)")))
  redis.call("HINCRBY", base .. "totals:" .. receiver, "version", 1)
  return true
end

--- (receiver: str)
--- uses: base
function uncounted.delete(receiver)
  redis.call("UNLINK", base .. "uncounted:" .. receiver, base .. "uncounted_lines:" .. receiver,
    base .. "retries:" .. receiver)
end

-- Returns { id, "<server ms> <how many lines> <JSON>", 1 if the next run tries it again, … }.
--- keys: base state
--- args: receiver: str
--- flags: no-writes
--- frame: format
function script.dead_batches(base, state, receiver)
  local found, answer = redis.call("HGETALL", base .. "uncounted:" .. receiver), {}
  for i = 1, #found, 2 do
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = found[i + 1]
    answer[#answer + 1] = redis.call("SISMEMBER", base .. "retries:" .. receiver, found[i])
  end
  return answer
end

-- Returns the packed lines of a dead batch, or "".
--- keys: base state
--- args: receiver: str, id: str
--- flags: no-writes
--- frame: format
function script.dead_lines(base, state, receiver, id)
  return redis.call("HGET", base .. "uncounted_lines:" .. receiver, id) or ""
end

-- After one more attempt at a dead batch: with counts, removes the batch and adds them; without, stores how it failed.
-- Returns { "OK" }, also if there is no such batch any more, or a refusal of `counts.refusal`.
--- keys: base state
--- args: given: int, receiver: str, id: str, packed_counts: str, json: str
--- flags: allow-oom
--- frame: format
function script.settle_dead_batch(base, state, given, receiver, id, packed_counts, json)
  local stored, now = redis.call("HGET", base .. "uncounted:" .. receiver, id), clock.now(given)
  if not stored then return { "OK" } end
  local found = counts.decode(packed_counts)
  if packed_counts == "" then
    redis.call("HSET", base .. "uncounted:" .. receiver, id, string.match(stored, "^%d+ %d+ ") .. json)
    redis.call("SREM", base .. "retries:" .. receiver, id)
    return { "OK" }
  end
  local refusal = counts.refusal(receiver, { found }, now)
  if refusal then return refusal end
  uncounted.remove(receiver, id)
  counts.add(receiver, found, now)
  return { "OK" }
end

-- Has the next run try these dead batches again. Returns how many of them there are.
--- keys: base state
--- args: receiver: str, ids: *
--- flags: allow-oom
--- frame: format
function script.retry_dead_batches(base, state, receiver, ids, ...)
  local n = 0
  for i = ids, #ARGV do
    if redis.call("HEXISTS", base .. "uncounted:" .. receiver, ARGV[i]) == 1 then
      redis.call("SADD", base .. "retries:" .. receiver, ARGV[i])
      n = n + 1
    end
  end
  return n
end

-- Removes dead batches; their lines are never counted. Returns how many there were.
--- keys: base state
--- args: receiver: str, ids: *
--- flags: allow-oom
--- frame: format
function script.remove_dead_batches(base, state, receiver, ids, ...)
  local n = 0
  for i = ids, #ARGV do
    if uncounted.remove(receiver, ARGV[i]) then n = n + 1 end
  end
  return n
end
