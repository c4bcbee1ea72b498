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
--
-- The *own card* of an id is the card of the name that equals the id. A name that is its own id has this card.

change = { LEAVING = "\3" } -- stands for the card of an id that is being removed

_most = { SEEKS = 1500 }

-- Returns the state of the directory: its counts, and whether names have weights. `entry.commit` stores the counts.
--- () -> table
--- uses: base meta
function entry.begin()
  local held = redis.call("HMGET", meta, "names", "ids", "buckets")
  return {
    names = tonumber(held[1]) or 0, ids = tonumber(held[2]) or 0, buckets = tonumber(held[3]) or 1,
    weighed = redis.call("EXISTS", base .. "weighed") == 1,
  }
end

-- Stores the counts. If no name remains, deletes `meta`, the last key; with shards, `delete_if_empty` does that.
--- (state: table, rules: str)
--- uses: base meta
function entry.commit(state, rules)
  if state.names == 0 and state.ids == 0 and string.find(rules, "shards=1", -8, true) then
    redis.call("DEL", meta)
  else
    index.grow(state)
    redis.call("HSET", meta, "rules", rules, "names", state.names, "ids", state.ids, "buckets", state.buckets)
  end
end

-- Adds names, by their members. `whole`: those of whole folds, one for each name; `later`: those of later words.
--- (state: table, whole: table, later: table)
--- uses: base
function entry.add_names(state, whole, later)
  state.names = state.names + entry.add(whole)
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
--- (state: table, new: str, id: str, weight: number | nil)
--- uses: base
function entry.add_name(state, new, id, weight)
  local members = card.members(new, id)
  if entry.add(members) > 0 then state.names = state.names + 1 end
  if weight then rank.put(state, members, weight) end
end

-- Removes the name of an id. Returns whether it was there, and its weight.
--- (state: table, old: str, id: str) -> bool, number | nil
--- uses: base
function entry.remove_name(state, old, id)
  local members = card.members(old, id)
  local gone = redis.call("ZREM", base .. "names", unpack(members)) > 0
  if gone then state.names = state.names - 1 end
  return gone, gone and state.weighed and rank.drop(members) or nil
end

