-- Weights: the names that `top` returns first, wherever they are in the alphabet.
--
--   weighed       ZSET  member -> 0, for names with a weight; in byte order
--   top:          ZSET  member -> its negative weight, for the same names: the heaviest first, equal ones in byte order
--   top:<prefix>  ZSET  like `top:`, for the members that begin with this prefix, if there are more than 512 of them
--
-- A prefix without a `top:` key has few members, so each search reads and sorts them. The key of a prefix is deleted
-- when fewer than 256 members remain in it. The keys of longer prefixes have been deleted by then.

_few = { BUILD = 512, DELETE = 256, SORT = 8192 } -- members; a search sorts at most SORT

-- Returns every prefix of a member's tail, the shortest first.
--- (member: str) -> table
function rank.prefixes(member)
  local prefixes = {}
  local tail = string.match(member, "^%Z*")
  for last in string.gmatch(tail, "[^\128-\191][\128-\191]*()") do
    prefixes[#prefixes + 1] = string.sub(tail, 1, last - 1)
  end
  return prefixes
end

-- Whether a prefix has few enough members to sort them for each search.
--- (prefix: str) -> bool
--- uses: base
function rank.few(prefix)
  return redis.call("ZLEXCOUNT", base .. "weighed", "[" .. prefix, "(" .. prefix .. "\255") <= _few.BUILD
end

-- Returns { negative weight, member, … } for the members that begin with `prefix`.
--- (prefix: str, most: int) -> table
--- uses: base
function rank.read(prefix, most)
  local low, high = "[" .. prefix, "(" .. prefix .. "\255"
  local members = redis.call("ZRANGE", base .. "weighed", low, high, "BYLEX", "LIMIT", 0, most)
  local pairs_ = {}
  for i = 1, #members, 1000 do
    local last = math.min(#members, i + 999)
    local weights = redis.call("ZMSCORE", base .. "top:", unpack(members, i, last))
    for j = i, last do
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = weights[j - i + 1] or 0, members[j]
    end
  end
  return pairs_
end

-- Gives members a weight. `state`: as `entry.begin` returns it.
--- (state: table, members: table, weight: number)
--- uses: base
function rank.put(state, members, weight)
  for i = 1, #members do
    redis.call("ZADD", base .. "weighed", 0, members[i])
    redis.call("ZADD", base .. "top:", -weight, members[i])
    local prefixes = rank.prefixes(members[i])
    for j = 1, #prefixes do
      local key = base .. "top:" .. prefixes[j]
      if redis.call("EXISTS", key) == 1 then
        redis.call("ZADD", key, -weight, members[i])
      elseif rank.few(prefixes[j]) or state.built == 4 then
        break
      else
        -- One call builds at most four keys, since each takes a millisecond.
        state.built = (state.built or 0) + 1
        batch.write("ZADD", key, rank.read(prefixes[j], -1))
      end
    end
  end
end

-- Removes the weight of members. Returns the weight that they had.
--- (members: table) -> number | nil
--- uses: base
function rank.drop(members)
  local weight
  for i = 1, #members do
    local held = redis.call("ZSCORE", base .. "top:", members[i])
    if held then
      weight = -tonumber(held)
      redis.call("ZREM", base .. "weighed", members[i])
      redis.call("ZREM", base .. "top:", members[i])
      local prefixes = rank.prefixes(members[i])
      for j = 1, #prefixes do
        local key = base .. "top:" .. prefixes[j]
        if redis.call("ZREM", key, members[i]) == 0 then break end
        if redis.call("ZCARD", key) < _few.DELETE then redis.call("DEL", key) end
      end
    end
  end
  return weight
end

-- Returns { member, negative weight, … }: the heaviest members that begin with `prefix`.
--- (prefix: str, offset: int, limit: int) -> table
--- uses: base
function rank.first(prefix, offset, limit)
  local key = base .. "top:" .. prefix
  if redis.call("EXISTS", key) == 1 then return redis.call("ZRANGE", key, offset, offset + limit - 1, "WITHSCORES") end
  local found, order, reply = rank.read(prefix, _few.SORT), {}, {}
  for i = 1, #found, 2 do order[#order + 1] = { tonumber(found[i]), found[i + 1], found[i] } end
  table.sort(order, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
  for i = offset + 1, math.min(offset + limit, #order) do
    reply[#reply + 1], reply[#reply + 2] = order[i][2], order[i][3]
  end
  return reply
end
