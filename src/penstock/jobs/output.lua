-- The output of a job: chunks that it emits while it runs, for those that read them meanwhile.
--
--   output:<id>  STREAM  an entry for each block of chunks that arrived together: `about` (see `block`), and `chunks`,
--                        a JSON array, perhaps sealed. Its id is <number of its last chunk>-<began>. PX
--
-- The chunks of a job have numbers without gaps from 1, through all of its runs. `began` is the server's time in ms
-- when the first one was written; two outputs of the same id differ in it. A *position*, <number>-<began>, is held by a
-- reader. The last entry has everything that the next one needs, so there is no other key.
--
-- A worker numbers the chunks of each claim, too. So chunks that are sent twice are appended once, and a claim that has
-- ended appends nothing. A worker sends chunks in its turns, before it settles the job.
--
-- The oldest blocks are freed. Each write renews the time after which the output expires; the script that ends the job
-- sets it to that of the result. The claim or the record of a job with an output has the flag NOTES.

block = layout {
  at = "I8", -- server ms
  count = "I4", -- its chunks
  missed = "I4", -- chunks before it that its worker had no room to keep
  attempt = "H", -- higher for each later run that emits
  claim = "I8", -- number of the claim
  last = "I8", -- the number that its last chunk has in its claim
  ended = "I8", -- bytes of all blocks up to this one
  freed = "I8", -- number of the last chunk that was freed when this block was appended
  begun = "I8", -- bytes of the freed blocks
}

-- The chunks that a worker sends.
_sent = layout {
  first = "I8", -- the number of the first chunk in its claim
  count = "I4",
  missed = "I4",
  attempt = "H", -- by the record
  chunks = "*", -- a JSON array
}

output = { KEPT_BYTES = 1048576, KEPT_CHUNKS = 100000 } -- of one job; the oldest are freed

-- OVERHEAD: about the bytes that the server needs for a block; FREED: the most blocks that one script frees; READ:
-- bytes of chunks, and BLOCKS, that one read returns; TTL: ms after the last write; GRACE: ms after the end of the job,
-- at least
_output = {
  OVERHEAD = 128, FREED = 1000, READ = 262144, BLOCKS = 1000, TTL = 604800000, GRACE = 60000,
}

_item = { ID = 1, FIELDS = 2, ABOUT = 2, CHUNKS = 4 } -- in an entry, and in its fields

-- The state of an output, as its last block has it.
--- (key: str) -> table
function output.load(key)
  local top = redis.call("XREVRANGE", key, "+", "-", "COUNT", 1)[1]
  if not top then
    return { number = 0, began = "", attempt = 0, claim = 0, last = 0, ended = 0, freed = 0, begun = 0 }
  end
  local number, began = string.match(top[_item.ID], "^(%d+)-(%d+)$")
  local its = block.fields(top[_item.FIELDS][_item.ABOUT])
  return {
    number = tonumber(number), began = began, attempt = its.attempt, claim = its.claim, last = its.last,
    ended = its.ended, freed = its.freed, begun = its.begun,
  }
end

-- Appends chunks of a running job, and notifies their readers. Does nothing if the incarnation does not hold the job
-- under this claim, or if the chunks were appended before: a worker repeats a block unchanged.
--- (s: table, incarnation: str, of: str, text: str)
--- uses: base
--- seldom
function output.append(s, incarnation, of, text)
  local held = lease.held(incarnation, of)
  if not held then return end
  local sent, id, number, chunks = _sent.fields(text), token.id(of), token.number(of), _sent.chunks(text)
  local key = base .. "output:" .. id
  local log = output.load(key)
  local attempt = log.attempt
  if log.claim ~= number then
    attempt = math.min(math.max(attempt + 1, sent.attempt), _most.SHORT)
  elseif sent.first <= log.last then
    return
  end
  local top, ended = log.number + sent.count, log.ended + #chunks + _output.OVERHEAD
  output.free(s, log, key, top, ended)
  local began = log.number > 0 and log.began or string.format("%d", s.now)
  redis.call("XADD", key, string.format("%d-%s", top, began), "about", block.pack({
    at = s.now, count = sent.count, missed = sent.missed, attempt = attempt, claim = number,
    last = sent.first + sent.count - 1, ended = ended, freed = log.freed, begun = log.begun,
  }), "chunks", chunks)
  redis.call("PEXPIRE", key, _output.TTL)
  if not record.has(claim.flags(held), flag.NOTES) then
    redis.call("HSET", base .. "held:" .. incarnation, id, lease.noted(held))
  end
  listeners.report(s.row, id, "output", s.budget)
