-- The scripts of a directory: the names of a group, searched by prefix.
--
--   meta         HASH    rules (name_rules.lua); names, ids, buckets: counts
--   names        ZSET    member (card.lua) -> 0, one for each word that finds the name; always read in byte order
--   ids:<n>      HASH    id -> card (card.lua); names that are their own id are not in it
--   weighed, top:        names with a weight: see rank.lua
--   replay: see core/idempotency.lua
--
-- Only scripts write these keys. All keys of a directory, or of one shard of it, are in one slot. They are made from
-- `base` (`{penstock:directory:guild:9}:`), which is declared and never exists (see queue.lua); `meta` is declared too.
-- `completion/storage.py` describes how the shards of a directory work together.

change = { LEAVING = "\3" } -- stands for the card of an id that is being removed

_most = { SEEKS = 1500 }

-- Returns the counts, for a change that ends with `entry.commit`.
--- () -> table
--- uses: base meta
function entry.begin()
  local held = redis.call("HMGET", meta, "names", "ids", "buckets")
  return {
    names = tonumber(held[1]) or 0, ids = tonumber(held[2]) or 0, buckets = tonumber(held[3]) or 1,
    weighed = redis.call("EXISTS", base .. "weighed") == 1,
  }
end

-- Stores the counts. If no name remains, deletes all keys, unless the directory has shards: `delete_if_empty` deletes
-- those.
--- (s: table, rules: str)
--- uses: base meta
function entry.commit(s, rules)
  if s.names == 0 and s.ids == 0 and string.find(rules, "shards=1", -8, true) then
    redis.call("DEL", meta)
  else
    index.grow(s)
    redis.call("HSET", meta, "rules", rules, "names", s.names, "ids", s.ids, "buckets", s.buckets)
  end
end

-- Adds members. `whole`: those of whole folds, one for each name; `later`: those of later words.
--- (s: table, whole: table, later: table)
--- uses: base
function entry.put(s, whole, later)
  s.names = s.names + entry.add(whole)
  entry.add(later)
end

