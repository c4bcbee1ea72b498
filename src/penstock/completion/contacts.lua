-- The scripts of contacts: the names that a user used last, or most often.
--
--   meta         HASH    rules (name_rules.lua); seq: number of the last use
--   used         ZSET    card (card.lua) -> number of its last use; with by="frequency", uses * 2^32 + this number
--   replay: see core/idempotency.lua
--
-- Only scripts write these keys. All keys of one user are in one slot. They are made from `base`
-- (`{penstock:contacts:user:17}:`), which is declared and never exists (see queue.lua); `meta` is declared too.

_uses = { UNIT = 4294967296, MOST = 1048575 } -- 2^32; 2^20 - 1, so that a score is exact
_surplus = { MOST = 100 } -- contacts that one call removes at most
_page = { CONTACTS = 1000, BYTES = 131072, SLICE = 100 } -- read at most by one call of a search; by one ZRANGE

-- Removes the last contacts if there are more than `most`. After the limit was lowered, this takes several calls.
--- (most: int)
--- uses: base
function contact.trim(most)
  local surplus = math.min(_surplus.MOST, redis.call("ZCARD", base .. "used") - most)
  if surplus > 0 then redis.call("ZREMRANGEBYRANK", base .. "used", 0, surplus - 1) end
end

-- Whether a text of this card begins with the typed text.
--- (card: str, text: table, all: str) -> bool
function contact.matches(card, text, all)
  local cut = string.find(card, separator.FIELD, 1, true)
  if not cut then return match.begins(string.lower(card), text, all) end -- a name that `lower` can fold
  if string.sub(card, 1, 1) ~= separator.WORD then return match.begins(card, text, all) end
  for piece in string.gmatch(string.sub(card, 1, cut - 1), "[^" .. separator.TEXT .. separator.WORD .. "]+") do
    if match.begins(piece, text, all) then return true end
  end
  return false
end

-- Moves a contact to the front. If there are more than `most` then, the last ones are removed.
--- keys: base meta
--- args: rules: str, most: int, card: str
--- frame: rules
function script.touch_recent(base, meta, rules, most, card)
  local last = redis.call("ZRANGE", base .. "used", -1, -1)[1]
  if last ~= card then -- else it is first already, for instance because the call was sent twice
    redis.call("HSET", meta, "rules", rules)
    redis.call("ZADD", base .. "used", redis.call("HINCRBY", meta, "seq", 1), card)
  end
  contact.trim(most)
  return 1
end

-- Counts one more use of a contact. If there are more than `most` then, the least used are removed, but never this one:
-- otherwise no new contact could enter a full list.
--- keys: base meta
--- args: caller: str, number: int, rules: str, most: int, card: str
--- frame: once
function script.touch_often(base, meta, caller, number, rules, most, card)
  local key = base .. "used"
  local before = tonumber(redis.call("ZSCORE", key, card))
  local uses = before and math.floor(before / _uses.UNIT) or 0
  redis.call("HSET", meta, "rules", rules)
  local seq = redis.call("HINCRBY", meta, "seq", 1)
  contact.trim(before and most or most - 1)
  redis.call("ZADD", key, math.min(uses + 1, _uses.MOST) * _uses.UNIT + seq, card)
  return 1
end

-- Removes a contact, and after the last one all keys. Returns 1 if the contact was there, else 0.
--- keys: base meta
--- args: caller: str, number: int, rules: str, card: str
--- flags: allow-oom
--- frame: once
function script.remove_contact(base, meta, caller, number, rules, card)
  local gone = redis.call("ZREM", base .. "used", card)
  if redis.call("EXISTS", base .. "used") == 0 then redis.call("DEL", meta) end
  return gone
end

-- Returns { next offset or -1, card, … }: of the thousand contacts from `offset` on, or fewer if they are long, those
-- whose fold begins with the typed text, best first. `all` and the arguments of the text: see match.lua.
--- keys: base meta
--- args: rules: str, offset: int, limit: int, all: str, typed: *
--- flags: no-writes
--- frame: rules
function script.find_contacts(base, meta, rules, offset, limit, all, typed, ...)
  local query, reply, bytes, finish = match.query(typed, all), { -1 }, 0, offset + _page.CONTACTS
  while #reply <= limit do
    if offset >= finish or bytes > _page.BYTES then
      reply[1] = offset
      break
    end
    local cards = redis.call("ZRANGE", base .. "used", offset, offset + _page.SLICE - 1, "REV")
    for i = 1, #cards do
      offset, bytes = offset + 1, bytes + #cards[i]
      if #reply <= limit and contact.matches(cards[i], query.main, all) then reply[#reply + 1] = cards[i] end
    end
    if #cards < _page.SLICE then break end
  end
  return reply
end
