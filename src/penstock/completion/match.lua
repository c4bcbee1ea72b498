-- Compares typed text with the names of the index.
--
-- A query is a table of these fields:
--   texts   the typed text, or one text for each word if there are several words. Each is a table:
--             base    the text without the marks of its last letter
--             marks   these marks. The last letter of a text also finds letters that have further marks: ê finds ệ
--             marked  the base as it is in the keys of a card: \1 before it and, in a directory of words, before each
--                     of its words
--   main    the text whose elements are read; the others are compared with the keys of these elements
--   all     all marks of which a letter may have more than one, as one string
--   work    roughly how many microseconds the comparisons took so far
--
-- Strings are compared by bytes here. The comparison operators of Lua follow the locale of the server.

_few_marks = { LETTER = 30, SEEKS = 200 } -- of one letter (Unicode's stream-safe text has 30); of one query

-- Returns the query of a call, except `main`. `typed`: the index in ARGV of the first text; each has three arguments.
--- (typed: int, all: str) -> table
function match.query(typed, all)
  local texts = {}
  for i = typed, #ARGV, 3 do
    texts[#texts + 1] = { base = ARGV[i], marks = ARGV[i + 1], marked = ARGV[i + 2] }
  end
  return { texts = texts, main = texts[1], all = all, work = 0 }
end

-- Whether the marks in `text` from `at` on include the typed ones.
--- (text: str, at: int, marks: str, all: str) -> bool
function match.has_marks(text, at, marks, all)
  local missing = 1
  for _ = 1, _few_marks.LETTER do
    if missing > #marks then return true end
    local mark = string.match(text, "^[^\128-\191][\128-\191]*", at)
    if not mark or not string.find(all, mark, 1, true) then return false end
    if string.sub(marks, missing, missing + #mark - 1) == mark then missing = missing + #mark end
    at = at + #mark
  end
  return missing > #marks
end

-- Whether `tail` begins with a typed text.
--- (tail: str, text: table, all: str) -> bool
function match.begins(tail, text, all)
  return string.sub(tail, 1, #text.base) == text.base and match.has_marks(tail, #text.base + 1, text.marks, all)
end

-- Returns the prefixes of the index that match a typed text, in byte order: the text itself, and the text with further
-- marks between its own. This takes one or two ZRANGE (seeks) for each mark that follows the base in the index. If
-- that would be too many seeks, it returns only the text itself.
--- (key: str, text: table, all: str) -> table
function match.prefixes(key, text, all)
  if text.marks == "" then return { text.base } end
  local found, left, marks = {}, _few_marks.SEEKS, {}
  for mark in string.gmatch(all, "[^\128-\191][\128-\191]*") do marks[#marks + 1] = mark end
  local function walk(start, missing)
    local next_mark, low = 1, "[" .. start .. marks[1]
    local high = "(" .. start .. marks[#marks] .. "\255"
    while left > 0 do
      left = left - 1
      local at = redis.call("ZRANGE", key, low, high, "BYLEX", "LIMIT", 0, 1)[1]
      if not at then return end
      local letter = string.match(at, "^[^\128-\191][\128-\191]*", #start + 1) or "\255"
      while next_mark <= #marks and match.before(marks[next_mark], letter) do next_mark = next_mark + 1 end
      if marks[next_mark] == letter then
        local typed = string.sub(text.marks, missing, missing + #letter - 1) == letter
        local still_missing = typed and missing + #letter or missing
        if still_missing > #text.marks then
          found[#found + 1] = start .. letter
        else
          walk(start .. letter, still_missing)
        end
        next_mark = next_mark + 1
      end
      if next_mark > #marks then return end
      low = "[" .. start .. marks[next_mark]
    end
  end
  walk(text.base, 1)
  return left > 0 and found or { text.base .. text.marks }
end

-- Whether string `a` comes before `b` in byte order.
--- (a: str, b: str) -> bool
function match.before(a, b)
  local same, most = 0, math.min(#a, #b) -- the first `same` bytes are equal; they differ within the first `most`
  while same < most do
    local middle = math.ceil((same + most) / 2)
    if string.sub(a, same + 1, middle) == string.sub(b, same + 1, middle) then
      same = middle
    elseif middle == same + 1 then
      return string.byte(a, middle) < string.byte(b, middle)
    else
      most = middle
    end
  end
  return #a < #b
end

-- Whether a search that comes to this element returns its name. A name whose tails begin with the typed text more than
-- once is returned only with the first of these elements in byte order; for an empty text, with the element of its
-- first tail. Also returns the keys, or nil if the name has one tail.
--- (element: str, text: table, all: str) -> bool, str | nil
function match.is_first(element, text, all)
  local cut = string.find(element, separator.WORD, 1, true)
  if not cut then return true, nil end
  local keys = string.sub(element, cut + 1)
  local once = string.find(keys, text.marked, 1, true)
  if not once or not string.find(keys, text.marked, once + 1, true) then return true, keys end
  local tail = string.match(element, "^%Z*")
  for piece in string.gmatch(keys, "[^" .. separator.TEXT .. "]+") do
    for at in string.gmatch(piece, separator.WORD .. "()") do
      local other = string.sub(string.gsub(string.sub(piece, at), separator.WORD, ""), 1, _tail.BYTES)
      if text.base == "" then return other == tail, keys end
      if other ~= tail and match.begins(other, text, all) and match.before(other, tail) then return false, keys end
    end
  end
  return true, keys
end

-- Whether each typed word begins a different word of this piece: a matching of bipartite graphs (Kuhn 1955).
--- (piece: str, query: table) -> bool
function match.has_own_words(piece, query)
  local starts, taken = {}, {}
  for i = 1, #query.texts do
    local text, found, at = query.texts[i], {}, 1
    while true do
      local first, last = string.find(piece, text.marked, at, true)
      if not first then break end
      if match.has_marks(piece, last + 1, text.marks, query.all) then found[#found + 1] = first end
      at = first + 1
    end
    if #found == 0 then return false end
    starts[i] = found
  end
  local function assign(i, tried)
    for j = 1, #starts[i] do
      local at = starts[i][j]
      if not tried[at] then
        tried[at] = true
        if not taken[at] or assign(taken[at], tried) then
          taken[at] = i
          return true
        end
      end
    end
    return false
  end
  for i = 1, #starts do
    if not assign(i, {}) then return false end
  end
  return true
end

-- Whether a search returns this element, which begins with the main text of the query. Adds to `query.work` roughly how
-- many microseconds this takes.
--- (element: str, query: table) -> bool
function match.accepts(element, query)
  local texts = query.texts
  query.work = query.work + 1 + #element / 512
  if #texts > 1 then -- most elements fail this test, which is cheap
    for i = 1, #texts do
      if not string.find(element, texts[i].marked, 1, true) then return false end
    end
  end
  query.work = query.work + 2 * #texts + #element / 16
  local first, keys = match.is_first(element, query.main, query.all)
  if not first or #texts == 1 then return first end
  for piece in string.gmatch(keys or "", "[^" .. separator.TEXT .. "]+") do
    if match.has_own_words(piece, query) then return true end
  end
  return false
end

-- Returns the number of elements that begin with a typed text.
--- (key: str, text: table, all: str) -> int
function match.count(key, text, all)
  local prefixes, count = match.prefixes(key, text, all), 0
  for i = 1, #prefixes do
    count = count + redis.call("ZLEXCOUNT", key, "[" .. prefixes[i], "(" .. prefixes[i] .. "\255")
  end
  return count
end

-- Chooses the text whose elements are read: number `chosen`, or if that is 0 the text with the fewest elements. For a
-- later page, only texts with which `last` begins come into question, because the first page chose one of these.
--- (key: str, query: table, chosen: int, last: str)
function match.choose(key, query, chosen, last)
  local texts, best = query.texts, nil
  if chosen > 0 then
    query.main = texts[chosen]
    return
  end
  for i = 1, #texts > 1 and #texts or 0 do
    if last == "" or match.begins(last, texts[i], query.all) then
      local count = match.count(key, texts[i], query.all)
      if not best or count < best then best, query.main = count, texts[i] end
    end
  end
end
