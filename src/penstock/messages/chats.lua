-- The chats of one user: an index of them, and hints that some have news. Each chat is in a slot of its own, and only
-- the chat knows its members. The index may contain a stale entry, but never lacks one: an entry is added before a join
-- and removed after a leave. A reader that finds a wrong entry removes it.
--
--          add, pending            add, after the join
--   (none) ──────────────▶ pending ──────────────────────────▶ sure
--      ▲                      │ remove, an hour later            │ remove, unless it was added again in the meantime
--      └──────────────────────┴──────────────────────────────────┘
--
--   mine     ZSET  chat -> server µs at which it was added, all different; negative while it is pending
--   news     ZSET  chat -> server µs of the last hint, all different; PX a day
--   waiting  ZSET  address -> 0; PX
--   inbox: (notify)

_pending = { MICROS = 3600000000 } -- an hour

--- (given: int) -> int
function chats.micros(given)
  if given > 0 then return given * 1000 end
  return clock.micros()
end

--- (given: int, names: table, from: int)
--- uses: base
function chats.hint(given, names, from)
  local last = redis.call("ZRANGE", base .. "news", 0, 0, "REV", "WITHSCORES")
  local score = math.max(chats.micros(given), (tonumber(last[2]) or 0) + 1)
  for i = from, #names do redis.call("ZADD", base .. "news", score + i - from, names[i]) end
  redis.call("PEXPIRE", base .. "news", 86400000)
  local found = redis.call("ZRANGE", base .. "waiting", 0, 99)
  for i = 1, #found do notify.send(found[i], "0") end
  if #found > 0 then redis.call("ZREM", base .. "waiting", unpack(found)) end
end

-- Adds a chat, or confirms it. Returns its score.
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

-- Removes a chat, if it has this score still. A pending chat is kept for an hour, unless `sure` is 1: its join may be
-- under way. Returns 1 if it was removed.
--- keys: base mine
--- args: given: int, chat: str, score: str, sure: int
--- flags: allow-oom
function script.remove(base, mine, given, chat, score, sure)
  local found = tonumber(redis.call("ZSCORE", mine, chat) or 0)
  if found ~= tonumber(score) then return 0 end
  if found < 0 and sure == 0 and chats.micros(given) + found < _pending.MICROS then return 0 end
  redis.call("ZREM", base .. "news", chat)
  return redis.call("ZREM", mine, chat)
end

-- A page of the index: chat, score, …
--- keys: base mine
--- args: after: str, n: int
--- flags: no-writes
function script.page(base, mine, after, n)
  return redis.call("ZRANGE", mine, after, "+inf", "BYSCORE", "LIMIT", 0, n, "WITHSCORES")
end

--- keys: base mine
--- args: chat: str
--- flags: no-writes
function script.find(base, mine, chat)
  return redis.call("ZSCORE", mine, chat)
end

-- These chats have news.
--- keys: base mine
--- args: given: int, names: *
--- flags: allow-oom
function script.hint(base, mine, given, names, ...)
  chats.hint(given, ARGV, names)
  return 1
end

-- Hints since `since`: { the last hint's µs, or `since`, chat, … }. Without a hint, `address` is notified within
-- `wait_ms`.
--- keys: base mine
--- args: since: str, address: str, wait_ms: int
--- flags: allow-oom
function script.news(base, mine, since, address, wait_ms)
  local found = redis.call("ZRANGE", base .. "news", "(" .. since, "+inf", "BYSCORE", "LIMIT", 0, 500, "WITHSCORES")
  local last, answer = since, {}
  for i = 1, #found, 2 do
    last = found[i + 1]
    answer[#answer + 1] = found[i]
  end
  if #found == 0 and wait_ms > 0 then
    redis.call("ZADD", base .. "waiting", 0, address)
    if redis.call("PTTL", base .. "waiting") < wait_ms then redis.call("PEXPIRE", base .. "waiting", wait_ms) end
  elseif address ~= "" then
    redis.call("ZREM", base .. "waiting", address)
  end
  return { last, unpack(answer) }
end
