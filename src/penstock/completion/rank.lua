-- Weights: the names that `top` returns first, wherever they are in the alphabet.
--
--   weighed       ZSET  member -> 0, for names with a weight; in byte order
--   top:          ZSET  member -> minus its weight, for all these: the heaviest first, equal ones in byte order
--   top:<prefix>  ZSET  like `top:`, for the members that begin with this prefix, if there are more than 512 of them
--
-- A prefix without a `top:` key has few members, so each search reads and sorts them. The key of a prefix is deleted
-- when fewer than 256 members remain in it. The keys of longer prefixes have been deleted by then.

_few = { BUILD = 512, DELETE = 256, SORT = 8192 }

-- Returns every prefix of a member's tail, the shortest first.
--- (member: str) -> table
function rank.starts(member)
  local starts = {}
  local tail = string.match(member, "^%Z*")
  for last in string.gmatch(tail, "[^\128-\191][\128-\191]*()") do
    starts[#starts + 1] = string.sub(tail, 1, last - 1)
  end
  return starts
end

-- Whether a prefix has few enough members to sort them for each search.
--- (start: str) -> bool
--- uses: base
function rank.few(start)
  return redis.call("ZLEXCOUNT", base .. "weighed", "[" .. start, "(" .. start .. "\255") <= _few.BUILD
end

-- Returns { minus weight, member, … } of the members that begin with `start`.
--- (start: str, most: int) -> table
--- uses: base
function rank.read(start, most)
  local low, high = "[" .. start, "(" .. start .. "\255"
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

-- Gives members a weight.
--- (s: table, members: table, weight: number)
--- uses: base
function rank.put(s, members, weight)
  for i = 1, #members do
    redis.call("ZADD", base .. "weighed", 0, members[i])
    redis.call("ZADD", base .. "top:", -weight, members[i])
    local starts = rank.starts(members[i])
    for j = 1, #starts do
      local key = base .. "top:" .. starts[j]
      if redis.call("EXISTS", key) == 1 then
        redis.call("ZADD", key, -weight, members[i])
      elseif rank.few(starts[j]) or s.built == 4 then
        break
      else
        -- One call builds at most four keys, since each takes a millisecond.
        s.built = (s.built or 0) + 1
        batch.write("ZADD", key, rank.read(starts[j], -1))
      end
    end
  end
end

-- Takes the weight of members away. Returns the weight that they had.
--- (members: table) -> str | nil
--- uses: base
function rank.drop(members)
  local weight
  for i = 1, #members do
    local held = redis.call("ZSCORE", base .. "top:", members[i])
    if held then
      weight = -tonumber(held)
      redis.call("ZREM", base .. "weighed", members[i])
      redis.call("ZREM", base .. "top:", members[i])
      local starts = rank.starts(members[i])
      for j = 1, #starts do
        local key = base .. "top:" .. starts[j]
        if redis.call("ZREM", key, members[i]) == 0 then break end
        if redis.call("ZCARD", key) < _few.DELETE then redis.call("DEL", key) end
      end
    end
  end
  return weight
end

-- Returns { member, minus weight, … }: the heaviest members that begin with `start`.
--- (start: str, offset: int, limit: int) -> table
--- uses: base
function rank.first(start, offset, limit)
  local key = base .. "top:" .. start
  if redis.call("EXISTS", key) == 1 then return redis.call("ZRANGE", key, offset, offset + limit - 1, "WITHSCORES") end
  local found, order, reply = rank.read(start, _few.SORT), {}, {}
  for i = 1, #found, 2 do order[#order + 1] = { tonumber(found[i]), found[i + 1], found[i] } end
  table.sort(order, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
  for i = offset + 1, math.min(offset + limit, #order) do
    reply[#reply + 1], reply[#reply + 2] = order[i][2], order[i][3]
  end
  return reply
end
