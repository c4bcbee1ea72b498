-- The outbox: entries of this queue for other queues, which may be in other slots.
--
--   outbox:<queue>  LIST  what is for that queue, the oldest first: for each entry its number, verb, id and text
--   ticks           ZSET  outbox:<queue> -> server ms at which a worker is offered entries for it (schedule.lua)
--   meta            HASH  outbox: the number of the last entry
--   inbox           HASH  queue -> number of the last entry that was received from it
--
-- The script that causes an entry writes it. A turn offers the oldest entries for a queue to one worker, and to another
-- one after five seconds. That worker calls `deliver` in the other queue, and then `delivered` in this one, which
-- removes them. The numbers rise, so an entry that arrives again is recognised, however late. They begin at the
-- microseconds of the server's clock: a queue that was deleted and created again does not repeat them.
--
-- A verb is what the other queue does:
--
--   enqueue  a call, with its id and draft
--   event    counts what happened to a job of this queue for which one of the other queue's jobs waits (`flow.send`)
--   run      a child of a job of this queue (children.lua)
--   answer   how a job of this queue ended, which is a child of one of the other queue's jobs
--   abandon  the parent of this child has ended
--
-- A newer release may send a verb that this one does not know. Then `deliver` fails, and the entry stays for a worker
-- of that release.

-- FIELDS: values of one entry. OFFER: precedes a queue in `ticks`
outbox = { FIELDS = 4, EVENT = "event", OFFER = "outbox:" }

_outbox = { ENTRIES = 100, PIECE = 16, BYTES = 262144, VALUES = 400 } -- PIECE: values that are read at once

-- Has `write` append an entry for another queue.
--- (s: table, queue: str, verb: str, id: str, text: str)
function outbox.put(s, queue, verb, id, text)
  s.outbox = s.outbox or {}
  local entries = s.outbox[queue] or {}
  s.outbox[queue] = entries
  local at = #entries
  entries[at + 1], entries[at + 2], entries[at + 3], entries[at + 4] = "", verb, id, text
end

-- Writes the entries that `put` has collected. If the script is a turn, it offers them at once; otherwise some worker
-- takes a turn for them soon.
--- (s: table)
--- uses: base meta
--- seldom
function outbox.write(s)
  local last = math.max(tonumber(redis.call("HGET", meta, "outbox") or 0), s.now * 1000)
  for queue, entries in pairs(s.outbox) do
    for i = 1, #entries, outbox.FIELDS do
      last = last + 1
      entries[i] = string.format("%d", last)
    end
    batch.write("RPUSH", base .. "outbox:" .. queue, entries)
    redis.call("ZADD", base .. "ticks", "LT", s.now, outbox.OFFER .. queue) -- LT: older entries keep their earlier time
  end
  redis.call("HSET", meta, "outbox", string.format("%d", last))
  row.not_after(s.row, _row.NEXT_TICK, s.now)
  s.alarm, s.outbox = math.min(s.alarm or math.huge, s.now + _offer.BUSY), nil
end

