-- The chats of one user: an index, and hints that there is news. Each chat is in a slot of its own and alone knows its members;
-- what stands here is never the truth, but always more than it: an entry is written before a join and taken away
-- after a leave, and who reads one that is not true, or no longer, strikes it out.
--
--          enlist pending          the chat is joined, enlist
--   (none) ──────────────▶ pending ──────────────────────────▶ sure
--      ▲                      │ strike, an hour later            │ strike, unless it was enlisted anew meanwhile
--      └──────────────────────┴──────────────────────────────────┘
--
--   mine     ZSET  chat -> server µs at which it was enlisted, no two alike; negative while pending
--   news     ZSET  chat -> server µs of the last hint, no two alike; PX a day
--   waiting  ZSET  address -> 0; PX
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

-- Returns the entry's score.
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

-- Only if it is as it was read, and not about to be joined.
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

-- chat, score, …: a page of the index, from behind `after`.
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

-- { the last hint's µs or `since`, chat, … }: hints since then. If there is none: told at `address` within `stay_ms`.
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
