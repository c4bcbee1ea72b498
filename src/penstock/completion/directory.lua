-- The scripts that change a directory: the names of a group. search.lua has those that read it.
--
--   meta         HASH    rules (name_rules.lua); names, ids, buckets: counts
--   names        ZSET    element (card.lua) -> 0, one for each tail that finds the name; always read in byte order
--   ids:<n>      HASH    id -> card (card.lua); names that are their own id are not in it
--   weighed, top:        names with a weight: see rank.lua
--   payloads             names with a payload: see facts.lua
--   replay: see core/idempotency.lua
--
-- Only scripts write these keys. All keys of a directory, or of one shard of it, are in one slot. They are made from
-- `base` (`{penstock:directory:guild:9}:`), which is declared and never exists (see queue.lua); `meta` is declared too.
-- `completion/storage.py` describes how the shards of a directory work together.
--
-- The *own card* of an id is the card of the name that equals the id. A name that is its own id has this card.
--
-- No call holds the server up for more than some milliseconds: a caller sends at most 64 KiB of names, and a script
-- that has done `_work.UNITS` of work leaves the remaining names alone. It returns how many it has handled; the caller
-- sends the others again.

change = { LEAVING = "\3" } -- used instead of a card for an id that is being removed

_units = { NAME = 5, MEMBER = 2, BYTES = 512 } -- the work for a name, and for each of its elements; bytes for one more

-- Returns the state of the directory: its counts, whether names have weights or payloads, and the work done by this
-- call. `entry.commit` stores the counts.
--- () -> table
--- uses: base meta
function entry.begin()
  local held = redis.call("HMGET", meta, "names", "ids", "buckets")
  local state = {
    names = tonumber(held[1]) or 0, ids = tonumber(held[2]) or 0, buckets = tonumber(held[3]) or 1, level = 1,
    weighed = redis.call("EXISTS", base .. "weighed") == 1, payloads = redis.call("EXISTS", base .. "payloads") == 1,
    work = 0, built = false,
  }
  while 2 * state.level <= state.buckets do state.level = 2 * state.level end
  return state
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

-- Adds elements, given as pairs of 0 (the score) and an element. Returns how many are new.
--- (elements: table) -> int
--- uses: base
function entry.add(elements)
  if #elements == 0 then return 0 end
  return redis.call("ZADD", base .. "names", unpack(elements))
end