end

-- Frees the oldest blocks if an output exceeds its bounds, whose last chunk has the number `top`, and to which `ended`
-- bytes were ever appended. One script frees a limited number of blocks of all jobs; the next write frees the others.
--- (s: table, log: table, key: str, top: int, ended: int)
function output.free(s, log, key, top, ended)
  local before, n = log.freed, s.output_freed or 0
  while n < _output.FREED and log.freed < log.number
    and (ended - log.begun > output.KEPT_BYTES or top - log.freed > output.KEPT_CHUNKS) do
    local some = redis.call("XRANGE", key, log.freed + 1, "+", "COUNT", 10)
    if #some == 0 then break end
    for i = 1, #some do
      if ended - log.begun <= output.KEPT_BYTES and top - log.freed <= output.KEPT_CHUNKS then break end
      log.freed, n = tonumber(string.match(some[i][_item.ID], "^%d+")), n + 1
      log.begun = block.ended(some[i][_item.FIELDS][_item.ABOUT])
    end
  end
  s.output_freed = n
  if log.freed > before then redis.call("XTRIM", key, "MINID", log.freed + 1) end
end

-- Keeps the output of a job that ends as long as its result, but long enough for its readers to reach the end.
--- (id: str, ttl: int)
--- uses: base
function output.close(id, ttl)
  redis.call("PEXPIRE", base .. "output:" .. id, string.format("%d", math.max(ttl, _output.GRACE)))
end

-- Deletes the output of an earlier job with this id.
--- (id: str)
--- uses: base
function output.remove(id)
  redis.call("UNLINK", base .. "output:" .. id)
end

-- The chunks of a job after a position; `began` is empty for the beginning. A position in an earlier output of this id
-- counts as the beginning. A negative `number` stands for the last ones: -20 for the last 20. Returns { 1 if the job is
-- not done, 1 if there is such a job or was one until recently, ms until it expires (-1: it does not), number of the
-- last chunk, number of the last chunk before those returned, id, about, chunks, … }. With `register` 1, the listener
-- at `address` is notified of further chunks and of the end of the job; else it is deregistered.
--- keys: base meta
--- args: given: int, id: str, number: int, began: str, address: str, register: int
--- flags: allow-oom
--- frame: row
function script.read_output(base, meta, given, id, number, began, address, register)
  local key, expires, lives = base .. "output:" .. id, 0
  local log = output.load(key)
  local is_known = log.number > 0
  if redis.call("HEXISTS", base .. "owners", id) == 1 then
    lives = true
  else
    local body = record.get(id)
    expires = body and record.expires(body) or 0
    lives = body and record.state(body) ~= state.DEAD and not (expires > 0 and job.is_over(id, body, s.now))
    is_known = is_known or body or results.get(id, s.now)
  end
  listeners.set(s, id, address, register == 1, lives)
  if number < 0 then
    number = math.max(0, log.number + number)
  elseif began ~= log.began or number > log.number then
    number = 0
  end
  local reply, room = {
    lives and 1 or 0, (lives or is_known) and 1 or 0, lives and expires > s.now and expires - s.now or -1, log.number,
    number,
  }, _output.READ
  local last = #reply + 3 * _output.BLOCKS
  while number < log.number and room > 0 and #reply < last do
    local some = redis.call("XRANGE", key, number + 1, "+", "COUNT", 10)
    if #some == 0 then break end
    for i = 1, #some do
      local fields = some[i][_item.FIELDS]
      if room <= 0 then break end
      number, room = tonumber(string.match(some[i][_item.ID], "^%d+")), room - #fields[_item.CHUNKS]
      local at = #reply
      reply[at + 1], reply[at + 2], reply[at + 3] = some[i][_item.ID], fields[_item.ABOUT], fields[_item.CHUNKS]
    end
  end
  return reply
end
