-- config_remove: moves a config into its history and out of the index.
-- KEYS[1] namespace; ARGV config id. Replies 1, or 0 when there was nothing to remove.

local namespace, id = KEYS[1], ARGV[1]
local config = namespace .. ':cfg:' .. id
local now = redis.call('TIME')[1]

if redis.call('SREM', namespace .. ':cfg_idx', config) == 0 then
    return 0
end
local version = redis.call('HGET', config, 'version')
if not version then
    return 0
end

local archived = namespace .. ':cfg_htr:' .. id .. ':' .. version
redis.call('ZADD', namespace .. ':cfg_htr_idx:' .. id, version, archived)
redis.call('RENAME', config, archived)
redis.call('HSET', archived, 'op', 'remove', 'opTime', now)
redis.call('PUBLISH', config, 'remove')
return 1
