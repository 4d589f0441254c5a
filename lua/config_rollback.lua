-- config_rollback: makes the data of an archived version the next version of a config.
-- KEYS[1] namespace; ARGV config id, version to go back to. Replies 1, or 0 when that
-- version is not archived or has the current hash.

local namespace, id, target = KEYS[1], ARGV[1], ARGV[2]
local index = namespace .. ':cfg_idx'
local config = namespace .. ':cfg:' .. id
local history = namespace .. ':cfg_htr:' .. id .. ':'
local historyIndex = namespace .. ':cfg_htr_idx:' .. id
local now = redis.call('TIME')[1]

if redis.call('EXISTS', history .. target) == 0 then
    return 0
end
local old = redis.call('HMGET', history .. target, 'data', 'hash')
local data, hash = old[1], old[2]
if redis.call('HGET', config, 'hash') == hash then
    return 0
end

local newVersion
local version = redis.call('HGET', config, 'version')
if version then
    local archived = history .. version
    redis.call('ZADD', historyIndex, version, archived)
    redis.call('RENAME', config, archived)
    redis.call('HSET', archived, 'op', 'rollback', 'opTime', now)
    newVersion = version + 1
else
    local newest = redis.call('ZREVRANGE', historyIndex, 0, 0, 'WITHSCORES')
    if not newest[2] then
        return redis.error_reply('ERR config has an archived version but no history index')
    end
    newVersion = newest[2] + 1
end
redis.call('SADD', index, config)

-- An archived version without data or hash (false here) fails this command.
redis.call('HSET', config, 'configId', id, 'data', data, 'hash', hash, 'version', newVersion, 'createTime', now)
redis.call('PUBLISH', config, 'rollback')
return 1
