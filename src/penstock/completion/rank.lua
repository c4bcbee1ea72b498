-- Weights: a search by weight returns the heaviest names first, wherever they are in the alphabet.
--
--   weighed       ZSET  element -> 0, for names with a weight; in byte order
--   top:          ZSET  element -> its negative weight, of the same names: the heaviest first, equal ones in byte order
--   top:<prefix>  ZSET  like `top:`, for the elements that begin with this prefix, if there are more than 512 of them.
--                       Only prefixes of at most 24 characters have one.
--
-- A prefix with few elements has no such key: each search reads and sorts them. A prefix with many elements may also
-- have none, because it is too long, or because the call that should build the key had no time for that. Then a search
-- reads the key of a shorter prefix, over several calls. The key of a prefix is deleted when fewer than 256 elements
-- remain in it. By then the keys of longer prefixes have been deleted.

_work = { UNITS = 800 } -- after 800 units of some 4 µs, a call leaves its remaining names for the next call
_few = { BUILD = 512, DELETE = 256, SORT = 600, LETTERS = 24 } -- elements; characters of a prefix
_much = { BYTES = 262144, SLICE = 100 } -- what one call reads at most; elements of one read

-- Returns the prefixes of an element's tail, the shortest first.
--- (element: str) -> table
function rank.prefixes(element)
  local prefixes, at = {}, 1
  while #prefixes < _few.LETTERS do
    local after = string.match(element, "^[^%z\128-\191][\128-\191]*()", at)
    if not after then break end
    prefixes[#prefixes + 1] = string.sub(element, 1, after - 1)
    at = after
  end
  return prefixes
end

-- Returns the weighed elements that begin with one of these prefixes, in byte order, and their negative weights; nil if
-- there are more than `most`, or if they are too long to read in one call.
--- (prefixes: table, most: int) -> table | nil, table | nil
--- uses: base
function rank.read(prefixes, most)
  local elements, weights, bytes = {}, {}, 0
  for i = 1, #prefixes do
    local low, high = "[" .. prefixes[i], "(" .. prefixes[i] .. "\255"
    while low do
      local some = redis.call("ZRANGE", base .. "weighed", low, high, "BYLEX", "LIMIT", 0, _much.SLICE)
      local found = #some > 0 and redis.call("ZMSCORE", base .. "top:", unpack(some))
      for j = 1, #some do
        elements[#elements + 1], weights[#weights + 1] = some[j], found[j] or "0"
        bytes = bytes + #some[j]
      end
      if #elements > most or bytes > _much.BYTES then return nil end
      low = #some == _much.SLICE and "(" .. some[#some]
    end
  end
  return elements, weights
end

-- Stores the order of a prefix if it has many elements and the call has time for it. Returns whether it did.
--- (state: table, prefix: str) -> bool
--- uses: base
function rank.build(state, prefix)
  local count = redis.call("ZLEXCOUNT", base .. "weighed", "[" .. prefix, "(" .. prefix .. "\255")
  if count <= _few.BUILD or state.built and state.work + count / 2 > _work.UNITS then return false end
  state.built, state.work = true, state.work + count / 2
  local elements, weights = rank.read({ prefix }, 2 * _few.BUILD)
  if not elements then return false end
  local pairs_ = {}
  for i = 1, #elements do pairs_[2 * i - 1], pairs_[2 * i] = weights[i], elements[i] end
  batch.write("ZADD", base .. "top:" .. prefix, pairs_)
  return true
end

-- Gives elements a weight. `state`: as `entry.begin` returns it.
--- (state: table, elements: table, weight: number)
--- uses: base
function rank.put(state, elements, weight)
  for i = 1, #elements do
    redis.call("ZADD", base .. "weighed", 0, elements[i])
    redis.call("ZADD", base .. "top:", -weight, elements[i])
    local prefixes = rank.prefixes(elements[i])
    for j = 1, #prefixes do
      state.work = state.work + 1
      local key = base .. "top:" .. prefixes[j]
      if redis.call("EXISTS", key) == 1 then
        redis.call("ZADD", key, -weight, elements[i])
      elseif not rank.build(state, prefixes[j]) then
        break
      end
    end
  end
  state.weighed = true
end

-- Removes the weight of elements. Returns the weight that they had.
--- (state: table, elements: table) -> number | nil
--- uses: base
function rank.drop(state, elements)
  local weight
  for i = 1, #elements do
    local held = redis.call("ZSCORE", base .. "top:", elements[i])
    if held then
      weight = -tonumber(held)
      redis.call("ZREM", base .. "weighed", elements[i])
      redis.call("ZREM", base .. "top:", elements[i])
      local prefixes = rank.prefixes(elements[i])
      for j = 1, #prefixes do
        state.work = state.work + 1
        local key = base .. "top:" .. prefixes[j]
        if redis.call("ZREM", key, elements[i]) == 0 then break end
        if redis.call("ZCARD", key) < _few.DELETE then redis.call("UNLINK", key) end
      end
    end
  end
  return weight
end

-- Returns the `limit` heaviest elements that begin with one of these prefixes and that `accept` accepts. Also returns
-- where to continue if the budget was used up, else -1. `offset`: where an earlier call stopped, at first 0.
-- `budget.left`: how many elements the call may still look at; `budget.read` is raised by the number of those that were
-- read and sorted. `base_prefix`: a text with which all these prefixes begin.
--- (base_prefix: str, prefixes: table, offset: int, limit: int, budget: table, accept: any) -> table, int
--- uses: base
function rank.heaviest(base_prefix, prefixes, offset, limit, budget, accept)
  local found, order = {}, nil
  if #prefixes == 0 then return found, -1 end
  if #prefixes == 1 and redis.call("EXISTS", base .. "top:" .. prefixes[1]) == 1 then order = prefixes[1] end
  local elements, weights = nil, nil
  if not order then elements, weights = rank.read(prefixes, _few.SORT) end
  if elements then
    local sorted = {}
    for i = 1, #elements do sorted[i], weights[i] = i, tonumber(weights[i]) end
    table.sort(sorted, function(a, b) return weights[a] < weights[b] or weights[a] == weights[b] and a < b end)
    budget.read = (budget.read or 0) + #elements
    for i = offset + 1, #sorted do
      if #found == limit then break end
      if budget.left <= 0 then return found, i - 1 end
      budget.left = budget.left - 1
      if accept(elements[sorted[i]]) then found[#found + 1] = elements[sorted[i]] end
    end
    return found, -1
  end
  if not order then
    order = ""
    local shorter = rank.prefixes(base_prefix)
    for i = #shorter, 1, -1 do
      if redis.call("EXISTS", base .. "top:" .. shorter[i]) == 1 then
        order = shorter[i]
        break
      end
    end
  end
  local bytes = 0
  while budget.left > 0 and bytes <= _much.BYTES do
    local size = math.min(_much.SLICE, limit - #found + 10)
    local some = redis.call("ZRANGE", base .. "top:" .. order, offset, offset + size - 1)
    for i = 1, #some do
      offset, bytes, budget.left = offset + 1, bytes + #some[i], budget.left - 1
      for j = 1, #prefixes do
        if string.sub(some[i], 1, #prefixes[j]) == prefixes[j] then
          if accept(some[i]) then found[#found + 1] = some[i] end
          break
        end
      end
      if #found == limit then return found, -1 end
    end
    if #some < size then return found, -1 end
  end
  return found, offset
end