-- Removes the name of an id. Returns whether it was there, and the changes (facts.lua) that give another name of the id
-- its weight and its payload.
--- (state: table, old: str, id: str) -> bool, str, str
--- uses: base
function entry.remove_name(state, old, id)
  local elements, rest = card.elements(old, id)
  state.work = state.work + _units.NAME + (_units.MEMBER + #elements[1] / _units.BYTES) * #elements
  if redis.call("ZREM", base .. "names", unpack(elements)) == 0 then return false, "", "" end
  state.names = state.names - 1
  return true, facts.drop(state, elements, rest)
end

-- Returns the elements and the rest of an id, or nil if it does not exist.
--- (state: table, id: str, own: str) -> table | nil, str | nil
--- uses: base
function entry.find(state, id, own)
  local held = index.get(state, id)
  local elements, rest = card.elements(held or own, held and id or "")
  if redis.call("ZSCORE", base .. "names", elements[1]) then return elements, rest end
end

-- Stores names. Each replaces the name that its id had before, and keeps the weight and the payload of the id. Returns
-- how many names were handled, and how many of them were written.
-- existing_only  1: skip ids that do not exist
-- names          five arguments each: card, id ("" for a name that is its own id), own card of the id, change of the
--                weight, change of the payload
--- keys: base meta
--- args: rules: str, existing_only: int, names: *
--- frame: rules
function script.save(base, meta, rules, existing_only, names, ...)
  local state = entry.begin()
  local some_own = state.names > state.ids -- some names are their own ids
  local whole, later, written, done = {}, {}, 0, 0
  local may_be_new = existing_only == 0 -- whether the next id is probably new, as the one before was
  for i = names, #ARGV, 5 do
    local new, id, weight, payload = ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4]
    local elements, rest = card.elements(new, id)
    local is_known, is_new, old_weight, old_payload = false, true, "", ""
    if id == "" then
      local name = card.name(new)
      local old = index.remove(state, name)
      if old then is_known, old_weight, old_payload = entry.remove_name(state, old, name) end
      is_known = is_known or existing_only == 1 and redis.call("ZSCORE", base .. "names", elements[1])
    else
      local is_added = may_be_new and index.add(state, id, new)
      local old, bucket
      if not is_added then
        old, bucket = index.get(state, id)
        may_be_new = not old and existing_only == 0
      end
      if old == new then
        is_known, is_new = true, false
      elseif old then
        is_known, old_weight, old_payload = entry.remove_name(state, old, id)
      elseif some_own then
        is_known, old_weight, old_payload = entry.remove_name(state, ARGV[i + 2], "")
      end
      if is_new and not is_added and (is_known or existing_only == 0) then index.set(state, bucket, id, new) end
    end
    if is_known or existing_only == 0 then
      written = written + 1
      if is_new then
        whole[#whole + 1], whole[#whole + 2] = 0, elements[1]
        for j = 2, #elements do later[#later + 1], later[#later + 2] = 0, elements[j] end
      end
      if weight == "" then weight = old_weight end
      if payload == "" then payload = old_payload end
      if weight ~= "" or payload ~= "" then facts.change(state, elements, rest, weight, payload) end
    end
    done = done + 1
    state.work = state.work + _units.NAME + (_units.MEMBER + #elements[1] / _units.BYTES) * #elements
    if state.work > _work.UNITS then break end
  end
  state.names = state.names + entry.add(whole)
  entry.add(later)
  if written > 0 then entry.commit(state, rules) end
  return { done, written }
end

-- Removes ids. The arguments are pairs of an id and its own card. Returns how many ids were handled, and how many of
-- them existed.
--- keys: base meta
--- args: caller: str, number: int, rules: str, pairs_: *
--- flags: allow-oom
--- frame: once
function script.remove(base, meta, caller, number, rules, pairs_, ...)
  local state = entry.begin()
  local done, gone = 0, 0
  for i = pairs_, #ARGV, 2 do
    local old = index.remove(state, ARGV[i])
    if entry.remove_name(state, old or ARGV[i + 1], old and ARGV[i] or "") then gone = gone + 1 end
    done = done + 1
    if state.work > _work.UNITS then break end
  end
  if gone > 0 then entry.commit(state, rules) end
  return { done, gone }
end

-- Changes weights and payloads (facts.lua). The arguments are, for each id: the id, its own card, the change of the
-- weight, the change of the payload. Returns how many ids were handled; then for each of them its weight, or "" if it
-- does not exist.
--- keys: base meta
--- args: caller: str, number: int, rules: str, fours: *
--- frame: once
function script.change_ids(base, meta, caller, number, rules, fours, ...)
  local state, reply = entry.begin(), { 0 }
  for i = fours, #ARGV, 4 do
    local elements, rest = entry.find(state, ARGV[i], ARGV[i + 1])
    if elements then facts.change(state, elements, rest, ARGV[i + 2], ARGV[i + 3]) end
    reply[1] = reply[1] + 1
    reply[#reply + 1] = elements and (redis.call("ZSCORE", base .. "top:", elements[1]) or "0") or ""
    state.work = state.work + _units.NAME
    if state.work > _work.UNITS then break end
  end
  return reply
end

-- Stores the rules in the first shard of a directory. That shard keeps them even while it has no names.
--- keys: base meta
--- args: rules: str
--- frame: rules
function script.save_rules(base, meta, rules)
  redis.call("HSET", meta, "rules", rules)
  return 1
end

-- Begins changes of ids, in the shard that is their registry. The arguments are pairs of an id and its new card: "" for
-- a name that is its own id, 0x03 for an id that is removed. Until the elements of the old cards are removed, the index
-- stores the old cards after the new one, separated by 0x02. Returns for each id its old cards, joined by 0x02.
-- This script runs even if the server is full, so that removals can begin. A change that adds a name calls `save_rules`
-- first, which a full server refuses.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: allow-oom
--- frame: rules
function script.begin_changes(base, meta, rules, pairs_, ...)
  local state = entry.begin()
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local id, new = ARGV[i], ARGV[i + 1]
    local held, bucket = index.get(state, id)
    local leaving = {}
    for old in string.gmatch(held or "", "[^" .. separator.OLD .. "]+") do
      if old ~= new and old ~= change.LEAVING then leaving[#leaving + 1] = old end
    end
    reply[#reply + 1] = table.concat(leaving, separator.OLD)
    index.set(state, bucket, id, new .. (#leaving > 0 and separator.OLD or "") .. reply[#reply])
  end
  entry.commit(state, rules)
  return reply
end

-- Ends changes of ids: removes their old cards. The arguments are those of `begin_changes`. Returns 1 for each id, or 0
-- if another change of it has begun since then.
--- keys: base meta
--- args: rules: str, pairs_: *
--- flags: allow-oom
--- frame: rules
function script.end_changes(base, meta, rules, pairs_, ...)
  local state = entry.begin()
  local reply = {}
  for i = pairs_, #ARGV, 2 do
    local id, new = ARGV[i], ARGV[i + 1]
    local held, bucket = index.get(state, id)
    local still = held and string.match(held, "^[^" .. separator.OLD .. "]*") == new
    if still and (new == "" or new == change.LEAVING) then
      index.remove(state, id)
    elseif still then
      index.set(state, bucket, id, new)
    end
    reply[#reply + 1] = still and 1 or 0
  end
  entry.commit(state, rules)
  return reply
end

-- Adds elements, whose ids may be in the index of another shard. The first `n` are those whose tails are whole folds.
-- Returns how many names are new.
--- keys: base meta
--- args: rules: str, n: int, elements: *
--- frame: rules
function script.add_elements(base, meta, rules, n, elements, ...)
  local state = entry.begin()
  local before, whole, later = state.names, {}, {}
  for i = elements, elements + n - 1 do whole[#whole + 1], whole[#whole + 2] = 0, ARGV[i] end
  for i = elements + n, #ARGV do later[#later + 1], later[#later + 2] = 0, ARGV[i] end
  state.names = state.names + entry.add(whole)
  entry.add(later)
  entry.commit(state, rules)
  return state.names - before
end

-- Removes elements with their weights and payloads. The arguments are pairs: 1 if the tail of the element is a whole
-- fold, else 0; and the element. Returns how many elements were handled, and how many names were removed.
--- keys: base meta
--- args: caller: str, number: int, rules: str, pairs_: *
--- flags: allow-oom
--- frame: once
function script.remove_elements(base, meta, caller, number, rules, pairs_, ...)
  local state = entry.begin()
  local before, done = state.names, 0
  for i = pairs_, #ARGV, 2 do
    local gone = redis.call("ZREM", base .. "names", ARGV[i + 1])
    state.names = state.names - gone * tonumber(ARGV[i])
    facts.drop(state, { ARGV[i + 1] }, card.rest(ARGV[i + 1]))
    done = done + 1
    state.work = state.work + _units.NAME
    if state.work > _work.UNITS then break end
  end
  if before > 0 then entry.commit(state, rules) end
  return { done, before - state.names }
end

-- Changes weights and payloads of elements. The arguments are triples of an element, the change of the weight and the
-- change of the payload. Returns how many elements were handled; then for each of them its weight, or "" if it does not
-- exist.
--- keys: base meta
--- args: caller: str, number: int, rules: str, threes: *
--- frame: once
function script.change_elements(base, meta, caller, number, rules, threes, ...)
  local state, reply = entry.begin(), { 0 }
  for i = threes, #ARGV, 3 do
    local element = ARGV[i]
    local is_known = redis.call("ZSCORE", base .. "names", element)
    if is_known then facts.change(state, { element }, card.rest(element), ARGV[i + 1], ARGV[i + 2]) end
    reply[1] = reply[1] + 1
    reply[#reply + 1] = is_known and (redis.call("ZSCORE", base .. "top:", element) or "0") or ""
    state.work = state.work + _units.NAME
    if state.work > _work.UNITS then break end
  end
  return reply
end

-- Deletes `meta`, the last key, if there is no name.
--- keys: base meta
--- args: rules: str
--- flags: allow-oom
--- frame: rules
function script.delete_if_empty(base, meta, rules)
  local state = entry.begin()
  if state.names == 0 and state.ids == 0 then redis.call("DEL", meta) end
  return 1
end
