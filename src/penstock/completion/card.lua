-- A name and what it is found by, and the index that finds it by its id.
--
--   card     name, where its fold is what Lua's `lower` makes of it (that is so for ASCII), else fold 0x00 name.
--            In a directory that finds words the fold has 0x01 before each later word.
--   tail     the fold from the start of a word on; the first is the whole fold
--   member   tail 0x00 name, and 0x00 id unless the name is its own id. In the order of bytes: by fold, name, id.
--   ids:<n>  HASH  id -> card, at most some 200 to a key, so that they stay packed; meta: ids, buckets

-- The tails, and the name.
--- (card: str) -> table, str
function card.read(card)
  local cut = string.find(card, "\0", 1, true)
  if not cut then return { string.lower(card) }, card end
  local fold, name = string.sub(card, 1, cut - 1), string.sub(card, cut + 1)
  local whole = string.gsub(fold, "\1", "")
  local tails = { whole }
  for at in string.gmatch(fold, "\1()") do
    tails[#tails + 1] = string.gsub(string.sub(fold, at), "\1", "")
  end
  return tails, name
end

--- (card: str, id: str) -> table
function card.members(card, id)
  local tails, name = card.read(card)
  local rest = "\0" .. name .. (id == "" and "" or "\0" .. id)
  for i = 1, #tails do tails[i] = tails[i] .. rest end
  return tails
end

-- Linear hashing (Litwin 1980): one bucket more needs one bucket looked through, however many there are.
--- (id: str, buckets: int) -> str
--- uses: base
function index.bucket(id, buckets)
  local hash = tonumber(string.sub(redis.sha1hex(id), 1, 8), 16)
  local level = 1
  while 2 * level <= buckets do level = 2 * level end
  local n = hash % (2 * level)
  if n >= buckets then n = n - level end
  return base .. "ids:" .. n
end

--- (id: str, buckets: int) -> str | false
--- uses: base
function index.get(id, buckets)
  return redis.call("HGET", index.bucket(id, buckets), id)
end

--- (s: table, id: str, card: str)
--- uses: base
function index.set(s, id, card)
  s.ids = s.ids + redis.call("HSET", index.bucket(id, s.buckets), id, card)
end

--- (s: table, id: str) -> str | nil
--- uses: base
function index.take(s, id)
  if s.ids == 0 then return nil end
  local bucket = index.bucket(id, s.buckets)
  local card = redis.call("HGET", bucket, id)
  if not card then return nil end
  redis.call("HDEL", bucket, id)
  s.ids = s.ids - 1
  return card
end

-- 64 ids to a bucket on average.
--- (s: table)
--- uses: base
function index.grow(s)
  while s.ids > 64 * s.buckets do
    local level = 1
    while 2 * level <= s.buckets do level = 2 * level end
    local from, to = base .. "ids:" .. s.buckets - level, base .. "ids:" .. s.buckets
    s.buckets = s.buckets + 1
    local held, set, gone = redis.call("HGETALL", from), {}, {}
    for i = 1, #held, 2 do
      if index.bucket(held[i], s.buckets) == to then
        set[#set + 1], set[#set + 2] = held[i], held[i + 1]
        gone[#gone + 1] = held[i]
      end
    end
    if #gone > 0 then
      redis.call("HSET", to, unpack(set))
      redis.call("HDEL", from, unpack(gone))
    end
  end
end
