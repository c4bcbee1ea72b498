-- Wake-ups: short messages to listeners, the parts of a process that wait for something.
--
-- A face is the blocking side of a process, or one of its event loops. Each face subscribes to one channel,
-- `penstock:wake:<face>`; on a cluster to one for each slot in which it waits, `penstock:wake:{<tag>}:<face>`. The
-- address of a listener is `<channel>/<number>`. The text of a message depends on what the listener waits for; mostly
-- it is the milliseconds after which to look at the state again.
--
-- A message is sent by the script that changes the state, and is a hint to look at it. So a message that is lost costs
-- time, but never the change.
--
-- The nodes of a shard pass messages on to each other, but a script learns only of the subscribers of its own node.
-- After a fail-over, a face may be subscribed at the old primary, which is a replica now and accepts that.

-- Sends a message to a listener. Returns false if its face is not subscribed at this node: the process has ended, or
-- will register again. So the caller can forget the address. The face may receive the message nevertheless; then an
-- empty one follows, for which the listener looks at the state at once, and registers again.
--- (address: str, text: str) -> bool
function notify.send(address, text)
  local channel, number = string.match(address, "^(.*)/(.-)$")
  if channel == nil then return false end
  if redis.call("SPUBLISH", channel, number .. " " .. text) > 0 then return true end
  if text ~= "0" then redis.call("SPUBLISH", channel, number .. " ") end
  return false
end

-- Sends a message to all listeners of a face.
--- (face: str, text: str)
function notify.send_all(face, text)
  redis.call("SPUBLISH", face, "* " .. text)
end

-- Whether the face of an address is subscribed at this node; every face ignores this message. If it is not, its
-- listeners are asked to look at their state, because the caller will forget them, and the face may be subscribed at
-- another node.
--- (address: str) -> bool
function notify.reaches(address)
  local channel = string.match(address, "^(.*)/")
  if channel == nil then return false end
  if redis.call("SPUBLISH", channel, "") > 0 then return true end
  redis.call("SPUBLISH", channel, "* ")
  return false
end

-- The part of an address that all listeners of a face have in common.
--- (address: str) -> str
--- inline
function notify.face(address)
  return string.match(address, "^(.*)/")
end