-- Stores names. Each replaces the name that its id had before. Returns how many names were written.
-- existing_only  1: skip ids that do not exist
-- own            how many of the names are their own ids
-- rest           the cards of these names; then, for each other name, its card, its id, and the own card of the id
--- keys: base meta
--- args: rules: str, existing_only: int, own: int, rest: *
function script.save(base, meta, rules, existing_only, own, rest, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  local whole, later, written = {}, {}, 0
  for i = rest, rest + own - 1 do
    local members = card.members(ARGV[i], "")
    local id = string.match(ARGV[i], "[^%z]*$")
    local old = index.remove(state, id)
    if old then
      local _, weight = entry.remove_name(state, old, id)
      if weight then rank.put(state, members, weight) end
    end
    if old or existing_only == 0 or redis.call("ZSCORE", base .. "names", members[1]) then
      whole[#whole + 1] = members[1]
      for j = 2, #members do later[#later + 1] = members[j] end
    end
  end
  entry.add_names(state, whole, later)
  for i = rest + own, #ARGV, 3 do
    local new, id = ARGV[i], ARGV[i + 1]
    local old = state.ids > 0 and index.get(id, state.buckets)
    local was, weight = old, nil
    if old and old ~= new then
      was, weight = entry.remove_name(state, old, id)
    elseif not old and state.names > state.ids then -- some names are their own ids
      was, weight = entry.remove_name(state, ARGV[i + 2], "")
    end
    if was or existing_only == 0 then
      if old ~= new then
        index.set(state, id, new)
        entry.add_name(state, new, id, weight)
      end
      written = written + 1
    end
  end
  if #whole + written > 0 then entry.commit(state, rules) end
  return #whole + written
end

-- Removes ids. The arguments are pairs of an id and its own card. Returns how many ids were there.
--- keys: base meta
--- args: caller: str, number: int, rules: str, pairs_: *
--- flags: allow-oom
function script.remove(base, meta, caller, number, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local state = entry.begin()
  local gone = 0
  for i = pairs_, #ARGV, 2 do
    local old = index.remove(state, ARGV[i])
    if entry.remove_name(state, old or ARGV[i + 1], old and ARGV[i] or "") then gone = gone + 1 end
  end
  if gone > 0 then entry.commit(state, rules) end
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
-- its own id, 0x03 for an id that is removed. Until the members of the old cards are removed, the index stores the old
-- cards after the new one, separated by 0x02. Returns for each id its old cards, joined by 0x02.
-- This script runs even if the server is full, so that removals can begin. A change that adds a name calls `save_rules`
-- first, which a full server refuses.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: allow-oom
function script.begin_changes(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local id, new = ARGV[i], ARGV[i + 1]
    local leaving = {}
    for old in string.gmatch(index.get(id, state.buckets) or "", "[^" .. separator.OLD .. "]+") do
      if old ~= new and old ~= change.LEAVING then leaving[#leaving + 1] = old end
    end
    reply[#reply + 1] = table.concat(leaving, separator.OLD)
    index.set(state, id, new .. (#leaving > 0 and separator.OLD or "") .. reply[#reply])
  end
  entry.commit(state, rules)
  return reply
end

-- Ends changes of ids: removes their old cards. The arguments are those of `begin_changes`. Returns for each id 1, or 0
-- if another change of it has begun since.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: allow-oom
function script.end_changes(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local id, new = ARGV[i], ARGV[i + 1]
    local held = index.get(id, state.buckets)
    local still = held and string.match(held, "^[^" .. separator.OLD .. "]*") == new
    if still and (new == "" or new == change.LEAVING) then
      index.remove(state, id)
    elseif still then
      index.set(state, id, new)
    end
    reply[#reply + 1] = still and 1 or 0
  end
  entry.commit(state, rules)
  return reply
end

-- Adds members. The home of their ids may be another shard. The first `n` are those of whole folds. Returns how many
-- names are new.
--- keys: base meta
--- args: rules: str, n: int, members: *
function script.add_members(base, meta, rules, n, members, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  local before, whole, later = state.names, {}, {}
  for i = members, members + n - 1 do whole[#whole + 1] = ARGV[i] end
  for i = members + n, #ARGV do later[#later + 1] = ARGV[i] end
  entry.add_names(state, whole, later)
  entry.commit(state, rules)
  return state.names - before
end

-- Removes members. The first `n` are those of whole folds. Returns how many names were there.
--- keys: base meta
--- args: caller: str, number: int, rules: str, n: int, members: *
--- flags: allow-oom
function script.remove_members(base, meta, caller, number, rules, n, members, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local past = idempotency.replay(caller, number)
  if past then return past end
  local state = entry.begin()
  local before = state.names
  for i = members, #ARGV do
    local gone = redis.call("ZREM", base .. "names", ARGV[i])
    if i < members + n then state.names = state.names - gone end
    if state.weighed then rank.drop({ ARGV[i] }) end
  end
  if before > 0 then entry.commit(state, rules) end
  return idempotency.keep(caller, number, before - state.names)
end

-- Sets weights. The arguments are triples of an id, its own card, and a weight; 0 removes the weight. Returns how many
-- of the ids exist.
--- keys: base meta
--- args: rules: str, triples: *
function script.set_weights(base, meta, rules, triples, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  local known = 0
  for i = triples, #ARGV, 3 do
    local old = state.ids > 0 and index.get(ARGV[i], state.buckets)
    local members = card.members(old or ARGV[i + 1], old and ARGV[i] or "")
    if redis.call("ZSCORE", base .. "names", members[1]) then
      known = known + 1
      if tonumber(ARGV[i + 2]) > 0 then rank.put(state, members, tonumber(ARGV[i + 2])) else rank.drop(members) end
    end
  end
  return known
end

-- Sets weights of members. The arguments are pairs of a member and its weight. Returns how many of the members exist.
--- keys: base meta
--- args: rules: str, pairs_: *
function script.set_member_weights(base, meta, rules, pairs_, ...)
  local other = name_rules.differing(rules)
  if other then return other end
  local state, known = entry.begin(), 0
  for i = pairs_, #ARGV, 2 do
    local weight = tonumber(ARGV[i + 1])
    if redis.call("ZSCORE", base .. "names", ARGV[i]) then
      known = known + 1
      if weight > 0 then rank.put(state, { ARGV[i] }, weight) else rank.drop({ ARGV[i] }) end
    end
  end
  return known
end

-- Returns the negative weight of each member, "0" if it has no weight.
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

-- Returns { member, negative weight, … }: the members with a weight that begin with `prefix`, the heaviest first.
--- keys: base meta
--- args: rules: str, prefix: str, offset: int, limit: int
--- flags: no-writes
function script.heaviest(base, meta, rules, prefix, offset, limit)
  local other = name_rules.differing(rules)
  if other then return other end
  return rank.first(prefix, offset, limit)
end

-- Returns members whose beginning differs by one typo from the letters typed: a letter added, missing or replaced, or
-- two swapped. The first letter must match. `letters`: one argument for each letter.
-- For each beginning of the typed text, this finds the letters that follow it in the index, with one ZRANGE (a seek) for
-- each letter. Reading a variant takes one or two more. After 1500 seeks, no further letter is tried.
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
  -- Reads the members that begin with a variant, but not those that begin with the typed text.
  local function read_variant(variant)
    if string.sub(variant, 1, #typed) == typed then return end
    if string.sub(typed, 1, #variant) ~= variant then return read("[" .. variant, "(" .. variant .. "\255") end
    read("[" .. variant, "(" .. typed)
    read("(" .. typed .. "\255", "(" .. variant .. "\255")
  end
  local head = ARGV[letters]
  for i = letters + 1, #ARGV do
    local here, rest = ARGV[i], table.concat(ARGV, "", i + 1)
    read_variant(head .. rest)
    if i < #ARGV then read_variant(head .. ARGV[i + 1] .. here .. table.concat(ARGV, "", i + 2)) end
    local low = "[" .. head
    while left > 0 do
      left = left - 1
      local at = redis.call("ZRANGE", names, low, "(" .. head .. "\255", "BYLEX", "LIMIT", 0, 1)[1]
      if not at then break end
      local letter = string.match(at, "^[^\128-\191][\128-\191]*", #head + 1) or "\255"
      if letter ~= separator.PART then
        if letter ~= here then read_variant(head .. letter .. rest) end
        read_variant(head .. letter .. here .. rest)
      end
      low = "(" .. head .. letter .. "\255"
    end
    head = head .. here
  end
  table.sort(found)
  return { unpack(found, 1, math.min(limit, #found)) }
end

-- Deletes `meta`, the last key, if there is no name.
--- keys: base meta
--- args: rules: str
--- flags: allow-oom
function script.delete_if_empty(base, meta, rules)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  if state.names == 0 and state.ids == 0 then redis.call("DEL", meta) end
  return 1
end

-- Finds the card of an id. Returns { card }; { own_card } if the name is its own id; {} if the id does not exist.
-- The id and its own card may belong to different shards. Then the shard of the id gets "" for `own_card`,
-- and the other shard gets "" for `id`.
--- keys: base meta
--- args: rules: str, id: str, own_card: str
--- flags: no-writes
function script.find_id(base, meta, rules, id, own_card)
  local other = name_rules.differing(rules)
  if other then return other end
  local state = entry.begin()
  local found = id ~= "" and state.ids > 0 and index.get(id, state.buckets)
  found = found and string.match(found, "^[^" .. separator.OLD .. "]*")
  if found and found ~= "" and found ~= change.LEAVING then return { found } end
  if own_card == "" or not redis.call("ZSCORE", base .. "names", card.members(own_card, "")[1]) then return {} end
  return { own_card }
end

-- Returns the first `limit` members between two bounds, which are in the form of ZRANGE BYLEX.
--- keys: base meta
--- args: rules: str, low: str, high: str, limit: int
--- flags: no-writes
function script.page(base, meta, rules, low, high, limit)
  local other = name_rules.differing(rules)
  if other then return other end
  return redis.call("ZRANGE", base .. "names", low, high, "BYLEX", "LIMIT", 0, limit)
end

-- Returns the number of members between each pair of bounds. For the bounds of all members, counts names instead.
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
