-- Returns the server's time in microseconds, by the clock that leases run on.
--- keys: base key
--- flags: no-writes
function script.now(base, key)
  return clock.micros()
end
