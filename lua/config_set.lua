-- config_set: makes data the next version of a config, unless its hash is the current one.
-- KEYS[1] namespace; ARGV config id, data, hash. Replies 1, or 0 when nothing changed.

local namespace, id, data, hash = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local index = namespace .. ':cfg_idx'
local config = namespace .. ':cfg:' .. id
local historyIndex = namespace .. ':cfg_htr_idx:' .. id
local now = redis.call('TIME')[1]

if redis.call('HGET', config, 'hash') == hash then
    return 0
end
redis.call('SADD', index, config)

local newVersion
local version = redis.call('HGET', config, 'version')
if version then
    -- The hash itself moves into the history: readers of a version see all it ever was.
    local archived = namespace .. ':cfg_htr:' .. id .. ':' .. version
    redis.call('ZADD', historyIndex, version, archived)
    redis.call('RENAME', config, archived)
    redis.call('HSET', archived, 'op', 'set', 'opTime', now)
    newVersion = version + 1
else
    -- A removed config counts on from its newest version.
    local newest = redis.call('ZREVRANGE', historyIndex, 0, 0, 'WITHSCORES')
    newVersion = (newest[2] or 0) + 1
end

redis.call('HSET', config, 'configId', id, 'data', data, 'hash', hash, 'version', newVersion, 'createTime', now)
redis.call('PUBLISH', config, 'set')
return 1
