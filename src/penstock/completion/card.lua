-- Cards (the stored form of a name), members (the entries that a search finds), and the index from ids to cards.
--
--   card     <fold>\0<name>; only <name> if Lua's `lower` can fold it, as with ASCII. In a directory with `words=True`,
--            \1 marks the beginning of each word in the fold but the first.
--   tail     the fold from the beginning of a word to the end of the name; the first tail is the whole fold
--   member   <tail>\0<name>\0<id>; only <tail>\0<name> if the name is its own id. Byte order sorts by tail, name, id
--   ids:<n>  HASH  id -> card: one bucket, of 200 ids or so at most, so that the server keeps it packed
--
-- For example, with `words=True` the name "Ann Lee" of the id "u7" has
--   the card      ann \1lee\0Ann Lee
--   the members   ann lee\0Ann Lee\0u7  and  lee\0Ann Lee\0u7
--
-- `state` is what `entry.begin` returns. Its `ids` and `buckets` count the ids and their buckets.

separator = { PART = "\0", WORD = "\1", OLD = "\2" }

_bucket = { IDS = 64 } -- ids in each bucket, on average

-- Returns the tails and the name of a card.
--- (card: str) -> table, str
function card.read(card)
  local cut = string.find(card, separator.PART, 1, true)
  if not cut then return { string.lower(card) }, card end
  local fold, name = string.sub(card, 1, cut - 1), string.sub(card, cut + 1)
  local whole = string.gsub(fold, separator.WORD, "")
  local tails = { whole }
  for at in string.gmatch(fold, separator.WORD .. "()") do
    tails[#tails + 1] = string.gsub(string.sub(fold, at), separator.WORD, "")
  end
  return tails, name
end

-- Returns the members of a card. `id`: "" if the name is its own id.
--- (card: str, id: str) -> table
function card.members(card, id)
  local tails, name = card.read(card)
  local rest = separator.PART .. name .. (id == "" and "" or separator.PART .. id)
  for i = 1, #tails do tails[i] = tails[i] .. rest end
  return tails
end

-- Returns the key of the bucket of an id, by linear hashing (Litwin 1980): adding a bucket splits only one other,
-- however many there are.
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

-- Returns the card of an id.
--- (id: str, buckets: int) -> str | false
--- uses: base
function index.get(id, buckets)
  return redis.call("HGET", index.bucket(id, buckets), id)
end

-- Stores the card of an id.
--- (state: table, id: str, card: str)
--- uses: base
function index.set(state, id, card)
  state.ids = state.ids + redis.call("HSET", index.bucket(id, state.buckets), id, card)
end

-- Removes an id. Returns the card that it had.
--- (state: table, id: str) -> str | nil
--- uses: base
function index.remove(state, id)
  if state.ids == 0 then return nil end
  local bucket = index.bucket(id, state.buckets)
  local card = redis.call("HGET", bucket, id)
  if not card then return nil end
  redis.call("HDEL", bucket, id)
  state.ids = state.ids - 1
  return card
end

-- Adds buckets until there are enough for the ids.
--- (state: table)
--- uses: base
function index.grow(state)
  while state.ids > _bucket.IDS * state.buckets do
    local level = 1
    while 2 * level <= state.buckets do level = 2 * level end
    local from, to = base .. "ids:" .. state.buckets - level, base .. "ids:" .. state.buckets
    state.buckets = state.buckets + 1
    local held, set, gone = redis.call("HGETALL", from), {}, {}
    for i = 1, #held, 2 do
      if index.bucket(held[i], state.buckets) == to then
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
