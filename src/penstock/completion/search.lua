-- The scripts that read a directory. They write nothing. The keys are those of directory.lua.
--
-- A call reads a bounded number of elements. If it stops before it has found enough, it returns where it stopped, and
-- the caller continues there.

-- BYTES: read by one call at most. WORK: about how many microseconds a call compares. SLICE: elements of one ZRANGE.
_read = { BYTES = 262144, WORK = 2500, SLICE = 100 }
-- Limits of a search for typos: its seeks; the elements that it returns; and the elements that it sorts by weight. The
-- last misspelling may exceed the third limit by 600.
_slips = { SEEKS = 1000, MEMBERS = 800, SORTED = 400 }

-- Returns { stop, elements } and more (facts.lua): the first `limit` elements between two bounds, given as to ZRANGE
-- BYLEX. `stop`: "", or if the elements are too long for one call, the last one that was read.
--- keys: base meta
--- args: rules: str, low: str, high: str, limit: int
--- flags: no-writes
--- frame: rules
function script.page(base, meta, rules, low, high, limit)
  local found = redis.call("ZRANGE", base .. "names", low, high, "BYLEX", "LIMIT", 0, math.min(limit, _read.SLICE))
  local is_whole = limit <= _read.SLICE or #found < _read.SLICE
  if is_whole and (#found == 0 or facts.none()) then return { "", found } end -- most queries need no function
  if is_whole then return facts.added("", found) end
  local bytes = 0
  for i = 1, #found do bytes = bytes + #found[i] end
  while #found < limit do
    if bytes > _read.BYTES then return facts.reply(found[#found], found) end
    local size = math.min(limit - #found, _read.SLICE)
    local more = redis.call("ZRANGE", base .. "names", "(" .. found[#found], high, "BYLEX", "LIMIT", 0, size)
    for i = 1, #more do
      found[#found + 1] = more[i]
      bytes = bytes + #more[i]
    end
    if #more < size then break end
  end
  return facts.reply("", found)
end

-- Returns { stop, elements } and more (facts.lua): the first `limit` elements after `last` that the query accepts, one
-- for each name. `stop`: "" at the end or if there are enough, else the last element read. `chosen`, `all` and the
-- texts: see match.lua.
--- keys: base meta
--- args: rules: str, limit: int, last: str, chosen: int, all: str, typed: *
--- flags: no-writes
--- frame: rules
function script.find(base, meta, rules, limit, last, chosen, all, typed, ...)
  local names, query, found = base .. "names", match.query(typed, all), {}
  match.choose(names, query, chosen, last)
  local prefixes = match.prefixes(names, query.main, all)
  for i = 1, #prefixes do
    local low, high = "[" .. prefixes[i], "(" .. prefixes[i] .. "\255"
    if last ~= "" and not match.before(last, prefixes[i]) then low = "(" .. last end
    while low do
      local size = #query.texts > 1 and _read.SLICE or math.min(_read.SLICE, limit - #found + 2)
      local some = redis.call("ZRANGE", names, low, high, "BYLEX", "LIMIT", 0, size)
      for j = 1, #some do
        if match.accepts(some[j], query) then
          found[#found + 1] = some[j]
          if #found == limit then return facts.reply("", found) end
        end
        last = some[j]
        if query.work > _read.WORK then return facts.reply(last, found) end
      end
      low = #some == size and "(" .. last
    end
  end
  return facts.reply("", found)
end

-- Returns { next offset or -1, elements } and more (facts.lua): the heaviest elements that the query accepts. `offset`:
-- 0, or the one that an earlier call returned.
--- keys: base meta
--- args: rules: str, limit: int, offset: int, chosen: int, all: str, typed: *
--- flags: no-writes
--- frame: rules
function script.heaviest(base, meta, rules, limit, offset, chosen, all, typed, ...)
  local query, weighed = match.query(typed, all), base .. "weighed"
  match.choose(weighed, query, chosen, "")
  local budget = { left = _read.WORK }
  local function accept(element)
    local before = query.work
    local accepted = match.accepts(element, query)
    budget.left = budget.left - (query.work - before)
    return accepted
  end
  local prefixes = match.prefixes(weighed, query.main, all)
  local found, next_offset = rank.heaviest(query.main.base, prefixes, offset, limit, budget, accept)
  return facts.reply(next_offset, found)
end

-- Returns { 0, elements } and more (facts.lua), in no order: elements whose beginning differs by one typo from the
-- letters typed: a letter added, missing or replaced, or two swapped. They are the first `limit` of each misspelling
-- and, with `by_weight`, its `limit` heaviest. `letters`: one argument for each letter.
--
-- For each beginning of the typed text, this finds the letters that follow it in the index, with one ZRANGE (a seek)
-- for each letter. Reading a variant takes one or two more. After 1000 seeks or 800 elements, no further letter is
-- tried. The seeks that are left are divided among the positions that are left. The first letter of the text is tried
-- last, because most seeks are needed there: any letter may begin a name. After 400 elements were sorted by weight, the
-- other misspellings are searched in byte order only.
--- keys: base meta
--- args: rules: str, limit: int, by_weight: int, letters: *
--- flags: no-writes
--- frame: rules
function script.similar(base, meta, rules, limit, by_weight, letters, ...)
  local names, left, found, seen = base .. "names", _slips.SEEKS, {}, {}
  local budget, bytes, typed = { left = _slips.MEMBERS, read = 0 }, 0, table.concat(ARGV, "", letters)
  local function keep(elements)
    for i = 1, #elements do
      if not seen[elements[i]] then
        seen[elements[i]] = true
        found[#found + 1] = elements[i]
        bytes = bytes + #elements[i]
      end
    end
  end
  local function accept(element) return string.sub(element, 1, #typed) ~= typed end
  local function read(low, high)
    left = left - 1
    local page = redis.call("ZRANGE", names, low, high, "BYLEX", "LIMIT", 0, limit)
    budget.left = budget.left - #page
    keep(page)
    return #page
  end
  -- Reads the elements that begin with a variant, but not those that begin with the typed text.
  local function read_variant(variant)
    if string.sub(variant, 1, #typed) == typed then return end
    if left <= 0 or budget.left <= 0 or bytes > _read.BYTES then return end
    local count
    if string.sub(typed, 1, #variant) ~= variant then
      count = read("[" .. variant, "(" .. variant .. "\255")
    else
      count = read("[" .. variant, "(" .. typed) + read("(" .. typed .. "\255", "(" .. variant .. "\255")
    end
    if count > 0 and by_weight == 1 and budget.left > 0 and budget.read < _slips.SORTED then
      keep((rank.heaviest(variant, { variant }, 0, limit, budget, accept)))
    end
  end
  -- Tries other letters at letter `i`, after `head`, with at most `seeks`.
  local function try_letters(i, head, seeks)
    local here, rest, low, least = ARGV[i], table.concat(ARGV, "", i + 1), "[" .. head, left - seeks
    while left > least and budget.left > 0 and bytes <= _read.BYTES do
      left = left - 1
      local at = redis.call("ZRANGE", names, low, "(" .. head .. "\255", "BYLEX", "LIMIT", 0, 1)[1]
      if not at then break end
      local letter = string.match(at, "^[^\128-\191][\128-\191]*", #head + 1) or "\255"
      if letter ~= separator.FIELD then
        if letter ~= here then read_variant(head .. letter .. rest) end
        read_variant(head .. letter .. here .. rest)
      end
      low = "(" .. head .. letter .. "\255"
    end
  end
  for i = letters, #ARGV do
    local head, here, rest = table.concat(ARGV, "", letters, i - 1), ARGV[i], table.concat(ARGV, "", i + 1)
    read_variant(head .. rest)
    if i < #ARGV then read_variant(head .. ARGV[i + 1] .. here .. table.concat(ARGV, "", i + 2)) end
  end
  for i = letters + 1, #ARGV do
    try_letters(i, table.concat(ARGV, "", letters, i - 1), left / (#ARGV - i + 2))
  end
  try_letters(letters, "", left)
  return facts.reply(0, found)
end

-- Returns the number of elements that begin with each text; the arguments of a text are those of `match.query`. For an
-- empty text, returns the number of names instead.
--- keys: base meta
--- args: rules: str, all: str, typed: *
--- flags: no-writes
--- frame: rules
function script.counts(base, meta, rules, all, typed, ...)
  local query, reply = match.query(typed, all), {}
  for i = 1, #query.texts do
    local text = query.texts[i]
    if text.base == "" then
      reply[i] = tonumber(redis.call("HGET", meta, "names") or 0)
    else
      reply[i] = match.count(base .. "names", text, all)
    end
  end
  return reply
end

-- Returns { stop, elements } and more (facts.lua) for those of the given elements that exist.
--- keys: base meta
--- args: rules: str, elements: *
--- flags: no-writes
--- frame: rules
function script.look_up(base, meta, rules, elements, ...)
  local found = {}
  for i = elements, #ARGV do
    if redis.call("ZSCORE", base .. "names", ARGV[i]) then found[#found + 1] = ARGV[i] end
  end
  return facts.reply("", found)
end

-- Finds the card of an id. Returns { card, reply }, { own_card, reply } if the name is its own id, or {} if the id does
-- not exist. `reply`: what `facts.reply` returns for the first element of the card.
--
-- The id and its own card may belong to different shards. Then the shard of the id gets "" for `own_card`, and the
-- other shard gets "" for `id`.
--- keys: base meta
--- args: rules: str, id: str, own_card: str
--- flags: no-writes
--- frame: rules
function script.find_id(base, meta, rules, id, own_card)
  local state = entry.begin()
  local found = id ~= "" and index.get(state, id)
  found = found and string.match(found, "^[^" .. separator.OLD .. "]*")
  if found and found ~= "" and found ~= change.LEAVING then
    return { found, facts.reply("", { card.elements(found, id)[1] }) }
  end
  local first = own_card ~= "" and card.elements(own_card, "")[1]
  if not first or not redis.call("ZSCORE", base .. "names", first) then return {} end
  return { own_card, facts.reply("", { first }) }
end
