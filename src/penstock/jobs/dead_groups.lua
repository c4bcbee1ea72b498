-- Groups of dead letters, which Python makes from their failures (dead_groups.py).

-- Why these jobs failed last, as many as fit into a slice: { failure or false, … }.
--- keys: base meta
--- args: ids: *
--- flags: no-writes
--- frame: format
function script.failures(base, meta, ids, ...)
  local page, budget = {}, slice.of(#ARGV)
  for i = ids, #ARGV do
    if not slice.take(budget, redis.call("HSTRLEN", base .. "failures", ARGV[i])) then break end
    page[#page + 1] = redis.call("HGET", base .. "failures", ARGV[i])
  end
  return page
end
