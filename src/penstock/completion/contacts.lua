-- The scripts of contacts: the names that a user used last, or most often.
--
--   meta         HASH    rules (name_rules.lua); seq: number of the last use
--   recent       LIST    with by="recency": cards (card.lua), the last used first
--   often        ZSET    with by="frequency": card -> uses * 2^32 + number of the last use
--   replay: see core/idempotency.lua
--
-- Only scripts write these keys. All keys of one user are in one slot. They are made from `base`
-- (`{penstock:contacts:user:17}:`), which is declared and never exists (see queue.lua); `meta` is declared too.

_uses = { UNIT = 4294967296, MOST = 1048575 } -- 2^32; 2^20 - 1, so that a score is exact

-- Moves a contact to the front. Above `most` contacts the last ones are removed.
--- keys: base meta
--- args: rules: str, most: int, card: str
function script.touch_recent(base, meta, rules, most, card)
  local other = name_rules.differing(rules)
  if other then return other end
  redis.call("HSET", meta, "rules", rules)
  redis.call("LREM", base .. "recent", 0, card)
  redis.call("LPUSH", base .. "recent", card)
  redis.call("LTRIM", base .. "recent", 0, most - 1)
  return 1
end

-- Counts one more use. Above `most` contacts, the least used are removed, but never this one: otherwise no new contact
-- could enter a full list.
--- keys: base meta
--- args: caller: str, number: int, rules: str, most: int, card: str
function script.touch_often(base, meta, caller, number, rules, most, card)
  local other = name_rules.differing(rules)
  if other then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local key = base .. "often"
  local before = tonumber(redis.call("ZSCORE", key, card))
  local uses = before and math.floor(before / _uses.UNIT) or 0
  redis.call("HSET", meta, "rules", rules)
  local seq = redis.call("HINCRBY", meta, "seq", 1)
  if not before then redis.call("ZREMRANGEBYRANK", key, 0, -most) end
  redis.call("ZADD", key, math.min(uses + 1, _uses.MOST) * _uses.UNIT + seq, card)
  return idempotency.keep(caller, number, 1)
end

-- Removes a contact. After the last one, deletes all keys. Returns 1 if the contact was there.
--- keys: base meta
--- args: caller: str, number: int, rules: str, card: str
--- flags: allow-oom
function script.remove_contact(base, meta, caller, number, rules, card)
  local other = name_rules.differing(rules)
  if other then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local gone = redis.call("LREM", base .. "recent", 0, card) + redis.call("ZREM", base .. "often", card)
  if redis.call("EXISTS", base .. "recent", base .. "often") == 0 then redis.call("DEL", meta) end
  return idempotency.keep(caller, number, gone)
end

-- Returns { next offset or -1, card, … }: of the thousand contacts from `offset` on, those whose fold begins with
-- `prefix`, best first.
--- keys: base meta
--- args: rules: str, prefix: str, offset: int, limit: int
--- flags: no-writes
function script.find_contacts(base, meta, rules, prefix, offset, limit)
  local other = name_rules.differing(rules)
  if other then return other end
  local cards = redis.call("LRANGE", base .. "recent", offset, offset + 999)
  if #cards == 0 then cards = redis.call("ZRANGE", base .. "often", offset, offset + 999, "REV") end
  local reply, size = { #cards == 1000 and offset + 1000 or -1 }, #prefix
  for i = 1, #cards do
    if #reply > limit then break end
    -- A card begins with its fold, or is a name that `lower` can fold.
    local fold = string.find(cards[i], separator.PART, 1, true) and cards[i] or string.lower(cards[i])
    if string.sub(fold, 1, size) == prefix then
      reply[#reply + 1] = cards[i]
    end
  end
  return reply
end
