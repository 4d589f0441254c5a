-- registry_set_metadata: replaces all metadata of an instance.
-- KEYS[1] namespace; ARGV instance id, then field, value, ... (possibly none).
-- Replies 1, or 0 when there is no such instance.

local instance = KEYS[1] .. ':svc_itc:' .. ARGV[1]

if redis.call('EXISTS', instance) == 0 then
    return 0
end
-- Names with '__' are CoSky's own and stay.
for _, field in ipairs(redis.call('HKEYS', instance)) do
    if string.sub(field, 1, 1) == '_' and not string.find(field, '__', 1, true) then
        redis.call('HDEL', instance, field)
    end
end
if #ARGV > 1 then
    redis.call('HSET', instance, unpack(ARGV, 2))
end
redis.call('PUBLISH', instance, 'set_metadata')
return 1
