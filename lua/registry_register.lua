-- registry_register: adds an instance to a service, or writes it again, with a new TTL.
-- KEYS[1] namespace; ARGV ttl in seconds ('-1': fixed, no TTL), service id, instance id,
-- schema, host, port, weight, then metadata as field, value, ... Replies 1.

local namespace, ttl, service, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local schema, host, port, weight = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local services = namespace .. ':svc_idx'
local instance = namespace .. ':svc_itc:' .. id

-- Only an id that is new to its service can bring a new service.
if redis.call('SADD', namespace .. ':svc_itc_idx:' .. service, id) == 1
    and redis.call('SADD', services, service) == 1 then
    redis.call('PUBLISH', services, 'set')
    redis.call('HSET', namespace .. ':svc_stat', service, 0)
end

-- Metadata is replaced as a whole; names with '__' are CoSky's own and stay.
for _, field in ipairs(redis.call('HKEYS', instance)) do
    if string.sub(field, 1, 1) == '_' and not string.find(field, '__', 1, true) then
        redis.call('HDEL', instance, field)
    end
end

local ephemeral = 'true'
if ttl == '-1' then
    ephemeral = 'false'
end
redis.call('HSET', instance,
    'instanceId', id, 'serviceId', service, 'schema', schema, 'host', host, 'port', port,
    'weight', weight, 'ephemeral', ephemeral, unpack(ARGV, 8))
redis.call('PUBLISH', instance, 'register')

if ephemeral == 'false' then
    redis.call('PERSIST', instance)
else
    redis.call('EXPIRE', instance, ttl)
end
return 1
