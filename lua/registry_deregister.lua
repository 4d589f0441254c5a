-- registry_deregister: takes an instance out of its service and deletes it.
-- KEYS[1] namespace; ARGV service id, instance id. Replies the number of instances
-- deleted: 0 when it was not in the service or had expired.

local namespace, service, id = KEYS[1], ARGV[1], ARGV[2]
local instance = namespace .. ':svc_itc:' .. id

if redis.call('SREM', namespace .. ':svc_itc_idx:' .. service, id) == 0 then
    return 0
end
redis.call('PUBLISH', instance, 'deregister')
return redis.call('DEL', instance)
