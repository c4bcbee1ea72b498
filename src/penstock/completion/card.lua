-- Cards (the stored form of a name), elements (the entries that a search finds), and the index from ids to cards.
--
--   text     a fold of the name, cut after 512 bytes; a name has several if it can be typed in several ways
--   tail     the part of a text that begins with the text or with one of its words, cut after 256 bytes
--   keys     the texts of a name, separated by \4. If there are several tails, \1 marks the beginning of each
--   card     <keys>\0<name>; only <name> if the keys are what Lua's `lower` makes of it, as with most ASCII names
--   element  <tail>\0<name>\0<id>\1<keys>, where the id is empty if the name is its own id. If the name has only one
--            tail, \1<keys> is left out, and so is the \0 before an empty id. Byte order sorts by tail, name, id
--   rest     the part of an element between its first \0 and the keys: it identifies the name and its id
--   ids:<n>  HASH  id -> card: one bucket, with at most about a hundred ids, so that the server stores it compactly
--
-- For example, with `words=True` the name "Ann Lee" of the id "u7" has
--   the card      \1ann \1lee\0Ann Lee
--   the elements  ann lee\0Ann Lee\0u7\1\1ann \1lee  and  lee\0Ann Lee\0u7\1\1ann \1lee
--
-- `state` is what `entry.begin` returns. Its `ids` and `buckets` count the ids and their buckets; `level` is the
-- highest power of two that is not above `buckets`.
--
-- Lua tries a pattern without "^" at every byte of a text. If it matches nowhere, or only far on, this takes time in
-- the square of the length. So nothing here searches for the last separator.

separator = { FIELD = "\0", WORD = "\1", OLD = "\2", TEXT = "\4" }

_tail = { BYTES = 256 }
_bucket = { IDS = 32, SPLITS = 8 } -- ids in each bucket, on average; buckets that one call adds at most

-- Returns the elements of a card, and their rest, which is the same for all. `id`: "" if the name is its own id.
--- (card: str, id: str) -> table, str
function card.elements(card, id)
  local cut = string.find(card, separator.FIELD, 1, true)
  local keys = cut and string.sub(card, 1, cut - 1) or string.lower(card)
  local name = cut and string.sub(card, cut + 1) or card
  if not string.find(keys, separator.WORD, 1, true) then
    local rest = id == "" and name or name .. separator.FIELD .. id
    return { string.sub(keys, 1, _tail.BYTES) .. separator.FIELD .. rest }, rest
  end
  local rest, elements = name .. separator.FIELD .. id, {}
  local after = separator.FIELD .. rest .. separator.WORD .. keys
  for text in string.gmatch(keys, "[^" .. separator.TEXT .. "]+") do
    for at in string.gmatch(text, separator.WORD .. "()") do
      local tail = string.gsub(string.sub(text, at), separator.WORD, "")
      elements[#elements + 1] = string.sub(tail, 1, _tail.BYTES) .. after
    end
  end
  return elements, rest
end

-- Returns the rest of an element.
--- (element: str) -> str
function card.rest(element)
  return string.match(element, "^%Z*%z([^" .. separator.WORD .. "]*)") or ""
end

-- Returns the name of a card.
--- (card: str) -> str
function card.name(card)
  return string.sub(card, (string.find(card, separator.FIELD, 1, true) or 0) + 1)
end

-- Returns the number of the bucket of an id, by linear hashing (Litwin 1980): adding a bucket splits only one other
-- bucket, however many there are.
--- (state: table, id: str) -> int
function index.bucket(state, id)
  local n = tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) % (2 * state.level)
  return n < state.buckets and n or n - state.level
end

-- Returns the card of an id, or false; and the key of its bucket.
--- (state: table, id: str) -> str | false, str
--- uses: base
function index.get(state, id)
  local bucket = base .. "ids:" .. index.bucket(state, id)
  return state.ids > 0 and redis.call("HGET", bucket, id), bucket
end

-- Stores the card of an id. `bucket`: the key of its bucket.
--- (state: table, bucket: str, id: str, card: str)
function index.set(state, bucket, id, card)
  state.ids = state.ids + redis.call("HSET", bucket, id, card)
end

-- Stores the card of an id that is likely to be new, in one call. Returns whether it is; if not, nothing was changed.
--- (state: table, id: str, card: str) -> bool
--- uses: base
function index.add(state, id, card)
  if redis.call("HSETNX", base .. "ids:" .. index.bucket(state, id), id, card) == 0 then return false end
  state.ids = state.ids + 1
  return true
end

-- Removes an id. Returns the card that it had.
--- (state: table, id: str) -> str | nil
--- uses: base
function index.remove(state, id)
  if state.ids == 0 then return nil end
  local card, bucket = index.get(state, id)
  if not card then return nil end
  redis.call("HDEL", bucket, id)
  state.ids = state.ids - 1
  return card
end

-- Adds buckets until there are enough for the ids, but only as many as a call has time for. The next call adds more.
--- (state: table)
--- uses: base
function index.grow(state)
  for _ = 1, _bucket.SPLITS do
    if state.ids <= _bucket.IDS * state.buckets then break end
    local new = state.buckets
    local from, to = base .. "ids:" .. new - state.level, base .. "ids:" .. new
    state.buckets = new + 1
    local ids, gone = redis.call("HKEYS", from), {}
    for i = 1, #ids do
      if index.bucket(state, ids[i]) == new then gone[#gone + 1] = ids[i] end
    end
    if 2 * state.level <= state.buckets then state.level = 2 * state.level end
    if #gone > 0 then
      local cards, set = redis.call("HMGET", from, unpack(gone)), {}
      for i = 1, #gone do set[2 * i - 1], set[2 * i] = gone[i], cards[i] end
      redis.call("HSET", to, unpack(set))
      redis.call("HDEL", from, unpack(gone))
    end
  end
end
