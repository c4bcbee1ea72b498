-- The index of one user's chats, and hints for the user. A hint says that a chat has new messages.
--
-- The index and each chat are in different slots, so no script changes both, and only the chat knows its members. The
-- chat is added to the index before the user joins it, and removed after the user has left. So the index never lacks a
-- chat, but may contain one that the user is not in: a process that finds such an entry removes it.
--
--          add, before the join           add, after the join
--   (none) ────────────────────▶ pending ─────────────────────▶ confirmed
--      ▲                            │ remove, if the join failed    │ remove, unless it was added again in the meantime
--      │                            │ or began over an hour ago     │
--      └────────────────────────────┴───────────────────────────────┘
--
--   mine     ZSET  chat -> server µs at which it was added; negative while it is pending
--   news     ZSET  chat -> server µs of its last hint; PX a day
--   waiting  ZSET  faces that wait for a hint (waiting.lua)
--
-- No two scores of `mine` are equal, nor two of `news`. So a page can begin after a score, and `remove` finds by its
-- score that an entry has changed.

_pending = { MICROS = 3600000000 } -- an hour; a join takes three round trips

-- Returns the time in microseconds since 1970. `given`: milliseconds, as in `clock.now`.
--- (given: int) -> int
function chats.micros(given)
  if given > 0 then return given * 1000 end
  return clock.micros()
end

-- Adds a hint for each of these chats, names[from] and those after it, and wakes a slice of the faces that wait for
-- one. Returns how many faces are left to wake.
--- (given: int, names: table, from: int) -> int
--- uses: base
function chats.hint(given, names, from)
  local last = redis.call("ZRANGE", base .. "news", 0, 0, "REV", "WITHSCORES")
  local score = math.max(chats.micros(given), (tonumber(last[2]) or 0) + 1)
  for i = from, #names do redis.call("ZADD", base .. "news", score + i - from, names[i]) end
  redis.call("PEXPIRE", base .. "news", 86400000)
  return waiting.report("waiting")
end

-- Adds a chat, as pending or confirmed; or changes it from one to the other. Returns its score.
--- keys: base mine
--- args: given: int, chat: str, pending: int
--- flags: allow-oom
function script.add(base, mine, given, chat, pending)
  local lowest = redis.call("ZRANGE", mine, 0, 0, "WITHSCORES")[2]
  local highest = redis.call("ZRANGE", mine, -1, -1, "WITHSCORES")[2]
  local score = math.max(chats.micros(given), math.abs(lowest or 0) + 1, math.abs(highest or 0) + 1)
  if pending == 1 then score = -score end
  redis.call("ZADD", mine, score, chat)
  if pending == 0 then chats.hint(given, { chat }, 1) end
  return redis.call("ZSCORE", mine, chat)
end

-- Removes a chat if it still has this score. A pending chat is kept for an hour, because its join may be under way;
-- `join_failed` 1 removes it at once. Returns 1 if the chat was removed.
--- keys: base mine
--- args: given: int, chat: str, score: str, join_failed: int
--- flags: allow-oom
function script.remove(base, mine, given, chat, score, join_failed)
  local found = tonumber(redis.call("ZSCORE", mine, chat) or 0)
  if found ~= tonumber(score) then return 0 end
  if found < 0 and join_failed == 0 and chats.micros(given) + found < _pending.MICROS then return 0 end
  redis.call("ZREM", base .. "news", chat)
  return redis.call("ZREM", mine, chat)
end

-- Returns a page of the index: { chat, score, … }. `after`: "-inf", or "(" and the last score of the page before.
--- keys: base mine
--- args: after: str, n: int
--- flags: no-writes
function script.page(base, mine, after, n)
  return redis.call("ZRANGE", mine, after, "+inf", "BYSCORE", "LIMIT", 0, n, "WITHSCORES")
end

-- Returns the score of a chat, or nothing.
--- keys: base mine
--- args: chat: str
--- flags: no-writes
function script.find(base, mine, chat)
  return redis.call("ZSCORE", mine, chat)
end

-- Adds a hint for each of these chats. Returns how many of the faces that wait are left to be woken.
--- keys: base mine
--- args: given: int, names: *
--- flags: allow-oom
function script.hint(base, mine, given, names, ...)
  return chats.hint(given, ARGV, names)
end

-- Wakes the next slice of the faces that wait for a hint. Returns how many are left.
--- keys: base mine
--- flags: allow-oom
function script.wake(base, mine)
  return waiting.wake("waiting")
end

-- Removes an address from those that wait.
--- keys: base mine
--- args: address: str
--- flags: allow-oom
function script.stop_waiting(base, mine, address)
  return waiting.remove("waiting", address)
end

-- Returns up to 500 chats with a hint after `since`, in the order of their hints: { the next `since`, chat, … }. If
-- there is no hint, registers `address` for `wait_ms`: the next hint notifies it.
--- keys: base mine
--- args: since: str, address: str, wait_ms: int
--- flags: allow-oom
function script.news(base, mine, since, address, wait_ms)
  waiting.wake("waiting")
  local found = redis.call("ZRANGE", base .. "news", "(" .. since, "+inf", "BYSCORE", "LIMIT", 0, 500, "WITHSCORES")
  local last, answer = since, {}
  for i = 1, #found, 2 do
    last = found[i + 1]
    answer[#answer + 1] = found[i]
  end
  if #found == 0 and wait_ms > 0 then
    waiting.add("waiting", address, wait_ms)
  elseif wait_ms == 0 then
    waiting.remove("waiting", address)
  end
  return { last, unpack(answer) }
end
