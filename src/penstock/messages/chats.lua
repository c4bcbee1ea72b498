-- The chats of one user: an index, and hints about chats with news. Each chat lives in a slot of its own, and only the chat
-- knows its members. So the index may list a chat too many, but never one too few: an entry is added before a join and removed
-- after a leave. A reader of the index that finds a wrong entry removes it.
--
--          enlist pending          the chat is joined, enlist
--   (none) ──────────────▶ pending ──────────────────────────▶ sure
--      ▲                      │ strike, an hour later            │ strike, unless it was enlisted again meanwhile
--      └──────────────────────┴──────────────────────────────────┘
--
--   mine     ZSET  chat -> server µs at which it was enlisted, all different; negative while pending
--   news     ZSET  chat -> server µs of the last hint, all different; PX a day
--   waiting  ZSET  address of a process that waits for hints -> 0; PX
--   inbox: (wake)

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

-- Add an entry. Returns its score.
--- keys: base mine
--- args: given: int, chat: str, pending: int
--- flags: allow-oom
function script.enlist(base, mine, given, chat, pending)
  local ends = { redis.call("ZRANGE", mine, 0, 0, "WITHSCORES")[2], redis.call("ZRANGE", mine, -1, -1, "WITHSCORES")[2] }
  local score = math.max(chats.micros(given), math.abs(ends[1] or 0) + 1, math.abs(ends[2] or 0) + 1)
  if pending == 1 then score = -score end
  redis.call("ZADD", mine, score, chat)
  if pending == 0 then chats.hint(given, { chat }, 1) end
  return redis.call("ZSCORE", mine, chat)
end

-- Remove an entry that has not changed since it was read. A pending one is kept for an hour, unless `sure` is 1: its join may
-- still be under way.
--- keys: base mine
--- args: given: int, chat: str, score: str, sure: int
--- flags: allow-oom
function script.strike(base, mine, given, chat, score, sure)
  local found = tonumber(redis.call("ZSCORE", mine, chat) or 0)
  if found ~= tonumber(score) then return 0 end
  if found < 0 and sure == 0 and chats.micros(given) + found < 3600000000 then return 0 end
  redis.call("ZREM", base .. "news", chat)
  return redis.call("ZREM", mine, chat)
end

-- A page of the index, after the score `after`: chat, score, …
--- keys: base mine
--- args: after: str, n: int
--- flags: no-writes
function script.page_of_chats(base, mine, after, n)
  return redis.call("ZRANGE", mine, after, "+inf", "BYSCORE", "LIMIT", 0, n, "WITHSCORES")
end

--- keys: base mine
--- args: chat: str
--- flags: no-writes
function script.find(base, mine, chat)
  return redis.call("ZSCORE", mine, chat)
end

--- keys: base mine
--- args: given: int, names: *
--- flags: allow-oom
function script.hint(base, mine, given, names, ...)
  chats.hint(given, ARGV, names)
  return 1
end

-- The chats with a hint after `since`. If there is no hint, `address` is notified of the next one within `stay_ms`.
-- { µs of the last hint or `since`, chat, … }
--- keys: base mine
--- args: since: str, address: str, stay_ms: int
--- flags: allow-oom
function script.news(base, mine, since, address, stay_ms)
  local found = redis.call("ZRANGE", base .. "news", "(" .. since, "+inf", "BYSCORE", "LIMIT", 0, 500, "WITHSCORES")
  local answer = { since }
  for i = 1, #found, 2 do
    answer[1] = found[i + 1]
    answer[#answer + 1] = found[i]
  end
  if #found == 0 and stay_ms > 0 then
    redis.call("ZADD", base .. "waiting", 0, address)
    if redis.call("PTTL", base .. "waiting") < stay_ms then redis.call("PEXPIRE", base .. "waiting", stay_ms) end
  elseif address ~= "" then
    redis.call("ZREM", base .. "waiting", address)
  end
  return answer
end