-- The oldest entries for a queue, as many as one worker delivers at once: number, verb, id, text, …
--- (queue: str) -> table
--- uses: base
--- seldom
function outbox.oldest(queue)
  local key, entries, bytes = base .. "outbox:" .. queue, {}, 0
  while #entries < _outbox.VALUES do
    local piece = redis.call("LRANGE", key, #entries, #entries + _outbox.PIECE - 1)
    for i = 1, #piece, outbox.FIELDS do
      bytes = bytes + #piece[i + 3]
      if bytes > _outbox.BYTES and #entries > 0 then return entries end
      for j = i, i + outbox.FIELDS - 1 do entries[#entries + 1] = piece[j] end
    end
    if #piece < _outbox.PIECE then break end
  end
  return entries
end

-- Returns the queue for which a member of `ticks` offers entries, or nil.
--- (member: str) -> str | nil
--- inline
function outbox.queue_of(member)
  return string.match(member, "^outbox:(.*)$")
end

-- The lengths of the outbox, for an operator: queue, entries, ms for which the oldest one has waited, … Reads at most a
-- thousand members of `ticks`.
--- (s: table) -> table
--- uses: base
function outbox.lengths(s)
  local found = {}
  if s.row[_row.NEXT_TICK] == 0 then return found end
  local due = redis.call("ZRANGE", base .. "ticks", "-inf", s.now + _offer.AGAIN, "BYSCORE", "LIMIT", 0, 1000)
  for i = 1, #due do
    local queue_ = outbox.queue_of(due[i])
    if queue_ then
      local key = base .. "outbox:" .. queue_
      local first = redis.call("LINDEX", key, 0)
      found[#found + 1] = queue_
      found[#found + 1] = redis.call("LLEN", key) / outbox.FIELDS
      found[#found + 1] = first and math.max(0, s.now - math.floor(tonumber(first) / 1000)) or 0
    end
  end
  return found
end

-- Whether this release knows the verb.
--- (verb: str) -> bool
function outbox.knows(verb)
  return verb == "enqueue" or verb == outbox.EVENT or verb == _children.RUN or verb == _children.ANSWER
    or verb == _children.ABANDON
end

-- Executes one entry of the queue `sender`.
--- (s: table, sender: str, verb: str, id: str, text: str)
--- uses: base
function outbox.receive(s, sender, verb, id, text)
  slice.spend(s, 2)
  if verb == "enqueue" then
    job.enqueue_now(s, id, text)
  elseif verb == outbox.EVENT then
    flow.arrive(s, sender, id, text)
  elseif verb == _children.RUN then
    children.receive(s, sender, id, text)
  elseif verb == _children.ANSWER then
    children.arrive(s, sender, id, text)
  else
    children.abandon(s, id, sender, text)
  end
end

-- Receives entries that the queue `sender` has for this one, the oldest first: number, verb, id, text, … Those that it
-- has received before change nothing. Returns the number of the last one that it has received by now. The sender offers
-- the others again, if the entries are more than one script can receive.
--- keys: base meta
--- args: given: int, sender: str, entries: *
--- frame: change
function script.deliver(base, meta, given, sender, entries, ...)
  local last = tonumber(redis.call("HGET", base .. "inbox", sender) or 0)
  local latest = last
  for i = entries, #ARGV, outbox.FIELDS do
    if not outbox.knows(ARGV[i + 1]) then
      return redis.error_reply("PENSTOCKFORMAT outbox: entry '" .. ARGV[i + 1] .. "' of queue " .. sender
        .. ": a newer Penstock has stored it: update this one")
    end
  end
  for i = entries, #ARGV, outbox.FIELDS do
    local number = tonumber(ARGV[i])
    if number > latest then
      if latest > last and s.effort >= _slice.EFFORT then break end
      latest = number
      outbox.receive(s, sender, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
    end
  end
  if latest > last then redis.call("HSET", base .. "inbox", sender, string.format("%d", latest)) end
  if s.touched then flow.settle_touched(s, s.visits) end
  return latest
end

-- Removes the entries for a queue up to the number `last`, which have arrived there. Returns the next ones, as
-- `outbox.oldest`, which the caller delivers then.
--- keys: base meta
--- args: given: int, queue: str, last: int
--- flags: allow-oom
--- frame: change
function script.delivered(base, meta, given, queue, last)
  local key, n = base .. "outbox:" .. queue, 0
  local numbers = redis.call("LRANGE", key, 0, 0)
  while numbers[1] and tonumber(numbers[1]) <= last and n < _outbox.ENTRIES do
    redis.call("LPOP", key, outbox.FIELDS)
    n = n + 1
    numbers = redis.call("LRANGE", key, 0, 0)
  end
  local entries = outbox.oldest(queue)
  if #entries > 0 then
    redis.call("ZADD", base .. "ticks", s.now + _offer.AGAIN, outbox.OFFER .. queue)
  else
    redis.call("ZREM", base .. "ticks", outbox.OFFER .. queue)
  end
  schedule.refresh(s)
  return entries
end
