-- Receipts: calls that a program keeps in a store of its own until a queue has accepted them, such as a table of a
-- database. It sends a call as often as it likes, from any process, and the queue accepts it once.
--
--   receipts  ZSET  number of a call, in 8 bytes -> when it was accepted, server ms; PX, a week
--   beat      STRING  of a store, in a slot of its own: the highest number that it has reported; PX
--   meta      HASH  receipts: until when, in server ms, receipts were dropped whose calls may be sent again
--
-- The sender draws the number at random when it stores the call. After it has deleted the call from its store, it
-- returns the receipt, which is dropped a minute later. The minute is for a store that is reset to an earlier state.
--
-- A call is refused as too old if the queue may have had a receipt for it and dropped it: after a week, or if there
-- were more than a million. Its age comes from the clock of the store, so the two clocks may differ.

receipt = { ACCEPTED = "a", KNOWN = "k", TOO_OLD = "o", KEPT = 604800000 } -- KEPT: ms, a week

-- MOST: receipts of a queue; TRIMMED: how many a call drops, twice what it adds; GRACE, BEAT_KEPT: ms
_receipt = { MOST = 1000000, TRIMMED = 500, GRACE = 60000, BEAT_KEPT = 8640000000 }

-- Drops receipts that are over, and the oldest if there are too many.
--- (s: table)
--- uses: base meta
function receipts.trim(s)
  local key = base .. "receipts"
  local over = redis.call("ZRANGE", key, "-inf", s.now - receipt.KEPT, "BYSCORE", "LIMIT", 0, _receipt.TRIMMED)
  if #over > 0 then redis.call("ZREM", key, unpack(over)) end
  local surplus = redis.call("ZCARD", key) - _receipt.MOST
  if surplus > 0 then
    local oldest = redis.call("ZPOPMIN", key, math.min(surplus, _receipt.TRIMMED))
    redis.call("HSET", meta, "receipts", string.format("%d", oldest[#oldest]))
  end
  redis.call("PEXPIRE", key, receipt.KEPT)
end

-- Accepts calls: number, age in ms, id, draft, … Send at most 250. Returns a letter for each: accepted, known (it was
-- accepted before, or the call lists it twice) or too old. Returns "SPLIT" if the queue has shards; then nothing was
-- written.
--- keys: base meta
--- args: given: int, calls: *
--- frame: read
function script.accept(base, meta, given, calls, ...)
  local facts = redis.call("HMGET", meta, "shards", "receipts")
  if facts[1] and tonumber(string.match(facts[1], "^%S+ (%d+)")) > 1 then return "SPLIT" end
  local numbers, letters, new, seen, jobs = {}, {}, {}, {}, {}
  for i = calls, #ARGV, 4 do numbers[#numbers + 1] = ARGV[i] end
  local known = redis.call("ZMSCORE", base .. "receipts", unpack(numbers))
  local forgotten = math.max(s.now - receipt.KEPT, tonumber(facts[2] or 0))
  for i = 1, #numbers do
    local at, number = calls + 4 * (i - 1), numbers[i]
    if known[i] or seen[number] then
      letters[i] = receipt.KNOWN
    elseif s.now - tonumber(ARGV[at + 1]) < forgotten then
      letters[i] = receipt.TOO_OLD
    else
      letters[i], seen[number] = receipt.ACCEPTED, true
      new[#new + 1], new[#new + 2] = s.now, number
      jobs[#jobs + 1], jobs[#jobs + 2] = ARGV[at + 2], ARGV[at + 3]
    end
  end
  if #jobs > 0 then
    queue.add_jobs(s, "", 0, jobs, 1)
    redis.call("ZADD", base .. "receipts", unpack(new))
    receipts.trim(s)
  end
  return table.concat(letters)
end

-- Marks receipts of calls that were deleted from their store: they are dropped after a minute.
--- keys: base meta
--- args: given: int, numbers: *
--- flags: allow-oom
--- frame: read
function script.forget_receipts(base, meta, given, numbers, ...)
  local until_ = string.format("%d", s.now - receipt.KEPT + _receipt.GRACE)
  local marks = { "XX" }
  for i = numbers, #ARGV do marks[#marks + 1], marks[#marks + 2] = until_, ARGV[i] end
  redis.call("ZADD", base .. "receipts", unpack(marks))
end

-- The beat of a store is a number that rises while it is in use, first in the store and then here. So a store that
-- reports a lower one was reset to an earlier state. Keeps the highest number, and returns it.
--- keys: key
--- args: number: int
function script.beat(key, number)
  local highest = math.max(number, tonumber(redis.call("GET", key) or 0))
  redis.call("SET", key, string.format("%d", highest), "PX", _receipt.BEAT_KEPT)
  return highest
end