-- Adds members. Returns how many are new.
--- (members: table) -> int
--- uses: base
function entry.add(members)
  local zeros, more = {}, 0
  for i = 1, #members do zeros[2 * i - 1], zeros[2 * i] = 0, members[i] end
  for i = 1, #zeros, 4000 do
    more = more + redis.call("ZADD", base .. "names", unpack(zeros, i, math.min(#zeros, i + 3999)))
  end
  return more
end

-- Adds the name of an id.
--- (s: table, new: str, id: str, weight: number | nil)
--- uses: base
function entry.place(s, new, id, weight)
  local members = card.members(new, id)
  if entry.add(members) > 0 then s.names = s.names + 1 end
  if weight then rank.put(s, members, weight) end
end

-- Removes the name of an id. Returns whether it was there, and its weight.
--- (s: table, old: str, id: str) -> bool, number | nil
--- uses: base
function entry.take(s, old, id)
  local members = card.members(old, id)
  local gone = redis.call("ZREM", base .. "names", unpack(members)) > 0
  if gone then s.names = s.names - 1 end
  return gone, gone and s.weighed and rank.drop(members) or nil
end

-- Stores names. Each replaces the name that its id had before. The arguments from `rest` on: `own` cards of names that
-- are their own ids; then triples of card, id, and the card that the id would have as a name. `known`: skip ids that do
-- not exist. Returns how many names were written.
--- keys: base meta
--- args: rules: str, known: int, own: int, rest: *
function script.save(base, meta, rules, known, own, rest, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  local whole, later, written = {}, {}, 0
  for i = rest, rest + own - 1 do
    local members = card.members(ARGV[i], "")
    local id = string.match(ARGV[i], "[^%z]*$")
    local old = index.take(s, id)
    if old then
      local _, weight = entry.take(s, old, id)
      if weight then rank.put(s, members, weight) end
    end
    if old or known == 0 or redis.call("ZSCORE", base .. "names", members[1]) then
      whole[#whole + 1] = members[1]
      for j = 2, #members do later[#later + 1] = members[j] end
    end
  end
  entry.put(s, whole, later)
  for i = rest + own, #ARGV, 3 do
    local new, id = ARGV[i], ARGV[i + 1]
    local old = s.ids > 0 and index.get(id, s.buckets)
    local was, weight = old, nil
    if old and old ~= new then
      was, weight = entry.take(s, old, id)
    elseif not old and s.names > s.ids then
      was, weight = entry.take(s, ARGV[i + 2], "")
    end
    if was or known == 0 then
      if old ~= new then
        index.set(s, id, new)
        entry.place(s, new, id, weight)
      end
      written = written + 1
    end
  end
  if #whole + written > 0 then entry.commit(s, rules) end
  return #whole + written
end

-- Removes ids: pairs of an id and the card that it would have as a name. Returns how many were there.
--- keys: base meta
--- args: caller: str, number: int, rules: str, pairs_: *
--- flags: allow-oom
function script.remove(base, meta, caller, number, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local s = entry.begin()
  local gone = 0
  for i = pairs_, #ARGV, 2 do
    local old = index.take(s, ARGV[i])
    if entry.take(s, old or ARGV[i + 1], old and ARGV[i] or "") then gone = gone + 1 end
  end
  if gone > 0 then entry.commit(s, rules) end
  return idempotency.keep(caller, number, gone)
end

-- Stores the rules in the first shard of a directory. That shard keeps them even while it has no names.
--- keys: base meta
--- args: rules: str
function script.save_rules(base, meta, rules)
  local other = name_rules.differing(rules)
  if other then return other end
  redis.call("HSET", meta, "rules", rules)
  return 1
end

-- Begins changes of ids, in their home shard. The arguments are pairs of an id and its new card: "" for a name that is
-- its own id, 0x03 for an id that is removed. The index keeps the old card after the new one, behind 0x02, until the
-- members of the old card are removed. Returns for each id its old cards, joined by 0x02.
-- This script may run in a full server, so that removals can begin: new names were refused before, by `save_rules`.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: allow-oom
function script.begin_changes(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local id, new = ARGV[i], ARGV[i + 1]
    local leaving = {}
    for old in string.gmatch(index.get(id, s.buckets) or "", "[^" .. separator.OLD .. "]+") do
      if old ~= new and old ~= change.LEAVING then leaving[#leaving + 1] = old end
    end
    reply[#reply + 1] = table.concat(leaving, separator.OLD)
    index.set(s, id, new .. (#leaving > 0 and separator.OLD or "") .. reply[#reply])
  end
  entry.commit(s, rules)
  return reply
end

-- Ends changes of ids: forgets their old cards. Returns for each id 1, or 0 if it has another new card by now.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: allow-oom
function script.end_changes(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local id, new = ARGV[i], ARGV[i + 1]
    local held = index.get(id, s.buckets)
    local still = held and string.match(held, "^[^" .. separator.OLD .. "]*") == new
    if still and (new == "" or new == change.LEAVING) then
      index.take(s, id)
    elseif still then
      index.set(s, id, new)
    end
    reply[#reply + 1] = still and 1 or 0
  end
  entry.commit(s, rules)
  return reply
end

-- Adds members. The home of their ids may be another shard. The first `n` members are of whole folds. Returns how many
-- names are new.
--- keys: base meta
--- args: rules: str, n: int, these: *
function script.add_members(base, meta, rules, n, these, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  local before, whole, later = s.names, {}, {}
  for i = these, these + n - 1 do whole[#whole + 1] = ARGV[i] end
  for i = these + n, #ARGV do later[#later + 1] = ARGV[i] end
  entry.put(s, whole, later)
  entry.commit(s, rules)
  return s.names - before
end

-- Removes members. The first `n` are of whole folds. Returns how many names were there.
--- keys: base meta
--- args: caller: str, number: int, rules: str, n: int, these: *
--- flags: allow-oom
function script.remove_members(base, meta, caller, number, rules, n, these, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local s = entry.begin()
  local before = s.names
  for i = these, #ARGV do
    local gone = redis.call("ZREM", base .. "names", ARGV[i])
    if i < these + n then s.names = s.names - gone end
    if s.weighed then rank.drop({ ARGV[i] }) end
  end
  if before > 0 then entry.commit(s, rules) end
  return idempotency.keep(caller, number, before - s.names)
end

-- Sets weights: triples of an id, the card that it would have as a name, and a weight; 0 takes the weight away. Returns
-- how many of the ids exist.
--- keys: base meta
--- args: rules: str, threes: *
function script.set_weights(base, meta, rules, threes, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  local known = 0
  for i = threes, #ARGV, 3 do
    local old = s.ids > 0 and index.get(ARGV[i], s.buckets)
    local members = card.members(old or ARGV[i + 1], old and ARGV[i] or "")
    if redis.call("ZSCORE", base .. "names", members[1]) then
      known = known + 1
      if tonumber(ARGV[i + 2]) > 0 then rank.put(s, members, tonumber(ARGV[i + 2])) else rank.drop(members) end
    end
  end
  return known
end

-- Sets weights of members: pairs of a member and its weight. Returns how many of the members exist.
--- keys: base meta
--- args: rules: str, pairs_: *
function script.set_member_weights(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local s, known = entry.begin(), 0
  for i = pairs_, #ARGV, 2 do
    local weight = tonumber(ARGV[i + 1])
    if redis.call("ZSCORE", base .. "names", ARGV[i]) then
      known = known + 1
      if weight > 0 then rank.put(s, { ARGV[i] }, weight) else rank.drop({ ARGV[i] }) end
    end
  end
  return known
end

-- Returns for each member minus its weight, "0" if it has none.
--- keys: base meta
--- args: rules: str, members: *
--- flags: no-writes
function script.member_weights(base, meta, rules, members, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local reply = {}
  for i = members, #ARGV do reply[#reply + 1] = redis.call("ZSCORE", base .. "top:", ARGV[i]) or "0" end
  return reply
end

-- Returns { member, minus weight, … }: members with a weight that begin with `prefix`, the heaviest first.
--- keys: base meta
--- args: rules: str, prefix: str, offset: int, limit: int
--- flags: no-writes
function script.heaviest(base, meta, rules, prefix, offset, limit)
  local other = name_rules.differing(rules)
  if other then return other end
  return rank.first(prefix, offset, limit)
end

-- Returns members whose beginning differs from the letters by one typo: a letter added, missing or replaced, or two
-- swapped. The first letter must match. For each beginning, one seek (a ZRANGE) finds the next letter that follows it
-- in the index; at most 1500 seeks.
--- keys: base meta
--- args: rules: str, limit: int, letters: *
--- flags: no-writes
function script.similar(base, meta, rules, limit, letters, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local names, left, found, seen = base .. "names", _most.SEEKS, {}, {}
  local typed = table.concat(ARGV, "", letters)
  local function read(low, high)
    left = left - 1
    local page = redis.call("ZRANGE", names, low, high, "BYLEX", "LIMIT", 0, limit)
    for i = 1, #page do
      if not seen[page[i]] then
        seen[page[i]] = true
        found[#found + 1] = page[i]
      end
    end
  end
  local function look(start)
    if string.sub(start, 1, #typed) == typed then return end
    if string.sub(typed, 1, #start) ~= start then return read("[" .. start, "(" .. start .. "\255") end
    read("[" .. start, "(" .. typed)
    read("(" .. typed .. "\255", "(" .. start .. "\255")
  end
  local head = ARGV[letters]
  for i = letters + 1, #ARGV do
    local here, rest = ARGV[i], table.concat(ARGV, "", i + 1)
    look(head .. rest)
    if i < #ARGV then look(head .. ARGV[i + 1] .. here .. table.concat(ARGV, "", i + 2)) end
    local low = "[" .. head
    while left > 0 do
      left = left - 1
      local at = redis.call("ZRANGE", names, low, "(" .. head .. "\255", "BYLEX", "LIMIT", 0, 1)[1]
      if not at then break end
      local letter = string.match(at, "^[^\128-\191][\128-\191]*", #head + 1) or "\255"
      if letter ~= separator.PART then
        if letter ~= here then look(head .. letter .. rest) end
        look(head .. letter .. here .. rest)
      end
      low = "(" .. head .. letter .. "\255"
    end
    head = head .. here
  end
  table.sort(found)
  return { unpack(found, 1, math.min(limit, #found)) }
end

-- Deletes the remaining keys if there is no name.
--- keys: base meta
--- args: rules: str
--- flags: allow-oom
function script.delete_if_empty(base, meta, rules)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  if s.names == 0 and s.ids == 0 then redis.call("DEL", meta) end
  return 1
end

-- Returns { card of the id }, { own } if that card is stored as a name that is its own id, or {}. Either argument may
-- be "".
--- keys: base meta
--- args: rules: str, id: str, own: str
--- flags: no-writes
function script.find_id(base, meta, rules, id, own)
  local other = name_rules.differing(rules)
  if other then return other end
  local s = entry.begin()
  local found = id ~= "" and s.ids > 0 and index.get(id, s.buckets)
  found = found and string.match(found, "^[^" .. separator.OLD .. "]*")
  if found and found ~= "" and found ~= change.LEAVING then return { found } end
  if own ~= "" and redis.call("ZSCORE", base .. "names", card.members(own, "")[1]) then return { own } end
  return {}
end

-- Returns the members between two bounds.
--- keys: base meta
--- args: rules: str, low: str, high: str, limit: int
--- flags: no-writes
function script.page(base, meta, rules, low, high, limit)
  local other = name_rules.differing(rules)
  if other then return other end
  return redis.call("ZRANGE", base .. "names", low, high, "BYLEX", "LIMIT", 0, limit)
end

-- Returns for each pair of bounds how many members are between them. For the bounds of all members, returns the number
-- of names instead.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: no-writes
function script.counts(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local all = ARGV[i] == "["
    reply[#reply + 1] = all and tonumber(redis.call("HGET", meta, "names") or 0)
      or redis.call("ZLEXCOUNT", base .. "names", ARGV[i], ARGV[i + 1])
  end
  return reply
end
