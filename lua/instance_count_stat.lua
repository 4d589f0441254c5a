-- instance_count_stat: the number of instances of all services.
-- KEYS[1] namespace. Replies the number. Writes only when it meets an expired instance,
-- which it removes and announces.

local namespace = KEYS[1]

local count = 0
for _, service in ipairs(redis.call('SMEMBERS', namespace .. ':svc_idx')) do
    local index = namespace .. ':svc_itc_idx:' .. service
    for _, id in ipairs(redis.call('SMEMBERS', index)) do
        local instance = namespace .. ':svc_itc:' .. id
        if redis.call('EXISTS', instance) == 1 then
            count = count + 1
        else
            redis.call('SREM', index, id)
            redis.call('PUBLISH', instance, 'expired')
        end
    end
end
return count
